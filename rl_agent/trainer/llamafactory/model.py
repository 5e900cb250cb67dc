"""Looks up the model that an update trains, once: all of the update sees the same one."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl_agent.chat.tokenizer_files import model_folder
from rl_agent.config.plan import Config
from rl_agent.served_model.digest import FileDigest
from rl_agent.served_model.versions import Published, adopt, read_record
from rl_agent.system.files import load_object


@dataclass(frozen=True, slots=True)
class ServedVersion:
    """The model that is served."""

    path: str
    """A folder, or a hub name where nothing was trained yet."""
    files: Path
    """The model's files on this machine; of one of the hub that was never downloaded, the small ones."""
    folder: Path | None
    """The version's folder; None: the base model."""
    record: Published | None
    """None: a model that was not published."""

    @classmethod
    def of(cls, config: Config) -> "ServedVersion":
        """Look up the served model; one that a user linked becomes version 0.

        Raises ConfigError if `model.pt` is lost, the record is damaged, or the base model is not to be had.
        """
        folder = adopt(config.paths)
        path = str(folder.resolve()) if folder is not None else config.model.base_model
        files = model_folder(path)
        return cls(path, files, folder, read_record(files))

    @property
    def config(self) -> Mapping[str, Any]:
        """The content of its config.json, as an adapter's base model has it too.

        Raises ConfigError for a damaged one.
        """
        return load_object(self.files / "config.json")

    @property
    def trainer_files(self) -> dict[str, FileDigest]:
        return self.record.trainer_files if self.record is not None else {}
