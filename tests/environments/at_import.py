"""An environment whose module starts a thread and reads a variable when it is imported, as clients and a JVM do."""

from __future__ import annotations

import os
import queue
import threading

from taspo_trl.environments.base import ResetResult, StepResult, TextEnvironment


FOLDER = os.environ.get("TASPO_TEST_FOLDER", "nowhere")

_questions: queue.SimpleQueue[queue.SimpleQueue[str]] = queue.SimpleQueue()


def _serve() -> None:
    while True:
        _questions.get().put(FOLDER)


threading.Thread(target=_serve, daemon=True).start()


class AtImport(TextEnvironment):
    """Answers with what the module's thread says."""

    def reset(self, *, seed: int, **row: object) -> ResetResult:
        answer: queue.SimpleQueue[str] = queue.SimpleQueue()
        _questions.put(answer)
        return ResetResult(f"{answer.get(timeout=10)} and {os.environ.get('TASPO_TEST_FOLDER')}")

    def step(self, action: str) -> StepResult:
        return StepResult("done", 1.0, True, False, {"success": True})


class Preloaded(AtImport):
    """Asks for what does not suit it."""

    preload = True
