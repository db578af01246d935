"""Servers that answer, are down, hang or are something else: each is told in time, with its address."""

from __future__ import annotations

import contextlib
import socket
import threading
import time

import pytest

from taspo_trl.cli.doctor import network, services
from taspo_trl.cli.doctor.findings import Status, TookTooLong, within


MODELS = {"data": [{"id": "glm", "root": "org/glm", "max_model_len": 4096}]}
VLLM = {"/health": (200, ""), "/v1/models": (200, MODELS)}
PASSAGE = {"document": {"id": "1", "contents": '"Paris"\nThe capital of France.'}, "score": 1.0}


def retriever(url, timeout):
    return services.retriever_findings({"retriever": f"{url}/retrieve"}, timeout)


def analyzer(url, timeout):
    return [services.endpoint_finding(f"{url}/v1", "openai/glm", timeout)]


SERVICES = {
    "vllm": (services.vllm_findings, VLLM),
    "retriever": (retriever, {"/retrieve": (200, {"result": [[PASSAGE]]})}),
    "analyzer": (analyzer, {"/v1/models": (200, MODELS)}),
}


@pytest.mark.parametrize("name", SERVICES)
def test_service_that_answers(serve, name):
    look, pages = SERVICES[name]
    found = look(serve(pages), 3.0)
    assert [one.status for one in found] == [Status.OK], found


@pytest.mark.parametrize("name", SERVICES)
def test_service_that_is_down_fails_at_once_with_its_address(name, closed_port):
    started = time.perf_counter()
    (found,) = SERVICES[name][0](closed_port, 1.0)
    assert found.status is Status.FAILURE and closed_port in found.detail
    assert time.perf_counter() - started < 5


@pytest.mark.parametrize("name", SERVICES)
def test_service_that_hangs_is_given_up(serve, name):
    look, pages = SERVICES[name]
    started = time.perf_counter()
    (found,) = look(serve(dict.fromkeys(pages, (200, None))), 0.5)
    assert found.status is Status.FAILURE and found.remedy + found.detail
    assert time.perf_counter() - started < 5


@pytest.mark.parametrize("name", SERVICES)
@pytest.mark.parametrize("wrong", ["<html>hello</html>", {"unexpected": 1}, [1, 2]])
def test_service_that_is_something_else(serve, name, wrong):
    look, pages = SERVICES[name]
    found = look(serve(dict.fromkeys(pages, (200, wrong))), 1.0)
    assert found[-1].status is Status.FAILURE, found


@pytest.mark.parametrize(
    ("status", "body", "expected"),
    [(401, "", Status.OK), (404, "", Status.WARNING), (500, "", Status.WARNING)],
)
def test_endpoint_statuses(serve, status, body, expected):
    found = services.endpoint_finding(f"{serve({'/v1/models': (status, body)})}/v1", "openai/glm", 2.0)
    assert found.status is expected


def test_endpoint_that_serves_another_model(serve):
    found = services.endpoint_finding(f"{serve({'/v1/models': (200, MODELS)})}/v1", "openai/qwen", 2.0)
    assert found.status is Status.WARNING and "glm" in found.detail and "qwen" in found.detail


def test_server_that_trickles_is_given_up(serve, monkeypatch):
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        one.listen()

        def trickle():
            connection, _ = one.accept()
            with connection, contextlib.suppress(OSError):  # the client hangs up
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
                for _ in range(100):
                    connection.sendall(b"x")
                    time.sleep(0.05)

        threading.Thread(target=trickle, daemon=True).start()
        started = time.perf_counter()
        answer = network.get(f"http://127.0.0.1:{one.getsockname()[1]}/", 0.3)
        assert answer.status == 0 and time.perf_counter() - started < 4  # the whole answer takes 5 s


def test_vllm_server_that_does_not_suit_the_recipe(serve, tmp_path):
    from taspo_trl import TASPOConfig

    args = TASPOConfig(str(tmp_path), use_cpu=True, bf16=False, use_vllm=True, vllm_mode="server",
                       max_prompt_length=4096, max_completion_length=512)  # fmt: skip
    found = services.vllm_findings(serve(VLLM), 3.0, args, "org/other")
    text = " ".join(one.detail for one in found)
    assert "takes no weights" in text and "4608" in text and "org/other" in text


def test_looks_end_in_time():
    with pytest.raises(TookTooLong):
        within(0.05, lambda: time.sleep(5))
    with pytest.raises(ZeroDivisionError):
        within(1.0, lambda: 1 / 0)


@pytest.mark.parametrize(
    ("status", "expected", "text"), [(200, Status.OK, "7 + 5 tokens"), (401, Status.FAILURE, "failed: auth")]
)
def test_analyzer_that_is_asked_shows_what_a_real_request_says(serve, monkeypatch, status, expected, text):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-canary-0123456789")
    message = {"role": "assistant", "content": '{"evidence": []}'}
    reply = {
        "id": "1", "object": "chat.completion", "created": 1, "model": "glm",
        "choices": [{"index": 0, "finish_reason": "stop", "message": message}],
        "usage": {"prompt_tokens": 7, "completion_tokens": 5, "total_tokens": 12},
    }  # fmt: skip
    body = reply if status == 200 else {"error": {"message": "bad key sk-canary-0123456789"}}
    url = serve({"/v1/models": (200, MODELS), "/v1/chat/completions": (status, body)})
    found = services.analyzer_findings("openai/glm", f"{url}/v1", 5.0, ask=True)
    assert [one.name for one in found] == ["analyzer key", "analyzer host", "analyzer answer"]
    assert found[-1].status is expected and text in found[-1].detail.lower()
    assert "canary" not in " ".join(one.detail + one.remedy for one in found)
