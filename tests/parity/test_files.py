"""What transformers wrote is imported, and what is exported is loaded by transformers again."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.numpy import load_file

from dovetail.cli import main
from dovetail.interop import import_hf
from dovetail.models import families
from dovetail.run import Run
from tests.parity.reference import load, write_model

every_family = pytest.mark.parametrize("name", families())


def logits(model: Any) -> np.ndarray:
    ids = np.random.default_rng(1).integers(3, 96, (2, 13))
    with torch.no_grad():
        result: np.ndarray = model(torch.tensor(ids)).logits.numpy()
    return result


@every_family
def test_there_and_back(name: str, tmp_path: Path) -> None:
    family = families()[name]
    state = write_model(family, str(tmp_path / "hf"))
    import_hf(str(tmp_path / "hf"), tmp_path / "run", progress=False)
    Run(tmp_path / "run").export_hf(tmp_path / "out", progress=False)
    written = load_file(tmp_path / "out" / "model.safetensors")
    assert state.keys() == written.keys()
    for key, array in state.items():
        np.testing.assert_array_equal(written[key], array, strict=True)
    before, after = load(family, str(tmp_path / "hf")), load(family, str(tmp_path / "out"))
    np.testing.assert_array_equal(logits(before), logits(after))
    assert type(after).__name__ == family.architecture


@every_family
def test_an_export_without_the_imported_words(name: str, tmp_path: Path) -> None:
    """As of a run that was trained here: config.json is of our own making alone."""
    family = families()[name]
    write_model(family, str(tmp_path / "hf"))
    import_hf(str(tmp_path / "hf"), tmp_path / "run", progress=False)
    shutil.rmtree(tmp_path / "run" / "source")
    Run(tmp_path / "run").export_hf(tmp_path / "out", family=name, progress=False)
    before, after = load(family, str(tmp_path / "hf")), load(family, str(tmp_path / "out"))
    np.testing.assert_array_equal(logits(before), logits(after))


def test_a_model_that_was_trained_here(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its export is loaded by name alone, tokenizer included, and continues a text as ours does."""
    run, out = str(tmp_path / "run"), str(tmp_path / "out")
    argv = ["train", "tiny-lm", "--steps", "1", "--run", run, "mesh.fsdp=1", "mesh.data=-1"]
    sizes = ["model.width=32", "model.decoder.stack.num_layers=1", "input.sequence_length=16"]
    assert main([*argv, *sizes, "evaluators={}", "input.tokenizer.vocab_size=300"]) == 0
    assert main(["export", "hf", run, "--to", out]) == 0
    capsys.readouterr()
    argv = ["generate", run, "--prompt", "import os", "--tokens", "8", "--temperature", "0"]
    assert main([*argv, "--json"]) == 0
    ours = json.loads(capsys.readouterr().out)["text"]
    model = transformers.AutoModelForCausalLM.from_pretrained(out).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(out)
    prompt = tokenizer("import os", return_tensors="pt")
    ids = model.generate(**prompt, max_new_tokens=8, do_sample=False)[0]
    assert tokenizer.eos_token_id == model.config.eos_token_id == 299
    text = tokenizer.decode(ids[prompt["input_ids"].shape[1] :], skip_special_tokens=True)
    assert text == ours
