"""Records, and analyzer answers about them that are right as they stand: tests spoil one thing at a time."""

from __future__ import annotations

from taspo_trl.types import Evidence, Source

from ..trajectories import make_trajectory, make_turn


LONG_ACTION = "search " + "red shoes " * 40  # 406 characters after collapsing

TURNS = (
    make_turn("go to desk 1", "You are in a room.", "On the desk 1, you see a mug 1."),
    make_turn("put mug 1 in/on desk 1", "On the desk 1, you see a mug 1.", "Nothing happens.", valid=False),
    make_turn("move mug 1 to desk 1", "Nothing happens.", "You move mug 1 to desk 1."),
    make_turn(LONG_ACTION, "A search bar.", "No."),
    make_turn("", "No.", "Say something.", valid=False),
)
SUCCESS = make_trajectory(0, *TURNS, success=True)
OTHER = make_trajectory(1, *TURNS, success=True)
FAILURE = make_trajectory(2, *TURNS)

SOURCE = {
    "traj_uid": "g0-k0",
    "step": 2,
    "pre_quote": "Nothing happens.",
    "action_quote": "move mug 1 to desk 1",
    "post_quote": "You move mug 1",
}
ITEM = {"evidence_id": "E1", "kind": "progress", "statement": "Move it with the verb move.", "sources": [SOURCE]}
SUPPORT = {"step": 0, "field": "post", "quote": "you see a mug 1"}
STATEMENT = {"statement": "Move the mug.", "evidence_ids": ["E1"], "target_support": [SUPPORT]}
ALLOWED = [Evidence("E1", "progress", "s", (Source("g0-k0", 2, "", "move mug 1 to desk 1", "You move mug 1"),))]
