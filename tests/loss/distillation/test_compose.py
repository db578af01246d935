"""The distillation loss of micro-batches of a real model: composition, chunks, partitions, processes in step."""

from __future__ import annotations

import contextlib
from dataclasses import replace

import pytest
import torch

from taspo_trl.errors import InvariantError
from taspo_trl.loss.distillation import (
    OPSD,
    SDAR,
    SDPO,
    Branch,
    SkillSD,
    TeacherColumns,
    distillation_loss,
    grpo_sdpo,
    opd,
    row_scores,
    teacher_columns,
    update_distribution,
)
from taspo_trl.loss.objective import taspo_loss
from taspo_trl.rows import Row, RowTurn
from taspo_trl.scoring.distributions import Distribution, everything
from taspo_trl.scoring.projection import add_selected_projection, selected_forward
from taspo_trl.scoring.teachers import ModelTeacher, PolicyAccess
from taspo_trl.scoring.whole import WholeRow, joined
from tests import tiny


TERMS = {
    "sdar": SDAR(),
    "skillsd": SkillSD(),
    "opsd": OPSD(),
    "opsd sampled": OPSD(form="sampled"),
    "opsd top": OPSD(top_k=5),
    "opd reverse": opd(beta=1.0),
    "sdpo": SDPO(top_k=5),
    "sdpo all": SDPO(top_k=10_000),
    "grpo_sdpo": grpo_sdpo(0.3, top_k=4),
}
IDS = torch.tensor([[5, 9, 7, 4, 8, 3, 6], [6, 3, 9, 9, 20, 21, 22]])
POSITIONS = torch.tensor([1, 2, 3, 5, 8, 9, 12])
COEFFICIENTS = torch.tensor([0.1, 0.2, 0.0, 0.3, 0.05, 0.0, 0.35], dtype=torch.float64)
ADVANTAGES = torch.tensor([0.5, 0.5, 0.5, -0.5, -0.5, 0.0, 0.0], dtype=torch.float64)


def models(seed=1):
    pair = [tiny.model(seed=one, dtype=torch.float64) for one in (0, seed)]
    for one in pair:
        add_selected_projection(one.eval())
    return pair


def batch(which=slice(None)):
    return {
        "input_ids": IDS,
        "attention_mask": torch.ones_like(IDS),
        "positions": POSITIONS[which],
        "targets": IDS.flatten()[POSITIONS[which] + 1],
    }


def columns(term, teacher, student):
    """The teacher's view of the tokens of `batch`, as the scoring stage gives it."""
    access = PolicyAccess(lambda: teacher, lambda one: one, contextlib.nullcontext, 64, 0)
    rows = [WholeRow(tuple(IDS[0].tolist()), (2, 3, 4, 6)), WholeRow(tuple(IDS[1].tolist()), (2, 3, 6))]
    needs = term.needs
    if needs.vocabulary > 0 and needs.top_of == "student":
        ids = distribution_of(student).topk(min(needs.vocabulary, student.config.vocab_size), -1).indices
        rows = [replace(rows[0], at_ids=ids[:4]), replace(rows[1], at_ids=ids[4:])]
    made = ModelTeacher(teacher, access)
    scores = joined(made.score(rows, vocabulary=needs.vocabulary, temperature=needs.temperature))
    return TeacherColumns(**scores.columns(), head=made.head if needs.vocabulary == -1 else None)


def distribution_of(model, temperature=1.0):
    with torch.no_grad():
        return selected_forward(model, batch(), distribution=Distribution(everything, temperature)).reduced[0]


def part_of(teacher, which):
    values = {name: getattr(teacher, name) for name in ("logps", "top_ids", "top_logps", "tail_logps", "hidden")}
    return TeacherColumns(
        **{name: None if one is None else one[which] for name, one in values.items()}, head=teacher.head
    )


def loss_of(term, model, teacher, old=None, which=slice(None), coefficients=COEFFICIENTS, chunk=None, size=None):
    values = coefficients[which], None if old is None else old[which], ADVANTAGES[which]
    asked = update_distribution(term, part_of(teacher, which), *values, student_size=size)
    if asked is not None and chunk is not None:
        asked = replace(asked, chunk=chunk)
    output = selected_forward(model, batch(which), distribution=asked)
    return distillation_loss(term, output, part_of(teacher, which), values[0], 0, *values[1:])


def gradients(model, loss):
    model.zero_grad()
    loss.backward()
    return {name: one.grad.clone() for name, one in model.named_parameters() if one.grad is not None}


@pytest.mark.parametrize("term", TERMS.values(), ids=TERMS)
@pytest.mark.parametrize("off_policy", [False, True])
def test_the_loss_is_the_share_of_the_weighted_token_losses(term, off_policy):
    student, other = models()
    teacher = columns(term, other, student)
    logps = selected_forward(student, batch()).logps.detach()
    old = logps - torch.linspace(-0.5, 1.0, 7) if off_policy else None
    needs = term.needs
    both = [distribution_of(one, needs.temperature) for one in (student, other)]
    branches = []
    for one, sampled in zip(both, (logps, teacher.logps), strict=True):
        top = None if needs.vocabulary <= 0 else one.gather(-1, teacher.top_ids)
        tail = None if top is None else torch.log((1 - top.exp().sum(-1)).clamp(min=0))
        branches.append(Branch(sampled, teacher.top_ids, top, tail, one if needs.vocabulary == -1 else None))
    tokens = term.token_loss(*branches, logps if old is None else old, ADVANTAGES)
    found = loss_of(term, student, teacher, old)
    torch.testing.assert_close(found.detach(), term.share(0) * (COEFFICIENTS * tokens).sum())
    assert found.item() != 0


@pytest.mark.parametrize("term", TERMS.values(), ids=TERMS)
def test_the_gradient_does_not_depend_on_chunks_or_micro_batches(term):
    student, other = models()
    teacher = columns(term, other, student)
    old = selected_forward(student, batch()).logps.detach() - 0.1
    whole = gradients(student, loss_of(term, student, teacher, old))
    assert any(one.any() for one in whole.values())
    parts = [torch.tensor([0, 3, 4]), torch.tensor([1, 2]), torch.tensor([5, 6])]
    for found in (
        gradients(student, loss_of(term, student, teacher, old, chunk=2)),
        gradients(student, sum(loss_of(term, student, teacher, old, part) for part in parts)),
    ):
        assert set(found) == set(whole)
        for name, one in found.items():
            torch.testing.assert_close(one, whole[name], msg=name)


@pytest.mark.parametrize("name", [name for name in TERMS if not name.startswith("sdar")])
def test_a_teacher_that_equals_the_student_has_loss_0(name):
    term = TERMS[name]
    student, _ = models()
    _, twin = models(seed=0)
    teacher = columns(term, twin, student)
    found = loss_of(term, student, teacher)
    slopes = gradients(student, found)
    assert abs(found.item()) < 1e-12
    assert all(one.abs().max() < 1e-12 for one in slopes.values())


@pytest.mark.parametrize("term", TERMS.values(), ids=TERMS)
def test_a_micro_batch_without_distilled_tokens_has_a_graph_and_gradient_0(term):
    student, other = models()
    found = loss_of(term, student, columns(term, other, student), coefficients=torch.zeros_like(COEFFICIENTS))
    slopes = gradients(student, found)
    assert found.item() == 0 and slopes and not any(one.any() for one in slopes.values())


@pytest.mark.parametrize("term", TERMS.values(), ids=TERMS)
def test_tokens_that_do_not_count_may_hold_anything(term):
    student, other = models()
    teacher = columns(term, other, student)
    first = loss_of(term, student, teacher)
    spoiled = {
        name: None if one is None else one.clone()
        for name, one in part_of(teacher, slice(None)).__dict__.items()
        if name != "head"
    }
    for name, one in spoiled.items():
        if one is not None:
            one[COEFFICIENTS == 0] = 0 if name == "top_ids" else float("nan")
    assert torch.equal(loss_of(term, student, TeacherColumns(**spoiled, head=teacher.head)), first)


@pytest.mark.parametrize("term", [SDAR(), grpo_sdpo(0.3, top_k=4)], ids=["sdar", "grpo_sdpo"])
def test_the_policys_share_scales_the_advantages(term):
    student, other = models()
    teacher = columns(term, other, student)
    output = selected_forward(
        student, batch(), distribution=update_distribution(term, teacher, COEFFICIENTS, None, ADVANTAGES)
    )
    old = output.logps.detach() - 0.1
    scaled = taspo_loss(output.logps, old, ADVANTAGES * term.policy_share(0), COEFFICIENTS).loss
    torch.testing.assert_close(
        scaled, term.policy_share(0) * taspo_loss(output.logps, old, ADVANTAGES, COEFFICIENTS).loss
    )


def test_only_ids_that_both_models_have_are_compared():
    student, _ = models()
    size = student.config.vocab_size
    bigger = tiny.model(seed=1, dtype=torch.float64, vocab_size=size + 8)
    add_selected_projection(bigger.eval())
    term = opd()
    found = loss_of(term, student, columns(term, bigger, student), size=size)
    logits = bigger(input_ids=IDS).logits.flatten(0, 1)[POSITIONS][:, :size]
    theirs = torch.log_softmax(logits, -1).detach()
    ours = distribution_of(student)
    expected = term.token_loss(Branch(ours[:, 0], all_logps=ours), Branch(ours[:, 0], all_logps=theirs), ours, ours)
    torch.testing.assert_close(found.detach(), (COEFFICIENTS * expected).sum())


def test_scores_of_turns_become_columns_of_a_micro_batch():
    _, other = models()
    access = PolicyAccess(lambda: other, lambda one: one, contextlib.nullcontext, 64, 0)
    rows = [
        Row("a", tuple(IDS[0].tolist()), (RowTurn(0, 2, 2), RowTurn(1, 5, 1)), 1),
        Row("b", tuple(IDS[1].tolist()), (RowTurn(0, 3, 3),), 1),
    ]
    made = ModelTeacher(other, access)
    (scored,) = made.score([WholeRow(rows[0].ids, (2, 3))], vocabulary=-1)
    first = row_scores(rows[0], {0: scored})
    assert first.logps.tolist() == [*scored.logps.tolist(), 0.0] and first.hidden.shape == (3, 16)
    assert row_scores(rows[1], {7: scored}) is None
    found = teacher_columns([first, None], [3, 3], made.head, dtype=torch.float64)
    assert found.logps.shape == (6,) and found.hidden.shape == (6, 16) and found.head is made.head
    assert teacher_columns([None, None], [3, 3]) is None
    top = made.score([WholeRow(rows[0].ids, (2, 3))], vocabulary=3)[0]
    columns_of_top = teacher_columns([row_scores(rows[0], {0: top}), None], [3, 3], made.head)
    assert columns_of_top.top_ids.dtype == torch.long and columns_of_top.top_logps.dtype == torch.float32
    assert columns_of_top.top_ids.shape == (6, 3) and columns_of_top.head is None


@pytest.mark.parametrize("term", TERMS.values(), ids=TERMS)
def test_a_micro_batch_without_scores_needs_no_columns(term):
    student, _ = models()
    none = torch.zeros(7, dtype=torch.float64)
    assert update_distribution(term, None, none, None, ADVANTAGES) is None
    output = selected_forward(student, batch())
    slopes = gradients(student, distillation_loss(term, output, None, none, 0, None, ADVANTAGES))
    assert slopes and not any(one.any() for one in slopes.values())
    with pytest.raises(InvariantError, match="without the teacher's scores"):
        distillation_loss(term, output, None, COEFFICIENTS, 0, None, ADVANTAGES)


def test_missing_columns_are_a_bug():
    empty = TeacherColumns(torch.zeros(7, dtype=torch.float64))
    for term in (SDPO(), OPSD()):
        with pytest.raises(InvariantError):
            update_distribution(term, empty, COEFFICIENTS, None, ADVANTAGES)
    assert update_distribution(SDAR(), empty, COEFFICIENTS, None, ADVANTAGES) is None
