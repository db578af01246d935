"""Where a key may be looked for and is not found."""

from __future__ import annotations

import copy
import logging
import os
import pickle

import pytest

from taspo_trl.analyzer import LiteLLMAnalyzer
from taspo_trl.redaction import Secret, redacted

from ..endpoint import OK, Reply, request


KEY = "sk-CANARY-7731"


def test_no_way_of_looking_at_an_analyzer_shows_its_key(serve, make_analyzer, caplog):
    # SEC-1
    caplog.set_level(logging.DEBUG)
    endpoint = serve(lambda received, number: Reply(status=401, error=f"Incorrect API key provided: {KEY}"))
    analyzer = make_analyzer(endpoint, api_key=KEY, required=False)
    reply = analyzer.complete(request())
    assert endpoint.received[0].headers["authorization"] == f"Bearer {KEY}"
    shown = [repr(analyzer), str(vars(analyzer)), repr(reply), pickle.dumps(analyzer).decode("latin-1"), caplog.text]
    shown += [repr(value) for value in vars(analyzer).values()]
    shown += [str(vars(value)) for value in vars(analyzer).values() if hasattr(value, "__dict__")]
    assert not [text for text in shown if KEY in text or "CANARY" in text]


def test_tracebacks_with_local_variables_do_not_show_the_key(serve, make_analyzer):
    from rich.console import Console
    from rich.traceback import Traceback

    endpoint = serve(lambda received, number: Reply(status=401, error=f"bad key {KEY}"))
    analyzer = make_analyzer(endpoint, api_key=KEY)
    for act in (
        lambda: analyzer.complete(request()),
        lambda: LiteLLMAnalyzer("openai/m", api_key=KEY, api_base=""),
        lambda: LiteLLMAnalyzer("nowhere/m", api_key=KEY, api_base="http://h/v1"),
    ):
        try:
            act()
        except Exception as error:
            console = Console(record=True, width=400, file=open(os.devnull, "w"))  # noqa: SIM115
            console.print(Traceback.from_exception(type(error), error, error.__traceback__, show_locals=True))
            assert "CANARY" not in console.export_text()
        else:
            pytest.fail("this should have been an error")


def test_a_copy_in_another_process_takes_the_key_from_there(serve, make_analyzer, monkeypatch):
    endpoint = serve(lambda received, number: OK)
    analyzer = make_analyzer(endpoint, "deepseek/m", api_key=KEY, attempts=5, timeout=7.0)
    monkeypatch.setenv("DEEPSEEK_API_KEY", "sk-from-there")
    copied = pickle.loads(pickle.dumps(analyzer))
    assert copied.settings == analyzer.settings and copied.settings.attempts == 5
    assert copied.complete(request()).error == ""
    copied.close()
    assert endpoint.received[0].headers["authorization"] == "Bearer sk-from-there"


def test_a_key_in_the_environment_is_used_and_never_shown(serve, make_analyzer, monkeypatch, caplog):
    monkeypatch.setenv("DEEPSEEK_API_KEY", KEY)
    endpoint = serve(lambda received, number: Reply(status=401, error=f"bad key {KEY}"))
    analyzer = make_analyzer(endpoint, "deepseek/m", required=False)
    analyzer.complete(request())
    assert endpoint.received[0].headers["authorization"] == f"Bearer {KEY}"
    assert "CANARY" not in caplog.text + str(vars(analyzer))


def test_a_secret_shows_itself_to_nobody():
    secret = Secret(KEY)
    assert secret.reveal() == KEY and bool(secret) and not Secret()
    assert "CANARY" not in repr(secret) + str(secret) + f"{secret}" + pickle.dumps(secret).decode("latin-1")
    assert not [name for name in Secret.__slots__ if isinstance(getattr(secret, name), str | bytes)]
    assert not pickle.loads(pickle.dumps(secret))
    assert copy.copy(secret) is secret and copy.deepcopy({"a": secret})["a"] is secret


def test_texts_are_redacted_of_the_key_and_of_keys_in_the_environment(monkeypatch):
    monkeypatch.setenv("SOME_API_KEY", "env-secret-value")
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "tokenizers-stay")
    monkeypatch.setenv("SHORT_KEY", "abc")
    text = f"{KEY} env-secret-value tokenizers-stay abc"
    assert redacted(text, Secret(KEY)) == "*** *** tokenizers-stay abc"
