"""`dovetail train` and `dovetail generate`, from the first step to the text."""

import json

import pytest

from dovetail.cli import main

TINY = [
    "model.width=16",
    "model.decoder.stack.num_layers=1",
    "model.decoder.stack.layer.attention.num_heads=2",
    "model.decoder.stack.layer.feed_forward.hidden=16",
    "input.tokenizer.vocab_size=300",
    "input.sequence_length=16",
    "input.batch_size=8",
    "mesh.fsdp=1",
    "mesh.data=-1",
    "evaluators.held_out.num_batches=1",
    "evaluators.samples.max_new_tokens=8",
    "evaluators.samples.samples_per_prompt=1",
]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A finished run of a very small model."""
    folder = tmp_path_factory.mktemp("work") / "run"
    assert (
        main(["train", "tiny-lm", *TINY, "--steps", "3", "--run", str(folder), "--profile", "1:2"])
        == 0
    )
    return folder


def test_a_run_leaves_everything_behind(run):
    names = {path.name for path in run.iterdir()}
    assert {"config.txt", "identity.txt", "run.json", "metrics.jsonl", "checkpoints"} <= names
    assert list((run / "tensorboard").iterdir())
    assert list((run / "profile").rglob("*.xplane.pb")), "the profile of step 1"


def test_metrics_hold_what_people_follow(run):
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if "loss" in line]
    assert [line["step"] for line in steps] == [1, 2, 3]
    for name in ("bits_per_byte", "tokens_per_second", "mfu", "memory_gb", "learning_rate"):
        assert steps[-1][name] > 0, name
    assert any("trigram/bits_per_byte" in line for line in lines)


def test_generate_continues_a_prompt(run, capsys):
    argv = ["generate", str(run), "--prompt", "def ", "--tokens", "6"]
    assert main(argv) == 0
    streamed = capsys.readouterr().out
    assert streamed.startswith("def ")
    assert main([*argv, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert streamed == f"def {result['text']}\n", "streaming gives the same text"
    assert result["step"] == 3


def test_generate_is_greedy_at_temperature_0(run, capsys):
    texts = set()
    for seed in ("0", "1"):
        argv = ["generate", str(run), "--temperature", "0", "--tokens", "6", "--seed", seed]
        assert main(argv) == 0
        texts.add(capsys.readouterr().out)
    assert len(texts) == 1


def test_the_closing_summary_has_chart_samples_and_figures(run, tmp_path, capsys):
    folder = tmp_path / "again"
    assert main(["train", "tiny-lm", *TINY, "--steps", "3", "--run", str(folder)]) == 0
    out, err = capsys.readouterr()
    assert "held_out/bits_per_byte" in out
    assert "trigram/bits_per_byte" in out
    assert "samples/python_lines" in out
    assert "--- samples/text_1\nimport " in out
    assert "done: 3 steps" in out
    assert "kernel attention: " in err
    assert main(["train", "tiny-lm", *TINY, "--steps", "4", "--run", str(folder), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["step"], result["saved"]) == (4, True)
