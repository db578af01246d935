"""A local server of two kinds of environments, and clients with the interfaces of OpenEnv's and OpenReward's."""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import ModuleType, SimpleNamespace
from typing import Any


SECRET = "plugh"


class _Handler(BaseHTTPRequestHandler):
    """Sessions by number; `/reset` and `/step` are an OpenEnv environment, the rest an ORS server."""

    server: Any

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])) or b"{}")
        self.server.requests.append(self.path)
        answer = getattr(self, "_" + self.path.strip("/"), None)
        found = answer(body) if answer is not None else None
        text = json.dumps(found if found is not None else {"error": "no such route"}).encode()
        self.send_response(200 if found is not None else 404)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def _reset(self, body: dict) -> dict:
        return {"observation": {"echoed_message": "Say the word. "}, "reward": None, "done": False}

    def _step(self, body: dict) -> dict:
        message = body["action"]["message"]
        is_right = message == SECRET
        return {"observation": {"echoed_message": message}, "reward": float(is_right), "done": is_right}

    def _tasks(self, body: dict) -> dict:
        return {"tasks": [{"hint": f"hint {k}"} for k in range(3)]}

    def _tools(self, body: dict) -> dict:
        word = {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]}
        return {"tools": [{"name": "submit", "description": "Submit a word.", "input_schema": word}]}

    def _open(self, body: dict) -> dict:
        self.server.sessions += 1
        return {"prompt": [{"type": "text", "text": f"Task {body['index']}: submit the word."}]}

    def _close(self, body: dict) -> dict:
        self.server.sessions -= 1
        return {}

    def _call(self, body: dict) -> dict:
        is_right = body["input"]["word"] == SECRET
        block = {"type": "text", "text": "right" if is_right else "wrong"}
        return {"blocks": [block], "reward": float(is_right), "finished": is_right}

    def log_message(self, *args: Any) -> None: ...


@contextmanager
def serving() -> Iterator[Any]:
    """A running server: `url`, the routes that were asked for in `requests`, the open `sessions`."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.requests, server.sessions = [], 0  # type: ignore[attr-defined]
    server.url = f"http://127.0.0.1:{server.server_port}"  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def ask(url: str, route: str, **body: Any) -> dict:
    request = urllib.request.Request(f"{url}/{route}", json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=10) as answer:
        return json.loads(answer.read())


# ---- OpenEnv --------------------------------------------------------------------------------------------------------


@dataclass
class EchoAction:
    message: str


class EchoEnv:
    """`reset(**kwargs)` and `step(action)`, each with `observation`, `reward` and `done`, like `openenv`'s clients."""

    def __init__(self, base_url: str):
        self._url = base_url

    def reset(self, **kwargs: Any) -> SimpleNamespace:
        return self._result(ask(self._url, "reset", **kwargs))

    def step(self, action: EchoAction) -> SimpleNamespace:
        return self._result(ask(self._url, "step", action={"message": action.message}))

    @staticmethod
    def _result(found: dict) -> SimpleNamespace:
        return SimpleNamespace(**{**found, "observation": SimpleNamespace(**found["observation"])})


def echo_package(url: str) -> ModuleType:
    """The client package of an environment, whose address is always that of the server."""
    made = ModuleType("echo_env")
    made.EchoAction = EchoAction  # type: ignore[attr-defined]
    made.EchoEnv = lambda base_url: EchoEnv(url)  # type: ignore[attr-defined]
    return made


# ---- OpenReward -----------------------------------------------------------------------------------------------------


class _Session:
    def __init__(self, url: str, index: int):
        self._url, self._index = url, index

    def __enter__(self) -> _Session:
        self._prompt = ask(self._url, "open", index=self._index)["prompt"]
        return self

    def __exit__(self, *_: Any) -> None:
        ask(self._url, "close")

    def get_prompt(self) -> list[dict]:
        return self._prompt

    def list_tools(self) -> list[SimpleNamespace]:
        return [SimpleNamespace(**one) for one in ask(self._url, "tools")["tools"]]

    def call_tool(self, name: str, arguments: dict) -> SimpleNamespace:
        found = ask(self._url, "call", name=name, input=arguments)
        return SimpleNamespace(metadata=None, **found)


class _Environment:
    server, name, namespace = "local", "words", None

    def __init__(self, url: str):
        self._url = url

    def num_tasks(self, split: str) -> int:
        return len(ask(self._url, "tasks")["tasks"])

    def get_task(self, split: str, index: int) -> SimpleNamespace:
        return SimpleNamespace(task_spec=ask(self._url, "tasks")["tasks"][index])

    def list_tasks(self, split: str) -> list[SimpleNamespace]:
        return [self.get_task(split, k) for k in range(self.num_tasks(split))]

    def list_tools(self) -> list[SimpleNamespace]:
        return _Session(self._url, 0).list_tools()

    def session(self, split: str, index: int, secrets: Any = None) -> _Session:
        return _Session(self._url, index)


def openreward_package() -> ModuleType:
    """The part of the `openreward` client that TRL's adapter uses."""
    made = ModuleType("openreward")
    made.OpenReward = lambda base_url: SimpleNamespace(  # type: ignore[attr-defined]
        environments=SimpleNamespace(get=lambda name: _Environment(base_url))
    )
    return made
