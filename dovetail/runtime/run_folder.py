"""The run folder: all files of a run, and its identity.

config.txt       the complete config, as text
identity.txt     what must not change on resume: model, learner, data, seed
run.json         the experiment's name, packages to import, versions
metrics.jsonl    one line per logged step
checkpoints/     the training state
weights/         imported parameters, used until there is a checkpoint
tokenizer/       the files of an imported tokenizer
"""

from __future__ import annotations

import hashlib
import json
import platform
from importlib import metadata
from pathlib import Path
from typing import Any

from dovetail.config import Config, ConfigError, diff, from_text, identity, to_text
from dovetail.utils import Lock, atomic_write, try_lock


def short_hash(config: Config[Any]) -> str:
    """Returns a hash of a config's identity, in eight characters."""
    return hashlib.blake2b(to_text(identity(config)).encode(), digest_size=4).hexdigest()


class RunFolder:
    """The folder of one run. Its identity never changes."""

    def __init__(self, path: Path) -> None:
        """Stores the path; reads and writes nothing yet."""
        self.path = path
        self._lock: Lock | None = None

    @property
    def checkpoints(self) -> Path:
        """The folder of the checkpoints."""
        return self.path / "checkpoints"

    @property
    def weights(self) -> Path:
        """The folder of imported parameters."""
        return self.path / "weights"

    @property
    def tokenizer(self) -> Path:
        """The folder of an imported tokenizer."""
        return self.path / "tokenizer"

    @property
    def metrics(self) -> Path:
        """The file of the metrics, one JSON object per line."""
        return self.path / "metrics.jsonl"

    def check_identity(self, config: Config[Any]) -> None:
        """Rejects a config of another identity, with the differences."""
        file = self.path / "identity.txt"
        if not file.exists():
            return
        before, now = _read_config(file), identity(config)
        changes = [str(change) for change in diff(before, now)]
        if changes:
            listed = "\n  ".join(changes[:20]) + ("\n  ..." if len(changes) > 20 else "")
            raise ConfigError(
                f"{self.path} is a run of another identity. Differences (there -> here):\n"
                f"  {listed}\nChoose another folder with --run, or remove that one."
            )

    def claim(self, config: Config[Any], about: dict[str, Any]) -> None:
        """Makes the folder, locks it for this process, and writes the description of the run."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = try_lock(self.path / ".lock")
        except OSError as error:
            raise ConfigError(
                f"{self.path}: cannot be used as a run folder: {error.strerror}."
            ) from error
        if self._lock is None:
            raise ConfigError(
                f"{self.path}: another process is writing to this run. Wait for it, stop it, or "
                "choose another folder with --run."
            )
        self.check_identity(config)
        self._check_data(about)
        self.describe(config, about)

    def describe(self, config: Config[Any], about: dict[str, Any]) -> None:
        """Writes the description of the run to the folder, which must exist."""
        atomic_write(self.path / "config.txt", to_text(config))
        atomic_write(self.path / "identity.txt", to_text(identity(config)))
        described = {**about, "versions": _versions()}
        atomic_write(self.path / "run.json", json.dumps(described, indent=2, sort_keys=True) + "\n")

    def _check_data(self, about: dict[str, Any]) -> None:
        """Rejects data other than that with which the run began."""
        before = self.about().get("data") if (self.path / "run.json").exists() else None
        if before is not None and before != about.get("data"):
            raise ConfigError(
                f"{self.path} was trained on other data: {before}; the same config now gives "
                f"{about.get('data')}. The corpus has changed; choose another folder with --run."
            )

    def release(self) -> None:
        """Releases the lock."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def about(self) -> dict[str, Any]:
        """Returns the content of run.json."""
        file = self.path / "run.json"
        if not file.is_file():
            raise ConfigError(
                f"{self.path} is not a run folder: it has no run.json. `dovetail train` makes one."
            )
        try:
            described: dict[str, Any] = json.loads(file.read_text())
        except ValueError as error:
            raise ConfigError(
                f"{file} cannot be read as JSON: {error}. Dovetail writes it atomically, so "
                "something else has damaged it; restore it from a copy, or train again."
            ) from error
        return described

    def config(self) -> Config[Any]:
        """Reads the run's config. The components that it names must be imported."""
        return _read_config(self.path / "config.txt")


def _read_config(file: Path) -> Config[Any]:
    """Reads a config file of the run; an error names the file."""
    try:
        return from_text(file.read_text())
    except (ConfigError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: {error}") from error


def _versions() -> dict[str, str]:
    names = ("dovetail", "jax", "jaxlib", "optax", "orbax-checkpoint")
    return {"python": platform.python_version(), **{name: metadata.version(name) for name in names}}
