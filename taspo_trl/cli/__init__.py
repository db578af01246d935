"""The `taspo` command: each sub-command is a thin call into the package, imported only when it runs."""

from __future__ import annotations

import errno
import logging
import sys
import warnings
from importlib import import_module

from ..errors import TaspoError
from ..redaction import redact_tracebacks, redacted
from ..version import __version__


COMMANDS = {
    "train": ("train", "Train a model; every TASPOConfig field is an option."),
    "warm-start": ("warm_start", "Record episodes of any player, and imitate the successes."),
    "eval": ("evaluate", "Play each task of a split once; compare two results."),
    "analyze": ("analyze", "Run an analyzer over saved trajectories, offline."),
    "credit": ("credit", "Measure credit against what turns were worth."),
    "view": ("view", "Write one HTML page that shows a run."),
    "doctor": ("doctor.command", "Check versions, devices, extras, servers; estimate a recipe."),
    "serve-retriever": ("serve_retriever", "Serve a passage index for Search-QA."),
    "methods": ("methods", "List methods of credit assignment, or show one's card."),
    "env": ("environments", "List environments, download their data."),
}
"""Name -> (module with `main(arguments)`, what it is for)."""


def main(arguments: list[str] | None = None) -> int:
    """Entry point of `taspo`; returns the exit code.

    0: done. 1: a refusal or a failure, told in one message. 2: unusable arguments. 130: interrupted. 143: terminated.
    Whatever the code of an environment, a reward function or a callback says goes through the redactor.
    """
    if arguments is None:
        redact_tracebacks()
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(_usage())
        return 0 if arguments else 2
    if arguments[0] in ("-V", "--version"):
        print(f"taspo_trl {__version__}")
        return 0
    name = arguments.pop(0)
    if name not in COMMANDS:
        print(f"taspo: there is no command {name!r}{_nearest(name)}\n\n{_usage()}", file=sys.stderr)
        return 2
    # Transformers and TRL use each other's deprecated names; no user of a command can do anything about that.
    warnings.filterwarnings("ignore", r".*gradient_checkpointing\w*` is deprecated", FutureWarning)
    # Nor about a kernel that would only make 4-bit products on CPUs faster.
    logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel(logging.ERROR)
    if is_debugging := "--debug" in arguments:
        arguments.remove("--debug")
    if name != "train":  # TRL's parser takes both spellings already
        arguments = [_hyphened(one) for one in arguments]
    try:
        return import_module(f".{COMMANDS[name][0]}", __name__).main(arguments) or 0
    except TaspoError as error:
        return _failed(f"taspo {name}: {error}", error, 1)
    except BrokenPipeError:  # the reader of the output has seen enough
        sys.stdout = None
        return 0
    except Exception as error:
        if is_debugging or not _is_of_the_outside(error):
            raise
        return _failed(f"taspo {name}: {_in_one_line(error)} (`--debug` shows where it happened.)", error, 1)
    except KeyboardInterrupt as error:
        return _failed(f"taspo {name}: interrupted", error, 130)
    except SystemExit as error:
        if error.code != _TERMINATED:
            raise
        return _failed(f"taspo {name}: terminated", error, _TERMINATED)


_TERMINATED = 128 + 15


def _failed(line: str, error: BaseException, code: int) -> int:
    """Print how it ended, and how to go on as the last line."""
    print(redacted("\n".join([line, *getattr(error, "__notes__", ())])), file=sys.stderr)
    return code


def _hyphened(argument: str) -> str:
    """`--max_turns=8` as `--max-turns=8`."""
    if not argument.startswith("--"):
        return argument
    flag, equals, value = argument.partition("=")
    return flag.replace("_", "-") + equals + value


def _is_of_the_outside(error: Exception) -> bool:
    """Whether a disk, a network, a model file or the Hub failed, and not this program."""
    return isinstance(error, OSError) or type(error).__name__ in ("SafetensorError", "UnpicklingError")


_REMEDIES = {
    errno.ENOSPC: "Free some space there, or name a folder on another disk.",
    errno.EDQUOT: "Your quota there is used up: free some space, or name a folder on another disk.",
    errno.EACCES: "Name a folder that you may write to.",
    errno.EPERM: "Name a folder that you may write to.",
    errno.EROFS: "That disk is read-only: name a folder on another one.",
    errno.ENOTDIR: "A file is where a folder was meant: name another folder.",
    errno.EEXIST: "A file is where a folder was meant: name another folder.",
    errno.ENOENT: "Is the path right? A file is written only where the folder above it exists.",
}


def _in_one_line(error: Exception) -> str:
    told = " ".join(str(error).split()) or type(error).__name__
    told = told if len(told) <= 600 else told[:600] + " ..."
    remedy = _REMEDIES.get(getattr(error, "errno", None) or 0, "")
    return f"{told.rstrip('.')}. {remedy}" if remedy else told


def _usage() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {purpose}" for name, (_, purpose) in COMMANDS.items()]
    return "usage: taspo COMMAND ...\n\n" + "\n".join(lines) + "\n\n`taspo COMMAND --help` lists a command's options."


def _nearest(name: str) -> str:
    import difflib

    close = difflib.get_close_matches(name, COMMANDS, n=1)
    return f"; did you mean {close[0]!r}?" if close else ""
