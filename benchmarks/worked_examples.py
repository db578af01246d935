"""Writes the worked examples that ReAct prompts show, played in the embedded worlds by their oracles.

`python -m benchmarks.worked_examples` rewrites `examples.json` beside each built-in environment; as a module, because
`alfworld.py` of this folder would hide the package of that name. All tasks are training tasks. The actions are an
oracle's or a walkthrough's, behind one look at a wrong place in every second example, so that searching is shown, too;
the thoughts are made from what the player has seen so far.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from taspo_trl.environments import (
    ALFWorldEnvironment,
    HouseholdEnvironment,
    SearchQAEnvironment,
    WebShopEnvironment,
)
from taspo_trl.environments.examples import shorten


Move = tuple[str, str]
"""(thought, reply)"""
PACKAGE = Path(__file__).parent.parent / "taspo_trl" / "environments"

DETOURS = ("cabinet 1", "shelf 1", "drawer 1", "desk 1", "chair 1", "table 1", "counter 1", "countertop 1")
CHANGES = {"clean": "clean", "heat": "hot", "cool": "cool"}


def household() -> Iterator[dict[str, Any]]:
    env = HouseholdEnvironment()
    for family in range(6):
        for k in range(2):
            row = {"split": "train", "index": family + 6 * (k + 1), "preset": "standard"}
            start = env.reset(**row)
            kept = {"family": start.info["family"], **row}
            yield played(env, start, kept, errands(env, start, is_detour=k == 1))


def alfworld() -> Iterator[dict[str, Any]]:
    env = ALFWorldEnvironment()
    counts: dict[str, int] = {}
    for row in ALFWorldEnvironment.dataset("train", data="embedded"):
        k = counts[row["family"]] = counts.get(row["family"], 0) + 1
        if k <= 2:
            start = env.reset(**row)
            kept = {name: row[name] for name in ("family", "game_file")}
            yield played(env, start, kept, errands(env, start, is_detour=k == 2))
    env.close()


def errands(env: Any, start: Any, is_detour: bool) -> list[Move]:
    plan = env.oracle_plan()
    places = [action.removeprefix("go to ") for action in plan if action.startswith("go to ")]
    moves: list[Move] = []
    thing = next(re.sub(r" \d+$", "", action.split()[1]) for action in plan if action.startswith("take "))
    if is_detour:
        seen = [place for place in DETOURS if f"go to {place}" in start.info["admissible_actions"]]
        wrong = next(place for place in seen if place not in places)
        moves.append((f"I do not know yet where {one(thing)} is. I begin with {wrong}.", act(f"go to {wrong}")))
        answer = env.step(f"go to {wrong}")
        if f"open {wrong}" in answer.info["admissible_actions"]:
            moves.append(("It is closed, so I look inside before I go on.", act(f"open {wrong}")))
    return [*moves, *((thought(action, k, plan, thing, is_detour), act(action)) for k, action in enumerate(plan))]


def thought(action: str, k: int, plan: Sequence[str], thing: str, is_detour: bool) -> str:
    verb, _, rest = action.partition(" ")
    earlier, later = plan[:k], plan[k + 1 :]
    if verb == "go":
        place = rest.removeprefix("to ")
        nxt = next(other for other in later if not other.startswith(("go to ", "open ")))
        if nxt.startswith("take ") and any(other.startswith("move ") for other in earlier):
            return f"One {thing} is delivered, one is missing. I get the second one from {place}."
        if nxt.startswith("take "):
            start = f"There is no {thing} here." if is_detour else f"First I have to find {one(thing)}."
            return f"{start} I go to {place}, where one may be."
        if nxt.startswith(tuple(CHANGES)):
            return f"I have the {thing}, but it must be {CHANGES[nxt.split()[0]]} first. That is done at {place}."
        if nxt.startswith(("turn on", "use ")):
            return f"I have the {thing}. Now I need light: the lamp is at {place}."
        done = any(other.startswith(tuple(CHANGES)) for other in earlier)
        return f"The {thing} is {'ready' if done else 'in my hand'}. It belongs in or on {place}, so I carry it there."
    if verb == "open":
        return "It is closed. I have to open it to see or reach what is inside."
    if verb == "take":
        return f"Here is {one(thing)}. I take it."
    if verb in CHANGES:
        return f"I am at the right place with the {thing} in hand, so I {verb} it."
    if verb == "move":
        missing = any(other.startswith("move ") for other in later)
        return "This is where it belongs. I put it down" + (", then one more is needed." if missing else ".")
    return f"I hold the {thing} and the lamp is here. Turning it on completes the task."


def webshop() -> Iterator[dict[str, Any]]:
    rows = {row["goal"]: row for row in WebShopEnvironment.dataset("train", catalogue="embedded")}
    env = WebShopEnvironment(catalogue="embedded")
    for goal, moves in SHOPPING.items():
        start = env.reset(seed=0, **rows[goal])
        results = env.step(moves[0][1]).info["available"]["clickables"]
        first = next(one for one in results if one[:1] == "t" and one[1:].isdigit())
        start = env.reset(seed=0, **rows[goal])
        kept = {"goal": goal, "family": rows[goal]["family"]}
        yield played(env, start, kept, [(told, act(action.format(first=first))) for told, action in moves])


SHOPPING: dict[int, list[Move]] = {
    421: [
        (
            "I search for the kind of product with its two most telling properties, and leave flavour, size and price "
            "for later.",
            "search[lip balms long lasting seed oil]",
        ),
        (
            "The first result is a long lasting lip balm with seed oil, and its price is below 40 dollars. I open it "
            "to see what can be chosen.",
            "click[{first}]",
        ),
        ("The instruction names the flavor honey, and it is on offer.", "click[honey]"),
        ("It also names the size pack of 4, which is a separate option.", "click[pack of 4]"),
        ("Both options are chosen and the price is right, so I buy.", "click[buy now]"),
    ],
    469: [
        (
            "The product is a curtain, and what tells it from others is that it is energy efficient and has a "
            "blackout lining. Color, size and price come later.",
            "search[curtains energy efficient blackout lining]",
        ),
        (
            "The first result has both properties in its title and costs less than 70 dollars. I open it.",
            "click[{first}]",
        ),
        ("I choose the color that is asked for.", "click[navy]"),
        ("Now the size: 52 x 63.", "click[52 x 63]"),
        ("Color and size are chosen. There is nothing left to check, so I buy.", "click[buy now]"),
    ],
}


def search_qa() -> Iterator[dict[str, Any]]:
    rows = {row["task_id"]: row for row in SearchQAEnvironment.dataset("train")}
    env = SearchQAEnvironment()
    for name, moves in QUESTIONS.items():
        row = rows[name]
        start = env.reset(seed=0, **row)
        yield played(env, start, {"task_id": name, "family": row["family"]}, moves)


QUESTIONS: dict[str, list[Move]] = {
    "one_hop/train/0": [
        (
            "I do not know the mountains of Mardford. A passage about the island will name the highest.",
            "<search>Mardford island highest mountain</search>",
        ),
        (
            "The passage about Mardford says that its highest mountain is Mount Lamwick.",
            "<answer>Mount Lamwick</answer>",
        ),
    ],
    "two_hop/train/90": [
        (
            "The question describes the island by a river. First I have to find out on which island that is.",
            "<search>River Norbfell</search>",
        ),
        (
            "The Norbfell runs on Morlmouth. Now I need the highest mountain of that island.",
            "<search>Morlmouth island highest mountain</search>",
        ),
        ("The passage about Morlmouth names Mount Balstow as its highest mountain.", "<answer>Mount Balstow</answer>"),
    ],
}


def one(thing: str) -> str:
    return f"an {thing}" if thing[0] in "aeiou" else f"a {thing}"


def act(action: str) -> str:
    return f"<action>{action}</action>"


def played(env: Any, start: Any, row: dict[str, Any], moves: Sequence[Move]) -> dict[str, Any]:
    """The example as it is saved; an error where it does not end in success."""
    # The oracle was asked, and a detour tried, on an instance that has moved on by now.
    if isinstance(env, HouseholdEnvironment):
        start = env.reset(**row)
    elif isinstance(env, ALFWorldEnvironment):
        start = env.reset(game_file=row["game_file"])
    turns, success = [], False
    for told, reply in moves:
        action = reply if isinstance(env, SearchQAEnvironment) else reply[len("<action>") : -len("</action>")]
        result = env.step(action)
        assert result.info["valid"], (row, action, result)
        success = result.info.get("success", False)
        observation = "" if result.terminated else shorten(result.observation)
        turns.append({"thought": told, "reply": reply, "observation": observation})
    assert success, row
    return {"row": row, "task": start.info["task"], "start": shorten(start.observation), "turns": turns}


if __name__ == "__main__":
    for make in (household, alfworld, webshop, search_qa):
        path = PACKAGE / make.__name__ / "examples.json"
        path.write_text(json.dumps(list(make()), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        print(path)
