"""How many queries a second the retrievers answer on 25,000 passages, in this process and through HTTP.

    python benchmarks/search_qa.py [--corpus FILE.jsonl]

Without a corpus the embedded world is made as large. Prints a table and writes `benchmarks/results/search_qa.json`.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from statistics import quantiles

from rich.console import Console
from rich.table import Table

from taspo_trl.environments import SearchQAEnvironment
from taspo_trl.environments.search_qa.retrievers import BatchingRetriever, BM25Retriever, open_retriever, read_corpus
from taspo_trl.environments.search_qa.world import World, build_passages, build_questions, build_world


RESULTS = Path(__file__).parent / "results" / "search_qa.json"
WORLD_SCALE = 54  # 25,056 passages
NUM_QUERIES = 2_000
BATCH = 64
NUM_EPISODES = 64
TOPK = 3
REPEATS = 3
SERVE = """
import sys
from taspo_trl.environments.search_qa import serve
serve(sys.argv[1], port=0, on_ready=lambda url: print(url, flush=True))
"""


def best_rate(work: Callable[[], int]) -> float:
    """Queries a second in the fastest of a few runs: the others measure the neighbours."""
    rates = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        count = work()
        rates.append(count / (time.perf_counter() - start))
    return max(rates)


def one_by_one(retriever, queries: list[str]) -> int:
    for query in queries:
        retriever.search([query], TOPK)
    return len(queries)


def in_batches(retriever, queries: list[str]) -> int:
    for start in range(0, len(queries), BATCH):
        retriever.search(queries[start : start + BATCH], TOPK)
    return len(queries)


def from_episodes(retriever, queries: list[str], seconds: list[float]) -> int:
    """As a rollout searches: many threads, one query each at a time. Fills `seconds` with the time of each search."""

    def search(query: str) -> None:
        start = time.perf_counter()
        retriever.search([query], TOPK)
        seconds.append(time.perf_counter() - start)

    with ThreadPoolExecutor(NUM_EPISODES) as threads:
        list(threads.map(search, queries))
    return len(queries)


@contextmanager
def served(index: Path):
    """The address of a server in a process of its own."""
    process = subprocess.Popen([sys.executable, "-c", SERVE, str(index)], stdout=subprocess.PIPE, text=True)
    try:
        yield process.stdout.readline().strip()
    finally:
        process.terminate()
        process.wait()


def play_embedded() -> int:
    """Searches of embedded episodes: question in, three searches, answer."""
    searches = 0
    for row in SearchQAEnvironment.dataset("test"):
        environment = SearchQAEnvironment()
        environment.reset(seed=0, **row)
        for _ in range(3):
            environment.step(f"<search>{row['question']}</search>")
            searches += 1
        environment.step(f"<answer>{row['golden_answers'][0]}</answer>")
    return searches


def measure_index(passages: list, folder: Path) -> dict[str, float]:
    start = time.perf_counter()
    BM25Retriever.build(passages, folder)
    built = time.perf_counter()
    BM25Retriever.load(folder)
    loaded = time.perf_counter()
    return {
        "passages": len(passages),
        "seconds to build and save": round(built - start, 2),
        "milliseconds to load": round(1e3 * (loaded - built), 1),
        "megabytes on disk": round(sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) / 1e6, 1),
    }


def measure_in_process(folder: Path, queries: list[str]) -> dict[str, float]:
    index = BM25Retriever.load(folder)
    shared = BatchingRetriever(index)
    return {
        "in process, one by one": round(best_rate(lambda: one_by_one(index, queries))),
        f"in process, batches of {BATCH}": round(best_rate(lambda: in_batches(index, queries))),
        f"in process, {NUM_EPISODES} episodes": round(best_rate(lambda: from_episodes(shared, queries, []))),
    }


def measure_served(address: str, queries: list[str]) -> dict[str, float]:
    client = open_retriever(address)
    name = "HTTP single" if address.startswith("single+") else "HTTP batch"
    seconds: list[float] = []
    results = {
        f"{name}, batches of {BATCH}": round(best_rate(lambda: in_batches(client, queries))),
        f"{name}, {NUM_EPISODES} episodes": round(best_rate(lambda: from_episodes(client, queries, seconds))),
    }
    client.close()
    percentiles = quantiles(seconds, n=100)
    return results | {
        f"{name}, {NUM_EPISODES} episodes, median ms": round(1e3 * percentiles[49], 1),
        f"{name}, {NUM_EPISODES} episodes, 99th percentile ms": round(1e3 * percentiles[98], 1),
    }


def measure(passages: list, queries: list[str], folder: Path) -> dict[str, float]:
    results = measure_index(passages, folder) | measure_in_process(folder, queries)
    with served(folder) as url:
        results |= measure_served(url, queries) | measure_served(f"single+{url}", queries)
    results["embedded episodes"] = round(best_rate(play_embedded))
    results["peak megabytes of this process"] = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3)
    return results


def question_texts(world: World) -> list[str]:
    drawn = [build_questions(world, seed) for seed in range(1 + NUM_QUERIES // 270)]
    return [question.question for splits in drawn for split in splits.values() for question in split]


def first_words(passages: list) -> list[str]:
    step = max(1, len(passages) // NUM_QUERIES)
    return [" ".join(passage.text.split()[:10]) for passage in passages[::step]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--corpus", type=Path, help="JSON lines to index in place of the embedded world")
    corpus = parser.parse_args().corpus
    if corpus is None:
        world = build_world(WORLD_SCALE)
        passages, queries = build_passages(world), question_texts(world)
    else:
        passages = list(read_corpus(corpus))
        queries = first_words(passages)
    with tempfile.TemporaryDirectory() as folder:
        results = measure(passages, queries[:NUM_QUERIES], Path(folder) / "index")
    table = Table("measure", "value", title=f"Search-QA, topk {TOPK}: queries a second, or the unit named")
    for name, value in results.items():
        table.add_row(name, f"{value:,}")
    Console().print(table)
    machine = {
        "processor": platform.machine(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "system": platform.system(),
        "packages": {name: version(name) for name in ("bm25s", "PyStemmer", "aiohttp", "numpy")},
    }
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    document = {"machine": machine, "corpus": "embedded" if corpus is None else corpus.name, "results": results}
    RESULTS.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
