"""`taspo view`: one HTML page that shows a run."""

from __future__ import annotations

import argparse
import sys
import webbrowser
from pathlib import Path


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="taspo view",
        description="Write one self-contained HTML page with a run's evaluations, curves, trajectories, guidance and "
        "weights.",
    )
    parser.add_argument("run", help="the run's output_dir")
    parser.add_argument("-o", "--output", default=None, help="file to write (default: RUN/_view.html)")
    parser.add_argument("--open", action="store_true", help="open the page in the browser")
    parser.add_argument(
        "--watch",
        nargs="?",
        type=_seconds,
        const=10.0,
        default=None,
        metavar="SECONDS",
        help="renew the page while the run goes on, looking so often (default: 10); Ctrl-C ends it",
    )
    options = parser.parse_args(arguments)

    if options.watch is not None:
        return _watch(options.run, options.output, options.watch, options.open)
    from ..viewer import write_viewer

    path = write_viewer(options.run, options.output)
    print(path)
    if options.open:
        _open(path)
    return 0


def _watch(run: str, output: str | None, seconds: float, is_opened: bool) -> int:
    from ..viewer.watch import watch

    def on_write(path: Path, count: int) -> None:
        if count == 1:
            print(f"{path} is renewed while the run goes on; Ctrl-C ends it.", flush=True)
            if is_opened:
                _open(path)

    def on_wait(reason: str) -> None:
        print(f"Waiting for the run: {reason}", file=sys.stderr, flush=True)

    path = watch(run, output, seconds=seconds, on_write=on_write, on_wait=on_wait)
    if path is not None:
        print(path)
    return 0


def _open(path: Path) -> None:
    if not webbrowser.open(path.resolve().as_uri()):
        print(f"No browser was found; open {path.resolve()} in one.", file=sys.stderr)


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value <= 3600:
        raise argparse.ArgumentTypeError(f"must be more than 0 and at most 3600 seconds, got {text}")
    return value
