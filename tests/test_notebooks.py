"""The notebooks run from the first cell to the last, and what is stored in them can be shown to anybody."""

from __future__ import annotations

import importlib.util
import os
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from taspo_trl import __version__
from tests.runs import small_group


nbformat = pytest.importorskip("nbformat", reason="nbclient is not installed (taspo_trl[notebooks])")
NotebookClient = pytest.importorskip(
    "nbclient", reason="nbclient is not installed (taspo_trl[notebooks])"
).NotebookClient
pytest.importorskip("ipykernel", reason="ipykernel is not installed (taspo_trl[notebooks])")

FOLDER = Path(__file__).resolve().parents[1] / "notebooks"
NAMES = ["quickstart", "alfworld_t4", "credit_inspection", "bring_your_own_environment"]
NEEDS = {"alfworld_t4": ("alfworld", "textworld")}


def load(name: str) -> Any:
    return nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)


def code_cells(notebook: Any) -> list[Any]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def stored_texts(notebook: Any) -> list[str]:
    """Every text that an output holds."""
    texts = []
    for cell in code_cells(notebook):
        for output in cell.outputs:
            texts.append(output.get("text", ""))
            texts.extend(str(value) for kind, value in output.get("data", {}).items() if kind.startswith("text/"))
    return texts


@pytest.fixture(scope="module")
def runner() -> ModuleType:
    """`notebooks/execute.py`, which is no package."""
    spec = importlib.util.spec_from_file_location("notebook_runner", FOLDER / "execute.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One cache for all notebooks: the little policy is made once."""
    return tmp_path_factory.mktemp("notebook-cache")


def test_every_notebook_is_listed():
    assert sorted(path.stem for path in FOLDER.glob("*.ipynb")) == sorted(NAMES)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_runs_through(name, runner, cache, tmp_path, monkeypatch):
    missing = [package for package in NEEDS.get(name, ()) if importlib.util.find_spec(package) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)} not installed (taspo_trl[alfworld])")
    monkeypatch.setenv(runner.FAST, "1")
    monkeypatch.setenv("TASPO_CACHE", str(cache))
    monkeypatch.setenv("ALFWORLD_DATA", str(tmp_path / "no-data"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    # Settings of the notebooks' own processes: two busy cores run small kernels best one after the other.
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    notebook = runner.executed(FOLDER / f"{name}.ipynb", tmp_path, timeout=300)
    assert any(__version__ in text for text in stored_texts(notebook))
    assert all(cell.execution_count for cell in code_cells(notebook))


_CELLS = [
    """
import os, signal
from transformers import TrainerCallback
from tests.trainer.test_trainer import scripted

class Interrupt(TrainerCallback):
    is_armed = True
    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step == 1 and self.is_armed:
            os.kill(os.getpid(), signal.SIGINT)

interrupt = Interrupt()
made, _ = scripted({folder!r}, max_steps=2, callbacks=[interrupt])
""",
    "made.train()",
    "interrupt.is_armed = False\nprint(made.train().global_step)",
    "import asyncio\nawait asyncio.sleep(0)",
    "print(made.train().global_step)\nmade.close()",
]


def _printed(cell) -> str:
    return "".join(output["text"] for output in cell.outputs if output.get("name") == "stdout")


@pytest.mark.slow
def test_training_in_a_kernel_goes_on_after_an_interrupted_cell(tmp_path, monkeypatch):
    """NBK-1: a kernel's loop always runs; Ctrl-C in one cell, then two more trainings."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    sources = [cell.replace("{folder!r}", repr(str(tmp_path))) for cell in _CELLS]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in sources])
    resources = {"metadata": {"path": str(FOLDER.parent)}}
    NotebookClient(notebook, timeout=300, kernel_name="python3", allow_errors=True, resources=resources).execute()
    errors = [
        (k, output.ename)
        for k, cell in enumerate(notebook.cells)
        for output in cell.outputs
        if output.output_type == "error"
    ]
    assert errors == [(1, "KeyboardInterrupt")]
    assert [_printed(notebook.cells[k]).splitlines()[-1] for k in (2, 4)] == ["2", "2"]
    assert not any("never awaited" in output.get("text", "") for cell in notebook.cells for output in cell.outputs)


@pytest.mark.parametrize("name", NAMES)
def test_stored_outputs_are_complete_and_without_errors(name):
    cells = code_cells(load(name))
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1)), "executed in order, all of it"
    kinds = [output.output_type for cell in cells for output in cell.outputs]
    assert "error" not in kinds and kinds.count("stream") >= 2
    assert any("image/png" in output.get("data", {}) for cell in cells for output in cell.outputs), "no figure"


@pytest.mark.parametrize("name", NAMES)
def test_stored_outputs_name_no_machine_and_no_progress(name, runner):
    notebook = load(name)
    for text in stored_texts(notebook):
        assert not re.search(r"(?<![\w.])/(?:work|tmp|home|root|Users|content|opt|usr)/", text), text[:400]
        assert not re.search(r"\d+%\|", text), text[:400]
    assert os.uname().nodename not in (FOLDER / f"{name}.ipynb").read_text().split()
    assert all(runner.is_kept(output) for cell in code_cells(notebook) for output in cell.outputs)
    assert "widgets" not in notebook.metadata
    assert not any("execution" in cell.metadata for cell in notebook.cells)


@pytest.mark.parametrize("name", NAMES)
def test_notebooks_hold_no_keys(name):
    text = (FOLDER / f"{name}.ipynb").read_text()
    assert not re.search(r"\b(?:sk-[A-Za-z0-9]{8,}|hf_[A-Za-z0-9]{8,})", text)
    for line in "\n".join(cell.source for cell in load(name).cells).splitlines():
        if re.search(r"(?:API_KEY|TOKEN)\b.*=", line):
            assert "userdata.get" in line, line


@pytest.mark.parametrize("name", NAMES)
def test_head_of_a_notebook(name):
    """An installation that is skipped where the package is, one switch."""
    notebook = load(name)
    assert notebook.cells[0].cell_type == "markdown" and notebook.cells[0].source.startswith("# ")
    install, settings = code_cells(notebook)[:2]
    assert not install.outputs and 'SOURCE = ""\n' in install.source
    assert 'FAST = os.environ.get("TASPO_NOTEBOOK_FAST") == "1"' in settings.source
    assert any(f"taspo_trl {__version__}" in output.get("text", "") for output in settings.outputs)


@pytest.mark.parametrize(
    ("name", "source", "expected"),
    [
        ("quickstart", "/clone", "/clone"),
        ("quickstart", "git+https://host/repo", "git+https://host/repo"),
        ("alfworld_t4", "/clone", "/clone[alfworld,quantization]"),
        ("alfworld_t4", "git+https://host/repo", "taspo_trl[alfworld,quantization] @ git+https://host/repo"),
    ],
)
def test_the_first_cell_installs_from_where_its_constant_says(name, source, expected, monkeypatch):
    """Without one it asks for it; where the package is, it does nothing."""
    cell = code_cells(load(name))[0].source
    code = re.sub(r"%pip install -q (\"\{\w+\}\")", r"installed.append(f\1)", cell)
    assert code != cell and code_cells(load("quickstart"))[0].source.count("%pip") == 1
    installed: list[str] = []
    exec(code, {"installed": installed})
    assert not installed
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SystemExit, match="Set SOURCE in this cell to the path of a clone"):
        exec(code, {"installed": installed})
    exec(code.replace('SOURCE = ""', f"SOURCE = {source!r}"), {"installed": installed})
    assert installed == [expected]


def test_notebooks_are_of_one_format():
    notebooks = [load(name) for name in NAMES]
    assert {(notebook.nbformat, notebook.nbformat_minor) for notebook in notebooks} == {(4, 5)}
    assert {notebook.metadata.kernelspec.name for notebook in notebooks} == {"python3"}
    for notebook in notebooks:
        nbformat.validate(notebook)


def test_figures_are_returned_and_show_themselves():
    """No `%matplotlib inline`, no pyplot state, no window."""
    from matplotlib import pyplot
    from matplotlib.figure import Figure

    from taspo_trl import plots
    from taspo_trl.evaluation import EvaluationResult, Play
    from taspo_trl.types import StopReason

    plays = tuple(Play(f"t{k}", "pick", 0, k % 2 == 0, 0.0, 3, 9, StopReason.MAX_TURNS) for k in range(4))
    history = [{"step": step, "success": step / 3, "reward": 0.0} for step in range(3)]
    before = pyplot.get_fignums()
    for figure in (
        plots.learning_curves(history),
        plots.credit_weights_figure(small_group()),
        plots.success_by_family({"now": EvaluationResult(plays, {})}),
    ):
        assert isinstance(figure, Figure) and figure._repr_png_().startswith(b"\x89PNG")
    assert pyplot.get_fignums() == before
