"""A session goes on where it was killed, keeps seeds equal, ends in time, and refuses another plan."""

from __future__ import annotations

import json
import time

import pytest
from rich.console import Console

from benchmarks.study.__main__ import main, try_methods
from benchmarks.study.plan import Choice, Plan
from benchmarks.study.play import arguments
from benchmarks.study.results import ROOT, Store, code_hash
from benchmarks.study.runner import Expected, InProcess, Told, go
from taspo_trl.errors import ConfigurationError
from tests.study.studies import VALUES, plan, result


CHOICE = Choice("long", 2, "area")
TOLD = Told("the plan", "the code")


class Killed(BaseException):
    """Stands for a signal that nothing survives."""


class Trainer:
    """The one fake: plays at once, and dies at one run."""

    def __init__(self, dies_at: int | None = None, broken: str = ""):
        self.dies_at, self.broken, self.played = dies_at, broken, []

    def __call__(self, run):
        if len(self.played) == self.dies_at:
            raise Killed
        self.played.append(str(run))
        if str(run) == self.broken:
            raise RuntimeError("no memory")
        return result(run, 4)


def test_a_kill_between_any_two_files_costs_the_run_under_way_only(tmp_path):
    runs = plan().runs("tier1", CHOICE)
    names = [str(run) for run in runs]
    for dies_at in range(len(runs)):
        store, first, second = Store(tmp_path / str(dies_at)), Trainer(dies_at), Trainer()
        with pytest.raises(Killed):
            go(runs, store, first, TOLD, workers=1)
        # A file that a kill left half written is none.
        partial = store.folder / runs[dies_at].path.with_name(runs[dies_at].path.name + ".partial")
        partial.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text('{"version"')
        assert go(runs, store, second, TOLD, workers=1).done == runs[dies_at:]
        assert first.played + second.played == names
        assert len(store.finished("tiers")) == len(runs)
    assert not go(runs, store, Trainer(0), TOLD).done, "nothing is played twice"


def test_methods_have_equal_seeds_wherever_a_session_stops():
    runs = plan().runs("tier1", CHOICE)
    assert [(run.seed, run.method) for run in runs[:5]] == [
        (0, "grpo"),
        (0, "taspo"),
        (0, "serl"),
        (0, "oracle"),
        (1, "grpo"),
    ]
    assert {run.seed for run in plan().runs("tier1", CHOICE, first_methods=2)} == {0, 1, 2}
    assert [str(run) for run in plan().runs("ceiling")[:4]] == [
        "short grpo seed 100",
        "short oracle seed 100",
        "short placebo seed 100",
        "long grpo seed 100",
    ]
    # A tier's runs take the chosen setting and updates; a method may have its own number.
    assert runs[0].configuration["updates"] == 2 and runs[0].seconds == 100
    assert plan().runs("tier2", CHOICE)[0].configuration["updates"] == 0


def test_a_session_begins_nothing_that_would_not_end_in_time(tmp_path):
    now = [0.0]

    def work(run):
        now[0] += 1800
        return result(run, 4)

    runs = plan().runs("tier1", CHOICE)
    outcome = go(runs, Store(tmp_path), work, TOLD, workers=1, hours=2, clock=lambda: now[0])
    # The first guess is 100 s; then half an hour each was timed, and the fifth would end after two hours and a half.
    assert outcome.done == runs[:4] and outcome.left == runs[4:]
    assert Expected(Store(tmp_path).finished("tiers"))(runs[4]) == 1800


def test_a_failure_is_tried_again_listed_and_does_not_stop_the_others(tmp_path):
    runs, store = plan().runs("tier1", CHOICE), Store(tmp_path)
    broken = Trainer(broken=str(runs[1]))
    outcome = go(runs, store, broken, TOLD, workers=2)
    assert outcome.failed == [runs[1]] and len(outcome.done) == len(runs) - 1
    assert broken.played.count(str(runs[1])) == 2
    assert ["no memory" in one["error"] for one in store.failures()] == [True, True]
    assert go(runs, store, Trainer(), TOLD).done == [runs[1]]


def test_another_plan_or_other_code_is_refused_by_name(tmp_path):
    store, made = Store(tmp_path), plan()
    told = Told(made.hash("tiers", CHOICE), "c")
    go(made.runs("tier1", CHOICE)[:2], store, Trainer(), told)
    store.check("tiers", made.hash("tiers", CHOICE), "c")
    changed = plan(lambda values: values["methods"]["taspo"].update(allocation="token"))
    for other in (changed.hash("tiers", CHOICE), made.hash("tiers", Choice("long", 4, "area"))):
        with pytest.raises(ConfigurationError, match=r"seed-000\.json was made under the plan"):
            store.check("tiers", other, "c")
    with pytest.raises(ConfigurationError, match="--any-code"):
        store.check("tiers", told.plan, "d")
    store.check("tiers", told.plan, "d", any_code=True)
    # What a stage does not depend on leaves its hash alone.
    assert changed.hash("ceiling") == made.hash("ceiling")
    slow = plan(lambda values: values["settings"]["short"].update(seconds=999))
    assert slow.hash("ceiling") == made.hash("ceiling")


def test_the_command_refuses_to_go_on_under_a_changed_plan(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("benchmarks.study.__main__.code_hash", lambda: "c")
    made = Plan.read()
    go(made.runs("ceiling")[:1], Store(tmp_path), Trainer(), Told("another", "c"))
    assert main(["--results", str(tmp_path), "run"]) == 2
    assert "Refused. " in capsys.readouterr().out
    assert main(["--results", str(tmp_path), "status"]) == 0
    assert f"ceiling: 1 of {len(made.runs('ceiling'))} runs" in capsys.readouterr().out


def test_the_code_is_another_one_where_a_statement_changed_and_not_where_a_comment_did(tmp_path):
    for folder in ("taspo_trl", "benchmarks/study"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "benchmarks/study/play.py").write_text("")
    hashes = []
    for text in (
        '"""One."""\ndef f():\n    return 1\n',
        'def f():\n    """Two."""\n    return 1  # 1\n',
        "def f(): return 2",
    ):
        (tmp_path / "taspo_trl/a.py").write_text(text)
        hashes.append(code_hash(tmp_path))
    assert hashes[0] == hashes[1] != hashes[2]


def test_the_written_plan_stands_and_its_methods_are_known(tmp_path):
    from taspo_trl import TASPOConfig
    from taspo_trl.environments import HouseholdEnvironment
    from taspo_trl.methods.registry import recipe_for

    made = Plan.read()
    for preset in {one["preset"] for one in made.values["settings"].values()}:
        for split in ("valid_seen", "valid_unseen"):
            HouseholdEnvironment.dataset(split, preset=preset, size=made.values["evaluation"]["tasks"])
    for name, fields in made.values["methods"].items():
        given = {key: value for key, value in fields.items() if key not in ("standin", "updates", "teacher")}
        teacher = {"teacher_model": "somewhere"} if "teacher" in fields else {}
        args = TASPOConfig(output_dir=str(tmp_path), use_cpu=True, bf16=False, report_to="none", **given, **teacher)
        assert recipe_for(args).name == args.method, name
    assert len(made.runs("tier1", CHOICE_OF_THE_PLAN, first_methods=8)) == 80
    with pytest.raises(ConfigurationError, match="a method under test favours it"):
        plan(lambda values: values["ceiling"]["methods"].append("taspo"))
    with pytest.raises(ConfigurationError, match="does not define: hope"):
        plan(lambda values: values["tiers"]["tier1"]["methods"].append("hope"))


CHOICE_OF_THE_PLAN = Choice("small", 60, "sampled")


@pytest.mark.slow
def test_a_real_run_trains_and_leaves_all_that_is_read(tmp_path, monkeypatch):
    monkeypatch.setenv("TASPO_CACHE", str(tmp_path / "cache"))
    made = plan(
        lambda values: (
            values["settings"]["short"].update(updates=2, warm_start_steps=2),
            values["ceiling"].update(checkpoints=[1]),
            values["training"].update(max_completion_length=8, learning_rate=1e-3),
        )
    )
    run, store = made.runs("ceiling")[1], Store(tmp_path / "results")
    outcome = go([run], store, InProcess(ROOT, tmp_path / "scratch"), Told("p", "c"), workers=1)
    assert outcome.done == [run], store.failures()
    (one,) = store.finished("ceiling")
    assert (one.method, one.seed, one.updates) == ("oracle", 100, 2)
    assert len(one.curve("success")) == 2 and one.data["seconds"]["training"] > 0
    assert set(one.data["evaluations"]) == {"sampled@1", "sampled@2", "greedy@2"}
    seen = one.outcomes("sampled@1")["valid_seen"]
    assert [family for family, _ in seen] == ["pick", "look", "clean", "heat"] and all(s in (0, 1) for _, s in seen)
    assert 0 <= one.measure("sampled", 1) <= 1 and one.data["first_batch"] and one.data["policy"]
    assert json.loads(one.path.read_text())["load"]["start"]


def test_a_run_s_process_ends_with_the_one_that_started_it():
    import subprocess
    import sys

    code = "import threading, time; from benchmarks.study.play import _end_with_master as end; "
    code += "threading.Thread(target=end, daemon=True).start(); time.sleep(60)"
    child = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdin=subprocess.PIPE)
    time.sleep(0.1)
    child.stdin.close()  # what a kill of the master does
    assert child.wait(30) == 3


def test_a_trial_tells_of_every_method_and_which_would_fail(tmp_path, capsys):
    def work(configuration, folder):
        assert (configuration["updates"], configuration["checkpoints"]) in ((1, []), (0, []))
        assert configuration["training"]["tasks_per_update"] == 2 and configuration["setting"]["name"] == "short"
        if configuration["method"]["name"] == "serl":
            raise RuntimeError("no feedback")
        return {"curves": {"success": [0.25]}, "seconds": {"training": 1.0}, "first_batch": "b"}

    assert try_methods(Console(), plan(), Store(tmp_path), None, None, work) == 1
    told = capsys.readouterr().out
    assert "serl: RuntimeError: no feedback" in told and "taspo: 1.0 s; first batch b; success 0.25" in told
    assert "Failed: serl" in told and not list(tmp_path.iterdir())


def test_how_busy_the_machine_is_does_not_decide_what_is_sampled(tmp_path):
    """Runs of a seed are pairs by the digest of their first batch: requests must not meet by chance."""
    settings = {"seed": 0, "updates": 1, "method": {"name": "grpo", "method": "grpo"}, "setting": {}}
    whole = {**settings, "training": dict(VALUES["training"]), "evaluation": VALUES["evaluation"]}
    assert arguments(whole, tmp_path)["full_determinism"]
