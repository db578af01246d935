"""The doctor's arithmetic against numbers worked by hand."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from taspo_trl import TASPOConfig
from taspo_trl.cli.doctor.devices import GPU, Devices
from taspo_trl.cli.doctor.estimate import is_padding_free, plan_of
from taspo_trl.cli.doctor.findings import Finding, Status
from taspo_trl.cli.doctor.memory import (
    Adapters,
    MemoryEstimate,
    ModelShape,
    Precision,
    Setup,
    activation_bytes,
    cache_bytes,
    estimate_memory,
    weight_bytes,
)
from taspo_trl.cli.doctor.report import memory_finding
from taspo_trl.cli.doctor.workload import Plan, Workload, count_batch, from_metrics


# 4 tasks x 2, 3 turns each, prompts of 100 with 5 tokens behind the splice point, replies of 20, blocks of 30.
WORK = Workload(turns=3, prompt_tokens=100, reply_tokens=20, suffix_tokens=5, guidance_tokens=30)
PLAN = Plan(episodes=8, group_size=2, micro_batch_tokens=480)


def test_window_batch_counts_by_hand():
    one = count_batch(WORK, PLAN)
    assert (one.turns, one.sampled_tokens, one.prompt_tokens) == (24, 480, 2400)
    assert (one.rows, one.row_tokens, one.trained_rows) == (24, 120, 24)
    assert (one.trained_tokens, one.loss_tokens) == (24 * 120, 24 * 20)
    # s = 95: the plain row of 120, then 25 and the block of 30.
    assert one.scored_tokens == 24 * (120 + 25 + 30)
    assert (one.old_logp_tokens, one.ref_logp_tokens, one.analyzer_calls) == (0, 0, 0)
    assert one.update_forwards == 6  # 4 rows of 120 in a micro-batch of 480
    assert one.scoring_forwards == 2 * 8  # 3 rows of 150


def test_conversation_batch_counts_by_hand():
    # Prompts grow from 40 to 160, mean 100; the row is the last prompt and its reply.
    work = Workload(turns=3, prompt_tokens=100, reply_tokens=20, first_prompt_tokens=40, guidance_tokens=30)
    one = count_batch(work, Plan(episodes=8, group_size=2, is_conversation=True))
    assert (one.rows, one.row_tokens, one.trained_tokens) == (8, 180, 8 * 180)
    # s = 35: the plain row of 180, then 145 and the block.
    assert one.scored_tokens == 8 * (180 + 145 + 30)


@pytest.mark.parametrize(
    ("change", "name", "value"),
    [
        ({"needs_old_logps": True}, "old_logp_tokens", 24 * 120),
        ({"needs_ref_logps": True}, "ref_logp_tokens", 24 * 120),
        ({"iterations": 2}, "trained_tokens", 2 * 24 * 120),
        ({"guidance": "none"}, "scored_tokens", 0),
        # One extraction and two alignments for each of 4 groups.
        ({"asks_analyzer": True}, "analyzer_calls", 12),
        ({"asks_analyzer": True, "guidance": "random_success"}, "analyzer_calls", 0),
        ({"processes": 2}, "update_forwards", 3),
        ({"branches": 0}, "scored_tokens", 0),
        ({"branches": 2}, "scored_tokens", 24 * (120 + 2 * 55)),
        ({"branches": 2}, "scoring_forwards", 3 * 8),
        # The plain rows are those of pi_old.
        ({"needs_old_logps": True}, "scored_tokens", 24 * 55),
        ({"needs_old_logps": True}, "scoring_forwards", 8),
        # A teacher of its own: whole rows of 120, and of 150 with the block.
        ({"has_teacher": True}, "scored_tokens", 24 * (120 + 150)),
        ({"has_teacher": True}, "scoring_forwards", 2 * 8),
        # 100 and 130 tokens of prefixes, 10 actions of 20 tokens behind each.
        ({"alternatives": 10, "samples": 4}, "alternative_tokens", 24 * (100 + 130 + 2 * 10 * 20)),
        ({"alternatives": 10, "samples": 4}, "alternative_replies", 24 * 4),
        # Of each of 8 episodes 2 continuations with two turns left, and 2 with one.
        ({"continuations": 2}, "continued_replies", 8 * 2 * (2 + 1)),
    ],
)
def test_what_the_recipe_changes(change, name, value):
    assert getattr(count_batch(WORK, Plan(**{**vars(PLAN), **change})), name) == value


def test_a_method_s_needs_reach_the_plan(tmp_path):
    def plan(**values):
        args = TASPOConfig(str(tmp_path), use_cpu=True, bf16=False, **values)
        return plan_of(SimpleNamespace(training=args, processes=SimpleNamespace(count=1)), False)

    taspo = plan()
    assert (taspo.branches, taspo.has_teacher, taspo.alternatives, taspo.continuations) == (1, False, 0, 0)
    assert plan(method="turnsight").branches == 3 and plan(method="turnsight").has_teacher
    contrast = plan(method_options={"support": "contrast", "alternatives": 12})
    assert (contrast.alternatives, contrast.samples) == (12, 4)
    assert plan(method="factor", method_options={"value": "continuations"}).continuations == 4
    assert plan(method="gigpo").branches == 0
    sdar = plan(method="sdar")
    assert sdar.has_teacher and sdar.scores_all and sdar.all_contribute


def test_groups_without_contrast_cost_no_update_unless_every_row_counts():
    half = Workload(**{**vars(WORK), "mixed_groups": 0.5})
    assert count_batch(half, PLAN).trained_rows == 12
    everything = count_batch(half, Plan(**{**vars(PLAN), "all_contribute": True}))
    assert everything.trained_rows == 24 and everything.scored_rows == 12


ROOT = Path(__file__).parents[3]

# H = 4, I = 8, two layers, heads of size 2: two for queries, one for keys.
SHAPE = ModelShape(
    parameters=1000, linear_parameters=640, linear_rows=50, layer_parameters=700, vocab_size=75, hidden_size=4,
    intermediate_size=8, num_layers=2, num_heads=2, num_key_heads=1, head_size=2, tensors=10,
)  # fmt: skip


def test_weights_and_cache_by_hand():
    assert weight_bytes(SHAPE, Precision(4, 4)) == 4000
    assert weight_bytes(SHAPE, Precision(2, 2)) == 2000
    # 360 in 16 bit, 640 at half a byte, 10 blocks of 64 with 4 bytes each.
    assert weight_bytes(SHAPE, Precision(2, 2, bits=4)) == 720 + 320 + 40
    assert weight_bytes(SHAPE, Precision(2, 2, bits=8)) == 720 + 640 + 200
    assert cache_bytes(SHAPE, Precision(2, 2)) == 2 * 2 * 2 * 2  # keys and values, layers, width, bytes


def test_a_teacher_s_copy_has_the_size_of_what_is_trained():
    whole = Setup(Precision(2, 2), micro_batch_tokens=0, has_teacher_copy=True)
    assert estimate_memory(SHAPE, whole).resident["teacher"] == 2 * SHAPE.parameters
    adapted = Setup(Precision(2, 2), adapters=Adapters(100, 4, weight=4), has_teacher_copy=True, micro_batch_tokens=0)
    assert estimate_memory(SHAPE, adapted).resident["teacher"] == 400
    assert "teacher" not in estimate_memory(SHAPE, Setup(Precision(2, 2), micro_batch_tokens=0)).resident


def test_full_training_keeps_weights_gradients_and_two_moments():
    found = estimate_memory(SHAPE, Setup(Precision(2, 2), micro_batch_tokens=0, has_reference=True))
    assert found.resident["weights"] == found.resident["reference"] == 2000
    assert found.resident["optimizer"] == 2 * 2000 + 4 * 10
    assert found.stages["update"]["gradients"] == 2000
    assert found.peak == max(found.totals.values()) >= 2000 + 2000 + 4040 + 2000


def test_adapters_need_neither_reference_nor_optimizer_for_the_base():
    setup = Setup(Precision(2, 2), adapters=Adapters(100, 4, weight=4), has_reference=True, micro_batch_tokens=0)
    found = estimate_memory(SHAPE, setup)
    assert "reference" not in found.resident
    assert found.resident["adapters"] == 400 and found.resident["optimizer"] == 2 * 400 + 4 * 4
    assert found.stages["update"]["gradients"] == 400


@pytest.mark.parametrize(
    ("sharding", "weights", "gradients", "optimizer"),
    [
        ("ddp", 4000, 4000, 8040),
        ("zero2", 4000, 1000, 2010),
        ("zero3", 1000, 1000, 2010),
        ("fsdp2", 1000, 1000, 2010),
    ],
)
def test_what_four_processes_share(sharding, weights, gradients, optimizer):
    setup = Setup(Precision(4, 4), micro_batch_tokens=0, processes=4, sharding=sharding)
    found = estimate_memory(SHAPE, setup)
    assert found.resident["weights"] == weights and found.resident["optimizer"] == optimizer
    assert found.stages["update"]["gradients"] == gradients


def test_rows_without_padding_are_counted_as_they_are_computed():
    def layer(attention, padding_free):
        setup = Setup(
            Precision(4, 4), row_tokens=10, micro_batch_tokens=40, attention=attention, padding_free=padding_free
        )
        return activation_bytes(SHAPE, setup)

    assert layer("eager", True) - layer("eager", False) == SHAPE.num_heads * 30 * 4
    assert layer("sdpa", True) - layer("sdpa", False) == 30 * 4
    assert layer("flash_attention_2", True) == layer("flash_attention_2", False) < layer("sdpa", False)


@pytest.mark.parametrize(
    ("asked", "attention", "loaded", "expected"),
    [
        (None, None, None, False),
        (None, "flash_attention_2", None, True),
        (None, "flash_attention_2", {"attn_implementation": "sdpa"}, False),  # wins when the model is loaded
        (None, None, {"attn_implementation": "kernels-community/flash-attn3"}, True),
        (True, "eager", None, True),
        (False, "flash_attention_2", None, False),
    ],
)
def test_rows_are_padded_unless_the_recipe_says_otherwise_or_flash_attention_runs(asked, attention, loaded, expected):
    training = SimpleNamespace(padding_free=asked, model_init_kwargs=loaded)
    recipe = SimpleNamespace(training=training, model=SimpleNamespace(attn_implementation=attention))
    assert is_padding_free(recipe) is expected


def test_activations_by_hand():
    # Per token and layer in float32: norms 2 x (16 + 4 + 32), attention 4 x (8 + 4) + 8, repeated keys 4 x 4,
    # mask 4 x 10 for rows of ten, MLP 4 x 4 x 8.
    layer = 104 + 56 + 16 + 40 + 128
    plain = Setup(Precision(4, 4), micro_batch_tokens=10, row_tokens=10, is_checkpointed=False)
    assert estimate_memory(SHAPE, plain).stages["update"]["activations"] == 10 * 2 * layer
    saving = Setup(Precision(4, 4), micro_batch_tokens=10, row_tokens=10, is_checkpointed=True)
    assert estimate_memory(SHAPE, saving).stages["update"]["activations"] == 10 * (2 * 16 + layer)


def test_means_of_a_run_replace_the_limits():
    logged = {"turns/mean": 7.0, "prompts/mean_length": 50.0, "frac_reward_zero_std": 0.25}
    calls = {"calls": 10.0, "cached_share": 0.5, "tokens_prompt": 1000.0, "tokens_completion": 50.0}
    logged |= {f"analyzer/{name}": value for name, value in calls.items()}
    found = from_metrics(logged, WORK)
    assert (found.turns, found.prompt_tokens, found.reply_tokens, found.mixed_groups) == (7, 50, 20, 0.75)
    assert (found.analyzer_prompt_tokens, found.analyzer_reply_tokens) == (200, 10)  # of the 5 that were asked


def test_the_range_ends_with_what_is_held_beside_the_tensors():
    found = MemoryEstimate({"weights": 1000.0}, {"update": {"activations": 400.0}, "scoring": {"one layer": 100.0}})
    assert found.peak == 1400
    assert found.most("cpu") == 1400 + 200 + 2**28
    assert found.most("cuda") == 1400 + 60 + 2**30


def test_measured_trainings_lie_in_their_range():
    rows = json.loads((ROOT / "benchmarks" / "results" / "doctor.json").read_text())["memory"]
    assert len(rows) == 2
    for row in rows:
        for name in ("limits", "from_run"):
            low, high = row[f"estimate_{name}_mib"]
            assert low < row["measured_mib"] < high
        tensors, stages = row["tensors_mib"], row["stages_limits_mib"]
        assert 0.6 < tensors["scoring"] / stages["scoring"] < 1
        assert 0.85 < tensors["update"] / stages["update"] < 1


def test_gpu_too_small_is_a_warning():
    class Found:
        memory = estimate_memory(SHAPE, Setup(Precision(2, 2)))
        device = "cuda"

    small = Devices(gpus=(GPU("small", 1000, True),))
    found = memory_finding(Found(), small)
    assert isinstance(found, Finding) and found.status is Status.WARNING
    assert memory_finding(Found(), Devices(gpus=(GPU("large", 2**40, True),))) is None
