"""What `taspo doctor` finds out before a run: is everything there, does everything answer, what will it take.

Formulae live in `workload.py`, `memory.py` and `timing.py`, which are pure but for two measurements in the last; every
other file looks at one kind of thing and turns what it sees into findings.
"""
