"""The run folder: everything a run leaves behind, and the identity that it keeps.

config.txt       the whole config, as text
identity.txt     what must stay the same on resume: model, learner, data, seed
run.json         the experiment's name, packages to import, versions
metrics.jsonl    one line a logged step
checkpoints/     the training state
weights/         parameters that were imported, where there is no checkpoint yet
tokenizer/       the tokenizer's files, where they were imported
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import platform
from importlib import metadata
from pathlib import Path
from typing import IO, Any

from dovetail.config import Config, ConfigError, diff, from_text, identity, to_text
from dovetail.hardware import write_whole


def short_hash(config: Config[Any]) -> str:
    """Returns eight characters that stand for a config's identity."""
    return hashlib.blake2b(to_text(identity(config)).encode(), digest_size=4).hexdigest()


class RunFolder:
    """A folder that belongs to one run of one identity."""

    def __init__(self, path: Path) -> None:
        """Names the folder; nothing is touched yet."""
        self.path = path
        self._lock: IO[str] | None = None

    @property
    def checkpoints(self) -> Path:
        """Where the training state is saved."""
        return self.path / "checkpoints"

    @property
    def weights(self) -> Path:
        """Where imported parameters are."""
        return self.path / "weights"

    @property
    def tokenizer(self) -> Path:
        """Where an imported tokenizer's files are."""
        return self.path / "tokenizer"

    @property
    def metrics(self) -> Path:
        """The figures, one JSON object a line."""
        return self.path / "metrics.jsonl"

    def check_identity(self, config: Config[Any]) -> None:
        """Refuses to continue a run of another identity; says what differs."""
        file = self.path / "identity.txt"
        if not file.exists():
            return
        before, now = from_text(file.read_text()), identity(config)
        changes = [str(change) for change in diff(before, now)]
        if changes:
            listed = "\n  ".join(changes[:20]) + ("\n  ..." if len(changes) > 20 else "")
            raise ConfigError(
                f"{self.path} holds a run of another identity. What differs (there -> here):\n"
                f"  {listed}\nChoose another folder with --run, or remove that one."
            )

    def claim(self, config: Config[Any], about: dict[str, Any]) -> None:
        """Makes the folder, locks it for this process, and writes what describes the run."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = (self.path / ".lock").open("w")
        except OSError as error:
            raise ConfigError(
                f"{self.path}: cannot be used as a run folder: {error.strerror}."
            ) from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self.release()
            raise ConfigError(
                f"{self.path}: another process is writing to this run. Wait for it, stop it, or "
                "choose another folder with --run."
            ) from error
        self.check_identity(config)
        self._check_data(about)
        self.describe(config, about)

    def describe(self, config: Config[Any], about: dict[str, Any]) -> None:
        """Writes what describes the run into the folder, which exists."""
        write_whole(self.path / "config.txt", to_text(config))
        write_whole(self.path / "identity.txt", to_text(identity(config)))
        described = {**about, "versions": _versions()}
        write_whole(self.path / "run.json", json.dumps(described, indent=2, sort_keys=True) + "\n")

    def _check_data(self, about: dict[str, Any]) -> None:
        """Refuses to continue on other data than the run began with."""
        before = self.about().get("data") if (self.path / "run.json").exists() else None
        if before is not None and before != about.get("data"):
            raise ConfigError(
                f"{self.path} was trained on other data: {before}, and now the same config gives "
                f"{about.get('data')}. The corpus has changed since; choose another folder with "
                "--run."
            )

    def release(self) -> None:
        """Lets another process use the folder."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def about(self) -> dict[str, Any]:
        """Returns what run.json says."""
        file = self.path / "run.json"
        if not file.is_file():
            raise ConfigError(
                f"{self.path} is not a run folder: it has no run.json. `dovetail train` makes one."
            )
        try:
            described: dict[str, Any] = json.loads(file.read_text())
        except ValueError as error:
            raise ConfigError(
                f"{file} cannot be read as JSON: {error}. It is written whole, so something else "
                "has damaged it; bring it back from a copy, or train anew."
            ) from error
        return described

    def config(self) -> Config[Any]:
        """Reads the run's config back. The parts that it names must have been imported."""
        return from_text((self.path / "config.txt").read_text())


def _versions() -> dict[str, str]:
    names = ("dovetail", "jax", "jaxlib", "optax", "orbax-checkpoint")
    return {"python": platform.python_version(), **{name: metadata.version(name) for name in names}}
