"""Damage to the saved files of a run, between two of its lives.

Each function takes the folder of the trial and a source of random numbers.
"""

from __future__ import annotations

import functools
import random
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

from dovetail.runtime.chaos.power_cuts import PowerCuts, write_image
from dovetail.runtime.chaos.surroundings import TRACE

ZSTANDARD = b"\x28\xb5\x2f\xfd"
"""The first bytes of a frame of Zstandard."""


Damage = Callable[[Path, random.Random], None]


class NothingSavedError(Exception):
    """There is nothing to damage."""


def newest_checkpoint(run: Path) -> Path | None:
    """Returns the newest committed checkpoint: in the run folder, or in objects beside it."""
    folders = (run / "checkpoints", run.parent / "objects")
    found = [file.parent for folder in folders for file in folder.glob("[0-9]*/manifest.json")]
    return max(found, key=saved_step, default=None)


def saved_step(checkpoint: Path) -> int:
    """Returns the step that a checkpoint's folder is named after, perhaps with its life."""
    return int(checkpoint.name.partition("-")[0])


def _to_checkpoint(damage: Damage) -> Damage:
    """Wraps a function that takes the folder of the newest checkpoint."""

    @functools.wraps(damage)
    def find_and_damage(trial: Path, choose: random.Random) -> None:
        newest = newest_checkpoint(trial / "run")
        if newest is None:
            raise NothingSavedError("no checkpoint was committed before the fault")
        damage(newest, choose)

    return find_and_damage


def _one_of(files: Iterable[Path], choose: random.Random) -> Path:
    found = sorted(files)
    if not found:
        raise NothingSavedError("nothing was saved before the fault")
    return choose.choice(found)


def _files(checkpoint: Path) -> list[Path]:
    """Returns files that a checkpoint needs, its largest data file first."""
    data = [file for file in checkpoint.rglob("d/*") if file.is_file()]
    largest = sorted(data, key=lambda file: -file.stat().st_size)[:1]
    index = [checkpoint / "0" / name for name in ("manifest.ocdbt", "_METADATA")]
    return [*largest, *index, checkpoint / "manifest.json"]


@_to_checkpoint
def flip(checkpoint: Path, choose: random.Random) -> None:
    """Flips one bit of an array in the largest data file.

    Arrays are Zstandard frames there. The file also has nodes of the index that nothing refers to;
    a flipped bit in one of them changes nothing, so nobody would notice it.
    """
    file = _files(checkpoint)[0]
    content = file.read_bytes()
    longest = max(content.split(ZSTANDARD), key=len)
    begin = content.index(longest)
    _flip_in(file, choose, begin + len(longest) // 4, begin + len(longest) // 4 * 3)


def _flip_in(file: Path, choose: random.Random, begin: int = 0, end: int | None = None) -> None:
    content = bytearray(file.read_bytes())
    content[choose.randrange(begin, end or len(content))] ^= 1 << choose.randrange(8)
    file.write_bytes(content)


@_to_checkpoint
def truncate(checkpoint: Path, choose: random.Random) -> None:
    """Cuts a file in half."""
    file = choose.choice(_files(checkpoint))
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


@_to_checkpoint
def zero(checkpoint: Path, choose: random.Random) -> None:
    """Fills a file with zeros."""
    file = choose.choice(_files(checkpoint))
    file.write_bytes(bytes(file.stat().st_size))


@_to_checkpoint
def delete(checkpoint: Path, choose: random.Random) -> None:
    """Removes a file."""
    choose.choice(_files(checkpoint)).unlink()


@_to_checkpoint
def truncate_of_one(checkpoint: Path, choose: random.Random) -> None:
    """Damages a file that only the last process reads."""
    data = [file for file in checkpoint.rglob("d/*") if "ocdbt.process_" in str(file)]
    last = max((file.parent.parent.name for file in data), default="")
    own = [file for file in data if file.parent.parent.name == last]
    if not own:
        raise NothingSavedError("no process but the first has saved anything before the fault")
    file = max(own, key=lambda file: file.stat().st_size)
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


@_to_checkpoint
def rename(checkpoint: Path, choose: random.Random) -> None:
    """Renames a checkpoint to a later step."""
    step, _, life = checkpoint.name.partition("-")
    checkpoint.rename(checkpoint.with_name(f"{int(step) + choose.randrange(1, 3)}-{life}"))


def lose_host(hosts: Path, choose: random.Random) -> None:
    """Removes everything that one host has on its own disk."""
    shutil.rmtree(_one_of(hosts.glob("host-*"), choose))


def flip_local(hosts: Path, choose: random.Random) -> None:
    """Flips a bit in one copy of the newest shards of one process."""
    _flip_in(_one_of(_newest_local(hosts), choose), choose)


def flip_all_local(hosts: Path, choose: random.Random) -> None:
    """Flips a bit in every copy, so that only an older checkpoint is intact."""
    for file in _newest_local(hosts):
        _flip_in(file, choose)


def _newest_local(hosts: Path) -> list[Path]:
    files = list(hosts.glob("host-*/*/*/*.shards"))
    newest = max((int(file.parent.name.partition("-")[0]) for file in files), default=0)
    return sorted(file for file in files if file.parent.name.startswith(f"{newest}-"))


def truncate_local(hosts: Path, choose: random.Random) -> None:
    """Cuts one copy of the newest shards of one process in half."""
    file = _one_of(_newest_local(hosts), choose)
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def delete_local(hosts: Path, choose: random.Random) -> None:
    """Removes one copy of the newest shards of one process."""
    _one_of(_newest_local(hosts), choose).unlink()


@_to_checkpoint
def flip_object(checkpoint: Path, choose: random.Random) -> None:
    """Flips one bit of the shards of a process in an object store."""
    _flip_in(_one_of(checkpoint.glob("*.shards"), choose), choose)


def cut_power(trial: Path, choose: random.Random) -> None:
    """Replaces the run by one of the images that a power cut at its end may leave."""
    run = trial / "run"
    cuts = PowerCuts(trial / TRACE, trial)
    image = choose.choice(cuts.last())
    if cuts.unknown:
        raise ValueError(f"system calls that are not modelled: {sorted(set(cuts.unknown))}")
    shutil.rmtree(run)
    write_image({path: data for path, data in image.items() if path.startswith("run")}, trial)
