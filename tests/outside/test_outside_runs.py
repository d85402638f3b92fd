"""Layers of outside packages in runs on one device and on eight, which then generate.

Each run is in a process of its own, with so many devices. Losses, logits and text are the same.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.run.test_run import CHANGES, write_corpus

PACKAGES = {
    "fire:length=16": "fire_bias",
    "t5-bias:max_distance=24": "encoder_decoder",
    "hyper-connections": "hyper_connections",
    "mixture-of-depths": "mixture_of_depths",
    "per-layer-embeddings:rows=300": "per_layer_embeddings",
    "shared-key-values": "shared_key_values",
    "soft-prompt": "soft_prompt",
}
MESHES = {1: "fsdp=1", 8: "data=2 fsdp=2 model=2"}
PROGRAM = """
import importlib, json, sys

import dovetail

package, feature, folder, *overrides = sys.argv[1:]
importlib.import_module(f"tests.outside.{package}")
experiment = dovetail.experiment("tiny-lm").with_features(feature).override(*overrides)
experiment.train(steps=3, folder=folder, progress=False)
run = dovetail.load(folder)
found = {
    "losses": [entry["loss"] for entry in run.metrics()],
    "logits": run.logits("def f(x):").tolist(),
    "text": run.generate("def f", max_new_tokens=8, temperature=0).text,
}
print(json.dumps(found))
"""


def train(folder: Path, feature: str, devices: int) -> dict[str, Any]:
    """Trains three steps on so many devices, in another process; returns what the run computes."""
    mesh = [f"mesh.{axis}" for axis in MESHES[devices].split()]
    # Features may change the layers, so these keep their sizes.
    changes = [change for change in CHANGES if change.startswith("input.")]
    files = ("input.corpus=TextFiles", f"input.corpus.files={folder / 'corpus'}")
    overrides = [*changes, *files, "evaluators={}", *mesh]
    command = [PACKAGES[feature], feature, str(folder / str(devices)), *overrides]
    flags = f"--xla_force_host_platform_device_count={devices}"
    answer = subprocess.run(
        [sys.executable, "-c", PROGRAM, *command],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"XLA_FLAGS": flags},
    )
    found: dict[str, Any] = json.loads(answer.stdout)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("feature", PACKAGES)
def test_a_run_on_a_mesh_is_that_of_one_device(feature: str, tmp_path: Path) -> None:
    write_corpus(tmp_path / "corpus")
    one, eight = (train(tmp_path, feature, devices) for devices in MESHES)
    assert len(one["losses"]) == 3
    np.testing.assert_allclose(eight["losses"], one["losses"], rtol=1e-5)
    np.testing.assert_allclose(eight["logits"], one["logits"], atol=2e-4)
    assert eight["text"] == one["text"]
