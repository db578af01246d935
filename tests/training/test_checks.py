"""What a trainer refuses before it starts: rows, columns and environments that could not be played."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
from datasets import Dataset, IterableDataset

from taspo_trl.environments.base import ResetResult, TextEnvironment
from taspo_trl.environments.workers import EnvironmentPool
from taspo_trl.errors import ConfigurationError, EnvironmentContractError
from taspo_trl.methods import recipe_for
from taspo_trl.rollout.contexts import ChatRenderer
from taspo_trl.rollout.rewards import REWARD_KEYWORDS
from taspo_trl.training.checks import check_arguments, check_environments, check_openings
from tests import tiny
from tests.environments.test_tools import template
from tests.environments.tool_worlds import Counter
from tests.scripted import ScriptedEnvironment
from tests.tokenizers import byte_bpe


BOTH = {"shop": ScriptedEnvironment, "house": ScriptedEnvironment}


@pytest.fixture
def check(tmp_path):
    """`check_arguments` with a configuration of two tasks a batch."""

    def run(rows: Any, factory: Any = ScriptedEnvironment, eval_dataset: Any = None, functions: Any = ()) -> None:
        data = Dataset.from_list(rows) if isinstance(rows, list) else rows
        check_arguments(tiny.config(tmp_path), functions, data, factory, eval_dataset)

    return run


# ---- the column that selects an environment -------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["hous", None, "Shop"])
def test_every_value_of_the_environment_column_is_looked_at(check, name):
    rows = [{"environment": "shop"}] * 5 + [{"environment": name}]
    with pytest.raises(ConfigurationError, match=rf"Row 5 of `train_dataset` .*{name!r}.*'shop', 'house'"):
        check(rows, BOTH)
    check([{"environment": one} for one in ("shop", "house", "shop")], BOTH)


def test_so_are_those_of_evaluation_data(check):
    rows = [{"environment": "shop"}] * 2
    bad = Dataset.from_list([{"environment": "hall"}])
    with pytest.raises(ConfigurationError, match=r"`eval_dataset` .*'hall'"):
        check(rows, BOTH, bad)
    with pytest.raises(ConfigurationError, match=r"`eval_dataset\['unseen'\]` .*'hall'"):
        check(rows, BOTH, {"seen": Dataset.from_list(rows), "unseen": bad})
    with pytest.raises(ConfigurationError, match=r"`eval_dataset` has none"):
        check(rows, BOTH, Dataset.from_list([{"word": "mug"}]))


def test_a_single_environment_takes_any_column_of_that_name(check):
    check([{"environment": "whatever"}] * 2)


def test_what_is_read_as_it_comes_is_checked_when_it_comes(check):
    def stream():
        yield {"environment": "nowhere"}

    check(IterableDataset.from_generator(stream), BOTH)


# ---- names that are taken -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("column", [*REWARD_KEYWORDS, "self", "seed"])
@pytest.mark.parametrize("where", ["train", "eval"])
def test_columns_that_would_be_replaced_are_refused(check, column, where):
    good, bad = [{"word": "mug"}] * 2, [{column: "x"}] * 2
    with pytest.raises(ConfigurationError, match=rf"column `{column}`.*Rename"):
        check(bad if where == "train" else good, eval_dataset=Dataset.from_list(bad if where == "eval" else good))


# ---- equal rows of an evaluation ------------------------------------------------------------------------------------


def test_a_task_id_that_stands_twice_in_evaluation_data_is_refused_at_construction(check):
    twice = Dataset.from_list([{"task_id": "a"}, {"task_id": "b"}, {"task_id": "a"}])
    with pytest.raises(ConfigurationError, match=r"'a' stands 2 times.*num_generations_eval"):
        check([{"word": "mug"}] * 2, eval_dataset={"one": twice})
    check([{"task_id": "a"}] * 2, eval_dataset=Dataset.from_list([{"prompt": "play"}] * 3))


# ---- the chats that rows open ---------------------------------------------------------------------------------------


def prompts(*roles: str) -> dict[str, Any]:
    return {"target": 1, "prompt": [{"role": role, "content": "hello"} for role in roles]}


def check_prompts(*rows: dict[str, Any], name: str = "`train_dataset`", broken: str = "") -> None:
    text = template("qwen2_5")
    if broken:
        text = "{% for one in messages %}{% if one.role == 'system' %}" + broken + "{% endif %}{% endfor %}" + text
    pool = EnvironmentPool({None: Seeded})
    try:
        check_openings(pool, ChatRenderer(byte_bpe(text)), {name: Dataset.from_list(list(rows))})
    finally:
        pool.close()


def test_a_prompt_that_the_template_refuses_is_found_before_its_row_comes_up():
    rows = [prompts("user")] * 1500 + [prompts("system", "user")]
    check_prompts(*rows)
    message = r"row 1500 of `eval_dataset\['one'\]`.* refuses the messages system, user .*first user message"
    with pytest.raises(ConfigurationError, match=message):
        check_prompts(*rows, name="`eval_dataset['one']`", broken="{{ raise_exception('no system') }}")
    check_prompts({"target": 1, "prompt": "a string"}, broken="{{ raise_exception('no system') }}")
    check_prompts({"target": 1})


def test_orders_of_roles_are_rendered_once_each(monkeypatch):
    rendered = []
    monkeypatch.setattr(ChatRenderer, "check_roles", lambda self, roles: rendered.append(roles))
    check_prompts(*[prompts("user"), prompts("system", "user")] * 300)
    assert rendered == [("user",), ("system", "user")]


def test_a_system_message_that_is_not_shown_is_refused():
    renderer = ChatRenderer(byte_bpe("{% for one in messages if one.role != 'system' %}{{ one.content }}{% endfor %}"))
    renderer.check_roles(("user", "assistant", "user"))
    with pytest.raises(ConfigurationError, match="does not show the system message of the messages system, user"):
        renderer.check_roles(("system", "user"))


# ---- what `reset` needs ---------------------------------------------------------------------------------------------


def check_world(kind: type, tmp_path, columns: tuple[str, ...] = ()) -> None:
    pool = EnvironmentPool({None: kind})
    try:
        renderer = ChatRenderer(byte_bpe(template("qwen2_5")))
        args = tiny.config(tmp_path, guidance="none")
        check_environments(pool, renderer, args, recipe_for(args), False, columns)
    finally:
        pool.close()


class Needy(ScriptedEnvironment):
    def reset(self, *, seed: int, hint: str | None, **row: Any) -> ResetResult:
        return super().reset(seed=seed)


class Seedless(TextEnvironment):
    def reset(self, target: int) -> ResetResult:  # type: ignore[override]
        return ResetResult("hello")


class Seeded(Counter):
    def reset(self, target: int, seed: int | None = None, **kwargs) -> str:
        return super().reset(target)


def test_a_column_that_reset_needs_and_the_data_lack_is_named(tmp_path):
    with pytest.raises(ConfigurationError, match=r"`Needy.reset` needs `hint`.*`word`"):
        check_world(Needy, tmp_path, ("word",))
    check_world(Needy, tmp_path, ("word", "hint"))
    check_world(Needy, tmp_path)


def test_a_class_for_trl_without_a_seed_is_warned_about(tmp_path):
    with pytest.warns(UserWarning, match=r"`Counter.reset` has no parameter `seed`.*different games.*`seed=None`"):
        check_world(Counter, tmp_path, ("target",))
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        check_world(Seeded, tmp_path, ("target",))
        check_world(ScriptedEnvironment, tmp_path)


def test_an_environment_of_ours_without_a_seed_could_never_be_reset(tmp_path):
    with pytest.raises(EnvironmentContractError, match=r"`Seedless.reset` takes no `seed`"):
        check_world(Seedless, tmp_path)
