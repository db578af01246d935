"""Installed packages against what the package's own metadata asks for. Nothing heavy is imported."""

from __future__ import annotations

import platform
import re
from collections.abc import Callable, Iterable, Iterator
from importlib import metadata

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from .findings import Finding, Status


PACKAGE = "taspo_trl"
_EXTRA = re.compile(r"""extra == ["']([^"']+)["']""")

DISABLED = {
    "alfworld": "the environment `alfworld`, its embedded games included",
    "webshop": "the environment `webshop`, its embedded catalogue included",
    "search": "the environment `search_qa`: BM25 in the process, client and server of served indexes",
    "search-dense": "dense retrieval for `search_qa`",
    "vllm": "generation with vLLM (`use_vllm`): colocated, or the client of a vLLM server",
    "quantization": "QLoRA: a base model in 4 or 8 bit (`load_in_4bit`, `load_in_8bit`), 8-bit optimizers",
    "notebooks": "running the notebooks",
    "docs": "building the documentation's pages",
    "dev": "the test suite, linting and type checks",
}
"""Extra -> what does not work without it. A test compares the names with `setup.cfg`."""

Versions = Callable[[str], str | None]
"""Name of a distribution -> its installed version, or None."""
Requirements = Callable[[str], Iterable[str]]
"""Name of a distribution -> the requirement lines of its metadata."""


def installed_version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def requirement_lines(name: str) -> list[str]:
    try:
        return metadata.requires(name) or []
    except metadata.PackageNotFoundError:
        return []


def version_findings(
    versions: Versions = installed_version, requirements: Requirements = requirement_lines
) -> list[Finding]:
    """Python, this package and each package it always needs."""
    found = versions(PACKAGE)
    if found is None:
        missing = Finding(
            "versions",
            PACKAGE,
            Status.WARNING,
            "is not installed, so what it needs is unknown",
            "pip install -e . (in the clone)",
        )
        return [_python(""), missing]
    wanted = metadata.metadata(PACKAGE)["Requires-Python"] if versions is installed_version else ""
    return [
        _python(wanted),
        Finding("versions", PACKAGE, Status.OK, found),
        *(_judged(one, versions) for one in needed(PACKAGE, None, requirements)),
    ]


def extra_findings(
    versions: Versions = installed_version, requirements: Requirements = requirement_lines
) -> list[Finding]:
    """Each extra: installed, or what its absence disables. A missing extra is no fault, so no warning comes of it."""
    return [_extra(name, versions, requirements) for name in extras(requirements(PACKAGE))]


def missing_of(
    extra: str, versions: Versions = installed_version, requirements: Requirements = requirement_lines
) -> list[str]:
    """Requirements of an extra that are absent or of a wrong version, as in `vllm >=0.22 (0.12 is installed)`."""
    return [problem for one in needed(PACKAGE, extra, requirements) if (problem := _problem(one, versions))]


def extras(lines: Iterable[str]) -> list[str]:
    """The extras that requirement lines name, in their order."""
    markers = (str(marker) for line in lines if (marker := Requirement(line).marker) is not None)
    return list(dict.fromkeys(name for marker in markers for name in _EXTRA.findall(marker)))


def needed(name: str, extra: str | None, requirements: Requirements) -> list[Requirement]:
    """What a distribution always needs, or what one of its extras adds; extras of extras are followed."""
    return list(_needed(name, extra, requirements, set()))


def _needed(
    name: str, extra: str | None, requirements: Requirements, seen: set[tuple[str, str]]
) -> Iterator[Requirement]:
    for line in requirements(name):
        try:
            one = Requirement(line)
        except InvalidRequirement:  # of a package that is not ours
            continue
        if not _applies(one, extra):
            continue
        is_ours = canonicalize_name(one.name) == canonicalize_name(name)
        if not is_ours:
            yield one
        for inner in sorted(one.extras):
            if (one.name, inner) not in seen:
                seen.add((one.name, inner))
                yield from _needed(one.name, inner, requirements, seen)


def _applies(one: Requirement, extra: str | None) -> bool:
    """Whether a line counts on this machine: for the package itself (extra None), or only because of the extra."""
    if one.marker is None:
        return extra is None
    always = one.marker.evaluate({"extra": ""})
    return always if extra is None else not always and one.marker.evaluate({"extra": extra})


def _judged(one: Requirement, versions: Versions) -> Finding:
    problem = _problem(one, versions)
    if not problem:
        return Finding("versions", one.name, Status.OK, f"{versions(one.name)}{_range(one.specifier)}")
    return Finding("versions", one.name, Status.FAILURE, problem, f"pip install {_quoted(one)}")


def _problem(one: Requirement, versions: Versions) -> str:
    found = versions(one.name)
    if found is None:
        return f"{one.name} is not installed"
    if not one.specifier.contains(found, prereleases=True):
        return f"{one.name} {found} is outside the supported range {one.specifier}"
    return ""


def _extra(name: str, versions: Versions, requirements: Requirements) -> Finding:
    problems = missing_of(name, versions, requirements)
    if not problems:
        return Finding("extras", name, Status.OK, "installed")
    command = f'pip install -e ".[{name}]"'
    absent = "; ".join(problems)
    return Finding(
        "extras", name, Status.ABSENT, f"only for {DISABLED.get(name, 'what needs it')} ({absent})", command
    )


def _python(wanted: str) -> Finding:
    found = platform.python_version()
    if wanted and not SpecifierSet(wanted).contains(found, prereleases=True):
        return Finding(
            "versions", "python", Status.FAILURE, f"{found}, but {wanted} is needed", f"install Python {wanted}"
        )
    return Finding("versions", "python", Status.OK, f"{found}{f' ({wanted})' if wanted else ''}")


def _range(specifier: SpecifierSet) -> str:
    return f" ({specifier})" if str(specifier) else ""


def _quoted(one: Requirement) -> str:
    return f'"{one.name}{one.specifier}"'
