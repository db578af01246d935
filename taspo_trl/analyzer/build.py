"""The analyzer that a configuration asks for."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from .base import Analyzer
from .extractive import ExtractiveAnalyzer


if TYPE_CHECKING:
    from ..config import TASPOConfig


def configured_analyzer(args: TASPOConfig) -> Analyzer:
    """[`~taspo_trl.analyzer.LiteLLMAnalyzer`] when `analyzer_model` is set and used, else the embedded analyzer.

    Raises:
        ConfigurationError: there is no such provider, no key, no usable address or cache.
    """
    if args.analyzer_model is None or args.guidance != "aligned":
        return ExtractiveAnalyzer()
    from .litellm_analyzer import LiteLLMAnalyzer

    return LiteLLMAnalyzer(
        args.analyzer_model,
        api_base=args.analyzer_api_base,
        timeout=args.analyzer_timeout,
        attempts=args.analyzer_attempts,
        max_output_tokens=args.analyzer_max_tokens,
        requests_per_minute=args.analyzer_requests_per_minute,
        tokens_per_minute=args.analyzer_tokens_per_minute,
        budget_usd=args.analyzer_budget_usd,
        budget_tokens=args.analyzer_budget_tokens,
        cache=None if args.analyzer_cache == "no" else args.analyzer_cache,
        run=str(Path(args.output_dir or ".").resolve()),
        required=args.analyzer_required,
    )
