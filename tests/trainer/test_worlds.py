"""A TASPO training step on each real world: some members of a group solve the task, the others get turn credit."""

from __future__ import annotations

from functools import partial

import pytest
from transformers import LlamaConfig, LlamaForCausalLM

from taspo_trl.analyzer.extractive import ExtractiveAnalyzer
from taspo_trl.environments import ALFWorldEnvironment, SearchQAEnvironment, WebShopEnvironment
from tests import tiny
from tests.tokenizers import byte_bpe
from tests.trainer.test_trainer import history


pytestmark = pytest.mark.slow
PAYLOAD_KEYS = {
    "task", "trajectories", "target", "allowed_evidence", "traj_uid", "steps", "step", "pre", "action", "valid",
    "post", "evidence_id", "kind", "statement", "sources", "pre_quote", "action_quote", "post_quote",
}  # fmt: skip


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch):
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("TASPO_CACHE", str(folder))
    monkeypatch.setenv("ALFWORLD_DATA", str(folder / "no-data"))


class Recorder(ExtractiveAnalyzer):
    """The embedded analyzer, with everything that was sent to it."""

    def __init__(self):
        self.payloads = []

    def complete(self, request):
        self.payloads.append(request.payload)
        return super().complete(request)


def alfworld():
    """(rows, environment, actions of an expert for a row, an action that leads nowhere)."""
    from taspo_trl.environments.alfworld.games import find_game_file, read_game

    def expert(row):
        return read_game(find_game_file(row["game_file"], "embedded")).walkthrough

    rows = ALFWorldEnvironment.dataset("train", data="embedded", size=2)
    return rows, partial(ALFWorldEnvironment, data="embedded"), expert, "look"


def webshop():
    rows = WebShopEnvironment.dataset("train", limit=2)

    def expert(row):
        environment = WebShopEnvironment()
        environment.reset(seed=0, **row)
        goal = environment._session.goal
        options = [f"click[{value}]" for value in goal.option_values]
        return [f"search[{goal.title}]", f"click[{goal.asin}]", *options, "click[buy now]"]

    return rows, partial(WebShopEnvironment, option_matching="mended"), expert, "search[something else]"


def search_qa():
    rows = SearchQAEnvironment.dataset("train", limit=1).select(range(2))

    def expert(row):
        return [f"<search>{row['question']}</search>", f"<answer>{row['golden_answers'][0]}</answer>"]

    return rows, SearchQAEnvironment, expert, "<search>something else</search>"


WORLDS = {"alfworld": (alfworld, "textworld"), "webshop": (webshop, "thefuzz"), "search_qa": (search_qa, "bm25s")}


def keys_of(value):
    if isinstance(value, dict):
        return set(value).union(*map(keys_of, value.values()))
    return set().union(*map(keys_of, value)) if isinstance(value, list) else set()


@pytest.mark.parametrize("name", WORLDS)
def test_a_training_step(name, tmp_path):
    make, package = WORLDS[name]
    pytest.importorskip(package, reason=f"the extra of {name} is not installed")
    rows, environment, expert, idle = make()
    tokenizer = byte_bpe()
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        max_position_embeddings=16384, bos_token_id=None, eos_token_id=tokenizer.eos_token_id,
    )  # fmt: skip
    analyzer = Recorder()
    made = tiny.trainer(
        tmp_path,
        model=LlamaForCausalLM(config),
        processing_class=tokenizer,
        train_dataset=rows,
        environment_factory=environment,
        analyzer=analyzer,
        max_completion_length=512,
        max_turns=40 if name == "alfworld" else None,
    )
    plans = {}

    def reply(uid, turn):
        """Two members follow the expert, two start like it and then go nowhere."""
        group, member = (int(part[1:]) for part in uid.split("-")[1:])
        plan = plans.setdefault(group, list(expert(made_rows[group])))
        action = plan[turn] if turn < len(plan) and (member < 2 or turn < len(plan) // 2) else idle
        return action if action.startswith("<") else f"<think>ö</think> <action>{action}</action>"

    made_rows = []
    tiny.use_policy(made, tiny.ScriptedPolicy(reply, tokenizer))
    play = made.experience_maker.make

    def make_and_note(rows, **options):
        made_rows[:] = rows
        return play(rows, **options)

    made.experience_maker.make = make_and_note
    before = tiny.parameters(made)
    made.train()
    made.close()
    assert history(made, "success")[0] == 0.5, history(made, "stop/failed")
    assert history(made, "guidance/coverage")[0] > 0 and history(made, "credit/weight_std")[0] > 0
    assert any(not value.equal(before[key]) for key, value in tiny.parameters(made).items())
    # Neither reward nor verdict nor a column of the row (golden answers) is sent; observations stay as recorded.
    assert analyzer.payloads and set().union(*map(keys_of, analyzer.payloads)) <= PAYLOAD_KEYS
