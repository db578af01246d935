"""The importance-sampling correction in a training step with a vLLM server, and whose model scores."""

from __future__ import annotations

import math

import pytest
import torch

from taspo_trl.records import read_records
from tests import tiny
from tests.generation.fake_vllm import choice_of
from tests.generation.training import TOKENIZER, CountingAnalyzer, by_seed, ids_of
from tests.trainer.test_trainer import history


def test_the_correction_is_in_the_loss_rows_and_in_trls_metrics(served):
    trainer, _, _ = served(vllm_importance_sampling_mode="token_truncate", vllm_importance_sampling_clip_max=2.0)
    trainer.train()
    loss_rows = [row for micro in trainer._buffer for batch in micro for row in batch]
    with_loss = [row for row in loss_rows if any(row.coefficients)]
    assert with_loss
    for row in with_loss:
        engine = [-0.25 * (k + 1) for k in range(len(row.positions))]
        expected = [min(math.exp(old - one), 2.0) for old, one in zip(row.old_logps, engine, strict=True)]
        assert row.importance_ratios == pytest.approx(expected)
    for name in ("sampling_logp_difference/mean", "sampling_logp_difference/max"):
        assert history(trainer, f"sampling/{name}")[0] > 0
    for name in ("min", "mean", "max"):
        assert 0 < history(trainer, f"sampling/importance_sampling_ratio/{name}")[0] <= 2.0
    assert history(trainer, "sampling/missing_logp_share") == [0.0]


def engine_agrees(trainer):
    """Replies whose reported log-probabilities are the trainer's own."""

    def reply(body, number):
        ids = by_seed(body, number)
        whole = torch.tensor([body["prompt"] + ids])
        with torch.no_grad():
            logps = trainer[0].model(whole).logits[0].log_softmax(-1)
        start = len(body["prompt"])
        values = [logps[start + k - 1, one].item() for k, one in enumerate(ids)]
        choice = choice_of(body, ids)
        choice["logprobs"]["token_logprobs"] = values
        return choice

    return reply


@pytest.mark.parametrize("mode", ["token_truncate", "sequence_mask"])
def test_an_engine_that_agrees_trains_as_without_the_correction(served, mode):
    holder = []
    found = {}
    for correction in (True, False):
        trainer, _, _ = served(
            engine_agrees(holder),
            vllm_importance_sampling_mode=mode,
            vllm_importance_sampling_correction=correction,
        )
        holder[:] = [trainer]
        trainer.train()
        found[correction] = tiny.parameters(trainer)
        assert bool(history(trainer, "sampling/importance_sampling_ratio/mean")) is correction
    for name in found[True]:
        torch.testing.assert_close(found[True][name], found[False][name], atol=1e-5, rtol=1e-4)


def test_a_masked_sequence_leaves_the_policy_where_it_was(served):
    def far_off(body, number):
        ids = by_seed(body, number)
        choice = choice_of(body, ids)
        choice["logprobs"]["token_logprobs"] = [-50.0] * len(ids)  # pi_old is e^50 times as likely
        return choice

    trainer, _, _ = served(far_off, vllm_importance_sampling_mode="sequence_mask")
    before = tiny.parameters(trainer)
    trainer.train()
    assert history(trainer, "sampling/importance_sampling_ratio/max") == [0.0]
    assert all(torch.equal(before[name], value) for name, value in tiny.parameters(trainer).items())


def test_missing_log_probabilities_train_without_nan(served):
    def partly(body, number):
        choice = choice_of(body, by_seed(body, number))
        choice["logprobs"]["token_logprobs"][1] = None if number % 2 else math.nan
        return choice

    trainer, _, _ = served(partly, vllm_importance_sampling_mode="token_truncate")
    trainer.train()
    assert 0 < history(trainer, "sampling/missing_logp_share")[0] < 1
    assert all(torch.isfinite(value).all() for value in tiny.parameters(trainer).values())
    assert math.isfinite(history(trainer, "loss")[0])


def in_two_turns(body, number):
    """An idle turn, then an end: the second prompt of an episode shows what the first turn did."""
    second = TOKENIZER.decode(body["prompt"]).count("Nothing happens") > 0
    word = ("look", "inventory")[body["seed"] % 2] if second else "go to"
    return ids_of(f"<action>{word}</action>")


@pytest.mark.parametrize(("context", "num_turns"), [("window", 1), ("conversation", 2)])
def test_ratios_stand_at_the_reply_tokens_of_every_turn_of_a_row(served, context, num_turns):
    trainer, _, _ = served(
        in_two_turns,
        context=context,
        vllm_importance_sampling_mode="token_truncate",
        vllm_importance_sampling_clip_max=1e9,
    )
    trainer.train()
    loss_rows = [row for micro in trainer._buffer for batch in micro for row in batch if any(row.coefficients)]
    assert loss_rows
    for row in loss_rows:
        sampled = [row.ids[position] for position in row.positions]
        assert sampled.count(TOKENIZER.eos_token_id) == num_turns
        engine, place = [], 0
        for token in sampled:  # -0.25, -0.5, ... from the start of each reply
            place += 1
            engine.append(-0.25 * place)
            place *= token != TOKENIZER.eos_token_id
        ratios = [math.exp(old - one) for old, one in zip(row.old_logps, engine, strict=True)]
        assert row.importance_ratios == pytest.approx(ratios)


# ---- whose model scores ---------------------------------------------------------------------------------------------


def test_both_branches_are_scored_by_the_trainer_whatever_the_engine_reports(served):
    """The server answers the episodes' turns and nothing else; its probabilities do not enter the credit."""
    found = []
    for shift in (0.0, 3.0):

        def reply(body, number, shift=shift):
            choice = choice_of(body, in_two_turns(body, number))
            logprobs = choice["logprobs"]
            logprobs["token_logprobs"] = [value - shift for value in logprobs["token_logprobs"]]
            return choice

        CountingAnalyzer.num_requests = 0
        trainer, fake, _ = served(reply, vllm_importance_sampling_correction=False)
        trainer.train()
        records = list(read_records(trainer.args.output_dir + "/_trajectories"))
        assert CountingAnalyzer.num_requests > 0
        assert len(fake.requests) == sum(len(one.trajectory.turns) for one in records)
        assert set(fake.paths) <= {"/health", "/v1/models", "/server_info", "/v1/completions"}
        assert not any({"echo", "prompt_logprobs"} & body.keys() for body in fake.requests)
        found.append({one.trajectory.uid: one.credit for one in records})
    assert found[0] == found[1]
    assert any(support for credit in found[0].values() for support in credit.supports)
