"""The run folder: all files of a run, and its identity.

config.txt       the complete config, as text
identity.txt     the fixed part of the config: model, initialization, learner, data, seed
run.json         the experiment's name, packages to import, versions of code and packages
metrics.jsonl    one line per logged step
metrics.prom     the newest metrics for Prometheus, if asked for
tensorboard/     the same, for TensorBoard
events.jsonl     one line per fault (a step that is not finite, a spike), and the action
goodput/         the time of each process by class, one file per process and life
lives/           one file per start of the run: its first and last step, and how it ended
hangs/           the stacks of all threads of workers that hung, under a supervisor
skips.json       the batches that the run skips after a fault
stop             create this file to make training save and stop
profile/         the traces of profiled steps
checkpoints/     the training state
weights/         imported parameters, used until there is a checkpoint
tokenizer/       the files of the tokenizer
data/            the prepared data, if it is small
source/          the config files of an imported model
"""

from __future__ import annotations

import errno
import hashlib
import json
from pathlib import Path
from typing import Any

from dovetail.config import (
    Config,
    ConfigError,
    Error,
    RunError,
    StorageError,
    diff,
    from_text,
    identity,
    to_text,
)
from dovetail.runtime.code_version import code_versions, package_versions
from dovetail.utils import Lock, atomic_write, make_folder, try_lock

FORMAT = 1
"""The version of the layout of a run folder. A folder without one in run.json is older."""


_TRANSIENT = (
    *(errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESTALE),
    *(errno.ETIMEDOUT, errno.EAGAIN, errno.EINTR, errno.EBUSY),
)
"""Transient errors of a disk: it is full, or the server of a network disk restarts."""


def folder_error(what: str, error: OSError) -> Error:
    """Returns the error for a folder that cannot be used: a wrong path, or a transient failure."""
    kind = StorageError if error.errno in _TRANSIENT else ConfigError
    return kind(f"{what}: {error.strerror or error}.")


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
        """The folder of the tokenizer's files."""
        return self.path / "tokenizer"

    @property
    def data(self) -> Path:
        """The folder of prepared data."""
        return self.path / "data"

    @property
    def source(self) -> Path:
        """The folder with the config files of an imported model."""
        return self.path / "source"

    @property
    def metrics(self) -> Path:
        """The file of the metrics, one JSON object per line."""
        return self.path / "metrics.jsonl"

    def check_identity(self, config: Config[Any]) -> None:
        """Rejects a config with another identity, and lists the differences."""
        file = self.path / "identity.txt"
        if not file.exists():
            return
        before, now = _read_config(file), identity(config)
        changes = [str(change) for change in diff(before, now)]
        if changes and not self._has_identity(now):
            listed = "\n  ".join(changes[:20]) + ("\n  ..." if len(changes) > 20 else "")
            raise ConfigError(
                f"{self.path} is a run of another identity (model, initialization, learner, data "
                f"or seed), so it cannot be continued. Differences (there -> here):\n  {listed}\n"
                "Choose another folder with --run, or remove that one. To start from its weights, "
                f"add --with from-run:path={self.path}."
            )

    def _has_identity(self, now: Config[Any]) -> bool:
        """Says whether the run's complete config has this identity by the current rules.

        An older version may have left fields out of identity.txt that the identity includes now.
        """
        try:
            return identity(self.config()) == now
        except ConfigError:  # it may name a component that is not imported here
            return False

    def identity(self) -> Config[Any] | None:
        """Returns the identity of the run; None if it has not begun."""
        file = self.path / "identity.txt"
        return _read_config(file) if file.exists() else None

    def claim(self, config: Config[Any], accepts_change: bool = False) -> None:
        """Makes the folder and locks it for this process; refuses a run of another identity.

        Args:
            config: of the run.
            accepts_change: whether the identity may differ, because the caller has checked that.
        """
        try:
            make_folder(self.path)
            self._lock = try_lock(self.path / ".lock")
        except OSError as error:
            raise folder_error(f"{self.path}: cannot be used as a run folder", error) from error
        if self._lock is None:
            raise ConfigError(
                f"{self.path}: another process is writing to this run. Wait for it, stop it, or "
                "choose another folder with --run."
            )
        if not accepts_change:
            self.check_identity(config)

    def describe(self, config: Config[Any], about: dict[str, Any]) -> None:
        """Writes the description of the run to the folder, which must exist."""
        atomic_write(self.path / "config.txt", to_text(config))
        atomic_write(self.path / "identity.txt", to_text(identity(config)))
        modules = ["dovetail", *about.get("imports", []), *about.get("entry_points", [])]
        versions = {"versions": package_versions(), "code": code_versions(modules)}
        described = {**about, "format": FORMAT, **versions, **self._earlier(versions)}
        atomic_write(self.path / "run.json", json.dumps(described, indent=2, sort_keys=True) + "\n")

    def _earlier(self, now: dict[str, Any]) -> dict[str, Any]:
        """Returns the versions that trained this run before, oldest first, if they differ."""
        before = self.about_if_any() or {}
        last = {name: before[name] for name in now if name in before}
        earlier = [*before.get("earlier", []), *([last] if last not in ({}, now) else [])]
        return {"earlier": earlier} if earlier else {}

    def check_data(self, name: str) -> None:
        """Rejects data that differs from the run's first data."""
        before = (self.about_if_any() or {}).get("data")
        if before not in (None, name):
            raise RunError(
                f"{self.path} was trained on other data: {before}; the same config now gives "
                f"{name}. The corpus has changed; choose another folder with --run."
            )

    def is_locked(self) -> bool:
        """Says whether a process is writing to the run."""
        if not (self.path / ".lock").exists():
            return False
        lock = try_lock(self.path / ".lock")
        if lock is not None:
            lock.release()
        return lock is None

    def release(self) -> None:
        """Releases the lock."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def about(self) -> dict[str, Any]:
        """Returns the content of run.json."""
        file = self.path / "run.json"
        if not file.is_file():
            there = "it has no run.json" if self.path.is_dir() else "there is no such folder"
            raise RunError(f"{self.path} is not a run folder: {there}. `dovetail train` makes one.")
        try:
            described = json.loads(file.read_text())
            if not isinstance(described, dict):
                raise ValueError(f"expected an object, got {type(described).__name__}")
        except ValueError as error:
            raise RunError(
                f"{file} cannot be read as JSON: {error}. Dovetail writes it atomically, so "
                "something else has damaged it; restore it from a copy, or train again."
            ) from error
        if described.get("format", FORMAT) not in range(FORMAT + 1):
            writer = described.get("versions", {}).get("dovetail", "another version")
            raise RunError(
                f"{self.path} was written by a newer Dovetail ({writer}, format "
                f"{described['format']}); this one reads up to format {FORMAT}. Upgrade it."
            )
        return described

    def about_if_any(self) -> dict[str, Any] | None:
        """Returns the content of run.json; None if the run has not begun."""
        return self.about() if (self.path / "run.json").is_file() else None

    def record_step(self, step: int) -> None:
        """Records in run.json how far training came; a training loop may write nothing itself."""
        described = {**self.about(), "step": step}
        atomic_write(self.path / "run.json", json.dumps(described, indent=2, sort_keys=True) + "\n")

    def config(self) -> Config[Any]:
        """Reads the run's config. The components that it names must be imported."""
        return _read_config(self.path / "config.txt")


def _read_config(file: Path) -> Config[Any]:
    """Reads a config file of the run; an error names the file."""
    try:
        return from_text(file.read_text())
    except FileNotFoundError as error:
        raise RunError(
            f"{file.parent} is not a complete run folder: it has no {file.name}. Restore it from "
            "a copy, or train again."
        ) from error
    except (ConfigError, UnicodeDecodeError) as error:
        raise RunError(f"{file}: {error}") from error
