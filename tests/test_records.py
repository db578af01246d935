"""Trajectory records: everything comes back, broken files are named with their line."""

import dataclasses
import datetime
import json
import math
import re

import numpy as np
import pytest

from taspo_trl.errors import RecordError
from taspo_trl.records import (
    RECORD_VERSION,
    TrajectoryRecord,
    as_newest,
    from_json,
    read_records,
    to_json,
    write_records,
)
from taspo_trl.types import (
    Block,
    Credit,
    Evidence,
    Extraction,
    FinishReason,
    Guidance,
    Rejection,
    ReplyScore,
    Source,
    Statement,
    StopReason,
    Support,
)
from tests.builders import trajectory, turn


def full_record():
    """A record in which every field differs from its default."""
    source = Source("g0k1", 2, "pre", "open drawer", "post")
    evidence = Evidence("e1", "progress", "Look inside.", (source, Source("g0k2", 0, "", "look", "desk")))
    rejection = Rejection("extraction", "quote_not_found", "item…")
    return TrajectoryRecord(
        trajectory=trajectory(
            [
                turn(
                    (1, 2, 3),
                    (10, 11, 12),
                    reply_text="Ich öffne 😀\n<action>open\u2028drawer</action>",
                    action="open drawer",
                    action_mask=(False, True, True),
                    observation='You see "it" \\ {brace}\r\n',
                    next_observation="",
                    valid=False,
                    reward=-0.5,
                    splice_index=None,
                    finish_reason=FinishReason.LENGTH,
                    sampling_logps=(-0.1, None, -2.5),
                    prompt_cuts=3,
                    content_mask=(False, True, False),
                    admissible_actions=("look", "go"),
                    progress=-1.5,
                    answer=({"role": "tool", "name": "look", "content": "a desk"},),
                ),
                turn((4,), (), action_mask=(), sampling_logps=()),
            ],
            uid="r0-g0-k1",
            task={"task_id": "a", "level": 3, "nested": {"list": [1, None, "x"]}, "flag": True},
            environment="shop",
            generation_idx=1,
            stop_reason=StopReason.SOLVED,
            success=True,
            opening=({"role": "system", "content": "s"}, {"role": "user", "content": "u"}),
            environment_reward=0.75,
            reward=1.25,
            rewards={"success": 1.0, "style": 0.25, "absent": None},
            error="none really",
            seconds=1.5,
            seed=17,
            verdict="bool",
        ),
        group_id="r0-g0",
        rollout=7,
        step=21,
        extraction=Extraction((evidence,), (rejection,), "thin"),
        guidance=Guidance(
            "r0-g0-k1",
            "aligned",
            {
                "aligned": Block.whole((5, 6), 2, "- Look inside."),
                "step": Block((None, (7,)), ("", "- Now."), "start"),
                "placebo": Block(((), None)),
            },
            (Statement("Look inside.", ("e1",), (Support(0, "pre", "desk"), Support(1, "task", "mug"))),),
            (evidence,),
            (rejection, Rejection("alignment", "unknown_id")),
            "abstained",
        ),
        credit=Credit(
            "r0-g0-k1",
            -0.7,
            (1.1, 0.9),
            (0.5, None),
            (
                ReplyScore((-1.0, -2.0, math.nan), {"aligned": (-0.5, -2.5, math.nan)}),
                ReplyScore(unscorable="no_reply", missing={"step": "no_block"}),
            ),
            "fewer_than_two_scorable_turns",
            ((1.0, 1.2, 1.0), ()),
            "serl",
            (-0.7, -0.5),
            ((-0.7, -0.84, -0.7), ()),
            (0.125, 0.0),
        ),
    )


def minimal_record(**values):
    return TrajectoryRecord(**{"trajectory": trajectory([turn()]), "group_id": "g", "rollout": 0, "step": 0, **values})


def without_prompt_ids(record):
    turns = tuple(dataclasses.replace(one, prompt_ids=()) for one in record.trajectory.turns)
    return dataclasses.replace(record, trajectory=dataclasses.replace(record.trajectory, turns=turns))


@pytest.mark.parametrize("record", [full_record(), minimal_record()], ids=["full", "minimal"])
def test_everything_comes_back(tmp_path, record):
    path = tmp_path / "very" / "deep" / "records.jsonl"
    write_records(path, [record, record], with_prompt_ids=True)
    assert list(read_records(path)) == [record, record]
    write_records(path, [record])
    assert list(read_records(path)) == [without_prompt_ids(record)]


def test_a_whole_block_is_written_once(tmp_path):
    blocks = to_json(full_record())["guidance"]["blocks"]
    assert blocks["aligned"] == {"ids": [[5, 6]], "texts": ["- Look inside."], "turns": [0, 0], "place": "splice"}
    assert blocks["step"] == {"ids": [[7]], "texts": ["- Now."], "turns": [None, 0], "place": "start"}
    assert blocks["placebo"] == {"ids": [[]], "texts": None, "turns": [0, None], "place": "splice"}


@pytest.mark.parametrize("ids, text", [([5, 6], "- Look inside."), ([], "")])
def test_guidance_of_version_1_is_read_as_one_block_for_all_turns(tmp_path, ids, text):
    data = to_json(full_record(), with_prompt_ids=True) | {"version": 1}
    del data["guidance"]["blocks"]
    data["guidance"] |= {"block_ids": ids, "text": text}
    (tmp_path / "old.jsonl").write_text(json.dumps(data) + "\n", encoding="utf-8")
    (read,) = read_records(tmp_path / "old.jsonl")
    num_turns = len(read.trajectory.turns)
    expected = {"aligned": Block.whole(ids, num_turns, text)} if ids else {}
    assert read.guidance == dataclasses.replace(full_record().guidance, blocks=expected)
    assert dataclasses.replace(read, guidance=full_record().guidance) == full_record()


@pytest.mark.parametrize("broken", [None, 3, "x", [], {}, [None], {"plain_logps": 3}, [{"plain_logps": "no"}]])
@pytest.mark.parametrize("place", ["turns", "guidance", "credit", "scores", "block_ids"])
def test_a_damaged_record_of_version_1_keeps_what_it_has(place, broken):
    data = {
        "version": 1,
        "turns": [{"action_mask": [1, 0], "reply_ids": [5, 6]}],
        "guidance": {"construction": "aligned", "block_ids": [7]},
        "credit": {"scores": [{"plain_logps": [-1.0], "guided_logps": [-2.0]}], "weights": [1.0]},
    }
    part = data["credit"] if place == "scores" else data["guidance"] if place == "block_ids" else data
    part[place] = broken
    newest = as_newest(data)
    assert set(newest) == set(data) and newest["version"] == 1
    if place not in ("guidance", "block_ids"):
        assert newest["guidance"]["blocks"]["aligned"]["ids"] == [[7]]
    if place not in ("turns", "credit", "scores"):
        (score,) = newest["credit"]["scores"]
        assert (score["places"], score["plain"], score["guided"]) == ([0], [-1.0], {"aligned": [-2.0]})


def test_a_record_of_the_newest_version_is_left_alone():
    data = to_json(full_record())
    assert as_newest(data) is data


def test_full_record_leaves_no_field_at_its_default():
    # The round trip is worth what its record holds.
    record = full_record()
    for one in (
        record,
        record.trajectory,
        record.trajectory.turns[0],
        record.guidance,
        record.credit,
        record.extraction,
    ):
        for spec in dataclasses.fields(one):
            if spec.default is not dataclasses.MISSING:
                assert getattr(one, spec.name) != spec.default or spec.name == "splice_index", spec.name


def test_line_is_strict_json_with_the_length_of_the_prompt(tmp_path):
    write_records(tmp_path / "a.jsonl", [full_record()])
    (line,) = (tmp_path / "a.jsonl").read_bytes().split(b"\n")[:-1]
    data = json.loads(line, parse_constant=lambda name: pytest.fail(name))
    assert data["version"] == RECORD_VERSION == 2
    assert data["kind"] == "trajectory"
    assert [one["num_prompt_tokens"] for one in data["turns"]] == [3, 1]
    assert all("prompt_ids" not in one for one in data["turns"])
    assert data["turns"][0]["action_mask"] == [0, 1, 1]
    assert "öffne 😀".encode() in line  # readable, not escaped


def test_non_finite_numbers_become_null_and_scores_come_back_as_nan(tmp_path):
    # CRD-2: a record must not lose its line over a NaN.
    record = minimal_record(
        trajectory=trajectory(
            [turn(sampling_logps=(math.nan, -1.0))],
            stop_reason=StopReason.REWARD_ERROR,
            rewards={"success": 0.0, "f": math.nan, "g": math.inf},
        ),
        credit=Credit(
            "t", 1.0, (1.0,), (None,), (ReplyScore((math.nan, -1.0), {"aligned": (-math.inf, -2.0)}, "non_finite"),)
        ),
    )
    write_records(tmp_path / "a.jsonl", [record])
    assert b"NaN" not in (tmp_path / "a.jsonl").read_bytes()
    (back,) = read_records(tmp_path / "a.jsonl")
    (score,) = back.credit.scores
    assert math.isnan(score.plain[0]) and score.plain[1] == -1.0
    assert math.isnan(score.guided["aligned"][0]) and score.guided["aligned"][1] == -2.0
    assert score.unscorable == "non_finite"
    assert back.trajectory.rewards == {"success": 0.0, "f": None, "g": None}
    assert back.trajectory.turns[0].sampling_logps == (None, -1.0)


def test_task_columns_of_any_type_are_written(tmp_path):
    task = {
        "day": datetime.date(2024, 5, 1),
        "count": np.int64(3),
        "share": np.float32(0.5),
        "missing": np.float64("nan"),
        1: ("a", "b"),
    }
    write_records(tmp_path / "a.jsonl", [minimal_record(trajectory=trajectory([turn()], task=task))])
    (back,) = read_records(tmp_path / "a.jsonl")
    expected = {"day": "2024-05-01", "count": 3, "share": 0.5, "missing": None, "1": ["a", "b"]}
    assert back.trajectory.task == expected
    assert isinstance(back.trajectory.task["count"], int)


def test_half_a_surrogate_pair_does_not_cost_the_file(tmp_path):
    observation = "broken \ud83d text, \\u escaped \\"
    record = minimal_record(trajectory=trajectory([turn((), observation=observation)]))
    write_records(tmp_path / "a.jsonl", [record])
    (tmp_path / "a.jsonl").read_text(encoding="utf-8")  # still valid UTF-8
    assert list(read_records(tmp_path / "a.jsonl")) == [record]


def test_file_appears_only_when_it_is_complete(tmp_path):
    def fails():
        yield minimal_record()
        raise RuntimeError("disk full")

    path = tmp_path / "a.jsonl"
    with pytest.raises(RuntimeError, match="disk full"):
        write_records(path, fails())
    assert not path.exists()
    write_records(path, [])
    assert list(read_records(path)) == []


def test_folder_is_read_in_the_order_of_its_names(tmp_path):
    for k in (10, 2, 1):
        write_records(tmp_path / f"rollout_{k:06d}.jsonl", [minimal_record(rollout=k)])
    (tmp_path / "notes.txt").write_text("not a record")
    assert [record.rollout for record in read_records(tmp_path)] == [1, 2, 10]


def test_empty_folder_is_an_error(tmp_path):
    with pytest.raises(RecordError, match=r"holds no trajectory files \(\*\.jsonl\).*name such a folder"):
        list(read_records(tmp_path))
    inside = tmp_path / "_warm_start"
    write_records(inside / "episodes.jsonl", [])
    with pytest.raises(RecordError, match=rf"holds no trajectory files .*: name {re.escape(str(inside))}\.$"):
        list(read_records(tmp_path))


def lines(*changes):
    """Two good lines with a broken one between them."""
    good = json.dumps(to_json(minimal_record()))
    return [good, "", *changes, good]


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        ('{"version": 1', "Expecting"),
        ("not json", "Expecting value"),
        ("[1, 2]", "a record is a JSON object, this is a list"),
        ("null", "a record is a JSON object, this is a NoneType"),
        ("{}", "record version None is none of the (1, 2)"),
        ('{"version": 3}', "record version 3 is none of the (1, 2)"),
        ('{"version": "1"}', "record version '1' is none of the (1, 2)"),
        ('{"version": true}', "record version True is none of the (1, 2)"),
        ('{"version": 1}', "no field 'uid'"),
        (json.dumps(to_json(minimal_record()) | {"stop_reason": "tired"}), "tired"),
        (json.dumps(to_json(minimal_record()) | {"turns": [None]}), "NoneType"),
        (json.dumps(to_json(minimal_record()) | {"turns": [{}]}), "no field 'reply_ids'"),
        (json.dumps(to_json(full_record()) | {"guidance": {"text": 1}}), "no field 'statements'"),
        (json.dumps(to_json(full_record()) | {"credit": 3}), "int"),
    ],
)
def test_broken_line_is_left_out_counted_and_named(tmp_path, caplog, broken, message):
    path = tmp_path / "records.jsonl"
    path.write_text("\n".join(lines(broken)), encoding="utf-8")
    assert list(read_records(path)) == [without_prompt_ids(minimal_record())] * (len(lines(broken)) - 2)
    (told,) = [one.getMessage() for one in caplog.records]
    assert f"{path}: 1 of its lines are no trajectory records and are skipped (line 3: " in told and message in told
    path.write_text(broken, encoding="utf-8")
    with pytest.raises(RecordError, match=r"records\.jsonl, line 1: ") as caught:
        list(read_records(path))
    assert message in str(caught.value), "a file without any record is no empty run"


def test_line_of_broken_bytes_is_named_too(tmp_path):
    path = tmp_path / "records.jsonl"
    path.write_bytes(b'{"version": 1, "uid": "\xff\xfe"}\n')
    with pytest.raises(RecordError, match=r"records\.jsonl, line 1: "):
        list(read_records(path))


def test_json_data_holds_only_plain_values():
    def check(value):
        if isinstance(value, dict):
            assert all(type(key) is str for key in value)
            list(map(check, value.values()))
        elif isinstance(value, list):
            list(map(check, value))
        else:
            assert value is None or type(value) in (str, int, float, bool)

    data = to_json(full_record(), with_prompt_ids=True)
    check(data)
    assert from_json(data) == full_record()
