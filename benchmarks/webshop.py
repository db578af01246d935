"""Speed and memory of the WebShop environment: steps, searches, purchases, parallel episodes, and growth with the
number of products up to the full catalogue's 1.18 million.

    python benchmarks/webshop.py [CATALOGUE]

CATALOGUE is an official products file or its folder; without it (and without `TASPO_WEBSHOP_DATA`) the small
measurements run on 1,000 synthetic products. Growth is always measured on synthetic products whose texts are as long
and as repetitive as those of the official catalogue. Prints a table and writes `benchmarks/results/webshop.json`.
"""

from __future__ import annotations

import json
import os
import platform
import random
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from taspo_trl.environments import WebShopEnvironment
from taspo_trl.environments.webshop.disk import DiskCatalogue, write_catalogue
from taspo_trl.environments.webshop.nouns import load_tagger
from taspo_trl.environments.webshop.products import Entry, Instruction, Product
from taspo_trl.environments.webshop.reward import score_purchase
from taspo_trl.environments.webshop.shop import DATA_VARIABLE, Shop, open_shop


RESULTS = Path(__file__).parent / "results" / "webshop.json"
GROWTH = (25_000, 50_000, 100_000)
FULL_CATALOGUE = 1_181_436
NUM_EPISODES = 128
REPEATS = 5

# Words fall off so that a product has about as many different terms (87; official: 68) and an instruction meets about
# as many products over all its terms (1.7 N; official: 1.8 N) as in the official 1,000 products.
_VOCABULARY = 60_000
_EXPONENT, _SHIFT = 1.2, 12
_WORDS_PER_PRODUCT = 130


def synthetic_entries(num_products: int) -> Iterator[Entry]:
    """Products of made-up words whose frequencies fall off as in natural text; seven of ten have options."""
    draws = np.random.default_rng(0)
    weights = 1.0 / (np.arange(1, _VOCABULARY + 1) + _SHIFT) ** _EXPONENT
    cumulative = np.cumsum(weights / weights.sum())
    for number in range(num_products):
        ranks = np.searchsorted(cumulative, draws.random(_WORDS_PER_PRODUCT))
        words = [f"w{rank:x}" for rank in ranks]
        options = {"color": ("black", "white", "blue"), "size": ("small", "large")} if number % 10 < 7 else {}
        product = Product(
            asin=f"S{number:09d}",
            title=" ".join(words[:14]),
            description=" ".join(words[14:80]),
            features=(" ".join(words[80:100]), " ".join(words[100:]), " ".join(words[:40])),
            prices=(float(ranks[0] % 90 + 1), float(ranks[0] % 90 + 9)) if number % 11 == 0 else (19.99,),
            options=options,
            attributes=tuple(" ".join(words[i : i + 2]) for i in (0, 2, 4)),
            category="garden",
            query=words[0],
            product_category="Home › Garden",
        )
        wish = Instruction(f"Find me {' '.join(words[:8])}", product.attributes[:2]) if number % 5 < 2 else None
        yield Entry(product, wish)


def rate(work: Callable[[], int]) -> float:
    """Units of work for each second, in the fastest of a few runs: the others measure the neighbours."""
    rates = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        count = work()
        rates.append(count / (time.perf_counter() - start))
    return max(rates)


def visit(env: WebShopEnvironment, shop: Shop, goal: int) -> int:
    """One visit: a search, a second result page and back, an item with its sub-pages and options, the purchase."""
    env.reset(seed=0, goal=goal)
    wanted = shop.goals[goal]
    results = env.step(f"search[{wanted.title}]")
    actions = ["next >", "< prev", results.info["available"]["clickables"][2]]  # the first product
    actions += [action for page in ("description", "features", "reviews") for action in (page, "< prev")]
    actions += [*wanted.option_values, "buy now"]
    for action in actions:
        env.step(f"click[{action}]")
    return 1 + len(actions)


def measure_small(catalogue: str | None) -> dict[str, float]:
    """Rates on one core."""
    shop = open_shop(catalogue)
    env = WebShopEnvironment(catalogue=catalogue)
    goals = random.Random(0).sample(range(len(shop.goals)), 200)
    queries = [shop.goals[goal].instruction for goal in goals]
    tagger, words = load_tagger("auto"), load_tagger("words")

    def page_steps() -> int:
        for goal in goals:
            env.reset(seed=0, goal=goal)
            results = env.step(f"search[{shop.goals[goal].title}]")
            product = results.info["available"]["clickables"][2]
            for action in (product, "features", "< prev", "description", "< prev", "nothing"):
                env.step(f"click[{action}]")
        return 7 * len(goals)

    def score(with_tagger) -> Callable[[], int]:
        def run() -> int:
            for goal in goals:
                wanted = shop.goals[goal]
                with_tagger.nouns.cache_clear()
                score_purchase(shop.product(wanted.asin), {}, 1.0, wanted, tagger=with_tagger)
            return len(goals)

        return run

    return {
        "num_products": len(shop.catalogue),
        "num_goals": len(shop.goals),
        "page_steps_per_s": rate(page_steps),
        "searches_per_s": rate(lambda: len([shop.catalogue.search(query, 50) for query in queries])),
        "visit_steps_per_s": rate(lambda: sum(visit(env, shop, goal) for goal in goals)),
        f"scores_per_s ({tagger.name}, nothing cached)": rate(score(tagger)),
        "scores_per_s (words, nothing cached)": rate(score(words)),
    }


def measure_parallel(catalogue: str | None) -> dict[str, float]:
    """128 visits at once on one catalogue: memory that they add, and their speed together."""
    shop = open_shop(catalogue)
    visit(WebShopEnvironment(catalogue=catalogue), shop, 0)
    before = resident_mb()
    envs = [WebShopEnvironment(catalogue=catalogue) for _ in range(NUM_EPISODES)]
    barrier = threading.Barrier(NUM_EPISODES)

    def run(number: int) -> int:
        barrier.wait()
        return visit(envs[number], shop, number % len(shop.goals))

    start = time.perf_counter()
    with ThreadPoolExecutor(NUM_EPISODES) as pool:
        steps = sum(pool.map(run, range(NUM_EPISODES)))
    seconds = time.perf_counter() - start
    return {
        "episodes": NUM_EPISODES,
        "steps_per_s": steps / seconds,
        "added_mb": resident_mb() - before,
        "process_mb": resident_mb(),
    }


def resident_mb() -> float:
    """Memory of this process that is its own: pages of mapped files belong to the system."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def build(folder: Path, num_products: int) -> dict[str, float]:
    start = time.perf_counter()
    write_catalogue(synthetic_entries(num_products), folder)
    seconds = time.perf_counter() - start
    size = sum(file.stat().st_size for file in folder.iterdir())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"build_s": seconds, "build_peak_mb": peak, "disk_mb": size / 1e6}


def use(folder: Path) -> dict[str, float]:
    before = resident_mb()
    start = time.perf_counter()
    shop = open_shop(folder)
    open_s = time.perf_counter() - start
    opened = resident_mb()
    catalogue = shop.catalogue
    assert isinstance(catalogue, DiskCatalogue)
    goals = random.Random(0).sample(range(len(shop.goals)), 200)
    seconds = [
        1 / rate(lambda text=shop.goals[goal].instruction: bool(catalogue.search(text, 50)) or 1) for goal in goals
    ]
    env = WebShopEnvironment(catalogue=folder, tagger="words")
    steps = rate(lambda: sum(visit(env, shop, goal) for goal in goals[:50]))
    return {
        "open_s": open_s,
        "open_mb": opened - before,
        "search_p50_ms": 1e3 * float(np.median(seconds)),
        "search_p95_ms": 1e3 * float(np.quantile(seconds, 0.95)),
        "visit_steps_per_s": steps,
        "mb_after_128_episodes": measure_parallel(str(folder))["process_mb"] - before,
    }


def measure_growth(num_products: int) -> dict[str, float]:
    """Building and using a catalogue of synthetic products, each in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        parts = (["build", folder, str(num_products)], ["use", folder])
        outputs = [subprocess.run([sys.executable, __file__, *part], check=True, stdout=-1).stdout for part in parts]
    return {"num_products": num_products, **json.loads(outputs[0]), **json.loads(outputs[1])}


def project(rows: list[dict[str, float]]) -> dict[str, float]:
    """The straight line through the measured sizes, at the full catalogue's size."""
    sizes = [row["num_products"] for row in rows]
    projected: dict[str, float] = {"num_products": FULL_CATALOGUE}
    for name in rows[0]:
        if name not in projected and name != "visit_steps_per_s":
            slope, intercept = np.polyfit(sizes, [row[name] for row in rows], 1)
            projected[name] = float(intercept + slope * FULL_CATALOGUE)
    return projected


def machine() -> dict[str, str | int | None]:
    cpu = next(line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name"))
    return {
        "cpu": cpu.split(": ")[1],
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "system": platform.system(),
    }


def show(results: dict) -> None:
    console = Console()
    for title in ("one_core", "parallel"):
        table = Table("measure", "value", title=f"WebShop: {title.replace('_', ' ')}")
        for name, value in results[title].items():
            table.add_row(name, f"{value:,.1f}")
        console.print(table)
    table = Table(title="WebShop: growth on disk, the last column projected")
    rows = [*results["growth"], results["projection"]]
    table.add_column("measure")
    for row in rows:
        table.add_column(f"{row['num_products']:,}", justify="right")
    for name in rows[0]:
        if name != "num_products":
            table.add_row(name, *(f"{row[name]:,.1f}" if name in row else "" for row in rows))
    console.print(table)


def small_catalogue(folder: Path) -> str:
    write_catalogue(synthetic_entries(1000), folder)
    return str(folder)


def main() -> None:
    match sys.argv[1:]:
        case ["build", folder, num_products]:
            print(json.dumps(build(Path(folder), int(num_products))))
            return
        case ["use", folder]:
            print(json.dumps(use(Path(folder))))
            return
        case [catalogue]:
            pass
        case _:
            catalogue = os.environ.get(DATA_VARIABLE)
    with tempfile.TemporaryDirectory() as folder:
        small = catalogue or small_catalogue(Path(folder))
        results = {"machine": machine(), "one_core": measure_small(small), "parallel": measure_parallel(small)}
    results["growth"] = [measure_growth(num_products) for num_products in GROWTH]
    results["projection"] = project(results["growth"])
    show(results)
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
