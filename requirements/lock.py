"""Writes lock.txt and lock-alfworld.txt: what the suite's environment installs, in the versions of constraints.txt,
with the hash of every file, for all systems and every Python that the package supports.

torch and what only its GPU builds need are left out: which build is right differs by machine. Run by `make lock`, with
`uv` in the environment.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path


FOLDER = Path(__file__).parent
EXTRAS = ("dev", "webshop", "search", "quantization", "notebooks")
LEFT_OUT = re.compile(r"(?:torch|triton|nvidia-[\w-]+|cuda-[\w-]+)==")
HEAD = "# Written by `make lock` from setup.cfg and constraints.txt; used by `make test-locked`. torch is not in it.\n"


def compiled(extras: tuple[str, ...]) -> dict[str, str]:
    """Name and version of each package -> its lines in a locked requirements file."""
    command = [sys.executable, "-m", "uv", "pip", "compile", "-q", str(FOLDER.parent / "setup.cfg"), "-"]
    command += [part for extra in extras for part in ("--extra", extra)]
    command += ["-c", str(FOLDER / "constraints.txt"), "--universal", "--python-version", "3.11"]
    command += ["--generate-hashes", "--no-annotate", "--no-header"]
    # The package itself is installed without build isolation, so that its build backend is a locked one too.
    text = subprocess.run(command, input="setuptools>=77\n", check=True, capture_output=True, text=True).stdout
    blocks = re.split(r"\n(?=\S)", text.strip())
    return {block.split(" ", 1)[0]: block for block in blocks if not LEFT_OUT.match(block)}


def main() -> None:
    base = compiled(EXTRAS)
    more = compiled((*EXTRAS, "alfworld"))
    (FOLDER / "lock.txt").write_text(HEAD + "\n".join(base.values()) + "\n", encoding="utf-8")
    extra = [block for name, block in more.items() if name not in base]
    (FOLDER / "lock-alfworld.txt").write_text(HEAD + "\n".join(extra) + "\n", encoding="utf-8")
    print(f"Locked {len(base)} packages, and {len(extra)} more for ALFWorld.")


if __name__ == "__main__":
    main()
