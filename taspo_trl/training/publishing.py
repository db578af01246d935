"""What a trainer publishes: its model card, and what of its folders goes to the Hub."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from trl import GRPOTrainer

from ..redaction import Secret, redacted
from ..reporting.card_facts import RunParts, gather_facts
from ..reporting.hub import selective_uploads
from ..reporting.model_card import TRL_CITATION, model_card
from ..reporting.trackio import traces_kept_here


class PublishingMixin:
    """The Hub's side of [`~taspo_trl.TASPOTrainer`]: TRL's methods that write cards and upload folders, overridden."""

    args: Any
    state: Any
    model: Any
    accelerator: Any
    analyzer: Any
    environment_pool: Any
    train_dataset: Any
    hub_model_id: str | None
    is_in_train: bool
    _environment_names: Mapping[str | None, str]
    _tag_names: Any
    _paper: Any

    split_names: Mapping[str, str] = MappingProxyType({})
    """For the model card, where the data has no column `split`: `"train"` or an evaluation's prefix -> split."""

    @property
    def _weights_step(self) -> int:
        """The optimizer step whose weights the model has: after training, those of the best checkpoint may be back."""
        best = self.state.best_global_step if self.args.load_best_model_at_end and not self.is_in_train else None
        return best or self.state.global_step

    def create_model_card(
        self,
        model_name: str | None = None,
        dataset_name: str | None = None,
        tags: str | list[str] | None = None,
        license: str | None = None,
    ) -> None:
        """Write `output_dir/README.md`: what was trained, on what, how well it does, at what price, how to load it.

        Args:
            model_name (`str`, *optional*):
                Name of the model. If `None`, the last part of `hub_model_id` or of `output_dir`.
            dataset_name (`str`, *optional*):
                Data set on the Hub that the tasks come from.
            tags (`str` or `list[str]`, *optional*):
                Further tags.
            license (`str`, *optional*):
                The Hub's name of the license, for example `"apache-2.0"`. If `None`, the card has none.
        """
        if self.is_world_process_zero():
            self._write_model_card(self.args.output_dir, model_name, dataset_name, tags, license)

    def _write_model_card(
        self,
        folder: str,
        model_name: str | None = None,
        dataset_name: str | None = None,
        tags: str | list[str] | None = None,
        license: str | None = None,
    ) -> None:
        parts = RunParts(
            args=self.args,
            state=self.state,
            model=self.accelerator.unwrap_model(self.model),
            analyzer=self.analyzer,
            environments=self._environment_names,
            traits=self.environment_pool.traits,
            train_dataset=self.train_dataset,
            split_names=self.split_names,
            weights_step=self._weights_step,
            repo_id=self.hub_model_id,
        )
        facts = gather_facts(
            parts,
            model_name=model_name,
            dataset_name=dataset_name,
            tags=[*self._tag_names, *([tags] if isinstance(tags, str) else tags or [])],
            license=license,
            paper=self._paper,
            citations={"TASPO": self._paper["citation"], "GRPO": GRPOTrainer._paper["citation"], "TRL": TRL_CITATION},
        )
        text = redacted(str(model_card(facts)), Secret(self.args.hub_token or ""))
        Path(folder, "README.md").write_text(text, encoding="utf-8")

    def _save(self, output_dir: str | None = None, state_dict: dict | None = None) -> None:
        super()._save(output_dir, state_dict)
        # PEFT leaves a card of its own, or changes the one that is there: its base model may be a local path.
        if self.is_world_process_zero():
            self._write_model_card(output_dir if output_dir is not None else self.args.output_dir)

    def push_to_hub(self, *args, **kwargs):
        with self._selective_uploads(), traces_kept_here(self.args):
            return super().push_to_hub(*args, **kwargs)

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        with self._selective_uploads(), traces_kept_here(self.args):
            super()._push_from_checkpoint(checkpoint_folder)

    def _selective_uploads(self) -> contextlib.AbstractContextManager[None]:
        settings = getattr(self.analyzer, "settings", None)
        cache = getattr(settings, "cache_path", None)
        return selective_uploads(
            with_trajectories=self.args.hub_push_trajectories, secret_files=[cache] if cache is not None else []
        )
