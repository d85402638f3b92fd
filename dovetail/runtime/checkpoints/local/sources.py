"""Files of shards on this host, and copies of them at peers."""

from __future__ import annotations

import contextlib
import functools
from pathlib import Path
from typing import Any

import numpy as np

from dovetail.runtime.checkpoints.local.transfer import Peer
from dovetail.runtime.checkpoints.manifest import NAME, DamagedCheckpointError
from dovetail.runtime.checkpoints.shards.reading import shard_of
from dovetail.runtime.checkpoints.shards.shard_file import (
    OpenShardFile,
    Shard,
    ShardIndex,
    read_index,
)


def held_files(folder: Path, step: int, life: int, run: str) -> dict[str, Any]:
    """Returns the files of a save that this host has with an intact index."""
    here, owners, processes = folder / f"{step}-{life}", [], 0
    for file in sorted(here.glob("*.shards")):
        with contextlib.suppress(DamagedCheckpointError, OSError, ValueError, KeyError):
            with OpenShardFile(file) as opened:
                about = opened.index.about
            if (about["run"], about["step"], about["life"]) == (run, step, life):
                owners.append(about["process"])
                processes = about["processes"]
    return {"owners": owners, "processes": processes, "manifest": (here / NAME).exists()}


class LocalSource:
    """A file of this host."""

    def __init__(self, file: Path) -> None:
        """Takes the path; the file is opened at the first read."""
        self._file = file

    @functools.cached_property
    def _opened(self) -> OpenShardFile:
        return OpenShardFile(self._file)

    @property
    def index(self) -> ShardIndex:
        """The index of the file."""
        return self._opened.index

    def read_shard(self, shard: Shard) -> np.ndarray:
        """Reads block by block."""
        return self._opened.read_shard(shard)

    def close(self) -> None:
        """Closes the file, if it was opened."""
        if "_opened" in self.__dict__:
            self._opened.close()


class PeerSource:
    """A copy at another process."""

    def __init__(self, peer: Peer, name: str) -> None:
        """Takes the peer; the first read sends a request."""
        self._peer, self._name = peer, name
        self._about = f"{name} of process {peer.index}"

    @functools.cached_property
    def index(self) -> ShardIndex:
        """The index of the file."""
        size = self._peer.size(self._name)
        return read_index(functools.partial(self._peer.get, self._name), size, self._about)

    def read_shard(self, shard: Shard) -> np.ndarray:
        """Asks for all bytes of a shard at once."""
        content = self._peer.get(self._name, shard.offset, shard.size)
        return shard_of(content, shard, self._about)

    def close(self) -> None:
        """Does nothing: no connection stays open."""
