"""A finished model folder goes to the Hub, as transformers' options of the Hub say."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..reporting.hub import Pushes, ignored_patterns


_SECONDS = 3600.0
_LEFT_OUT = ("_*", "checkpoint-*")


@dataclass
class Upload:
    """The push that `--push_to_hub` asks for.

    Args:
        training ([`~transformers.TrainingArguments`]):
            `hub_model_id` (None = the folder's name), `hub_token`, `hub_revision` and `hub_private_repo`: private
            unless it is False.
        folder (`Path`):
            What goes up when it is finished: without checkpoints, and without what begins with `_`.
    """

    training: Any
    folder: Path
    repository: str = ""

    def __post_init__(self) -> None:
        self._pushes = Pushes(_SECONDS)

    def prepare(self) -> None:
        """Make the repository: a name or a token that the Hub refuses is found before anything is paid for.

        Raises:
            HubError: it cannot be made.
        """
        made = self._pushes.create_repository(
            self._api(),
            self.training.hub_model_id or self.folder.resolve().name,
            token=self.training.hub_token,
            private=self.training.hub_private_repo is not False,
            exist_ok=True,
        )
        self.repository = made.repo_id

    def send(self, message: str) -> str:
        """Upload the folder, and give the address of the commit.

        Raises:
            HubError: it is not there within an hour.
        """
        what = f"{self.folder} is whole, but was not pushed to {self.repository}"
        sent = self._pushes.run(
            what,
            _SECONDS,
            self._api().upload_folder,
            repo_id=self.repository,
            folder_path=str(self.folder),
            commit_message=message,
            token=self.training.hub_token,
            revision=self.training.hub_revision,
            ignore_patterns=ignored_patterns(self.folder, _LEFT_OUT, with_trajectories=False),
        )
        return str(sent.commit_url)

    @staticmethod
    def _api() -> Any:
        import transformers.trainer

        return transformers.trainer.hf_api()
