"""What each provider is sent, on the wire; what an endpoint refuses; how addresses are spelled."""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from taspo_trl.analyzer import LiteLLMAnalyzer
from taspo_trl.analyzer.base import AnalyzerRequest
from taspo_trl.analyzer.llm.failures import Failure, failure_of, parse_retry_after
from taspo_trl.analyzer.llm.providers import ModelFacts, RequestForm, check_api_base, request_form
from taspo_trl.errors import ConfigurationError

from ..endpoint import Reply


REQUEST = AnalyzerRequest("extraction", "Answer as JSON.", {"task": "put a mug on desk 1", "trajectories": []})
OBJECT = {"type": "json_object"}
THINKING = {"thinking": {"type": "disabled"}}


def sent(body: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in body.items() if name not in ("messages", "model")}


@pytest.mark.parametrize(
    "model, name, json_type, switch",
    [
        ("deepseek/deepseek-chat", "deepseek-chat", "json_object", THINKING),
        ("deepseek/a-model-of-tomorrow", "a-model-of-tomorrow", "json_object", THINKING),
        ("zai/glm-4.6", "glm-4.6", "json_object", THINKING),
        ("zai/glm-of-tomorrow", "glm-of-tomorrow", "json_object", THINKING),
        ("dashscope/qwen-plus", "qwen-plus", "json_object", {"enable_thinking": False}),
        (
            "hosted_vllm/Qwen/Qwen3.5-35B-A3B",
            "Qwen/Qwen3.5-35B-A3B",
            "json_schema",
            {"chat_template_kwargs": {"enable_thinking": False, "thinking": False}},
        ),
        ("openai/fake", "fake", "json_object", {}),
        (
            "openrouter/some/model",
            "some/model",
            "json_object",
            {"reasoning": {"enabled": False}, "usage": {"include": True}},
        ),
        ("mistral/mistral-large-latest", "mistral-large-latest", "json_object", {}),
    ],
)
def test_the_body_on_the_wire(model, name, json_type, switch, serve, make_analyzer):
    endpoint = serve()
    assert make_analyzer(endpoint, model, api_key="sk-test-123").complete(REQUEST).error == ""
    [request] = endpoint.received
    assert request.path == "/v1/chat/completions"
    assert request.headers["authorization"] == "Bearer sk-test-123"
    body = sent(request.body)
    assert request.body["model"] == name
    assert body.pop("response_format")["type"] == json_type
    assert body == {"temperature": 0, "max_tokens": 4096, **switch}


def test_the_schema_of_the_stage_is_sent_where_it_is_taken(serve, make_analyzer):
    endpoint = serve()
    analyzer = make_analyzer(endpoint, "hosted_vllm/m")
    analyzer.complete(REQUEST)
    analyzer.complete(
        AnalyzerRequest(
            "alignment", "json", {"target": {"traj_uid": "t", "steps": []}, "task": "", "allowed_evidence": []}
        )
    )
    schemas = [request.body["response_format"]["json_schema"] for request in endpoint.received]
    assert [schema["name"] for schema in schemas] == ["extraction", "alignment"]
    assert [list(schema["schema"]["properties"]) for schema in schemas] == [["evidence"], ["targets"]]


def test_reasoning_is_switched_off_with_the_users_own_fields(serve, make_analyzer, caplog):
    endpoint = serve()
    make_analyzer(endpoint, reasoning_off={"think": False}, options={"top_p": 0.5}).complete(REQUEST)
    assert endpoint.received[0].body["think"] is False and endpoint.received[0].body["top_p"] == 0.5
    assert "reasoning" not in caplog.text


@pytest.mark.parametrize(
    "model, words",
    [
        ("openai/fake", "how reasoning is switched off"),
        ("deepseek/deepseek-reasoner", "always reasons"),
        ("dashscope/qwq-plus", "always reasons"),
        ("anthropic/claude-sonnet-4-5", "prompt alone"),
    ],
)
def test_what_cannot_be_expressed_is_one_warning_at_the_start(model, words, make_analyzer, caplog):
    with caplog.at_level(logging.WARNING):
        make_analyzer("http://127.0.0.1:9/v1", model)
    assert [words in record.getMessage() for record in caplog.records] == [True]


@pytest.mark.parametrize("model", ["deepseek/x", "zai/x", "dashscope/x", "hosted_vllm/x", "mistral/x"])
def test_what_can_be_expressed_is_no_warning(model, make_analyzer, caplog):
    make_analyzer("http://127.0.0.1:9/v1", model)
    assert not caplog.records


# ---- refused parameters --------------------------------------------------------------------------------------------


def form(**values: Any) -> RequestForm:
    return RequestForm(**{"max_tokens": 10, "json_forms": ("json_object", "json_schema", "prompt"), **values})


@pytest.mark.parametrize(
    "before, message, after",
    [
        (form(), "Unsupported value: 'temperature' does not support 0 with this model.", {"temperature": None}),
        (form(), "'response_format.type' must be 'json_schema' or 'text'", {"json_forms": ("json_schema", "prompt")}),
        (form(json_forms=("json_schema", "prompt")), "response_format: not supported", {"json_forms": ("prompt",)}),
        (form(), "Use 'max_completion_tokens' instead of 'max_tokens'", {"token_limit_name": "max_completion_tokens"}),
        (form(reasoning_off=THINKING), "unknown field: thinking", {"reasoning_off": {}}),
        (form(reasoning_off={"enable_thinking": False}), "enable_thinking is restricted", {"reasoning_off": {}}),
        (form(reasoning_effort="none"), "Unsupported value: reasoning_effort 'none'", {"reasoning_effort": None}),
        (form(reasoning_effort="none"), "temperature=0 is only for reasoning_effort none", {"reasoning_effort": None}),
        (form(), "messages: roles must alternate", None),
        (form(temperature=None), "temperature is not supported", None),
        (form(json_forms=("prompt",)), "response_format is not supported", None),
        (form(), "the endpoint overheats at these temperatures", None),
    ],
)
def test_a_refused_parameter_is_left_out_and_nothing_else(before, message, after):
    changed = before.without_refused(message)
    if after is None:
        assert changed is None
    else:
        expected = {name: after.get(name, getattr(before, name)) for name in RequestForm.__dataclass_fields__}
        assert {name: getattr(changed[0], name) for name in expected} == expected
        assert changed[1], "what changed is said in words"


def test_refusals_end():
    now, steps = form(reasoning_off=THINKING, reasoning_effort="none"), 0
    message = "temperature response_format max_completion_tokens thinking reasoning_effort"
    while (changed := now.without_refused(message)) is not None:
        now, steps = changed[0], steps + 1
    assert steps == 6 and now.arguments("extraction") == {"max_completion_tokens": 10}


def test_a_listed_model_that_can_reason_is_asked_not_to():
    facts = ModelFacts("gemini", True, True, True, {"reasoning_effort", "response_format"})
    made, notes = request_form("gemini/gemini-2.5-flash", facts, max_tokens=10)
    assert made.reasoning_effort == "none" and not notes
    facts = ModelFacts("gemini", True, True, False, {"response_format"})
    made, notes = request_form("gemini/gemini-1.5-flash", facts, max_tokens=10)
    assert made.reasoning_effort is None and not notes


# ---- spelling ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["openai/fake", "deepseek/fake", "zai/fake", "dashscope/fake", "hosted_vllm/fake"])
@pytest.mark.parametrize("ending", ["", "/"])
def test_both_spellings_of_the_address_reach_the_same_route(model, ending, serve, make_analyzer):
    # LLM-3
    endpoint = serve()
    make_analyzer(endpoint.url + ending, model, api_key="sk-test").complete(REQUEST)
    assert [request.path for request in endpoint.received] == ["/v1/chat/completions"]


@pytest.mark.parametrize(
    "api_base, words",
    [
        ("", "is empty"),
        ("  ", "is empty"),
        ("localhost:8000/v1", "http or https"),
        ("/v1", "http or https"),
        ("http://h/v1/chat/completions", "must not name a route"),
        ("http://h/v1/chat/completions/", "must not name a route"),
        ("http://h/v1/v1", "repeats the version"),
        ("http://user:sk-CANARY-7731@h/v1", "holds credentials"),
        ("http://h/v1?key=sk-CANARY-7731", "holds credentials"),
    ],
)
def test_an_address_that_cannot_work_is_refused_with_the_right_one(api_base, words):
    with pytest.raises(ConfigurationError, match=words) as caught:
        LiteLLMAnalyzer("openai/fake", api_base=api_base)
    assert "http://localhost:8000/v1" in str(caught.value) and "CANARY" not in str(caught.value)


def test_a_good_address_stays():
    assert check_api_base("https://open.bigmodel.cn/api/paas/v4/") == "https://open.bigmodel.cn/api/paas/v4"
    assert check_api_base(None) is None


@pytest.mark.parametrize("model", ["fake-analyzer", "", "nowhere/model", "qwen-max"])
def test_a_model_without_a_provider_is_refused_with_an_example(model, capfd):
    with pytest.raises(ConfigurationError, match="must begin with a provider"):
        LiteLLMAnalyzer(model, api_base="http://localhost:8000/v1")
    assert capfd.readouterr().out == "", "LiteLLM advertises its documentation on such errors"


@pytest.mark.parametrize(
    "model, variable",
    [
        ("openai/gpt-4o", "OPENAI_API_KEY"),
        ("deepseek/deepseek-chat", "DEEPSEEK_API_KEY"),
        ("zai/glm-4.6", "ZAI_API_KEY"),
        ("dashscope/qwen-plus", "DASHSCOPE_API_KEY"),
    ],
)
def test_a_missing_key_names_its_variable(model, variable, monkeypatch):
    with pytest.raises(ConfigurationError, match=variable):
        LiteLLMAnalyzer(model)
    monkeypatch.setenv(variable, "sk-test")
    LiteLLMAnalyzer(model, cache=None).close()


@pytest.mark.parametrize(
    "values, words",
    [
        ({"timeout": 0}, "`timeout` must be positive"),
        ({"attempts": 0}, "`attempts` must be positive"),
        ({"budget_usd": -1.0}, "`budget_usd` must be positive"),
        ({"budget_usd": 1.0}, "needs a price"),
        ({"prices": (1.0,)}, "two numbers"),
        ({"options": {"api_key": "sk-CANARY"}}, "`api_key` is named like"),
        ({"options": {"extra_headers": {"x": "sk-CANARY"}}}, "`extra_headers` is named like"),
        ({"options": {"max_retries": 3}}, "must not set `max_retries`"),
    ],
)
def test_settings_that_cannot_work_are_refused(values, words):
    with pytest.raises(ConfigurationError, match=words) as caught:
        LiteLLMAnalyzer("openai/fake", api_base="http://h/v1", cache=None, **values)
    assert "CANARY" not in str(caught.value)


def test_unknown_prices_are_no_cost_and_no_noise(serve, make_analyzer, capfd):
    endpoint = serve()
    analyzer = make_analyzer(endpoint, api_key="sk-test")
    reply = analyzer.complete(REQUEST)
    assert reply.cost_usd is None and analyzer.totals.cost_usd is None
    assert capfd.readouterr().out == ""
    priced = make_analyzer(endpoint, prices=(1.0, 10.0)).complete(REQUEST)
    assert priced.cost_usd == pytest.approx((100 * 1.0 + 20 * 10.0) / 1e6)


# ---- why a request failed ------------------------------------------------------------------------------------------


class StatusError(Exception):
    def __init__(self, status: int, text: str, headers: dict[str, str] | None = None):
        super().__init__(text)
        self.status_code = status
        self.litellm_response_headers = headers or {}


@pytest.mark.parametrize(
    "status, text, kind",
    [
        (429, "slow down", "rate_limit"),
        (429, "You exceeded your current quota, please check your plan", "no_credit"),
        (402, "Insufficient Balance", "no_credit"),
        (401, "Incorrect API key", "auth"),
        (403, "forbidden", "auth"),
        (403, "the model m does not exist or you have no access", "unknown_model"),
        (404, "Not Found", "unknown_model"),
        (400, "Model Not Exist", "unknown_model"),
        (400, "This model's maximum context length is 15000 tokens. However, you requested 20000", "context_too_long"),
        (400, "input is too long", "context_too_long"),
        (413, "payload", "context_too_long"),
        (400, "Input data may contain inappropriate content: data_inspection_failed", "content_filter"),
        (400, "messages with role tool", "refused"),
        (422, "Unprocessable", "refused"),
        (500, "Internal Server Error", "server_error"),
        (502, "Bad Gateway", "server_error"),
        (503, "overloaded", "server_error"),
        (504, "upstream timed out", "timeout"),
        (408, "timed out", "timeout"),
    ],
)
def test_failures_are_told_apart(status, text, kind):
    assert failure_of(StatusError(status, text)).kind == kind


def test_the_cause_behind_a_wrapped_error_counts():
    try:
        try:
            raise ConnectionRefusedError("refused")
        except ConnectionRefusedError as cause:
            raise StatusError(500, "Connection error.") from cause
    except StatusError as error:
        assert failure_of(error).kind == "unreachable"


@pytest.mark.parametrize(
    "headers, seconds",
    [
        ({"Retry-After": "2"}, 2.0),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after-ms": "1500", "retry-after": "9"}, 1.5),
        ({"retry-after": "Thu, 01 Jan 1970 00:00:00 GMT"}, 0.0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": ""}, None),
        ({}, None),
    ],
)
def test_retry_after_is_read_in_its_spellings(headers, seconds):
    assert parse_retry_after(headers) == seconds
    assert failure_of(StatusError(429, "x", headers)) == Failure("rate_limit", "x", seconds)


def test_a_long_error_is_cut():
    assert len(failure_of(StatusError(500, "x" * 10_000)).text) < 500


def test_refused_at_the_wire_then_remembered(serve, make_analyzer, caplog):
    # LLM-2 (a): one repeat without the parameter, remembered for the run, one warning.
    def script(request, number):
        if "temperature" in request.body:
            return Reply(status=400, error="Unsupported value: 'temperature' does not support 0 with this model.")
        return "{}"

    endpoint = serve(script)
    analyzer = make_analyzer(endpoint, reasoning_off={})
    for k in range(3):
        assert (
            analyzer.complete(AnalyzerRequest("extraction", "json", {"trajectories": [], "task": str(k)})).error == ""
        )
    assert ["temperature" in request.body for request in endpoint.received] == [True, False, False, False]
    assert sum("refuses a parameter" in record.getMessage() for record in caplog.records) == 1


def test_what_the_first_request_teaches_is_learned_once_for_all_workers(serve, make_analyzer):
    def script(request, number):
        if "temperature" in request.body:
            return Reply(status=400, error="'temperature' is not supported")
        return Reply("{}", delay=0.05)

    endpoint = serve(script)
    analyzer = make_analyzer(endpoint)
    with ThreadPoolExecutor(4) as workers:
        requests = [AnalyzerRequest("extraction", "json", {"task": str(k)}) for k in range(8)]
        assert {reply.error for reply in workers.map(analyzer.complete, requests)} == {""}
    assert len(endpoint.received) == 9
