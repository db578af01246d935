"""Rollouts: bad rewards and verdicts, environments that raise, hang or die, interrupts, and the long run."""

from __future__ import annotations

import queue
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import astuple, replace
from typing import Any

import pytest

from taspo_trl.errors import InvariantError
from taspo_trl.generation import Generation
from taspo_trl.rollout.contexts import ChatRenderer
from taspo_trl.rollout.tasks import plan_groups
from taspo_trl.types import FinishReason, StopReason

from .. import scripted
from ..playing import ScriptedPolicy, act, eventually, footprint, no_new_threads, one_group, open_pool, play
from ..scripted import Ledger, factory
from ..tokenizers import CHATML, byte_bpe


@pytest.fixture(scope="module")
def renderer() -> ChatRenderer:
    return ChatRenderer(byte_bpe())


@pytest.fixture
def ledger() -> Iterator[Ledger]:
    ledger = Ledger()
    yield ledger
    ledger.let_go()


# ---- rewards and verdicts ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pay", ["nan", "inf", "none", "text", "huge", "list"])
def test_a_reward_that_is_no_finite_number_is_an_infrastructure_end(renderer, ledger, pay):
    failed, sibling = play(renderer, [act("go", f"pay {pay}"), act("win")], ledger=ledger)
    assert failed.stop_reason is StopReason.REWARD_ERROR and not failed.success and not failed.is_usable
    assert "not a finite number" in failed.error
    assert sibling.success and sibling.environment_reward == 1.0


@pytest.mark.parametrize("pay", ["true", "whole"])
def test_whole_numbers_are_rewards(renderer, pay):
    [played] = play(renderer, [act(f"pay {pay}")])
    assert played.success and played.environment_reward == 1.0


@pytest.mark.parametrize("verdict", ["false", "one", "text", "nan", "score", "none"])
@pytest.mark.filterwarnings("ignore:.*counts as False")
def test_nothing_but_true_is_a_success(renderer, verdict):
    [played] = play(renderer, [act(f"verdict {verdict}")])
    assert not played.success and played.stop_reason is StopReason.FAILED


def test_true_is_a_success(renderer):
    [played] = play(renderer, [act("verdict true")])
    assert played.success


@pytest.mark.parametrize("value", ["one", "text", "nan", "score"])
def test_a_verdict_of_another_type_is_warned_about(renderer, value):
    with pytest.warns(UserWarning, match=r'info\["success"\].* counts as False'):
        play(renderer, [act(f"verdict {value}")])


def test_numpy_s_true_is_not_true(renderer, monkeypatch):
    # A success is `info['success'] is True` (docs/method.md, section 3): numpy.True_ is another object. It is warned
    # about, because an environment that compares arrays would else look like one that nobody ever solves.
    numpy = pytest.importorskip("numpy")
    monkeypatch.setitem(scripted.VERDICTS, "numpy", numpy.True_)  # type: ignore[arg-type]
    with pytest.warns(UserWarning, match=r"Return `bool\(\.\.\.\)`"):
        [played] = play(renderer, [act("verdict numpy")])
    assert not played.success


def test_the_words_of_a_failed_service_are_never_shown_to_the_policy(renderer):
    # SVC-1
    policy = ScriptedPolicy(renderer.tokenizer, [act("go", "service"), act("go", "go", "win")])
    failed, sibling = play(renderer, [[]] * 2, policy=policy)
    assert failed.stop_reason is StopReason.SERVICE_ERROR and "is down" in failed.error and sibling.success
    assert not any("down" in prompt for t in (failed, sibling) for prompt in policy.prompts(t.uid))
    assert [turn.next_observation for turn in failed.turns] == ["turn 1 of mug", ""]


# ---- environments that misbehave -----------------------------------------------------------------------------------


@pytest.mark.parametrize("fault, reason", [("raise", "env_error"), ("service", "service_error")])
def test_a_fault_in_reset_costs_the_episodes_of_its_task_only(renderer, fault, reason):
    specs = plan_groups([{"task_id": "a", "fault": fault}, {"task_id": "b"}], 2, 0, 0, prefix="r")
    played = play(renderer, [act("win")] * 2, specs=specs)
    assert [t.stop_reason.value for t in played] == [reason, reason, "solved", "solved"]
    assert all(t.turns == () and t.error for t in played[:2])


def test_a_fault_in_the_constructor_or_in_close_costs_one_episode(renderer, ledger):
    played = play(renderer, [act("win")] * 3, kind=scripted.Fragile, ledger=ledger)
    assert sorted(t.stop_reason.value for t in played) == ["env_error", "env_error", "solved"]
    assert all("no more licences" in t.error for t in played if not t.success)
    assert all("(scripted.py:" in t.error for t in played if not t.success), "where to look"


@pytest.mark.parametrize(
    "reply, error",
    [("<action>grumble</action>", "no such rule"), ("<action>silence</action>", "must return a string")],
)
def test_a_fault_in_the_environment_s_own_reading_of_a_reply_costs_one_episode(renderer, reply, error):
    failed, sibling = play(renderer, [[*act("go"), reply], act("go", "win")], kind=scripted.Grumbler)
    assert failed.stop_reason is StopReason.ENV_ERROR and error in failed.error
    assert [turn.action for turn in failed.turns] == ["go", ""], "the reply was sampled, its action never executed"
    assert sibling.success


@pytest.mark.parametrize("what", ["text", "nothing", "reset", "observation", "info", "flag", "actions", "surrogate"])
def test_nonsense_from_step_costs_one_episode_and_names_class_and_rule(renderer, what):
    failed, sibling = play(renderer, [act("go", f"nonsense {what}"), act("go", "go", "win")])
    assert failed.stop_reason is StopReason.ENV_ERROR and "ScriptedEnvironment.step" in failed.error
    assert sibling.success


def test_an_environment_without_base_class_takes_the_defaults(renderer):
    with open_pool(scripted.Bare) as pool:
        [played] = play(renderer, [["<action>x</action>"]], pool=pool)
    assert played.success and played.task_text == "bare start" and played.family == "all"


def test_limits_and_tags_are_those_of_a_fresh_instance(renderer):
    played = play(renderer, [act("go", "go", "win")] * 2, kind=scripted.Shrinking)
    again = play(renderer, [act("go", "go", "win")] * 2, kind=scripted.Shrinking)
    assert all(t.success and len(t.turns) == 3 for t in played + again)


@pytest.mark.parametrize("where", ["step", "reset"])
def test_a_hang_in_a_thread_ends_its_episode_in_time_and_the_next_batch_is_fresh(renderer, ledger, where):
    # ENV-3 (a)
    specs = [*one_group(3), *plan_groups([{"task_id": "h", "fault": "sleep"}], 1, 0, 0, prefix="hang")]
    if where == "step":
        specs = one_group(4)
    scripts = [act("go", "win")] * 3 + [act("sleep")]
    replies = {k: scripts[k] for k in range(4)}
    with open_pool(factory(ledger)) as pool:
        played = play(renderer, replies, specs=specs, pool=pool, settings={"environment_timeout": 1.0})
        hung = played[3]
        assert hung.stop_reason is StopReason.ENV_TIMEOUT and "environment_timeout=1.0" in hung.error
        assert 1.0 <= hung.seconds < 10
        assert [t.success for t in played[:3]] == [True] * 3
        assert pool.num_abandoned == 1
        again = play(renderer, [act("win")] * 4, pool=pool)
        assert all(t.success for t in again)
        assert ledger.counts["open"] == 5, "the abandoned instance is replaced, the others are used again"
        ledger.let_go()
        assert eventually(lambda: ledger.counts["close"] == 1), "it closes itself when it comes back"
    assert ledger.counts["close"] == 5 and ledger.num_open == 0


def test_a_late_answer_of_an_abandoned_episode_changes_nothing(renderer, ledger):
    # The hung step answers while its siblings still play.
    def reply(uid: str, turn: int) -> str:
        if uid.endswith("k0"):
            return act("sleep")[0]
        if turn == 1:
            ledger.let_go()
            assert eventually(lambda: ledger.counts["close"] == 1)
        return act("go" if turn < 3 else "win")[0]

    played = play(renderer, reply, specs=one_group(2), ledger=ledger, settings={"environment_timeout": 1.0})
    assert [t.stop_reason.value for t in played] == ["env_timeout", "solved"]
    assert len(played[0].turns) == 1 and not played[0].turns[0].valid


def test_a_dead_process_costs_one_episode_and_a_hung_one_is_killed(renderer, tmp_path):
    ledger = scripted.FileLedger(tmp_path)
    with open_pool(factory(str(tmp_path)), "process") as pool:
        started = play(renderer, [act("win")] * 3, pool=pool)
        assert all(t.success for t in started)
        scripts = [act("go", "die"), act("go", "vanish"), act("go", "go", "win")]
        died, left, sibling = play(renderer, scripts, pool=pool)
        assert died.stop_reason is left.stop_reason is StopReason.ENV_DIED
        assert "exit code 7" in died.error and "exit code -9" in left.error
        assert sibling.success
        assert all(t.success for t in play(renderer, [act("win")] * 3, pool=pool))

        hung, sibling = play(renderer, [act("sleep"), act("win")], pool=pool, settings={"environment_timeout": 2.0})
        assert hung.stop_reason is StopReason.ENV_TIMEOUT and sibling.success
        assert 2.0 <= hung.seconds < 15
        specs = one_group(1, fault="sleep")
        [hung] = play(renderer, [[]], specs=specs, pool=pool, settings={"environment_timeout": 1.0})
        assert hung.stop_reason is StopReason.ENV_TIMEOUT and hung.turns == ()
        assert pool.num_abandoned == 0, "a process can be ended"
        assert all(t.success for t in play(renderer, [act("win")] * 3, pool=pool))
        failed, sibling = play(renderer, [act("service"), act("nonsense info")], pool=pool)
        assert failed.stop_reason is StopReason.SERVICE_ERROR and "is down" in failed.error
        assert sibling.stop_reason is StopReason.ENV_ERROR and "ScriptedEnvironment.step" in sibling.error
    opened = [pid for event, pid in ledger.lines if event == "open"]
    closed = [pid for event, pid in ledger.lines if event == "close"]
    assert len(set(closed)) == len(closed), "no instance is closed twice"
    assert len(opened) - len(closed) == 4, "all but the two that died at once and the two that were killed"


CHATS = {
    "none": [{"role": "user", "content": None}],
    "missing": [{"role": "user"}],
    "number": [{"role": "user", "content": 5}],
    "blocks": [{"role": "user", "content": [{"type": "text", "text": "hello"}]}],
    "no role": [{"content": "hello"}],
    "half a role": [{"role": "user\ud83d", "content": "hello"}],
    "half a content": [{"role": "user", "content": "hello \ud83d"}],
    "half a name": [{"role": "tool", "name": "\ud83d", "content": "hello"}],
    "half inside": [{"role": "user", "content": "hello", "calls": [{"function": {"name": "\ud83d"}}]}],
    "text": "hello",
    "texts": ["hello"],
    "refused role": [{"role": "moderator", "content": "hello"}],
}


@pytest.mark.parametrize("chat", CHATS)
@pytest.mark.parametrize("where", ["reset", "step"])
def test_messages_that_are_no_chat_cost_one_episode(chat, where):
    # The template refuses what the check cannot know of: a role that it has no words for.
    strict = CHATML.replace(
        "{{ '<|im_start|>'",
        "{% if message['role'] == 'moderator' %}{{ raise_exception('no such role') }}{% endif %}{{ '<|im_start|>'",
    )
    strict_renderer = ChatRenderer(byte_bpe(strict))

    class Chatty(scripted.ScriptedEnvironment):
        context = "conversation"

        def reset(self, **row):
            result = super().reset(**row)
            return with_messages(result) if where == "reset" and row["generation"] == 0 else result

        def step(self, action):
            result = super().step(action)
            return with_messages(result) if action == "chat" else result

    def with_messages(result):
        return replace(result, info={**result.info, "messages": CHATS[chat]})

    specs = [replace(spec, row={"generation": spec.generation_idx}) for spec in one_group(2)]
    replies = {0: act("go", "chat"), 1: act("go", "go", "win")}
    failed, sibling = play(strict_renderer, replies, specs=specs, kind=Chatty)
    assert failed.stop_reason is StopReason.ENV_ERROR
    assert ("no such role" if chat == "refused role" else f"Chatty.{where}") in failed.error
    assert len(failed.turns) == (0 if where == "reset" else 2)
    assert sibling.success


@pytest.mark.parametrize("backend", ["thread", "process"])
@pytest.mark.parametrize("order", ["mumble", "shout", "reward", "panic"])
def test_an_answer_that_fails_when_it_is_read_costs_one_episode(renderer, tmp_path, backend, order):
    """An error that cannot be put into words, one of ten million characters, a reward that fails as a number, and an
    error that is no `Exception`."""
    with open_pool(factory(str(tmp_path)), backend) as pool:
        failed, sibling = play(renderer, [act("go", order), act("go", "win")], pool=pool)
    assert failed.stop_reason is (StopReason.REWARD_ERROR if order == "reward" else StopReason.ENV_ERROR)
    assert failed.error and len(failed.error) <= 2000
    assert failed.error.encode() and sibling.success


def test_a_failed_request_costs_one_episode(renderer):
    class Refusing(ScriptedPolicy):
        def submit(self, request):
            if request.episode_uid.endswith("k0") and self._turns[request.episode_uid] == 1:
                raise ValueError("the request is refused")
            return super().submit(request)

    failed, sibling = play(renderer, [[]] * 2, policy=Refusing(renderer.tokenizer, [act("go", "win")] * 2))
    assert failed.stop_reason is StopReason.GENERATION_ERROR and "the request is refused" in failed.error
    assert len(failed.turns) == 1 and sibling.success


@pytest.mark.parametrize(
    "answer",
    ["hello", None, *(Generation((5, i), FinishReason.STOP) for i in (2**40, 10_000, -1, None, 1.5))],
    ids=["text", "none", "huge", "beyond", "negative", "missing", "fraction"],
)
def test_an_answer_of_the_engine_that_cannot_be_read_costs_one_episode(renderer, answer):
    class Odd(ScriptedPolicy):
        def _generation(self, reply, request):
            return answer if reply == "odd" else super()._generation(reply, request)

    policy = Odd(renderer.tokenizer, [[*act("go"), "odd"], act("go", "win")])
    failed, sibling = play(renderer, [[]] * 2, policy=policy)
    assert failed.stop_reason is StopReason.GENERATION_ERROR and failed.error
    assert len(failed.turns) == 1, "the odd answer leaves no turn"
    assert not isinstance(answer, Generation) or "the vocabulary has" in failed.error
    assert sibling.success


def test_a_broken_promise_of_ours_is_no_episode_s_end(renderer, monkeypatch):
    def broken(*args, **kwargs):
        raise InvariantError("a bug of ours")

    monkeypatch.setattr("taspo_trl.rollout.replies.find_actions", broken)
    with pytest.raises(InvariantError):
        play(renderer, [act("win")])


@pytest.mark.parametrize("error", [queue.Empty, TimeoutError, StopIteration])
def test_a_bug_in_a_callback_is_raised_whatever_its_kind(renderer, ledger, error):
    def explode(item):
        raise error("a bug of ours")

    for name in ("on_episode_end", "on_group_end"):
        with pytest.raises(error, match="a bug of ours"):
            play(renderer, [act("win")] * 2, ledger=ledger, **{name: explode})


# ---- interrupts and the long run -----------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["flush", "callback", "waiting"])
def test_an_interrupt_leaves_nothing_behind_and_the_pool_plays_again(renderer, ledger, where):
    class Interrupted(ScriptedPolicy):
        def flush(self):
            if where == "flush" and len(self.flushes) == 1:
                raise KeyboardInterrupt
            super().flush()

    def on_episode_end(trajectory):
        if where == "callback":
            raise KeyboardInterrupt

    scripts = [act("go", "go", "win"), act("win"), act("go", "sleep" if where == "waiting" else "win")]
    policy = Interrupted(renderer.tokenizer, scripts)
    with no_new_threads(), open_pool(factory(ledger)) as pool:
        if where == "waiting":
            policy = Interrupted(renderer.tokenizer, lambda uid, turn: _interrupting(uid, turn, scripts, ledger))
        with pytest.raises(KeyboardInterrupt):
            play(renderer, [[]] * 3, policy=policy, pool=pool, on_episode_end=on_episode_end)
        ledger.let_go()
        assert all(t.success for t in play(renderer, [act("win")] * 3, pool=pool))
        assert eventually(lambda: ledger.num_open <= 3), "nothing of the interrupted batch stays open"
    assert ledger.num_open == 0 and ledger.counts["open"] == ledger.counts["close"]


@pytest.mark.parametrize("backend", ["thread", "process"])
@pytest.mark.parametrize("order, error", [("interrupt", KeyboardInterrupt), ("exit", SystemExit)])
@pytest.mark.parametrize("where", ["reset", "step"])
def test_an_interrupt_from_inside_an_environment_ends_the_run(renderer, tmp_path, backend, order, error, where):
    specs = [*one_group(2), *plan_groups([{"fault": order}], 1, 0, 0, prefix="last")]
    scripts = [act("go", "go", "win"), act("go", order), act("win")]
    if where == "reset":
        scripts[1] = scripts[0]
    with no_new_threads(), open_pool(factory(str(tmp_path)), backend) as pool:
        with pytest.raises(error) as caught:
            play(renderer, {0: scripts[0], 1: scripts[1]}, specs=specs if where == "reset" else specs[:2], pool=pool)
        if order == "exit":
            assert caught.value.code == 3
        assert all(t.success for t in play(renderer, [act("win")] * 3, pool=pool)), "the pool plays again"
    events = [event for event, _ in scripted.FileLedger(tmp_path).lines]
    if backend == "thread":  # a process that was in a call is killed
        assert events.count("open") == events.count("close")


def _interrupting(uid: str, turn: int, scripts: list, ledger: Ledger) -> Any:
    if uid.endswith("k0") and turn == 1:
        raise KeyboardInterrupt
    script = scripts[int(uid[-1])]
    return script[min(turn, len(script) - 1)]


def test_two_hundred_batches_grow_nothing(renderer, ledger, tmp_path, monkeypatch):
    # ENV-3 (b), then an exception in batch 201.
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    scripts = [act("go", "win"), act("raise"), act("lose"), act("pay nan")]
    with no_new_threads(), open_pool(factory(ledger)) as pool:
        play(renderer, scripts, pool=pool)
        before = footprint(tmp_path)
        for _ in range(199):
            play(renderer, scripts, pool=pool)
        assert eventually(lambda: footprint(tmp_path).threads <= before.threads)
        after = footprint(tmp_path)
        # Less is no fault: a thread that another test left behind may end in the meantime.
        assert all(now <= then for now, then in zip(astuple(after), astuple(before), strict=True)), after
        assert ledger.most_open <= 4 + 2, "an instance that failed may still be closing while its successor opens"

        def explode(trajectory):
            raise RuntimeError("batch 201")

        with pytest.raises(RuntimeError, match="batch 201"):
            play(renderer, scripts, pool=pool, on_episode_end=explode)
    assert ledger.num_open == 0 and ledger.counts["open"] == ledger.counts["close"]


def test_processes_are_used_again_from_batch_to_batch(renderer, tmp_path):
    ledger = scripted.FileLedger(tmp_path)
    with open_pool(factory(str(tmp_path)), "process") as pool:
        play(renderer, [act("go", "win")] * 2, pool=pool)
        before = footprint(tmp_path)
        for _ in range(20):
            assert all(t.success for t in play(renderer, [act("go", "win")] * 2, pool=pool))
        assert footprint(tmp_path) == before
    events = [event for event, _ in ledger.lines]
    assert events.count("open") == events.count("close") == 3, "two processes and the probe"
    assert threading.active_count() <= before.threads
