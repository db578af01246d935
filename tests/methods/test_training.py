"""Every method trains on the household, evaluates, resumes, writes records and a card that names and cites it."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter

import pytest
import torch
from datasets import Dataset
from transformers import LlamaModel

from taspo_trl import TASPOConfig
from taspo_trl.credit.base import Batch
from taspo_trl.environments import HouseholdEnvironment
from taspo_trl.errors import InvariantError
from taspo_trl.methods import METHODS
from taspo_trl.methods.registry import recipe_for
from taspo_trl.records import read_records
from taspo_trl.reporting.card_facts import logged_coverage
from tests import tiny
from tests.methods.test_cards import num_branches
from tests.reporting.test_metrics_doc import DOCUMENTED, is_final, matches


ROWS = [row for row in tiny.household_rows(size=12) if row["index"] in (0, 7)]


def plan(row) -> list[str]:
    environment = HouseholdEnvironment()
    environment.reset(**row, seed=0)
    return environment.oracle_plan()


PLANS = [plan(row) for row in ROWS]
"""Of four actions each."""


def acting(uid: str, turn: int) -> str:
    """Of four members two solve their task, one after a detour; one tries what does nothing, one half of the plan."""
    if not uid.startswith("r"):  # an evaluation
        return "<action>look</action>"
    group, member = (int(part[1:]) for part in uid.split("-")[-2:])
    steps = PLANS[group % 2]
    actions = [steps, ["inventory", *steps], ["look", "inventory"] * 3, [*steps[:2], *["look", "inventory"] * 2]][
        member
    ]
    return f"<action>{actions[turn]}</action>" if turn < len(actions) else "<action>look</action>"


@pytest.fixture(scope="module")
def teacher(tmp_path_factory):
    """A model in a folder that another learns from."""
    folder = tmp_path_factory.mktemp("teacher")
    tiny.model(seed=1).save_pretrained(folder)
    tiny.tokenizer().save_pretrained(folder)
    return str(folder)


def new_trainer(folder, name, teacher=None, **values):
    defaults = {
        "method": name,
        "train_dataset": Dataset.from_list(ROWS),
        "shuffle_dataset": False,
        "max_steps": 2,
        "max_turns": 6,
        "max_completion_length": 16,
        "teacher_model": teacher if name == "opd" else None,
    }
    return tiny.trainer(folder, policy=tiny.ScriptedPolicy(acting), **{**defaults, **values})


@pytest.fixture
def forwards(monkeypatch):
    """Rows that models were shown: `update` with a gradient, `scoring` without. The episodes are scripted."""
    found: Counter[str] = Counter()
    original = LlamaModel.forward

    def counting(self, input_ids=None, *args, **kwargs):
        shown = input_ids if input_ids is not None else kwargs["inputs_embeds"]
        found["update" if torch.is_grad_enabled() else "scoring"] += shown.shape[0]
        return original(self, input_ids, *args, **kwargs)

    monkeypatch.setattr(LlamaModel, "forward", counting)
    return found


EXACTLY = {"gigpo": 0, "taspo": 1, "hcapo": 2, "serl": 2, "turnsight": 4, "opsd": 1, "opd": 1, "sdpo": 2}
"""Rows without gradient for each turn, one method or more of each interface. The policy as its own teacher: the guided
branch, from the keys of the plain row, which is the update's (TASPO) or one of its own (HCAPO, which compares
trajectories). Another teacher: a whole row each. Terms: the teacher's row, since the student's carries the gradient;
SDPO also asks for the student's top k."""


def check_forwards(name, rows, num_turns):
    """No method costs more forwards than it is described with."""
    guided = num_branches(name) or (name == "opd")
    assert rows["update"] <= num_turns, "one forward and backward for each turn, whatever the method"
    assert rows["scoring"] <= num_turns * (1 + guided if guided else 0)
    if name in EXACTLY:
        assert rows["scoring"] == num_turns * EXACTLY[name]


AT_ONCE = {"factor": {"warmup": 0}}
"""Options without which two updates would not show a method: FACTOR scores nothing in its warm-up."""


@pytest.mark.parametrize("name", METHODS)
def test_a_method_trains_evaluates_and_leaves_records_and_a_card(tmp_path, name, teacher, forwards):
    method = METHODS[name]
    options = AT_ONCE.get(name, {})
    made = new_trainer(tmp_path, name, teacher, eval_dataset=tiny.household_rows(size=1), method_options=options)
    recipe = made.experience_maker.settings.recipe
    before = tiny.parameters(made)
    forwards.clear()  # of the checks at construction
    made.train()
    assert made.evaluate()["eval_success"] == 0.0
    made.save_model()
    made.close()
    logged = [entry for entry in made.state.log_history if "loss" in entry]
    assert len(logged) == 2 and all(math.isfinite(entry["loss"]) for entry in logged)
    assert {entry["success"] for entry in logged} == {0.5}
    moved = max((value - before[key]).abs().max().item() for key, value in tiny.parameters(made).items())
    assert moved > 0
    names = {key for entry in logged for key in entry if not is_final(key)}
    assert not sorted(key for key in names if not any(matches(one, key) for one in DOCUMENTED))
    assert ("distill/loss" in logged[0]) == (recipe.distill is not None)

    records = list(read_records(tmp_path / "_trajectories"))
    assert len(records) == 16 and {record.credit.method for record in records} == {name}
    check_forwards(name, forwards, sum(len(record.trajectory.turns) for record in records))
    shown = {block for record in records for block in record.guidance.blocks}
    assert shown == set(recipe.needs.blocks), "a block that the method asks for was never made"
    scored = {block for record in records for score in record.credit.scores for block in score.guided}
    assert scored == set(recipe.rule_needs.blocks)

    card = (tmp_path / "README.md").read_text()
    assert name in card or name == "grpo"
    for paper in method.papers:
        assert paper.arxiv in card and paper.name in card.partition("## Citation")[2]
    for option in method.options:
        assert f"method_options: {option}" in card


def test_nothing_is_scored_where_a_schedule_has_ended(tmp_path, forwards):
    made = new_trainer(tmp_path, "serl", method_options={"zero_at": 1})
    forwards.clear()
    made.train()
    first, second = ([one for one in read_records(tmp_path / "_trajectories") if one.rollout == k] for k in (0, 1))
    assert forwards["scoring"] == EXACTLY["serl"] * sum(len(record.trajectory.turns) for record in first)
    assert any(record.credit.scores for record in first) and not any(record.credit.scores for record in second)
    entries = [entry for entry in made.state.log_history if "loss" in entry]
    assert [entry.get("credit/fallback/zero_share", 0.0) for entry in entries] == [0.0, len(second)]
    assert entries[1]["credit/weighted_share"] == 0.0
    # Nor is anybody asked for guidance that nobody would read.
    assert any(record.guidance for record in first) and not any(record.guidance for record in second)
    assert entries[1]["guidance/none/zero_share"] == len(second) and "guidance/none/zero_share" not in entries[0]
    assert logged_coverage(entries) == [entries[0]["guidance/coverage"]]
    made.close()


def test_guidance_is_made_where_a_part_reads_it():
    args = {"output_dir": "unused", "use_cpu": True, "bf16": False, "report_to": "none"}
    batches = [Batch((), (), step=step, num_steps=30) for step in (0, 10, 29)]

    def asked(name, **options):
        recipe = recipe_for(TASPOConfig(method=name, method_options=options, **args))
        return [recipe.reads_guidance(one, range(one.step, one.step + 1)) for one in batches]

    assert asked("serl", zero_at=10) == [True, False, False]
    assert asked("factor", warmup=5, zero_at=20) == [False, True, False]
    assert asked("taspo") == asked("gigpo") == asked("opsd") == [True] * 3


def test_a_broken_promise_stops_the_run(tmp_path, monkeypatch):
    monkeypatch.setattr("taspo_trl.credit.rlsd.tilt", lambda shift, advantage, clip: 3.0)
    made = new_trainer(tmp_path, "rlsd")
    with pytest.raises(InvariantError, match=r"A~ / A inside \[0.9, 1.1\]"):
        made.train()
    made.close()


@pytest.mark.parametrize("name", ["gigpo", "serl", "grpo_sdpo"])
def test_a_resumed_run_equals_the_unbroken_one(tmp_path, name):
    """One method of each interface: an advantage, weights with a teacher that lags, a term with an averaged one."""
    settings = {"max_steps": 3, "save_strategy": "steps", "save_steps": 1}
    if name == "serl":
        settings["method_options"] = {"teacher_every": 2}
    whole = new_trainer(tmp_path / "whole", name, **settings)
    whole.train()
    whole.close()
    parts = new_trainer(tmp_path / "parts", name, **settings)
    parts.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-1"))
    parts.close()
    for key, value in tiny.parameters(whole).items():
        assert torch.equal(value, tiny.parameters(parts)[key]), key


def test_schedules_and_states_reach_the_rules(tmp_path):
    """SERL at lambda 0 is GRPO to the last bit; GiGPO's report of its states is logged."""
    made = {
        "grpo": new_trainer(tmp_path / "grpo", "grpo"),
        "serl": new_trainer(tmp_path / "serl", "serl", method_options={"share": 0.0}),
        "gigpo": new_trainer(
            tmp_path / "gigpo", "gigpo", method_options={"omega": 0.0, "state_key": "observation_actions"}
        ),
    }
    for one in made.values():
        one.train()
        one.close()
    for key, value in tiny.parameters(made["grpo"]).items():
        assert torch.equal(value, tiny.parameters(made["serl"])[key]), key
        assert torch.equal(value, tiny.parameters(made["gigpo"])[key]), key
    assert any(key == "credit/singleton_turns" for entry in made["gigpo"].state.log_history for key in entry)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("gigpo", {"state_key": "world"}),
        ("factor", {"value": "continuations", "continuations": 2, "warmup": 0}),
        ("triage", {"judge": "oracle"}),
    ],
)
def test_what_the_simulator_knows_reaches_the_rules(tmp_path, name, options):
    made = new_trainer(tmp_path, name, max_steps=1, method_options=options)
    made.train()
    made.close()
    entry = next(one for one in made.state.log_history if "loss" in one)
    assert math.isfinite(entry["loss"]) and entry["time/simulator"] > 0
    if name == "gigpo":
        assert entry["simulator/unknown_states"] == 0 and entry["credit/singleton_turns"] < 1
    if name == "factor":
        assert entry["simulator/continued_replies"] > 0
    if name == "triage":
        assert entry["credit/role/decisive"] > 0
    names = {key for key in entry if not is_final(key)}
    assert not sorted(key for key in names if not any(matches(one, key) for one in DOCUMENTED))


class Unlisted(HouseholdEnvironment):
    """Tells nobody what may be done."""

    def reset(self, **row):
        result = super().reset(**row)
        return dataclasses.replace(result, info={**result.info, "admissible_actions": None})

    def step(self, action):
        result = super().step(action)
        return dataclasses.replace(result, info={**result.info, "admissible_actions": None})


CONTRASTS = ("contrast", "contrast_probability")


@pytest.mark.parametrize("support", CONTRASTS)
def test_support_beside_what_else_could_have_been_done(tmp_path, support):
    """What is compared is listed by the world, or sampled where it lists nothing; the cost is logged."""
    listed = support == "contrast"

    def replying(uid, turn):
        """What else the policy would do where it is asked again."""
        return acting(uid, turn) if "-o" not in uid else f"<action>{['look', 'inventory'][int(uid[-1]) % 2]}</action>"

    made = new_trainer(
        tmp_path,
        "taspo",
        environment_factory=HouseholdEnvironment if listed else Unlisted,
        method_options={"support": support, "alternatives": 5, "samples": 3},
        guidance="random_success",
        max_steps=1,
    )
    tiny.use_policy(made, tiny.ScriptedPolicy(replying))
    made.train()
    made.close()
    entry = next(one for one in made.state.log_history if "loss" in one)
    assert entry["alternatives/turn_share"] > 0.5
    actions = entry["alternatives/actions"]
    assert actions == 5 if listed else 2 <= actions <= 3
    assert (entry["alternatives/sampled_replies"] > 0) != listed
    assert entry["alternatives/prefix_tokens"] > entry["alternatives/action_tokens"] > 0
    names = {key for key in entry if not is_final(key)}
    assert not sorted(key for key in names if not any(matches(one, key) for one in DOCUMENTED))
    assert any(len(set(one.credit.weights)) > 1 for one in read_records(tmp_path / "_trajectories"))


@pytest.mark.parametrize("support", CONTRASTS)
def test_an_empty_block_says_nothing_of_alternatives_either(tmp_path, support):
    """Weights are exactly 1: TASPO with the empty block is GRPO to the last bit."""
    plain = new_trainer(tmp_path / "grpo", "grpo", max_steps=1)
    options = {"support": support}
    empty = new_trainer(tmp_path / "empty", "taspo", guidance="empty", method_options=options, max_steps=1)
    for made in (plain, empty):
        made.train()
        made.close()
    records = list(read_records(tmp_path / "empty" / "_trajectories"))
    supports = [support for one in records for support in one.credit.supports if support is not None]
    assert supports and set(supports) == {0.0}
    assert {weight for one in records for weight in one.credit.weights} == {1.0}
    for key, value in tiny.parameters(plain).items():
        assert torch.equal(value, tiny.parameters(empty)[key]), key


def test_the_oracle_s_plan_is_shown_where_the_world_knows_it(tmp_path):
    made = new_trainer(tmp_path, "taspo", guidance="oracle_plan", max_steps=1)
    made.train()
    made.close()
    records = {record.trajectory.uid: record for record in read_records(tmp_path / "_trajectories")}
    texts = records["r0-g0-k0"].guidance.blocks["oracle_plan"].texts
    for turn_idx, text in enumerate(texts):
        assert all(action in text for action in PLANS[0][turn_idx:])
    assert all(score.guided for score in records["r0-g0-k0"].credit.scores)
