"""Teachers: whose weights play, when copies are taken, what is averaged, what a checkpoint keeps."""

from __future__ import annotations

import contextlib
import io

import pytest
import torch
from peft import LoraConfig, get_peft_model

from taspo_trl.errors import ConfigurationError, InvariantError
from taspo_trl.scoring.projection import add_selected_projection
from taspo_trl.scoring.teachers import (
    AverageTeacher,
    FrozenTeacher,
    ModelTeacher,
    PolicyAccess,
    RolloutTeacher,
    StaleTeacher,
    check_tokenizers,
    load_model,
    make_teacher,
    score_for_term,
)
from taspo_trl.scoring.whole import TokenScores, WholeRow, joined, num_row_batches, score_rows, spliced_row, unscored
from tests import tiny


ROWS = [
    WholeRow((5, 9, 7, 4, 8, 3), (3, 4, 5)),
    WholeRow((6, 3, 9, 9), (1, 3)),
    WholeRow((8, 4, 4, 11, 12, 13, 5, 6), (2, 7)),
]


def policy(dtype=torch.float64, lora=False, temperature=1.0):
    model = tiny.model(dtype=dtype)
    add_selected_projection(model, temperature)
    return get_peft_model(model, LoraConfig(r=2, target_modules=["q_proj", "v_proj"])) if lora else model


def access(model, **options):
    values = {"max_tokens": 64, "pad_token_id": 0, **options}
    return PolicyAccess(lambda: model, lambda one: one, contextlib.nullcontext, **values)


def train(model, amount=0.1, seed=0):
    """Something like an optimizer step: every trained weight moves in place."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for one in model.parameters():
            if one.requires_grad:
                one.add_(amount * torch.randn(one.shape, generator=generator, dtype=torch.float32).to(one.dtype))


def logps(teacher, **options):
    return torch.cat([one.logps for one in teacher.score(ROWS, **options)])


def expected(model):
    model.eval()
    with torch.no_grad():
        found = []
        for row in ROWS:
            own = torch.log_softmax(model(input_ids=torch.tensor([row.ids])).logits[0], -1)
            found += [own[p - 1, row.ids[p]] for p in row.positions]
    return torch.stack(found)


# ---- whole rows -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("max_tokens", [8, 16, 1000])
def test_whole_rows_are_scored_as_one_at_a_time(max_tokens):
    model = policy()
    found = score_rows(model, ROWS, max_tokens=max_tokens)
    torch.testing.assert_close(torch.cat([one.logps for one in found]), expected(model))
    assert [len(one.logps) for one in found] == [3, 2, 2]
    assert num_row_batches(ROWS, 8) == 3 and num_row_batches(ROWS, 1000) == 1


def test_top_k_given_ids_and_hidden_states_of_whole_rows():
    model = policy()
    top = score_rows(model, ROWS, vocabulary=4, temperature=1.3, max_tokens=16)
    given = [WholeRow(row.ids, row.positions, one.top_ids) for row, one in zip(ROWS, top, strict=True)]
    again = score_rows(model, given, temperature=1.3, max_tokens=1000)
    for one, other in zip(top, again, strict=True):
        assert torch.equal(one.top_ids, other.top_ids)
        torch.testing.assert_close(one.top_logps, other.top_logps)
        torch.testing.assert_close(one.tail_logps, other.tail_logps)
        assert other.top_logps.shape == (len(one.logps), 4)
    hidden = score_rows(model, ROWS, vocabulary=-1, max_tokens=16)
    logits = torch.cat([one.hidden for one in hidden]) @ model.lm_head.weight.T
    torch.testing.assert_close(
        torch.log_softmax(logits / 1.3, -1).topk(4, -1).values, torch.cat([one.top_logps for one in top])
    )


@pytest.mark.parametrize("given", [False, True])
def test_missing_batches_run_on_a_dummy_row(given):
    model, calls = policy(), []

    def forward(**inputs):
        calls.append(inputs["input_ids"].shape)
        return model(**inputs)

    rows = [WholeRow(row.ids, row.positions, torch.zeros(len(row.positions), 1).long()) for row in ROWS]
    score_rows(model, rows if given else ROWS, max_tokens=1000, forward=forward, num_batches=3)
    assert calls == [(3, 8), (1, 2), (1, 2)]
    assert score_rows(model, [], max_tokens=10, num_batches=1) == []


def test_a_block_moves_the_tokens_behind_it():
    row = spliced_row((5, 9, 7, 4), (2, 3), block_ids=(1, 2), splice_index=1)
    assert (row.ids, row.positions) == ((5, 1, 2, 9, 7, 4), (4, 5))
    row = spliced_row((5, 9, 7, 4), (2, 3), block_ids=(1, 2))
    assert (row.ids, row.positions) == ((1, 2, 5, 9, 7, 4), (4, 5))
    assert spliced_row((5, 9), (1,)) == WholeRow((5, 9), (1,))
    with pytest.raises(InvariantError, match="cannot change tokens before it"):
        spliced_row((5, 9, 7), (1,), (1,), 2)


def test_scores_can_be_cut_joined_and_left_blank():
    one = TokenScores(torch.tensor([1.0, 2.0]), top_ids=torch.tensor([[1, 2], [3, 4]]))
    assert one.at(slice(1, 2)).top_ids.tolist() == [[3, 4]]
    assert joined([one, one.blank(2)]).logps.tolist() == [1.0, 2.0, 0.0, 0.0]
    assert joined([one, one.blank(2)]).top_ids.shape == (4, 2)
    assert unscored(2, "over_window").logps.isnan().all() and unscored(2, "over_window").blank(1).reason == ""


# ---- who plays ------------------------------------------------------------------------------------------------------


def test_the_rollout_teacher_is_the_policy_of_the_moment():
    model = policy()
    teacher = RolloutTeacher(access(model))
    teacher.follow(0)
    torch.testing.assert_close(logps(teacher), expected(model))
    train(model)
    teacher.follow(1)
    torch.testing.assert_close(logps(teacher), expected(model))
    assert teacher.state_dict() == {}


@pytest.mark.parametrize("lora", [False, True])
def test_a_stale_teacher_has_the_weights_after_m_floor_n_over_m_updates(lora):
    model = policy(lora=lora)
    teacher, seen = StaleTeacher(access(model), every=3), []
    for step in range(8):
        teacher.follow(step)
        teacher.follow(step)  # twice is once
        seen.append(expected(model))
        torch.testing.assert_close(logps(teacher), seen[3 * (step // 3)], msg=f"update {step}")
        train(model, seed=step)
    assert not torch.allclose(seen[0], seen[3])


def test_an_averaged_teacher_by_hand():
    model = torch.nn.Linear(1, 1, bias=False).double()
    model.weight.data.fill_(1.0)
    teacher = AverageTeacher(access(model), rate=0.05)
    teacher.follow(0)
    model.weight.data.fill_(2.0)
    teacher.follow(0)
    assert teacher.weights["weight"].item() == 1.0
    teacher.follow(1)
    teacher.follow(1)
    assert teacher.weights["weight"].item() == pytest.approx(1.05, abs=1e-15)
    teacher.follow(2)
    assert teacher.weights["weight"].item() == pytest.approx(1.05 * 0.95 + 0.1, abs=1e-15)


def test_half_precision_is_averaged_in_float32():
    model = policy(dtype=torch.bfloat16)
    teacher = AverageTeacher(access(model), rate=0.001)
    teacher.follow(0)
    before = {name: one.clone() for name, one in teacher.weights.items()}
    train(model, 0.01)
    teacher.follow(1)
    assert all(one.dtype == torch.float32 for one in teacher.weights.values())
    assert any(not torch.equal(one, before[name]) for name, one in teacher.weights.items())
    assert all(one.dtype == torch.bfloat16 for one in model.parameters())
    assert logps(teacher).isfinite().all() and all(one.dtype == torch.bfloat16 for one in model.parameters())


@pytest.mark.parametrize("lora", [False, True])
def test_a_frozen_teacher_stays_the_initial_policy(lora):
    model = policy(lora=lora)
    start = expected(model)
    teacher = FrozenTeacher(access(model))
    for step in range(3):
        teacher.follow(step)
        torch.testing.assert_close(logps(teacher), start)
        train(model, seed=step)
    assert not torch.allclose(expected(model), start)


def test_with_lora_only_adapter_weights_are_copied():
    model = policy(lora=True)
    for teacher in (StaleTeacher(access(model), 2), AverageTeacher(access(model), 0.1), FrozenTeacher(access(model))):
        teacher.follow(0)
        assert teacher.weights and all("lora_" in name for name in teacher.weights)


def test_the_policy_is_left_as_it_was():
    model = policy()
    model.train()
    model.model.layers[0].eval()
    teacher = FrozenTeacher(access(model))
    teacher.follow(0)
    train(model)
    before = {name: (one.data_ptr(), one.clone()) for name, one in model.named_parameters()}
    logps(teacher)
    for name, one in model.named_parameters():
        assert one.data_ptr() == before[name][0] and torch.equal(one, before[name][1]) and one.requires_grad
    assert model.training and not model.model.layers[0].training

    def broken(**inputs):
        raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError), teacher._playing(model):
        broken()
    assert all(torch.equal(one, before[name][1]) for name, one in model.named_parameters())


@pytest.mark.parametrize("lora", [False, True])
@pytest.mark.parametrize("kind", ["rollout", "stale", "ema", "frozen"])
def test_the_head_of_a_batch_outlives_updates(kind, lora):
    model = policy(lora=lora, temperature=0.7)
    teacher = make_teacher(kind, access(model, temperature=0.7), every=1, rate=0.5)
    teacher.follow(0)
    scores = joined(teacher.score(ROWS, vocabulary=-1))
    head = teacher.head
    first = head.log_probs(scores.hidden)
    targets = torch.tensor([row.ids[p] for row in ROWS for p in row.positions])
    torch.testing.assert_close(first.gather(-1, targets[:, None])[:, 0], scores.logps)
    train(model)
    teacher.follow(1)
    assert torch.equal(head.log_probs(scores.hidden), first)
    assert torch.equal(teacher.head.log_probs(scores.hidden), first)  # until the next batch is scored


@pytest.mark.parametrize("lora", [False, True])
@pytest.mark.parametrize("kind", ["rollout", "stale", "ema", "frozen"])
def test_the_state_goes_through_a_checkpoint(kind, lora):
    model = policy(lora=lora)
    teacher = make_teacher(kind, access(model), every=2, rate=0.5)
    for step in range(4):
        teacher.follow(step)
        train(model, seed=step)
    scores = joined(teacher.score(ROWS, vocabulary=-1))
    first = teacher.head.log_probs(scores.hidden)
    train(model, seed=9)
    teacher.follow(4)
    file = io.BytesIO()
    torch.save(teacher.state_dict(), file)
    file.seek(0)

    resumed = make_teacher(kind, access(model), every=2, rate=0.5)
    resumed.load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(resumed.head.log_probs(scores.hidden), first)
    train(model, seed=10)
    for one in (teacher, resumed):
        one.follow(5)
    assert torch.equal(logps(resumed), logps(teacher))


def test_what_cannot_be_resumed_is_said():
    model = policy()
    teacher = StaleTeacher(access(model), 2)
    with pytest.raises(ConfigurationError, match="update 7, but no state of its teacher"):
        teacher.follow(7)
    teacher.follow(0)
    other = policy(lora=True)
    with pytest.raises(ConfigurationError, match="other names or shapes"):
        StaleTeacher(access(other), 2).load_state_dict(teacher.state_dict())


def test_a_missed_update_is_a_bug():
    teacher = AverageTeacher(access(policy()), 0.1)
    teacher.follow(0)
    with pytest.raises(InvariantError, match="saw update 2 after 0"):
        teacher.follow(2)
    teacher = StaleTeacher(access(policy()), 3)
    teacher.follow(0)
    with pytest.raises(InvariantError, match="missed its copy"):
        teacher.follow(4)
    with pytest.raises(InvariantError, match="before it followed"):
        FrozenTeacher(access(policy())).score(ROWS)


def test_a_training_that_starts_again_starts_its_copies_again():
    model = policy()
    teachers = [StaleTeacher(access(model), 5), AverageTeacher(access(model), 0.1)]
    for teacher in teachers:
        teacher.follow(0)
        teacher.follow(1)
    train(model)
    for teacher in teachers:
        teacher.follow(0)
        torch.testing.assert_close(logps(teacher), expected(model))


# ---- another model --------------------------------------------------------------------------------------------------


def test_another_model_plays_with_its_own_weights_and_head():
    model, other = policy(temperature=0.7), tiny.model(seed=1, dtype=torch.float64, hidden_size=32)
    teacher = ModelTeacher(other, access(model, temperature=0.7))
    scores = joined(teacher.score(ROWS, vocabulary=-1))
    assert scores.hidden.shape[-1] == 32
    targets = torch.tensor([row.ids[p] for row in ROWS for p in row.positions])
    again = teacher.head.log_probs(scores.hidden).gather(-1, targets[:, None])[:, 0]
    torch.testing.assert_close(again, scores.logps)
    assert not any(one.requires_grad for one in other.parameters())
    assert teacher.state_dict() == {}
    teacher.follow(3)


def test_a_model_is_loaded_by_name_and_its_tokenizer_compared(tmp_path):
    tok = tiny.tokenizer()
    tiny.model(seed=1).save_pretrained(tmp_path)
    tok.save_pretrained(tmp_path)
    teacher = make_teacher("model", access(policy()), model=load_model(str(tmp_path), tok))
    assert isinstance(teacher, ModelTeacher) and logps(teacher).isfinite().all()
    tok.add_tokens(["a token of its own"])
    with pytest.raises(ConfigurationError, match=r"differs from the policy's in 1 of .*'a token of its own'"):
        load_model(str(tmp_path), tok)
    with pytest.raises(ConfigurationError, match="embeddings for"):
        check_tokenizers(tok, tok, tiny.model())


# ---- the choice -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["stale", "ema", "frozen", "model"])
def test_sharded_weights_are_refused_by_name_with_the_remedy(kind):
    with pytest.raises(ConfigurationError, match=rf'"{kind}".*ZeRO-3 or FSDP.*DDP or ZeRO-2'):
        make_teacher(kind, access(policy()), model=tiny.model(), is_sharded=True)
    assert isinstance(make_teacher("rollout", access(policy()), is_sharded=True), RolloutTeacher)


def test_unusable_choices_are_refused():
    with pytest.raises(ConfigurationError, match="'old' is no teacher"):
        make_teacher("old", access(policy()))
    with pytest.raises(ConfigurationError, match="needs a second model"):
        make_teacher("model", access(policy()))
    with pytest.raises(ConfigurationError, match="got 0; at least 1"):
        make_teacher("stale", access(policy()), every=0)
    with pytest.raises(ConfigurationError, match=r"at most 1, got 1.5"):
        make_teacher("ema", access(policy()), rate=1.5)
    served = object()
    assert make_teacher("model", access(policy()), model=served, is_sharded=True) is served


def test_the_students_top_k_are_chosen_by_the_plain_branch_and_gathered_in_the_guided_one():
    model = policy()
    rollout, teacher = RolloutTeacher(access(model)), FrozenTeacher(access(model))
    teacher.follow(0)
    train(model)
    guided = [WholeRow((7, 7, *row.ids), tuple(p + 2 for p in row.positions)) for row in ROWS]
    options = {"vocabulary": 3, "temperature": 1.1}
    found = score_for_term(teacher, rollout, guided, ROWS, top_of="student", **options)
    chosen = rollout.score(ROWS, **options)
    own = teacher.score(guided, **options)
    for one, plain in zip(found, chosen, strict=True):
        assert torch.equal(one.top_ids, plain.top_ids)
        assert not torch.equal(one.top_logps, plain.top_logps)
    for one, other in zip(
        score_for_term(teacher, rollout, guided, ROWS, top_of="teacher", **options), own, strict=True
    ):
        assert torch.equal(one.top_ids, other.top_ids) and torch.equal(one.top_logps, other.top_logps)
