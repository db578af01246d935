"""Drives a headless Chromium over the DevTools protocol, with nothing but the standard library.

Chromium reads commands from file descriptor 3 and writes answers to 4 (`--remote-debugging-pipe`): no port, no driver
program, no package.
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest


_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")


class Page:
    """One tab."""

    def __init__(self, read_fd: int, write_fd: int):
        self._read_fd, self._write_fd = read_fd, write_fd
        self._buffer = b""
        self._count = 0
        self._url = ""
        self.events: list[dict[str, Any]] = []
        target = self._call("Target.createTarget", url="about:blank", session=None)["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True, session=None)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._call(f"{domain}.enable")

    # ---- what tests use --------------------------------------------------------------------------------------------

    def open(self, url: str, timeout: float = 60.0) -> float:
        """Load a page until it says `data-ready`; returns the seconds since the navigation, the browser's clock."""
        self.visit(url)
        self.wait("document.documentElement?.dataset.ready !== undefined", timeout)
        return float(self.run("document.documentElement.dataset.ready")) / 1000

    def visit(self, url: str) -> None:
        """Go to an address; one that differs in its hash alone does not load the page again."""
        if url.split("#")[0] != self._url.split("#")[0]:
            self.events.clear()
        self._url = url
        self._call("Page.navigate", url=url)

    def run(self, expression: str) -> Any:
        """The JSON value of a JavaScript expression; promises are awaited."""
        answer = self._call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in answer:
            details = answer["exceptionDetails"]
            raise AssertionError(details.get("exception", {}).get("description") or details["text"])
        return answer["result"].get("value")

    def wait(self, condition: str, timeout: float = 10.0) -> None:
        """Until a JavaScript expression is true."""
        deadline = time.monotonic() + timeout
        while not self.run(f"Boolean({condition})"):
            assert time.monotonic() < deadline, f"not true within {timeout} s: {condition}"
            time.sleep(0.02)

    def texts(self, selector: str) -> list[str]:
        """The texts of all elements that match."""
        return self.run(f"[...document.querySelectorAll({json.dumps(selector)})].map((one) => one.textContent)")

    def click(self, selector: str) -> None:
        self.run(f"document.querySelector({json.dumps(selector)}).click()")

    def press(self, key: str) -> None:
        """A real key press, through the browser's input."""
        text = {"text": key} if len(key) == 1 else {}
        self._call("Input.dispatchKeyEvent", type="keyDown", key=key, **text)
        self._call("Input.dispatchKeyEvent", type="keyUp", key=key)

    def move(self, x: float, y: float) -> None:
        self._call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def resize(self, width: int, height: int, is_dark: bool = False) -> None:
        self._call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}
        self._call("Emulation.setEmulatedMedia", features=[scheme])

    def screenshot(self, path: str | os.PathLike, clip: dict[str, float] | None = None) -> None:
        """What is seen now, or `clip` (x, y, width, height) of it, as PNG or WebP by the ending of `path`."""
        path = Path(path)
        options: dict[str, Any] = {"format": path.suffix[1:]}
        if path.suffix == ".webp":
            options["quality"] = 82
        if clip is not None:
            options["clip"] = {**clip, "scale": 1}
        path.write_bytes(base64.b64decode(self._call("Page.captureScreenshot", **options)["data"]))

    def problems(self) -> list[str]:
        """Errors that the page raised or logged since it was opened, refusals of its security policy included."""
        found = []
        for event in self.events:
            parameters = event["params"]
            if event["method"] == "Runtime.exceptionThrown":
                details = parameters["exceptionDetails"]
                found.append(details.get("exception", {}).get("description") or details["text"])
            elif event["method"] == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
                found.append(parameters["entry"]["text"])
        return found

    def requests(self) -> list[str]:
        """The addresses that the page asked for since it was opened."""
        return [
            event["params"]["request"]["url"]
            for event in self.events
            if event["method"] == "Network.requestWillBeSent"
        ]

    # ---- the protocol ----------------------------------------------------------------------------------------------

    def _call(self, method: str, session: str | None = "", **parameters: Any) -> dict[str, Any]:
        self._count += 1
        message: dict[str, Any] = {"id": self._count, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = self._session
        os.write(self._write_fd, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._count:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]
            if "method" in answer:
                self.events.append(answer)

    def _next(self, timeout: float = 120.0) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read_fd], [], [], timeout)
            assert ready, f"Chromium did not answer within {timeout} s"
            part = os.read(self._read_fd, 1 << 20)
            assert part, "Chromium ended"
            self._buffer += part
        message, self._buffer = self._buffer.split(b"\0", 1)
        return json.loads(message)


@contextmanager
def chromium(folder: Path) -> Iterator[Page]:
    """A tab of a fresh Chromium whose profile lies in `folder`; skips where there is no Chromium.

    `TASPO_TEST_CHROMIUM` names another one than the first found.
    """
    named = os.environ.get("TASPO_TEST_CHROMIUM")
    program = named or next((found for name in _NAMES if (found := shutil.which(name))), None)
    if program is None:
        pytest.skip("no Chromium here (looked for " + ", ".join(_NAMES) + "); set TASPO_TEST_CHROMIUM")
    command_read, command_write = os.pipe()
    answer_read, answer_write = os.pipe()

    def connect() -> None:
        # Out of the way first: one of the pipes may have been given the number 3 or 4.
        high_read, high_write = os.dup2(command_read, 100), os.dup2(answer_write, 101)
        os.dup2(high_read, 3)
        os.dup2(high_write, 4)

    arguments = [
        "--headless=new",
        "--remote-debugging-pipe",
        f"--user-data-dir={folder}",
        "--no-sandbox",  # containers rarely allow one, and the pages are the tests' own
        "--disable-dev-shm-usage",
        "--disable-gpu",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-ipc-flooding-protection",  # a test may go through places faster than people
        "about:blank",
    ]
    process = subprocess.Popen(
        [program, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        pass_fds=(3, 4),
        preexec_fn=connect,
    )
    os.close(command_read)
    os.close(answer_write)
    try:
        yield Page(answer_read, command_write)
    finally:
        with suppress(OSError):
            os.write(command_write, b'{"id": 0, "method": "Browser.close"}\0')
        with suppress(subprocess.TimeoutExpired):
            process.wait(10)
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(10)
        if process.poll() is None:
            process.kill()
            process.wait()
        os.close(command_write)
        os.close(answer_read)
