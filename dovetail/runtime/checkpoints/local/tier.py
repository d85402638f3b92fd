"""The local tier: frequent checkpoints on the hosts' own disks, each with a copy at a peer.

    FOLDER/<run>/120-3/0.shards        the shards that process 0 wrote, at step 120 in life 3
    FOLDER/<run>/120-3/1.shards        the copy of what process 1 wrote
    FOLDER/<run>/120-3/manifest.json   commits the checkpoint, with the digest of every array

A save needs no shared storage and no barrier of JAX: one agreement commits it. When a host is lost,
its shards come from the peer that has the copy. A checkpoint can be restored on any mesh by any
number of processes, as long as every shard is on some host. Checksums verify each copy when it
arrives and each shard when it is read. Digests verify the restored arrays on the devices.
"""

from __future__ import annotations

import logging
import re
import secrets
import shutil
import socket
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import jax

from dovetail.config import Component, ConfigError
from dovetail.runtime.agreement import Agreement
from dovetail.runtime.checkpoints.folders import Entry, run_id
from dovetail.runtime.checkpoints.local.save import LocalSave, LocalSaveSettings
from dovetail.runtime.checkpoints.local.sources import LocalSource, PeerSource, held_files
from dovetail.runtime.checkpoints.local.transfer import FileServer, Peer, TransferError
from dovetail.runtime.checkpoints.manifest import (
    NAME,
    DamagedCheckpointError,
    Manifest,
    parse_manifest,
)
from dovetail.runtime.checkpoints.resharding import read_sharding
from dovetail.runtime.checkpoints.shards.assignment import ShardAssignment
from dovetail.runtime.checkpoints.shards.reading import ShardReader
from dovetail.runtime.checkpoints.shards.shard_file import verify_file
from dovetail.runtime.lives import Life
from dovetail.utils import make_folder, remove_folder

_LOG = logging.getLogger("dovetail")

_STEP = re.compile(r"(0|[1-9][0-9]{0,18})-(0|[1-9][0-9]{0,8})")

Gather = Callable[[str, Any], list[Any]]


@dataclass(frozen=True)
class LocalEntry(Entry):
    """A checkpoint of the local tier, and who has its files."""

    holders: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    """By the process that wrote a file, the processes that can read it now."""
    manifest_holders: tuple[int, ...] = ()

    @property
    def folder(self) -> str:
        """The name of its folder."""
        return f"{self.step}-{self.life}"


class LocalTier(Component):
    """Saves often to a disk of this host, with a verified copy at another host."""

    class Config(Component.Config["LocalTier"]):
        """The interval between saves, and their folder.

        Attributes:
            every: the number of steps between saves.
            keep: how many of the newest checkpoints are kept.
            folder: a folder on a disk of the host, or in its memory (/dev/shm). `{process}` is
                replaced by the process's index. None is a folder inside the run folder.
            copy_to_peer: whether another host gets a copy.
        """

        every: int = 50
        keep: int = 2
        folder: str | None = None
        copy_to_peer: bool = True

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        for name in ("every", "keep"):
            if getattr(config, name) < 1:
                value = getattr(config, name)
                raise ConfigError(f"checkpointer.local.{name}: expected 1 or more, got {value}.")
        self._every, self._keep, self._root = config.every, config.keep, config.folder
        self._copy_to_peer = config.copy_to_peer
        self._settings: LocalSaveSettings | None = None
        self._server: FileServer | None = None
        self._peers: dict[int, Peer] = {}
        self._assignment = ShardAssignment()
        self._discard_after: int | None = None

    def due(self, step: int) -> bool:
        """Says whether a save is due after this step."""
        return step % self._every == 0

    @property
    def is_started(self) -> bool:
        """Whether this process trains, so that the tier can be used."""
        return self._settings is not None

    def start(
        self,
        checkpoints: Path,
        agreement: Agreement,
        life: Life | None,
        life_number: int,
        max_host_bytes: int,
        seconds: int,
    ) -> None:
        """Starts to train; all processes gather the addresses of their file servers."""
        own_id = run_id(checkpoints) if agreement.index == 0 else ""
        about = (own_id, secrets.token_hex(16))
        run, token = agreement.gather("local tier: the run", about, seconds)[0]
        root = self._root or str(checkpoints / "local")
        folder = Path(root.replace("{process}", str(agreement.index))).absolute() / run
        try:
            make_folder(folder)
        except OSError as error:
            agreement.withdraw("local tier: ", str(error))
            raise ConfigError(
                f"checkpointer.local.folder: {folder} cannot be made ({error}). Name a folder on a "
                "disk of each host that can be written."
            ) from error
        host = agreement.own_address()  # the loopback interface, if all are on one host
        if agreement.count > 1:
            self._server = FileServer(folder, host, token, verify_file)
        here = {
            "address": (host, self._server.port if self._server else 0),
            "place": f"{socket.gethostname()}:{folder}",
        }
        places = agreement.gather("local tier: where", here, seconds)
        self._peers = {
            index: Peer(index, tuple(place["address"]), token, seconds)
            for index, place in enumerate(places)
            if index != agreement.index
        }
        buddy = _buddy(agreement.index, [place["place"] for place in places])
        peer = self._peers[buddy] if self._copy_to_peer and buddy is not None else None
        self._settings = LocalSaveSettings(
            agreement, life, life_number, run, max_host_bytes, seconds, folder, peer, self._retain
        )

    def close(self) -> None:
        """Stops the file server; the files stay."""
        if self._server is not None:
            self._server.close()
        self._server, self._settings = None, None

    def save(
        self,
        step: int,
        leaves: Mapping[str, jax.Array],
        digests: Mapping[str, jax.Array],
        topics: str,
    ) -> LocalSave:
        """Starts a save."""
        settings = self._started()
        if settings.life is not None:
            settings.life.check()
        if self._discard_after is not None:
            self._remove(lambda name: name[0] > (self._discard_after or 0))
            self._discard_after = None
        # A name is used once: a life that comes back to a step after a rollback starts afresh.
        shutil.rmtree(settings.folder / f"{step}-{settings.life_number}", ignore_errors=True)
        settings.agreement.gather(f"{topics}the folder is ready", None, settings.seconds)
        slices = self._assignment.slices(leaves, settings.agreement.index, settings.max_host_bytes)
        return LocalSave(settings, step, leaves, slices, digests, topics)

    def _retain(self, step: int) -> None:
        """Removes checkpoints that are not kept, now that this step is committed."""
        names = sorted(self._names(), reverse=True)
        kept = {name for name in names if name[0] <= step and self._is_committed(name)}
        kept = set(sorted(kept, reverse=True)[: self._keep])
        self._remove(lambda name: name[0] <= step and name not in kept)

    def restored(self, step: int) -> None:
        """Records the restored step; the next save removes the checkpoints after it."""
        self._discard_after = step

    def steps(self) -> list[int]:
        """Returns the steps of which this process has files."""
        return sorted({step for step, _ in self._names()})

    def distrust(self, steps: Collection[int]) -> None:
        """Removes checkpoints that may hold a corrupt state."""
        self._remove(lambda name: name[0] in steps)

    def entries(self, topics: str, gather: Gather) -> list[LocalEntry]:
        """Returns the checkpoints that the hosts have completely, newest first.

        All processes call this, and receive the same result.
        """
        settings = self._started()
        mine = {
            f"{step}-{life}": held_files(settings.folder, step, life, settings.run)
            for step, life in self._names()
        }
        answers = gather(f"{topics}local checkpoints", mine)
        found = [
            entry
            for name in sorted({n for a in answers for n in a})
            if (entry := _entry(name, answers))
        ]
        entries = [self._with_manifest(entry) for entry in found]
        problems = gather(f"{topics}local manifests", [entry.problem for entry in entries])
        usable: list[LocalEntry] = []
        for number, entry in enumerate(entries):
            problem = next((each[number] for each in problems if each[number]), None)
            if problem is not None:
                _LOG.warning(
                    "The local checkpoint of step %d cannot be used (%s).", entry.step, problem
                )
            else:
                usable.append(entry)
        return sorted(usable, key=lambda entry: entry.name, reverse=True)

    def read(
        self, entry: LocalEntry, like: Mapping[str, jax.ShapeDtypeStruct]
    ) -> dict[str, jax.Array]:
        """Reads arrays onto the devices, from this host's files or from other processes."""
        assert entry.manifest is not None
        with ShardReader(self._sources(entry)) as reader:
            return {
                path: reader.array(path, entry.manifest.arrays[path], read_sharding(struct, None))
                for path, struct in like.items()
            }

    def _sources(self, entry: LocalEntry) -> dict[int, list[Any]]:
        """Returns the copies of each file, this host's first."""
        found: dict[int, list[Any]] = {}
        for owner, holders in entry.holders.items():
            name = f"{entry.folder}/{owner}.shards"
            file = self._started().folder / name
            here = [LocalSource(file)] if file.exists() else []
            there = [PeerSource(self._peers[i], name) for i in holders if i in self._peers]
            found[owner] = [*here, *there]
            if owner == self._started().agreement.index and there and not here:
                _LOG.warning("%s is not on this host; reading the copy of a peer.", file)

        def is_elsewhere(owner: int) -> bool:
            return not isinstance(next(iter(found[owner]), None), LocalSource)

        return {owner: found[owner] for owner in sorted(found, key=is_elsewhere)}

    def _with_manifest(self, entry: LocalEntry) -> LocalEntry:
        """Reads the manifest from this host, or from a process that has it."""
        try:
            manifest = self._manifest(entry)
        except (DamagedCheckpointError, TransferError, OSError, KeyError, TypeError) as error:
            return replace(entry, problem=f"process {self._started().agreement.index}: {error}")
        if (manifest.step, manifest.life) != (entry.step, entry.life):
            return replace(entry, problem=f"its manifest is of step {manifest.step}")
        return replace(entry, manifest=manifest)

    def _manifest(self, entry: LocalEntry) -> Manifest:
        """Returns the first intact copy, on this host or at a peer."""
        name = f"{entry.folder}/{NAME}"
        file = self._started().folder / name
        problem: Exception = DamagedCheckpointError("no process has its manifest")
        if file.exists():
            try:
                return parse_manifest(file.read_bytes(), str(file))
            except (DamagedCheckpointError, OSError) as error:
                problem = error
        for peer in (self._peers[i] for i in entry.manifest_holders if i in self._peers):
            try:
                return parse_manifest(peer.get(name, 0, peer.size(name)), f"{name} of {peer.index}")
            except (DamagedCheckpointError, TransferError, OSError) as error:
                problem = error
        raise problem

    def _names(self) -> list[tuple[int, int]]:
        """Returns step and life of the checkpoints in the folder."""
        folder = self._started().folder
        found = (_STEP.fullmatch(entry.name) for entry in folder.iterdir())
        return [(int(name[1]), int(name[2])) for name in found if name is not None]

    def _is_committed(self, name: tuple[int, int]) -> bool:
        return (self._started().folder / f"{name[0]}-{name[1]}" / NAME).exists()

    def _remove(self, is_old: Callable[[tuple[int, int]], bool]) -> None:
        for step, life in self._names():
            # A newer life may have started: this process was stopped for a while.
            if life <= self._started().life_number and is_old((step, life)):
                folder = self._started().folder / f"{step}-{life}"
                try:
                    (folder / NAME).unlink(missing_ok=True)
                    remove_folder(folder)
                except OSError:  # another process of this host was faster
                    shutil.rmtree(folder, ignore_errors=True)

    def _started(self) -> LocalSaveSettings:
        if self._settings is None:
            raise RuntimeError("Call LocalTier.start first.")
        return self._settings


def _buddy(index: int, places: list[str]) -> int | None:
    """Returns the next process whose files are elsewhere; None if there is none."""
    after = [*range(index + 1, len(places)), *range(index)]
    return next((other for other in after if places[other] != places[index]), None)


def _entry(name: str, answers: list[Mapping[str, Any]]) -> LocalEntry | None:
    """Combines the files that all processes have of a checkpoint; None if it is not committed."""
    step, life = map(int, name.split("-"))
    holders: dict[int, list[int]] = {}
    processes, with_manifest = 0, []
    for index, answer in enumerate(answers):
        held = answer.get(name)
        if held is None:
            continue
        if held["manifest"]:
            with_manifest.append(index)
        for owner in held["owners"]:
            holders.setdefault(owner, []).append(index)
        processes = max(processes, held["processes"])
    if not with_manifest:
        return None
    missing = sorted(set(range(processes)) - holders.keys())
    problem = None
    if missing or not processes:
        problem = f"the shards of process {missing[0] if missing else 0} are on no host"
    found = {owner: tuple(indices) for owner, indices in holders.items()}
    return LocalEntry(step, life, None, problem, found, tuple(with_manifest))
