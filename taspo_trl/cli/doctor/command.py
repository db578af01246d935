"""`taspo doctor`: what is installed, what answers, and what a recipe will take."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from ...errors import ConfigurationError, TaspoError


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="taspo doctor",
        allow_abbrev=False,
        description="Check versions, devices, extras and servers. With a recipe (`--config`, or any option of `taspo "
        "train`) also what it names, and an estimate of its tokens, memory and analyzer cost. Nothing is "
        "downloaded, and no address is asked that was not named. Exit code 1: something would not work.",
    )
    made.add_argument("--config", metavar="FILE", help="recipe of `taspo train` in YAML")
    made.add_argument("--vllm-server", metavar="URL", help="a `vllm serve` that must answer (default: the recipe's)")
    made.add_argument("--retriever", metavar="URL", help="a served passage index (default: the recipe's)")
    made.add_argument("--analyzer", metavar="MODEL", help="LiteLLM's name of an analyzer (default: the recipe's)")
    made.add_argument("--analyzer-base", metavar="URL", help="root of its API (default: the recipe's)")
    made.add_argument(
        "--ask-analyzer", action="store_true", help="send the analyzer one tiny request, which may cost a little"
    )
    made.add_argument("--timeout", type=float, default=5.0, help="seconds to wait for a service (default: 5)")
    made.add_argument("--processes", type=int, default=None, help="processes that will train (default: 1)")
    made.add_argument("--accelerate", metavar="FILE", help="accelerate configuration: processes and sharding")
    made.add_argument(
        "--from-run", metavar="FOLDER", help="estimate from what this run logged instead of the recipe's limits"
    )
    made.add_argument("--turns", type=float, help="assumed turns of an episode")
    made.add_argument("--prompt-tokens", type=float, help="assumed tokens of a prompt, mean")
    made.add_argument("--reply-tokens", type=float, help="assumed tokens of a reply, mean")
    made.add_argument("--json", action="store_true", help="print one JSON object")
    return made


def main(arguments: list[str]) -> int:
    options, training = parser().parse_known_args(arguments)
    _check(options)
    if options.config:
        training = ["--config", options.config, *training]

    from .masking import masked, secrets_of
    from .network import offline
    from .recipe import recipe_file

    secrets = secrets_of(arguments, recipe_file(training))
    try:
        with offline():
            text, code = _examine(options, training)
    except TaspoError as error:
        print(f"taspo doctor: {masked(str(error), secrets)}", file=sys.stderr)
        return 1
    print(masked(text, secrets))
    return code


def _check(options: argparse.Namespace) -> None:
    for name in ("timeout", "processes", "turns", "prompt_tokens", "reply_tokens"):
        value = getattr(options, name)
        if value is not None and not value > 0:
            raise ConfigurationError(f"`--{name.replace('_', '-')}` must be greater than 0, got {value!r}.")
    if options.analyzer_base and not options.analyzer:
        raise ConfigurationError("`--analyzer-base` needs `--analyzer`: LiteLLM's name of the model.")


def _examine(options: argparse.Namespace, training: list[str]) -> tuple[str, int]:
    """(the report, the exit code)."""
    from .devices import device_findings
    from .findings import Status
    from .packages import extra_findings, version_findings

    devices, seen = device_findings()
    findings = [*version_findings(), *seen, *extra_findings()]
    recipe, estimate = None, None
    if training:
        recipe, found = _read(options, training)
        findings += found
    findings += _services(options, recipe)
    if recipe is not None:
        estimate = _estimate(options, recipe)
    return _text(options, findings, estimate, devices), int(any(one.status is Status.FAILURE for one in findings))


def _read(options: argparse.Namespace, training: list[str]) -> tuple[Any, list[Any]]:
    from .recipe import check_recipe, processes_findings, processes_of, read_recipe

    processes = processes_of(options.processes, options.accelerate)
    recipe, found = read_recipe(training, processes)
    if options.processes is None:
        found = [*found, *processes_findings(training, processes)]
    return recipe, found if recipe is None else [*found, *check_recipe(recipe)]


def _services(options: argparse.Namespace, recipe: Any) -> list[Any]:
    """The services that flags name, else those of the recipe."""
    from ...methods import recipe_for
    from . import services

    args = recipe.training if recipe is not None else None
    found = []
    if options.vllm_server or (args and args.use_vllm and args.vllm_mode == "server"):
        url = options.vllm_server or services.server_url(args)
        suits = (args, recipe.model.model_name_or_path) if args and args.use_vllm else (None, None)
        found += services.vllm_findings(url, options.timeout, *suits)
    if options.retriever:
        found += services.retriever_findings({"retriever": options.retriever}, options.timeout)
    elif recipe is not None and recipe.task.environment == "search_qa":
        found += services.retriever_findings(recipe.environment_kwargs, options.timeout)
    if options.analyzer:
        found += services.analyzer_findings(
            options.analyzer, options.analyzer_base, options.timeout, options.ask_analyzer
        )
    elif args is not None and args.analyzer_model and recipe_for(args).asks_analyzer:
        found += services.analyzer_findings(
            args.analyzer_model, args.analyzer_api_base, options.timeout, options.ask_analyzer
        )
    return found


def _estimate(options: argparse.Namespace, recipe: Any) -> Any:
    from .estimate import estimate

    names = ("turns", "prompt_tokens", "reply_tokens")
    given = {name: value for name in names if (value := getattr(options, name)) is not None}
    return estimate(recipe, options.from_run, given)


def _text(options: argparse.Namespace, findings: list[Any], estimate: Any, devices: Any) -> str:
    from .report import estimate_dict, estimate_lines, finding_lines, memory_finding

    if estimate is not None and (fault := memory_finding(estimate, devices)) is not None:
        findings = [*findings, fault]
    if options.json:
        content = {"findings": [one.as_dict() for one in findings]}
        return json.dumps({**content, "estimate": estimate and estimate_dict(estimate)}, indent=2)
    lines = [*finding_lines(findings), *(estimate_lines(estimate, devices) if estimate is not None else ())]
    return "\n".join(lines).lstrip("\n")
