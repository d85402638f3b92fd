"""How much memory do import and export of an 8 GB model take?

The model is all zeros, saved as transformers does, with the tensor sizes of Llama 3 8B. The
benchmark measures the growth of the process's peak memory. It should depend on the largest tensor,
not on the size of the model.

    python benchmarks/import_memory.py
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import tempfile
import time
from pathlib import Path
from typing import Any

from dovetail.interop import import_hf
from dovetail.models import families
from dovetail.module import match_weights, parameter_specs
from dovetail.run import Run

VALUES = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 128256,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "tie_word_embeddings": False,
}


def main() -> None:
    """Writes the model, imports it, exports it, and prints one JSON object last."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=14)
    layers = parser.parse_args().layers
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        total, largest = _write(work / "hf", VALUES | {"num_hidden_layers": layers})
        print(f"a model of {total / 1e9:.1f} GB, its largest tensor {largest / 1e9:.2f} GB")
        before, started = _peak(), time.monotonic()
        import_hf(str(work / "hf"), work / "run")
        imported, middle = _peak(), time.monotonic()
        Run(work / "run").export_hf(work / "out")
        exported, ended = _peak(), time.monotonic()
    metrics = {
        "model_gb": total / 1e9,
        "largest_tensor_gb": largest / 1e9,
        "allowed_growth_gb": (2 * largest + 500e6) / 1e9,
        "import_growth_gb": (imported - before) / 1e9,
        "export_growth_gb": (exported - before) / 1e9,
        "import_gb_per_s": total / 1e9 / (middle - started),
        "export_gb_per_s": total / 1e9 / (ended - middle),
    }
    for name, value in metrics.items():
        print(f"{name:<20} {value:8.3f}")
    print(json.dumps({name: round(value, 3) for name, value in metrics.items()}))


def _write(folder: Path, values: dict[str, Any]) -> tuple[int, int]:
    """Writes a sparse file of zeros; returns the size of the model and of its largest tensor."""
    family = families()["llama"]
    specs = parameter_specs(family.from_hf(values).build())
    header, end, largest = {}, 0, 0
    for name, tensor in match_weights(family.weights, specs).items():
        size = 2 * math.prod(tensor.shape)
        offsets = [end, end + size]
        header[name] = {"dtype": "BF16", "shape": tensor.shape, "data_offsets": offsets}
        end, largest = end + size, max(largest, size)
    text = json.dumps(header).encode()
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(values))
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)
    return end, largest


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    main()
