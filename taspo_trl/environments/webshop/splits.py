"""Which goals are for training and which for testing, and the fixed manifest of 128 test tasks."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from importlib.resources import files
from itertools import chain
from typing import Any

from ...errors import ConfigurationError
from .catalogue import Catalogue
from .goals import GoalBook


MANIFEST_SIZE = 128
MANIFEST_SPLIT = f"test_{MANIFEST_SIZE}"
SPLITS = ("train", "eval", "test")

_TEST_END, _EVAL_END = 500, 1500
_MIN_GOALS = 2000
_TEST_SHARE = _EVAL_SHARE = 0.2


def split_ranges(num_goals: int) -> dict[str, range]:
    """Goal numbers of each split. They never overlap.

    The original's: test 0 to 499, eval 500 to 1499, train the rest. A catalogue with fewer than 2,000 goals is
    divided in proportion: the first fifth for test, the second for eval.
    """
    test_end, eval_end = _TEST_END, _EVAL_END
    if num_goals < _MIN_GOALS:
        test_end = round(num_goals * _TEST_SHARE)
        eval_end = test_end + round(num_goals * _EVAL_SHARE)
    return {"test": range(test_end), "eval": range(test_end, eval_end), "train": range(eval_end, num_goals)}


def split_goals(split: str, book: GoalBook, catalogue: Catalogue) -> Iterable[int]:
    """The goal numbers of `split`, in order: one of [`SPLITS`], several joined by `+`, or `test_128`."""
    if split == MANIFEST_SPLIT:
        manifest = stored_manifest(book, catalogue) or build_manifest(book, catalogue)
        check_manifest(manifest, book, catalogue)
        return [task["goal"] for task in manifest["tasks"]]
    ranges = split_ranges(len(book))
    names = split.split("+")
    unknown = [name for name in names if name not in ranges]
    if unknown or len(set(names)) != len(names):
        raise ConfigurationError(
            f"`split` must be one of {', '.join(SPLITS)}, some of them joined by '+', or {MANIFEST_SPLIT}, "
            f"got {split!r}."
        )
    return chain.from_iterable(ranges[name] for name in names)


def build_manifest(book: GoalBook, catalogue: Catalogue, size: int = MANIFEST_SIZE) -> dict[str, Any]:
    """The fixed test tasks of a shop: the first `size` goals of the test split, whose order is shuffled already.

    The manifest holds numbers and hashes only, no text of the catalogue.
    """
    goals = split_ranges(len(book))["test"]
    if len(goals) < size:
        raise ConfigurationError(
            f"The test split of {catalogue.identity} has {len(goals)} {book.kind} goals, too few for a manifest of "
            f"{size}. Use the split 'test'."
        )
    return {
        "catalogue": catalogue.identity,
        "kind": book.kind,
        "price_seed": book.price_seed,
        "goal_seed": book.goal_seed,
        "tasks": [{"goal": goal, "digest": book[goal].digest} for goal in goals[:size]],
    }


def check_manifest(manifest: Mapping[str, Any], book: GoalBook, catalogue: Catalogue) -> None:
    """Raise [`~taspo_trl.errors.ConfigurationError`] unless every task of the manifest is the same task here."""
    changed = [
        task["goal"]
        for task in manifest["tasks"]
        if task["goal"] >= len(book) or book[task["goal"]].digest != task["digest"]
    ]
    if changed:
        raise ConfigurationError(
            f"{len(changed)} of {len(manifest['tasks'])} tasks of the manifest for {manifest['catalogue']} are other "
            f"tasks in {catalogue.identity} ({book.kind} goals, price seed {book.price_seed}, goal seed "
            f"{book.goal_seed}), the first is goal {changed[0]}. Use the catalogue and seeds of the manifest."
        )


def stored_manifest(book: GoalBook, catalogue: Catalogue) -> dict[str, Any] | None:
    """The manifest that the package ships for this shop, if it ships one."""
    for manifest in json.loads(files(__package__).joinpath("manifests.json").read_text()):
        shop = (manifest["catalogue"], manifest["kind"], manifest["price_seed"], manifest["goal_seed"])
        if shop == (catalogue.identity, book.kind, book.price_seed, book.goal_seed):
            return manifest
    return None
