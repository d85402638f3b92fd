"""One of two processes that train together and check their steps; `test_pair.py` starts them.

    python -m tests.runtime.sdc.pair ADDRESS INDEX FOLDER DEVICES

Writes lines of JSON to standard output.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import jax


def main(address: str, index: int, folder: Path, devices: int) -> None:
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.config.update("jax_num_cpu_devices", devices)
    jax.distributed.initialize(address, num_processes=2, process_id=index)
    healthy = train(folder / "healthy", folder / "corpus")
    print(json.dumps({"healthy": healthy}), flush=True)
    last = jax.devices()[-1]
    print(json.dumps({"faulty": train_with_fault(folder, last, "shard")}), flush=True)
    print(json.dumps({"spread": train_with_fault(folder, last, "batch")}), flush=True)


def train(folder: Path, corpus: Path) -> Any:
    """Trains with a check of every step; returns the error, or the last step."""
    from dovetail.data import ByteTokenizer, TextFiles, TokenInput
    from dovetail.models.llama import llama
    from dovetail.parallel import MeshLayout
    from dovetail.runtime import Checkpointer, JsonLines, RepeatSteps
    from dovetail.trainer import FaultError, Trainer

    source = TokenInput.Config(
        corpus=TextFiles.Config(files=str(corpus)),
        tokenizer=ByteTokenizer.Config(),
        sequence_length=16,
        batch_size=8,
    )
    config = Trainer.Config(
        model=llama(width=16, num_layers=2, num_heads=2, hidden=32, tied=True, vocab_size=264),
        input=source,
        steps=20,
        checkpointer=Checkpointer.Config(every=100),
        writers={"json": JsonLines.Config()},
        mesh=MeshLayout.Config(data=2),
        step_check=RepeatSteps.Config(every=1),
    )
    folder.mkdir(exist_ok=True)
    try:
        return config.build().train(folder).step
    except FaultError as error:
        return str(error)


def train_with_fault(folder: Path, device: jax.Device, where: str) -> Any:
    """Trains on a machine on which one device fails."""
    from dovetail.trainer import loop
    from tests.runtime.sdc.faulty import FaultyDevice

    path = "decoder/stack/layer/feed_forward/up/weight" if where == "shard" else None
    fault, compile_step = FaultyDevice(device, path), loop.compile_step
    loop.compile_step = lambda *arguments: fault.wrap(compile_step(*arguments))
    try:
        return train(folder / where, folder / "corpus")
    finally:
        loop.compile_step = compile_step


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]))
