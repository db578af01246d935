"""`docs/metrics.md` names every metric that is logged, and no other."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from datasets import Dataset

import taspo_trl
from taspo_trl.analyzer.base import AnalyzerReply, AnalyzerRequest
from taspo_trl.analyzer.extractive import ExtractiveAnalyzer
from taspo_trl.loss.importance import CorrectionSums, correction_metrics
from taspo_trl.reporting.metrics import MOVING, analyzer_metrics, update_metrics
from taspo_trl.types import StopReason
from tests import tiny
from tests.documents import DOCS
from tests.trainer.test_trainer import Script, replies, rows


PAGE = (DOCS / "metrics.md").read_text(encoding="utf-8")
SOURCE = "\n".join(path.read_text(encoding="utf-8") for path in Path(taspo_trl.__file__).parent.rglob("*.py"))
ONLY_WITH_AN_ENGINE = {"time/weight_sync", "time/beside_rollout"}
ONLY_WITH_A_METHOD = {
    "alternatives/action_tokens",
    "alternatives/actions",
    "alternatives/prefix_tokens",
    "alternatives/sampled_replies",
    "alternatives/turn_share",
    "credit/action_mean_drift",
    "credit/role/<role>",
    "credit/singleton_turns",
    "credit/without_peer",
    "distill/loss",
    "simulator/continued_replies",
    "simulator/dropped_continuations",
    "simulator/lost_share",
    "simulator/unknown_states",
    "time/alternatives",
    "time/simulator",
}
"""Those of methods other than TASPO: `tests/methods/test_training.py` logs them."""
OWN_NAMES = {"user/metric"}


def tables() -> dict[str, list[list[str]]]:
    """Head of the first column -> the first cells of its tables."""
    found: dict[str, list[list[str]]] = {}
    head = None
    for line in PAGE.split("\n"):
        if not line.startswith("|"):
            head = None
            continue
        cell = line.split("|")[1].strip()
        if head is None:
            head = found.setdefault(cell, [])
        elif not set(cell) <= set("-: "):
            head.append(re.findall(r"`([^`]+)`", cell))
    return found


DOCUMENTED = {name for cell in tables()["metric"] for name in cell}


def matches(documented: str, name: str) -> bool:
    parts = re.split(r"(<\w+>)", documented)
    pattern = "".join(r"[^/]+" if part.startswith("<") else re.escape(part) for part in parts)
    return re.fullmatch(pattern, name) is not None


def is_final(name: str) -> bool:
    """Whether transformers logs it once, at the end of training."""
    return name.startswith("train_") or name == "total_flos"


class Evasive(ExtractiveAnalyzer):
    """The embedded analyzer, one of whose items quotes nothing."""

    def complete(self, request):
        reply = super().complete(request)
        return AnalyzerReply(text=reply.text.replace('"evidence": [', '"evidence": [{"evidence_id": "X"}, ', 1))


class Fragile(Script):
    """Fails for one task, and tells of progress with every second action."""

    def reset(self, *, seed, task, **row):
        if task == "t3":
            raise RuntimeError("no such room")
        made = super().reset(seed=seed, task=task, **row)
        self.count = 0
        return type(made)(made.observation, {**made.info, "family": task, "progress": 0.0})

    def step(self, action):
        made = super().step(action)
        self.count += 1
        return replace(made, info={**made.info, "progress": float(self.count // 2)})


@pytest.fixture(scope="module")
def logged(tmp_path_factory) -> set[str]:
    """Names that real steps log: with KL, reward functions, rejected evidence, a failing task, and an evaluation."""

    def length(completions, log_metric, **_):
        log_metric("user/metric", 1.0)
        return [0.0 for _ in completions]

    def reply(uid, turn):
        """Members succeed or fail after two idle turns; the second forgets its tags once."""
        is_untagged = uid.endswith("k1") and turn == 1
        return "look" if is_untagged else replies(("inventory", "look", "look", "inventory"), 2)(uid, turn)

    made = tiny.trainer(
        tmp_path_factory.mktemp("run"),
        policy=tiny.ScriptedPolicy(reply),
        train_dataset=rows(),
        eval_dataset=Dataset.from_dict({"task": ["e0", "e1"]}),
        environment_factory=Fragile,
        reward_funcs=length,
        analyzer=Evasive(),
        per_device_train_batch_size=16,
        beta=0.1,
        shuffle_dataset=False,
    )
    made.train()
    made.evaluate()
    made.close()
    return {name for entry in made.state.log_history for name in entry}


@cache
def computed() -> frozenset[str]:
    """Names of what a tiny run has not: an analyzer that is asked over a network, an engine beside the trainer, an
    update without KL."""
    request = AnalyzerRequest("extraction", "", {})
    counters = ["requests", "retries", "wait_seconds", "reasoned", "asked_again", "repaired", "unreadable"]
    details = dict.fromkeys(counters, 1.0)
    calls = [(request, AnalyzerReply(cost_usd=0.1, details=details)), (request, AnalyzerReply(error="timeout"))]
    sums = CorrectionSums((0.1, 1, 0.1), (1.0, 1, 1.0, 1.0), 1)
    totals = dict.fromkeys(("tokens", "policy_loss", "entropy", "clip_low", "clip_high"), 1.0)
    moving = {name for name in update_metrics(totals, [(0.0, 0.0)], is_whole=False) if name.startswith(MOVING)}
    return frozenset({*analyzer_metrics(calls), *correction_metrics([sums]), *moving})


def test_every_logged_name_is_documented(logged):
    names = {name for name in logged | computed() if not is_final(name)} - OWN_NAMES
    assert not sorted(name for name in names if not any(matches(one, name) for one in DOCUMENTED))


def test_every_documented_name_is_logged(logged):
    names = logged | computed()
    missing = {one for one in DOCUMENTED if not any(matches(one, name) for name in names)}
    assert missing == ONLY_WITH_AN_ENGINE | ONLY_WITH_A_METHOD
    assert all(f'"{name}"' in SOURCE for name in ONLY_WITH_AN_ENGINE)


def test_the_final_entry_is_documented(logged):
    text = PAGE[PAGE.index("## At the end of a run") :]
    assert {name for name in logged if is_final(name)} <= set(re.findall(r"`(\w+)`", text))


def test_every_way_to_end_is_documented():
    assert [cell[0] for cell in tables()["`stop/<reason>`"]] == [reason.value for reason in StopReason]


def test_reasons_occur_in_the_code():
    reasons = {name for cell in tables()["`guidance/none/<reason>`"] for name in cell}
    text = next(line for line in PAGE.split("\n") if line.startswith("| `credit/unscorable/<reason>`"))
    reasons |= set(re.findall(r"`([a-z_]+)` \(", text)) | {"fewer_than_two_scorable_turns"}
    assert {"empty_mask", "over_window", "no_other_success", "time_budget"} <= reasons
    assert not sorted(reason for reason in reasons if f'"{reason}"' not in SOURCE)
