"""`taspo view --watch` and `--open`: the page follows a run, is always whole, and ends with Ctrl-C."""

import re

import pytest

from taspo_trl.cli import main
from taspo_trl.records import write_records
from taspo_trl.viewer.watch import watch
from tests.runs import small_group, write_small_run


def reload_of(path):
    """How often a page loads itself again; None for never."""
    text = path.read_text(encoding="utf-8")
    found = re.search(r'<html lang="en" data-reload="([\d.]+)">', text)
    return None if found is None else float(found[1])


def test_page_follows_the_run_and_ends_with_an_interrupt(tmp_path):
    run, pauses, written = tmp_path / "run", [], []

    def sleep(seconds):
        pauses.append(seconds)
        assert list(tmp_path.rglob("*.partial")) == []
        if len(pauses) == 1:  # the run begins
            write_small_run(run)
        elif len(pauses) == 3:  # one batch more
            write_records(run / "_trajectories" / "rollout_000002.jsonl", small_group(2))
        elif len(pauses) == 5:
            raise KeyboardInterrupt

    def on_write(path, count):
        written.append((len(pauses), count, reload_of(path)))

    path = watch(run, seconds=7, on_write=on_write, sleep=sleep)
    assert written == [(1, 1, 7.0), (3, 2, 7.0)]  # once for each change, and not when nothing came
    assert min(pauses) == 7
    assert path == run / "_view.html" and reload_of(path) is None  # the last one stays as it is


def test_watch_says_once_that_it_waits(tmp_path):
    told, slept = [], []

    def sleep(seconds):
        slept.append(seconds)
        if len(slept) == 3:
            raise KeyboardInterrupt

    assert watch(tmp_path / "none", seconds=2, on_wait=told.append, sleep=sleep) is None
    assert len(told) == 1 and "is no folder" in told[0]
    assert slept == [2, 2, 2]


@pytest.mark.parametrize("has_browser", [True, False])
def test_page_is_opened_in_the_browser(tmp_path, monkeypatch, capsys, has_browser):
    opened = []
    monkeypatch.setattr("webbrowser.open", lambda address: opened.append(address) or has_browser)
    run = write_small_run(tmp_path)
    assert main(["view", str(run), "--open"]) == 0
    assert opened == [(run / "_view.html").as_uri()]
    out = capsys.readouterr()
    assert out.out.strip() == str(run / "_view.html")
    assert ("No browser was found" in out.err) is not has_browser


def test_watch_on_the_command_line_opens_once(tmp_path, monkeypatch, capsys):
    opened = []
    monkeypatch.setattr("webbrowser.open", lambda address: opened.append(address) or True)
    monkeypatch.setitem(watch.__kwdefaults__, "sleep", interrupted)
    run = write_small_run(tmp_path)
    assert main(["view", str(run), "--open", "--watch", "3"]) == 0
    assert len(opened) == 1
    assert "Ctrl-C ends it" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["view", str(run), "--watch", "0"])


def interrupted(seconds):
    raise KeyboardInterrupt
