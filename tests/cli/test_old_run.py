"""A run of version 0.1, saved before classes, fields and files were renamed, still works."""

import json
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

import dovetail as dovetail_api

ARCHIVE = Path(__file__).parent / "run-of-0.1.tar.gz"
# The losses of steps 4 and 5, and the text, as version 0.1 computed them when it resumed this run.
LOSSES = [5.338556, 5.164311]
TEXT = "aaaaaaaa"

TRAIN = [
    "train",
    "tiny-lm",
    "--run",
    "old-run",
    "--steps",
    "5",
    "--with",
    "moe:num_experts=2,top_k=1",
    "--with",
    "capacity",
    "--with",
    "remat:keep=dots",
    "--with",
    "loss-free-balance",
    "--with",
    "sandwich-norm",
    "--with",
    "gated-output",
    "--with",
    "schedule:name=constant",
    "input.tokenizer=ByteTokenizer",
    "input.corpus=TextFiles",
    "input.corpus.files=corpus",
    "model.width=16",
    "model.decoder.stack.num_layers=2",
    "model.decoder.stack.layer.attention.num_heads=2",
    "model.decoder.stack.layer.feed_forward.expert.hidden=16",
    "input.sequence_length=16",
    "input.batch_size=4",
    "evaluators={}",
]


@pytest.fixture
def old_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, members=[m for m in archive if m.isfile() or m.isdir()])
    monkeypatch.chdir(tmp_path)
    return tmp_path / "old-run"


def dovetail(*arguments: str) -> str:
    """Runs a command on one device, as a user does, and returns what it prints."""
    program = "import sys; from dovetail.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@pytest.mark.slow
def test_it_resumes_with_the_same_losses_and_generates(old_run: Path) -> None:
    dovetail(*TRAIN)
    lines = [json.loads(line) for line in (old_run / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5]
    assert [line["loss"] for line in lines[3:]] == pytest.approx(LOSSES, rel=1e-5)
    arguments = ["--prompt", "def add", "--tokens", "8", "--temperature", "0", "--json"]
    assert json.loads(dovetail("generate", "old-run", *arguments))["text"] == TEXT


def test_it_is_loaded_from_python(old_run: Path) -> None:
    """Without training it further: its steps, logits, loss and text."""
    run = dovetail_api.load(old_run)
    assert (run.step, len(run.metrics())) == (3, 3)
    batch = run.trainer.input.batch(3)  # of the step that the old version took next
    assert run.loss(batch) == pytest.approx(LOSSES[0], rel=1e-5)
    generation = run.generate("def add", max_new_tokens=8, temperature=0)
    assert generation.tokens[0] == run.logits("def add")[-1].argmax()
    with pytest.raises(dovetail_api.Error, match=r"mixtral is the nearest(?s:.)*GatedAttention"):
        run.export_hf(old_run.parent / "exported")
    assert not (old_run.parent / "exported").exists()
