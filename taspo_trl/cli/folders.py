"""Models as a command line names them: what is not on this disk is refused before the Hub is asked."""

from __future__ import annotations

from pathlib import Path

from ..checkpoints import last_checkpoint, weights_fault
from ..errors import ConfigurationError


def check_model(name: str) -> None:
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
