"""The update: chunking, order and padding change nothing, weights of one are GRPO, and TRL agrees where it can."""

from __future__ import annotations

import dataclasses
import random

import pytest
import torch

from taspo_trl.analyzer.extractive import ExtractiveAnalyzer
from taspo_trl.environments import ResetResult, StepResult, TextEnvironment
from taspo_trl.guidance.base import Construction
from taspo_trl.loss.batches import EMPTY_ROW
from tests import tiny
from tests.builders import guided


WORDS = ["go to fridge 1", "look", "open cabinet 1", "take mug 1 from table 1", "inventory", "go to sink 1"]


class Ragged(TextEnvironment):
    """Episodes of 1 to 5 turns; the odd members of a group succeed."""

    max_turns = 8

    def reset(self, *, seed, task, **row):
        self.turn = 0
        return ResetResult("Now: You see mug 1.", {"task": "Task: Put a mug", "admissible_actions": WORDS[:3]})

    def step(self, action):
        self.turn += 1
        done = action == "inventory" or action == "look"
        return StepResult(
            "You see " + ", ".join(["mug 1", "plate 1", "fork 1"][: self.turn % 3 + 1]) + ".",
            0.0,
            done,
            False,
            {"valid": True, "success": action == "inventory", "admissible_actions": WORDS[:2]},
        )


def ragged_reply(uid: str, turn: int) -> str:
    rng = random.Random(f"{uid}-{turn}")
    member = int(uid.rsplit("k", 1)[1])
    if turn >= member + 1:
        return "<action>inventory</action>" if member % 2 else "<action>look</action>"
    return f"<action>{rng.choice([w for w in WORDS if w not in ('inventory', 'look')])}</action>"


def ragged_rows(size: int = 6):
    from datasets import Dataset

    return Dataset.from_dict({"task": [f"t{k}" for k in range(size)]})


def gradient(tmp_path, *, edit=None, **values):
    """The gradient of one update, from an SGD step of size 1 in float64."""
    made = tiny.trainer(
        tmp_path,
        policy=tiny.ScriptedPolicy(ragged_reply),
        model=tiny.model(dtype=torch.float64),
        train_dataset=ragged_rows(),
        environment_factory=Ragged,
        **{"optim": "sgd", "learning_rate": 1.0, "shuffle_dataset": False, **values},
    )
    if edit is not None:
        edit(made)
    before = tiny.parameters(made)
    made.train()
    after = tiny.parameters(made)
    made.close()
    return {name: before[name] - after[name] for name in before}, made


def assert_equal(one, other, tolerance=1e-9):
    worst = max((one[name] - other[name]).abs().max().item() for name in one)
    size = max(value.abs().max().item() for value in one.values())
    assert size > 1e-4, "the gradient is zero, so the comparison shows nothing"
    assert worst <= tolerance * max(1.0, size), f"gradients differ by {worst} (size {size})"


def test_gradient_does_not_depend_on_the_micro_batch_budget(tmp_path):
    whole, _ = gradient(tmp_path, micro_batch_tokens=100_000)
    single, made = gradient(tmp_path, micro_batch_tokens=1)
    assert len(made._buffer[0]) > 10  # one row for each micro-batch
    assert_equal(whole, single)


def test_gradient_does_not_depend_on_the_accumulation(tmp_path):
    one_step, _ = gradient(tmp_path, per_device_train_batch_size=8, gradient_accumulation_steps=1)
    four_steps, made = gradient(tmp_path, per_device_train_batch_size=2, gradient_accumulation_steps=4)
    assert made._step == 4
    assert_equal(one_step, four_steps)


def test_policy_loss_is_logged_for_a_whole_optimizer_step(tmp_path):
    # At the first step of a batch all ratios are 1 and the loss is 0; without KL and entropy bonus it is the loss.
    values = {"gradient_accumulation_steps": 4, "num_iterations": 2, "max_steps": 2, "learning_rate": 0.1}
    _, made = gradient(tmp_path, per_device_train_batch_size=2, **values)
    entry = made.state.log_history[1]
    assert abs(entry["loss"]) > 1e-4
    assert entry["policy_loss"] == pytest.approx(entry["loss"], rel=1e-4)


def test_two_rollout_batches_in_one_step_are_averaged(tmp_path):
    # 2 micro-steps, each a rollout batch of 8 episodes of its own: the mean of the two batches' losses.
    both, made = gradient(
        tmp_path, per_device_train_batch_size=8, steps_per_generation=1, gradient_accumulation_steps=2
    )
    assert made._step == 2
    first, _ = gradient(tmp_path, per_device_train_batch_size=8)

    def skip_first_batch(made):
        made.train_dataset = made.train_dataset.select(range(2, 6))
        maker = made.experience_maker
        original = maker.make
        maker.make = lambda rows, **keywords: original(rows, **{**keywords, "rollout": keywords["rollout"] + 1})

    second, _ = gradient(tmp_path, per_device_train_batch_size=8, edit=skip_first_batch)
    assert_equal(both, {name: (first[name] + second[name]) / 2 for name in first})


def test_gradient_does_not_depend_on_row_order_or_padding_rows(tmp_path):
    plain, _ = gradient(tmp_path, micro_batch_tokens=200)

    def shuffle_and_pad(made):
        maker = made.experience_maker
        maker.settings = dataclasses.replace(maker.settings, scores_in_update=False)  # the update would miss its plan
        original = maker.make

        def make(rows, **keywords):
            experience = original(rows, **keywords)
            micro_batches = [[list(batch) for batch in micro] for micro in experience.micro_batches]
            for micro in micro_batches:
                random.Random(1).shuffle(micro)
                for batch in micro:
                    random.Random(2).shuffle(batch)
                micro.insert(1, [EMPTY_ROW])
                micro.append([EMPTY_ROW])
            return dataclasses.replace(experience, micro_batches=micro_batches)

        maker.make = make

    shuffled, _ = gradient(tmp_path, micro_batch_tokens=200, edit=shuffle_and_pad)
    assert_equal(plain, shuffled)


def test_conversation_rows_give_the_gradient_of_their_separate_turns(tmp_path, monkeypatch):
    merged, made = gradient(tmp_path, context="conversation", guidance="none")
    rows = [row for batch in made._buffer[0] for row in batch]
    assert len(rows) == 8  # one row for each episode
    import taspo_trl.loss.plan

    monkeypatch.setattr(taspo_trl.loss.plan, "build_rows", lambda t: _separate(t))
    separate, made = gradient(tmp_path, context="conversation", guidance="none")
    assert len([row for batch in made._buffer[0] for row in batch]) > 8
    assert_equal(merged, separate)


def _separate(trajectory):
    from taspo_trl.rows import build_rows

    return build_rows(trajectory, merge=False)


def test_several_steps_per_rollout_sum_to_the_whole(tmp_path):
    """Each step's gradient is an unbiased estimate: weighed with n_k / N, the steps' gradients add up to E8's."""
    whole, _ = gradient(tmp_path / "whole", per_device_train_batch_size=8)
    split = tiny.trainer(
        tmp_path / "split",
        policy=tiny.ScriptedPolicy(ragged_reply),
        model=tiny.model(dtype=torch.float64),
        train_dataset=ragged_rows(),
        environment_factory=Ragged,
        shuffle_dataset=False,
        per_device_train_batch_size=1,
        gradient_accumulation_steps=1,
        steps_per_generation=8,
    )
    split.current_gradient_accumulation_steps = 1
    steps = split._new_rollout([split.train_dataset[0]] * 4 + [split.train_dataset[1]] * 4)
    split.model.train()
    names, parameters = zip(*split.model.named_parameters(), strict=True)
    gradients = []
    for micro_batches in steps:
        losses = [split.compute_loss(split.model, split.experience_maker.passes.collate(one)) for one in micro_batches]
        gradients.append(dict(zip(names, torch.autograd.grad(sum(losses), parameters), strict=True)))
    counts = [sum(len(batch) for batch in micro_batches) for micro_batches in steps]
    assert len(counts) == 8 and len(set(counts)) > 1, "equal steps would need no weighing"
    shares = [count / sum(counts) for count in counts]
    summed = {name: sum(s * one[name] for s, one in zip(shares, gradients, strict=True)) for name in names}
    assert_equal(whole, summed, tolerance=1e-7)  # the model norms in float32
    for one in gradients:
        assert any(not torch.allclose(one[name], whole[name], rtol=0.1) for name in names)


@pytest.mark.parametrize("beta", [0.0, 0.05])
def test_analyzer_off_equals_weights_of_one_bit_for_bit(tmp_path, beta):
    """Two rollout batches with two optimizer steps each: the analyzer must not leave a trace in the parameters."""

    def run(name, **values):
        made = tiny.trainer(
            tmp_path / name,
            policy=tiny.ScriptedPolicy(ragged_reply),
            model=tiny.model(),
            train_dataset=ragged_rows(),
            environment_factory=Ragged,
            per_device_train_batch_size=4,
            gradient_accumulation_steps=1,
            steps_per_generation=2,
            max_steps=4,
            beta=beta,
            **values,
        )
        made.train()
        coverage = [entry["guidance/coverage"] for entry in made.state.log_history if "guidance/coverage" in entry]
        return tiny.parameters(made), coverage

    off, no_coverage = run("off", guidance="none")
    ones, coverage = run("ones", guidance="aligned", analyzer=ExtractiveAnalyzer(), weight_range=0.0)
    moved, _ = run("moved", guidance="aligned", analyzer=ExtractiveAnalyzer())
    assert max(coverage) > 0 and no_coverage == []
    assert all(torch.equal(off[name], ones[name]) for name in off)
    assert any(not torch.equal(off[name], moved[name]) for name in off), "guidance has no effect at all"


class OneTurn(TextEnvironment):
    """One turn; `inventory` succeeds."""

    def reset(self, *, seed, task, **row):
        return ResetResult("Now: You see mug 1.", {"task": f"Task: {task}", "admissible_actions": WORDS})

    def step(self, action):
        return StepResult("", 0.0, True, False, {"success": action == "inventory"})


def test_loss_and_gradient_equal_trl_where_the_two_coincide(tmp_path):
    """One-turn episodes, no entropy bonus, one row for each episode: TRL's own `_compute_loss` on the same rows."""
    from trl import GRPOTrainer
    from trl.trainer.utils import pad

    texts = ["inventory", "look", "open cabinet 1", "take mug 1 from table 1"]
    made = tiny.trainer(
        tmp_path,
        policy=tiny.ScriptedPolicy(lambda uid, turn: f"<action>{texts[int(uid[-1])]}</action>"),
        train_dataset=ragged_rows(),
        environment_factory=OneTurn,
        guidance="none",
        beta=0.1,
        num_iterations=2,  # so that old log-probabilities are used
    )
    made.current_gradient_accumulation_steps = 1
    generator = torch.Generator().manual_seed(0)
    rows = [made.train_dataset[k] for k in (0, 1) for _ in range(4)]
    buffer = made._new_rollout(rows)
    batch = [row for one in buffer[0] for row in one]
    assert len(batch) == 8
    # The policy moved since it acted: ratios differ from 1 and some are clipped.
    with torch.no_grad():
        for parameter in made.model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.05)
    made.model.train()
    made._loss_sums = {}
    ours = made.compute_loss(made.model, made.experience_maker.passes.collate(batch))
    ours_gradient = torch.autograd.grad(ours, list(made.model.parameters()))

    starts = [row.positions[0] for row in batch]
    prompts = [torch.tensor(row.ids[:start]) for row, start in zip(batch, starts, strict=True)]
    replies = [torch.tensor(row.ids[start:]) for row, start in zip(batch, starts, strict=True)]
    inputs = {
        "prompt_ids": pad(prompts, made._tokenizer.pad_token_id, "left"),
        "prompt_mask": pad([torch.ones_like(one) for one in prompts], 0, "left"),
        "completion_ids": pad(replies, made._tokenizer.pad_token_id, "right"),
        "completion_mask": pad([torch.ones_like(one) for one in replies], 0, "right"),
        "advantages": torch.tensor([row.advantages[0] for row in batch]),
        "old_per_token_logps": pad([torch.tensor(row.old_logps) for row in batch], 0.0, "right"),
        "ref_per_token_logps": pad([torch.tensor(row.ref_logps) for row in batch], 0.0, "right"),
    }
    theirs = GRPOTrainer._compute_loss(made, made.model, inputs)
    theirs_gradient = torch.autograd.grad(theirs, list(made.model.parameters()))
    assert ours.item() == pytest.approx(theirs.item(), rel=1e-5, abs=1e-7)
    size = max(one.abs().max().item() for one in theirs_gradient)
    for one, other in zip(ours_gradient, theirs_gradient, strict=True):
        assert torch.allclose(one, other, rtol=1e-4, atol=1e-6 * max(1.0, size))
    clipped = made._metrics["train"]["clip_ratio/region_mean"]
    assert clipped[-1] > 0, "no ratio was clipped, so the clip was not compared"
    shares = torch.cat(made._clip_shares)
    assert shares[:, 0].min().item() == pytest.approx(made._metrics["train"]["clip_ratio/low_min"][-1])
    assert shares[:, 1].max().item() == pytest.approx(made._metrics["train"]["clip_ratio/high_max"][-1])


@pytest.mark.parametrize("values", [{}, {"beta": 0.1}, {"entropy_coef": 0.1}])
def test_update_metrics_have_trl_s_names_where_they_cover_trl_s_set(tmp_path, values):
    _, made = gradient(tmp_path, num_iterations=2, max_steps=2, **values)
    log = made.state.log_history
    first, second = ({name for name in entry if "entropy" in name or "clip_ratio" in name} for entry in log[:2])
    clips = {f"clip_ratio/{name}" for name in ("low_mean", "low_min", "high_mean", "high_max", "region_mean")}
    expected = {"entropy", *clips} if values else {f"moving/{name}" for name in ("entropy", *clips)}
    assert first == second == expected
    prefix = "" if values else "moving/"
    assert log[1][f"{prefix}clip_ratio/high_max"] >= log[1][f"{prefix}clip_ratio/high_mean"] > 0


def test_observation_and_template_tokens_do_not_enter_the_loss(tmp_path):
    """MSK-1: noise on the logits of unsampled tokens changes nothing; attention still covers them."""
    made = tiny.trainer(
        tmp_path,
        policy=tiny.ScriptedPolicy(ragged_reply),
        model=tiny.model(dtype=torch.float64),
        train_dataset=ragged_rows(),
        environment_factory=Ragged,
        context="conversation",
        guidance="none",
    )
    made.current_gradient_accumulation_steps = 1
    buffer = made._new_rollout([made.train_dataset[0]] * 4 + [made.train_dataset[1]] * 4)
    passes = made.experience_maker.passes
    row = max((row for batch in buffer[0] for row in batch), key=lambda row: len(row.ids))
    made._loss_sums = {}
    made.model.train()
    loss = made.compute_loss(made.model, passes.collate([row]))
    gradient = torch.autograd.grad(loss, made.model.model.layers[0].self_attn.q_proj.weight)[0]

    sampled = torch.zeros(len(row.ids), dtype=torch.bool)
    sampled[[p - 1 for p in row.positions]] = True

    def add_noise(module, args, output):
        output.last_hidden_state = output.last_hidden_state + torch.where(
            sampled.view(1, -1, 1), 0.0, torch.randn_like(output.last_hidden_state)
        )
        return output

    handle = made.model.model.register_forward_hook(add_noise)
    noisy = made.compute_loss(made.model, passes.collate([row]))
    noisy_gradient = torch.autograd.grad(noisy, made.model.model.layers[0].self_attn.q_proj.weight)[0]
    handle.remove()
    assert noisy.item() == pytest.approx(loss.item(), abs=1e-12)
    assert torch.allclose(gradient, noisy_gradient, atol=1e-12)

    # Attention covers the observations: another one changes the log-probabilities of what was sampled after it.
    assert row.positions[0] > 2
    changed = dataclasses.replace(row, ids=(*row.ids[:2], row.ids[2] + 1, *row.ids[3:]))
    with torch.no_grad():
        (plain,), (other,) = (passes._old_logps(0, passes.collate([one]), [one], None) for one in (row, changed))
    assert plain != pytest.approx(other, abs=1e-9)


def test_rows_without_advantage_cost_no_forward(tmp_path):
    made = tiny.trainer(tmp_path, policy=tiny.ScriptedPolicy(lambda uid, turn: "<action>look</action>"), max_turns=3)
    made.current_gradient_accumulation_steps = 1
    buffer = made._new_rollout([made.train_dataset[0]] * 4 + [made.train_dataset[1]] * 4)
    assert buffer == [[[EMPTY_ROW]]]  # all failed alike: one zero row keeps the step going
    with_kl = tiny.trainer(
        tmp_path, policy=tiny.ScriptedPolicy(lambda uid, turn: "<action>look</action>"), max_turns=3, beta=0.1
    )
    with_kl.current_gradient_accumulation_steps = 1
    buffer = with_kl._new_rollout([made.train_dataset[0]] * 4 + [made.train_dataset[1]] * 4)
    assert sum(len(batch) for batch in buffer[0]) == 24


def test_zero_rows_are_summed_under_the_same_names_as_others(tmp_path):
    """Processes reduce their sums position by position, also where one has nothing but a zero row."""
    made = tiny.trainer(tmp_path, policy=tiny.ScriptedPolicy(ragged_reply), beta=0.1)
    made.current_gradient_accumulation_steps = 1
    buffer = made._new_rollout([made.train_dataset[0]] * 4 + [made.train_dataset[1]] * 4)
    sums = []
    for batch in (buffer[0][0], [EMPTY_ROW]):
        made._loss_sums = {}
        loss = made.compute_loss(made.model, made.experience_maker.passes.collate(batch))
        sums.append(made._loss_sums)
    assert list(sums[0]) == list(sums[1]) and "kl" in sums[1]
    assert loss.item() == 0.0 and all(value == 0.0 for value in sums[1].values())


@pytest.mark.parametrize(
    ("values", "is_off_policy"),
    [
        ({}, False),
        ({"gradient_accumulation_steps": 4, "steps_per_generation": 2}, False),
        ({"gradient_accumulation_steps": 4, "steps_per_generation": 2, "num_iterations": 2}, False),
        ({"steps_per_generation": 2}, True),
        ({"num_iterations": 2}, True),
        # Three passes of one micro-step each: the second batch begins in the first optimizer step, ends in the second.
        ({"gradient_accumulation_steps": 4, "steps_per_generation": 1, "num_iterations": 3}, True),
    ],
)
def test_old_log_probabilities_are_kept_for_batches_that_outlive_an_optimizer_step(tmp_path, values, is_off_policy):
    made = tiny.trainer(tmp_path, policy=tiny.ScriptedPolicy(ragged_reply), **values)
    made.current_gradient_accumulation_steps = values.get("gradient_accumulation_steps", 1)
    assert made._update_layout().is_off_policy is is_off_policy


def test_guidance_leaves_no_token_in_rows_prompts_or_template(tmp_path):
    class Marked(Construction):
        """Guidance made of tokens that no prompt holds."""

        name, needs_success = "marked", True
        block = tuple(tiny.tokenizer().convert_tokens_to_ids(["[Privileged Guidance]", "hot", "hot", "lit"]))

        def build(self, context, group, target):
            return guided(target.uid, self.block, len(target.turns), "marked", self.name)

    policy = tiny.ScriptedPolicy(ragged_reply)
    made = tiny.trainer(
        tmp_path, policy=policy, train_dataset=ragged_rows(), environment_factory=Ragged, eval_dataset=ragged_rows(2)
    )
    template = made.processing_class.chat_template
    made.experience_maker.guidance._construction = Marked()
    made.train()
    scored = [entry for entry in made.state.log_history if entry.get("guidance/coverage", 0) > 0]
    assert scored, "no trajectory was guided"
    made.evaluate()
    forbidden = set(Marked.block[:2])
    for micro in made._buffer:
        for batch in micro:
            assert all(not forbidden & set(row.ids) for row in batch)
    assert all(not forbidden & set(request.prompt_ids) for request in policy.requests)
    assert made.processing_class.chat_template == template
