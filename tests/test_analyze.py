"""Offline analysis: the same guidance and the same weights as in training, from the records alone."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from taspo_trl.analyze import Analysis, ApproximateTokenizer, analyze
from taspo_trl.analyzer.base import AnalyzerReply, AnalyzerRequest
from taspo_trl.analyzer.extractive import ExtractiveAnalyzer
from taspo_trl.analyzer.prompts import ALIGNMENT, Prompts, load_prompts
from taspo_trl.credit import TurnWeights
from taspo_trl.errors import ConfigurationError, RecordError
from taspo_trl.guidance.block import Composer
from taspo_trl.methods import METHODS
from taspo_trl.methods.facts import facts_of, recipe_of
from taspo_trl.records import METHOD_FILE, TrajectoryRecord, read_records, write_records
from taspo_trl.scoring.reproduces import Finding

from . import tiny
from .analyzer.endpoint import Endpoint, Reply, honest
from .analyzer.shop import shop_trainer
from .tokenizers import byte_bpe
from .trajectories import outcomes


def write(path: Path, *groups: Any, rollout: int = 0) -> Path:
    records = [
        TrajectoryRecord(trajectory, group.group_id, rollout, 0)
        for group in groups
        for trajectory in group.trajectories
    ]
    write_records(path, records)
    return path


class Counting(ExtractiveAnalyzer):
    def __init__(self) -> None:
        self.requests: list[AnalyzerRequest] = []
        self.is_closed = False

    def complete(self, request: AnalyzerRequest) -> AnalyzerReply:
        self.requests.append(request)
        return super().complete(request)

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A trainer after one step with a learning rate of 0, its records with prompt ids."""
    folder = tmp_path_factory.mktemp("out")
    trainer = shop_trainer(folder, learning_rate=0.0, save_trajectories="full")
    trainer.train()
    yield trainer
    trainer.close()


def test_weights_are_those_of_training(trained, tmp_path):
    source = Path(trained.args.output_dir) / "_trajectories"
    before = trained.model.__dict__.get("forward")
    analysis = analyze(source, model=trained.model, tokenizer=byte_bpe(), output=tmp_path / "a")
    theirs, ours = list(read_records(source)), list(read_records(tmp_path / "a"))
    assert len(ours) == 8 and analysis.metrics["guidance/coverage"] == 1.0
    for one, other in zip(ours, theirs, strict=True):
        assert one.guidance == other.guidance and one.extraction == other.extraction
        assert one.credit.advantage == other.credit.advantage
        assert one.credit.weights == pytest.approx(other.credit.weights, abs=1e-6)
        assert one.credit.supports == pytest.approx(other.credit.supports, abs=1e-4)
        assert one.credit.weights != (1.0, 1.0, 1.0)
    assert analysis.metrics["credit/weighted_share"] == 1.0
    assert trained.model.__dict__.get("forward") is before, "the model is left as it was"


def test_credit_settings_reach_the_weights(trained, tmp_path):
    source = Path(trained.args.output_dir) / "_trajectories"
    settings = TurnWeights(weight_range=0.0)
    analyze(source, model=trained.model, tokenizer=byte_bpe(), output=tmp_path / "a", credit=settings)
    assert all(set(record.credit.weights) == {1.0} for record in read_records(tmp_path / "a"))


def test_the_run_s_own_method_weighs_unless_another_is_asked_for(trained, tmp_path):
    """What a run wrote down of its method is read: here SERL's rule and TASPO's contrast, over the same records."""
    source = tmp_path / "run"
    played = list(read_records(Path(trained.args.output_dir) / "_trajectories"))
    write_records(source / "r.jsonl", played, with_prompt_ids=True)

    def weighed(recipe=None, **given):
        if recipe is not None:
            (source / METHOD_FILE).write_text(json.dumps(facts_of(recipe, 60)))
        given = {"model": trained.model, "tokenizer": byte_bpe(), "output": tmp_path / "out", **given}
        found = analyze(source, **given)
        return list(read_records(found.files[0]))

    serl = weighed(METHODS["serl"].make(block="serl_next", share=0.25))
    assert {one.credit.method for one in serl} == {"serl"}
    assert {block for one in serl for block in one.guidance.blocks} == {"serl_next"}
    assert any(one.credit.token_weights for one in serl)
    contrast = weighed(METHODS["taspo"].make(support="contrast"))
    assert {one.guidance.construction for one in contrast} == {"aligned"}
    assert {one.credit.method for one in weighed(credit=TurnWeights())} == {"taspo"}
    weighed(METHODS["serl"].usual, model=None)
    asked = Counting()
    assert {one.guidance.construction for one in weighed(model=None, analyzer=asked)} == {"aligned"} and asked.requests
    with pytest.raises(ConfigurationError, match=r"'oracle', asks the simulator.*`--allocation`"):
        weighed(METHODS["oracle"].usual)


def test_facts_of_a_method_make_its_recipe_again():
    for method in METHODS.values():
        recipe = method.usual
        made = recipe_of(json.loads(json.dumps(facts_of(recipe))))
        assert (made.advantage, made.weight) == (recipe.advantage, recipe.weight)
        assert (made.name, made.state_key, made.place) == (recipe.name, recipe.state_key, recipe.place)
    with pytest.raises(ConfigurationError, match="'Mine', which is none"):
        recipe_of({"advantage": {"rule": "Mine"}})


def test_a_saved_model_is_loaded_by_its_folder(trained, tmp_path):
    trained.model.save_pretrained(tmp_path / "model")
    byte_bpe().save_pretrained(tmp_path / "model")
    source = Path(trained.args.output_dir) / "_trajectories" / "rollout_000000.jsonl"
    analysis = analyze(source, model=str(tmp_path / "model"), output=tmp_path / "a")
    ours, theirs = list(read_records(tmp_path / "a")), list(read_records(source))
    assert analysis.model == str(tmp_path / "model")
    for one, other in zip(ours, theirs, strict=True):
        assert one.credit.weights == pytest.approx(other.credit.weights, abs=1e-6)


def test_records_without_prompt_ids_cannot_be_scored_and_the_remedy_is_named(tmp_path):
    path = write(tmp_path / "t.jsonl", outcomes(1, 0))
    with pytest.raises(ConfigurationError, match='save_trajectories="full"'):
        analyze(path, model=tiny.model(), tokenizer=tiny.tokenizer())


def test_a_model_whose_forward_is_not_ours_is_refused_before_it_scores(trained, monkeypatch):
    source = Path(trained.args.output_dir) / "_trajectories"
    before = trained.model.__dict__.get("forward")
    monkeypatch.setattr(
        "taspo_trl.scoring.reproduces.compare", lambda *_, **__: Finding(refused="Odd computes its logits")
    )
    with pytest.raises(ConfigurationError, match="Odd computes its logits"):
        analyze(source, model=trained.model, tokenizer=byte_bpe())
    assert trained.model.__dict__.get("forward") is before


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("prompt ids", 'save_trajectories="full"'),
        ("vocabulary", "the token id 50, but the model knows 12 ids"),
        ("output", "can be written"),
    ],
)
def test_what_would_fail_at_the_end_fails_before_the_analyzer_is_asked(tmp_path, monkeypatch, fault, message):
    group = outcomes(1, 0)
    members = [
        replace(one, turns=tuple(replace(turn, prompt_ids=(3, 50)) for turn in one.turns))
        for one in group.trajectories
    ]
    records = [TrajectoryRecord(one, group.group_id, 0, 0) for one in members]
    write_records(tmp_path / "t.jsonl", records, with_prompt_ids=fault != "prompt ids")
    if fault == "output":
        monkeypatch.setattr("taspo_trl.analyze.os.access", lambda *_: False)
    analyzer, model = Counting(), tiny.model(**{"vocab_size": 12} if fault == "vocabulary" else {})
    with pytest.raises(ConfigurationError, match=message):
        analyze(tmp_path / "t.jsonl", analyzer=analyzer, model=model, tokenizer=tiny.tokenizer())
    assert not analyzer.requests


def test_a_broken_line_costs_itself_and_is_told_once(tmp_path, caplog):
    path = write(tmp_path / "t.jsonl", outcomes(1, 0))
    path.write_text(path.read_text(encoding="utf-8") + '{"version": 2, "uid"\n', encoding="utf-8")
    assert analyze(path).metrics["trajectories"] == 2
    assert [one.getMessage() for one in caplog.records if "are skipped (line 3: " in one.getMessage()] != []
    assert caplog.text.count("are skipped") == 1


def test_only_groups_that_can_use_guidance_are_asked_about(tmp_path):
    groups = [outcomes(*rewards, group_id=f"g{k}") for k, rewards in enumerate([(0, 0), (1, 1), (1, 0), (1, 1, 0)])]
    analyzer = Counting()
    analysis = analyze(write(tmp_path / "t.jsonl", *groups), analyzer=analyzer)
    assert [request.stage for request in analyzer.requests].count("extraction") == 2
    assert len(analyzer.requests) == 2 + 1 + 3
    assert analysis.metrics["guidance/eligible_groups"] == 2 and analysis.metrics["trajectories"] == 9
    assert analysis.metrics["guidance/coverage"] == pytest.approx(4 / 5)
    assert analysis.metrics["success"] == pytest.approx(5 / 9)
    assert not analyzer.is_closed, "an analyzer that was passed in stays open"


def test_what_is_written_holds_evidence_rejects_and_reasons(tmp_path, serve_honest):
    def script(received, number):
        answer = json.loads(honest(received))
        if received.stage == "extraction":
            answer["evidence"].append({"evidence_id": "bad", "kind": "progress", "statement": "x", "sources": []})
        return json.dumps(answer)

    serve_honest.script = script
    path = write(tmp_path / "t.jsonl", outcomes(1, 0, 0))
    from taspo_trl.analyzer import LiteLLMAnalyzer

    analyzer = LiteLLMAnalyzer("hosted_vllm/m", api_base=serve_honest.url, cache=tmp_path / "a.sqlite")
    analysis = analyze(path, analyzer=analyzer)
    assert analysis.files == (tmp_path / "t-analysis" / "t.jsonl",)
    written = list(read_records(tmp_path / "t-analysis" / "t.jsonl"))
    assert [bool(record.guidance) for record in written] == [False, True, True]
    assert written[0].guidance.abstain_reason == "no_other_success"
    assert written[1].guidance.evidence and written[1].guidance.statements[0].support
    assert [rejection.reason for rejection in written[1].extraction.rejections] == ["sources_empty"]
    summary = json.loads((tmp_path / "t-analysis" / "summary.json").read_text())
    assert summary["analyzer"] == "hosted_vllm/m" and summary["files"] == ["t.jsonl"]
    assert summary["metrics"]["evidence/rejected/extraction_sources_empty"] == 1
    assert summary["metrics"]["analyzer/tokens_prompt"] == 200, "the targets differ in their names only: one question"

    again = analyze(path, analyzer=analyzer)
    assert len(serve_honest.received) == 2 and again.metrics["analyzer/cached_share"] == 1.0
    analyzer.close()


@pytest.fixture
def serve_honest():
    with Endpoint() as endpoint:
        yield endpoint


def test_failed_calls_are_counted_and_nothing_stops(tmp_path, serve_honest):
    serve_honest.script = lambda received, number: Reply(status=400, error="maximum context length is 10 tokens")
    from taspo_trl.analyzer import LiteLLMAnalyzer

    analyzer = LiteLLMAnalyzer("hosted_vllm/m", api_base=serve_honest.url, cache=None)
    analysis = analyze(write(tmp_path / "t.jsonl", outcomes(1, 0, 0)), analyzer=analyzer)
    assert analysis.metrics["guidance/none/context_too_long"] == 2 and analysis.metrics["guidance/coverage"] == 0
    analyzer.close()


def test_a_folder_is_read_file_by_file(tmp_path):
    for k in range(3):
        write(tmp_path / "in" / f"rollout_{k}.jsonl", outcomes(1, 0, group_id=f"r{k}-g0"), rollout=k)
    analysis = analyze(tmp_path / "in", output=tmp_path / "out")
    assert [file.name for file in analysis.files] == [f"rollout_{k}.jsonl" for k in range(3)]
    assert analysis.metrics["groups"] == 3
    assert analysis.metrics["guidance/coverage"] == 0.5, "a lone success has no other to learn from"
    # What was written can be analyzed again.
    assert analyze(tmp_path / "out").metrics["groups"] == 3
    assert (tmp_path / "out-analysis" / "summary.json").exists()


def test_old_guidance_and_weights_are_replaced(trained, tmp_path):
    source = Path(trained.args.output_dir) / "_trajectories"
    analyze(source, analyzer=Nothing(), output=tmp_path / "a")
    for record in read_records(tmp_path / "a"):
        assert not record.guidance and record.guidance.abstain_reason == "no_evidence" and record.credit is None


class Nothing(ExtractiveAnalyzer):
    def complete(self, request: AnalyzerRequest) -> AnalyzerReply:
        return AnalyzerReply('{"evidence": []}')


def test_several_runs_in_one_analysis_are_refused(tmp_path):
    group = outcomes(1, 0)
    with pytest.raises(RecordError, match="'g0-k0' twice"):
        analyze(write(tmp_path / "t.jsonl", group, group))
    for name in ("a", "b"):
        write(tmp_path / "in" / f"{name}.jsonl", group)
    with pytest.raises(RecordError, match=r"'g0-k0' that a\.jsonl has too"):
        analyze(tmp_path / "in")


@pytest.mark.parametrize("name", ["missing.jsonl", "empty-folder"])
def test_nothing_to_read_is_an_error(name, tmp_path):
    (tmp_path / "empty-folder").mkdir()
    with pytest.raises(RecordError, match=name):
        analyze(tmp_path / name)


def test_the_output_of_a_warm_start_is_told_from_a_run(tmp_path):
    write_records(tmp_path / "_warm_start/episodes.jsonl", [])
    with pytest.raises(RecordError, match=r"`taspo train` writes them to .*: name .*_warm_start\.$"):
        analyze(tmp_path)
    with pytest.raises(RecordError, match=r"There is no file .*nowhere\. Name a run's output folder"):
        analyze(tmp_path / "nowhere")


def test_the_input_is_not_overwritten(tmp_path):
    path = write(tmp_path / "t.jsonl", outcomes(1, 0))
    before = path.read_bytes()
    for source in (path, tmp_path):
        with pytest.raises(ConfigurationError, match="overwritten"):
            analyze(source, output=tmp_path)
    assert path.read_bytes() == before


def test_the_summary_is_a_table(tmp_path):
    analysis = analyze(write(tmp_path / "t.jsonl", outcomes(1, 0, 0)))
    console = Console(record=True, width=100)
    console.print(analysis.table())
    text = console.export_text()
    for word in ("Guidance by extractive", "guidance/coverage", "evidence/kept", "analyzer/calls"):
        assert word in text


def test_numbers_of_the_summary_are_rounded():
    metrics = {"calls": 12345.0, "share": 2 / 3, "usd": 0.00123456, "none": math.nan}
    console = Console(record=True, width=60)
    console.print(Analysis(metrics, "x", "").table())
    shown = dict(re.findall(r"(\w+) +│ +(\S+)", console.export_text()))
    assert shown == {"calls": "12,345", "share": "0.667", "usd": "0.0012", "none": "-"}


def test_prompts_and_limits_reach_the_analyzer(tmp_path):
    (tmp_path / "prompts").mkdir()
    (tmp_path / "prompts" / "extraction.txt").write_text("Mine.\n")
    prompts = load_prompts(tmp_path / "prompts")
    assert prompts == Prompts(extraction="Mine.", alignment=ALIGNMENT)
    analyzer, seen = Counting(), []
    analyze(
        write(tmp_path / "t.jsonl", outcomes(1, 0)),
        analyzer=analyzer,
        prompts=prompts,
        context_chars=100,
        on_reply=lambda request, reply: seen.append(request.stage),
    )
    assert [request.system for request in analyzer.requests] == ["Mine.", ALIGNMENT]
    assert seen == ["extraction", "alignment"]
    assert " ... " in json.dumps(analyzer.requests[0].payload), "observations were shortened to the budget"


@pytest.mark.parametrize("files", [{}, {"extraction.txt": " \n"}])
def test_a_folder_without_prompts_is_refused(files, tmp_path):
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(ConfigurationError, match=r"extraction\.txt"):
        load_prompts(tmp_path)


def test_without_a_tokenizer_four_characters_are_a_token():
    composer = Composer(ApproximateTokenizer(), max_tokens=40)
    block = composer.block("x" * 1000)
    assert len(block) == 40
    text = composer.text(block)
    assert text.startswith("[Privileged Guidance]") and text.endswith("[End Privileged Guidance]")
    tokenizer = ApproximateTokenizer()
    assert tokenizer.decode(tokenizer.encode("any text, 漢字 and all")) == "any text, 漢字 and all"


def test_infrastructure_failures_are_neither_asked_about_nor_counted_as_wanting(tmp_path):
    from taspo_trl.types import StopReason

    group = outcomes(1, 0, 0)
    broken = dataclasses.replace(group.trajectories[2], stop_reason=StopReason.ENV_DIED)
    analysis = analyze(
        write(tmp_path / "t.jsonl", dataclasses.replace(group, trajectories=(*group.trajectories[:2], broken)))
    )
    assert analysis.metrics["guidance/none/infrastructure"] == 1
    assert analysis.metrics["guidance/coverage"] == pytest.approx(1 / 2)
