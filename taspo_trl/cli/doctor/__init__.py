"""What `taspo doctor` finds out before a run: is everything there, does everything answer, what will it take.

Formulae live in `workload.py` and `memory.py`, which are pure; every other file looks at one kind of thing and turns
what it sees into findings.
"""
