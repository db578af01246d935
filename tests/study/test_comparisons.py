"""The ceiling's rule, and tables that say what is missing, from files alone."""

from __future__ import annotations

import json
import math

import pytest

from benchmarks.study.__main__ import run as run_command
from benchmarks.study.__main__ import write_report
from benchmarks.study.ceiling import candidates, choose
from benchmarks.study.comparisons import NOT_DECIDABLE, NOT_SEEN, SEEN, Comparisons
from benchmarks.study.plan import Choice
from benchmarks.study.report import CLOSING, NOT_RUN, OPENING, put, report
from benchmarks.study.results import ROOT, Store
from taspo_trl.errors import ConfigurationError
from tests.study.studies import plan, result


CHOICE = Choice("long", 4, "sampled")
SOLVED = {"grpo": (2, 3, 2), "taspo": (5, 6, 6), "serl": (2, 3, 3), "oracle": (6, 8, 7)}
"""Of 8 tasks, at the seeds 0, 1, 2."""


def write(store, run, found):
    store.write(run, {"plan": "p", "code": "c", "load": {}, "total_seconds": 10.0, **found})


@pytest.fixture
def store(tmp_path):
    """A whole first tier."""
    store = Store(tmp_path)
    for run in plan().runs("tier1", CHOICE):
        write(store, run, result(run, SOLVED[run.method][run.seed]))
    return store


def made(store, change=None):
    return Comparisons(plan(change), CHOICE, store.finished("tiers"))


def test_differences_are_paired_by_seed(store):
    found = made(store).difference("taspo", "grpo")
    assert found.values == pytest.approx([3 / 8, 3 / 8, 4 / 8]) and found.is_complete and found.seeds == "3"
    first, second = made(store).confirmatory()
    assert first.p_value == second.p_value == 2 / 8  # all three signs are equal
    assert first.adjusted == second.adjusted == 0.5
    share, count = made(store).share_of_ceiling("taspo")
    assert count == 3 and share.value == pytest.approx((10 / 24) / (14 / 24))


def test_what_is_incomplete_says_so_and_has_no_test(store):
    (store.folder / plan().runs("tier1", CHOICE)[2].path).unlink()  # serl, seed 0
    first, second = made(store).confirmatory()
    assert second.seeds == "INCOMPLETE: 2 of 3" and second.p_value is None
    assert first.p_value == 0.25 and first.adjusted is None, "Holm waits for all contrasts"
    store.write_choice(CHOICE, {"because": "so"})
    text = report(plan(), store, ROOT / "nowhere.json")
    assert "| `taspo` - `serl` | INCOMPLETE: 2 of 3 |" in text and "Tier 1 is incomplete: 1 runs" in text


def test_orderings_are_seen_not_seen_or_not_decidable(store):
    rows = made(store).orderings()
    assert [verdict for *_, verdict, _ in rows] == [SEEN, NOT_DECIDABLE, NOT_DECIDABLE]
    assert rows[0][1] == "taspo > serl" and rows[0][3].endswith("; a rule")  # the stand-in is named
    assert "no difference that 3 seeds can support" in rows[1][3] and rows[2][3] == "no models here"
    turned = made(store, lambda values: values.update(orderings=[{"table": "T", "order": ["grpo", "taspo"]}]))
    assert turned.orderings()[0][2] == NOT_SEEN
    blind = made(store, lambda values: values["tiers"].update(unreadable=["taspo"]))
    assert "not evaluable here" in blind.orderings()[0][3]


def test_runs_that_are_no_pairs_are_refused(store):
    path = store.folder / plan().runs("tier1", CHOICE)[1].path
    path.write_text(path.read_text().replace('"first_batch":"b0"', '"first_batch":"other"'))
    with pytest.raises(ConfigurationError, match="same seed and another first_batch"):
        made(store)


def _ceiling(folder, gains):
    """A whole ceiling: in the long setting the oracle's area is that much above GRPO's."""
    store = Store(folder)
    for run in plan().runs("ceiling"):
        better = run.method == "oracle" and run.setting == "long"
        write(store, run, result(run, 4, 0.5 + (gains[run.seed - 100] if better else 0.0)))
    return store


def test_the_rule_takes_the_largest_ratio_of_gain_to_ten_seeds_half_width(tmp_path):
    store = _ceiling(tmp_path / "a", [0.1, 0.11, 0.12])
    found = candidates(plan(), store.finished("ceiling"))
    assert len(found) == 8 and [one.updates for one in found[::2]] == [2, 4, 2, 4]
    best = next(one for one in found if (one.setting, one.updates, one.measure) == ("long", 4, "area"))
    # Deviation .01: half-width of ten seeds 2.2622 * .01 / sqrt(10).
    assert best.ratio == pytest.approx(0.11 / (2.262157 * 0.01 / math.sqrt(10)), rel=1e-5)
    choice, evidence = choose(plan(), store.finished("ceiling"))
    assert (choice.setting, choice.primary) == ("long", "area") and "15.4 times" in evidence["because"]
    # Without a setting that reaches three half-widths it is the one that was written down before.
    vague = _ceiling(tmp_path / "b", [0.1, -0.1, 0.05])
    choice, evidence = choose(plan(), vague.finished("ceiling"))
    assert choice == Choice("short", 4, "sampled") and "no candidate reaches 3.0" in evidence["because"]
    (store.folder / plan().runs("ceiling")[0].path).unlink()
    with pytest.raises(ConfigurationError, match="1 runs of the ceiling are missing"):
        choose(plan(), store.finished("ceiling"))


def test_one_command_goes_from_the_ceiling_through_all_tiers(tmp_path, monkeypatch, capsys):
    from argparse import Namespace

    from rich.console import Console

    monkeypatch.setattr("benchmarks.study.__main__.code_hash", lambda: "c")
    monkeypatch.setattr("benchmarks.study.__main__.facts", dict)
    options = Namespace(
        parts=["ceiling", "tier1", "tier2", "tier3"], hours=None, workers=2, first_methods=None, any_code=False
    )
    store, played = Store(tmp_path), []

    def work(run):
        played.append(run)
        return result(run, 4)

    for _ in range(2):  # the second call finds everything done
        assert run_command(Console(), plan(), store, options, work) == 0
    assert len(played) == 18 + 12 + 2
    assert store.choice() == Choice("short", 4, "sampled")
    page = tmp_path / "docs" / "study.md"
    page.parent.mkdir()
    page.write_text(f"# Study\n\n{OPENING}\n{CLOSING}\n\nend\n")
    credit = tmp_path / "credit.json"
    quality = {name: [0.6, 0.5, 0.7] for name in ("auc", "rank_correlation", "dose")}
    credit.write_text(json.dumps({"methods": {"taspo": {"progress": {"all": quality}}}}))
    monkeypatch.setattr("benchmarks.study.__main__.CREDIT_QUALITY", credit)
    write_report(Console(), plan(), store, page)
    text = page.read_text()
    assert text.startswith("# Study") and text.endswith("end\n") and "Chosen: `short`" in text
    for name in ("study_gains", "study_curves", "study_credit"):
        assert f"images/{name}.svg" in text
        assert (page.parent / "images" / f"{name}.svg").read_text().startswith("<?xml")
    assert "| `taspo` | 0.600 [0.500, 0.700] |" in text
    capsys.readouterr()


def test_the_page_in_the_docs_is_what_the_files_say(tmp_path):
    assert report(plan(), Store(tmp_path), ROOT / "nowhere.json") == NOT_RUN
    page = (ROOT / "docs" / "study.md").read_text()
    if not any((ROOT / "benchmarks" / "results" / "study").glob("*/*/*/*.json")):
        assert put(page, NOT_RUN) == page
