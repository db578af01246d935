"""How much of the prompts of one micro-batch is a beginning that several of them have in common.

    python benchmarks/prefix_share.py --data FOLDER

FOLDER has the public data as the tests read it (`alfworld/games.tar.xz`, `webshop/`, `searchqa/`). Batches of the
paper's size (16 tasks x 8 episodes) are played by scripts: ALFWorld by walkthroughs with detours, WebShop by a search
and clicks at random, Search-QA by searches in other words and an answer. Their rows are dealt as in training: 8
optimizer steps, micro-batches of 32,768 tokens. Counted is what a forward could leave out that computes each beginning
once: all but the nodes of the prefix tree of a micro-batch. Prints a table and writes
`benchmarks/results/prefix_share.json`.
"""

from __future__ import annotations

import argparse
import itertools
import json
import lzma
import os
import random
import re
import tarfile
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

from common import save
from rich.console import Console
from rich.table import Table
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from taspo_trl.environments import ALFWorldEnvironment, SearchQAEnvironment, WebShopEnvironment
from taspo_trl.environments.alfworld.games import find_game_file, read_game
from taspo_trl.environments.search_qa.retrievers import BM25Retriever, read_corpus
from taspo_trl.environments.workers import EnvironmentPool
from taspo_trl.generation import Generation
from taspo_trl.rollout.contexts import ChatRenderer
from taspo_trl.rollout.loop import RolloutSettings, play_episodes
from taspo_trl.rollout.tasks import plan_groups
from taspo_trl.rows import build_rows, deal_rows, pack_rows
from taspo_trl.types import FinishReason


GROUPS, MEMBERS, STEPS, BUDGET = 16, 8, 8, 32_768
MOST_TURNS = 25
THOUGHT = re.findall(r"\w+", "the a task next where look find first then since room shelf page price answer so")

Choose = Callable[[Any, int, str, int, random.Random], str]
"""(what the prompt was made of, number of the group, uid, turn, randomness) -> an action in its tags."""


class Script:
    """Answers at once: a thought of some sixty words of its own, and the action that `choose` gives."""

    def __init__(self, tokenizer: Any, choose: Choose):
        self.tokenizer, self.choose = tokenizer, choose
        self.turns: dict[str, int] = {}
        self.prompts: list[str] = []

    def begin(self, sampling: Any, seed: int) -> None:
        pass

    def submit(self, request: Any) -> Future:
        uid = request.episode_uid
        turn = self.turns[uid] = self.turns.get(uid, -1) + 1
        rng = random.Random(f"{uid} {turn}")
        group = int(re.findall(r"-g(\d+)", uid)[0])
        thought = " ".join(rng.choices(THOUGHT, k=60))
        text = f"<think>{thought}</think>{self.choose(request.view, group, uid, turn, rng)}"
        self.prompts.append(str(request.messages[-1]["content"]))
        ids = self.tokenizer.encode(text, add_special_tokens=False)
        future: Future = Future()
        future.set_result(Generation((*ids, self.tokenizer.eos_token_id), FinishReason.STOP))
        return future

    def flush(self) -> None:
        pass


def tokenizer(texts: Sequence[str]) -> PreTrainedTokenizerFast:
    """Byte-level pieces, learned from prompts of the three worlds; of `texts` without any, single bytes."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    special = ["<|im_start|>", "<|im_end|>", "<|pad|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(
        texts,
        trainers.BpeTrainer(vocab_size=8000, special_tokens=special, initial_alphabet=alphabet, show_progress=False),
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=made,
        eos_token="<|im_end|>",
        pad_token="<|pad|>",
        chat_template="{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
        clean_up_tokenization_spaces=False,
    )


def play(factory: Any, rows: list[dict[str, Any]], choose: Choose, tok: Any) -> tuple[list, list[str]]:
    """Trajectories of a rollout batch, and the texts of its prompts."""
    pool = EnvironmentPool({None: factory})
    script = Script(tok, choose)
    done = play_episodes(
        plan_groups(rows, MEMBERS, 0, 0, "b"),
        engine=script,
        pool=pool,
        renderer=ChatRenderer(tok),
        settings=RolloutSettings(max_turns=MOST_TURNS),
        max_in_flight=MEMBERS,
    )
    pool.close()
    return done, script.prompts


def alfworld(data: Path, folder: Path) -> tuple[Any, list[dict[str, Any]], Choose]:
    with tarfile.open(data / "alfworld" / "games.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    rows = random.Random(0).sample(list(ALFWorldEnvironment.dataset("train", data=folder)), GROUPS)
    plans = [read_game(find_game_file(row["game_file"], folder)).walkthrough for row in rows]
    at: dict[str, int] = {}

    def choose(view: Any, group: int, uid: str, turn: int, rng: random.Random) -> str:
        place, plan = at.get(uid, 0), plans[group]
        if place < len(plan) and plan[place] in view.admissible_actions and rng.random() < 0.7:
            at[uid] = place + 1
            return f"<action>{plan[place]}</action>"
        return f"<action>{rng.choice(view.admissible_actions)}</action>"

    return partial(ALFWorldEnvironment, data=folder), rows, choose


def webshop(data: Path, folder: Path) -> tuple[Any, list[dict[str, Any]], Choose]:
    with lzma.open(data / "webshop" / "items_shuffle_1000.json.xz") as packed:
        (folder / "items_shuffle_1000.json").write_bytes(packed.read())
    for name in ("items_ins_v2_1000.json", "items_human_ins_1000.json"):
        (folder / name).write_bytes((data / "webshop" / name).read_bytes())
    rows = random.Random(0).sample(list(WebShopEnvironment.dataset("train", catalogue=folder)), GROUPS)

    def choose(view: Any, group: int, uid: str, turn: int, rng: random.Random) -> str:
        clicks = [one for one in view.admissible_actions if not one.startswith("search")]
        if clicks and (turn > 0 or len(clicks) == len(view.admissible_actions)):
            return f"<action>{rng.choice(clicks)}</action>"
        words = view.task.split()[-14:]
        return f"<action>search[{' '.join(rng.sample(words, min(6, len(words))))}]</action>"

    return partial(WebShopEnvironment, catalogue=folder), rows, choose


def search_qa(data: Path, folder: Path) -> tuple[Any, list[dict[str, Any]], Choose]:
    passages = BM25Retriever.build(list(read_corpus(data / "searchqa" / "corpus_mini.jsonl.xz")))
    questions = [
        json.loads(line)
        for name in ("hotpotqa", "2wikimultihopqa", "musique", "nq")
        for line in (data / "searchqa" / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    rows = [
        {"task_id": str(k), "question": one["question"], "golden_answers": one["golden_answers"]}
        for k, one in enumerate(random.Random(0).sample(questions, GROUPS))
    ]

    def choose(view: Any, group: int, uid: str, turn: int, rng: random.Random) -> str:
        if turn and rng.random() < 0.25:
            return f"<answer>{' '.join(rng.sample(THOUGHT, 2))}</answer>"
        words = rows[group]["question"].split()
        return f"<search>{' '.join(word for word in words if rng.random() < 0.8) or words[0]}</search>"

    return partial(SearchQAEnvironment, passages), rows, choose


def shared_tokens(sequences: Sequence[Sequence[int]]) -> int:
    """Tokens that a prefix tree of `sequences` leaves out."""
    return sum(common_beginning(one, other) for one, other in itertools.pairwise(sorted(sequences)))


def common_beginning(one: Sequence[int], other: Sequence[int]) -> int:
    return next((k for k, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def common_to_all(sequences: Sequence[Sequence[int]]) -> int:
    return common_beginning(min(sequences), max(sequences))


def measure(trajectories: Sequence[Any]) -> dict[str, float]:
    rows = [(row, row.turns[0].start) for t in trajectories for row in build_rows(t)]
    prompts = [row.ids[:start] for row, start in rows]
    lengths = [len(row.ids) for row, _ in rows]
    found: dict[str, float] = {
        "episodes": len(trajectories),
        "rows": len(rows),
        "prompt_tokens_mean": sum(map(len, prompts)) / len(prompts),
    }
    for num_processes in (1, 8):
        deal = deal_rows(lengths, STEPS, 1, num_processes, 0)
        batches = [
            [share[k] for k in batch]
            for share in deal.shares
            for batch in pack_rows([lengths[row] for row in share], BUDGET)
        ]
        left_out = sum(shared_tokens([prompts[row] for row in batch]) for batch in batches)
        of_all = sum((len(batch) - 1) * common_to_all([prompts[row] for row in batch]) for batch in batches)
        name = f"{num_processes}_process" + ("es" if num_processes > 1 else "")
        found[f"rows_of_a_micro_batch_{name}"] = len(rows) / len(batches)
        found[f"share_{name}"] = left_out / sum(map(len, prompts))
        found[f"share_of_one_common_beginning_{name}"] = of_all / sum(map(len, prompts))
    found["share_if_a_rollout_batch_were_one_micro_batch"] = shared_tokens(prompts) / sum(map(len, prompts))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    options = parser.parse_args()
    os.environ.setdefault("TASPO_CACHE", tempfile.mkdtemp())
    worlds, texts = {}, []
    for make in (alfworld, webshop, search_qa):
        worlds[make.__name__] = make(options.data, Path(tempfile.mkdtemp()))
        factory, rows, choose = worlds[make.__name__]
        texts += play(factory, rows[:1], choose, tokenizer([]))[1]
    tok = tokenizer(texts)
    results = {}
    for name in worlds:
        factory, rows, choose = {"alfworld": alfworld, "webshop": webshop, "search_qa": search_qa}[name](
            options.data, Path(tempfile.mkdtemp())
        )
        results[name] = measure(play(factory, rows, choose, tok)[0])
    table = Table(title="What is common among the prompts of a micro-batch")
    for column in ("", *results):
        table.add_column(column, justify="right" if column else "left")
    for key in results["alfworld"]:
        table.add_row(key, *(f"{one[key]:.3g}" for one in results.values()))
    Console().print(table)
    print(save("prefix_share", {"worlds": results, "optimizer_steps": STEPS, "micro_batch_tokens": BUDGET}))


if __name__ == "__main__":
    main()
