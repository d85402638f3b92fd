"""The manifest of a checkpoint: its commit marker, with the digest of every array.

It is written last, so a folder without one is the leftover of an interrupted save. A manifest that
was changed or truncated is refused, and so is the manifest of another step.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dovetail.runtime.points import reach
from dovetail.utils import atomic_write

NAME = "manifest.json"
_FORMAT = 1


class DamagedCheckpointError(Exception):
    """A checkpoint differs from the saved state."""


@dataclass(frozen=True)
class SavedArray:
    """An array of a checkpoint. It may be saved in slices along one axis, each in a group."""

    shape: tuple[int, ...]
    dtype: str
    digest: str
    axis: int = 0
    """The axis of the slices."""
    slices: tuple[tuple[int, int, int], ...] = ()
    """The group, the begin and the end of each slice; empty for an array that is not sliced."""
    group: int = 0
    """The group of an array that is not sliced."""


@dataclass(frozen=True)
class Manifest:
    """The contents of a checkpoint."""

    step: int
    life: int
    arrays: Mapping[str, SavedArray]
    metric: float | None = None
    """What an evaluator found, if the best checkpoint is kept."""

    def write(self, folder: Path) -> None:
        """Commits the checkpoint in a folder, whose other files are complete and on disk."""
        reach("manifest written")
        atomic_write(folder / NAME, self.text())
        reach("manifest renamed")

    def text(self) -> str:
        """Returns the manifest as JSON, with a checksum."""
        content = {"format": _FORMAT, **asdict(self)}
        content["checksum"] = _checksum(content)
        return json.dumps(content, indent=1) + "\n"


def read_manifest(folder: Path) -> Manifest | None:
    """Returns the manifest of a checkpoint; None if it has none.

    Raises:
        DamagedCheckpointError: if the manifest is damaged.
    """
    file = folder / NAME
    try:
        return parse_manifest(file.read_bytes(), str(file))
    except FileNotFoundError:
        return None


def parse_manifest(text: bytes, name: str) -> Manifest:
    """Returns a manifest from its JSON; `name` is for messages."""
    try:
        content = json.loads(text)
    except ValueError as error:
        raise DamagedCheckpointError(f"{name} is no JSON: {error}") from error
    if not isinstance(content, dict) or content.pop("checksum", None) != _checksum(content):
        raise DamagedCheckpointError(f"{name} is damaged: its checksum is wrong")
    if content["format"] != _FORMAT:
        raise DamagedCheckpointError(
            f"{name} has format {content['format']}; this Dovetail reads {_FORMAT}"
        )
    arrays = {path: _array(values) for path, values in content["arrays"].items()}
    return Manifest(content["step"], content["life"], arrays, content.get("metric"))


def _array(values: Mapping[str, Any]) -> SavedArray:
    slices = tuple((group, begin, end) for group, begin, end in values["slices"])
    return SavedArray(**{**values, "shape": tuple(values["shape"]), "slices": slices})


def _checksum(content: Mapping[str, Any]) -> str:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
