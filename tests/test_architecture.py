"""The house: where modules may lie and whom they may import (docs/architecture.md)."""

import ast
import re
from collections import defaultdict
from functools import cache
from pathlib import Path

import taspo_trl


PACKAGE = Path(taspo_trl.__file__).parent
ORDER = (
    ("errors", "types", "seeds", "files", "redaction", "background", "markup", "tokens", "version", "options"),
    ("rows", "records", "checkpoints"),
    ("environments",),
    ("generation",),
    ("rollout",),
    ("analyzer",),
    ("guidance",),
    ("scoring",),
    ("credit",),
    ("loss",),
    ("methods",),
    ("config",),
    ("evaluation",),
    ("truth",),
    ("plots", "reporting", "viewer"),
    ("analyze", "training"),
    ("trainer",),
    ("",),
    ("imitation",),
    ("quickstart",),
    ("cli",),
)
"""The way of the data, from below: a room imports only from rows above its own line, or its own line."""
MAX_ROOT_MODULES = 22
MAX_FLOORS = 12


def modules():
    """Dotted name below the package -> its file; the package itself is the empty name."""
    found = {}
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def room_of(module):
    return module.split(".")[0]


def imports_of(module, path, known):
    """The package's modules that a module imports, at the top or inside a function."""
    own = module.split(".") if module else []
    package = own if path.name == "__init__.py" else own[:-1]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.ImportFrom):
            continue
        if node.level:
            base = package[: len(package) - node.level + 1]
            source = ".".join([*base, *([node.module] if node.module else [])])
        elif (node.module or "").split(".")[0] == "taspo_trl":
            source = (node.module or "").partition(".")[2]
        else:
            continue
        for alias in node.names:
            name = f"{source}.{alias.name}" if source else alias.name
            yield name if name in known else source


@cache
def room_imports():
    """Room -> rooms that it imports -> one example of such an import."""
    known = modules()
    found = defaultdict(dict)
    for module, path in known.items():
        for target in imports_of(module, path, known):
            if room_of(target) != room_of(module):
                found[room_of(module)].setdefault(room_of(target), f"{module or '__init__'} -> {target or '__init__'}")
    return found


def test_every_room_has_a_place_in_the_order_and_nothing_else_has():
    rooms = {room_of(module) for module in modules()}
    assert sorted(rooms) == sorted(room for row in ORDER for room in row)


def test_no_room_imports_from_a_later_stage():
    place = {room: number for number, row in enumerate(ORDER) for room in row}
    upward = [
        example
        for room, targets in room_imports().items()
        for target, example in targets.items()
        if place[target] > place[room]
    ]
    assert not upward


def floors():
    """Room -> length of the longest chain of imports that ends in it; raises on a circle."""
    graph, height, open_rooms = room_imports(), {}, []

    def climb(room):
        if room in open_rooms:
            raise AssertionError(f"an import circle: {' -> '.join([*open_rooms[open_rooms.index(room) :], room])}")
        if room not in height:
            open_rooms.append(room)
            height[room] = 1 + max((climb(target) for target in graph.get(room, ())), default=0)
            open_rooms.pop()
        return height[room]

    for room in {room_of(module) for module in modules()}:
        climb(room)
    return height


def test_no_import_circle_and_few_floors():
    assert max(floors().values()) <= MAX_FLOORS


def test_the_root_holds_few_modules():
    at_root = [name for name, path in modules().items() if "." not in name and path.name != "__init__.py"]
    assert len(at_root) <= MAX_ROOT_MODULES, sorted(at_root)


def test_the_way_of_a_task_is_written_out_and_its_files_exist():
    text = (PACKAGE.parent / "docs" / "architecture.md").read_text(encoding="utf-8")
    way = text.split("## One task")[1].split("## Rooms")[0]
    lines = re.findall(r"^\d+\. (.*)$", way, re.MULTILINE)
    assert len(lines) == 10
    for line in lines:
        files = re.findall(r"`([\w/]+\.py)`", line)
        assert files, line
        assert not [file for file in files if not (PACKAGE / file).is_file()], line


def test_every_room_has_a_line_in_the_table_and_nothing_else_has():
    text = (PACKAGE.parent / "docs" / "architecture.md").read_text(encoding="utf-8")
    listed = re.findall(
        r"`(\w+)(?:\.py|/)`", "".join(re.findall(r"^\| (`.*?) \|", text.split("## Rooms")[1], re.MULTILINE))
    )
    assert sorted(listed) == sorted({room_of(module) for module in modules()} - {"", "version"})


def test_where_a_new_part_goes_names_what_exists():
    """Every file and folder that CONTRIBUTING names, and the names that its tables of parts have."""
    root = PACKAGE.parent
    text = (root / "CONTRIBUTING.md").read_text(encoding="utf-8")
    for path in re.findall(r"`((?:taspo_trl|tests|docs|benchmarks)/[\w/.]*)`", text):
        assert (root / path).is_dir() if path.endswith("/") else (root / path).is_file(), path
    rows = re.findall(r"^\| ([a-z][^|]*) \|(.*)\|$", text.split("## Where a new part goes")[1], re.MULTILINE)
    parts = {name.split(" (")[0]: cells for name, cells in rows if name != "what"}
    assert {"environment", "engine", "credit rule", "privileged context", "metric"} <= set(parts)
    for name, cells in parts.items():
        _, entry, example = cells.split("|")
        assert re.search(r"`tests/[\w/]+\.py`", example), name
        named, file = re.search(r"(?:`([A-Z]+)` in|`([A-Z]+)`,)", entry), re.search(r"`(taspo_trl/[\w/.]+)`", entry)
        if named and file:
            table = named[1] or named[2]
            assert re.search(rf"^{table}\b", (root / file[1]).read_text(encoding="utf-8"), re.MULTILINE), name
    assert "`guidance/coverage`" in (root / "docs" / "metrics.md").read_text(encoding="utf-8")
