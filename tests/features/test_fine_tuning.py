"""Features together, from an imported model to an exported one."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from dovetail.cli import main
from dovetail.interop import import_hf
from tests.interop.files import random_tensors, write_model, write_tokenizer
from tests.interop.tiny_llama import TINY, ensure_llama

VOCABULARY = 258


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("work")
    said = {**TINY, "vocab_size": VOCABULARY + 2}
    write_model(folder / "hf", said, random_tensors(ensure_llama(), said))
    write_tokenizer(folder / "hf", VOCABULARY)
    import_hf(str(folder / "hf"), folder / "run", progress=False)
    (folder / "texts").mkdir()
    for number in range(20):
        (folder / "texts" / f"{number}.txt").write_text(f"line {number}\n" * (number + 2))
    return folder


@pytest.mark.sweep
def test_dora_in_fp8_beside_a_teacher(
    work: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    features = (f"from-run:path={work / 'run'}", "distill", "dora:rank=2", "fp8", "label-smoothing")
    argv = [
        *("train", "tiny-lm", *(piece for name in features for piece in ("--with", name))),
        *("input.corpus=TextFiles", f"input.corpus.files={work}/texts/*.txt"),
        *("input.sequence_length=16", "input.batch_size=8", "mesh.fsdp=1", "mesh.data=-1"),
        *("evaluators={}", "learner.schedule.peak=1e-2", "learner.schedule.warmup_steps=0"),
        *("--steps", "2", "--run", str(tmp_path / "tuned")),
    ]
    assert main(argv) == 0
    assert "loss/teacher initialized from step 0" in capsys.readouterr().err
    argv = ["generate", str(tmp_path / "tuned"), "--prompt", "line", "--tokens", "4", "--json"]
    assert main(argv) == 0
    assert json.loads(capsys.readouterr().out)["step"] == 2
    assert main(["export", "hf", str(tmp_path / "tuned"), "--to", str(tmp_path / "out")]) == 0
    before = load_file(work / "hf" / "model.safetensors")
    after = load_file(tmp_path / "out" / "model.safetensors")
    assert before.keys() == after.keys()
    for name, array in before.items():
        moved = np.abs(after[name] - array).max() > 0
        assert moved is np.bool_(name.endswith("_proj.weight")), name
