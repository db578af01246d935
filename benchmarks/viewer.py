"""How long the viewer's page takes to write and to open, and how large it is.

    python benchmarks/viewer.py [--runs 5000x12 1000x50]

A run is TRAJECTORIESxTURNS, made up: replies of 120 words and observations of 60, drawn at random (real text packs
better), with guidance, shifts and weights for every turn. Opening is timed by the browser's own clock, from the
navigation until the list is shown; the search is the first one, which unpacks its texts. Needs Chromium. Prints a
table and writes `benchmarks/results/viewer.json`.
"""

from __future__ import annotations

import argparse
import math
import random
import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from taspo_trl.records import TrajectoryRecord, write_records
from taspo_trl.types import (
    Block,
    Credit,
    Evidence,
    Extraction,
    Guidance,
    ReplyScore,
    Source,
    Statement,
    StopReason,
    Support,
    Trajectory,
    Turn,
)
from taspo_trl.viewer import write_viewer


sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.common import save
from tests.browser import chromium
from tests.runs import write_method


GROUP_SIZE = 8
GROUPS_PER_ROLLOUT = 16
NUM_ACTION_TOKENS = 10
NUM_REPLY_TOKENS = 160
WORDS_OF_SENTENCE = 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--runs", nargs="+", default=["5000x12", "1000x50"])
    rows = []
    for run in parser.parse_args().runs:
        num_trajectories, num_turns = map(int, run.split("x"))
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            rows.append(measured(Path(folder), num_trajectories, num_turns))
    table = Table(title="The viewer's page")
    for name in rows[0]:
        table.add_column(name.replace("_", " "), justify="right")
    for row in rows:
        table.add_row(*(f"{value:,.2f}" if isinstance(value, float) else f"{value:,}" for value in row.values()))
    Console(width=140).print(table)
    save("viewer", {"pages": rows})


def measured(folder: Path, num_trajectories: int, num_turns: int) -> dict[str, Any]:
    """One page: records, writing, opening, searching, showing a trajectory."""
    size = write_run(folder, num_trajectories, num_turns)
    started = time.process_time()
    path = write_viewer(folder)
    written = time.process_time() - started
    with chromium(folder / "profile") as page:
        page.resize(1280, 800)
        opened = page.open(f"{path.as_uri()}#view=trajectories", timeout=300)
        search = seconds(page, "router.filter({ q: 'lantern' })", "list.found.length < store.rows.key.length")
        show = seconds(page, "router.go({ trajectory: 'r0-g0-k1' })", "document.querySelectorAll('.turn').length > 0")
    return {
        "trajectories": num_trajectories,
        "turns_each": num_turns,
        "records_mb": size / 1e6,
        "page_mb": path.stat().st_size / 1e6,
        "write_cpu_s": written,
        "peak_memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3,
        "open_s": opened,
        "first_search_s": search,
        "show_trajectory_s": show,
    }


def seconds(page: Any, action: str, condition: str) -> float:
    """From an action until a condition holds, by the browser's clock."""
    return page.run(
        f"""(async () => {{ const started = performance.now(); {action};
        while (!({condition})) await new Promise((resume) => setTimeout(resume));
        return (performance.now() - started) / 1000; }})()"""
    )


# ---- made-up runs -----------------------------------------------------------------------------------------------


def write_run(folder: Path, num_trajectories: int, num_turns: int) -> int:
    """Write the record files; returns their size."""
    rng = random.Random(0)
    words = ["".join(rng.choices("aeioulnrstdkm", k=rng.randint(2, 9))) for _ in range(3000)]
    sentences = [" ".join(rng.choices(words, k=WORDS_OF_SENTENCE)) for _ in range(20_000)]
    num_rollouts = -(-num_trajectories // (GROUP_SIZE * GROUPS_PER_ROLLOUT))
    left = num_trajectories
    write_method(folder / "_trajectories")
    for rollout in range(num_rollouts):
        count = min(left, GROUP_SIZE * GROUPS_PER_ROLLOUT)
        left -= count
        records = (
            record
            for group in range(-(-count // GROUP_SIZE))
            for record in group_records(rng, sentences, f"r{rollout}-g{group}", rollout, num_turns)
        )
        write_records(folder / "_trajectories" / f"rollout_{rollout:06d}.jsonl", records)
    return sum(path.stat().st_size for path in (folder / "_trajectories").iterdir())


def group_records(
    rng: random.Random, sentences: list[str], name: str, rollout: int, num_turns: int
) -> Iterator[TrajectoryRecord]:
    def text(num_words: int) -> str:
        count = -(-num_words // WORDS_OF_SENTENCE)
        return " ".join(rng.choices(sentences, k=count))

    trajectories = [episode(rng, text, f"{name}-k{k}", k, num_turns) for k in range(GROUP_SIZE)]
    first = trajectories[0].turns
    evidence = tuple(
        Evidence(
            f"E{k}",
            "progress",
            text(12),
            (Source(f"{name}-k0", k, "", first[k].action, first[k].next_observation[:80]),),
        )
        for k in range(8)
    )
    for one in trajectories:
        statements = tuple(
            Statement(text(15), (item.evidence_id,), (Support(0, "pre", one.turns[0].observation[:60]),))
            for item in evidence
        )
        guidance = Guidance(
            one.uid,
            "aligned",
            {"aligned": Block.whole((1,) * 200, num_turns, text(150))},
            statements,
            evidence,
        )

        def gaussian(mask):
            return tuple(rng.gauss(-1, 1) if is_action else math.nan for is_action in mask)

        scores = tuple(
            ReplyScore(gaussian(turn.action_mask), {"aligned": gaussian(turn.action_mask)}) for turn in one.turns
        )
        weights = tuple(1 + rng.uniform(-0.2, 0.2) for _ in one.turns)
        credit = Credit(one.uid, rng.gauss(0, 1), weights, tuple(rng.gauss(0, 0.5) for _ in one.turns), scores)
        yield TrajectoryRecord(one, name, rollout, rollout, Extraction(evidence), guidance, credit)


def episode(rng: random.Random, text: Any, uid: str, generation_idx: int, num_turns: int) -> Trajectory:
    observations = [text(60) for _ in range(num_turns + 1)]
    turns = []
    for k in range(num_turns):
        action = f"take {rng.randrange(10_000)}" if rng.random() < 0.98 else "light the lantern"
        turns.append(
            Turn(
                prompt_ids=(),
                reply_ids=tuple(range(NUM_REPLY_TOKENS)),  # the page leaves them out
                reply_text=f"<think>{text(120)}</think><action>{action}</action>",
                action=action,
                action_mask=(False,) * (NUM_REPLY_TOKENS - NUM_ACTION_TOKENS) + (True,) * NUM_ACTION_TOKENS,
                observation=observations[k],
                next_observation=observations[k + 1],
                valid=rng.random() < 0.9,
            )
        )
    success = rng.random() < 0.5
    return Trajectory(
        uid=uid,
        task={"task_id": uid},
        task_text=text(10),
        family=rng.choice(("pick", "clean", "heat", "cool")),
        environment=None,
        generation_idx=generation_idx,
        turns=tuple(turns),
        stop_reason=StopReason.SOLVED if success else StopReason.MAX_TURNS,
        success=success,
        opening=({"role": "user", "content": text(200)},),
        environment_reward=float(success),
        reward=float(success),
    )


if __name__ == "__main__":
    main()
