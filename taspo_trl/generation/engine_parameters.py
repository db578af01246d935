"""The policy's weights as an inference engine names them: adapters merged, shards gathered, one tensor at a time.

TRL's own walk over the parameters, except for adapters. TRL merges all adapters in place and takes them out again when
the walk ends, which has two faults: a base weight comes back with other bits after each round trip, and a consumer
that packs tensors (vLLM's broadcast does) holds references that show the base again once the walk has ended. Here one
layer at a time is merged, copied, unmerged, and its bits put back, so that what is yielded stays what it is and the
base never moves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from accelerate.utils import is_peft_model
from peft.tuners.tuners_utils import BaseTunerLayer, onload_layer
from trl.distributed import DistributedBackend
from trl.generation.vllm_generation import VLLMGeneration


class EngineParameters(VLLMGeneration):
    """Iterates over (name, tensor) of a model, as the engine that holds its base model expects them.

    Gathering shards is collective: every process has to iterate, to the end.

    Args:
        get_model (`Callable`):
            Gives the policy as the trainer calls it now (training may wrap it).
        accelerator ([`~accelerate.Accelerator`]):
            Device and sharding.
    """

    def __init__(self, get_model: Callable[[], Any], accelerator: Any):
        # Not TRL's constructor: it starts vLLM.
        self._get_model = get_model
        self.accelerator = accelerator
        self._dist = DistributedBackend(accelerator)

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        self.model = self._get_model()
        return self._merged_params() if is_peft_model(self.model) else self._iter_named_params()

    @torch.no_grad()
    def _merged_params(self) -> Iterator[tuple[str, torch.Tensor]]:
        layers_of = self._adapted_layers()
        merged: dict[int, torch.Tensor] = {}
        for name, param in self.model.named_parameters():
            plain = self._plain_name(name)
            if plain is None:
                continue
            layers = layers_of.get(id(param))
            if layers is None:
                with self._dist.gather_params([param]):
                    yield plain, self._whole(param.data)
            else:
                if id(param) not in merged:
                    merged |= self._merge(layers)
                value = merged.pop(id(param))
                if value.is_cuda:  # it was made on the stream of the layer's first tensor, which may be another
                    value.record_stream(torch.cuda.current_stream(value.device))
                yield plain, value

    def _adapted_layers(self) -> dict[int, list[BaseTunerLayer]]:
        """id of a base parameter -> the adapter layers around it, the outermost first."""
        layers: dict[int, list[BaseTunerLayer]] = {}
        for module in self.model.modules():
            if isinstance(module, BaseTunerLayer):
                for param in module.get_base_layer().parameters():
                    layers.setdefault(id(param), []).append(module)
        return layers

    def _merge(self, layers: list[BaseTunerLayer]) -> dict[int, torch.Tensor]:
        """Copies of a base layer's parameters with the active adapters in them; the layer itself stays as it is."""
        outermost: Any = layers[0]
        base = list(outermost.get_base_layer().parameters())
        with self._dist.gather_params(list(outermost.parameters())):
            bits = [param.data.clone() for param in base]
            try:
                for layer in layers:
                    with onload_layer(layer):
                        layer.merge()
                return {id(param): self._whole(param.data).clone() for param in base}
            finally:
                for layer in layers:
                    if layer.merged:
                        with onload_layer(layer):
                            layer.unmerge()
                for param, kept in zip(base, bits, strict=True):
                    param.data.copy_(kept)  # adding and subtracting an update leaves rounding behind
                if torch.cuda.is_available():
                    torch.cuda.current_stream().synchronize()  # vLLM's broadcast reads on several streams in turn

    def _whole(self, tensor: Any) -> torch.Tensor:
        """All of a tensor that FSDP2 may have sharded."""
        if not hasattr(tensor, "full_tensor"):
            return tensor
        return (tensor.to(self.accelerator.device) if tensor.is_cpu else tensor).full_tensor()

    def _plain_name(self, name: str) -> str | None:
        """The name in the base model; None for what the base model does not have."""
        adapter = self.model.active_adapter
        chosen = f"modules_to_save.{adapter}."
        if str(self.model.prefix) in name or "original_module." in name:
            return None
        if "modules_to_save." in name and chosen not in name:  # of another adapter, for example the frozen reference
            return None
        name = name.removeprefix("base_model.model.").replace(".base_layer", "")
        return self._fix_param_name_to_vllm(name, extra_prefixes=[chosen])
