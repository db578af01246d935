"""Trackio traces: the episode, its guidance and its weights; no keys; nothing that leaves the machine unasked."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from taspo_trl.reporting.trackio import TRACE_KEY, log_traces, trace_content, traces_kept_here
from taspo_trl.types import Block
from tests.runs import small_group
from tests.trainer.test_trainer import scripted


KEY = "sk-not-a-real-key-0123456789"


def arguments(**values):
    """The fields of the configuration that decide about traces."""
    defaults = {
        "report_to": ["trackio"],
        "push_to_hub": False,
        "hub_push_trajectories": False,
        "trackio_space_id": None,
        "trackio_static_space_id": None,
        "trackio_bucket_id": None,
        "log_unique_prompts": False,
    }
    return SimpleNamespace(**{**defaults, **values})


class FakeTrackio:
    """Stands in for the package, of a version with spans."""

    class Trace:
        def __init__(self, messages, metadata=None, spans=None):
            self.messages, self.metadata, self.spans = messages, metadata, spans

    def __init__(self, run: object | None = "a run"):
        self.context_vars = SimpleNamespace(current_run=SimpleNamespace(get=lambda: run))
        self.logged: list[tuple[dict, int]] = []

    def log(self, metrics, step=None):
        self.logged.append((metrics, step))


class FakeTrackioWithoutSpans(FakeTrackio):
    class Trace:
        def __init__(self, messages, metadata=None):
            self.messages, self.metadata = messages, metadata


@pytest.fixture
def trackio(monkeypatch):
    for name in ("TRACKIO_SPACE_ID", "TRACKIO_BUCKET_ID", "TRACKIO_DATASET_ID", "TRACKIO_SERVER_URL"):
        monkeypatch.delenv(name, raising=False)
    fake = FakeTrackio()
    monkeypatch.setitem(sys.modules, "trackio", fake)
    return fake


# ---- what a trace holds ---------------------------------------------------------------------------------------------


def test_a_trace_is_the_chat_with_weights_and_guidance():
    _, loser, _ = small_group()
    content = trace_content(loser)
    assert [message["role"] for message in content["messages"]] == ["user", *["assistant", "user"] * 3]
    assert content["messages"][-1]["content"] == "A mug 1!"
    metadata = content["metadata"]
    assert metadata["weights"] == [1.125, 1.0, 0.875] and metadata["advantage"] == -0.7
    assert metadata["guidance"] == "- Go to the desk." and metadata["construction"] == "aligned"
    assert metadata["status"] == "failed" and metadata["turns"] == 3
    # A * w of the turns: -0.7 * 1.125, -0.7, -0.7 * 0.875
    assert [span["output"]["weighted_advantage"] for span in content["spans"]] == [-0.7875, -0.7, -0.6125]
    assert [span["output"]["support"] for span in content["spans"]] == [-0.75, -0.375, 0.875]
    assert [span["output"]["accepted"] for span in content["spans"]] == [True, False, True]
    assert content["spans"][0]["name"] == "turn 0, w 1.12: go to lamp 1"
    json.dumps(content, allow_nan=False)


def test_why_weights_are_one_and_why_an_episode_died_is_told():
    winner, _, dead = small_group()
    assert trace_content(winner)["metadata"]["weights_are_1_because"] == "no_other_success"
    assert trace_content(winner)["metadata"]["no_guidance"] == "no_other_success"
    assert trace_content(winner)["metadata"]["status"] == "success"
    metadata = trace_content(dead)["metadata"]
    assert metadata["status"] == "error" and metadata["error"] == "RuntimeError: the game is gone"


def test_a_record_without_guidance_and_credit_is_a_trace_too():
    record = dataclasses.replace(small_group()[1], guidance=None, credit=None)
    content = trace_content(record)
    assert "weights" not in content["metadata"] and "weight" not in content["spans"][0]["output"]


def test_keys_that_a_world_echoes_are_taken_out(monkeypatch):
    monkeypatch.setenv("DEEPSEEK_API_KEY", KEY)
    record = small_group()[1]
    said = dataclasses.replace(
        record.trajectory.turns[0], action=f"say {KEY}", reply_text=f"<action>say {KEY}</action>", next_observation=KEY
    )
    trajectory = dataclasses.replace(record.trajectory, turns=(said, *record.trajectory.turns[1:]), error=KEY)
    guidance = dataclasses.replace(
        record.guidance, blocks={"aligned": Block.whole((1, 2), len(record.trajectory.turns), f"- Say {KEY}.")}
    )
    content = trace_content(dataclasses.replace(record, trajectory=trajectory, guidance=guidance))
    assert KEY not in json.dumps(content) and "- Say ***." in content["metadata"]["guidance"]


def test_half_of_a_surrogate_pair_is_escaped():
    record = small_group()[0]
    odd = dataclasses.replace(record.trajectory.turns[0], next_observation="a \ud83d b")
    trajectory = dataclasses.replace(record.trajectory, turns=(odd,))
    credit = dataclasses.replace(record.credit, weights=(1.0,), supports=(None,))
    content = trace_content(dataclasses.replace(record, trajectory=trajectory, credit=credit))
    assert content["messages"][-1]["content"] == "a \\ud83d b"


# ---- when traces are logged -----------------------------------------------------------------------------------------


def test_a_batch_is_logged_at_its_step(trackio):
    assert log_traces(arguments(), small_group(), step=7)
    ((metrics, step),) = trackio.logged
    uids = [trace.metadata["uid"] for trace in metrics[TRACE_KEY]]
    assert step == 7 and uids == ["r0-g0-k0", "r0-g0-k1", "r0-g0-k2"]
    assert len(metrics[TRACE_KEY][1].spans) == 3


def test_unique_prompts_leave_one_trace_of_each_group(trackio):
    records = [*small_group(0), *small_group(1)]
    assert log_traces(arguments(log_unique_prompts=True), records, step=0)
    assert [trace.metadata["group"] for trace in trackio.logged[0][0][TRACE_KEY]] == ["r0-g0", "r1-g0"]


@pytest.mark.parametrize(
    ("values", "variable"),
    [
        ({"report_to": []}, None),
        ({"report_to": ["wandb"]}, None),
        ({"push_to_hub": True}, None),
        ({"trackio_space_id": "me/space"}, None),
        ({"trackio_static_space_id": "me/space"}, None),
        ({"trackio_bucket_id": "me/bucket"}, None),
        ({}, "TRACKIO_SPACE_ID"),
        ({}, "TRACKIO_SERVER_URL"),
    ],
)
def test_nothing_is_logged_unasked(trackio, monkeypatch, values, variable):
    if variable is not None:
        monkeypatch.setenv(variable, "somewhere")
    assert not log_traces(arguments(**values), small_group(), step=0)
    assert not trackio.logged
    is_reported = "trackio" in values.get("report_to", ["trackio"])
    assert log_traces(arguments(**values, hub_push_trajectories=True), small_group(), step=0) == is_reported


def test_trackio_without_traces_spans_or_run_breaks_nothing(trackio, monkeypatch):
    plain = FakeTrackioWithoutSpans()
    monkeypatch.setitem(sys.modules, "trackio", plain)
    assert log_traces(arguments(), small_group(), step=0)
    assert plain.logged[0][0][TRACE_KEY][1].metadata["weights"] == [1.125, 1.0, 0.875]
    monkeypatch.setitem(sys.modules, "trackio", FakeTrackio(run=None))
    assert not log_traces(arguments(), small_group(), step=0)
    monkeypatch.setitem(sys.modules, "trackio", SimpleNamespace(__version__="0.1"))
    assert not log_traces(arguments(), small_group(), step=0)


@pytest.mark.parametrize(
    ("values", "inside"),
    [
        ({}, False),
        ({"hub_push_trajectories": True}, None),
        ({"push_to_hub": True}, None),  # then there were no traces
        ({"report_to": []}, None),
    ],
)
def test_a_push_does_not_copy_local_traces_into_a_space(trackio, values, inside):
    args = arguments(**values)
    with traces_kept_here(args):
        assert args.trackio_static_space_id is inside
    assert args.trackio_static_space_id is None


def test_every_rollout_batch_of_a_training_is_offered(tmp_path, monkeypatch):
    offered = []
    monkeypatch.setattr("taspo_trl.trainer.log_traces", lambda args, records, step: offered.append((records, step)))
    made, _ = scripted(tmp_path, max_steps=2)
    made.train()
    made.close()
    assert [step for _, step in offered] == [0, 1]
    assert all(len(records) == 8 and all(one.credit is not None for one in records) for records, _ in offered)
    assert any(one.guidance for one in offered[0][0])


def test_a_trainer_keeps_local_traces_out_of_its_pushes(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(
        "trl.GRPOTrainer.push_to_hub", lambda self: seen.append(self.args.trackio_static_space_id), raising=False
    )
    monkeypatch.setattr(
        "trl.GRPOTrainer._push_from_checkpoint", lambda self, _: seen.append(self.args.trackio_static_space_id)
    )
    made, _ = scripted(tmp_path)
    made.args.report_to = ["trackio"]
    made.push_to_hub()
    made._push_from_checkpoint("checkpoint-1")
    made.args.hub_push_trajectories = True
    made.push_to_hub()
    made.close()
    assert seen == [False, False, None]


# ---- trackio itself -------------------------------------------------------------------------------------------------

_PROGRAM = """
import json
from types import SimpleNamespace

import trackio
from taspo_trl.reporting.trackio import log_traces
from tests.runs import small_group
from trackio.sqlite_storage import SQLiteStorage

args = SimpleNamespace(
    report_to=["trackio"], push_to_hub=False, hub_push_trajectories=False, trackio_space_id=None,
    trackio_static_space_id=None, trackio_bucket_id=None, log_unique_prompts=False,
)
trackio.init(project="household", name="run", embed=False)
for step in range(2):
    assert log_traces(args, small_group(step), step)
    trackio.log({"success": 0.5})
trackio.finish()
traces = SQLiteStorage.get_traces("household", "run", sort="step_asc")
steps = [entry["step"] for entry in SQLiteStorage.get_logs("household", "run") if "success" in entry]
print(json.dumps({"traces": traces, "steps": steps}))
"""


def test_trackio_stores_what_was_logged(tmp_path):
    """In a process of its own: trackio reads its folder at import."""
    pytest.importorskip("trackio", reason="trackio is not installed")
    environment = {**os.environ, "TRACKIO_DIR": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    for name in ("TRACKIO_SPACE_ID", "TRACKIO_BUCKET_ID", "TRACKIO_SERVER_URL"):
        environment.pop(name, None)
    done = subprocess.run([sys.executable, "-c", _PROGRAM], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    stored = json.loads(done.stdout.splitlines()[-1])
    traces = stored["traces"]
    assert [one["step"] for one in traces] == [0] * 3 + [1] * 3 and {one["key"] for one in traces} == {TRACE_KEY}
    (guided,) = (one for one in traces if one["metadata"]["uid"] == "r1-g0-k1")
    assert guided["metadata"]["weights"] == [1.125, 1.0, 0.875] and len(guided["spans"]) == 3
    assert guided["messages"][-1] == {"role": "user", "content": "A mug 1!"}
    # What the trainer logs after the update of step k stands at k + 1, as in its own count.
    assert stored["steps"] == [1, 2]
