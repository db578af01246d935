"""Admissible actions behind shared prefixes: the same numbers as forwards of single rows, whatever the batch."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from taspo_trl.environments import HouseholdEnvironment
from taspo_trl.environments.workers import EnvironmentPool
from taspo_trl.guidance.block import Composer
from taspo_trl.rollout.contexts import ChatRenderer
from taspo_trl.rollout.loop import RolloutSettings, play_episodes
from taspo_trl.rollout.tasks import plan_groups
from taspo_trl.rows import insert_block
from taspo_trl.scoring.alternatives import (
    alternative_turns,
    num_alternative_forwards,
    score_alternatives,
    score_turns,
)
from taspo_trl.scoring.paired import continue_from_shared_keys
from taspo_trl.scoring.saved import projecting
from taspo_trl.types import Block, Guidance
from tests import tiny


TOKENIZER = tiny.tokenizer()
REPLIES = ["look", "go to", "inventory"]


@pytest.fixture(scope="module")
def episodes():
    """Two episodes of three turns, of which the second is refused."""
    policy = tiny.ScriptedPolicy(lambda uid, turn: f"<action>{REPLIES[turn]}</action>", TOKENIZER)
    pool = EnvironmentPool({None: HouseholdEnvironment})
    rows = list(tiny.household_rows(size=2))
    try:
        return play_episodes(
            plan_groups(rows, 1, 0, 0, "r0"),
            engine=policy,
            pool=pool,
            renderer=ChatRenderer(TOKENIZER),
            settings=RolloutSettings(max_turns=3),
        )
    finally:
        pool.close()


def guidance_of(episodes):
    composer = Composer(TOKENIZER)
    texts = ["- take mug 1 from shelf 1", "- open fridge 1\n- look"]
    return {
        one.uid: Guidance(one.uid, "aligned", {"aligned": Block.whole(composer.block(text), len(one.turns), text)})
        for one, text in zip(episodes, texts, strict=True)
    }


def score(model, episodes, **settings):
    return score_alternatives(model, episodes, guidance_of(episodes), TOKENIZER, blocks=("aligned",), **settings)


def reference(model, turn, action, block=(), temperature=1.0):
    """log-probabilities of the action with its tags, one row at a time."""
    start = insert_block(turn.prompt_ids, turn.splice_index, block)
    rest = tuple(TOKENIZER.encode(f"<action>{action}</action>", add_special_tokens=False))
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([start + rest])).logits[0].double() / temperature
    logps = logits.log_softmax(-1)
    return [logps[len(start) + k - 1, token].item() for k, token in enumerate(rest)]


@pytest.mark.parametrize("max_tokens", [1, 10**6], ids=["single turns", "one batch"])
def test_every_action_is_scored_as_if_it_had_been_sampled(episodes, max_tokens):
    model = tiny.model(dtype=torch.float64)
    found = score(model, episodes, max_tokens=max_tokens, temperature=0.7)
    assert len(found.alternatives) == 6
    for one in episodes:
        block = guidance_of(episodes)[one.uid].block_ids
        for t, turn in enumerate(one.turns):
            scored = found.alternatives[one.uid, t]
            assert scored.actions[0] == turn.action == REPLIES[t]
            others = [action for action in turn.admissible_actions if action != turn.action]
            assert list(scored.actions[1:]) == others and others
            for k, action in enumerate(scored.actions):
                assert list(scored.plain[k]) == pytest.approx(reference(model, turn, action, (), 0.7), abs=1e-9)
                expected = reference(model, turn, action, block, 0.7)
                assert list(scored.guided["aligned"][k]) == pytest.approx(expected, abs=1e-9)


def test_the_cost_is_counted(episodes):
    found = score(tiny.model(), episodes)
    blocks = [len(guidance_of(episodes)[one.uid].block_ids) for one in episodes]
    prefixes = sum(2 * len(u.prompt_ids) + n for one, n in zip(episodes, blocks, strict=True) for u in one.turns)
    tokens = sum(len(row) for one in found.alternatives.values() for row in (*one.plain, *one.guided["aligned"]))
    assert (found.num_prefix_tokens, found.num_action_tokens) == (prefixes, tokens)


def test_of_many_actions_some_are_drawn_and_the_executed_one_stays(episodes):
    model = tiny.model(dtype=torch.float64)
    whole, part = (score(model, episodes, most=most).alternatives for most in (0, 4))
    assert part.keys() == whole.keys()
    for key, one in part.items():
        assert len(one.actions) == 4 and one.actions[0] == whole[key].actions[0]
        places = [whole[key].actions.index(action) for action in one.actions]
        assert places == sorted(places)
        for k, place in enumerate(places):
            assert list(one.plain[k]) == pytest.approx(list(whole[key].plain[place]), abs=1e-9)
    assert score(model, episodes, most=4).alternatives == part, "the same ones again"


def test_the_empty_block_has_the_very_numbers_of_the_plain_branch(episodes):
    given = {one.uid: Guidance(one.uid, "empty", {"empty": Block.whole((), len(one.turns))}) for one in episodes}
    found = score_alternatives(tiny.model(), episodes, given, TOKENIZER, blocks=("empty",), max_tokens=300)
    assert len(found.alternatives) == 6
    assert all(one.guided["empty"] == one.plain and not one.are_shifted for one in found.alternatives.values())
    assert found.num_prefix_tokens == sum(len(turn.prompt_ids) for one in episodes for turn in one.turns)


def test_every_process_runs_the_same_number_of_forwards(episodes):
    """A turn whose actions alone exceed the budget takes several; whoever has fewer makes up for it."""
    model, calls = tiny.model(dtype=torch.float64), []
    turns = alternative_turns(episodes, guidance_of(episodes), TOKENIZER, blocks=("aligned",))
    rows = sum(len(one.branches) * len(one.actions) for one in turns)

    def counted(**inputs):
        calls.append(inputs["input_ids"].shape)
        return model(**inputs)

    with projecting(model, 1.0), torch.no_grad():
        for shared in (True, False):
            continue_from_shared_keys(model, shared)
            for budget, company in ((1, 0), (10**6, 7)):
                calls.clear()
                needed = num_alternative_forwards(model, turns, budget)
                scored = score_turns(model, turns, max_tokens=budget, forward=counted, num_forwards=needed + company)
                assert len(calls) == needed + company and len(scored) == 6
                if budget == 1:
                    assert needed == rows + shared * 12, "one row a forward, and one for each of twelve prefixes"


def test_a_long_turn_of_few_actions_does_not_widen_many_rows(episodes):
    """Rows x longest stays inside the budget, wherever a turn alone does."""
    turn = alternative_turns(episodes, guidance_of(episodes), TOKENIZER, blocks=("aligned",))[0]
    long = replace(turn, key=("long", 0), prefix=turn.prefix[:1] * 90, actions=((5,),) * 2, splice_index=4)
    short = replace(turn, key=("short", 0), prefix=turn.prefix[:1] * 9, actions=((5,),) * 20, splice_index=4)
    model, sizes = tiny.model(), []

    def counted(**inputs):
        sizes.append(inputs["input_ids"].numel())
        return model(**inputs)

    with projecting(model, 1.0), torch.no_grad():
        continue_from_shared_keys(model, False)
        score_turns(model, [long, short], max_tokens=600, forward=counted)
    assert max(sizes) <= 600


def test_turns_that_cannot_be_compared_are_left_out(episodes):
    turns = episodes[0].turns
    odd = (
        replace(turns[0], admissible_actions=None),
        replace(turns[1], action_mask=(False,) * len(turns[1].reply_ids)),
        replace(turns[2], admissible_actions=("Inventory ",)),  # only what was done
    )
    model = tiny.model()
    found = score(model, [replace(episodes[0], turns=odd), replace(episodes[1], turns=turns)])
    assert {uid for uid, _ in found.alternatives} == {episodes[1].uid}
    small = tiny.model(max_position_embeddings=40)
    assert not score(small, episodes).alternatives, "no row fits"
    assert not score_alternatives(model, episodes, {}, TOKENIZER, blocks=("aligned",)).alternatives


def test_the_model_is_left_as_it_was(episodes):
    model = tiny.model().train()
    score(model, episodes)
    assert model.training and "forward" not in vars(model)
