"""Runs notebooks and stores their outputs without progress bars: `python notebooks/execute.py [--fast] quickstart`."""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient


FOLDER = Path(__file__).parent
FAST = "TASPO_NOTEBOOK_FAST"


def executed(path: Path, folder: str | os.PathLike, *, timeout: float = 3600.0) -> Any:
    """The notebook after a run in `folder`, with clean outputs.

    Raises:
        CellExecutionError: a cell failed.
    """
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(notebook, timeout=timeout, resources={"metadata": {"path": str(folder)}})
    client.execute()
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.metadata.pop("execution", None)  # time stamps
            cell.outputs = [output for output in cell.outputs if is_kept(output)]
    notebook.metadata.pop("widgets", None)
    notebook.metadata["language_info"] = {"name": "python"}
    return notebook


def is_kept(output: Any) -> bool:
    """Whether an output says something: not a progress bar, which is a widget or written to stderr."""
    if output.output_type == "stream":
        return output.name == "stdout"
    return "application/vnd.jupyter.widget-view+json" not in output.get("data", {})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="+", help="names of notebooks in this folder")
    parser.add_argument("--fast", action="store_true", help=f"the smoke mode ({FAST}=1)")
    options = parser.parse_args()
    os.environ[FAST] = "1" if options.fast else "0"
    for name in options.names:
        path = FOLDER / f"{name}.ipynb"
        with tempfile.TemporaryDirectory() as folder:
            nbformat.write(executed(path, folder), path)


if __name__ == "__main__":
    main()
