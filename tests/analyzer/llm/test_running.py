"""Where the analyzer runs inside training, and how the configuration names it."""

from __future__ import annotations

import asyncio
import os
import time
import warnings
from typing import Any

import pytest

from taspo_trl.errors import ConfigurationError
from taspo_trl.methods import recipe_for
from taspo_trl.training.assembly import configured_analyzer

from ... import tiny
from ..endpoint import Endpoint, Reply, honest
from ..shop import logged


def test_training_works_in_a_running_event_loop_twice_and_after_an_interrupt(serve, make_trainer, tmp_path, capfd):
    # NBK-1
    endpoint = serve()

    def train(name: str, **values: Any) -> float:
        trainer = make_trainer(
            tmp_path / name,
            analyzer_model="hosted_vllm/m",
            analyzer_api_base=endpoint.url,
            analyzer_cache="no",
            **values,
        )
        trainer.train()
        return logged(trainer, "guidance/coverage")

    async def cell(name: str) -> float:
        return train(name)

    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)  # a coroutine that was never awaited
        assert asyncio.run(cell("first")) == 1.0
        assert asyncio.run(cell("second")) == 1.0

        trainer = make_trainer(
            tmp_path / "third", analyzer_model="hosted_vllm/m", analyzer_api_base=endpoint.url, analyzer_cache="no"
        )
        collect = trainer.experience_maker.guidance.collect

        def interrupted(*arguments: Any) -> Any:
            trainer.experience_maker.guidance.collect = collect
            raise KeyboardInterrupt

        trainer.experience_maker.guidance.collect = interrupted

        async def interrupted_cell() -> None:
            with pytest.raises(KeyboardInterrupt):
                trainer.train()
            trainer.train()

        asyncio.run(interrupted_cell())
        assert logged(trainer, "guidance/coverage") == 1.0
    assert all(line.startswith("step ") for line in capfd.readouterr().out.splitlines()), (
        "nothing but lines of progress"
    )


def test_the_first_question_goes_out_while_other_groups_still_play(serve, make_trainer):
    endpoint: Endpoint = serve(lambda received, number: Reply(honest(received), delay=0.2))
    trainer = make_trainer(analyzer_model="hosted_vllm/m", analyzer_api_base=endpoint.url)
    ended: list[float] = []
    play = trainer.experience_maker.collector.pool.release

    def slow_release(worker: Any) -> None:
        time.sleep(0.25)  # the rollout loop is busy with other episodes
        play(worker)
        ended.append(time.monotonic())

    trainer.experience_maker.collector.pool.release = slow_release
    trainer.train()
    assert endpoint.received[0].time < ended[-1]


def test_the_prompts_of_a_folder_are_what_is_sent(serve, make_trainer, tmp_path):
    (tmp_path / "prompts").mkdir()
    (tmp_path / "prompts" / "alignment.txt").write_text("My own instructions.")
    endpoint = serve()
    trainer = make_trainer(
        analyzer_model="hosted_vllm/m", analyzer_api_base=endpoint.url, analyzer_prompts=str(tmp_path / "prompts")
    )
    trainer.train()
    systems = {received.stage: received.body["messages"][0]["content"] for received in endpoint.received}
    assert systems["alignment"].startswith("My own instructions.") and "verified" in systems["extraction"]


@pytest.mark.parametrize(
    "values, words",
    [
        ({"analyzer_attempts": 0}, "analyzer_attempts"),
        ({"analyzer_timeout": 0.0}, "analyzer_timeout"),
        ({"analyzer_time_budget": -1.0}, "analyzer_time_budget"),
        ({"analyzer_budget_usd": 0.0}, "analyzer_budget_usd"),
        ({"analyzer_max_tokens": 0}, "analyzer_max_tokens"),
    ],
)
def test_settings_that_cannot_work_are_refused_by_name(values, words, tmp_path):
    with pytest.raises(ConfigurationError, match=words):
        tiny.config(tmp_path, **values)


def test_the_embedded_analyzer_is_used_where_no_model_is_named(tmp_path):
    def used(**values):
        args = tiny.config(tmp_path, **values)
        return configured_analyzer(args, recipe_for(args)).name

    assert used() == "extractive"
    assert used(analyzer_model="embedded") == "extractive"
    assert used(analyzer_model="deepseek/m", guidance="none") == "extractive", "and no key is asked for"
    with pytest.raises(ConfigurationError, match="DEEPSEEK_API_KEY"):
        used(analyzer_model="deepseek/m")
    assert os.environ.get("DEEPSEEK_API_KEY") is None
