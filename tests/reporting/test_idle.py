"""What a method cannot move is not logged, what it can move is, and names of a kind stand together."""

import math

from taspo_trl.methods import METHODS
from taspo_trl.reporting.idle import grouped, without_idle
from tests import tiny
from tests.trainer.test_trainer import scripted


def recipe(name, **values):
    return METHODS[name].make(tiny.config("unused", method=name, **values))


REPORT = {
    "success": 0.0,
    "guidance/coverage": 0.0,
    "guidance/none/no_construction": 8.0,
    "evidence/kept": 0.0,
    "time/analyzer": 0.01,
    "time/scoring": 0.01,
    "credit/weighted_share": 1.0,
    "credit/weight_min": 1.0,
    "credit/support_accepted": math.nan,
    "kl": 0.0,
}


def test_grpo_logs_neither_guidance_nor_weights_and_everything_else():
    assert without_idle(REPORT, recipe("grpo")) == {"success": 0.0, "kl": 0.0}
    assert without_idle(REPORT | {"guidance/coverage": 0.5}, recipe("grpo"))["guidance/coverage"] == 0.5, (
        "a bug is seen"
    )


def test_methods_that_can_move_them_log_them_at_zero_too():
    assert without_idle(REPORT, recipe("taspo")) == REPORT
    gigpo = without_idle(REPORT, recipe("gigpo"))
    assert gigpo == {name: REPORT[name] for name in ("success", "credit/weighted_share", "credit/weight_min", "kl")}
    transcripts = recipe("taspo", guidance="random_success")
    assert {*REPORT} - {*without_idle(REPORT, transcripts)} == {"evidence/kept"}


def test_names_of_a_kind_stand_together_in_the_page_s_order():
    names = ["time/rollout", "credit/b", "mine", "success/pick", "kl", "guidance/x", "reward_std", "success", "reward"]
    expected = [
        "success/pick",
        "success",
        "reward",
        "reward_std",
        "guidance/x",
        "credit/b",
        "kl",
        "time/rollout",
        "mine",
    ]
    assert grouped(names) == expected


def test_a_grpo_run_s_entries_are_in_order_and_without_what_is_idle(tmp_path):
    made, _ = scripted(tmp_path, method="grpo")
    made.train()
    made.close()
    names = list(made.state.log_history[0])
    assert not [name for name in names if name.startswith(("guidance/", "evidence/", "credit/", "analyzer/"))]
    assert "time/rollout" in names and names.index("success") < names.index("turns/mean") < names.index("time/update")
