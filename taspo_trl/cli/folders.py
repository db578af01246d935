"""Models and checkpoints as a command line names them: what is not on this disk is refused before the Hub is asked."""

from __future__ import annotations

from pathlib import Path

from ..errors import ConfigurationError


def last_checkpoint(folder: str | Path) -> Path | None:
    """The `checkpoint-N` of `folder` with the largest N; None where there is none."""
    from transformers.trainer_utils import get_last_checkpoint

    found = get_last_checkpoint(str(folder)) if Path(folder).is_dir() else None
    return Path(found) if found else None


def checkpoint_to_resume(value: str | bool | None, output_dir: str | Path) -> str | None:
    """The checkpoint folder that `resume_from_checkpoint` means.

    Args:
        value (`str` or `bool`, *optional*):
            `True`, `"true"` or `"last"`: the last checkpoint of `output_dir`. `None`, `False` or `"false"`: none. Else
            a folder.
        output_dir (`str` or `Path`):
            Where the run saves.

    Raises:
        ConfigurationError: there is no such checkpoint.
    """
    word = str(value).lower()
    if value is None or word in ("false", "none"):
        return None
    last = last_checkpoint(output_dir)
    if word in ("true", "last"):
        if last is None:
            raise ConfigurationError(
                f"There is no checkpoint in {output_dir} to resume from. Leave `resume_from_checkpoint` out to "
                "start anew (`save_strategy` and `save_steps` say when one is saved), or name a checkpoint's folder."
            )
        return str(last)
    if not Path(str(value)).is_dir():
        remedy = f"`last` means {last}." if last else f"{output_dir} holds none either: leave the option out."
        raise ConfigurationError(f"There is no checkpoint {value} to resume from. {remedy}")
    return str(value)


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
    last = last_checkpoint(path) if path.is_dir() else None
    if last and not any((path / one).exists() for one in ("config.json", "adapter_config.json")):
        raise ConfigurationError(
            f"{name} holds checkpoints but no model: its run has not ended (yet). Its last checkpoint is {last}."
        )


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
