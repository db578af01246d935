"""The viewer's data: everything a run left is shown, nothing a run recorded becomes markup."""

import base64
import dataclasses
import gzip
import hashlib
import json
import math
import re
import subprocess
import sys
from html.parser import HTMLParser

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from taspo_trl.errors import RecordError
from taspo_trl.evaluation import EvaluationResult
from taspo_trl.records import TrajectoryRecord, read_records, to_json, write_records
from taspo_trl.types import Block, Credit, Guidance, ReplyScore, StopReason
from taspo_trl.viewer import trajectory_html, write_viewer
from taspo_trl.viewer.blocks import shown_block
from taspo_trl.viewer.evaluations import load_evaluations
from taspo_trl.viewer.groups import group_data
from taspo_trl.viewer.history import load_history, series_from_rows, series_of
from taspo_trl.viewer.index import columns, row_of, unique
from taspo_trl.viewer.page import SCRIPTS, STYLES, asset, packed, page
from taspo_trl.viewer.reply import reply_parts
from taspo_trl.viewer.sources import RecordFile, find_run, read_lines
from taspo_trl.viewer.token_texts import load_token_texts
from taspo_trl.viewer.write import _version_notes
from tests.builders import trajectory, turn
from tests.runs import episode, small_group, without_guidance, write_small_run


def no_text(token_id):
    return None


class Parsed(HTMLParser):
    """The elements of a page, and the text of those that have an id."""

    def __init__(self, document):
        super().__init__(convert_charrefs=True)
        self.elements = []
        self.texts = {}
        self._open = None
        self.feed(document)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, tuple(sorted(name for name, _ in attrs))))
        self._open = dict(attrs).get("id")

    def handle_data(self, data):
        if self._open is not None:
            self.texts[self._open] = self.texts.get(self._open, "") + data

    def handle_endtag(self, tag):
        self._open = None

    def chunk(self, name):
        return json.loads(gzip.decompress(base64.b64decode(self.texts[name], validate=True)))


def parsed(path):
    return Parsed(path.read_text(encoding="utf-8"))


# ---- replies ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reply", "action", "parts"),
    [
        ("<action>look</action>", "look", ["", "<action>look</action>", ""]),
        ("so <ACTION> look\n</Action>.", "look", ["so ", "<ACTION> look\n</Action>", "."]),
        ("<search>mugs</search>", "search: mugs", ["", "<search>mugs</search>", ""]),  # rewritten by the environment
        ("<action>CLICK[Buy]</action>", "click[buy]", ["", "<action>CLICK[Buy]</action>", ""]),
        ("<answer>a</answer><move>up</move>", "up", ["<answer>a</answer>", "<move>up</move>", ""]),  # its own tags
        ("<think><move>up</move></think>", "up", ["<think>", "<move>up</move>", "</think>"]),
        ("<action>a</action><action>b</action>", "a", ["", "<action>a</action>", "<action>b</action>"]),
        ("I go north", "go north", ["I ", "go north", ""]),
        ("<action></action>", "", ["", "<action></action>", ""]),
        ("nothing here", "", ["nothing here"]),
        ("nothing here", "look", ["nothing here"]),
        ("<action>look", "look", ["<action>", "look", ""]),
        ("", "", [""]),
    ],
)
def test_executed_action_is_found_in_the_reply(reply, action, parts):
    assert reply_parts(reply, action) == parts


@settings(deadline=None)
@given(st.text(alphabet="<>/acx \n", max_size=60), st.text(alphabet="acx \n", max_size=6))
def test_parts_of_a_reply_are_the_reply(reply, action):
    parts = reply_parts(reply, action)
    assert "".join(parts) == reply
    assert len(parts) in (1, 3)


def test_unclosed_markup_takes_no_time_without_end():
    reply = "".join(f"<t{k}>" for k in range(5000)) + "<a>" * 5000
    assert reply_parts(reply, "look") == [reply]


# ---- groups -----------------------------------------------------------------------------------------------------


def test_group_shows_shifts_supports_and_weights_of_each_turn():
    records = [to_json(record) for record in small_group()]
    data = group_data(records, {11: "go", 12: " to"}.get)
    first, second, _ = data["members"][1]["turns"]
    assert (first["weight"], first["support"], second["weight"]) == (1.125, -0.75, 1.0)
    # Shifts: -2.5 - -1.0, -0.5 - -0.5; the mask takes tokens 1 and 2 of the reply.
    assert first["tokens"]["shift"] == [-1.5, 0.0]
    assert first["tokens"]["plain"] == [-1.0, -0.5]
    assert first["tokens"]["at"] == [1, 2]
    assert [data["texts"][k] for k in first["tokens"]["text"]] == ["go", " to"]
    assert first["reply"] == ["I think.\n", "<action>go to lamp 1</action>", ""]
    assert second["valid"] is False
    assert data["members"][0]["turns"][0]["tokens"] is None  # not scored


def test_text_that_repeats_is_kept_once():
    data = group_data([to_json(record) for record in small_group()], no_text)
    assert len(set(data["texts"])) == len(data["texts"])
    first, second, third = data["members"][1]["turns"]
    assert first["after"] == second["before"]
    assert data["texts"][third["after"]] == "A mug 1!"
    assert data["members"][0]["turns"][0]["before"] == first["before"]  # the siblings' common start


def test_group_keeps_the_pedigree_of_guidance():
    data = group_data([to_json(record) for record in small_group()], no_text)
    given = data["members"][1]["guidance"]
    assert given["statements"][0]["support"][1] == {"turn": 2, "field": "pre", "quote": "Nothing happens."}
    assert given["evidence"][0]["sources"] == [
        {"uid": "r0-g0-k0", "turn": 0, "pre": "a desk 1 and a lamp 1", "action": "go to desk 1", "post": "is a mug 1."}
    ]
    assert given["rejections"] == [{"stage": "alignment", "reason": "evidence_id_not_allowed", "item": "E9"}]
    assert data["extraction"]["rejections"][0]["reason"] == "quote_not_found"
    assert data["members"][0]["guidance"]["abstain_reason"] == "no_other_success"
    assert data["members"][2]["error"] == "RuntimeError: the game is gone"


def test_token_weights_stand_at_the_action_tokens():
    one = trajectory([turn((1,), (10, 11, 12), action_mask=(False, True, True))])
    credit = Credit(
        "t",
        1.0,
        (1.0,),
        (0.5,),
        (ReplyScore((math.nan, -1.0, -1.0), {"aligned": (math.nan, 0.0, -1.0)}),),
        "",
        ((1.0, 1.25, 0.75),),
    )
    (member,) = group_data([to_json(TrajectoryRecord(one, "g", 0, 0, credit=credit))], no_text)["members"]
    assert member["turns"][0]["tokens"]["weight"] == [1.25, 0.75]


def test_non_finite_log_probabilities_have_no_shift():
    score = ReplyScore((math.nan, math.nan, -1.0), {"aligned": (math.nan, -1.0, -1.5)}, "non_finite")
    credit = Credit("t", 1.0, (1.0,), (None,), (score,))
    record = TrajectoryRecord(trajectory([turn()]), "g", 0, 0, credit=credit)
    (member,) = group_data([to_json(record)], no_text)["members"]
    assert member["turns"][0]["tokens"]["shift"] == [None, -0.5]
    assert member["turns"][0]["unscorable"] == "non_finite"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@st.composite
def damaged_records(draw):
    """A whole record in which some values are gone or are something else."""
    data = json.loads(json.dumps(to_json(small_group()[1])))
    places = [(data, key) for key in data]
    for value in (data["turns"][0], data["credit"], data["guidance"], data["extraction"], data["credit"]["scores"][0]):
        places += [(value, key) for key in value]
    for holder, key in draw(
        st.lists(st.sampled_from(places), min_size=1, max_size=4, unique_by=lambda p: (id(p[0]), p[1]))
    ):
        if draw(st.booleans()):
            holder.pop(key, None)
        else:
            holder[key] = draw(json_values)
    return data


@given(damaged_records())
@settings(max_examples=200, deadline=None)
def test_damaged_record_is_shown_as_what_it_is(record):
    row = row_of(record)
    data = group_data([record], no_text)
    packed([data, columns([row], [0], unique([row.uid]))])  # plain JSON
    (member,) = data["members"]
    assert len(member["turns"]) == row.turns
    for one in member["turns"]:
        assert isinstance(one["action"], str) and all(isinstance(part, str) for part in one["reply"])
        assert one["before"] < len(data["texts"]) and one["after"] < len(data["texts"])


# ---- rows -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "outcome"),
    [
        ({}, "failure"),
        ({"success": True}, "success"),
        ({"success": 1}, "unknown"),  # only the verdict itself is one
        ({"success": None}, "unknown"),
        ({"stop_reason": "env_error", "success": True}, "infrastructure"),
        ({"turns": [], "success": True}, "infrastructure"),
        ({"stop_reason": "of a later version"}, "failure"),
        ({"stop_reason": ["no", "text"]}, "failure"),
    ],
)
def test_outcome_of_a_row(change, outcome):
    assert row_of(to_json(small_group()[1]) | change).outcome == outcome


def test_row_says_why_weights_are_one():
    winner, loser, dead = (row_of(to_json(record)) for record in small_group())
    assert (winner.credit, winner.weights, winner.has_guidance) == ("no_other_success", (), False)
    assert (loser.credit, loser.weights, loser.has_guidance) == ("weighted", (1.125, 1.0, 0.875), True)
    assert dead.credit == "infrastructure"
    crashed = row_of(to_json(without_guidance(small_group()[1])))
    assert (crashed.credit, crashed.has_guidance, crashed.advantage) == ("not recorded", None, None)


def test_details_behind_a_colon_make_no_category_of_their_own():
    record = small_group()[0]
    credit = dataclasses.replace(record.credit, fallback="abstained: the evidence, it says, is thin")
    assert row_of(to_json(dataclasses.replace(record, credit=credit))).credit == "abstained"


def test_names_that_repeat_are_told_apart():
    assert unique(["a", "b", "a", "a", "a (2)"]) == ["a", "b", "a (2)", "a (3)", "a (2) (2)"]


# ---- curves -----------------------------------------------------------------------------------------------------


def test_series_keep_small_numbers_and_the_last_value_of_a_step():
    entries = [
        {"step": 1, "loss": 1.23456789e-9, "name": "x", "flag": True},
        {"step": 2, "loss": float("nan")},
        {"step": 1, "loss": 2.0e-9},
        {"loss": 3.0},
        None,
    ]
    assert series_of(entries) == {"loss": [[1.0, 2.0e-9]]}


def test_log_that_goes_furthest_is_taken(tmp_path):
    def write(name, steps):
        path = tmp_path / name / "trainer_state.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"log_history": [{"step": step, "success": 0.5} for step in range(1, steps + 1)]}))
        return path

    logs = [write("checkpoint-20", 2), write("checkpoint-10", 10)]
    (tmp_path / "metrics.json").write_text('[{"step": 3, "success": 1.0')  # cut in the middle
    source, series, notes = load_history([*logs, tmp_path / "metrics.json"], tmp_path)
    assert source == "checkpoint-10/trainer_state.json"
    assert len(series["success"]) == 10
    assert len(notes) == 1 and notes[0].startswith("metrics.json holds no log")


def test_curves_of_a_run_without_log_are_those_of_training(tmp_path):
    from taspo_trl.reporting.metrics import credit_metrics, guidance_metrics, rollout_metrics

    records = [*small_group(0), *small_group(0)]
    trajectories = [record.trajectory for record in records]
    advantages = [record.credit.advantage for record in records]
    guidance = {record.trajectory.uid: record.guidance for record in records}
    expected = {
        **rollout_metrics(trajectories),
        **guidance_metrics(guidance, {}, trajectories, advantages),
        **credit_metrics([record.credit for record in records], trajectories),
    }
    series = series_from_rows([row_of(to_json(record)) for record in records])
    assert set(series) == {
        "success", "reward", "turns/mean", "actions/invalid_share", "guidance/coverage", "credit/weight_std",
    }  # fmt: skip
    for name, [[step, value]] in series.items():
        assert step == 0
        assert value == pytest.approx(expected[name], abs=1e-12), name


# ---- evaluations ------------------------------------------------------------------------------------------------


def test_evaluations_carry_intervals_and_the_paired_test(tmp_path):
    folder = write_small_run(tmp_path) / "_evaluations"
    (first, later), notes = load_evaluations(sorted(folder.glob("*.json")))
    assert notes == []
    assert [one["step"] for one in (first, later)] == [0, 8]
    # 2 of 8: Wilson's centre (p + z^2/2n) / (1 + z^2/n) and half-width by hand.
    z2, n, p = 1.959964**2, 8, 0.25
    centre = (p + z2 / (2 * n)) / (1 + z2 / n)
    half = math.sqrt(z2 * (p * (1 - p) / n + z2 / (4 * n * n))) / (1 + z2 / n)
    assert first["overall"] == pytest.approx([0.25, centre - half, centre + half, 2, 8], abs=1e-5)
    assert [family for family, _ in first["families"]] == ["heat", "pick"]
    # Four tasks changed, all for the better: p = 2 * (1/2)^4.
    assert later["since_first"] == {
        "difference": 0.5, "p_value": 0.125, "num_pairs": 8, "only_first": 0, "only_later": 4,
    }  # fmt: skip
    assert first["since_first"] is None


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        "null",
        '{"kind": "evaluation", "version": 9}',
        '{"kind": "evaluation", "version": 1, "plays": [3]}',
    ],
)
def test_file_that_is_no_evaluation_is_named(tmp_path, content):
    (tmp_path / "eval_000001.json").write_text(content)
    shown, notes = load_evaluations(tmp_path.glob("*.json"))
    assert shown == []
    assert len(notes) == 1 and notes[0].startswith("eval_000001.json is not shown")


def test_evaluation_in_which_nothing_was_usable_is_shown(tmp_path):
    EvaluationResult((), {}).save(tmp_path / "eval.json")
    ((only,), notes) = load_evaluations(tmp_path.glob("*.json"))
    assert notes == []
    assert (only["overall"][0], only["macro"], only["step"]) == (None, None, None)
    packed(only)


# ---- files of a run ---------------------------------------------------------------------------------------------


def test_folder_without_a_run_is_refused_with_the_way_out(tmp_path):
    (tmp_path / "data.jsonl").write_text('{"question": "?"}\n')
    with pytest.raises(RecordError, match=r"holds no run: .*Give the `output_dir` of a training run"):
        write_viewer(tmp_path)
    with pytest.raises(RecordError, match=r"is no folder\. Give the `output_dir`"):
        write_viewer(tmp_path / "absent")
    write_small_run(tmp_path / "runs-a")
    with pytest.raises(RecordError, match=r"There are runs in it: .*runs-a\."):
        write_viewer(tmp_path)
    assert list(tmp_path.glob("*_view*")) == []


def test_partial_file_is_shown_up_to_its_cut(tmp_path):
    folder = write_small_run(tmp_path) / "_trajectories"
    lines = [json.dumps(to_json(record)) for record in small_group(2)]
    (folder / "rollout_000002.jsonl.partial").write_text("\n".join(lines)[:-40])
    (folder / "rollout_000001.jsonl.partial").write_text(lines[0])  # finished by the resumed run
    index = parsed(write_viewer(tmp_path)).chunk("index")
    assert index["rows"]["uid"][-2:] == ["r2-g0-k0", "r2-g0-k1"]
    assert index["rows"]["partial"] == [False] * 6 + [True] * 2
    notes = "\n".join(index["notes"])
    assert "rollout_000002.jsonl.partial was left by a run that was stopped" in notes
    assert "rollout_000001.jsonl.partial is not shown: the finished file is there too." in notes
    assert "rollout_000002.jsonl.partial, line 3: cut in the middle" in notes


def test_broken_lines_are_named_and_the_others_shown(tmp_path):
    path = tmp_path / "rollout_000000.jsonl"
    good = json.dumps(to_json(small_group()[0]))
    path.write_bytes(b"\n".join([good.encode(), b"no json", b"[1]", b"\xff{", b"", b"[" * 100_000, good.encode()]))
    lines = list(read_lines(RecordFile(path, False)))
    assert [isinstance(line, dict) for line in lines] == [True, False, False, False, False, True]
    assert [re.match(r"rollout_000000\.jsonl, line (\d): ", line)[1] for line in lines[1:5]] == ["2", "3", "4", "6"]
    page_ = parsed(write_viewer(path))
    assert page_.chunk("index")["rows"]["key"] == ["r0-g0-k0", "r0-g0-k0 (2)"]


def test_many_broken_lines_do_not_fill_the_page(tmp_path):
    path = tmp_path / "_trajectories" / "rollout_000000.jsonl"
    path.parent.mkdir()
    path.write_text("nonsense\n" * 500)
    notes = parsed(write_viewer(tmp_path)).chunk("index")["notes"]
    assert len(notes) == 21
    assert notes[-1] == "480 more lines are not shown."


def test_guidance_of_version_1_is_shown_without_a_note(tmp_path):
    old = to_json(small_group()[1]) | {"version": 1}
    del old["guidance"]["blocks"]
    old["guidance"] |= {"block_ids": [7, 8, 9], "text": "- Go to the desk."}
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps(old) + "\n")
    (record,) = read_lines(RecordFile(path, False))
    assert row_of(record).has_guidance is True
    assert (shown_block(record["guidance"])) == (3, "- Go to the desk.")
    assert shown_block(to_json(small_group()[1])["guidance"]) == (3, "- Go to the desk.")
    assert _version_notes({"1", "2"}) == []


def test_a_record_of_version_1_is_shown_like_the_same_of_the_newest(tmp_path):
    new = to_json(small_group()[1])
    old = json.loads(json.dumps(new)) | {"version": 1}
    (name, block), *others = old["guidance"].pop("blocks").items()
    assert not others and name == old["guidance"]["construction"] == "aligned"
    old["guidance"] |= {"block_ids": block["ids"][0], "text": block["texts"][0]}
    for score in old["credit"]["scores"]:
        score |= {"plain_logps": score.pop("plain"), "guided_logps": score.pop("guided").get("aligned", [])}
        del score["places"], score["tokens"], score["missing"]
    del old["credit"]["method"]
    assert any(score["plain_logps"] for score in old["credit"]["scores"])
    (tmp_path / "a.jsonl").write_text(json.dumps(old) + "\n")
    (read,) = read_lines(RecordFile(tmp_path / "a.jsonl", False))
    assert group_data([read], no_text) == group_data([new], no_text)


def test_several_blocks_are_shown_under_their_names_and_turns():
    blocks = {
        "episode": Block.whole((1, 2), 3, "Look first."),
        "step": Block((None, (3,), (3,)), ("", "Take it.", "Take it.")),
    }
    record = dataclasses.replace(small_group()[1], guidance=Guidance("u", "own_workflow", blocks))
    shown = (2, "episode, turns 1, 2, 3:\nLook first.\n\nstep, turns 2, 3:\nTake it.")
    assert shown_block(to_json(record)["guidance"]) == shown


def test_records_of_another_version_are_shown_with_a_note(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps(to_json(small_group()[0]) | {"version": 7, "turns": [{"action": "look"}]}))
    index = parsed(write_viewer(tmp_path)).chunk("index")
    assert index["rows"]["turns"] == [1]
    assert index["notes"] == ["Some records have version 7, not the 2 of this taspo_trl: what they lack is left out."]


def test_crashed_run_is_shown(tmp_path):
    records = [without_guidance(record) for record in small_group()]
    write_records(tmp_path / "_trajectories" / "rollout_000000.jsonl", records)
    shown = parsed(write_viewer(tmp_path))
    index = shown.chunk("index")
    assert index["rows"]["credit"] == ["not recorded"] * 3
    assert index["evaluations"] == []
    assert index["history"]["source"] == ""
    assert "guidance/coverage" not in index["history"]["series"]  # nothing is known of it
    assert index["history"]["series"]["success"] == [[0.0, 0.5]]
    assert shown.chunk("group-0")["extraction"] is None
    assert shown.chunk("group-0")["members"][0]["guidance"] is None


def test_run_without_trajectories_is_shown(tmp_path):
    write_small_run(tmp_path)
    for path in (tmp_path / "_trajectories").iterdir():
        path.unlink()
    index = parsed(write_viewer(tmp_path)).chunk("index")
    assert index["rows"]["key"] == []
    assert len(index["evaluations"]) == 2


def test_page_stands_beside_what_it_shows(tmp_path):
    write_small_run(tmp_path / "run")
    assert write_viewer(tmp_path / "run") == tmp_path / "run" / "_view.html"
    assert write_viewer(tmp_path / "run", tmp_path / "deep" / "x.html") == tmp_path / "deep" / "x.html"
    single = tmp_path / "run" / "_trajectories" / "rollout_000001.jsonl"
    assert write_viewer(single) == single.with_name("rollout_000001.jsonl_view.html")
    assert list(tmp_path.rglob("*.partial")) == []


def test_same_run_gives_the_same_page(tmp_path):
    write_small_run(tmp_path)
    assert write_viewer(tmp_path, tmp_path / "a").read_bytes() == write_viewer(tmp_path, tmp_path / "b").read_bytes()


def test_page_does_not_name_where_the_run_lies(tmp_path):
    folder = write_small_run(tmp_path / "run")
    (folder / "_trajectories" / "rollout_000003.jsonl").write_text("broken")
    (folder / "_evaluations" / "eval_000009.json").write_text("broken")
    text = json.dumps(parsed(write_viewer(folder)).chunk("index"))
    assert str(tmp_path) not in text


def test_newest_checkpoint_gives_the_tokenizer(tmp_path):
    write_small_run(tmp_path)
    for step in (8, 9, 10):
        (tmp_path / f"checkpoint-{step}").mkdir(exist_ok=True)
        (tmp_path / f"checkpoint-{step}" / "tokenizer.json").write_text("{}")
    (tmp_path / "checkpoint-best").mkdir()
    assert find_run(tmp_path).tokenizer == tmp_path / "checkpoint-10" / "tokenizer.json"


def test_token_texts_come_from_the_saved_tokenizer(tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    model = tokenizers.models.WordLevel({"go to": 0, "desk 1": 1, "[UNK]": 2}, unk_token="[UNK]")
    tokenizers.Tokenizer(model).save(str(tmp_path / "tokenizer.json"))
    text_of = load_token_texts(tmp_path / "tokenizer.json")
    assert [text_of(1), text_of(0)] == ["desk 1", "go to"]
    assert [text_of(one) for one in (99, -1, None, 2**40)] == [None] * 4
    (tmp_path / "tokenizer.json").write_text("{}")
    assert load_token_texts(tmp_path / "tokenizer.json")(1) is None


def test_viewer_does_not_load_torch():
    code = "import sys, taspo_trl.viewer; assert not {'torch', 'trl', 'transformers'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


# ---- escaping ---------------------------------------------------------------------------------------------------

NASTY = "</script><script>alert(1)</script><!--<style>'\"&amp;]]>{{x}}\ud83d\u2028\x00\r"


def hostile(text):
    """A record that says `text` wherever it can."""
    record = small_group()[1]
    turns = [
        dataclasses.replace(one, reply_text=text, action=text, observation=text, next_observation=text)
        for one in record.trajectory.turns
    ]
    one = dataclasses.replace(
        record.trajectory,
        uid=text, task={text: text}, task_text=text, family=text, environment=text, turns=tuple(turns), error=text,
        opening=({"role": text, "content": text},), rewards={text: 1.0},
    )  # fmt: skip
    guidance = json.loads(json.dumps(to_json(record)["guidance"]).replace("Go to the desk.", json.dumps(text)[1:-1]))
    data = to_json(record) | {"guidance": guidance | {"text": text, "construction": text, "abstain_reason": text}}
    from taspo_trl.records import from_json

    return dataclasses.replace(from_json(data), trajectory=one, group_id=text)


texts = st.one_of(st.text(), st.lists(st.sampled_from([*NASTY, "</script>", "<!--", "<script>"])).map("".join))


@given(texts)
@settings(max_examples=60, deadline=None)
def test_no_text_breaks_out_of_the_page(text):
    outer = Parsed(trajectory_html(hostile(text)))
    assert outer.elements == Parsed(trajectory_html(hostile("bland"))).elements  # one frame, whatever it holds
    document = "".join(page(text, [("index", [text]), ("group-0", {text: text})]))
    bland = Parsed("".join(page("x", [("index", ["x"]), ("group-0", {"x": "x"})])))
    shown = Parsed(document)
    assert shown.elements == bland.elements
    assert shown.chunk("index") == [text]
    assert shown.chunk("group-0") == {text: text}


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=texts)
def test_every_text_of_a_record_reaches_the_page_as_it_is(tmp_path, text):
    path = tmp_path / "a.jsonl"
    write_records(path, [hostile(text)])
    group = parsed(write_viewer(path)).chunk("group-0")
    (member,) = group["members"]
    assert group["texts"][member["turns"][0]["before"]] == text
    assert "".join(member["turns"][0]["reply"]) == text
    assert member["guidance"]["statements"][0]["text"] == text
    assert member["error"] == text


def test_policy_admits_the_pages_own_code_and_nothing_else(tmp_path):
    document = write_viewer(write_small_run(tmp_path)).read_text()
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]+)"', document)
    rules = dict(rule.split(" ", 1) for rule in policy.split("; "))
    assert rules.pop("default-src") == "'none'"
    assert rules.pop("base-uri") == rules.pop("form-action") == "'none'"
    assert rules.pop("img-src") == "data:"
    assert rules.pop("require-trusted-types-for") == "'script'"
    assert set(rules) == {"script-src", "style-src"}
    for kind, tag in (("script-src", "script"), ("style-src", "style")):
        code = re.findall(rf"<{tag}>(.*?)</{tag}>", document, re.DOTALL)
        hashes = [base64.b64encode(hashlib.sha256(one.encode()).digest()).decode() for one in code]
        assert rules[kind].split() == [f"'sha256-{one}'" for one in hashes]


@pytest.mark.parametrize("name", [*SCRIPTS, *STYLES, "body.html"])
def test_assets_load_nothing_and_write_no_markup(name):
    text = asset(name)
    assert not re.search(r"</script|</style|<!--", text)
    addresses = [one for one in re.findall(r"https?:[^\s\"')]*", text) if one != "http://www.w3.org/2000/svg"]
    assert addresses == []
    forbidden = (
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function|\bimport\b|fetch\(|url\("
    )
    assert not re.search(forbidden, text)
    assert len(text.splitlines()) <= 400


def test_every_asset_is_in_the_page():
    from importlib.resources import files

    names = {one.name for one in (files("taspo_trl.viewer") / "static").iterdir()}
    assert names == {*SCRIPTS, *STYLES, "body.html"}


# ---- colours ----------------------------------------------------------------------------------------------------


def _colours(is_dark):
    blocks = re.findall(r":root \{(.*?)\}", asset("base.css"), re.DOTALL)
    found = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", blocks[0]))
    return found | dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", blocks[1])) if is_dark else found


def _luminance(colour):
    parts = [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("is_dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize(
    ("front", "back"),
    [(front, back) for back in ("page", "panel", "sunken") for front in ("ink", "quiet", "accent")]
    + [("ink", back) for back in ("blame", "credit", "neutral", "quoted", "action", "note-back")]
    + [("good", "good-back"), ("bad", "bad-back"), ("good", "panel"), ("bad", "panel"), ("quiet", "action")],
)
def test_text_is_readable_on_its_background(is_dark, front, back):
    colours = _colours(is_dark)
    low, high = sorted((_luminance(colours[front]), _luminance(colours[back])))
    assert (high + 0.05) / (low + 0.05) >= 4.5  # WCAG AA


# ---- notebooks --------------------------------------------------------------------------------------------------


def test_trajectory_for_a_notebook_is_one_frame_that_can_do_nothing():
    html = trajectory_html(small_group()[1], small_group(), height="30rem")
    shown = Parsed(html)
    assert [tag for tag, _ in shown.elements] == ["div", "iframe"]
    assert 'sandbox="allow-scripts"' in html
    assert "height: 30rem" in html


def test_siblings_of_a_notebooks_trajectory_are_in_its_page():
    html = trajectory_html(small_group()[1], small_group())
    (attributes,) = [dict(re.findall(r'(\w+)="([^"]*)"', html))]
    import html as escape

    inner = Parsed(escape.unescape(attributes["srcdoc"]))
    index = inner.chunk("index")
    assert index["rows"]["uid"] == ["r0-g0-k0", "r0-g0-k1", "r0-g0-k2"]
    assert index["opened"] == 1


def test_record_read_back_gives_the_same_view(tmp_path):
    records = small_group()
    write_records(tmp_path / "a.jsonl", records, with_prompt_ids=True)
    back = list(read_records(tmp_path / "a.jsonl"))
    assert trajectory_html(back[1], back) == trajectory_html(records[1], records)


def test_tokenizer_names_the_action_tokens():
    class Tokenizer:
        def decode(self, ids):
            return f"<{ids[0]}>"

    html = trajectory_html(small_group()[1], tokenizer=Tokenizer())
    assert html != trajectory_html(small_group()[1])


def test_episode_without_reason_to_end_is_shown():
    one = episode("u", [("look", "Nothing.")], "Start.", False, generation_idx=4)
    record = TrajectoryRecord(
        dataclasses.replace(one, stop_reason=StopReason.FAILED), "g", 0, 0, guidance=Guidance("u", "none")
    )
    assert "iframe" in trajectory_html(record)
