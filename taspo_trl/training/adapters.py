"""Adapters: which one is the reference, and passes that leave every trained flag as it was."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from trl.trainer.utils import use_adapter

from ..errors import ConfigurationError


def add_reference_adapter(model: Any) -> str:
    """Freeze a copy of the adapter that is active now as the reference pi_ref; gives its name.

    TRL copies the adapter named `default`, whichever is active.

    Args:
        model ([`~peft.PeftModel`]):
            A loaded adapter, trainable.

    Raises:
        ConfigurationError: several adapters are active at once.
    """
    from peft import get_peft_model_state_dict, set_peft_model_state_dict

    active = [model.active_adapter] if isinstance(model.active_adapter, str) else list(model.active_adapter)
    active = list(getattr(model, "active_adapters", active)) or active
    if len(active) != 1:
        raise ConfigurationError(
            f"The adapters {', '.join(active)} are active together; the reference of `beta` is a copy of one. "
            "Activate one (`model.set_adapter(name)`), or merge them first."
        )
    (source,) = active
    name, number = "ref", 2
    while name in model.peft_config:
        name, number = f"ref_{number}", number + 1
    flags = _flags(model)
    model.add_adapter(name, model.peft_config[source])
    set_peft_model_state_dict(model, get_peft_model_state_dict(model, adapter_name=source), adapter_name=name)
    model.set_adapter(source)
    for key, parameter in model.named_parameters():
        parameter.requires_grad_(flags.get(key, False))
    return name


@contextlib.contextmanager
def reference_adapter(model: Any, name: str | None) -> Iterator[None]:
    """The model as its own reference inside: with the adapter `name`, or with none.

    PEFT turns gradients on for whatever adapter it activates, the policy's own included when it comes back; afterwards
    every parameter has the flag that it had.
    """
    flags = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    try:
        with use_adapter(model, adapter_name=name):
            yield
    finally:
        for parameter, flag in flags:
            parameter.requires_grad_(flag)


def _flags(model: Any) -> dict[str, bool]:
    return {name: parameter.requires_grad for name, parameter in model.named_parameters()}
