"""What the quickstart prints."""

from rich.console import Console

from taspo_trl.quickstart.run import _print_tables, stages_lines


HISTORY = [
    {"turns/mean": 10.0, "actions/invalid_share": 0.5, "guidance/coverage": 0.2, "credit/weighted_share": 0.1,
     "guidance/statements": 4.0, "credit/weight_min": 0.9, "credit/weight_max": 1.2, "grad_norm": 0.5},
    {"turns/mean": 12.0, "actions/invalid_share": 0.3, "grad_norm": 0.0},
    {"eval_success": 0.0},
]  # fmt: skip


def test_a_smoke_run_shows_what_the_stages_did_and_no_rates():
    lines = stages_lines(HISTORY)
    assert lines[0] == "played:   2 batches, 11.0 turns an episode, 40% of the actions refused"
    assert lines[1] == "guided:   10% of the episodes with an advantage, 2.0 statements for each"
    assert lines[2] == "weighed:  5% of the episodes, weights 0.90 to 1.20"
    assert lines[3] == "updated:  2 steps, gradient norm 0.25"
    assert "weights all 1" in stages_lines([])[2]
    console = Console(record=True, width=120)
    _print_tables(console, {"fast": True, "stages": lines}, {}, {})
    shown = console.export_text()
    assert "no rates to show" in shown and all(line in shown for line in lines)
    assert "held-out" not in shown
