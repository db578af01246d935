"""`taspo eval`: a model or a player on a split, with intervals; or two results compared."""

from __future__ import annotations

import argparse
import functools
import hashlib
import json
import platform
from collections import Counter
from pathlib import Path
from typing import Any

from ..checkpoints import weights_digest
from ..errors import ConfigurationError
from ..redaction import without_credentials
from ..training.model_folder import check_model_folder
from .agents import add_agent_options, agent_of, reflector_of, reply_format
from .models import NamedPolicy, load_policy, load_tokenizer, served_policy
from .players import scripted_player
from .sources import environment_data, environment_factory, json_arguments


SAMPLED = {"temperature": 0.0, "top_p": 1.0, "dtype": "auto", "device": None, "vllm_server": None}
"""Options of a model that generates -> their defaults; none of a player."""
BYTES = "bytes"
"""What results call the tokenizer of a player that was given no other."""


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="taspo eval",
        description="Play each task of a split exactly once and report success by family with 95 % intervals. A "
        "player in place of a model (`--player oracle`, `--player random`) bounds a table. An interrupted evaluation "
        "goes on where it stopped.",
    )
    made.add_argument("--model", help="model id, model folder, or LoRA adapter folder")
    made.add_argument(
        "--vllm-server",
        metavar="URL",
        help="generate with this running `vllm serve`; `--model` then only names the tokenizer",
    )
    made.add_argument(
        "--player",
        help="in place of a model plays `oracle` (the environment's own plans), `random` (any admissible action) or "
        "`package.module:function` (a turn to an action); `--model`, if given, then only names the tokenizer",
    )
    made.add_argument(
        "--reply-format",
        default=None,
        help="with --player: its replies, e.g. '<action>{action}</action>' (default: the environment's)",
    )
    made.add_argument("--environment", default="household", help="built-in environment or package.module:Class")
    made.add_argument("--environment-kwargs", default=None, help="constructor arguments, JSON or YAML")
    made.add_argument("--dataset-kwargs", default=None, help="arguments of dataset(split), JSON or YAML")
    made.add_argument("--split", default="valid_seen", help="split to play (default: valid_seen)")
    made.add_argument("--limit", type=int, default=None, help="only the first tasks, for a quick look")
    made.add_argument("--seeds", type=int, nargs="+", default=[0], help="one evaluation for each (default: 0)")
    made.add_argument("--plays", type=int, default=1, help="plays of each task for each seed (default: 1)")
    add_agent_options(made)
    made.add_argument("--temperature", type=float, help="sampling temperature; 0 is greedy (default)")
    made.add_argument("--top-p", type=float, help="nucleus (default: 1.0)")
    made.add_argument("--context", choices=["window", "conversation"], help="default: the environment's")
    made.add_argument("--success-threshold", type=float, help="TRL classes: the reward that counts as success")
    made.add_argument("--max-turns", type=int, default=None, help="turns of an episode (default: the environment's)")
    made.add_argument(
        "--max-completion-length",
        type=int,
        help="tokens of one reply (default: 512; 4096 with a player and no `--model`, when bytes are tokens)",
    )
    made.add_argument("--max-prompt-length", type=int, default=None, help="tokens of one prompt")
    made.add_argument("--chat-template-kwargs", default=None, help="JSON or YAML, e.g. '{enable_thinking: false}'")
    made.add_argument("--episodes", type=int, default=32, help="episodes in flight (default: 32)")
    made.add_argument("--dtype", help="weights: auto, float32, bfloat16, ... (default: auto)")
    made.add_argument("--device", default=None, help="cpu, cuda, cuda:1, ... (default: a GPU if there is one)")
    made.add_argument(
        "-o",
        "--output",
        default=None,
        help="result file (default: evaluations/NAME.json; NAME tells other arguments of the data or world apart)",
    )
    made.add_argument("--markdown", action="store_true", help="print a Markdown table, for a paper")
    made.add_argument("--compare", nargs=2, metavar=("FIRST", "SECOND"), help="compare two result files, in pairs")
    made.add_argument("--within", type=int, help="with --compare: as if only so many attempts had been allowed")
    return made


def main(arguments: list[str]) -> int:
    options = parser().parse_args(arguments)
    if options.compare:
        first, second = options.compare
        return _compare(first, second, options.within, options.markdown)
    if options.within is not None:
        raise ConfigurationError("`--within` needs `--compare FIRST SECOND`: it is read from what was evaluated.")
    if not (options.model or options.vllm_server or options.player):
        raise ConfigurationError(
            "`--model` is missing: a model id or a folder (or `--vllm-server URL`, `--player oracle`, or `--compare "
            "FIRST SECOND`)."
        )
    _fill_in(options)
    if options.model:
        check_model_folder(options.model)
    results = _evaluate(options)
    _report(results, as_markdown=options.markdown)
    return 0


def _fill_in(options: argparse.Namespace) -> None:
    """Put defaults where nothing was given, and refuse what a player has no use for."""
    given = [name for name in SAMPLED if getattr(options, name) is not None]
    if options.player and given:
        raise ConfigurationError(
            f"`--{given[0].replace('_', '-')} {getattr(options, given[0])}` is read where a model generates; the "
            f"player {options.player!r} makes its replies itself. Leave one of the two out."
        )
    if options.player and options.agent != "plain":
        raise ConfigurationError(
            f"`--agent {options.agent}` changes what a model is prompted with, and no model plays with `--player "
            f"{options.player}`. Leave one of the two out."
        )
    if options.reply_format is not None and not options.player:
        raise ConfigurationError("`--reply-format` needs `--player`: a model writes whole replies.")
    for name, value in SAMPLED.items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    if options.max_completion_length is None:
        options.max_completion_length = 4096 if options.player and not options.model else 512


def _policy(options: argparse.Namespace) -> NamedPolicy:
    """Who generates; for a player its tokenizer alone."""
    if options.player:
        from ..imitation.byte_tokenizer import byte_tokenizer

        tokenizer = load_tokenizer(options.model) if options.model else byte_tokenizer()
        nobody: Any = None  # the player's engine needs the episodes that are planned
        return NamedPolicy(nobody, tokenizer, None, options.model or BYTES)
    if options.vllm_server:
        return served_policy(options.vllm_server, options.model)
    return load_policy(options.model, options.device, options.dtype)


def _player(options: argparse.Namespace, pool: Any) -> Any:
    """Who plays in place of a model, or None."""
    if not options.player:
        return None
    if pool.traits[None].tools and not options.model:
        raise ConfigurationError(
            f"{options.environment} has tools, and only the chat template of a model tells how they are called: name "
            "one with `--model`, whose tokenizer alone is loaded."
        )
    player = scripted_player(options.player, pool, options.environment, options.reply_format)
    if player is None:
        raise ConfigurationError(
            f"There is no player {options.player!r}. A player is `oracle`, `random` or `package.module:function`; a "
            "model plays with `--model` or `--vllm-server`."
        )
    return player


def _evaluate(options: argparse.Namespace) -> dict[str, Any]:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from ..environments.workers import EnvironmentPool
    from ..evaluation import evaluate_tasks, evaluation_facts, refuse_other_result
    from ..generation import SamplingSettings
    from ..imitation import evaluate_player
    from ..rollout.loop import RolloutSettings
    from ..rollout.templates import ChatRenderer
    from ..training.checks import check_openings

    agent = agent_of(options)
    arguments = json_arguments(options.environment_kwargs, "--environment-kwargs")
    arguments = {**reply_format(options.environment, agent), **arguments}
    data_arguments = json_arguments(options.dataset_kwargs, "--dataset-kwargs")
    data = environment_data(options.environment, options.split, data_arguments)
    rows = list(data if options.limit is None else data.select(range(min(options.limit, len(data)))))
    model = _policy(options)
    rollout = RolloutSettings(
        context=options.context,
        max_turns=options.max_turns,
        max_completion_length=options.max_completion_length,
        max_prompt_length=options.max_prompt_length,
        model_window=model.window,
        vocab_size=model.vocab_size,
    )
    template_kwargs = json_arguments(options.chat_template_kwargs, "--chat-template-kwargs")
    renderer = ChatRenderer(model.tokenizer, template_kwargs)
    factory = environment_factory(options.environment, arguments)
    pool = EnvironmentPool({None: factory}, success_threshold=options.success_threshold)
    sampling = SamplingSettings(options.temperature, options.top_p)
    results = {}
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    close_reflector, player = _nothing, None
    try:
        player = _player(options, pool)
        reflector, close_reflector = reflector_of(options, model.engine, renderer, rollout)
        for traits in pool.traits.values():
            renderer.for_environment(traits).check_chat(traits, rollout.context)
        check_openings(pool, renderer, {f"split {options.split!r}": data})
        with Progress(*columns, transient=True) as progress:
            for seed in options.seeds:
                path = _output(options, model.name, seed, agent)
                facts = {**_who(options, model.name, player), **_facts(options, arguments, renderer)}
                known: dict[str, Any] = {"rollout": rollout, "seed": seed, "num_plays": options.plays}
                asked: dict[str, Any] = {"sampling": sampling, "agent": agent, "reflector": reflector}
                refuse_other_result(path, evaluation_facts(rows, **known, **asked, settings=facts))
                evaluate: Any = (
                    functools.partial(evaluate_tasks, engine=model.engine, **asked)
                    if player is None
                    else functools.partial(evaluate_player, player=player)
                )
                bar = progress.add_task(f"{options.split}, seed {seed}", total=len(rows) * options.plays)
                result = evaluate(
                    rows,
                    pool=pool,
                    renderer=renderer,
                    **known,
                    max_in_flight=options.episodes,
                    progress_path=path.with_suffix(".progress.jsonl"),
                    on_play=functools.partial(_advance, progress, bar),
                    settings=facts,
                )
                result.save(path)
                path.with_suffix(".progress.jsonl").unlink()
                results[str(path)] = result
    finally:
        close_reflector()
        if player is not None:
            player.close()
        pool.close()
        model.close()
    return results


def _nothing() -> None:
    """For evaluations that hold nothing more open."""


def _advance(progress: Any, bar: Any, play: Any) -> None:
    progress.advance(bar)


def _who(options: argparse.Namespace, model: str, player: Any) -> dict[str, Any]:
    if player is not None:
        from ..imitation import player_facts

        return {**player_facts(player), "reply_format": options.reply_format, "tokenizer": model}
    engine = "vllm" if options.vllm_server else "transformers"
    return {"model": model, "weights": weights_digest(model), "engine": engine}


def _facts(options: argparse.Namespace, arguments: dict, renderer: Any) -> dict[str, Any]:
    import torch
    import transformers

    from .. import __version__

    return {
        "environment": options.environment,
        "environment_kwargs": without_credentials(arguments),
        "chat_template_kwargs": without_credentials(renderer.template_kwargs),
        "date_string": renderer.date,
        "split": options.split,
        "versions": {
            "taspo_trl": __version__,
            "transformers": transformers.__version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
    }


def _output(options: argparse.Namespace, model: str, seed: int, agent: Any) -> Path:
    if options.output and len(options.seeds) == 1:
        return Path(options.output)
    who = options.player.replace(":", ".") if options.player else Path(model).name
    name = f"{who}-{options.environment.replace(':', '.')}-{options.split}{_kwargs_digest(options)}"
    if agent.name != "plain":
        name += f"-{agent.name}{agent.attempts if agent.attempts > 1 else ''}"
    name = Path(options.output).stem if options.output else name
    folder = Path(options.output).parent if options.output else Path("evaluations")
    return folder / f"{name}-seed{seed}.json"


def _kwargs_digest(options: argparse.Namespace) -> str:
    """Six digits for a file name, the same however the arguments of data and world are written; none without any."""
    names = ("dataset_kwargs", "environment_kwargs")
    given = {name: json_arguments(getattr(options, name), f"--{name.replace('_', '-')}") for name in names}
    if not any(given.values()):
        return ""
    text = json.dumps(without_credentials(given), sort_keys=True, default=str)
    return f"-{hashlib.blake2b(text.encode(), digest_size=3).hexdigest()}"


def _report(results: dict[str, Any], as_markdown: bool) -> None:
    for path, result in results.items():
        facts = result.settings
        where = f"{facts.get('environment')}/{facts.get('split')}"
        if "player" in facts:
            title = f"player {facts['player']} on {where}: seed {facts['seed']}"
        else:
            title = (
                f"{facts.get('model')} on {where}: temperature {facts['temperature']}, top-p {facts['top_p']}, seed "
                f"{facts['seed']}{_tries(result)}"
            )
        rows = [[family, *_cells(rate)] for family, rate in result.families().items()]
        macro, low, high = result.macro()
        rows += [
            ["macro mean", str(len(result.families())), f"{macro:.1%}", f"{low:.1%} – {high:.1%}"],
            ["micro mean", *_cells(result.overall())],
        ]
        _print_table(title, ["family", "n", "success", "95 % interval (Wilson)"], rows, as_markdown)
        if result.max_attempts > 1:
            rows = [[str(k), *_cells(result.within(k).overall())] for k in range(1, result.max_attempts + 1)]
            header = ["attempts", "n", "success", "95 % interval (Wilson)"]
            _print_table("Success within so many attempts", header, rows, as_markdown)
        values = result.metrics()
        ends = ", ".join(f"{name[5:]} {value:.0%}" for name, value in values.items() if name.startswith("stop/"))
        of_successes = f" (of successes {values['turns_success']:.1f})" if values["success"] > 0 else ""
        print(
            f"score {values['score']:.3f}, turns {values['turns']:.1f}{of_successes}, "
            f"ends: {ends}\n{_costs(values)}{path}"
        )
        uncounted = Counter(play.error for play in result.plays if not play.is_usable)
        for reason, count in uncounted.most_common(5):
            print(f"{count} of {len(result.plays)} plays count in no rate: {reason[:300]}")
    if len(results) > 1:
        import numpy as np

        rates = np.array([result.overall().value for result in results.values()])
        print(f"Over {len(rates)} seeds: {rates.mean():.1%} ± {rates.std(ddof=1):.1%} (sample standard deviation)")


def _tries(result: Any) -> str:
    """Player or agent, for titles: a success of several attempts is never shown without their number."""
    if "player" in result.settings:
        return f", player {result.settings['player']}"
    name = result.settings.get("agent", {}).get("name")
    if name is None:
        return ""
    return f", agent {name}" + (f", at most {result.max_attempts} attempts" if result.max_attempts > 1 else "")


def _costs(values: dict[str, float]) -> str:
    if "turns_total" not in values:
        return ""
    parts = [f"{values['attempts']:.2f} attempts", f"{values['turns_total']:.1f} turns"]
    parts += [
        f"{values['prompt_tokens_total']:,.0f} prompt tokens",
        f"{values['reply_tokens_total']:,.0f} reply tokens",
    ]
    if "note_calls" in values:
        parts.append(
            f"{values['note_calls']:.2f} notes of {values['note_prompt_tokens']:,.0f} prompt and "
            f"{values['note_reply_tokens']:,.0f} reply tokens"
        )
    faults = [
        f"{name.partition('/')[2]} {value:.0%}" for name, value in values.items() if name.startswith("note_fault/")
    ]
    return f"a play took {', '.join(parts)}" + (f"; of the notes: {', '.join(faults)}" if faults else "") + "\n"


def _compare(first: str, second: str, within: int | None, as_markdown: bool) -> int:
    from ..evaluation.results import EvaluationResult, compare

    one, other = EvaluationResult.load(first), EvaluationResult.load(second)
    if within is not None:  # where fewer were allowed, fewer were made
        one, other = (result.within(min(within, result.max_attempts)) for result in (one, other))
    families = sorted(set(one.families()) & set(other.families()))
    rows = []
    for name in [*families, None]:
        paired = compare(one, other, name)
        before = one.overall() if name is None else one.families()[name]
        after = other.overall() if name is None else other.families()[name]
        rows.append(
            [
                name or "all",
                str(paired.num_pairs),
                f"{before.value:.1%}",
                f"{after.value:.1%}",
                f"{paired.difference:+.1%}",
                f"{paired.only_first} / {paired.only_second}",
                f"{paired.p_value:.2g}",
            ]
        )
    header = ["family", "pairs", "first", "second", "difference", "only first / only second", "p (McNemar, exact)"]
    _print_table(f"{first}{_tries(one)} → {second}{_tries(other)}", header, rows, as_markdown)
    if one.max_attempts != other.max_attempts:
        print(
            f"The first could try {one.max_attempts}, the second {other.max_attempts} times: the difference holds "
            "what further attempts alone buy. `--within 1` compares first attempts."
        )
    return 0


def _cells(rate: Any) -> list[str]:
    return [str(rate.num_plays), f"{rate.value:.1%}", f"{rate.low:.1%} – {rate.high:.1%}"]


def _print_table(title: str, header: list[str], rows: list[list[str]], as_markdown: bool) -> None:
    if as_markdown:
        print(f"\n{title}\n\n| " + " | ".join(header) + " |\n|" + "---|" * len(header))
        for row in rows:
            print("| " + " | ".join(row) + " |")
        print()
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title)
    for k, name in enumerate(header):
        table.add_column(name, justify="left" if k == 0 else "right")
    for row in rows:
        table.add_row(*row)
    Console().print(table)


def result_summary(path: str | Path) -> dict[str, Any]:
    """The summary of a result file, for scripts."""
    return json.loads(Path(path).read_text(encoding="utf-8"))["summary"]
