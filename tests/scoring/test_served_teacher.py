"""A teacher behind vLLM's HTTP: what is asked, what is read, what is refused."""

from __future__ import annotations

import json
import math

import pytest
import torch

from taspo_trl.errors import ConfigurationError, ServiceError
from taspo_trl.scoring.teachers import ServedTeacher, served
from taspo_trl.scoring.whole import WholeRow
from tests import tiny
from tests.generation.fake_vllm import FakeVLLM, _send, choice_of


ROWS = [WholeRow((5, 9, 7, 4), (2, 3)), WholeRow((6, 3, 9), (1,))]
TOP = ((11, math.log(0.5)), (12, math.log(0.25)), (13, math.log(0.125)))


def scored(body, number=0, **changes):
    """A choice with the prompt's log-probabilities: -token / 10 at rank 40, and the top of every position."""
    entries = [None]
    for token in body["prompt"][1:]:
        top = {str(one): {"logprob": logp, "rank": rank} for rank, (one, logp) in enumerate(TOP, 1)}
        kept = dict(list(top.items())[: body["prompt_logprobs"]])
        entries.append({**kept, str(token): {"logprob": -token / 10, "rank": 40}, **changes})
    return choice_of(body, [7], prompt_logprobs=entries)


@pytest.fixture
def no_waiting(monkeypatch):
    monkeypatch.setattr(served, "_BACKOFF_SECONDS", 0.001)


@pytest.fixture
def teacher_of():
    made = []

    def make(server, **options):
        made.append(ServedTeacher(server.url, timeout=5.0, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_sampled_tokens_are_scored(teacher_of):
    with FakeVLLM(scored) as server:
        found = teacher_of(server).score(ROWS)
        assert [one.logps.tolist() for one in found] == [pytest.approx([-0.7, -0.4]), pytest.approx([-0.3])]
        assert all(one.top_ids is None and one.reason == "" for one in found)
        asked = {tuple(body["prompt"]): body for body in server.requests}
        assert set(asked) == {(0, 0), *(row.ids for row in ROWS)}
        for body in asked.values():
            assert (body["max_tokens"], body["temperature"], body["model"]) == (1, 1.0, "fake/model")
            assert body["prompt_logprobs"] == 1


def test_the_teachers_top_k_come_by_rank_with_their_tail(teacher_of):
    with FakeVLLM(scored) as server:
        one, _ = teacher_of(server).score(ROWS, vocabulary=2, temperature=1.0)
    assert one.top_ids.tolist() == [[11, 12]] * 2
    torch.testing.assert_close(one.top_logps, torch.log(torch.tensor([[0.5, 0.25]] * 2)))
    torch.testing.assert_close(one.tail_logps, torch.log(torch.tensor([0.25] * 2)))
    assert one.logps.tolist() == pytest.approx([-0.7, -0.4])


@pytest.mark.parametrize(
    "choice",
    [
        lambda body, number: choice_of(body, [7]),
        lambda body, number: choice_of(body, [7], prompt_logprobs=None),
        lambda body, number: choice_of(body, [7], prompt_logprobs=[None]),
        lambda body, number: choice_of(body, [7], prompt_logprobs=[None] * len(body["prompt"])),
        lambda body, number: 400,
        lambda body, number: "garbage",
    ],
)
def test_a_server_without_prompt_logprobs_is_refused(choice, teacher_of):
    with (
        FakeVLLM(choice) as server,
        pytest.raises(ConfigurationError, match=r"gives no log-probabilities of prompts .*prompt_logprobs"),
    ):
        teacher_of(server).score(ROWS)


def test_what_a_server_cannot_tell_is_refused(teacher_of):
    with FakeVLLM(scored) as server:
        teacher = teacher_of(server)
        with pytest.raises(ConfigurationError, match="cannot tell whole distributions"):
            teacher.score(ROWS, vocabulary=-1)
        with pytest.raises(ConfigurationError, match="cannot tell whole distributions"):
            _ = teacher.head
        with pytest.raises(ConfigurationError, match=r"at temperature 1, not 1.1"):
            teacher.score(ROWS, vocabulary=2, temperature=1.1)
        with pytest.raises(ConfigurationError, match="not its values at the student's"):
            teacher.score([WholeRow((1, 2), (1,), torch.tensor([[3]]))])
        with pytest.raises(ConfigurationError, match=r"the policy samples at 0.7"):
            teacher_of(server, temperature=0.7)
        assert server.requests == []
        assert (teacher.state_dict(), teacher.num_batches(ROWS), teacher.score([])) == ({}, 0, [])


def test_a_row_that_cannot_be_scored_costs_its_own_score(teacher_of, no_waiting):
    def reply(body, number):
        if body["prompt"] == [6, 3, 9]:
            return 400
        if body["prompt"] == [8, 8]:
            return scored(body, **{"8": {"logprob": -9999.0, "rank": 1}})
        return scored(body)

    rows = [*ROWS, WholeRow((8, 8), (1,)), WholeRow(tuple(range(3, 20)), (1,))]
    with FakeVLLM(reply, max_model_len=10) as server:
        found = teacher_of(server).score(rows)
    assert found[0].logps.tolist() == pytest.approx([-0.7, -0.4])
    assert all(one.logps.isnan().all() for one in found[1:])
    assert found[1].reason.startswith("service: ") and "400" in found[1].reason
    assert "no value for the token 8" in found[2].reason
    assert found[3].reason == "over_window"


def test_what_is_temporary_is_asked_again_and_nothing_else_is(teacher_of, no_waiting):
    seen = []

    def reply(body, number):
        seen.append(tuple(body["prompt"]))
        if seen.count((6, 3, 9)) < 3 and body["prompt"] == [6, 3, 9]:
            return 503 if seen.count((6, 3, 9)) == 1 else "reset"
        return scored(body)

    with FakeVLLM(reply) as server:
        assert teacher_of(server).score(ROWS)[1].logps.tolist() == pytest.approx([-0.3])
    assert seen.count((6, 3, 9)) == 3 and seen.count((5, 9, 7, 4)) == 1


def test_a_server_that_scores_nothing_costs_the_scores_and_is_told_of_once(teacher_of, no_waiting, caplog):
    is_up = False

    def reply(body, number):
        return scored(body) if is_up or body["prompt"] == [0, 0] else 500

    too_long = WholeRow(tuple(range(3, 20)), (1, 2))
    with FakeVLLM(reply, max_model_len=10) as server:
        teacher = teacher_of(server)
        for num_asked in (2, 1):  # a server that failed is tried with one row before all of them wait for it
            before = len(server.requests) or 1
            found = teacher.score([*ROWS, too_long])
            assert [one.logps.isnan().tolist() for one in found] == [[True, True], [True], [True, True]]
            assert all(one.reason.startswith("service: ") and "500" in one.reason for one in found[:2])
            assert num_asked == 1 or found[2].reason == "over_window"
            assert len(server.requests) - before == num_asked * served._ATTEMPTS
        assert len(caplog.messages) == 1
        assert "scored none of 3 rows" in caplog.text and "500" in caplog.text
        teacher.score([too_long])
        is_up = True
        assert teacher.score(ROWS)[1].logps.tolist() == pytest.approx([-0.3])
        teacher.score([too_long])
        assert len(caplog.messages) == 1
        is_up = False
        teacher.score(ROWS)
        assert len(caplog.messages) == 2


def test_a_server_that_is_not_there_is_named():
    teacher = ServedTeacher("http://127.0.0.1:9", timeout=0.1)
    with pytest.raises(ServiceError, match=r"teacher's server at http://127.0.0.1:9 cannot be used"):
        teacher.score(ROWS)
    teacher.close()


class Tokenizing(FakeVLLM):
    """Reads texts as the given tokenizer does."""

    tokenizer = None

    def _post(self, handler):
        if handler.path != "/tokenize":
            super()._post(handler)
            return
        body = json.loads(handler.rfile.read(int(handler.headers["Content-Length"])))
        _send(handler, 200, {"tokens": self.tokenizer.encode(body["prompt"], add_special_tokens=False)})


def test_the_servers_tokenizer_is_compared_where_it_can_be(teacher_of):
    tok = tiny.tokenizer()
    with Tokenizing(scored) as server:
        server.tokenizer = tok
        assert len(teacher_of(server, tokenizer=tok).score(ROWS)) == 2
        other = tiny.tokenizer()
        other.add_tokens(["clean mug"])
        server.tokenizer = other
        with pytest.raises(ConfigurationError, match="another tokenizer than the policy"):
            teacher_of(server, tokenizer=tok).score(ROWS)
    with FakeVLLM(scored) as server:  # no such endpoint
        assert len(teacher_of(server, tokenizer=tok).score(ROWS)) == 2
