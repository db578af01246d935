"""Known vulnerabilities of the locked packages, and licences of the installed ones that bind whoever passes them on.

Run by `make audit`, with `pip-audit` in the environment. Ends with 1 for a vulnerability, or a copyleft licence among
the packages that every installation brings; with 2 where the database cannot be reached or does not know a package, so
that something is not known. Licences are looked at in every case.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, distribution, distributions
from pathlib import Path


LOCK = Path(__file__).with_name("lock.txt")
COPYLEFT = re.compile(r"\b(?:A|L)?GPL|GNU (?:Affero |Lesser )?General Public", re.IGNORECASE)
OPTIONAL = {
    "fast-downward-textworld": "the planner of the extra `alfworld`",
    "jericho": "a dependency of TextWorld, of the extra `alfworld`; not used",
}
"""Copyleft packages that are known, with what brings them."""
UNREACHABLE = (
    "ConnectionError",
    "Could not connect",
    "Max retries exceeded",
    "timed out",
    "NameResolution",
    "ProxyError",
)


def vulnerabilities(lock: Path) -> int:
    """0, 1 or 2 as the module says; prints what pip-audit found."""
    command = [sys.executable, "-m", "pip_audit", "--disable-pip", "--require-hashes", "--progress-spinner", "off"]
    done = subprocess.run([*command, "--format", "json", "-r", str(lock)], capture_output=True, text=True)
    try:
        packages = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError, TypeError):
        said = " ".join((done.stderr or done.stdout).split())
        if "No module named" in said:
            print("pip-audit is not installed: NO VULNERABILITY WAS LOOKED FOR. Run it again with a network.")
        elif any(word in said for word in UNREACHABLE):
            print(
                "The database of vulnerabilities cannot be reached: NOTHING WAS CHECKED. Run it again with a network."
            )
        else:
            print(f"pip-audit failed: NOTHING WAS CHECKED. {said[-500:]}")
        return 2
    found = [one for one in packages if one.get("vulns")]
    for one in found:
        for vulnerability in one["vulns"]:
            mended = ", ".join(vulnerability.get("fix_versions") or ()) or "no version yet"
            print(f"vulnerable: {one['name']} {one['version']}: {vulnerability['id']}, mended in {mended}")
    # Behind a mirror pip-audit skips what the mirror knows nothing of, and calls the rest clean.
    skipped = [one["name"] for one in packages if "skip_reason" in one]
    num_checked = len(packages) - len(skipped)
    if not num_checked:
        print(
            f"The database of vulnerabilities knows none of the {len(packages)} packages from here (a mirror?): "
            "NOTHING WAS CHECKED. Run it again with a network."
        )
    else:
        print(f"Vulnerabilities: {len(found)} of {num_checked} checked packages have some.")
        if skipped:
            print(f"NOT CHECKED: {', '.join(skipped)}")
    return 1 if found else 2 if skipped or not packages else 0


def base_packages(name: str = "taspo_trl") -> set[str]:
    """Names of everything that an installation without extras brings."""
    found, queue = set(), [name]
    while queue:
        one = canonical(queue.pop())
        if one in found:
            continue
        found.add(one)
        try:
            needs = distribution(one).requires or []
        except PackageNotFoundError:
            continue  # for another system, or another Python
        queue += [re.match(r"[\w.-]+", need).group() for need in needs if "extra ==" not in need]
    return found


def licence_of(package) -> str:
    metadata = package.metadata
    named = [metadata.get("License-Expression") or "", (metadata.get("License") or "")[:100]]
    classifiers = [one for one in metadata.get_all("Classifier") or () if one.startswith("License")]
    return " ".join([*named, *classifiers])


def licences() -> int:
    """1 where a copyleft package is among the base ones, or not known; prints all that are installed."""
    base, guilty = base_packages(), 0
    for package in sorted(distributions(), key=lambda one: canonical(one.metadata["Name"])):
        name = canonical(package.metadata["Name"])
        if not COPYLEFT.search(licence_of(package)):
            continue
        why = "IN EVERY INSTALLATION" if name in base else OPTIONAL.get(name, "NOT KNOWN, audit.py must name it")
        guilty |= name in base or name not in OPTIONAL
        print(f"copyleft: {name} {package.version}: {why}")
    print("Licences: nothing that binds whoever passes the base package on." if not guilty else "Licences: see above.")
    return int(guilty)


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


if __name__ == "__main__":
    codes = {licences(), vulnerabilities(LOCK)}
    sys.exit(1 if 1 in codes else max(codes))
