"""Damaged, copied, suspect and bad checkpoints are noticed, and never trained on."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from dovetail.config import ConfigError
from dovetail.runtime import Agreement, BadState, Checkpointer, FencedError, suspects, take_life
from dovetail.runtime.chaos.damage import ZSTANDARD
from dovetail.runtime.checkpoints import resharding, saving
from dovetail.runtime.checkpoints.layout import divide, host_bytes
from dovetail.runtime.checkpoints.manifest import NAME


def state(step: int, scale: float = 1.0) -> dict[str, Any]:
    """Random values do not compress: a flipped bit in their file is a flipped bit in them."""
    values = np.random.default_rng(step).normal(0, scale, (6, 16, 32)).astype(np.float32)
    return {
        "params": {"stack/weight": jnp.asarray(values), "norm/scale": jnp.ones(7)},
        "optimizer": {"empty": jnp.zeros((0, 3)), "mu": jnp.asarray(values * 0.1)},
        "step": jnp.int32(step),
    }


def like(sharding: Any = None) -> Any:
    sharding = sharding or jax.sharding.SingleDeviceSharding(jax.devices()[0])
    return jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), state(0)
    )


def opened(folder: Path, **values: Any) -> Checkpointer:
    checkpointer = Checkpointer.Config(**values).build()
    checkpointer.open(folder)
    return checkpointer


def save_steps(folder: Path, *steps: int, **values: Any) -> None:
    saving = opened(folder, **values)
    for step in steps:
        saving.save(step, state(step))
    assert saving.finish()


def same(left: Any, right: Any) -> bool:
    return all(
        np.asarray(a).tobytes() == np.asarray(b).tobytes()
        for a, b in zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True)
    )


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved")
    save_steps(folder, 1, 2)
    return folder


@pytest.fixture
def copy(saved: Path, tmp_path: Path) -> Path:
    shutil.copytree(saved, tmp_path / "checkpoints")
    return tmp_path / "checkpoints"


def files(checkpoint: Path) -> Iterator[Path]:
    yield from sorted(file for file in checkpoint.rglob("*") if file.is_file())


def test_no_flipped_bit_is_loaded(copy: Path) -> None:
    """A flip goes unnoticed only where it changes nothing of what is read."""
    random, noticed = np.random.default_rng(0), 0
    every = [file for file in files(copy / "2") if file.stat().st_size]
    sizes = np.array([file.stat().st_size for file in every])
    for _ in range(24):
        file = every[random.choice(len(every), p=sizes / sizes.sum())]
        intact = file.read_bytes()
        damaged = bytearray(intact)
        damaged[random.integers(len(damaged))] ^= 1 << int(random.integers(8))
        file.write_bytes(damaged)
        step, restored = opened(copy).restore(like())
        assert same(restored, state(step)), f"{file} was damaged, and loaded"
        noticed += step == 1
        file.write_bytes(intact)
    assert noticed >= 12
    assert opened(copy).restore(like())[0] == 2


def test_every_bit_of_the_array_data_counts(copy: Path, caplog: pytest.LogCaptureFixture) -> None:
    flipped = 0
    for file in (copy / "2").rglob("d/*"):
        frames = [bytearray(frame) for frame in file.read_bytes().split(ZSTANDARD)]
        for frame in frames:
            if len(frame) > 4096:
                frame[len(frame) // 2] ^= 1
                flipped += 1
        file.write_bytes(ZSTANDARD.join(frames))
    assert flipped == 2, "the parameter and its moment"
    with caplog.at_level(logging.WARNING, "dovetail"):
        step, restored = opened(copy).restore(like())
        _, arrays = opened(copy).restore_parameters(like()["params"])
    assert step == 1
    assert same(restored, state(1))
    assert same(arrays, state(1)["params"]), "also to generate and export"
    assert "The checkpoint of step 2 cannot be used" in caplog.text


@pytest.mark.parametrize("damage", ["truncated", "empty", "removed", "zeroed"])
def test_damaged_files_are_noticed(copy: Path, damage: str) -> None:
    for file in list(files(copy / "2")):
        content = file.read_bytes()
        if damage == "removed":
            file.unlink()
        else:
            left = {"truncated": content[: len(content) // 2], "empty": b""}
            file.write_bytes(left.get(damage, bytes(len(content))))
        step, restored = opened(copy).restore(like())
        assert same(restored, state(step)), f"{file} was {damage}"
        file.write_bytes(content)
    assert opened(copy).restore(like())[0] == 2


def test_a_copy_under_another_step_is_noticed(copy: Path, caplog: pytest.LogCaptureFixture) -> None:
    shutil.copytree(copy / "1", copy / "7")
    with caplog.at_level(logging.WARNING, "dovetail"):
        assert opened(copy).restore(like())[0] == 2
    assert "is a copy of the checkpoint of step 1" in caplog.text


def test_a_state_of_another_step_is_noticed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    saving = opened(tmp_path)
    saving.save(1, state(1))
    saving.save(9, state(8))
    assert saving.finish()
    with caplog.at_level(logging.WARNING, "dovetail"):
        assert opened(tmp_path).restore(like())[0] == 1
    assert "its state is that of step 8" in caplog.text


def test_without_its_manifest_there_is_no_checkpoint(copy: Path) -> None:
    (copy / "2" / NAME).unlink()
    assert opened(copy).steps() == [1]
    assert opened(copy).restore(like())[0] == 1
    save_steps(copy, 2)
    assert opened(copy).restore(like())[0] == 2, "the leftover is no obstacle"


def test_a_state_that_is_not_finite_is_not_saved(tmp_path: Path) -> None:
    saving = opened(tmp_path)
    saving.save(1, state(1))
    for name in ("params", "optimizer"):
        bad = state(2)
        path = next(path for path in bad[name] if bad[name][path].size)
        bad[name][path] = bad[name][path].at[0].set(jnp.nan)
        saving.save(2, bad)
        assert not saving.finish()
        message = f"{name}/{path} is not finite after step 2."
        assert saving.take_faults() == [BadState(2, message)]
        assert [entry.name for entry in tmp_path.iterdir()] == ["1"]
    assert saving.take_faults() == []


def test_what_the_disk_changed_is_noticed_after_the_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    save_steps(tmp_path, 1)
    sums_on_disk = saving.sums_on_disk

    def after_damage(folder: Path, *arguments: Any) -> Any:
        data = max(folder.rglob("d/*"), key=lambda file: file.stat().st_size)
        content = bytearray(data.read_bytes())
        content[len(content) // 2] ^= 4
        data.write_bytes(content)
        return sums_on_disk(folder, *arguments)

    monkeypatch.setattr(saving, "sums_on_disk", after_damage)
    checkpointer = opened(tmp_path, keep=1)
    checkpointer.save(2, state(2))
    with caplog.at_level(logging.WARNING, "dovetail"):
        assert not checkpointer.finish()
    assert "is not on disk as it was saved" in caplog.text
    assert opened(tmp_path).steps() == [1], "the good one is kept, although keep=1"
    assert (tmp_path / "damaged-2").is_dir()


def test_a_large_array_is_saved_in_slices(tmp_path: Path) -> None:
    """At most 4 KiB of the state are on the host at a time; the stack has 12 KiB."""
    save_steps(tmp_path, 3, max_host_bytes=4096)
    groups = sorted(entry.name for entry in (tmp_path / "3").iterdir() if entry.is_dir())
    assert len(groups) >= 6
    step, restored = opened(tmp_path).restore(like())
    assert step == 3
    assert same(restored, state(3))


@pytest.mark.parametrize("max_bytes", [2048, 4096, 2**30])
def test_any_mesh_reads_what_another_saved(tmp_path: Path, max_bytes: int) -> None:
    def sharded(axes: tuple[int, ...], spec: P) -> NamedSharding:
        names = ("x", "y")[: len(axes)]
        return NamedSharding(jax.make_mesh(axes, names, (AxisType.Auto,) * len(axes)), spec)

    def place(tree: Any, sharding: NamedSharding) -> Any:
        whole = NamedSharding(sharding.mesh, P())
        return jax.tree.map(lambda x: jax.device_put(x, sharding if x.ndim == 3 else whole), tree)

    saving = opened(tmp_path, max_host_bytes=max_bytes)
    saving.save(5, place(state(5), sharded((8,), P(None, "x"))))
    assert saving.finish()
    for wanted in (sharded((2, 4), P(None, "x", "y")), sharded((2,), P("x"))):
        structs = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding),
            place(state(0), wanted),
        )
        _, restored = opened(tmp_path).restore(structs)
        assert same(restored, state(5))
        assert restored["params"]["stack/weight"].sharding == wanted


@pytest.mark.parametrize(
    ("shape", "spec", "sliced_axis", "expected"),
    [
        ((4, 8), P("fsdp"), None, P(("fsdp", "data"), ())),
        ((2, 8), P("fsdp"), None, P(("fsdp",), ("data",))),
        ((8, 8), P(None, "data"), None, P(None, "data")),
        ((3, 5), P(), None, P()),
        ((4, 8), P("fsdp"), 0, P((), ("fsdp", "data"))),
    ],
    ids=["copies", "another axis", "no copies", "does not divide", "slices"],
)
def test_copies_are_read_once(
    shape: Any, spec: P, sliced_axis: int | None, expected: P, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if each row of the mesh were a process."""
    monkeypatch.setattr(resharding, "_process_axes", lambda mesh: ["data"])
    mesh = jax.make_mesh((2, 2), ("data", "fsdp"), (AxisType.Auto,) * 2)
    array = jnp.arange(float(np.prod(shape))).reshape(shape)
    sharding = NamedSharding(mesh, spec)
    struct = jax.ShapeDtypeStruct(shape, array.dtype, sharding=sharding)
    reading = resharding.read_sharding(struct, sliced_axis)
    assert reading == NamedSharding(mesh, expected)
    (found,) = resharding.reshard({"w": jax.device_put(array, reading)}, {"w": struct}).values()
    assert found.sharding == sharding
    assert same(found, array)


def test_copies_of_offloaded_arrays_are_not_gathered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resharding, "_process_axes", lambda mesh: ["data"])
    mesh = jax.make_mesh((2,), ("data",), (AxisType.Auto,))
    sharding = NamedSharding(mesh, P(), memory_kind="pinned_host")
    struct = jax.ShapeDtypeStruct((4, 8), jnp.float32, sharding=sharding)
    assert resharding.read_sharding(struct, None) == sharding


def test_groups_are_as_small_as_asked_for() -> None:
    leaves = {"a": jnp.zeros((10, 100)), "b": jnp.zeros(3), "c": jnp.zeros((1, 5000))}
    pieces = divide(leaves, 1000)
    by_group: dict[int, int] = {}
    for piece in pieces:
        rows = leaves[piece.path].shape[piece.axis]
        size = host_bytes(leaves[piece.path]) * (piece.end - piece.begin) // rows
        by_group[piece.group] = by_group.get(piece.group, 0) + size
    assert max(by_group.values()) <= 1000
    for path, leaf in leaves.items():
        own = [piece for piece in pieces if piece.path == path]
        assert own[0].begin == 0
        assert [piece.begin for piece in own[1:]] == [piece.end for piece in own[:-1]]
        assert own[-1].end == leaf.shape[own[-1].axis]


def test_checkpoints_are_kept_by_number_and_by_step(tmp_path: Path) -> None:
    save_steps(tmp_path, 1, 2, 3, 4, 5, 6, keep=2, keep_every=3)
    assert opened(tmp_path).steps() == [3, 5, 6]


def test_a_state_of_another_optimizer_is_refused(saved: Path) -> None:
    wanted = like()
    wanted["optimizer"]["nu"] = wanted["optimizer"].pop("mu")
    with pytest.raises(ConfigError, match=r"lacks optimizer/nu .*it has optimizer/mu"):
        opened(saved).restore(wanted)


def test_all_shapes_that_differ_are_listed(saved: Path) -> None:
    struct = jax.ShapeDtypeStruct((2, 2), jnp.float32)
    wanted = {"stack/weight": struct, "norm/scale": struct}
    with pytest.raises(ConfigError, match=r"(?s)norm/scale.*\(7,\).*stack/weight.*\(6, 16, 32\)"):
        opened(saved).restore_parameters(wanted)


def test_an_older_life_cannot_commit(tmp_path: Path) -> None:
    old = opened(tmp_path / "checkpoints")
    old.start(Agreement(), take_life(tmp_path / "lives"))
    old.save(1, state(1))
    assert old.finish()
    new = take_life(tmp_path / "lives")
    assert new.number == 2
    with pytest.raises(FencedError, match=r"Life 2 of this run has started on .*, so life 1"):
        old.save(2, state(2))
    assert opened(tmp_path / "checkpoints").steps() == [1]


def test_a_removed_run_folder_ends_the_run(tmp_path: Path) -> None:
    checkpointer = opened(tmp_path / "run" / "checkpoints")
    checkpointer.start(Agreement(), take_life(tmp_path / "run" / "lives"))
    shutil.rmtree(tmp_path / "run")
    with pytest.raises(FencedError, match=r"run was removed or replaced while life 1 trained"):
        checkpointer.save(1, state(1))


def test_a_checkpoint_that_kills_twice_is_suspect(tmp_path: Path) -> None:
    lives = tmp_path / "lives"

    def live(restored: int, reached: int, ended: str | None = None) -> set[int]:
        life = take_life(lives)
        found = suspects(lives, life.number)
        life.resumed_from(restored)
        life._record(reached=reached)
        if ended:
            life.ended(ended)
        return found

    assert live(40, 41) == set()
    assert live(40, 42) == set()
    assert live(20, 70) == {40}, "two lives died within a few steps of 40"
    assert live(60, 62) == set(), "the last life got far"
    assert live(60, 61, "stopped") == set()
    assert live(60, 61) == set(), "an orderly end is no death"


def test_a_suspect_is_used_only_if_there_is_nothing_else(copy: Path) -> None:
    def restored(steps: set[int]) -> int:
        checkpointer = opened(copy)
        life = take_life(copy.parent / "lives")
        checkpointer.start(Agreement(), life, frozenset(steps))
        return int(checkpointer.restore(like())[0])

    assert restored({2}) == 1
    assert restored({1, 2}) == 2
