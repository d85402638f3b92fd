"""The local tier: shards on this host's disk are verified, and fit any mesh."""

import contextlib
import logging
import random
import shutil
import socket
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from dovetail.config import ConfigError
from dovetail.runtime import Agreement, Checkpointer, abstract_state, take_life
from dovetail.runtime.checkpoints.local.tier import LocalTier
from dovetail.runtime.checkpoints.local.transfer import FileServer, Peer, TransferError
from dovetail.runtime.checkpoints.manifest import DamagedCheckpointError
from dovetail.runtime.checkpoints.shards import save
from dovetail.runtime.checkpoints.shards.assignment import assign_shards
from dovetail.runtime.checkpoints.shards.shard_file import (
    ShardWriter,
    new_shard_file,
    verify_file,
)


def placed(values: Any, mesh: tuple[int, ...], *axes: str | None) -> jax.Array:
    names = ("data", "model")[: len(mesh)]
    devices = jax.devices()[: int(np.prod(mesh))]
    shape = jax.make_mesh(mesh, names, (AxisType.Auto,) * len(mesh), devices=devices)
    return jax.device_put(values, NamedSharding(shape, PartitionSpec(*axes)))


def state(step: int, mesh: tuple[int, ...] = (4, 2)) -> dict[str, Any]:
    """A state with a sharded, a replicated, a partly replicated and a narrow array."""
    generator = np.random.default_rng(step)
    last = "model" if len(mesh) > 1 else None
    return {
        "params": {
            "w": placed(generator.normal(size=(8, 12)).astype(np.float32), mesh, "data", last),
            "v": placed(generator.normal(size=(4, 12)).astype(np.float32), mesh, None, last),
            "b": placed(jnp.asarray(generator.normal(size=5), jnp.bfloat16), mesh),
        },
        "flags": placed(generator.integers(0, 2, 8) > 0, mesh, "data"),
        "step": placed(np.int32(step), mesh),
    }


def opened(run: Path, **values: Any) -> Checkpointer:
    local = LocalTier.Config(every=2, keep=2, **values)
    checkpointer: Checkpointer = Checkpointer.Config(every=10, local=local).build()
    checkpointer.open(run / "checkpoints")
    checkpointer.start(Agreement(), take_life(run / "lives"))
    return checkpointer


def saved(run: Path, *steps: int, **values: Any) -> Checkpointer:
    checkpointer = opened(run, **values)
    for step in steps:
        checkpointer.save(step, state(step))
    assert checkpointer.finish()
    assert not checkpointer.take_faults()
    return checkpointer


def restored(checkpointer: Checkpointer, mesh: tuple[int, ...] = (4, 2)) -> int | None:
    """Returns the step that was restored, once it is what was saved."""
    like = state(0, mesh)
    found = checkpointer.restore(abstract_state(like, jax.tree.map(lambda x: x.sharding, like)))
    if found is None:
        return None
    step, got = found
    jax.tree.map(np.testing.assert_array_equal, got, state(step, mesh))
    jax.tree.map(
        lambda a, b: a.sharding == b.sharding or pytest.fail("another sharding"), got, like
    )
    return step


def files(folder: Path, step: int) -> list[Path]:
    return list((folder / "checkpoints" / "local").glob(f"*/{step}-*/*.shards"))


def flip(file: Path, position: int) -> None:
    content = bytearray(file.read_bytes())
    content[position] ^= 1 << (position % 8)
    file.write_bytes(content)


@pytest.mark.parametrize("mesh", [(4, 2), (2, 4), (8,), (1,)], ids=str)
def test_a_local_save_is_newer_and_fits_any_mesh(tmp_path: Path, mesh: tuple[int, ...]) -> None:
    saved(tmp_path, 10, 12, 14)
    assert restored(opened(tmp_path), mesh) == 14


def test_old_ones_are_removed(tmp_path: Path) -> None:
    saved(tmp_path, 2, 4, 6, 8)
    steps = sorted(p.name for p in (tmp_path / "checkpoints" / "local").glob("*/*-*"))
    assert steps == ["6-1", "8-1"]


def test_the_last_save_goes_to_both_tiers(tmp_path: Path) -> None:
    checkpointer = saved(tmp_path, 2)
    checkpointer.save_last(5, state(5))
    assert checkpointer.finish()
    assert checkpointer.steps() == [5]
    (file,) = files(tmp_path, 5)
    written = file.stat().st_mtime_ns
    checkpointer.save_last(5, state(5))
    assert checkpointer.finish()
    assert file.stat().st_mtime_ns == written, "it is there"


def test_the_last_save_goes_to_the_run_folder_though_the_disk_is_gone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    checkpointer = saved(tmp_path, 2, 4, folder=str(tmp_path / "disk"))
    shutil.rmtree(tmp_path / "disk")
    with caplog.at_level(logging.WARNING, "dovetail"):
        checkpointer.save_last(4, state(4))
        assert checkpointer.finish()
    assert checkpointer.steps() == [4]
    assert "Saving step 4 failed" in caplog.text


def test_a_finished_run_that_is_restarted_saves_nothing(tmp_path: Path) -> None:
    finished = saved(tmp_path, 2)
    finished.save_last(4, state(4))
    assert finished.finish()
    checkpointer = opened(tmp_path)
    assert restored(checkpointer) == 4
    (file,) = files(tmp_path, 4)
    checkpointer.save_last(4, state(4))
    assert checkpointer.finish()
    assert files(tmp_path, 4) == [file], "that of the first life"


def test_no_flipped_bit_is_restored(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Any byte of the file: the next older checkpoint is used instead."""
    saved(tmp_path, 10, 12)
    (file,) = files(tmp_path, 12)
    intact = file.read_bytes()
    for position in random.Random(1).sample(range(len(intact)), 25):
        flip(file, position)
        # The first eight bytes only say what the file is; nothing is read from them.
        assert restored(opened(tmp_path)) == (12 if position < 8 else 10), position
        file.write_bytes(intact)
    assert "is damaged" in caplog.text
    assert restored(opened(tmp_path)) == 12


@pytest.mark.parametrize("damage", ["cut off", "empty", "gone", "manifest", "other life"])
def test_other_damage_is_noticed(tmp_path: Path, damage: str) -> None:
    saved(tmp_path, 10, 12)
    (file,) = files(tmp_path, 12)
    if damage == "cut off":
        file.write_bytes(file.read_bytes()[:-100])
    elif damage == "empty":
        file.write_bytes(b"")
    elif damage == "gone":
        file.unlink()
    elif damage == "manifest":
        flip(file.parent / "manifest.json", 40)
    else:
        file.parent.rename(file.parent.with_name("12-2"))
    assert restored(opened(tmp_path)) == 10


def test_another_run_in_the_same_place_is_not_restored(tmp_path: Path) -> None:
    shared = str(tmp_path / "disk")
    saved(tmp_path / "one", 2, folder=shared)
    assert restored(opened(tmp_path / "two", folder=shared)) is None
    assert restored(opened(tmp_path / "one", folder=shared)) == 2


def test_what_came_after_the_restored_step_is_removed(tmp_path: Path) -> None:
    """A run that went back must not find steps of the future it gave up."""
    saved(tmp_path, 2, 4)
    (file,) = files(tmp_path, 4)
    flip(file, len(file.read_bytes()) // 3)
    checkpointer = opened(tmp_path)
    assert restored(checkpointer) == 2
    checkpointer.save(6, state(6))
    assert checkpointer.finish()
    assert not files(tmp_path, 4)
    assert restored(opened(tmp_path)) == 6


def test_a_state_that_is_not_finite_is_not_saved(tmp_path: Path) -> None:
    checkpointer = saved(tmp_path, 2)
    bad = state(4)
    bad["params"]["w"] = bad["params"]["w"].at[0, 0].set(jnp.nan)
    checkpointer.save(4, bad)
    checkpointer.finish()
    (fault,) = checkpointer.take_faults()
    assert "params/w is not finite after step 4" in str(fault)
    assert restored(opened(tmp_path)) == 2


def test_a_full_disk_does_not_stop_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    checkpointer = saved(tmp_path, 2)

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched, caplog.at_level(logging.WARNING, "dovetail"):
        patched.setattr(ShardWriter, "add", fail)
        checkpointer.save(4, state(4))
        checkpointer.finish()
    assert "No space left on device" in caplog.text
    checkpointer.save(6, state(6))
    checkpointer.finish()
    assert restored(opened(tmp_path)) == 6


def test_a_state_that_was_copied_in_part_is_not_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpointer = saved(tmp_path, 2)

    def in_part(*arguments: Any) -> Any:
        yield next(copies(*arguments))
        raise RuntimeError("the device is gone")

    copies = save._copies
    with monkeypatch.context() as patched:
        patched.setattr(save, "_copies", in_part)
        checkpointer.save(4, state(4))
        checkpointer.finish()
    (fault,) = checkpointer.take_faults()
    assert "the device is gone" in str(fault)
    assert restored(opened(tmp_path)) == 2


def test_host_memory_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slices wait while the host has as many bytes as it may, even if the disk is slow."""
    held = []

    class Recorded(save._BoundedQueue):
        def put(self, item: Any, size: int) -> None:
            super().put(item, size)
            held.append(self._bytes)

    add = ShardWriter.add
    slowly = lambda *arguments: (time.sleep(0.02), add(*arguments))  # noqa: E731
    monkeypatch.setattr(save, "_BoundedQueue", Recorded)
    monkeypatch.setattr(ShardWriter, "add", slowly)
    local = LocalTier.Config(every=2)
    checkpointer = Checkpointer.Config(every=10, local=local, max_host_bytes=64).build()
    checkpointer.open(tmp_path / "checkpoints")
    checkpointer.start(Agreement(), take_life(tmp_path / "lives"))
    checkpointer.save(2, state(2))
    assert checkpointer.finish()
    assert len(held) > 20, "the arrays have about 500 bytes"
    assert max(held) <= 64
    assert restored(opened(tmp_path)) == 2


@pytest.mark.parametrize("max_bytes", [1, 16, 48, 1000])
def test_large_shards_are_cut_into_slices(max_bytes: int) -> None:
    """The slices of an array cover it once, and none is larger than the limit if it can be cut."""
    values = np.arange(8 * 12, dtype=np.float32).reshape(8, 12)
    arrays = {
        "w": placed(values, (2, 2), "data", "model"),
        "v": placed(values, (2, 2), None, "model"),
        "s": placed(np.float32(7), (2, 2)),
    }
    (slices,) = assign_shards(arrays, max_bytes).values()
    for path in ("w", "v"):
        found = np.full((8, 12), -1, np.float32)
        own = [each for each in slices if each.path == path]
        for each, data in save._copies(arrays, own):
            here = tuple(slice(s, s + n) for s, n in zip(each.start, data.shape, strict=True))
            assert (found[here] == -1).all(), "written once"
            found[here] = data
            assert data.nbytes <= max(max_bytes, 4 * min(data.shape)) or data.shape[each.axis] == 1
        np.testing.assert_array_equal(found, values)
    assert [each.path for each in slices].count("s") == 1


def test_what_the_disk_changed_is_noticed_before_the_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The host computes the digests of what it reads back; checksums of blocks are of the host."""
    checkpointer = saved(tmp_path, 2)
    add = ShardWriter.add

    def add_damaged(self: ShardWriter, path: str, shape: Any, start: Any, data: Any) -> None:
        damaged = np.where(data == data.max(), 0, data) if path == "params/v" else data
        add(self, path, shape, start, damaged)

    with monkeypatch.context() as patched, caplog.at_level(logging.WARNING, "dovetail"):
        patched.setattr(ShardWriter, "add", add_damaged)
        checkpointer.save(4, state(4))
        checkpointer.finish()
    assert "params/v is not stored as it is on the devices" in caplog.text
    assert restored(opened(tmp_path)) == 2


def test_every_shard_is_written_once() -> None:
    arrays = {"w": state(0)["params"]["w"], "b": state(0)["params"]["b"]}
    (parts,) = assign_shards(arrays).values()
    assert sorted((part.path, part.start) for part in parts) == [
        ("b", (0,)),
        *(("w", (row, column)) for row in (0, 2, 4, 6) for column in (0, 6)),
    ]


def test_a_file_that_is_none_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "0.shards"
    file.write_bytes(b"nothing of the kind" * 10)
    with pytest.raises(DamagedCheckpointError, match="cut off, or no file of shards"):
        verify_file(file)


def loopback_addresses() -> list[str]:
    """Returns the addresses of the loopback interface; a container may have no IPv6."""
    found = ["127.0.0.1"]
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET6) as probe:
        probe.bind(("::1", 0))
        found.append("::1")
    return found


@pytest.mark.parametrize("host", loopback_addresses())
def test_a_file_goes_to_a_peer_and_back_by_either_protocol(tmp_path: Path, host: str) -> None:
    """The server listens only at the address that it is given."""
    file = tmp_path / "0.shards"
    with new_shard_file(file, {"step": 1}) as writer:
        writer.add("w", (3,), (0,), np.arange(3, dtype=np.float32))
    server = FileServer(tmp_path / "peer", host, "token", verify_file)
    try:
        assert server._server.server_address[0] == host
        peer = Peer(1, (host, server.port), "token", 10)
        peer.put(file, "1-1/0.shards")
        assert peer.get("1-1/0.shards", 0, peer.size("1-1/0.shards")) == file.read_bytes()
        flip(file, 10)
        with pytest.raises(TransferError, match=r"the copy was not stored: .* is damaged"):
            peer.put(file, "2-1/0.shards")
        assert not (tmp_path / "peer" / "2-1" / "0.shards").exists()
        with pytest.raises(TransferError):
            Peer(1, (host, server.port), "another token", 10).get("1-1/0.shards", 0, 1)
        with pytest.raises(TransferError):
            peer.get("../../etc/passwd", 0, 1)
    finally:
        server.close()


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"checkpointer\.local\.folder: .* cannot be made"):
        opened(tmp_path, folder=str(tmp_path / "file" / "under"))


@pytest.mark.parametrize(
    ("steps", "verified", "left"),
    [
        ((10, 12, 14), 12, 12),
        ((10, 12, 14), 10, 10),  # in the run folder
        ((12, 14), 5, 12),  # the oldest stays
        ((12, 14), 0, None),  # the run can begin again
    ],
)
def test_local_checkpoints_since_the_last_good_check_are_removed(
    tmp_path: Path, steps: tuple[int, ...], verified: int, left: int | None
) -> None:
    checkpointer = saved(tmp_path, *steps)
    checkpointer.distrust(verified)
    assert restored(checkpointer) == left
    checkpointer.close()
    assert restored(opened(tmp_path)) == left
