"""The data path: preparation beside the tokenizer alone, lookups, memory, and the stall of a run.

    python benchmarks/input.py                      # about five minutes on two cores
    python benchmarks/input.py --megabytes 16 --turns 2 --large-megabytes 200

1. Preparation. JSON Lines of this machine's Python sources become a token store, with a tokenizer
   that is trained already. Beside it `tokenizers` encodes the same texts, in the same batches and
   on all cores, with the texts in memory and the ids thrown away. The two take turns.
2. Memory. The peak of all processes that prepare a larger corpus (the same texts again and again).
3. Lookups. The time to make a batch at a random step, of token stores of 10 million to 10 billion
   tokens: sparse files, so that no disk is read.
4. Stall. The share of a real run of tiny-lm's steps that waits for input, by its goodput log.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

_BATCH_BYTES = 2**20
_ROW, _BATCH = 2048, 64


def main() -> None:
    """Measures, prints a line for each, and one JSON object last."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--megabytes", type=int, default=128, help="text to prepare (128)")
    parser.add_argument("--large-megabytes", type=int, default=1000, help="text for memory (1000)")
    parser.add_argument("--turns", type=int, default=3, help="how often each side runs (3)")
    parser.add_argument("--steps", type=int, default=240, help="steps of the real run (240)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = str(Path(folder, "cache"))
        found = {
            **preparation(Path(folder), options.megabytes, options.turns),
            **memory(Path(folder), options.large_megabytes),
            **lookups(Path(folder)),
            **stall(Path(folder), options.steps),
        }
    print(json.dumps({name: round(value, 4) for name, value in found.items()}))


def sources() -> list[str]:
    """Returns the texts of Python's standard library."""
    from dovetail.data import StandardLibrary

    return [document.text for document in StandardLibrary.Config().build().documents()]


def write_json_lines(file: Path, megabytes: int) -> None:
    """Writes the sources again and again, in pieces of a few kilobytes."""
    texts, written = sources(), 0
    with file.open("w", encoding="utf-8") as stream:
        while True:
            for text in texts:
                for start in range(0, len(text), 4000):
                    written += stream.write(json.dumps({"text": text[start : start + 4000]}) + "\n")
                    if written >= megabytes * 10**6:
                        return


def batches(texts: list[str]) -> Iterator[list[str]]:
    """Yields the texts in the batches of the preparation."""
    batch: list[str] = []
    size = 0
    for text in texts:
        batch.append(text)
        size += len(text)
        if size >= _BATCH_BYTES:
            yield batch
            batch, size = [], 0
    yield batch


def preparation(folder: Path, megabytes: int, turns: int) -> dict[str, float]:
    """Times the preparation and the tokenizer alone, in turns."""
    from dovetail.data import BytePairTokenizer, Files, TokenInput, prepare, prune_stores

    file = folder / "texts.jsonl"
    write_json_lines(file, megabytes)
    texts = [json.loads(line)["text"] for line in file.open(encoding="utf-8")]
    trained = BytePairTokenizer.Config(vocab_size=16384).build()
    trained.fit(sources())
    (folder / "tokenizer").mkdir()
    trained.save(folder / "tokenizer")
    model = trained._ready()
    tokenizer = BytePairTokenizer.Config(vocab_size=16384, folder=str(folder / "tokenizer"))
    config = TokenInput.Config(
        corpus=Files.Config(files=str(file)),
        tokenizer=tokenizer,
        sequence_length=_ROW,
        batch_size=8,
    )
    ours, alone = [], []
    for _ in range(turns):
        prune_stores(0)
        began = time.perf_counter()
        prepare(config, progress=False)
        ours.append(time.perf_counter() - began)
        began = time.perf_counter()
        for batch in batches(texts):
            model.encode_batch_fast(batch, add_special_tokens=False)
        alone.append(time.perf_counter() - began)
    ratios = [other / own for own, other in zip(ours, alone, strict=True)]
    ratio = statistics.median(ratios)
    print(
        f"preparation: {megabytes / statistics.median(ours):.2f} MB/s, tokenizers alone "
        f"{megabytes / statistics.median(alone):.2f} MB/s, ratio {ratio:.3f} "
        f"({min(ratios):.3f} to {max(ratios):.3f})"
    )
    return {
        "prepare_s": statistics.median(ours),
        "tokenizers_alone_s": statistics.median(alone),
        "preparation_speed_ratio": ratio,
    }


_PREPARE = """
import sys
from dovetail.data import ByteTokenizer, Files, TokenInput, prepare
prepare(TokenInput.Config(corpus=Files.Config(files=sys.argv[1]), tokenizer=ByteTokenizer.Config(),
                          sequence_length=2048, batch_size=8), progress=False)
"""


def memory(folder: Path, megabytes: int) -> dict[str, float]:
    """Returns the peak memory of the processes that prepare a large corpus.

    With bytes as tokens, which takes the most room and the least time.
    """
    file = folder / "large.jsonl"
    write_json_lines(file, megabytes)
    peak = _peak([sys.executable, "-c", _PREPARE, str(file)])
    file.unlink()
    print(f"memory: {peak:.2f} GB at most in all processes, to prepare {megabytes / 1000:.1f} GB")
    return {"peak_gb": peak, "large_gb": megabytes / 1000}


def _peak(command: list[str]) -> float:
    """Returns the largest sum of the resident memory of a process and its children."""
    process = subprocess.Popen(command)
    peak = 0
    while process.poll() is None:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        try:
            pids = [str(process.pid), *children.read_text().split()]
            pages = [int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in pids]
        except OSError:  # one has just ended
            pages = []
        peak = max(peak, sum(pages) * resource.getpagesize())
        time.sleep(0.02)
    if process.returncode:
        raise SystemExit(f"preparing failed with exit code {process.returncode}")
    return peak / 1e9


def lookups(folder: Path) -> dict[str, float]:
    """Times batches at random steps, by the size of the token store."""
    found = {}
    for exponent in (7, 8, 9, 10):
        make = _batches_of(folder / f"store-{exponent}", 10**exponent)
        draws = np.random.default_rng(0).integers(0, 10**7, 60)
        make(0)
        times = []
        for step in draws.tolist():
            began = time.perf_counter()
            make(step)
            times.append(time.perf_counter() - began)
        found[f"batch_ms_at_1e{exponent}_tokens"] = 1000 * statistics.median(times)
    first, last = (found[f"batch_ms_at_1e{exponent}_tokens"] for exponent in (7, 10))
    rate = _BATCH * _ROW / last / 1000
    print(f"lookups: {last:.2f} ms of {_BATCH} rows of 10 billion tokens ({rate:.0f} M tokens/s)")
    print(f"         {last / first:.2f} times as long as of 10 million")
    return {**found, "lookup_ratio": last / first}


def _batches_of(folder: Path, tokens: int) -> Any:
    """Returns a function from a step to its batch, of a store of zeros."""
    from dovetail.data import ConcatenateAndSplit
    from dovetail.data.blocks import map_file
    from dovetail.data.order import ShuffledOrder
    from dovetail.data.store import TokenSplit

    folder.mkdir()
    documents = tokens // 1000
    with (folder / "tokens").open("wb") as stream:
        stream.truncate(2 * tokens)
    starts = np.arange(documents, dtype=np.int64) * 1000
    starts.tofile(folder / "starts")
    split = TokenSplit(
        map_file(folder / "tokens", np.dtype("<u2"), tokens, is_random=True),
        map_file(folder / "starts", np.dtype("<i8"), documents, is_random=True),
    )
    packed: Any = ConcatenateAndSplit.Config().build().pack(split, _ROW)
    order = ShuffledOrder(packed.num_rows, _BATCH)
    sizes = np.ones(2**16, np.int32)
    return lambda step: packed.batch(order.examples(step), 0, sizes)


def stall(folder: Path, steps: int) -> dict[str, float]:
    """Trains tiny-lm, and returns the share of its steps' time that waits for input."""
    from dovetail.run import run_goodput

    run = folder / "run"
    command = [sys.executable, "-m", "dovetail", "train", "tiny-lm", "--run", str(run)]
    subprocess.run([*command, "--steps", str(steps)], check=True, capture_output=True)
    seconds = run_goodput(run).seconds
    share = seconds["input"] / (seconds["input"] + seconds["step"])
    print(f"stall: {share:.2%} of the time of {steps} steps of tiny-lm waits for input")
    return {"stall_share": share, "step_s": seconds["step"] / steps}


if __name__ == "__main__":
    main()
