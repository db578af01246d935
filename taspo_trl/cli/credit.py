"""`taspo credit`: is the credit right? Methods measured against an oracle's plan or against continuations."""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import ConfigurationError
from ..training.model_folder import check_model_folder
from .models import load_policy
from .sources import environment_data, environment_factory, json_arguments


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="taspo credit",
        description="Play groups with a model, weigh their turns with one method or several, and compare the credit "
        "with what the turns were worth: by the environment's own plan, or by continuations with the same model. Or "
        "measure the credit that a finished run has recorded.",
    )
    made.add_argument("--model", help="model id, model folder, or LoRA adapter folder")
    made.add_argument("--records", help="a run's folder: measure its recorded credit instead, without a model")
    made.add_argument("--rollouts", type=int, default=10, help="--records: only its last ones (default: 10)")
    made.add_argument("--environment", default="household", help="built-in environment or package.module:Class")
    made.add_argument("--environment-kwargs", default=None, help="constructor arguments, JSON or YAML")
    made.add_argument("--dataset-kwargs", default=None, help="arguments of dataset(split), JSON or YAML")
    made.add_argument("--split", default="train", help="split to play (default: train)")
    made.add_argument("--skip", type=int, default=0, help="tasks passed over at its start (default: 0)")
    made.add_argument("--groups", type=int, default=32, help="tasks to play (default: 32)")
    made.add_argument("--generations", type=int, default=8, help="episodes of each task (default: 8)")
    made.add_argument("--methods", nargs="+", default=["taspo", "grpo"], help="methods (default: taspo grpo)")
    made.add_argument("--guidance", default="aligned", help="privileged context of taspo (default: aligned)")
    made.add_argument("--analyzer", help="LiteLLM's name of a model (default: 'embedded', no network)")
    made.add_argument(
        "--labels",
        nargs="+",
        choices=["progress", "values"],
        default=["progress"],
        help="what turns were worth: by the environment's own plan (default), by continuations, or both",
    )
    made.add_argument("--continuations", type=int, default=8, help="values: continuations of each state (default: 8)")
    made.add_argument("--label-turns", type=int, default=400, help="values: turns to label (default: 400)")
    made.add_argument("--reading", action="store_true", help="also success with plans in the prompt")
    made.add_argument("--temperature", type=float, default=1.0, help="sampling temperature (default: 1.0)")
    made.add_argument("--invalid-action-penalty", type=float, default=0.0, help="as in training (default: 0)")
    made.add_argument("--max-turns", type=int, default=None, help="turns of an episode (default: the environment's)")
    made.add_argument("--max-completion-length", type=int, default=512, help="tokens of one reply (default: 512)")
    made.add_argument("--context", choices=["window", "conversation"], help="default: the environment's")
    made.add_argument("--success-threshold", type=float, help="TRL classes: the reward that counts as success")
    made.add_argument("--micro-batch-tokens", type=int, default=16384, help="rows x longest row of a scoring forward")
    made.add_argument("--resamples", type=int, default=2000, help="of the bootstrap over groups (default: 2000)")
    made.add_argument("--seed", type=int, default=0, help="of play, continuations, bootstrap (default: 0)")
    made.add_argument("--dtype", default="auto", help="weights: auto, float32, bfloat16, ... (default: auto)")
    made.add_argument("--device", default=None, help="cpu, cuda, cuda:1, ... (default: a GPU if there is one)")
    made.add_argument(
        "-o", "--output", default="credit", help="folder for credit.json and credit.png; earlier ones are kept"
    )
    return made


def main(arguments: list[str]) -> int:
    options = parser().parse_args(arguments)
    if bool(options.model) == bool(options.records):
        raise ConfigurationError("Give `--model` (a model id or folder), or `--records` (the folder of a run).")
    factory = environment_factory(
        options.environment, json_arguments(options.environment_kwargs, "--environment-kwargs")
    )
    folder = Path(options.output)
    kept = _set_aside(folder)
    if options.records:
        report = _recorded(options, {None: factory})
    else:
        check_model_folder(options.model)
        report = _played(options, factory, folder)
    _write(folder, report)
    _print(report)
    if kept is not None:
        print(f"The report that stood here is kept as {kept}.")
    print(f"{folder / 'credit.json'}, {folder / 'credit.png'}")
    return 0


def _recorded(options: argparse.Namespace, factories: Mapping[str | None, Callable[[], Any]]) -> dict[str, Any]:
    from ..records import read_records
    from ..truth.assess import recorded_report

    path = Path(options.records)
    inside = path / "_trajectories"
    records = list(read_records(inside if inside.is_dir() else path))
    last = sorted({record.rollout for record in records})[-options.rollouts :]
    chosen = [record for record in records if record.rollout in last]
    report = recorded_report(chosen, factories, options.resamples)
    return {"records": path.name, "rollouts": last, **report}


def _played(options: argparse.Namespace, factory: Any, folder: Path) -> dict[str, Any]:
    from tqdm.auto import tqdm

    from ..analyzer import LiteLLMAnalyzer
    from ..analyzer.extractive import ExtractiveAnalyzer
    from ..config import TASPOConfig
    from ..environments.base import attribute
    from ..environments.workers import EnvironmentPool
    from ..generation import SamplingSettings
    from ..rollout.loop import RolloutSettings
    from ..rollout.others import sample_actions
    from ..rollout.rewards import RewardSettings
    from ..rollout.templates import ChatRenderer
    from ..seeds import derive_seed
    from ..truth.assess import assess, measured_needs, recipes_of
    from ..truth.sample import play_groups
    from ..truth.values import num_replies_expected, play_values, sampled_trajectories

    config = TASPOConfig(
        output_dir=options.output, guidance=options.guidance, use_cpu=True, bf16=False, report_to="none"
    )
    recipes = recipes_of(options.methods, config)
    measured_needs(recipes)  # says what cannot be measured before anything is played
    rows = _rows(options)
    policy = load_policy(options.model, options.device, options.dtype)
    rollout = RolloutSettings(
        context=options.context,
        max_turns=options.max_turns,
        max_completion_length=options.max_completion_length,
        model_window=policy.window,
        vocab_size=policy.vocab_size,
    )
    sampling = SamplingSettings(options.temperature)
    renderer = ChatRenderer(policy.tokenizer)
    pool = EnvironmentPool({None: factory}, success_threshold=options.success_threshold)
    analyzer = (
        LiteLLMAnalyzer(options.analyzer) if options.analyzer not in (None, "embedded") else ExtractiveAnalyzer()
    )
    playing: dict[str, Any] = {
        "engine": policy.engine,
        "pool": pool,
        "renderer": renderer,
        "rollout": rollout,
        "sampling": sampling,
    }
    try:
        traits = pool.traits[None]
        started = time.perf_counter()
        with tqdm(total=len(rows) * options.generations, desc="episodes", unit="episode", disable=None) as bar:
            groups = play_groups(
                rows,
                **playing,
                rewards=RewardSettings(traits.training_reward, invalid_action_penalty=options.invalid_action_penalty),
                num_generations=options.generations,
                seed=options.seed,
                on_episode_end=lambda trajectory: bar.update(),
            )
        seconds = time.perf_counter() - started
        trajectories = [t for group in groups for t in group.trajectories]
        values = None
        if "values" in options.labels:
            chosen = sampled_trajectories(trajectories, options.label_turns, options.seed)
            per_reply = seconds / max(1, sum(len(t.turns) for t in trajectories))
            expected = per_reply * num_replies_expected(chosen, options.continuations)
            print(
                f"Continuations: {sum(len(t.turns) for t in chosen)} turns, {options.continuations} from each state, "
                f"about {expected / 60:.1f} minutes at the speed of the episodes."
            )
            path = folder / "values.progress.jsonl"
            path.parent.mkdir(parents=True, exist_ok=True)
            with tqdm(desc="continued states", unit="state", disable=None) as bar:
                values = play_values(
                    chosen,
                    **playing,
                    num_continuations=options.continuations,
                    seed=options.seed,
                    progress_path=path,
                    on_states=lambda done, total: _show(bar, done, total),
                )
        skill = attribute(pool.probes[None], "generic_skill")

        def sample(turns: Sequence[Any], num_samples: int) -> Mapping[Any, Any]:
            policy.engine.begin(sampling, derive_seed("alternatives", options.seed))
            where: dict[str, Any] = {"pool": pool, "renderer": renderer, "settings": rollout}
            return sample_actions(turns, engine=policy.engine, num_samples=num_samples, **where)

        report, scored = assess(
            groups,
            recipes,
            model=policy.model,
            tokenizer=policy.tokenizer,
            analyzer=analyzer,
            factories={None: factory},
            values=values,
            with_progress="progress" in options.labels,
            num_resamples=options.resamples,
            skill_of=lambda t: skill(t.family),
            action_tags=traits.action_tags,
            temperature=options.temperature,
            max_tokens=options.micro_batch_tokens,
            pad_token_id=policy.pad_token_id,
            sample=sample,
        )
        report["seconds"] = {"play": round(seconds, 2), **report["seconds"]}
        facts = {name: getattr(options, name) for name in ("environment", "split", "skip", "guidance", "seed")}
        facts |= {"model": Path(options.model).name, "temperature": options.temperature}
        report = {**facts, **report}
        if options.reading:
            _write(folder, report)  # what follows takes as long again, and is not worth losing it for
            report["reading"] = _reading(options, groups, scored, rows, policy, playing, factory)
    finally:
        pool.close()
        analyzer.close()
    return report


def _rows(options: argparse.Namespace) -> list[dict[str, Any]]:
    data = environment_data(
        options.environment, options.split, json_arguments(options.dataset_kwargs, "--dataset-kwargs")
    )
    start = min(options.skip, len(data))
    rows = [data[k] for k in range(start, min(start + options.groups, len(data)))]
    if not rows:
        raise ConfigurationError(
            f"`--skip` ({options.skip}) leaves no task of {options.split!r}, which has {len(data)}."
        )
    return rows


def _show(bar: Any, done: int, total: int) -> None:
    bar.total = total
    bar.update(done - bar.n)


def _reading(
    options: argparse.Namespace,
    groups: Sequence[Any],
    scored: Any,
    rows: Sequence[Any],
    policy: Any,
    playing: Mapping[str, Any],
    factory: Any,
) -> dict[str, Any]:
    """Success with the oracle's plan, with guidance as made, with another task's, and with none."""
    from ..evaluation.statistics import wilson_rate
    from ..guidance.block import Composer
    from ..rollout.plans import PlanOracle
    from ..rollout.rewards import RewardSettings
    from ..truth.reading import GuidedEngine, blocks_as_made, of_another_task, plan_blocks, splice_by_tail
    from ..truth.sample import play_groups

    turns = [turn for group in groups for t in group.trajectories for turn in t.turns if turn.splice_index is not None]
    if not turns:
        raise ConfigurationError("`--reading` needs prompts that take a block; this chat template hides the place.")
    place = splice_by_tail(turns[0].prompt_ids, turns[0].splice_index)
    composer = Composer(policy.tokenizer, action_tags=playing["pool"].traits[None].action_tags)
    try:
        plans_of = PlanOracle({None: factory})
    except ConfigurationError:
        plans_of = None  # a world without plans: the arms of guidance as made remain
    firsts = {group.group_id: next((t for t in group.trajectories if t.is_usable), None) for group in groups}
    plans = {name: plans_of(t)[0] if plans_of and t is not None else None for name, t in firsts.items()}
    made = blocks_as_made(scored.guidance, {t.uid: group.group_id for group in groups for t in group.trajectories})
    texts = {group.group_id: group.task_text for group in groups}
    by_plan = plan_blocks(plans, composer)
    arms: dict[str, Mapping[str, tuple[int, ...]]] = {
        "none": {},
        "oracle plan": by_plan,
        "another task's plan": of_another_task(by_plan, texts),
        "as made": made,
        "as made, another task's": of_another_task(made, texts),
    }
    found = {}
    for name, blocks in arms.items():
        if name != "none" and not blocks:
            continue
        kept = [k for k, group in enumerate(groups) if name == "none" or group.group_id in blocks]
        uids = {
            f"credit-g{place_}-k{k}": blocks[groups[place_].group_id]
            for place_ in kept
            if name != "none"
            for k in range(options.generations)
        }
        # Other draws than those that the guidance was made from: a success may not be shown to itself.
        given = {**playing, "engine": GuidedEngine(playing["engine"], uids, place)}
        played = play_groups(
            rows,
            **given,
            rewards=RewardSettings(),
            num_generations=options.generations,
            seed=options.seed + 1,
        )
        rate = wilson_rate([t.success for k in kept for t in played[k].trajectories if t.is_usable])
        found[name] = {"tasks": len(kept), "success": [rate.value, rate.low, rate.high]}
    return found


def _set_aside(folder: Path) -> Path | None:
    """The name that an earlier report in the folder has from now on: its continuations were paid for."""
    if not (folder / "credit.json").exists():
        return None
    number = next(n for n in itertools.count(1) if not (folder / f"credit-{n}.json").exists())
    if (folder / "credit.png").exists():
        (folder / "credit.png").rename(folder / f"credit-{number}.png")
    return (folder / "credit.json").rename(folder / f"credit-{number}.json")


def _write(folder: Path, report: Mapping[str, Any]) -> None:
    from ..files import replacing, write_text
    from ..plots import credit_quality_figure
    from ..redaction import without_secrets

    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / "credit.json", json.dumps(without_secrets(report), indent=2, ensure_ascii=False) + "\n")
    with replacing(folder / "credit.png", binary=True) as file:
        credit_quality_figure(report).savefig(file, format="png")


def _print(report: Mapping[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(width=max(Console().width, 150))
    for kind, facts in report["labels"].items():
        table = Table(title=f"Credit against {kind}: {facts['turns']} labelled turns of {report['groups']} groups")
        for column in ("method", "AUC", "successes / failures", "rank correlation", "sign", "dose", "refused on top"):
            is_name = column == "method"
            table.add_column(column, justify="left" if is_name else "right", no_wrap=True)
        for name, method in report["methods"].items():
            found = method[kind]
            parts = " / ".join(_short(found[part]["auc"][0]) for part in ("successes", "failures"))
            whole = found["all"]
            table.add_row(
                name,
                _cell(whole["auc"]),
                parts,
                _cell(whole["rank_correlation"]),
                _short(whole["sign"][0]),
                _short(whole["dose"][0]),
                _on_top(method),
            )
        console.print(table)
        if facts.get("ceiling_rank_correlation") is None:
            console.print("Labels: two halves of the continuations do not agree at all. Play more of them.")
        elif facts["reliability"] < 1:
            console.print(
                f"Labels: reliability {facts['reliability']:.2f}, so that credit without a fault would have a rank "
                f"correlation of about {_short(facts['ceiling_rank_correlation'])}."
            )
    for name, rate in report.get("reading", {}).items():
        console.print(f"Success with guidance in the prompt, {name}: {_cell(rate['success'])} ({rate['tasks']} tasks)")


def _on_top(method: Mapping[str, Any]) -> str:
    """How often the top weight of a success lies on a refused action, beside the share of refused actions."""
    if method["top_weight_refused_in_successes"] is None:
        return "-"
    return f"{method['top_weight_refused_in_successes']:.1%} / {method['refused_share_in_successes']:.1%}"


def _cell(estimate: Sequence[float | None]) -> str:
    value, low, high = estimate
    return "-" if value is None else f"{value:.3f} [{_short(low)}, {_short(high)}]"


def _short(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
