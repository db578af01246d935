"""Distillation terms on tensors: methods.md's numbers, NumPy references, gradients by finite differences."""

import math

import numpy as np
import pytest
import torch

from taspo_trl.loss.distillation import (
    OPSD,
    SDAR,
    SDPO,
    Branch,
    SkillSD,
    grpo_opsd,
    grpo_opsd_sdar,
    grpo_sdpo,
    opd,
    opsd_sdar,
)
from taspo_trl.loss.distillation.divergence import divergence
from taspo_trl.loss.objective import taspo_loss


V, N = 7, 5


def tensor(*values):
    return torch.tensor(values, dtype=torch.float64)


def logits(seed, num=N, size=V):
    return torch.randn(num, size, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


TARGETS = torch.tensor([0, 3, 6, 2, 2])


def branch(values, *, k=None, ids=None):
    """A branch from (N, V) logits: the sampled token, all, and k (or given) ids with their tail."""
    logps = torch.log_softmax(values, -1)
    top = logps.topk(k, -1).indices if k is not None else ids
    fields = {}
    if top is not None:
        rest = torch.log1p(-logps.gather(-1, top).exp().sum(-1)) if top.shape[-1] < values.shape[-1] else None
        fields = {
            "top_ids": top,
            "top_logps": logps.gather(-1, top),
            "tail_logps": torch.full((len(values),), -math.inf, dtype=values.dtype) if rest is None else rest,
        }
    return Branch(logps.gather(-1, TARGETS[: len(values), None]).squeeze(-1), all_logps=logps, **fields)


def sampled(student, teacher):
    """Both branches of tokens known by their sampled log-probability alone."""
    return Branch(student), Branch(teacher)


def loss_of(term, student, teacher, old=None, advantages=None):
    old = student.logps.detach() if old is None else old
    advantages = torch.zeros_like(old) if advantages is None else advantages
    return term.token_loss(student, teacher, old, advantages)


def gradient(term, values, teacher, *, k=None, ids=None, old=None):
    """Gradient of the summed token losses with respect to the student's logits."""
    values = values.clone().requires_grad_()
    loss_of(term, branch(values, k=k, ids=ids), teacher, old).sum().backward()
    return values.grad


def finite_differences(function, values, step=1e-6):
    base = values.numpy().astype(np.float64)
    slopes = np.zeros_like(base)
    for place in np.ndindex(base.shape):
        ends = []
        for sign in (1, -1):
            moved = base.copy()
            moved[place] += sign * step
            ends.append(function(moved))
        slopes[place] = (ends[0] - ends[1]) / (2 * step)
    return slopes


# ---- independent references -----------------------------------------------------------------------------------------


def softmax(values):
    exp = np.exp(values - values.max(-1, keepdims=True))
    return exp / exp.sum(-1, keepdims=True)


def kl(p, q):
    return (p * np.log(p / q)).sum(-1)


def jsd(s, t, beta):
    if beta == 0:
        return kl(t, s)
    if beta == 1:
        return kl(s, t)
    m = (1 - beta) * s + beta * t
    return beta * kl(t, m) + (1 - beta) * kl(s, m)


def buckets(p, ids):
    chosen = np.take_along_axis(p, ids, -1)
    return np.concatenate([chosen, 1 - chosen.sum(-1, keepdims=True)], -1)


# ---- numbers --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shift", "gate", "factor"),
    [(0.0, 0.5, 0.005), (0.2, 0.731059, 0.007311), (-0.2, 0.268941, 0.002689), (1.0, 0.993307, 0.009933)],
)
def test_sdar_pushes_every_sampled_token_up_by_its_gate(shift, gate, factor):
    student = tensor(-1.0).requires_grad_()
    term = SDAR()
    loss = loss_of(term, *sampled(student, tensor(-1.0 + shift)))
    assert loss.item() == pytest.approx(gate * shift, abs=1e-6)
    (term.share(0) * loss).sum().backward()
    assert student.grad.item() == pytest.approx(-factor, abs=1e-6)


def test_opsd_by_hand():
    student, teacher = torch.log(tensor([0.5, 0.5])), torch.log(tensor([0.8, 0.2]))
    assert divergence(student, teacher, 0.0).item() == pytest.approx(0.192745, abs=1e-6)
    assert divergence(student, teacher, 1.0).item() == pytest.approx(0.223144, abs=1e-6)
    assert divergence(student, teacher, 0.5).item() == pytest.approx(0.050672, abs=1e-6)
    both = [Branch(tensor(0.0), all_logps=one) for one in (student, teacher)]
    assert loss_of(OPSD(), *both).item() == pytest.approx(0.050672, abs=1e-6)


def test_sdpo_by_hand():
    both = [
        Branch(tensor(0.0), torch.tensor([[0]]), torch.log(tensor([p])), torch.log(tensor(1 - p))) for p in (0.5, 0.6)
    ]
    assert loss_of(SDPO(alpha=0.0, top_k=1), *both).item() == pytest.approx(0.020136, abs=1e-6)
    student = torch.log(tensor(0.5)).requires_grad_()
    loss_of(SDPO(form="sampled"), *sampled(student, torch.log(tensor(0.8)))).sum().backward()
    assert student.grad.item() == pytest.approx(-0.470004, abs=1e-6)  # pushed up


@pytest.mark.parametrize(("gap", "loss"), [(math.log(2), 0.193147), (-math.log(2), 0.306853), (0.0, 0.0)])
def test_skillsd_by_hand(gap, loss):
    assert loss_of(SkillSD(), *sampled(tensor(-2.0 + gap), tensor(-2.0))).item() == pytest.approx(loss, abs=1e-6)


def test_skillsd_has_a_gradient_through_its_ratio_and_stays_finite():
    student = tensor(-1.0).requires_grad_()
    loss_of(SkillSD(), *sampled(student, tensor(-1.5)), old=tensor(-1.3)).sum().backward()
    gap, ratio = 0.5, math.exp(0.3)
    assert student.grad.item() == pytest.approx(ratio * (math.exp(-gap) - 1 + gap) + ratio * (1 - math.exp(-gap)))
    far = loss_of(SkillSD(), *sampled(tensor(-100.0), tensor(-1.0)), old=tensor(-200.0)).item()
    assert far == pytest.approx(math.exp(10) * (math.exp(20) - 1 - 20))


def test_shares():
    shares = {
        "sdar": (SDAR(), 1.0, 0.01),
        "opsd_sdar": (opsd_sdar(), 0.0, 0.01),
        "grpo_opsd_sdar": (grpo_opsd_sdar(), 1.0, 0.01),
        "opsd": (OPSD(), 0.0, 1.0),
        "grpo_opsd": (grpo_opsd(), 1.0, 0.1),
        "grpo_opsd sampled": (grpo_opsd("sampled"), 1.0, 0.01),
        "opd": (opd(), 0.0, 1.0),
        "sdpo": (SDPO(), 0.0, 1.0),
        "grpo_sdpo": (grpo_sdpo(), 0.5, 0.5),
        "grpo_sdpo .2": (grpo_sdpo(0.2), 0.8, 0.2),
        "skillsd": (SkillSD(), 1.0, 0.001),
    }
    for name, (term, policy, own) in shares.items():
        assert (term.policy_share(3), term.share(3)) == (policy, own), name
        assert term.needs.flat_groups and term.needs.scope == "reply", name


def test_needs():
    assert (OPSD().needs.vocabulary, OPSD().needs.temperature, OPSD().needs.teacher) == (-1, 1.1, "frozen")
    assert (OPSD(top_k=20).needs.vocabulary, OPSD(top_k=20).needs.top_of) == (20, "teacher")
    assert (OPSD(form="sampled").needs.vocabulary, OPSD(form="sampled").needs.temperature) == (0, 1.0)
    assert (SDPO().needs.vocabulary, SDPO().needs.top_of, SDPO().needs.teacher_rate) == (100, "student", 0.05)
    assert (opd().needs.blocks, opd().needs.plain_only, opd().needs.teacher) == ((), True, "model")
    assert SDAR().needs.blocks == ("generic_skill",) and not SDAR().needs.plain_only


@pytest.mark.parametrize(
    "made",
    [
        lambda: SDAR(slope=-1.0),
        lambda: SDAR(weight=-0.1),
        lambda: SDAR(reduction="sum"),
        lambda: OPSD(beta=1.5),
        lambda: OPSD(form="kl"),
        lambda: OPSD(top_k=1),
        lambda: OPSD(temperature=0.0),
        lambda: opd(form="other"),
        lambda: SDPO(alpha=-0.1),
        lambda: SDPO(top_k=0),
        lambda: SDPO(ratio_cap=0.5),
        lambda: grpo_sdpo(1.5),
        lambda: SkillSD(weight=float("nan")),
    ],
)
def test_options_that_cannot_be_meant_are_refused(made):
    with pytest.raises(ValueError, match="must be"):
        made()


# ---- identical branches ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("beta", [0.0, 0.1, 0.3, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_identical_branches_have_loss_and_gradient_0_exactly(beta, dtype):
    values = (3 * logits(1)).to(dtype)
    teacher = branch(values, k=3)
    terms = ((OPSD(beta=beta), None), (OPSD(beta=beta, top_k=3), 3), (SDPO(alpha=beta), 3), (opd(beta=beta), 3))
    for term, k in terms:
        student = branch(values.clone().requires_grad_(), k=k)
        if isinstance(term, OPSD) and term.top_k:
            student = Branch(student.logps, student.top_ids, student.top_logps, student.tail_logps)
        assert torch.equal(loss_of(term, student, teacher), torch.zeros(N, dtype=dtype)), term
        assert torch.equal(gradient(term, values, teacher, k=k), torch.zeros_like(values)), term


@pytest.mark.parametrize(
    "term", [SkillSD(), SDPO(form="sampled"), OPSD(form="sampled"), opd(form="sampled")], ids=lambda one: str(one)[:24]
)
def test_sampled_forms_of_identical_branches_are_0_exactly(term):
    values = logits(2)
    teacher = branch(values).detach()
    assert torch.equal(loss_of(term, branch(values), teacher), torch.zeros(N, dtype=torch.float64))
    assert torch.equal(gradient(term, values, teacher), torch.zeros_like(values))


# ---- references with gradients --------------------------------------------------------------------------------------


@pytest.mark.parametrize("beta", [0.0, 0.2, 0.5, 0.8, 1.0])
def test_opsd_agrees_with_a_reference_and_its_gradient_with_finite_differences(beta):
    ours, theirs = logits(3), logits(4)

    def reference(values):
        return jsd(softmax(values), softmax(theirs.numpy()), beta)

    term = OPSD(beta=beta)
    assert loss_of(term, branch(ours), branch(theirs)).numpy() == pytest.approx(reference(ours.numpy()), abs=1e-12)
    slopes = finite_differences(lambda values: reference(values).sum(), ours)
    assert gradient(term, ours, branch(theirs)).numpy() == pytest.approx(slopes, abs=1e-8)


@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0])
def test_opsd_on_the_teachers_top_k_is_renormalised_without_a_tail(beta):
    ours, theirs = logits(5), logits(6)
    ids = theirs.topk(3, -1).indices

    def reference(values):
        pair = [np.take_along_axis(softmax(one), ids.numpy(), -1) for one in (values, theirs.numpy())]
        return jsd(*[one / one.sum(-1, keepdims=True) for one in pair], beta)

    def only_top(one):
        return Branch(one.logps, one.top_ids, one.top_logps, one.tail_logps)

    values = ours.clone().requires_grad_()
    loss = loss_of(OPSD(beta=beta, top_k=3), only_top(branch(values, ids=ids)), only_top(branch(theirs, ids=ids)))
    assert loss.detach().numpy() == pytest.approx(reference(ours.numpy()), abs=1e-12)
    loss.sum().backward()
    slopes = finite_differences(lambda moved: reference(moved).sum(), ours)
    assert values.grad.numpy() == pytest.approx(slopes, abs=1e-8)


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("cap", [2.0, None])
def test_sdpo_agrees_with_a_reference_and_its_gradient_with_finite_differences(alpha, cap):
    ours, theirs = logits(7), logits(8)
    ids = ours.topk(3, -1).indices
    old = branch(ours).logps - tensor(0.0, 0.3, -0.4, 1.5, -2.0)
    ratio = np.minimum(np.exp([0.0, 0.3, -0.4, 1.5, -2.0]), cap) if cap else np.ones(N)

    def reference(values):
        return ratio * jsd(buckets(softmax(values), ids.numpy()), buckets(softmax(theirs.numpy()), ids.numpy()), alpha)

    term, teacher = SDPO(alpha=alpha, ratio_cap=cap), branch(theirs, ids=ids)
    assert loss_of(term, branch(ours, ids=ids), teacher, old).numpy() == pytest.approx(
        reference(ours.numpy()), abs=1e-12
    )
    slopes = finite_differences(lambda values: reference(values).sum(), ours)  # the ratio carries no gradient
    assert gradient(term, ours, teacher, ids=ids, old=old).numpy() == pytest.approx(slopes, abs=1e-8)


@pytest.mark.parametrize("slope", [0.0, 1.0, 5.0])
def test_sdar_agrees_with_a_reference_and_its_gradient_with_finite_differences(slope):
    ours, theirs = logits(9), logits(10)
    picked = np.arange(N), TARGETS.numpy()
    teacher = np.log(softmax(theirs.numpy()))[picked]
    gate = 1 / (1 + np.exp(-slope * (teacher - np.log(softmax(ours.numpy()))[picked])))

    def reference(values):
        return gate * (teacher - np.log(softmax(values))[picked])

    term = SDAR(slope=slope)
    assert loss_of(term, branch(ours), branch(theirs)).numpy() == pytest.approx(reference(ours.numpy()), abs=1e-12)
    slopes = finite_differences(lambda values: reference(values).sum(), ours)
    assert gradient(term, ours, branch(theirs)).numpy() == pytest.approx(slopes, abs=1e-8)


def test_top_k_of_the_whole_vocabulary_is_the_whole_distribution():
    ours, theirs = logits(11), logits(12)
    ids = theirs.topk(V, -1).indices
    full = gradient(OPSD(), ours, branch(theirs))
    for term in (OPSD(top_k=V), SDPO(top_k=V)):
        values = ours.clone().requires_grad_()
        parts = [branch(one, ids=ids) for one in (values, theirs)]
        loss = loss_of(term, *[Branch(one.logps, one.top_ids, one.top_logps, one.tail_logps) for one in parts])
        torch.testing.assert_close(loss.detach(), loss_of(OPSD(), branch(ours), branch(theirs)))
        loss.sum().backward()
        torch.testing.assert_close(values.grad, full)


@pytest.mark.parametrize("beta", [0.3, 0.5])
def test_what_only_one_branch_holds_for_possible_counts_finitely(beta):
    ours, theirs = torch.log(tensor(0.5, 0.5, 0.0)), torch.log(tensor(0.0, 0.5, 0.5))
    found = divergence(ours[None], theirs[None], beta).item()
    kept = beta * math.log(1 / beta) / 2 + (1 - beta) * math.log(1 / (1 - beta)) / 2
    assert found == pytest.approx(kept, abs=1e-12)  # the outcome that both hold adds nothing: M is 1/2 there


def test_far_branches_stay_finite_in_float32():
    ours = torch.tensor([[0.0, 300.0, -300.0]]).requires_grad_()
    teacher = Branch(tensor(0.0), all_logps=torch.log_softmax(torch.tensor([[250.0, -100.0, 0.0]]), -1))
    for beta in (0.0, 0.5, 1.0):
        student = Branch(torch.zeros(1), all_logps=torch.log_softmax(ours, -1))
        loss = loss_of(OPSD(beta=beta), student, teacher)
        loss.sum().backward()
        assert loss.isfinite().all() and ours.grad.isfinite().all(), beta
        if beta == 0.0:
            assert ours.grad[0, 0] < 0  # KL(T || S) pushes up a token that the student holds for impossible


# ---- relations ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("advantage", [0.8, -0.8, 0.0])
def test_sdars_two_paths_have_one_gradient_on_policy(advantage):
    ours, theirs, coefficients = logits(13), logits(14), tensor(0.1, 0.2, 0.3, 0.15, 0.25)
    term, teacher = SDAR(weight=0.05), branch(theirs)
    advantages = torch.full((N,), advantage, dtype=torch.float64)

    def policy(values, credit):
        logps = branch(values).logps
        return taspo_loss(logps, logps.detach(), credit, coefficients).loss, branch(values)

    added = ours.clone().requires_grad_()
    surrogate, student = policy(added, advantages)
    (surrogate + term.share(0) * (coefficients * loss_of(term, student, teacher)).sum()).backward()

    shifted = ours.clone().requires_grad_()
    gate = torch.sigmoid(term.slope * (branch(theirs).logps - branch(ours).logps))
    policy(shifted, advantages + term.share(0) * gate)[0].backward()
    torch.testing.assert_close(added.grad, shifted.grad, rtol=0, atol=1e-15)


def test_grpo_opsd_sdar_does_not_know_its_teacher():
    ours, term = logits(15), grpo_opsd_sdar()
    slopes = [gradient(term, ours, branch(5 * logits(seed))) for seed in (16, 17)]
    assert torch.equal(*slopes)
    student = tensor(-1.0, -7.0).requires_grad_()
    (term.share(0) * loss_of(term, *sampled(student, tensor(-3.0, -0.1)))).sum().backward()
    assert student.grad.tolist() == [-0.005, -0.005]
    assert not torch.equal(*[gradient(SDAR(), ours, branch(5 * logits(seed))) for seed in (16, 17)])


def test_sampled_forms_are_a_policy_gradient_with_the_log_ratio_as_advantage():
    student, teacher = tensor(-1.0, -2.0), tensor(-0.5, -3.0)
    for term in (OPSD(form="sampled"), opd(form="sampled"), SDPO(form="sampled")):
        values = student.clone().requires_grad_()
        loss_of(term, *sampled(values, teacher)).sum().backward()
        assert values.grad.tolist() == [-0.5, 1.0]


@pytest.mark.parametrize(
    "term", [SDAR(), SkillSD(), OPSD(), OPSD(form="sampled"), SDPO(), SDPO(form="sampled")], ids=lambda t: str(t)[:20]
)
def test_no_gradient_reaches_the_teacher(term):
    theirs = logits(18).requires_grad_()
    values = logits(19).requires_grad_()
    loss_of(term, branch(values, k=3), branch(theirs, k=3)).sum().backward()
    assert theirs.grad is None or not theirs.grad.any()
    assert values.grad.any()
