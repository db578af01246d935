"""What is sent to each provider beside the messages: the JSON form it supports and its own switch for reasoning.

Pure. `docs/analyzer.md` shows the same table. What an endpoint refuses is left out of later requests, one parameter at
a time, and said once; what cannot be expressed for a model is said at the start.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urlsplit

from ...errors import ConfigurationError
from ...redaction import holds_secret
from ..schema import json_schema


@dataclass(frozen=True, slots=True)
class Provider:
    """How requests to one provider look."""

    key_variable: str
    """Environment variable that LiteLLM reads the key from; empty where none is needed."""
    json_forms: tuple[str, ...]
    """json_schema, json_object, prompt: the first is asked for, the next ones after a refusal."""
    reasoning_off: Mapping[str, Any] | None
    """Body fields that switch reasoning off; empty = it is off unless asked for; None = not known."""
    always_reasons: str = r"(?!)"
    """Pattern of model names that have no switch."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """Further arguments for LiteLLM."""


_OBJECT = ("json_object", "prompt")
_SCHEMA = ("json_schema", "json_object", "prompt")
_THINKING = {"thinking": {"type": "disabled"}}

PROVIDERS: Mapping[str, Provider] = {
    "deepseek": Provider("DEEPSEEK_API_KEY", _OBJECT, _THINKING, always_reasons=r"reasoner|\br1\b"),
    # LiteLLM's list of parameters for this provider lacks `max_retries`; without it the OpenAI client retries itself.
    "zai": Provider("ZAI_API_KEY", _OBJECT, _THINKING, arguments={"allowed_openai_params": ["max_retries"]}),
    "dashscope": Provider("DASHSCOPE_API_KEY", _OBJECT, {"enable_thinking": False}, always_reasons=r"-thinking|qwq"),
    # Chat templates call the switch by one of two names and ignore the other.
    "hosted_vllm": Provider("", _SCHEMA, {"chat_template_kwargs": {"enable_thinking": False, "thinking": False}}),
    "openrouter": Provider("OPENROUTER_API_KEY", _OBJECT, {"reasoning": {"enabled": False}}),
    "anthropic": Provider("ANTHROPIC_API_KEY", ("prompt",), {}),
    "mistral": Provider("MISTRAL_API_KEY", _OBJECT, {}, always_reasons=r"magistral"),
}


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What LiteLLM's list says about a model."""

    provider: str
    is_listed: bool
    has_price: bool
    reasons: bool
    """Whether the model can reason. False for a model that is not listed."""
    parameters: Collection[str]
    """OpenAI parameters that LiteLLM passes on to the provider."""


@dataclass(frozen=True, slots=True)
class RequestForm:
    """The parameters of a request. A refused one is replaced or left out in the next form."""

    max_tokens: int
    temperature: float | None = 0.0
    token_limit_name: str = "max_tokens"
    json_forms: tuple[str, ...] = ("prompt",)
    """The one in use comes first."""
    reasoning_off: Mapping[str, Any] = field(default_factory=dict)
    """Body fields."""
    reasoning_effort: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Further arguments for LiteLLM, the user's among them."""

    def arguments(self, stage: str) -> dict[str, Any]:
        """Keyword arguments for LiteLLM."""
        values: dict[str, Any] = {**self.extra, self.token_limit_name: self.max_tokens}
        if self.temperature is not None:
            values["temperature"] = self.temperature
        if stage == "play":
            pass  # a chat answers in text
        elif self.json_forms[0] == "json_schema":
            schema = {"name": stage, "schema": json_schema(stage), "strict": True}
            values["response_format"] = {"type": "json_schema", "json_schema": schema}
        elif self.json_forms[0] == "json_object":
            values["response_format"] = {"type": "json_object"}
        if self.reasoning_off:
            values["extra_body"] = {**values.get("extra_body", {}), **self.reasoning_off}
        if self.reasoning_effort is not None:
            values["reasoning_effort"] = self.reasoning_effort
        return values

    def without_refused(self, message: str) -> tuple[RequestForm, str] | None:
        """The next form after the endpoint refused this one with `message`, and what changed; None if nothing can."""
        if _names(message, "response_format", "json_object", "json_schema", "json mode") and len(self.json_forms) > 1:
            return replace(self, json_forms=self.json_forms[1:]), f"JSON is now asked for by {self.json_forms[1]}"
        if self.token_limit_name == "max_tokens" and _names(message, "max_completion_tokens"):
            return replace(self, token_limit_name="max_completion_tokens"), "`max_completion_tokens` is sent instead"
        if self.reasoning_off and _names(message, *self.reasoning_off, *_inner_names(self.reasoning_off)):
            return replace(self, reasoning_off={}), "reasoning is no longer switched off"
        if self.reasoning_effort is not None and _names(message, "reasoning_effort", "reasoning effort"):
            return replace(self, reasoning_effort=None), "reasoning is no longer switched off"
        if self.temperature is not None and _names(message, "temperature"):
            return replace(self, temperature=None), "the endpoint's own temperature is used"
        return None


def request_form(
    model: str,
    facts: ModelFacts,
    *,
    max_tokens: int,
    has_api_base: bool = False,
    reasoning_off: Mapping[str, Any] | None = None,
    options: Mapping[str, Any] | None = None,
) -> tuple[RequestForm, list[str]]:
    """The first request form for a model, and what it cannot express.

    Args:
        model (`str`):
            LiteLLM's name of the model.
        facts (`ModelFacts`):
            What LiteLLM knows about it.
        max_tokens (`int`):
            Output limit.
        has_api_base (`bool`, *optional*, defaults to `False`):
            Whether requests go to an endpoint of the user's. Behind `openai/` that may then be any server.
        reasoning_off (`Mapping[str, Any]`, *optional*):
            The user's own body fields that switch reasoning off.
        options (`Mapping[str, Any]`, *optional*):
            The user's further arguments for LiteLLM.
    """
    provider = PROVIDERS.get(facts.provider)
    if facts.provider == "openai":
        # Behind `openai/` with an `api_base` stands any server: most know json_object, some only json_schema.
        forms = ("json_object", "json_schema", "prompt") if has_api_base else _SCHEMA
        provider = Provider("OPENAI_API_KEY", forms, None)
    elif provider is None:
        provider = Provider("", _OBJECT if "response_format" in facts.parameters else ("prompt",), None)
    notes = []
    effort = None
    switch = provider.reasoning_off if reasoning_off is None else reasoning_off
    if reasoning_off is None and re.search(provider.always_reasons, model, re.IGNORECASE):
        switch = {}
        notes.append(f"`{model}` always reasons, which costs time and tokens; choose a model without reasoning")
    elif switch is None:
        if facts.is_listed and facts.reasons and "reasoning_effort" in facts.parameters:
            effort = "none"
        elif facts.reasons or not facts.is_listed:
            notes.append(
                f"how reasoning is switched off for `{model}` is not known; if it reasons, pass the body fields that "
                'switch it off, for example `reasoning_off={"enable_thinking": False}`, or use `hosted_vllm/` for vLLM'
            )
    if provider.json_forms[0] == "prompt":
        notes.append(f"`{facts.provider}` takes no JSON mode here; JSON is asked for by the prompt alone")
    form = RequestForm(
        max_tokens=max_tokens,
        json_forms=provider.json_forms,
        reasoning_off=dict(switch or {}),
        reasoning_effort=effort,
        extra={**provider.arguments, **(options or {})},
    )
    return form, notes


def key_variable(provider: str) -> str:
    """The environment variable of a provider's key; empty when none is needed, or known."""
    if provider == "openai":
        return "OPENAI_API_KEY"
    return PROVIDERS[provider].key_variable if provider in PROVIDERS else ""


def check_api_base(api_base: str | None) -> str | None:
    """`api_base` without a trailing slash.

    Raises:
        ConfigurationError: it is empty, no http(s) address, names a route, or holds credentials.
    """
    if api_base is None:
        return None
    remedy = "Write the address of the API's root, for example `http://localhost:8000/v1`."
    parts = urlsplit(api_base.strip())
    path = parts.path.rstrip("/")
    if not api_base.strip():
        raise ConfigurationError(f"`api_base` is empty. Leave it out for the provider's own endpoint. {remedy}")
    # Not shown in any of these messages: this is where secrets are.
    if holds_secret(api_base):
        raise ConfigurationError(
            "`api_base` holds credentials, a query or something like a key, which would end up in logs. Pass the key "
            f"as `api_key` or in the environment. {remedy}"
        )
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigurationError(f"`api_base` must be an http or https address. {remedy}")
    if re.search(r"/(chat/completions|completions|responses)$", path):
        raise ConfigurationError(f"`api_base` must not name a route, which is added. {remedy}")
    if re.search(r"/v\d+/v\d+$", path):
        raise ConfigurationError(f"`api_base` repeats the version. {remedy}")
    return parts._replace(path=path).geturl()


def _names(message: str, *names: str) -> bool:
    return any(
        re.search(rf"(?<![A-Za-z0-9]){re.escape(name)}(?![A-Za-z0-9])", message, re.IGNORECASE) for name in names
    )


def _inner_names(fields: Mapping[str, Any]) -> list[str]:
    return [name for value in fields.values() if isinstance(value, Mapping) for name in value if len(name) > 4]
