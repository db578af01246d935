"""A run, or one trajectory, to its page."""

from __future__ import annotations

import html
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..files import replacing
from ..records import READ_VERSIONS, RECORD_VERSION, TrajectoryRecord, to_json
from ..tokens import as_unicode
from ..version import __version__
from .evaluations import load_evaluations
from .groups import TokenText, group_data
from .history import Series, load_history, series_from_rows
from .index import Row, columns, row_of, unique
from .lenient import mapping, text
from .method import load_facts, shown_method, usual_facts
from .page import page
from .sources import RunFiles, find_run, read_lines
from .token_texts import load_token_texts


_NUM_FAULTS_SHOWN = 20


def write_viewer(
    run_dir: str | os.PathLike, output: str | os.PathLike | None = None, *, reload_seconds: float | None = None
) -> Path:
    """
    Write one HTML page that shows a run: evaluations, curves, trajectories with their turns, guidance and weights.

    The page needs no server and loads nothing. Whatever the run left is shown: without a log, evaluations, guidance or
    weights the page says so.

    Example:

    ```python
    >>> from taspo_trl.viewer import write_viewer

    >>> write_viewer("runs/quickstart-tiny")
    PosixPath('runs/quickstart-tiny/_view.html')
    ```

    Args:
        run_dir (`str` or `PathLike`):
            The run's `output_dir`. Also a folder of trajectory files, as [`~taspo_trl.analyze.analyze`] writes them,
            or a single one.
        output (`str` or `PathLike`, *optional*):
            File to write. If `None`, `_view.html` in the run's folder.
        reload_seconds (`float`, *optional*):
            For a run that goes on: an open page loads itself again so often, and stays where one was. See
            [`~taspo_trl.viewer.watch.watch`].

    Returns:
        `Path`: the file; it appears only when it is complete.

    Raises:
        RecordError: the folder holds no run.
    """
    run = find_run(run_dir)
    path = Path(output) if output is not None else run.output
    with replacing(path) as file:
        title = as_unicode(f"{run.name} · TASPO")
        file.writelines(page(title, _chunks(run, Path(run_dir)), reload_seconds=reload_seconds))
    return path


def trajectory_html(
    record: TrajectoryRecord,
    siblings: Iterable[TrajectoryRecord] = (),
    *,
    tokenizer: Any = None,
    height: str = "46rem",
) -> str:
    """
    One trajectory as HTML for a notebook, with the look of [`write_viewer`].

    It stands in a frame of its own that can neither load anything nor reach the notebook.

    Example:

    ```python
    >>> from IPython.display import HTML
    >>> from taspo_trl.records import read_records
    >>> from taspo_trl.viewer import trajectory_html

    >>> HTML(trajectory_html(next(read_records("out/_trajectories"))))
    ```

    Args:
        record ([`~taspo_trl.records.TrajectoryRecord`]):
            The trajectory.
        siblings (`Iterable[TrajectoryRecord]`, *optional*):
            Members of its group, to which quotes then lead.
        tokenizer ([`~transformers.PreTrainedTokenizerBase`], *optional*):
            The policy's, to show the text of action tokens. Without it they are numbered.
        height (`str`, *optional*, defaults to `"46rem"`):
            CSS height of the frame, which can be dragged.

    Returns:
        `str`: HTML.
    """
    others = [one for one in siblings if one.trajectory.uid != record.trajectory.uid]
    pages = _Pages((lambda token_id: None) if tokenizer is None else (lambda token_id: tokenizer.decode([token_id])))
    members = sorted([record, *others], key=lambda one: one.trajectory.generation_idx)
    chunks = list(pages.add([to_json(one) for one in members], is_partial=False))
    uid = record.trajectory.uid
    index = pages.index(uid, ("", {}), [], [])
    index["opened"] = index["rows"]["uid"].index(uid)
    title = as_unicode(f"Trajectory {uid}")
    document = "".join(page(title, [*chunks, ("index", index), ("search", [])], is_embedded=True))
    frame = f"width: 100%; height: {html.escape(height)}; border: 0; resize: vertical; overflow: auto"
    return (
        f'<div><iframe title="{html.escape(title)}" sandbox="allow-scripts" style="{frame}" '
        f'srcdoc="{html.escape(document)}"></iframe></div>'
    )


@dataclass
class _Pages:
    """Collects rows while the groups go by."""

    token_text: TokenText
    rows: list[Row] = field(default_factory=list)
    group_numbers: list[int] = field(default_factory=list)
    groups: list[tuple[str, str]] = field(default_factory=list)
    """(id, task) of each."""
    rejections: Counter[str] = field(default_factory=Counter)
    """By stage and reason."""
    facts: dict[str, Any] = field(default_factory=dict)
    """The method as the run told it."""
    methods: Counter[str] = field(default_factory=Counter)
    """Records by the method that they carry."""
    _usual: dict[str, dict[str, Any]] = field(default_factory=dict)

    def add(self, records: Sequence[Mapping[str, Any]], is_partial: bool) -> Iterator[tuple[str, Any]]:
        """The chunks of the groups in `records`."""
        by_group: dict[str, list[Mapping[str, Any]]] = {}
        for record in records:
            by_group.setdefault(text(record.get("group_id")), []).append(record)
        for group_id, members in by_group.items():
            rows = [row_of(record, is_partial) for record in members]
            task = next((row.task for row in rows if row.task), "")
            self.group_numbers.extend([len(self.groups)] * len(rows))
            self.rows.extend(rows)
            self.groups.append((group_id, task))
            self.methods.update(row.method for row in rows if row.method)
            data = group_data(members, self.token_text, self._facts_of(rows))
            for one in (data["extraction"], *(member["guidance"] for member in data["members"])):
                for rejection in one["rejections"] if one else ():
                    self.rejections[f"{rejection['stage']}: {rejection['reason']}"] += 1
            yield f"group-{len(self.groups) - 1}", data

    def _facts_of(self, rows: Sequence[Row]) -> dict[str, Any]:
        """Of the method that a group carries: told by the run, else what its name means."""
        name = next((row.method for row in rows if row.method), "")
        if not name or text(self.facts.get("name")) == name:
            return self.facts
        if name not in self._usual:
            self._usual[name] = usual_facts(name)
        return self._usual[name]

    def _shown_facts(self) -> dict[str, Any]:
        last = next(iter(reversed(self._usual.values())), {})
        return self.facts or last

    def index(
        self,
        name: str,
        history: tuple[str, Series],
        evaluations: list[dict[str, Any]],
        notes: list[str],
    ) -> dict[str, Any]:
        """What the page reads first."""
        source, series = history
        return {
            "name": name,
            "version": __version__,
            "notes": notes,
            "history": {"source": source, "series": series},
            "evaluations": evaluations,
            "method": shown_method(mapping(self._shown_facts()), self.methods),
            "rejections": self.rejections.most_common(),
            "groups": {
                "key": unique([group_id for group_id, _ in self.groups]),
                "task": [task for _, task in self.groups],
            },
            "rows": columns(self.rows, self.group_numbers, unique([row.uid for row in self.rows])),
        }


def _chunks(run: RunFiles, folder: Path) -> Iterator[tuple[str, Any]]:
    """All data of a run; one file of records is in memory at a time."""
    facts, method_notes = load_facts(run.records[0].path.parent if run.records else None)
    pages = _Pages(load_token_texts(run.tokenizer), facts=facts)
    faults: list[str] = []
    versions: set[str] = set()
    for file in run.records:
        lines = list(read_lines(file))
        faults.extend(line for line in lines if isinstance(line, str))
        records = [line for line in lines if not isinstance(line, str)]
        versions.update(text(record.get("version")) or "unknown" for record in records)
        yield from pages.add(records, file.is_partial)
    source, series, log_notes = load_history(run.logs, folder)
    if not series:
        source, series = "", series_from_rows(pages.rows)
    evaluations, evaluation_notes = load_evaluations(run.evaluations)
    notes = [
        *run.notes,
        *method_notes,
        *log_notes,
        *evaluation_notes,
        *_version_notes(versions),
        *_fault_notes(faults),
    ]
    yield "index", pages.index(run.name, (source, series), evaluations, notes)
    yield "search", [row.actions for row in pages.rows]


def _version_notes(versions: set[str]) -> list[str]:
    return [
        f"Some records have version {version}, not the {RECORD_VERSION} of this taspo_trl: what they lack is left out."
        for version in sorted(versions - {str(version) for version in READ_VERSIONS})
    ]


def _fault_notes(faults: Sequence[str]) -> list[str]:
    shown = [f"Not shown: {fault}." for fault in faults[:_NUM_FAULTS_SHOWN]]
    left = len(faults) - len(shown)
    return [*shown, f"{left} more lines are not shown."] if left else shown
