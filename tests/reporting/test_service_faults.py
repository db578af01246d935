"""What a run can do without costs itself, not the run: the Hub, trackers, disks. Each row of the tables is a test."""

from __future__ import annotations

import importlib
import logging
import threading
import time
from collections.abc import Callable

import pytest
import transformers.trainer
import trl.trainer.grpo_trainer as trl_module
from transformers import TrainerControl
from transformers.integrations.integration_utils import TensorBoardCallback

from taspo_trl.errors import HubError
from taspo_trl.redaction import Secret
from taspo_trl.reporting.hub import Pushes, selective_uploads
from taspo_trl.reporting.trackers import TookTooLongError, Trackers, at_most
from tests import tiny
from tests.reliability import Fault, check_table
from tests.trainer.test_trainer import scripted


HUGE = "x" * 30_000_000
TOKEN = Secret("hf_CANARYtokenCANARYtoken7731CANARY")


class Mumble(Exception):
    def __str__(self):
        raise RuntimeError("and this")


def raising(error: BaseException) -> Callable[..., None]:
    def call(*arguments, **options):
        raise error

    return call


def hanging(*arguments, **options):
    threading.Event().wait(30)


def told(caplog) -> list[str]:
    return [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING]


# ---- the Hub --------------------------------------------------------------------------------------------------------

ONE_WARNING = "one warning; the run goes on, a later push takes everything"
NO_RUN = "the run does not begin: one line with its remedy"

PUSHES: dict[Fault, Callable] = {
    Fault("raises", "a push is refused, or fails", ONE_WARNING, "one push"): raising(OSError("403 Forbidden")),
    Fault("hangs", "a push is not answered", "the run goes on; its end gives the push up, with a warning",
          "`hub_timeout`, once; the process ends without it"): hanging,
    Fault("dies", "the connection breaks in the middle of a push", ONE_WARNING, "one push"): raising(
        ConnectionResetError("reset by peer")),
    Fault("wrong type", "an answer that is no JSON", ONE_WARNING, "one push"): raising(
        ValueError("Expecting value: line 1 column 1")),
    Fault("huge", "an error page of 30 MB", ONE_WARNING, "300 characters are said"): raising(OSError(HUGE)),
    Fault("hostile", "its error repeats the token", f"{ONE_WARNING}, with `***`", "one push"): raising(
        OSError(f"bad token {TOKEN.reveal()}")),
    Fault("hostile", "its error cannot be put into words", ONE_WARNING, "one push"): raising(Mumble()),
}  # fmt: skip

REPOSITORIES: dict[Fault, Callable] = {
    Fault("raises", "the repository cannot be made when a run begins", NO_RUN, "at once"): raising(
        OSError(f"401 for {TOKEN.reveal()}")),
    Fault("hangs", "its making is not answered", NO_RUN, "60 s"): hanging,
}  # fmt: skip


class Api:
    """Stands in for `HfApi`."""

    def __init__(self, call):
        self.create_repo = self.upload_folder = call


@pytest.fixture
def served_by(monkeypatch):
    return lambda api: monkeypatch.setattr(transformers.trainer, "hf_api", lambda: api)


@pytest.mark.parametrize("fault", PUSHES, ids=str)
def test_a_push_s_fault(served_by, caplog, tmp_path, fault):
    served_by(Api(PUSHES[fault]))
    pushes = Pushes(0.2)
    with selective_uploads(pushes, with_trajectories=False):
        job = transformers.trainer.hf_api().upload_folder(folder_path=str(tmp_path), run_as_future=True)
        progress = transformers.trainer.PushInProgress([job])
        started = time.monotonic()
        pushes.finish(progress)
        assert time.monotonic() - started < 5
        (said,) = told(caplog)
        assert len(said) < 600 and "CANARY" not in said
        assert "`hub_timeout`" in said if fault.kind == "hangs" else "The run goes on" in said
        assert progress.is_done(), "nobody waits for it again"
    served_by(Api(lambda **options: "pushed"))
    with selective_uploads(pushes, with_trajectories=False):
        assert transformers.trainer.hf_api().upload_folder(folder_path=str(tmp_path)) == "pushed", (
            "the next one is made"
        )


@pytest.mark.parametrize("fault", REPOSITORIES, ids=str)
def test_a_repository_s_fault(served_by, tmp_path, fault):
    served_by(Api(REPOSITORIES[fault]))
    with pytest.raises(HubError) as caught:
        tiny.trainer(tmp_path, push_to_hub=True, hub_model_id="somebody/agent", hub_timeout=0.2)
    text = str(caught.value)
    assert "somebody/agent" in text and "\n" not in text and "CANARY" not in text


def test_a_final_push_that_hangs_is_given_up_with_its_remedy(served_by, tmp_path):
    served_by(Api(hanging))
    with (
        selective_uploads(Pushes(0.2), with_trajectories=False),
        pytest.raises(HubError, match=r"was not pushed: .*within 0.2 s.*`hub_timeout`"),
    ):
        transformers.trainer.hf_api().upload_folder(folder_path=str(tmp_path))


def test_a_training_whose_pushes_fail_and_hang_ends_as_any_other(served_by, tmp_path, caplog):
    calls = []

    def upload(**options):
        calls.append(options)
        return hanging() if len(calls) == 2 else raising(ConnectionError("gone"))()

    api = Api(upload)
    api.create_repo = lambda name, **options: type("Url", (), {"repo_id": name})()
    served_by(api)
    made, _ = scripted(
        tmp_path, max_steps=2, save_strategy="steps", save_steps=1, push_to_hub=True, hub_strategy="every_save",
        hub_always_push=True, hub_model_id="somebody/agent", hub_timeout=0.3,
    )  # fmt: skip
    assert made.train().global_step == 2 and len(calls) == 2
    assert ["ConnectionError: gone" in one for one in told(caplog) if "Hub" in one] == [True, False]


def test_the_table_of_the_hub():
    check_table("hub", [*PUSHES, *REPOSITORIES])


# ---- trackers -------------------------------------------------------------------------------------------------------

TRIED_AGAIN = "one warning; the run goes on, the next entries are tried again"


def stubborn(*arguments, **options):
    """Swallows what it can."""
    while True:
        try:
            time.sleep(30)
        except Exception:
            continue


TRACKERS: dict[Fault, Callable] = {
    Fault("raises", "a call fails", TRIED_AGAIN, "`tracker_timeout` for failing calls together"): raising(
        RuntimeError("no run")),
    Fault("hangs", "a call does not return", "it gets nothing more of the run, with a warning",
          "`tracker_timeout`, once"): hanging,
    Fault("dies", "its server is gone", TRIED_AGAIN, "`tracker_timeout` for failing calls together"): raising(
        BrokenPipeError("gone")),
    Fault("wrong type", "it returns something else than the Trainer's control", "it is not looked at", "at once"):
        lambda *arguments, **options: "stop",
    Fault("huge", "an error of 30 MB", TRIED_AGAIN, "300 characters are said"): raising(RuntimeError(HUGE)),
    Fault("hostile", "its error repeats a key", f"{TRIED_AGAIN}; `***` stands for the key", "at once"): raising(
        RuntimeError(f"key {TOKEN.reveal()} refused")),
    Fault("hostile", "its error cannot be put into words", TRIED_AGAIN, "at once"): raising(Mumble()),
    Fault("hostile", "it swallows every exception and waits on", "it gets nothing more of the run, with a warning",
          "`tracker_timeout`, once"): stubborn,
}  # fmt: skip


@pytest.fixture
def board(monkeypatch):
    """A tracker's callback that never reaches its library."""
    monkeypatch.setattr(TensorBoardCallback, "__init__", lambda self: None)
    return TensorBoardCallback()


@pytest.mark.parametrize("fault", TRACKERS, ids=str)
def test_a_tracker_s_fault(board, caplog, fault):
    calls = []

    def event(*arguments, **options):
        calls.append(arguments)
        return TRACKERS[fault]()

    board.on_log = event
    trackers = Trackers(timeout=0.2)
    trackers.guard([board])
    trackers.guard([board])
    started = time.monotonic()
    assert board.on_log(None, None, TrainerControl()) is None
    assert board.on_log(None, None, TrainerControl()) is None
    assert time.monotonic() - started < 5
    is_given_up = "nothing more" in fault.outcome
    assert len(calls) == (1 if is_given_up else 2)
    said = told(caplog)
    assert len(said) == (fault.kind != "wrong type") and not [one for one in said if "CANARY" in one or len(one) > 600]
    assert all(("`tracker_timeout`" in one) == is_given_up and "tensorboard" in one for one in said)


def test_failing_calls_that_cost_too_much_together_end_a_tracker(board, caplog):
    def slow(*arguments, **options):
        time.sleep(0.06)
        raise OSError("timed out")

    board.on_log = slow
    Trackers(timeout=0.1).guard([board])
    for _ in range(4):
        board.on_log(None, None, None)
    assert len(told(caplog)) == 2 and "failed for 0.1 s together" in told(caplog)[1]


def test_callbacks_of_the_user_stay_what_they_are(board):
    class Own(transformers.TrainerCallback):
        def on_log(self, args, state, control, **options):
            raise RuntimeError("mine")

    own = Own()
    Trackers(1.0).guard([own])
    with pytest.raises(RuntimeError, match="mine"):
        own.on_log(None, None, None)


def test_what_answers_in_time_is_untouched_and_an_alarm_of_somebody_else_goes_on():
    import signal

    rung = []
    before = signal.signal(signal.SIGALRM, lambda *_: rung.append(True))
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.15)
        assert Trackers(5.0).call("wandb", lambda x: x + 1, 1) == 2
        with pytest.raises(TookTooLongError), at_most(0.05):
            time.sleep(5)
        time.sleep(0.3)
        assert rung == [True]
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


class Board:
    """A tracker's module whose tables fail."""

    run = "a run"
    Table = staticmethod(raising(TypeError("no such column")))

    def __init__(self):
        self.logged = []

    def log(self, data):
        self.logged.append(data)
        raise ConnectionError("gone")


def test_tables_that_trl_sends_and_traces_that_we_send_cost_no_run(tmp_path, monkeypatch, caplog):
    board = Board()
    monkeypatch.setattr(trl_module, "trackio", board, raising=False)
    monkeypatch.setattr("taspo_trl.trainer.log_traces", raising(ConnectionError("no traces")))
    made, _ = scripted(tmp_path, max_steps=1, log_completions=True, num_completions_to_print=0)
    made.args.report_to = ["trackio"]
    assert made.train().global_step == 1
    assert board.logged and trl_module.trackio is board
    (said,) = [one for one in told(caplog) if "tracker" in one]
    assert "The tracker trackio failed: ConnectionError: no traces" in said


def test_the_table_of_trackers():
    check_table("tracker", list(TRACKERS))


# ---- disks ----------------------------------------------------------------------------------------------------------

_SURVIVAL = "tests.trainer.test_survival"
_SAVING = "tests.training.test_saving"
_WRITTEN_AGAIN = "one warning for each kind; the run goes on, and the next ones are written again"

DISKS: dict[Fault, tuple[str, ...]] = {
    Fault("raises", "no room for a checkpoint or the final model",
          "the run ends in one line: path, free space, the last good checkpoint; older ones stay",
          "the draft is removed"): (
        f"{_SURVIVAL}:test_checkpoint_that_does_not_fit_ends_the_run_in_one_line_and_the_last_one_stays",
        f"{_SAVING}:test_full_disk_is_one_line_with_path_and_remedy_and_the_last_good_one_stays",
        f"{_SURVIVAL}:test_final_model_replaces_the_old_one_whole"),
    Fault("raises", "no room for records, evaluations, a model card", _WRITTEN_AGAIN, "one file"): (
        f"{_SURVIVAL}:test_full_disk_costs_a_file_not_the_run",),
    Fault("raises", "no room for the log or a table of completions", _WRITTEN_AGAIN, "one file"): (
        "tests.reporting.test_service_faults:test_a_full_disk_costs_the_log_and_the_tables_only",),
    Fault("raises", "no room for the analyzer's cache and ledger", "answers are paid again; the budget holds",
          "one warning"): ("tests.analyzer.llm.test_ledger:test_a_budget_holds_when_the_file_does_not",),
    Fault("raises", "a limit of the system on a file's size", _WRITTEN_AGAIN, "one file"): (
        "tests.test_files:test_a_real_limit_of_the_system_is_spared",),
    Fault("dies", "a kill or a power failure in the middle of a save", "`checkpoint-N` is whole or not there",
          "the draft is removed when the run goes on"): (
        f"{_SAVING}:test_checkpoint_has_its_name_only_when_it_is_whole",
        f"{_SAVING}:test_leavings_of_a_kill_go_and_a_replaced_checkpoint_comes_back",
        "tests.test_files:test_content_is_on_the_disk_before_it_has_its_name"),
    Fault("dies", "a checkpoint whose end is missing", "passed over with a warning; named by you, refused",
          "one checkpoint"): (f"{_SURVIVAL}:test_resuming_passes_over_a_torn_checkpoint_and_sets_it_aside",),
    Fault("wrong type", "a folder stands where a file belongs", _WRITTEN_AGAIN, "one file"): (
        "tests.reporting.test_service_faults:test_a_folder_in_the_place_of_a_file_costs_that_file",),
    Fault("hostile", "another live run in the folder", "the second is refused", "nothing is touched"): (
        f"{_SURVIVAL}:test_second_live_run_is_refused_before_it_touches_anything",),
    Fault("hostile", "weights that are no numbers", "they are not saved; older checkpoints stay", "at once"): (
        f"{_SURVIVAL}:test_weights_that_became_no_numbers_are_not_saved",),
}  # fmt: skip
"""Row -> the tests that check it."""


def test_a_full_disk_costs_the_log_and_the_tables_only(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("taspo_trl.files._told", set())
    monkeypatch.setattr("pandas.DataFrame.to_parquet", raising(OSError(28, "No space left on device")))
    monkeypatch.setattr("taspo_trl.trainer.write_state", raising(OSError(28, "No space left on device")))
    made, _ = scripted(tmp_path, max_steps=2, log_completions=True, num_completions_to_print=0)
    assert made.train().global_step == 2
    made.save_state()
    assert [one.split(" cannot")[0] for one in told(caplog) if "No space" in one] == ["Tables of completions", "Logs"]


def test_a_folder_in_the_place_of_a_file_costs_that_file(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("taspo_trl.files._told", set())
    (tmp_path / "trainer_state.json").mkdir()
    made, _ = scripted(tmp_path, max_steps=1)
    made.save_state()
    assert len([one for one in told(caplog) if one.startswith("Logs cannot be written")]) == 1


def test_the_table_of_disks():
    for tests in DISKS.values():
        for test in tests:
            module, _, name = test.partition(":")
            assert callable(getattr(importlib.import_module(module), name))
    check_table("disk", list(DISKS))
