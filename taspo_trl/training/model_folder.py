"""Models by their names: what was meant as a folder and is none is refused before the Hub is asked."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..checkpoints import last_checkpoint, weights_fault
from ..errors import ConfigurationError, TaspoError


_SHOWN_CHARS = 300
_OF_LOADING = ("Unrecognized model", "Unrecognized processing class", "does not recognize this architecture")


def check_model_folder(name: str) -> None:
    """Refuse a model that was meant as a folder here and is none, or holds only checkpoints of a run.

    Raises:
        ConfigurationError: it cannot be loaded; a name that may be a model id passes.
    """
    path = Path(name)
    if not path.exists():
        if _looks_local(name):
            near = f" {path.parent} holds {_listed(path.parent)}." if path.parent.is_dir() else ""
            home = " `~` stands for nothing here: write the whole path." if name.startswith("~") else ""
            raise ConfigurationError(
                f"There is no model folder {name}.{near}{home} Name a folder that `taspo train` saved, or the model's "
                "id on the Hub."
            )
        return
    has_model = any((path / one).exists() for one in ("config.json", "adapter_config.json"))
    if has_model:
        _check_weights(path)
        return
    last = last_checkpoint(path)
    if last:
        raise ConfigurationError(
            f"{name} holds checkpoints but no model: its run has not ended (yet). Its last checkpoint is {last}."
        )
    raise ConfigurationError(
        f"{name} holds no model: there is neither a config.json nor an adapter_config.json, but {_listed(path)}. Name "
        "a folder that `taspo train` saved, or the model's id on the Hub."
    )


@contextlib.contextmanager
def loading(name: Any) -> Iterator[None]:
    """Name the model in what transformers says of one that it cannot load, with what can be done.

    Args:
        name (`str` or `Any`):
            The model's name; anything else is a model already, and nothing is changed.

    Raises:
        ConfigurationError: there is no such model, its files cannot be read, or nothing here knows its architecture.
    """
    try:
        yield
    except TaspoError:
        raise
    except (OSError, ValueError) as error:
        told = " ".join(str(error).split())
        is_told = isinstance(error, OSError) and error.errno is None  # the system's own have a number
        if not isinstance(name, str) or not (is_told or any(one in told for one in _OF_LOADING)):
            raise
        local = Path(name).exists()
        remedy = (
            "Look at its files: a kill or an interrupted copy leaves some that end early."
            if local
            else f"Is the name right? Without a network, `hf download {name}` where there is one, and name the folder."
        )
        raise ConfigurationError(f"The model {name} cannot be loaded: {told[:_SHOWN_CHARS]} {remedy}") from error


def _check_weights(path: Path) -> None:
    """A kill or a full disk leaves weights that end early; what is no folder of weights is left to transformers."""
    fault = weights_fault(path)
    if fault.endswith(("cut off", "is missing")):
        last = last_checkpoint(path) or last_checkpoint(path.parent)
        remedy = f" The last whole checkpoint beside it is {last}." if last else ""
        raise ConfigurationError(f"The model folder {path} is torn: {fault}.{remedy}")


def _looks_local(name: str) -> bool:
    """A model id is `name` or `owner/name`; what begins like a path, is deeper or lies in a folder here is none."""
    path = Path(name)
    return path.is_absolute() or name.startswith((".", "~")) or name.count("/") > 1 or _is_in_folder(path)


def _is_in_folder(path: Path) -> bool:
    return path.parent != Path() and path.parent.is_dir()


def _listed(folder: Path, most: int = 5) -> str:
    names = sorted(one.name for one in folder.iterdir() if one.is_dir() and not one.name.startswith((".", "_")))
    shown = ", ".join(names[:most]) + (", ..." if len(names) > most else "")
    return shown or "no folder"
