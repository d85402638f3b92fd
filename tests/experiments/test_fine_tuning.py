"""Fine-tuning in one option: the model, tokenizer and parameters of another run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from dovetail.cli import main
from dovetail.config import ConfigError, apply_modifier
from dovetail.data import PretrainedTokenizer, TextFiles
from dovetail.experiments import find_experiment
from dovetail.interop import import_hf
from dovetail.run import InitFromRun
from dovetail.runtime import RunFolder
from tests.interop.files import random_tensors, write_model, write_tokenizer
from tests.interop.tiny_llama import TINY, ensure_llama

VOCABULARY = 258


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("work")
    said = {**TINY, "vocab_size": VOCABULARY + 2}
    write_model(folder / "hf", said, random_tensors(ensure_llama(), said))
    write_tokenizer(folder / "hf", VOCABULARY)
    (folder / "hf" / "generation_config.json").write_text(json.dumps({"top_k": 7}))
    import_hf(str(folder / "hf"), folder / "run", progress=False)
    return folder / "run"


def test_only_model_tokenizer_and_start_change(imported: Path) -> None:
    base = find_experiment("tiny-lm").tiny()
    config: Any = apply_modifier(base, f"from-run:path={imported}")
    source: Any = RunFolder(imported).config()
    assert config.model == source.model
    assert config.initialization == InitFromRun.Config(run=str(imported))
    assert isinstance(config.input.tokenizer, PretrainedTokenizer.Config)
    assert config.input.tokenizer.folder == str(imported / "tokenizer")
    assert config.learner == base.learner
    assert config.input.corpus == base.input.corpus
    again: Any = apply_modifier(base, f"from-run:path={imported}")
    assert again == config


def test_a_folder_that_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not a run folder"):
        apply_modifier(find_experiment("tiny-lm").tiny(), f"from-run:path={tmp_path}")


def test_a_learned_tokenizer_stays_with_its_corpus(tmp_path: Path) -> None:
    base = find_experiment("tiny-lm").tiny()
    run = RunFolder(tmp_path / "run")
    run.claim(base)
    run.describe(base, {"experiment": "tiny-lm"})
    run.release()
    same: Any = apply_modifier(base, f"from-run:path={run.path}")
    assert same.input.tokenizer == base.input.tokenizer
    other = base.clone()
    other.input.corpus = TextFiles.Config(files="*.txt")
    with pytest.raises(ConfigError, match="was trained on its corpus"):
        apply_modifier(other, f"from-run:path={run.path}")


def test_train_generate_and_export(
    imported: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "texts").mkdir()
    for number in range(20):
        (tmp_path / "texts" / f"{number}.txt").write_text(f"line {number}\n" * (number + 2))
    argv = [
        *("train", "tiny-lm", "--with", f"from-run:path={imported}", "input.corpus=TextFiles"),
        *(f"input.corpus.files={tmp_path}/texts/*.txt", "input.sequence_length=16"),
        *("input.batch_size=8", "mesh.fsdp=1", "mesh.data=-1", "evaluators={}"),
        *("learner.schedule.peak=1e-5", "--steps", "1", "--run", str(tmp_path / "tuned")),
    ]
    assert main(argv) == 0
    assert "loaded 12 parameters; 0 keep their initialization" in capsys.readouterr().err
    argv = ["generate", str(tmp_path / "tuned"), "--prompt", "line", "--tokens", "4", "--json"]
    assert main(argv) == 0
    assert json.loads(capsys.readouterr().out)["step"] == 1
    assert main(["export", "hf", str(tmp_path / "tuned"), "--to", str(tmp_path / "out")]) == 0
    before = load_file(imported.parent / "hf" / "model.safetensors")
    after = load_file(tmp_path / "out" / "model.safetensors")
    assert before.keys() == after.keys()
    moved = [np.abs(after[name] - before[name]).max() for name in before]
    assert 0 < max(moved) < 0.01, "a small step from what was imported"
    said = json.loads((tmp_path / "out" / "generation_config.json").read_text())
    assert said == {"top_k": 7}, "what the import said, through the run it began from"
    assert (tmp_path / "out" / "tokenizer.json").is_file()
