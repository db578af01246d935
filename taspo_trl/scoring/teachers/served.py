"""A model that vLLM serves plays the teacher's branch: it scores prompts, and generates nothing that is used.

A server tells the log-probabilities of the prompt's tokens and its own top k, at temperature 1 (vLLM applies no
temperature to prompts). Whole distributions and values at other ids it cannot tell.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ...errors import ConfigurationError, ServiceError
from ...generation.completions import usable_logp
from ...generation.http import HTTPFailure
from ...generation.vllm_server import VLLMServer
from ..distributions import Head
from ..whole import TokenScores, WholeRow, unscored


logger = logging.getLogger(__name__)

_ATTEMPTS = 4
_BACKOFF_SECONDS = 0.5
_AT_ONCE = 32
_SERVICE = "service: "
_SAMPLE = "Put a clean mug in the coffee machine, then 3 apples & 1 \u00e9clair.\n<action>go</action>"


class ServedTeacher:
    """Scores through `/v1/completions` with `prompt_logprobs`.

    What a row suffers costs its own score: it gets a reason. Where the server fails every row of a call, that is
    warned of, once until it answers again: what has no score is not guided, and the run goes on.

    Args:
        base_url (`str`):
            Root of the server, for example `http://localhost:8001`.
        timeout (`float`, *optional*, defaults to `240.0`):
            Seconds to wait for the server to be up, and for each answer.
        temperature (`float`, *optional*, defaults to `1.0`):
            Of the policy's sampling; only 1 can be served.
        tokenizer ([`~transformers.PreTrainedTokenizerBase`], *optional*):
            The policy's, compared with the server's `/tokenize` where it has that.

    Raises:
        ConfigurationError: a temperature that is not 1.
    """

    def __init__(self, base_url: str, timeout: float = 240.0, temperature: float = 1.0, tokenizer: Any = None):
        if temperature != 1.0:
            raise ConfigurationError(
                f"A served teacher tells log-probabilities at temperature 1, but the policy samples at "
                f"{temperature:g}. Set `temperature` to 1, or load the teacher in this process."
            )
        self.server = VLLMServer(base_url, timeout)
        self.timeout = timeout
        self.tokenizer = tokenizer
        self._is_checked = False
        self._is_failing = False

    @property
    def head(self) -> Head:
        raise _whole_distributions()

    def check(self) -> None:
        """Wait until the server is up, and make sure that it can play the teacher.

        Raises:
            ServiceError: not up in time.
            ConfigurationError: it gives no `prompt_logprobs`, or has another tokenizer.
        """
        try:
            self.server.check()
        except ServiceError as error:
            raise ServiceError(
                f"The teacher's server at {self.server.url} cannot be used ({error}). Start it with `vllm serve "
                "TEACHER`, or correct its address."
            ) from error
        self._check_tokenizer()
        probe = WholeRow((0, 0), (1,))
        try:
            self.server.client.start(self._ask(probe, 0)).result()
        except ServiceError as error:
            raise ConfigurationError(
                f"The server at {self.server.url} gives no log-probabilities of prompts ({error}), so it cannot be "
                "the teacher. Serve the teacher with vLLM, which answers `prompt_logprobs`, or load it in this "
                "process."
            ) from error
        self._is_checked = True

    def score(
        self,
        rows: Sequence[WholeRow],
        *,
        vocabulary: int = 0,
        temperature: float | None = None,
        num_batches: int | None = None,
    ) -> list[TokenScores]:
        """As [`~taspo_trl.scoring.whole.score_rows`]; every process sends its own rows.

        Raises:
            ConfigurationError: what is asked for cannot be served.
            ServiceError: the first call finds no server, see [`ServedTeacher.check`].
        """
        if vocabulary < 0:
            raise _whole_distributions()
        if any(row.at_ids is not None for row in rows):
            raise ConfigurationError(
                "A served teacher tells its own top k, not its values at the student's. Choose a term that takes "
                "its top k or the sampled token, or load the teacher in this process."
            )
        if vocabulary > 0 and temperature not in (None, 1.0):
            raise ConfigurationError(
                f"A served teacher tells its top k at temperature 1, not {temperature:g}. Set the term's "
                "`temperature` to 1, or load the teacher in this process."
            )
        if not rows:
            return []
        if not self._is_checked:
            self.check()
        answer = self.server.client.start(self._score_all(rows, vocabulary))
        try:
            scores = answer.result()
        except BaseException:  # Ctrl-C: else it would go on asking
            answer.cancel()
            raise
        self._note([one.reason for one in scores])
        return scores

    def num_batches(self, rows: Sequence[WholeRow]) -> int:
        """No forward runs here."""
        return 0

    def follow(self, step: int) -> None:
        """It stays what it is."""

    def state_dict(self) -> dict[str, Any]:
        """Nothing of it is kept."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Nothing of it is kept."""

    def close(self) -> None:
        """Close connections and thread."""
        self.server.close()

    def _note(self, reasons: Sequence[str]) -> None:
        """Say aloud that the server fails everything; a row that no server could score tells nothing of it."""
        failures = [one.removeprefix(_SERVICE) for one in reasons if one.startswith(_SERVICE)]
        was_failing = self._is_failing
        if "" in reasons:
            self._is_failing = False
        elif failures:
            self._is_failing = True
        if self._is_failing and not was_failing:
            logger.warning(
                "The teacher's server at %s scored none of %d rows; the first failure: %s. These turns learn without "
                "the teacher, and the run goes on: look at the server's log and restart it; it is asked again for "
                "the next rows.",
                self.server.url, len(reasons), failures[0],
            )  # fmt: skip

    def _check_tokenizer(self) -> None:
        if self.tokenizer is None or self.server.facts is None:
            return
        body = {"model": self.server.facts.model, "prompt": _SAMPLE, "add_special_tokens": False}
        try:
            found = self.server.client.start(self.server.client.post("/tokenize", body, self.timeout)).result()
        except HTTPFailure as failure:
            if failure.status == 404:  # cannot be checked
                return
            raise
        ours = self.tokenizer.encode(_SAMPLE, add_special_tokens=False)
        theirs = found.get("tokens") if isinstance(found, Mapping) else None
        if theirs != ours:
            raise ConfigurationError(
                f"The teacher that {self.server.url} serves has another tokenizer than the policy: it reads a sample "
                f"text as {theirs!r:.120}, the policy as {ours!r:.120}. Serve a teacher of the same family."
            )

    async def _score_all(self, rows: Sequence[WholeRow], top_k: int) -> list[TokenScores]:
        gate = asyncio.Semaphore(_AT_ONCE)

        async def one(row: WholeRow) -> TokenScores:
            async with gate:
                return await self._score_one(row, top_k)

        if self._is_failing:  # one row tells whether it still does: each of them may wait `timeout` seconds
            shortest = min(range(len(rows)), key=lambda k: len(rows[k].ids))
            probe = await one(rows[shortest])
            if probe.reason.startswith(_SERVICE):
                return [unscored(len(row.positions), probe.reason) for row in rows]
        return list(await asyncio.gather(*(one(row) for row in rows)))

    async def _score_one(self, row: WholeRow, top_k: int) -> TokenScores:
        facts = self.server.facts
        if facts is not None and len(row.ids) >= facts.max_model_length:  # one token is generated
            return unscored(len(row.positions), "over_window")
        failure: ServiceError = ServiceError("no answer")
        for attempt in range(_ATTEMPTS):
            if attempt:
                await asyncio.sleep(_BACKOFF_SECONDS * 2 ** (attempt - 1))
            try:
                return await self._ask(row, top_k)
            except HTTPFailure as error:
                failure = error
                if not error.is_temporary:
                    break
            except ServiceError as error:
                failure = error
                break
        return unscored(len(row.positions), f"{_SERVICE}{failure}")

    async def _ask(self, row: WholeRow, top_k: int) -> TokenScores:
        body = {
            "model": self.server.facts.model if self.server.facts else "",
            "prompt": list(row.ids),
            "max_tokens": 1,
            "temperature": 1.0,
            "seed": 0,
            "stop_token_ids": [],
            "prompt_logprobs": max(1, top_k),
        }
        return parse_prompt_logps(await self.server.client.post("/v1/completions", body, self.timeout), row, top_k)


def parse_prompt_logps(answer: Any, row: WholeRow, top_k: int) -> TokenScores:
    """The scores in an answer to a prompt with `prompt_logprobs`.

    Raises:
        ServiceError: it does not hold one entry for each token of the row, with each scored token and k others.
    """
    choices = answer.get("choices") if isinstance(answer, Mapping) else None
    entries = choices[0].get("prompt_logprobs") if choices and isinstance(choices[0], Mapping) else None
    if not isinstance(entries, list) or len(entries) != len(row.ids):
        shown = len(entries) if isinstance(entries, list) else type(entries).__name__
        raise ServiceError(f"`prompt_logprobs` of {len(row.ids)} tokens is of length {shown}")
    logps, ids, tops = [], [], []
    for position in row.positions:
        entry = entries[position]
        token = row.ids[position]
        found = _logp(entry, str(token))
        if found is None:
            raise ServiceError(f"`prompt_logprobs` has no value for the token {token} at {position}: {entry!r:.200}")
        logps.append(found)
        if top_k:
            ranked = sorted((one["rank"], int(name)) for name, one in entry.items())[:top_k]
            values = [_logp(entry, str(one)) for _, one in ranked]
            if len(ranked) != top_k:
                raise ServiceError(f"`prompt_logprobs` has {len(ranked)} of the top {top_k} at {position}")
            ids.append([one for _, one in ranked])
            tops.append([-math.inf if one is None else one for one in values])
    scores = torch.tensor(logps, dtype=torch.float32)
    if not top_k:
        return TokenScores(scores)
    top_logps = torch.tensor(tops, dtype=torch.float64)
    tail = torch.log((1 - top_logps.exp().sum(-1)).clamp(min=0.0))
    return TokenScores(scores, torch.tensor(ids), top_logps.float(), tail.float())


def _logp(entry: Any, token: str) -> float | None:
    value = entry.get(token) if isinstance(entry, Mapping) else None
    return usable_logp(value.get("logprob")) if isinstance(value, Mapping) else None


def _whole_distributions() -> ConfigurationError:
    return ConfigurationError(
        "A served teacher cannot tell whole distributions. Set `top_k`, choose the sampled form, or load the teacher "
        "in this process."
    )
