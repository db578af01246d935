"""A local OpenAI-compatible server with scripted answers; the package reaches it through LiteLLM like any other."""

from __future__ import annotations

import http.server
import json
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from taspo_trl.analyzer.base import AnalyzerRequest
from taspo_trl.analyzer.extractive import ExtractiveAnalyzer


@dataclass(frozen=True)
class Reply:
    """One scripted response."""

    content: Any = "{}"
    """The message's content; None leaves it out."""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    finish_reason: str = "stop"
    message: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of the message, for example reasoning_content."""
    usage: Mapping[str, int] | None = field(
        default_factory=lambda: {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120}
    )
    error: str = ""
    """Message of an error response."""
    body: bytes | None = None
    """Sent as it is, instead of all the above."""
    delay: float = 0.0
    """Seconds before the response begins."""
    drip: float = 0.0
    """Seconds between two bytes of the response."""
    reset: bool = False
    """Close the connection instead of answering."""

    def encoded(self) -> bytes:
        if self.body is not None:
            return self.body
        if self.error:
            return json.dumps({"error": {"message": self.error, "type": "error", "code": None}}).encode()
        message = {"role": "assistant", **({} if self.content is None else {"content": self.content}), **self.message}
        data = {
            "id": "x",
            "object": "chat.completion",
            "created": 1,
            "model": "fake",
            "choices": [{"index": 0, "finish_reason": self.finish_reason, "message": message}],
        }
        if self.usage is not None:
            data["usage"] = dict(self.usage)
        return json.dumps(data).encode()


@dataclass(frozen=True)
class Received:
    """One request as it arrived."""

    path: str
    headers: Mapping[str, str]
    """Names in lower case."""
    body: Mapping[str, Any]
    time: float

    @property
    def payload(self) -> Mapping[str, Any]:
        return json.loads(self.body["messages"][1]["content"])

    @property
    def stage(self) -> str:
        if "outcome" in self.payload:
            return "judgement"
        return "extraction" if "trajectories" in self.payload else "alignment"

    @property
    def text(self) -> str:
        return json.dumps(self.body, ensure_ascii=False)


class Endpoint:
    """Serves until it is closed.

    Args:
        script (`Callable`, *optional*):
            (request, its number from 0) -> reply, or the content of one. By default an honest analyzer.
    """

    def __init__(self, script: Callable[[Received, int], Reply | str] | None = None):
        self.script = script or (lambda request, number: honest(request))
        self.received: list[Received] = []
        self.errors: list[BaseException] = []
        """What the script raised: a mistake of the test."""
        self._lock = threading.Lock()
        self._is_closing = threading.Event()
        endpoint = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: Any) -> None:
                pass

            def do_POST(self) -> None:
                endpoint._serve(self)

        class Server(http.server.ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 64

            def handle_error(self, request: Any, client_address: Any) -> None:
                pass  # clients that hang up are part of the tests

        self._server = Server(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/v1"

    def close(self) -> None:
        self._is_closing.set()
        self._server.shutdown()
        self._server.server_close()

    def __enter__(self) -> Endpoint:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def _serve(self, handler: http.server.BaseHTTPRequestHandler) -> None:
        body = json.loads(handler.rfile.read(int(handler.headers.get("content-length", 0))))
        headers = {name.lower(): value for name, value in handler.headers.items()}
        request = Received(handler.path, headers, body, time.monotonic())
        with self._lock:
            number = len(self.received)
            self.received.append(request)
        try:
            answer = self.script(request, number)
        except BaseException as error:
            self.errors.append(error)
            raise
        reply = answer if isinstance(answer, Reply) else Reply(answer)
        self._is_closing.wait(reply.delay)
        if reply.reset:
            handler.close_connection = True
            handler.connection.close()
            return
        data = reply.encoded()
        handler.send_response(reply.status)
        for name, value in {"content-type": "application/json", **reply.headers}.items():
            handler.send_header(name, value)
        handler.send_header("content-length", str(len(data)))
        handler.end_headers()
        if not reply.drip:
            handler.wfile.write(data)
            return
        for k in range(len(data)):
            handler.wfile.write(data[k : k + 1])
            handler.wfile.flush()
            if self._is_closing.wait(reply.drip):
                break


def honest(request: Received) -> str:
    """What the embedded analyzer answers to the request's payload."""
    return ExtractiveAnalyzer().complete(AnalyzerRequest(request.stage, "", request.payload)).text


NOTHING = '{"evidence": []}'
"""A readable answer to every question of `request`."""
OK = Reply(NOTHING)
ALL_PROVIDERS = ["openai/m", "deepseek/m", "zai/m", "dashscope/m", "hosted_vllm/m", "openrouter/a/m"]
"""One model for each of LiteLLM's routes and of our ways to switch reasoning off."""


def request(number: int = 0) -> AnalyzerRequest:
    """A question that is none, different for each number."""
    return AnalyzerRequest("extraction", "json", {"task": str(number), "trajectories": []})


def warned(caplog: Any, words: str) -> int:
    """How many log records hold `words`."""
    return sum(words in record.getMessage() for record in caplog.records)
