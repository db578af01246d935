"""What the doctor sees of packages, devices and models."""

from __future__ import annotations

import configparser
from pathlib import Path

import pytest

from taspo_trl.cli.doctor import network
from taspo_trl.cli.doctor.devices import GPU, Devices, findings_of, gigabytes
from taspo_trl.cli.doctor.findings import Status
from taspo_trl.cli.doctor.model_shape import PUBLISHED, meta_model, published_config, shape_of
from taspo_trl.cli.doctor.packages import (
    DISABLED,
    extra_findings,
    extras,
    missing_of,
    requirement_lines,
    version_findings,
)
from taspo_trl.cli.doctor.recipe import header_processes, processes_of
from taspo_trl.cli.doctor.report import finding_lines
from taspo_trl.errors import ConfigurationError
from tests import tiny


ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("Qwen/Qwen2.5-1.5B-Instruct", 1_543_714_304),
        ("Qwen/Qwen2.5-3B-Instruct", 3_085_938_688),
        ("Qwen/Qwen2.5-7B-Instruct", 7_615_616_512),
        ("Qwen/Qwen3-1.7B", 1_720_574_976),
    ],
)
def test_published_sizes_give_the_published_number_of_parameters(name, parameters):
    assert shape_of(meta_model(published_config(name))).parameters == parameters
    assert set(PUBLISHED) >= {name}


def test_shape_counts_a_real_model():
    made = tiny.model()
    shape = shape_of(made)
    assert shape.parameters == sum(p.numel() for p in made.parameters())
    layers = made.get_submodule("model.layers")
    norm = made.get_submodule("model.norm")
    assert shape.layer_parameters == sum(p.numel() for part in (layers, norm) for p in part.parameters())


def test_every_extra_has_a_text_of_what_it_enables():
    parsed = configparser.ConfigParser()
    parsed.read(ROOT / "setup.cfg")
    assert set(DISABLED) >= set(parsed["options.extras_require"])
    assert {"alfworld", "vllm", "dev"} <= set(extras(requirement_lines("taspo_trl"))) <= set(DISABLED)


def test_missing_extras_are_named_with_what_they_disable():
    lines = ["trl>=1.16", 'vllm>=0.22; extra == "vllm"', 'aiohttp>=3; extra == "vllm"']
    versions = {"taspo_trl": "0.1", "trl": "1.16.0", "vllm": "0.12.0"}.get
    assert missing_of("vllm", versions, lambda _: lines) == [
        "vllm 0.12.0 is outside the supported range >=0.22",
        "aiohttp is not installed",
    ]
    (found,) = extra_findings(versions, lambda _: lines)
    assert found.status is Status.ABSENT and DISABLED["vllm"] in found.detail
    assert found.remedy == 'pip install -e ".[vllm]"'
    assert next(line for line in finding_lines([found]) if "vllm" in line).startswith("  -  ")


def test_wrong_version_of_a_needed_package_is_a_failure():
    versions = {"taspo_trl": "0.1", "trl": "1.15.0"}.get
    found = {one.name: one for one in version_findings(versions, lambda _: ["trl>=1.16,<1.17"])}
    assert found["trl"].status is Status.FAILURE and "1.15.0" in found["trl"].detail


def test_devices_are_told_with_memory_and_precision():
    gpus = (GPU("H100", 80 * 2**30, True), GPU("T4", 15 * 2**30, False))
    found = findings_of(Devices(gpus=gpus, cores=4, memory=2**35))
    assert [one.name for one in found] == ["cuda:0", "cuda:1", "cpu"]
    assert "80.0 GiB, bf16" in found[0].detail and "fp16" in found[1].detail
    assert findings_of(Devices())[0].status is Status.WARNING
    assert gigabytes(2**30) == "1.0 GiB" and gigabytes(2**20) == "1.0 MiB"


def test_accelerate_files_give_processes_and_sharding():
    folder = ROOT / "examples" / "accelerate"
    names = {"ddp": "ddp", "fsdp2": "fsdp2", "deepspeed_zero2": "zero2", "deepspeed_zero3": "zero3"}
    for name, sharding in names.items():
        found = processes_of(None, folder / f"{name}.yaml")
        assert (found.count, found.sharding) == (8, sharding)
    assert processes_of(2, folder / "fsdp2.yaml").count == 2
    assert processes_of(4, None).sharding == "ddp"
    with pytest.raises(ConfigurationError, match="--processes"):
        processes_of(0, None)


@pytest.mark.parametrize(
    ("header", "processes"),
    [
        ("# Sized for 8 GPUs: 128 episodes.\n", 8),
        ("#   accelerate launch --num_processes 4 -m taspo_trl.cli train\n\n", 4),
        ("# One process.\nseed: 3\n# 16 GPUs further down\n", 1),
        ("", 1),
    ],
)
def test_the_first_comments_of_a_recipe_say_for_how_many_processes_it_is(tmp_path, header, processes):
    path = tmp_path / "recipe.yaml"
    path.write_text(header + "output_dir: x\n")
    assert header_processes([f"--config={path}"]) == header_processes(["--config", str(path)]) == processes
    assert header_processes([]) == header_processes(["--config", str(tmp_path / "none")]) == 1


def test_doctor_leaves_the_hub_reachable(monkeypatch):
    import huggingface_hub.constants as hub

    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    before = hub.HF_HUB_OFFLINE
    with network.offline():
        assert hub.HF_HUB_OFFLINE is True
    assert before == hub.HF_HUB_OFFLINE
