"""The pictures of the viewer in docs/images: overview, group and trajectory, as a laptop and as a phone show them.

    python benchmarks/screenshots.py RUN [--output docs/images] [--group ID] [--trajectory NAME] [--dark]

`RUN` is the folder of a finished run, for example the quickstart's. Without names the script takes the trajectory of
few turns whose credit differs most, and its group. `trajectory.webp` is the one for the README: the turns at a glance
and the one that was moved farthest. Needs Chromium.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

from taspo_trl.viewer import write_viewer


sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.browser import chromium


SIZES = {1280: 900, 390: 844}
"""Width -> height."""
MOST_BYTES = 150_000
BEST = """(async () => {
  const { rows } = store;
  const spread = (row) => Math.max(...rows.tilts[row]) - Math.min(...rows.tilts[row]);
  const few = rows.key.map((_, row) => row).filter((row) =>
    rows.guided[row] && !rows.flagged[row] && rows.tilts[row].length >= 5 && rows.tilts[row].length <= 8);
  few.sort((a, b) => spread(b) - spread(a));
  for (const row of few.slice(0, 200)) {
    const { member } = await store.trajectory(row);
    const top = member.turns.reduce((best, one) => (Math.abs(one.tilt) > Math.abs(best.tilt) ? one : best));
    if (top.tilt > 0 && top.mover?.how === "same") return rows.key[row];
  }
  return rows.key[few[0] ?? 0];
})()"""
"""A trajectory of few turns whose farthest one did what a success did, and whose credit differs most."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("run")
    parser.add_argument("--output", default="docs/images", type=Path)
    parser.add_argument("--group", default=None)
    parser.add_argument("--trajectory", default=None)
    parser.add_argument("--dark", action="store_true")
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        address = write_viewer(options.run, Path(folder) / "view.html").as_uri()
        with chromium(Path(folder) / "profile") as page:
            for path in pictures(page, address, options):
                size = path.stat().st_size
                print(f"{path}: {size / 1000:.0f} kB")
                if size > MOST_BYTES:
                    sys.exit(f"{path} has more than {MOST_BYTES} bytes: show less of the page.")


def pictures(page: Any, address: str, options: argparse.Namespace) -> list[Path]:
    """Takes all pictures; returns their files."""
    page.resize(1280, SIZES[1280], options.dark)
    page.open(address)
    trajectory = options.trajectory or page.run(BEST)
    group = options.group or page.run(f"store.index.groups.key[store.rows.group[store.rowOf({trajectory!r})]]")
    places = {"overview": "view=overview", "group": f"siblings={group}", "trajectory": f"trajectory={trajectory}"}
    taken = []
    for width, height in SIZES.items():
        for name, place in places.items():
            page.resize(width, height, options.dark)
            show(page, f"{address}#{place}")
            taken.append(options.output / f"viewer_{name}_{width}.webp")
            page.screenshot(taken[-1])
    taken.append(options.output / "trajectory.webp")
    of_the_readme(page, f"{address}#{places['trajectory']}", taken[-1], options.dark)
    return taken


def show(page: Any, address: str) -> None:
    page.visit("about:blank")
    page.open(address)
    page.run("new Promise((resume) => setTimeout(resume, 200))")  # charts are drawn when they know their width


def of_the_readme(page: Any, address: str, path: Path, is_dark: bool) -> None:
    """The head of a trajectory and its turn with the largest tilt, nothing else."""
    page.resize(1080, 2000, is_dark)
    show(page, address)
    box = page.run(
        """(() => {
        const hide = (one) => { one.style.display = "none"; };
        document.querySelector("#trajectories").classList.add("is-alone");
        document.querySelectorAll(".top, .reading, .details-line, .tools, .guidance").forEach(hide);
        const turns = [...document.querySelectorAll(".turn")];
        const tilts = store.rows.tilts[trajectory.shown].map(Math.abs);
        const top = tilts.indexOf(Math.max(...tilts));
        turns.forEach((one, k) => k !== top && hide(one));
        document.querySelector(".columns").style.gridTemplateColumns = "minmax(0, 1fr)";
        const end = turns[top].getBoundingClientRect();
        return { x: 0, y: 0, width: innerWidth, height: Math.ceil(end.bottom) + 14 };
        })()"""
    )
    page.screenshot(path, box)


if __name__ == "__main__":
    main()
