"""One of two processes that save and restore together; `test_peers.py` starts them.

    python -m tests.runtime.peers ADDRESS INDEX FOLDER STORY

Each step of the story writes a line of JSON to standard output.
"""

from __future__ import annotations

import json
import logging
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import jax

PROCESSES = 2


def main(address: str, index: int, folder: Path, story: str) -> None:
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.config.update("jax_num_cpu_devices", 2)
    jax.distributed.initialize(address, num_processes=PROCESSES, process_id=index)
    {"durable": Story, "local": LocalStory}[story](index, folder).tell()


class Story:
    """What the two processes do, in order."""

    def __init__(self, index: int, folder: Path) -> None:
        from dovetail.runtime import Checkpointer, open_agreement, take_life

        self.index, self.folder, self.opens, self.bytes_read = index, folder, 0, 0
        self.agreement = open_agreement()
        self.life = take_life(folder / "lives") if index == 0 else None
        self.config = Checkpointer.Config(keep=10, deadline_seconds=60)

    def tell(self) -> None:
        self.say("saved", self.save(1) and self.save(2))
        self.say("restored", self.restored())
        self.say("bytes read", self.bytes_read)
        self.damage_own_file(step=2)
        self.say("restored after damage", self.restored())
        self.say("one cannot write", self.save_where_one_fails(3))
        self.say("saved again", self.save(4))
        self.say("one stays away", self.save_where_one_stays_away(5))
        self.say("readable", self.opened().steps())
        self.agreement.gather("the end", None, 60)

    def say(self, name: str, value: Any) -> None:
        print(json.dumps({name: value}), flush=True)

    def opened(self, **values: Any) -> Any:
        checkpointer = self.config.clone(**values).build()
        checkpointer.open(self.folder / "checkpoints")
        checkpointer.start(self.agreement, self.life)
        # Topics are unique in the life of a run, which has only one checkpointer elsewhere.
        self.opens += 1
        checkpointer._rounds = self.opens * 100
        return checkpointer

    def state(self, step: int) -> Any:
        import numpy as np
        from jax.sharding import AxisType, NamedSharding, PartitionSpec

        mesh = jax.make_mesh((4,), ("x",), (AxisType.Auto,))
        values = np.random.default_rng(step).normal(size=(4, 64, 64)).astype(np.float32)

        def place(array: np.ndarray, *axes: str) -> jax.Array:
            sharding = NamedSharding(mesh, PartitionSpec(*axes))
            return jax.make_array_from_callback(array.shape, sharding, lambda i: array[i])

        copied = np.random.default_rng(step).normal(size=(8, 64)).astype(np.float32)
        return {
            "params": {"copied": place(copied), "w": place(values, "x")},
            "step": place(np.int32(step)),
        }

    def save(self, step: int) -> bool:
        checkpointer = self.opened()
        checkpointer.save(step, self.state(step))
        return bool(checkpointer.finish())

    def restored(self) -> Any:
        import numpy as np

        like = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), self.state(0)
        )
        step, state = self.counted(self.opened()).restore(like)
        expected = self.state(step)
        pairs = zip(jax.tree.leaves(state), jax.tree.leaves(expected), strict=True)
        same = [
            np.array_equal(a.data, b.data)
            for left, right in pairs
            for a, b in zip(left.addressable_shards, right.addressable_shards, strict=True)
        ]
        return [step, all(same)]

    def counted(self, checkpointer: Any) -> Any:
        """Counts the bytes that this process reads."""
        store = checkpointer._store
        read_arrays = store.read_arrays

        def counting(*arguments: Any) -> Any:
            arrays = read_arrays(*arguments)
            shards = [shard for array in arrays.values() for shard in array.addressable_shards]
            self.bytes_read = sum(shard.data.nbytes for shard in shards)
            return arrays

        store.read_arrays = counting
        return checkpointer

    def damage_own_file(self, step: int) -> None:
        """Process 1 damages the data that only it reads."""
        if self.index == 1:
            folder = self.folder / "checkpoints" / f"{step}-1" / "0" / "ocdbt.process_1"
            file = max(folder.rglob("*"), key=lambda path: path.stat().st_size * path.is_file())
            # The end of the file can be metadata that nobody reads again.
            file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
        self.agreement.gather("damaged", None, 60)

    def save_where_one_fails(self, step: int) -> Any:
        from dovetail.runtime.checkpoints import orbax_store

        def fail(_: Any) -> None:
            raise OSError(28, "No space left on device")

        finish = orbax_store.GroupWriter.finish
        if self.index == 1:
            orbax_store.GroupWriter.finish = fail
        started = time.monotonic()
        saved = self.save(step)
        orbax_store.GroupWriter.finish = finish
        return [saved, time.monotonic() - started < 30]

    def save_where_one_stays_away(self, step: int) -> Any:
        if self.index == 1:
            self.opened()
            return None
        checkpointer = self.opened(deadline_seconds=2)
        checkpointer.save(step, {"w": jax.numpy.ones(3)})
        return [checkpointer.finish(), [fault.message for fault in checkpointer.take_faults()]]


class LocalStory(Story):
    """The two processes save to folders of their own, as on two hosts."""

    def __init__(self, index: int, folder: Path) -> None:
        from dovetail.runtime.checkpoints.local.tier import LocalTier

        super().__init__(index, folder)
        places = str(folder / "host-{process}")
        local = LocalTier.Config(every=2, keep=3, folder=places)
        self.config = self.config.clone(every=10, local=local)
        self.checkpointer: Any = None

    def opened(self, **values: Any) -> Any:
        """As after a restart of both processes: nobody asks a server of before."""
        if self.checkpointer is not None:
            self.checkpointer.close()
        agreement, self.agreement = self.agreement, _Renamed(self.agreement, self.opens)
        self.checkpointer = super().opened(**values)
        self.agreement = agreement
        return self.checkpointer

    def tell(self) -> None:
        self.say("saved", self.save(10) and self.save(12) and self.save(14))
        self.say("restored", self.restored())
        self.damage_manifest(14)
        self.say("restored with a damaged manifest", self.restored())
        self.lose_disk()
        self.say("restored without a disk", self.restored())
        self.say("saved again", self.save(16))
        self.flip_a_bit_of_process_1(here=1)
        self.say("restored after a flip", self.restored())
        self.flip_a_bit_of_process_1(here=0)
        self.say("restored after two flips", self.restored())
        self.say("no copy", self.save_where_no_copy_is_made(18))
        self.agreement.gather("the end", None, 60)

    def damage_manifest(self, step: int) -> None:
        if self.index == 1:
            (file,) = (self.folder / "host-1").glob(f"*/{step}-*/manifest.json")
            file.write_text(file.read_text()[:-40])
        self.agreement.gather("manifest damaged", None, 60)

    def lose_disk(self) -> None:
        if self.index == 1:
            shutil.rmtree(self.folder / "host-1")
        self.agreement.gather("disk lost", None, 60)

    def flip_a_bit_of_process_1(self, here: int) -> None:
        """Flips one in the data that process 1 wrote, in the copy on one host."""
        if self.index == here:
            (file,) = (self.folder / f"host-{here}").glob("*/16-*/1.shards")
            content = bytearray(file.read_bytes())
            content[5000] ^= 4
            file.write_bytes(content)
        self.agreement.gather(f"flipped on {here}", None, 60)

    def save_where_no_copy_is_made(self, step: int) -> Any:
        from dovetail.runtime.checkpoints.local.transfer import Peer

        def fail(*_: Any) -> None:
            raise OSError(113, "No route to host")

        checkpointer = self.opened()
        if self.index == 0:
            Peer.put = fail  # type: ignore[method-assign]
        checkpointer.save(step, self.state(step))
        checkpointer.finish()
        return [fault.message for fault in checkpointer.take_faults()]


class _Renamed:
    """An agreement with other topics: in a run, each life has a server of its own."""

    def __init__(self, agreement: Any, number: int) -> None:
        self._agreement, self._number = agreement, number

    def __getattr__(self, name: str) -> Any:
        return getattr(self._agreement, name)

    def gather(self, topic: str, value: Any, seconds: float) -> Any:
        return self._agreement.gather(f"{self._number}: {topic}", value, seconds)

    def withdraw(self, topics: str, reason: str) -> None:
        self._agreement.withdraw(f"{self._number}: {topics}", reason)


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4])
