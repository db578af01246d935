"""The wire of `/v1/completions`: what is asked, what is believed."""

from __future__ import annotations

import json
import math

import pytest

from taspo_trl.errors import ConfigurationError, ServiceError
from taspo_trl.generation import GenerationRequest, SamplingSettings
from taspo_trl.generation.completions import RESERVED, check_extra, completion_body, parse_completion, usable_logp
from taspo_trl.types import FinishReason


REQUEST = GenerationRequest((5, 6, 7), 4, "r0-g0-k0")


def body(sampling=None, **values):
    values = {"model": "m", "stop_token_ids": [2], "seed": 11, **values}
    return completion_body(REQUEST, sampling or SamplingSettings(), **values)


def answer(ids=(8, 9, 2), logps=(-0.5, -1.5, -0.25), **fields):
    choice = {
        "token_ids": list(ids),
        "finish_reason": "stop",
        "prompt_token_ids": [5, 6, 7],
        "logprobs": {"token_logprobs": list(logps), "tokens": [f"token_id:{one}" for one in ids]},
        **fields,
    }
    return {"choices": [choice]}


def test_prompts_go_as_ids_and_every_sampling_parameter_is_given():
    sent = body(SamplingSettings(0.7, 0.9, 40, 0.05))
    assert sent["prompt"] == [5, 6, 7]
    assert {name: sent[name] for name in ("temperature", "top_p", "top_k", "min_p")} == {
        "temperature": 0.7,
        "top_p": 0.9,
        "top_k": 40,
        "min_p": 0.05,
    }
    # Left out, these would come from the model's own generation settings on the server.
    assert sent["repetition_penalty"] == 1.0 and body()["min_p"] == 0.0 and body()["top_k"] == 0
    assert sent["max_tokens"] == 4 and sent["seed"] == 11 and sent["stop_token_ids"] == [2] and sent["n"] == 1
    assert sent["return_token_ids"] and sent["return_tokens_as_token_ids"] and sent["logprobs"] == 0


def test_generation_kwargs_and_the_regex_reach_the_server():
    sent = body(SamplingSettings(extra={"frequency_penalty": 0.5}), structured_outputs_regex="a+")
    assert sent["frequency_penalty"] == 0.5 and sent["structured_outputs"] == {"regex": "a+"}
    assert "structured_outputs" not in body()


@pytest.mark.parametrize("name", sorted(RESERVED))
def test_generation_kwargs_that_would_change_what_a_request_means_are_refused(name):
    with pytest.raises(ConfigurationError, match=f"`{name}`"):
        check_extra({name: 1})


def test_ids_logps_and_reason_are_taken_exactly():
    generation = parse_completion(answer(), REQUEST)
    assert generation.reply_ids == (8, 9, 2)
    assert generation.logps == (-0.5, -1.5, -0.25)
    assert generation.finish_reason is FinishReason.STOP
    assert parse_completion(answer(finish_reason="length"), REQUEST).finish_reason is FinishReason.LENGTH


def test_text_is_never_read():
    assert parse_completion(answer(text="something else entirely"), REQUEST).reply_ids == (8, 9, 2)


def test_an_empty_reply_is_a_reply():
    generation = parse_completion(answer((), ()), REQUEST)
    assert generation.reply_ids == () and generation.logps == ()


@pytest.mark.parametrize("value", [None, math.nan, math.inf, -math.inf, -9999.0, "NaN", True])
def test_what_the_engine_cannot_say_is_unknown(value):
    assert usable_logp(value) is None
    assert parse_completion(answer(logps=(-0.5, value, -0.25)), REQUEST).logps == (-0.5, None, -0.25)


def test_nan_as_json_text_is_unknown():
    text = json.dumps(answer(logps=(-0.5, math.nan, -0.25)))
    assert "NaN" in text
    assert parse_completion(json.loads(text), REQUEST).logps == (-0.5, None, -0.25)


def test_a_certain_token_has_log_probability_zero_not_unknown():
    assert usable_logp(0.0) == 0.0 and usable_logp(-0.0) == 0.0 and usable_logp(0) == 0.0


def test_an_answer_without_log_probabilities_has_none():
    assert parse_completion(answer(logprobs=None), REQUEST).logps is None


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "one choice"),
        (None, "one choice"),
        ([], "one choice"),
        ({"choices": []}, "one choice"),
        ({"choices": [answer()["choices"][0]] * 2}, "one choice"),
        ({"choices": ["text"]}, "one choice"),
        (answer(token_ids=None), "vLLM 0.22"),
        (answer(token_ids=["8", "9", "2"]), "something else than token ids"),
        (answer(token_ids=[8, -1, 2]), "something else than token ids"),
        (answer(token_ids=[8, True, 2]), "something else than token ids"),
        (answer(ids=(8, 9, 9, 9, 2), logps=(-1.0,) * 5), "asked for were 4"),
        (answer(logps=(-0.5, -1.5)), "length 2"),
        (answer(logprobs={"token_logprobs": None}), "length NoneType"),
        (answer(logprobs="none"), "length NoneType"),
        (
            answer(logprobs={"token_logprobs": [-1.0] * 3, "tokens": ["token_id:8", "token_id:9", "token_id:3"]}),
            "other tokens",
        ),
        (answer(prompt_token_ids=[6, 7]), "another prompt"),
        (answer(finish_reason="abort"), "'abort'"),
        (answer(finish_reason=None), "None"),
    ],
)
def test_nonsense_is_refused_with_what_is_wrong(given, message):
    with pytest.raises(ServiceError, match=message):
        parse_completion(given, REQUEST)
