"""Rollouts: who generates when, how episodes end, what is recorded, and that one bad episode costs only itself."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from concurrent.futures import Future

import pytest

from taspo_trl.rollout import loop
from taspo_trl.rollout.contexts import ChatRenderer
from taspo_trl.rollout.tasks import plan_groups
from taspo_trl.seeds import derive_seed
from taspo_trl.types import FinishReason, StopReason

from .. import scripted
from ..playing import Recorder, ScriptedPolicy, SteppedPolicy, act, one_group, play
from ..scripted import Ledger
from ..tokenizers import byte_bpe


@pytest.fixture(scope="module")
def renderer() -> ChatRenderer:
    return ChatRenderer(byte_bpe())


@pytest.fixture
def ledger() -> Iterator[Ledger]:
    ledger = Ledger()
    yield ledger
    ledger.let_go()


# ---- who plays what ------------------------------------------------------------------------------------------------


def test_members_of_a_group_start_from_the_same_observation(renderer):
    # ENV-1: without a seed of its own, the environment moves on at every reset.
    rows = [{"gamefile": f"game {k}"} for k in range(3)]
    scripts = {k: act("go", "win") for k in range(4)}

    def starts(seed: int, rollout: int) -> list[list[str]]:
        specs = plan_groups(rows, 4, seed, rollout, prefix="r")
        played = play(renderer, scripts, specs=specs, kind=scripted.Restless)
        return [[t.turns[0].observation for t in played[4 * g : 4 * g + 4]] for g in range(3)]

    first = starts(5, 0)
    assert all(len(set(group)) == 1 for group in first)
    assert len({group[0] for group in first}) == 3, "groups differ at least in their seeds"
    assert starts(5, 0) == first, "two runs with one seed give the same assignment"
    assert starts(5, 1) != first and starts(6, 0) != first, "another draw or run has other seeds"


def test_a_member_that_uses_up_its_row_leaves_its_siblings_whole_rows(renderer):
    specs = one_group(3, stops=["pen", "mug"])
    played = play(renderer, {k: act("win") for k in range(3)}, specs=specs, kind=scripted.Meddler)
    assert [t.task_text for t in played] == ["find the mug"] * 3
    assert [t.task["stops"] for t in played] == [["pen", "mug"]] * 3


def test_only_unfinished_episodes_generate(renderer):
    policy = ScriptedPolicy(renderer.tokenizer, [act("win"), act("go", "win"), act("go", "go", "win")])
    played = play(renderer, [[]] * 3, policy=policy)
    members = [[uid[-2:] for uid in flush] for flush in policy.flushes]
    assert [sorted(flush) for flush in members] == [["k0", "k1", "k2"], ["k1", "k2"], ["k2"]]
    assert [len(t.turns) for t in played] == [1, 2, 3]
    assert all(t.success and t.stop_reason is StopReason.SOLVED for t in played)


def test_results_stand_in_the_order_of_the_specs(renderer):
    scripts = [act("go", "go", "go", "win"), act("win"), act("go", "win"), act("lose")]
    played = play(renderer, scripts)
    assert [t.uid for t in played] == [f"r0-g0-k{k}" for k in range(4)]
    assert [len(t.turns) for t in played] == [4, 1, 2, 1]


@pytest.mark.parametrize("is_continuous", [False, True])
def test_no_more_episodes_play_at_once_than_allowed(renderer, ledger, is_continuous):
    policy = ScriptedPolicy(renderer.tokenizer, [act("go", "win")] * 5, is_continuous)
    played = play(renderer, [[]] * 5, ledger=ledger, policy=policy, max_in_flight=2)
    assert all(t.success for t in played)
    assert ledger.most_open == 2
    assert all(len(flush) <= 2 for flush in policy.flushes)


def test_an_engine_that_decodes_step_by_step_does_not_wait_for_a_slow_environment(renderer, ledger):
    scripts = {0: act("sleep", "win"), 1: act("go", "go", "win"), 2: act("go", "win")}
    ended: list[str] = []

    def on_episode_end(trajectory):
        ended.append(trajectory.uid)
        if len(ended) == 2:
            ledger.let_go()  # member 0 goes on only after the others have ended

    policy = SteppedPolicy(renderer.tokenizer, scripts)
    played = play(renderer, scripts, policy=policy, ledger=ledger, on_episode_end=on_episode_end)
    assert [t.stop_reason for t in played] == [StopReason.SOLVED] * 3
    # A busy machine may let either of the quick members end first.
    assert sorted(ended[:2]) == sorted(played[k].uid for k in (1, 2)) and ended[2] == played[0].uid
    assert policy.forgotten == ended and policy.flushes == []


def test_deadlines_are_kept_while_the_engine_is_busy(renderer, ledger):
    class Busy(SteppedPolicy):
        def step(self) -> bool:
            waiting = [request.episode_uid for request, _ in self._queue]
            if len(self.requests) == 3 and [uid[-2:] for uid in waiting] == ["k1"] and not self.forgotten:
                return True  # the second reply of member 1 takes longer than the environment of member 0 may
            return super().step()

    scripts = {0: act("sleep"), 1: act("go", "win")}
    policy = Busy(renderer.tokenizer, scripts)
    played = play(renderer, scripts, policy=policy, ledger=ledger, settings={"environment_timeout": 1.0})
    assert [t.stop_reason for t in played] == [StopReason.ENV_TIMEOUT, StopReason.SOLVED]


def test_quick_environments_are_waited_for_so_that_chance_does_not_decide_what_goes_together(renderer, monkeypatch):
    monkeypatch.setattr(loop, "_PATIENCE_SECONDS", 5.0)  # whatever else the machine does
    scripts = {k: act("go", "win") for k in range(3)}
    policy = SteppedPolicy(renderer.tokenizer, scripts)
    play(renderer, scripts, policy=policy)
    assert [len(waiting) for waiting in policy.steps] == [3, 3, 3, 3, 2, 1]


def test_a_group_is_handed_over_when_its_last_member_ends_and_sorted_by_index(renderer):
    specs = plan_groups([{"task_id": "a"}, {"task_id": "b"}], 2, 0, 0, prefix="r")
    ends: list[str] = []

    def reply(uid: str, turn: int) -> str:
        # Group 0: the second member ends first. Group 1 ends as a whole before group 0.
        length = {"r-g0-k0": 4, "r-g0-k1": 2, "r-g1-k0": 1, "r-g1-k1": 1}[uid]
        return act("win" if turn + 1 == length else "go")[0]

    play(
        renderer,
        reply,
        specs=specs,
        on_group_end=lambda group: ends.append(f"{group.group_id} {[t.generation_idx for t in group.trajectories]}"),
        on_episode_end=lambda t: ends.append(t.uid),
    )
    assert sorted(ends[:2]) == ["r-g1-k0", "r-g1-k1"]
    assert ends[2:] == ["r-g1 [0, 1]", "r-g0-k1", "r-g0-k0", "r-g0 [0, 1]"]


def test_the_part_of_a_straddling_group_that_plays_here_is_handed_over_as_it_is(renderer):
    groups = Recorder()
    play(renderer, {1: act("win"), 2: act("win")}, specs=one_group(4)[1:3], on_group_end=groups)
    assert [[t.generation_idx for t in group.trajectories] for group in groups.items] == [[1, 2]]


# ---- how episodes end ----------------------------------------------------------------------------------------------

THREAD_ENDS = {
    StopReason.SOLVED: ("go", "win"),
    StopReason.FAILED: ("go", "lose"),
    StopReason.ENV_TRUNCATED: ("go", "cut"),
    StopReason.MAX_TURNS: ("go",),
    StopReason.ENV_ERROR: ("go", "raise"),
    StopReason.SERVICE_ERROR: ("go", "service"),
    StopReason.REWARD_ERROR: ("go", "pay nan"),
}


@pytest.mark.parametrize("reason", THREAD_ENDS, ids=lambda reason: reason.value)
def test_the_environment_s_ends_have_their_reasons(renderer, reason):
    ended, sibling = play(renderer, [act(*THREAD_ENDS[reason]), act("go", "win")])
    assert ended.stop_reason is reason
    assert ended.success is (reason is StopReason.SOLVED)
    assert bool(ended.error) is reason.is_infrastructure
    assert ended.is_usable is not reason.is_infrastructure
    assert sibling.success and sibling.stop_reason is StopReason.SOLVED


def test_every_stop_reason_is_reached_here_or_in_the_tests_of_faults():
    elsewhere = {
        StopReason.MAX_EPISODE_TOKENS,
        StopReason.PROMPT_TOO_LONG,
        StopReason.ENV_TIMEOUT,
        StopReason.ENV_DIED,
        StopReason.GENERATION_ERROR,
    }
    assert set(THREAD_ENDS) | elsewhere == set(StopReason)


def test_a_success_on_the_last_allowed_turn_is_solved_and_earlier_success_flags_do_not_stick(renderer):
    solved, late = play(renderer, [act("go", "win"), act("go", "go")], settings={"max_turns": 2})
    assert (solved.stop_reason, late.stop_reason) == (StopReason.SOLVED, StopReason.MAX_TURNS)
    assert not late.success and len(late.turns) == 2


@pytest.mark.parametrize("context", ["window", "conversation"])
def test_a_success_that_did_not_end_the_episode_does_not_outlive_another_end(renderer, context):
    scripts = [
        act("claim", "raise"),
        act("claim", "go", "go"),
        act("claim", "claim"),
        [*act("claim"), OSError("down")],
    ]
    settings = {"context": context, "max_turns": 2}
    broken, late, claiming, unanswered = play(renderer, scripts, settings=settings)
    assert (broken.success, broken.stop_reason) == (False, StopReason.ENV_ERROR)
    assert (late.success, late.stop_reason) == (False, StopReason.MAX_TURNS)
    assert (claiming.success, claiming.stop_reason) == (True, StopReason.SOLVED), "the verdict at the end counts"
    assert (unanswered.success, unanswered.stop_reason) == (False, StopReason.GENERATION_ERROR)
    [spent] = play(renderer, [act("claim")], settings={"context": context, "max_episode_tokens": 40})
    assert spent.stop_reason is StopReason.MAX_EPISODE_TOKENS and spent.turns and not spent.success


@pytest.mark.parametrize("limit", [1, 2, 5, 17, 30])
def test_an_episode_s_tokens_are_never_exceeded_and_no_request_asks_for_less_than_one(renderer, limit):
    policy = ScriptedPolicy(renderer.tokenizer, [act("go")])
    [ended] = play(renderer, [[]], policy=policy, settings={"max_episode_tokens": limit, "max_turns": 100})
    assert all(request.max_new_tokens >= 1 for request in policy.requests)
    assert sum(len(turn.reply_ids) for turn in ended.turns) == limit
    assert ended.stop_reason is StopReason.MAX_EPISODE_TOKENS
    assert not ended.success and ended.is_usable


def test_prompt_and_reply_fit_the_model_s_window(renderer):
    policy = ScriptedPolicy(renderer.tokenizer, [act("go", "long", "go", "win")])
    roomy = play(renderer, [act("go", "long", "go", "win")])[0]
    window = len(roomy.turns[0].prompt_ids) + 40
    play(renderer, [[]], policy=policy, settings={"model_window": window, "max_completion_length": 1000})
    assert len(policy.requests) >= 2
    assert all(1 <= len(r.prompt_ids) + r.max_new_tokens <= window for r in policy.requests)
    assert all(r.max_new_tokens >= 1 for r in policy.requests)


def test_a_prompt_may_leave_room_for_a_single_token_and_not_for_none(renderer):
    length = len(play(renderer, [act("win")])[0].turns[0].prompt_ids)
    policy = ScriptedPolicy(renderer.tokenizer, [act("go")])
    [tight] = play(renderer, [[]], policy=policy, settings={"model_window": length + 1, "max_turns": 1})
    assert [request.max_new_tokens for request in policy.requests] == [1] and len(tight.turns) == 1
    [none] = play(renderer, [act("win")], settings={"model_window": length})
    assert none.stop_reason is StopReason.PROMPT_TOO_LONG


@pytest.mark.parametrize("context", ["window", "conversation"])
def test_an_over_long_observation_is_cut_as_documented(renderer, context):
    # EOS-2: turn 2 answers with 200 words where about 20 would fit.
    scripts = [act("go", "long", "win"), act("go", "go", "win")]
    limit = 60 + max(len(turn.prompt_ids) for turn in play(renderer, [act("go", "go", "win")])[0].turns)
    policy = ScriptedPolicy(renderer.tokenizer, scripts)
    cut, sibling = play(renderer, scripts, policy=policy, settings={"context": context, "max_prompt_length": limit})
    assert cut.success and cut.turns[2].prompt_cuts >= 1 and sibling.success
    assert all(len(request.prompt_ids) <= limit for request in policy.requests)
    shown = policy.prompts(cut.uid)[2]
    assert "find the mug" in shown and " ... " in shown and "word word" in shown
    assert cut.turns[2].observation == " ".join(["word"] * 200), "the record keeps what the environment said"


@pytest.mark.parametrize("context", ["window", "conversation"])
def test_what_cannot_be_cut_far_enough_ends_the_episode_and_no_other(renderer, context):
    scripts = [act("go", "long", "win"), act("go", "go", "win")]
    settings = {"context": context, "history_length": 0}
    usual = play(renderer, scripts[1:], settings=settings)[0]
    settings["max_prompt_length"] = max(len(turn.prompt_ids) for turn in usual.turns[:2])
    ended, sibling = play(renderer, scripts, settings=settings)
    assert ended.stop_reason is StopReason.PROMPT_TOO_LONG
    assert len(ended.turns) == 2, "a prompt that cannot be built is no turn"
    assert ended.is_usable and not ended.success
    assert sibling.success


def test_a_first_prompt_that_does_not_fit_leaves_an_episode_without_turns_and_not_usable(renderer):
    [ended] = play(renderer, [act("win")], settings={"max_prompt_length": 3})
    assert ended.stop_reason is StopReason.PROMPT_TOO_LONG and ended.turns == () and not ended.is_usable
    assert "does not fit 3 tokens" in ended.error and "`max_prompt_length`" in ended.error


@pytest.mark.parametrize("error", [RuntimeError("engine down"), MemoryError("too much")])
def test_a_failed_request_costs_its_own_episode_only(renderer, ledger, error):
    scripts = [[*act("go"), error], act("go", "go", "win")]
    failed, sibling = play(renderer, scripts, ledger=ledger)
    assert failed.stop_reason is StopReason.GENERATION_ERROR and str(error) in failed.error
    assert len(failed.turns) == 1 and not failed.is_usable
    assert sibling.success


def test_a_cancelled_request_costs_its_own_episode_only(renderer):
    class Cancelling(ScriptedPolicy):
        def submit(self, request):
            if request.episode_uid.endswith("k0"):
                future: Future = Future()
                future.cancel()
                future.set_running_or_notify_cancel()
                return future
            return super().submit(request)

    failed, sibling = play(renderer, [[]] * 2, policy=Cancelling(renderer.tokenizer, [[], act("win")]))
    assert failed.stop_reason is StopReason.GENERATION_ERROR and "cancelled" in failed.error
    assert sibling.success


# ---- what is recorded ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("context", ["window", "conversation"])
def test_sampled_ids_are_kept_as_sampled(renderer, context):
    # TOK-1: one letter at a time, which the tokenizer would never choose.
    tokenizer = renderer.tokenizer
    text = "<action>go</action>"
    ids = [i for letter in text for i in tokenizer.encode(letter, add_special_tokens=False)] + [tokenizer.eos_token_id]
    assert tokenizer.decode(ids, skip_special_tokens=True) == text
    assert len(ids) > len(tokenizer.encode(text, add_special_tokens=False)) + 1
    policy = ScriptedPolicy(tokenizer, [[ids, *act("win")]])
    [played] = play(renderer, [[]], policy=policy, settings={"context": context})
    first, second = played.turns
    assert first.reply_ids == tuple(ids) and first.reply_text == text
    assert [turn.prompt_ids for turn in played.turns] == [request.prompt_ids for request in policy.requests]
    assert first.action_mask == (*[True] * (len(ids) - 1), False), "the end token is no part of the action"
    if context == "conversation":
        assert second.prompt_ids[: len(first.prompt_ids) + len(ids)] == first.prompt_ids + tuple(ids)


@pytest.mark.parametrize("ids", [(), ("end",)], ids=["no token at all", "only the end token"])
def test_an_empty_reply_is_an_invalid_turn_and_the_episode_goes_on(renderer, ids):
    # EOS-1
    reply = tuple(renderer.tokenizer.eos_token_id for _ in ids)
    ended, sibling = play(renderer, [[*act("go"), reply, *act("win")], act("go", "go", "win")])
    empty = ended.turns[1]
    assert empty.reply_ids == reply and empty.action == "" and not empty.valid
    assert empty.action_mask == (False,) * len(reply)
    assert [turn.valid for turn in ended.turns] == [True, False, True]
    assert ended.success and sibling.success and len(ended.turns) == 3


def test_a_turn_records_both_observations_and_the_environment_s_acceptance(renderer):
    [played] = play(renderer, [act("go", "bad", "win")])
    assert [turn.valid for turn in played.turns] == [True, False, True]
    assert played.turns[1].observation == played.turns[0].next_observation == "turn 1 of mug"
    assert played.turns[1].next_observation == "Nothing happens."
    assert [turn.action for turn in played.turns] == ["go", "bad", "win"]
    assert played.opening[0]["content"].startswith("find the mug")
    assert all(turn.splice_index is not None for turn in played.turns)


def test_a_reply_is_invalid_although_the_environment_accepts_its_nested_block(renderer):
    [played] = play(renderer, [["<action>go <action> on</action>", *act("win")]])
    assert played.turns[0].action == "go <action> on"
    assert not played.turns[0].valid


def test_the_length_limit_of_a_reply_is_the_reason_it_finished(renderer):
    [played] = play(renderer, [["<action>go to the other end of the house</action>", *act("win")]])
    assert played.turns[0].finish_reason is FinishReason.STOP
    [cut] = play(renderer, [act("go")], settings={"max_completion_length": 3, "max_turns": 1})
    assert cut.turns[0].finish_reason is FinishReason.LENGTH and len(cut.turns[0].reply_ids) == 3


def test_a_reply_s_text_is_decoded_as_it_is(renderer):
    text = "Wait , I do n't know . <action>go .</action>"
    [played] = play(renderer, [[text, *act("win")]])
    assert played.turns[0].reply_text == text and played.turns[0].action == "go ."


@pytest.mark.parametrize(
    "row, family",
    [({"told_family": "heat", "family": "pick"}, "heat"), ({"family": "pick"}, "pick"), ({}, "all")],
    ids=["the environment's", "the row's", "none"],
)
def test_the_family_is_the_environment_s_word_or_the_row_s(renderer, row, family):
    scripts = {0: act("win"), 1: act("raise")}
    played, failed = play(renderer, scripts, specs=one_group(2, **row))
    assert (played.family, failed.family) == (family, family)
    [never] = play(renderer, scripts, specs=one_group(1, fault="raise", **row))
    assert never.family == row.get("family", "all"), "an episode that never started has its row's"


@pytest.mark.parametrize("context", ["window", "conversation"])
def test_prompts_show_the_world_in_both_contexts(renderer, context):
    policy = ScriptedPolicy(renderer.tokenizer, [act("go", "go", "go", "win")])
    play(renderer, [[]], policy=policy, settings={"context": context})
    prompts = policy.prompts("r0-g0-k0")
    assert all("find the mug" in prompt and "turn 4" not in prompt for prompt in prompts)
    assert "You can: go" in prompts[0] and "You can: go, win" not in prompts[0], "what `reset` allows"
    assert "You can: go, win" in prompts[1] or context == "conversation"
    assert prompts[3].count("turn 1 of mug") == 1, "history_length 2 shows the observations of turns 2 and 3"
    assert ("start of mug" in prompts[3]) is (context == "conversation")


def test_seeds_of_a_draw_depend_on_run_task_and_draw_only():
    rows = [{"task_id": "a"}, {"task_id": "b"}]
    seeds = {spec.group_id: spec.seed for spec in plan_groups(rows, 2, 1, 3, prefix="x")}
    swapped = {spec.group_id: spec.seed for spec in plan_groups(rows[::-1], 4, 1, 3, prefix="y")}
    assert seeds["x-g0"] == swapped["y-g1"] and seeds["x-g1"] == swapped["y-g0"]
    assert all(0 <= seed < 2**31 for seed in seeds.values())
    assert derive_seed(1, 23) != derive_seed(12, 3), "parts do not run into one another"


def test_instances_rest_until_their_group_has_ended():
    """Each is in the state in which its own episode left it, and plays again only afterwards."""
    renderer, ledger = ChatRenderer(byte_bpe()), Ledger()
    instances: dict = {}
    seen = []

    def on_group_end(group):
        seen.append({uid: (one._word, one._turn) for uid, one in instances.items()})
        assert [t.uid for t in group.trajectories if t.is_usable] == sorted(instances)

    rows = [{"task_id": word, "word": word} for word in ("mug", "pen", "lamp")]
    specs = plan_groups(rows, 3, 0, 0, prefix="r")
    replies = {0: act("go", "go", "win"), 1: act("win"), 2: act("raise")}
    play(
        renderer, replies, specs=specs, ledger=ledger, instances=instances, on_group_end=on_group_end, max_in_flight=2
    )
    assert seen == [
        {f"r-g{g}-k0": (word, 3), f"r-g{g}-k1": (word, 1)} for g, word in enumerate(("mug", "pen", "lamp"))
    ]
    assert instances == {} and ledger.num_open == 0
    assert ledger.counts["open"] == ledger.counts["close"] <= 3 + 3, "resting ones play again in later groups"


def test_instances_at_rest_are_closed_when_the_batch_breaks_off():
    renderer, ledger = ChatRenderer(byte_bpe()), Ledger()

    def explode(trajectory):
        if trajectory.generation_idx == 1:
            raise RuntimeError("a bug of ours")

    with pytest.raises(RuntimeError, match="a bug of ours"):
        play(renderer, {0: act("win"), 1: act("go", "win")}, ledger=ledger, instances={}, on_episode_end=explode)
    assert ledger.counts["open"] == ledger.counts["close"] == 2


def test_other_work_is_done_while_nothing_else_can_be(renderer, monkeypatch):
    """Between the answers of an engine in another thread, and not before quick environments have answered."""
    monkeypatch.setattr(loop, "_PATIENCE_SECONDS", 10.0)
    policy = ScriptedPolicy(renderer.tokenizer, {k: act("go", "win") for k in range(2)})
    policy.flush = lambda: None
    asked = []

    def meanwhile():
        asked.append(len(policy._queue))
        if len(asked) % 3:
            return 0.0
        policy._answer()
        return math.inf

    played = play(renderer, None, specs=one_group(2), policy=policy, meanwhile=meanwhile)
    assert [len(t.turns) for t in played] == [2, 2]
    assert asked == [2] * 6, "twice for each turn before it let the engine answer"
    monkeypatch.setattr(loop, "_PATIENCE_SECONDS", 0.0)
    asked.clear()
    stepping = threading.Event()

    class Slow(scripted.ScriptedEnvironment):
        def step(self, action):
            assert stepping.wait(10)
            return super().step(action)

    def patient():
        asked.append(len(policy._queue))
        if len(policy._queue) == 2:
            policy._answer()
            return math.inf
        stepping.set()
        return 0.001

    play(renderer, None, specs=one_group(2), policy=policy, meanwhile=patient, kind=Slow)
    assert asked.count(2) == 2 and 0 in asked, "slow ones are not waited for"

    def broken():
        raise RuntimeError("a bug of ours")

    with pytest.raises(RuntimeError, match="a bug of ours"):
        play(renderer, None, specs=one_group(2), policy=policy, meanwhile=broken)


def test_an_engine_in_the_loops_thread_comes_before_other_work(renderer, monkeypatch):
    monkeypatch.setattr(loop, "_PATIENCE_SECONDS", 0.0)
    policy, asked, stepping = SteppedPolicy(renderer.tokenizer, {0: act("go", "win"), 1: act("win")}), [], []

    class Slow(scripted.ScriptedEnvironment):
        def step(self, action):
            stepping.append(threading.Event())
            assert stepping[-1].wait(10)
            return super().step(action)

    def meanwhile():
        asked.append(len(policy._queue))
        for one in list(stepping):
            one.set()
        return 0.001

    played = play(renderer, None, specs=one_group(2), policy=policy, meanwhile=meanwhile, kind=Slow)
    assert [len(t.turns) for t in played] == [2, 1] and len(stepping) == 3
    assert asked and not any(asked)
