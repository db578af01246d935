"""A small HTTP server that speaks what is used of `vllm serve`, and misbehaves on request."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


EOS = 2


class FakeVLLM:
    """Answers `/v1/completions` with ids that follow from the prompt and the seed.

    Args:
        reply (`Callable`, *optional*):
            (body, number of the request) -> token ids, or a whole choice, or a fault: a status code, `"hang"`,
            `"reset"`, `"garbage"`. None = the default reply.
        model (`str`), max_model_len (`int`), instance (`str`):
            What the server says it is.
        dev_mode (`bool`):
            Whether the development endpoints exist.
    """

    def __init__(
        self,
        reply: Callable[[dict[str, Any], int], Any] | None = None,
        *,
        model: str = "fake/model",
        max_model_len: int = 1024,
        instance: str = "one",
        dev_mode: bool = True,
        weight_transfer: Any = None,
        logprobs_mode: str = "processed_logprobs",
        on_init: Callable[[dict[str, Any]], Any] = lambda info: {"message": "ok"},
        port: int = 0,
    ):
        self.reply = reply or (lambda body, number: None)
        self.model, self.max_model_len, self.instance = model, max_model_len, instance
        self.dev_mode, self.logprobs_mode = dev_mode, logprobs_mode
        self.weight_transfer = weight_transfer or {"backend": "nccl"}
        self.on_init = on_init
        self.health = 200
        self.requests: list[dict[str, Any]] = []
        """Bodies of `/v1/completions` in the order of their arrival."""
        self.paths: list[str] = []
        self.num_connections = 0
        self.num_running = self.most_running = 0
        self.released = threading.Event()
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()
        owner = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self) -> None:
                super().setup()
                with owner._lock:
                    owner.num_connections += 1
                    owner._sockets.add(self.request)

            def finish(self) -> None:
                with owner._lock:
                    owner._sockets.discard(self.request)
                super().finish()

            def do_GET(self) -> None:
                owner._get(self)

            def do_POST(self) -> None:
                owner._post(self)

            def log_message(self, *args: Any) -> None: ...

        class Server(ThreadingHTTPServer):
            request_queue_size = 512
            daemon_threads = True

            def handle_error(self, *args: Any) -> None: ...

        self._server = Server(("127.0.0.1", port), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        return self._server.server_address[1]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def stop(self) -> None:
        """Die: no new connection is taken, open ones are cut."""
        self.released.set()
        self._server.shutdown()
        self._server.server_close()
        with self._lock:
            for one in list(self._sockets):
                _cut(one)
        self._thread.join()

    def __enter__(self) -> FakeVLLM:
        return self

    def __exit__(self, *exc: Any) -> None:
        self.stop()

    # ---- endpoints -------------------------------------------------------------------------------------------------

    def _get(self, handler: BaseHTTPRequestHandler) -> None:
        path = handler.path.partition("?")[0]
        self.paths.append(path)
        if path == "/health":
            _send(handler, self.health, None)
        elif path == "/v1/models":
            card = {"id": self.model, "root": f"/models/{self.model}", "max_model_len": self.max_model_len}
            _send(handler, 200, {"data": [card]})
        elif path == "/server_info" and self.dev_mode:
            config = {
                "instance_id": self.instance,
                "model_config": {"logprobs_mode": self.logprobs_mode},
                "weight_transfer_config": self.weight_transfer if self.weight_transfer != "none" else None,
            }
            _send(handler, 200, {"vllm_config": config})
        elif path == "/get_world_size" and self.dev_mode:
            _send(handler, 200, {"world_size": 1})
        else:
            _send(handler, 404, {"detail": "Not Found"})

    def _post(self, handler: BaseHTTPRequestHandler) -> None:
        self.paths.append(handler.path)
        body = json.loads(handler.rfile.read(int(handler.headers["Content-Length"])))
        if handler.path == "/init_weight_transfer_engine" and self.dev_mode:
            answer = self.on_init(body["init_info"])
            _send(handler, *(answer if isinstance(answer, tuple) else (200, answer)))
            return
        if handler.path != "/v1/completions":
            _send(handler, 404, {"detail": "Not Found"})
            return
        with self._lock:
            number = len(self.requests)
            self.requests.append(body)
            self.num_running += 1
            self.most_running = max(self.most_running, self.num_running)
        try:
            self._complete(handler, body, number)
        finally:
            with self._lock:
                self.num_running -= 1

    def _complete(self, handler: BaseHTTPRequestHandler, body: dict[str, Any], number: int) -> None:
        answer = self.reply(body, number)
        if answer == "hang":
            self.released.wait(60)
            _cut(handler.request)
        elif answer == "reset":
            _cut(handler.request)
        elif answer == "garbage":
            _send(handler, 200, "<html>busy</html>")
        elif isinstance(answer, int):
            _send(handler, answer, {"error": {"message": f"fault {answer}"}})
        elif body["model"] != self.model:
            _send(handler, 404, {"error": {"message": f"The model `{body['model']}` does not exist."}})
        elif len(body["prompt"]) >= self.max_model_len:
            _send(handler, 400, {"error": {"message": f"This model's maximum context length is {self.max_model_len}"}})
        else:
            choice = answer if isinstance(answer, dict) else choice_of(body, answer)
            _send(handler, 200, {"choices": [choice]})


def choice_of(body: dict[str, Any], ids: list[int] | None = None, **fields: Any) -> dict[str, Any]:
    """A choice as vLLM words it; by default ids from prompt and seed, closed by the end token if there is room."""
    if ids is None:
        ids = [3 + (sum(body["prompt"]) + body["seed"] + k) % 7 for k in range(3)] + [EOS]
    ids = ids[: body["max_tokens"]]
    return {
        "index": 0,
        "text": "never read",
        "token_ids": ids,
        "prompt_token_ids": body["prompt"],
        "finish_reason": "stop" if ids and ids[-1] in body["stop_token_ids"] else "length",
        "logprobs": {
            "token_logprobs": [-0.25 * (k + 1) for k in range(len(ids))],
            "tokens": [f"token_id:{one}" for one in ids],
        },
        **fields,
    }


def _send(handler: BaseHTTPRequestHandler, status: int, answer: Any) -> None:
    data = b"" if answer is None else answer.encode() if isinstance(answer, str) else json.dumps(answer).encode()
    try:
        handler.send_response(status)
        handler.send_header("Content-Type", "application/json")
        handler.send_header("Content-Length", str(len(data)))
        handler.end_headers()
        handler.wfile.write(data)
    except OSError:
        handler.close_connection = True


def _cut(connection: socket.socket) -> None:
    try:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # a reset, not a farewell
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass
    connection.close()


def wait_until(holds: Callable[[], bool], seconds: float = 5.0) -> bool:
    """Whether it comes to hold in time."""
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True
