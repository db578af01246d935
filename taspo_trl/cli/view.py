"""`taspo view`: one HTML page that shows a run."""

from __future__ import annotations

import argparse


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="taspo view",
        description="Write one self-contained HTML page with a run's curves, trajectories, guidance and weights.",
    )
    parser.add_argument("run", help="the run's output_dir")
    parser.add_argument("-o", "--output", default=None, help="file to write (default: RUN/_view.html)")
    options = parser.parse_args(arguments)

    from ..viewer import write_viewer

    print(write_viewer(options.run, options.output))
    return 0
