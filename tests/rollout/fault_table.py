"""The faults of worlds, engines and retrievers: what each does to its episode, and within which bounds.

One list feeds the tests (`test_fault_table.py`) and the table of `docs/reliability.md`. After a change of the list:

    python -m tests.rollout.fault_table
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from taspo_trl.generation import Generation
from taspo_trl.types import FinishReason, StopReason


PAGE = Path(__file__).resolve().parents[2] / "docs" / "reliability.md"
BEGIN, END = "<!-- fault table: begin -->", "<!-- fault table: end -->"


@dataclass(frozen=True)
class Fault:
    """One row of the table.

    Args:
        part (`str`), kind (`str`):
            Who fails, and how: raises, hangs, dies, wrong type, huge, hostile.
        what (`str`):
            What happens, as the table says it.
        ends (`StopReason` or `str`):
            How the episode ends; a text where something else than one episode is meant.
        time (`str`), memory (`str`):
            The bounds, as the table says them.
        order (`str`, *optional*):
            Worlds: the order that makes `tests.scripted.ScriptedEnvironment` do it.
        answer (`Callable`, *optional*):
            Engines: makes what the future answers with; an exception is raised from it.
        seconds (`float`, *optional*):
            Worlds and engines: within which the whole batch must have ended. Hanging calls are given one second.
        megabytes (`float`, *optional*):
            What Python may hold at most meanwhile.
        tests (`tuple[str, ...]`, *optional*):
            Tests elsewhere that check the row, as `module:function`.
    """

    part: str
    kind: str
    what: str
    ends: StopReason | str
    time: str = "at once"
    memory: str = "nothing stays"
    order: str = ""
    answer: Callable[[], Any] | None = None
    seconds: float = 20.0
    megabytes: float | None = None
    tests: tuple[str, ...] = ()


THREAD, PROCESS = "environment in a thread", "environment in a process"
ENGINE, RETRIEVER = "engine", "retriever"

_HTTP = "tests.environments.test_search_qa_http"
_OUTLIVED = f"{_HTTP}:test_two_faults_are_outlived"
_LASTING = f"{_HTTP}:test_a_lasting_fault_ends_in_a_service_error_with_url_and_cause"
_SERVER = "tests.generation.test_vllm_server"
_ONE_HANGS = f"{_SERVER}:test_a_request_that_hangs_ends_within_its_time_while_others_are_answered"
_ALL_HANG = f"{_SERVER}:test_a_server_that_hangs_is_given_up_once_not_for_every_request"
_GONE = f"{_SERVER}:test_a_server_that_dies_costs_the_batch_no_time_and_says_what_to_do"
_FAULTS = "tests.rollout.test_faults"
_RETRIES = "three attempts, each within the retriever's time-out, and its pauses"
_INTERRUPTS = "KeyboardInterrupt or SystemExit is raised in it"
_TEXT_OF_ERROR = "its error cannot be put into words"

FAULTS = (
    Fault(THREAD, "raises", "`reset` or `step` raises", StopReason.ENV_ERROR, order="raise"),
    Fault(THREAD, "raises", "a service behind it is down", StopReason.SERVICE_ERROR, order="service"),
    Fault(
        THREAD, "raises", _INTERRUPTS, "the run ends",
        tests=(f"{_FAULTS}:test_an_interrupt_from_inside_an_environment_ends_the_run",),
    ),
    Fault(
        THREAD, "hangs", "`reset` or `step` does not return", StopReason.ENV_TIMEOUT, "`environment_timeout`",
        "its thread and instance, until the call returns", order="sleep",
    ),
    Fault(
        THREAD, "dies", "`os._exit`, or a crash in foreign code", "the program ends: run such worlds in processes",
        tests=("tests.rollout.test_fault_table:test_a_crash_in_a_thread_takes_the_program_with_it",),
    ),
    Fault(THREAD, "wrong type", "`step` returns no `StepResult`", StopReason.ENV_ERROR, order="nonsense text"),
    Fault(THREAD, "wrong type", "the reward is no finite number", StopReason.REWARD_ERROR, order="pay list"),
    Fault(
        THREAD, "huge", "an observation of 10 MB", "plays on; the prompt shows what fits",
        "cut before it is tokenized", "a few copies of it", order="flood", megabytes=200,
    ),
    Fault(
        THREAD, "huge", "an error message of 30 MB", StopReason.ENV_ERROR, memory="2,000 characters stay",
        order="shout", megabytes=300,
    ),
    Fault(THREAD, "hostile", _TEXT_OF_ERROR, StopReason.ENV_ERROR, order="mumble"),
    Fault(THREAD, "hostile", "its reward raises when it is read", StopReason.REWARD_ERROR, order="reward"),
    Fault(THREAD, "hostile", "its error is no `Exception`", StopReason.ENV_ERROR, order="panic"),
    Fault(THREAD, "hostile", "its text holds half a character", StopReason.ENV_ERROR, order="nonsense surrogate"),
    Fault(
        THREAD, "hostile", "an observation forges a chat message", "plays on; it is read as text", order="forge",
    ),
    Fault(PROCESS, "raises", "`reset` or `step` raises", StopReason.ENV_ERROR, order="raise"),
    Fault(PROCESS, "raises", "a service behind it is down", StopReason.SERVICE_ERROR, order="service"),
    Fault(
        PROCESS, "raises", _INTERRUPTS, "the run ends",
        tests=(f"{_FAULTS}:test_an_interrupt_from_inside_an_environment_ends_the_run",),
    ),
    Fault(
        PROCESS, "hangs", "`reset` or `step` does not return", StopReason.ENV_TIMEOUT, "`environment_timeout`",
        "nothing stays: it is killed", order="sleep",
    ),
    Fault(PROCESS, "dies", "it exits", StopReason.ENV_DIED, order="die"),
    Fault(PROCESS, "dies", "it is killed, for memory for example", StopReason.ENV_DIED, order="vanish"),
    Fault(PROCESS, "wrong type", "`step` returns no `StepResult`", StopReason.ENV_ERROR, order="nonsense text"),
    Fault(
        PROCESS, "huge", "an observation of 10 MB", "plays on; the prompt shows what fits",
        "cut before it is tokenized", "a few copies of it", order="flood", megabytes=200,
    ),
    Fault(PROCESS, "hostile", _TEXT_OF_ERROR, StopReason.ENV_ERROR, order="mumble"),
    Fault(PROCESS, "hostile", "its answer cannot be sent", StopReason.ENV_ERROR, order="stow"),
    Fault(PROCESS, "hostile", "its error is no `Exception`", StopReason.ENV_ERROR, order="panic"),
    Fault(ENGINE, "raises", "one request fails", StopReason.GENERATION_ERROR, answer=lambda: RuntimeError("no")),
    Fault(
        ENGINE, "hangs", "vLLM's server does not answer a request", StopReason.GENERATION_ERROR,
        "`vllm_server_timeout`", tests=(_ONE_HANGS,),
    ),
    Fault(
        ENGINE, "hangs", "vLLM's server answers nobody", "`generation_error` for the batch",
        "`vllm_server_timeout`, once", tests=(_ALL_HANG,),
    ),
    Fault(
        ENGINE, "dies", "vLLM's server is gone", "`generation_error` for the batch, then the run ends and says why",
        "a few attempts", tests=(_GONE,),
    ),
    Fault(
        ENGINE, "wrong type", "an answer that is no `Generation`", StopReason.GENERATION_ERROR,
        answer=lambda: "hello",
    ),
    Fault(
        ENGINE, "wrong type", "ids that are no numbers", StopReason.GENERATION_ERROR,
        answer=lambda: Generation(("a", None), FinishReason.STOP),  # type: ignore[arg-type]
    ),
    Fault(
        ENGINE, "huge", "more tokens than were asked for", StopReason.GENERATION_ERROR,
        memory="the answer, once", answer=lambda: Generation((1,) * 1_000_000, FinishReason.STOP), megabytes=50,
    ),
    Fault(
        ENGINE, "hostile", "token ids outside of the vocabulary", StopReason.GENERATION_ERROR,
        answer=lambda: Generation((-1, 2**40), FinishReason.STOP),
    ),
    Fault(
        RETRIEVER, "raises", "it answers with an error, for a while or for ever", StopReason.SERVICE_ERROR, _RETRIES,
        tests=(_OUTLIVED, _LASTING),
    ),
    Fault(
        RETRIEVER, "hangs", "it does not answer, or a byte at a time", StopReason.SERVICE_ERROR, _RETRIES,
        tests=(_LASTING,),
    ),
    Fault(
        RETRIEVER, "dies", "nobody listens, or hangs up", StopReason.SERVICE_ERROR, _RETRIES,
        tests=(f"{_HTTP}:test_nobody_listening_is_a_connection_failure",),
    ),
    Fault(
        RETRIEVER, "wrong type", "HTML, an array, fewer lists than questions", StopReason.SERVICE_ERROR, _RETRIES,
        tests=(_LASTING,),
    ),
    Fault(
        RETRIEVER, "huge", "a body without end", StopReason.SERVICE_ERROR, _RETRIES, "64 MB of a body",
        tests=(f"{_HTTP}:test_an_answer_without_end_is_given_up_at_its_cap",),
    ),
    Fault(
        RETRIEVER, "hostile", "words of the failure", "`service_error`; the policy never sees them",
        tests=(f"{_HTTP}:test_four_siblings_end_without_a_word_of_the_outage_for_the_policy",),
    ),
)  # fmt: skip
"""Every row has an order, an answer or tests."""


def table() -> str:
    """The rows as Markdown."""
    lines = ["| who | how | what happens | its episode | time | memory |", "|---|---|---|---|---|---|"]
    for one in FAULTS:
        ends = f"`{one.ends.value}`" if isinstance(one.ends, StopReason) else one.ends
        lines.append(f"| {one.part} | {one.kind} | {one.what} | {ends} | {one.time} | {one.memory} |")
    return "\n".join(lines)


def page_with_table(page: str) -> str:
    """The page with the table between its marks replaced by the present one."""
    head, rest = page.split(BEGIN)
    _, tail = rest.split(END)
    return f"{head}{BEGIN}\n{table()}\n{END}{tail}"


if __name__ == "__main__":
    PAGE.write_text(page_with_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
