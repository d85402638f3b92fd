"""`dovetail train` and `dovetail generate`, from the first step to the text."""

import json
import re
import shutil
import statistics
import sys

import jax
import pytest

from dovetail.cli import main
from dovetail.cli.train_summary import summary
from dovetail.run import parameters
from dovetail.runtime import run_folder
from dovetail.trainer import Outcome

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
    found = [entry.name for entry in (run / "checkpoints").iterdir()]
    assert all(re.fullmatch(r"\d+-1", name) for name in found), "of this life"
    assert list((run / "tensorboard").iterdir())
    assert list((run / "profile").rglob("*.xplane.pb")), "the profile of step 1"


def test_every_file_of_a_run_is_documented(run):
    names = {path.name for path in run.iterdir() if not path.name.startswith(".")}
    described = {line.split("  ")[0].rstrip("/") for line in run_folder.__doc__.splitlines()}
    assert names | {"events.jsonl", "skips.json"} <= described


def test_metrics_hold_what_people_follow(run):
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if "loss" in line]
    assert [line["step"] for line in steps] == [1, 2, 3]
    for name in ("bits_per_byte", "tokens_per_second", "mfu", "memory_gb", "learning_rate"):
        assert steps[-1][name] > 0, name
    assert any("trigram/bits_per_byte" in line for line in lines)


def test_a_run_is_held_against_its_plan(run, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = shutil.copytree(run, tmp_path / "run")
    lines = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    (folder / "metrics.jsonl").write_text("".join(2 * lines))  # as if it had gone on
    seconds = 2 * [line["step_seconds"] for line in map(json.loads, lines) if "loss" in line]
    assert main(["plan", "verify", str(folder), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["measured_s"] == pytest.approx(statistics.median(seconds[3:]))
    assert facts["time_ratio"] == pytest.approx(facts["measured_s"] / facts["predicted_s"])
    assert main(["plan", "verify", str(folder)]) == 0
    assert "times as long" in capsys.readouterr().out
    about = json.loads((folder / "run.json").read_text())
    assert about["device"] == "cpu"
    (folder / "run.json").write_text(json.dumps(about | {"device": "TPU v5p"}))
    assert main(["plan", "verify", str(folder)]) == 2
    assert "the run was on TPU v5p and had no --target" in capsys.readouterr().err


def test_generate_continues_a_prompt(run, capsys):
    argv = ["generate", str(run), "--prompt", "def ", "--tokens", "6"]
    assert main(argv) == 0
    streamed = capsys.readouterr().out
    assert streamed.startswith("def ")
    assert main([*argv, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert streamed == f"def {result['text']}\n", "streaming gives the same text"
    assert result["step"] == 3


def test_generate_says_what_it_is_doing(run, capsys, monkeypatch):
    monkeypatch.setattr("dovetail.utils.progress._DELAY_SECONDS", 0.0)
    assert main(["generate", str(run), "--tokens", "2"]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert f"{run}: loading the model" in lines
    assert f"{run}: compiling, and reading the prompt" in lines


def test_generate_is_greedy_at_temperature_0(run, capsys):
    texts = set()
    for seed in ("0", "1"):
        argv = ["generate", str(run), "--temperature", "0", "--tokens", "6", "--seed", seed]
        assert main(argv) == 0
        texts.add(capsys.readouterr().out)
    assert len(texts) == 1


@pytest.mark.parametrize("count", [1, 3])
def test_generate_needs_neither_the_mesh_nor_the_batch_of_the_run(run, count, monkeypatch, capsys):
    """The run was trained on 8 devices, and 3 divide neither its batch nor its parameters."""
    few = jax.local_devices()[:count]
    monkeypatch.setattr(jax, "local_devices", lambda: few)
    made = []
    placement = parameters._local_placement
    monkeypatch.setattr(
        parameters, "_local_placement", lambda *args: made.append(placement(*args)) or made[-1]
    )
    assert main(["generate", str(run), "--prompt", "def ", "--tokens", "6"]) == 0
    assert capsys.readouterr().out.startswith("def ")
    assert list(made[0].mesh.devices.flat) == few[: 2 if count == 3 else 1]


@pytest.fixture
def edited(run, tmp_path):
    """Copies the run with other entries in its run.json."""

    def edit(**values):
        folder = tmp_path / "edited"
        shutil.copytree(run, folder)
        about = json.loads((folder / "run.json").read_text())
        (folder / "run.json").write_text(json.dumps(about | values))
        return folder

    return edit


def test_generate_imports_only_what_the_user_names(edited, capsys):
    folder = edited(imports=["antigravity"])
    sys.modules.pop("antigravity", None)
    assert main(["generate", str(folder), "--tokens", "2"]) == 2
    assert "was trained with --import antigravity; pass it" in capsys.readouterr().err
    assert "antigravity" not in sys.modules


def test_generate_with_the_packages_of_the_run(edited, capsys):
    folder = edited(imports=["colorsys"])
    assert main(["generate", str(folder), "--tokens", "2", "--import", "colorsys"]) == 0
    capsys.readouterr()


def test_generate_refuses_another_corpus_for_a_run_without_a_tokenizer(edited, capsys):
    folder = edited(data="another-corpus")
    about = json.loads((folder / "run.json").read_text())
    del about["tokenizer"]
    (folder / "run.json").write_text(json.dumps(about))
    shutil.rmtree(folder / "tokenizer")
    assert main(["generate", str(folder), "--tokens", "2"]) == 2
    assert re.search(
        "corpus has changed .*another-corpus, now .*tokenizer may differ", capsys.readouterr().err
    )


def test_generate_leaves_a_damaged_checkpoint_where_it_is(edited, capsys):
    folder = edited()
    damaged = folder / "checkpoints" / "9-1"
    damaged.mkdir()
    (damaged / "_CHECKPOINT_METADATA").write_text("{}")
    before = sorted(folder.rglob("*"))
    assert main(["generate", str(folder), "--tokens", "2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["step"] == 3
    assert sorted(folder.rglob("*")) == before


def test_generate_without_a_checkpoint_says_to_train(edited, capsys):
    folder = edited()
    shutil.rmtree(folder / "checkpoints")
    assert main(["generate", str(folder)]) == 2
    assert "has no checkpoint yet. Train first" in capsys.readouterr().err


def test_the_closing_summary_has_chart_samples_and_metrics(run, tmp_path, capsys):
    folder = tmp_path / "again"
    assert main(["train", "tiny-lm", *TINY, "--steps", "3", "--run", str(folder)]) == 0
    out, err = capsys.readouterr()
    assert "held_out/bits_per_byte" in out
    assert "trigram/bits_per_byte" in out
    assert "samples/python_lines" in out
    assert "--- samples/text_1\nimport" in out
    assert "done: 3 steps" in out
    assert "kernel attention: " in err
    assert main(["train", "tiny-lm", *TINY, "--steps", "4", "--run", str(folder), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["step"], result["saved"]) == (4, True)


def test_a_kernel_that_a_step_prefers_need_not_take_what_a_sample_asks_for(tmp_path, capsys):
    split = ["mesh.sequence=2", "kernels.prefer.attention=ring", "kernels.strict=true"]
    folder = tmp_path / "run"
    assert main(["train", "tiny-lm", *TINY, *split, "--steps", "1", "--run", str(folder)]) == 0
    out, err = capsys.readouterr()
    assert "kernel attention: ring (cpu, preferred)" in err
    assert "--- samples/text_1\nimport" in out


def test_a_run_that_was_extended_is_complete_for_the_plain_command(run, capsys):
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    argv = ["train", "tiny-lm", *TINY, "--steps", "2", "--run", str(run)]
    assert main(argv) == 0
    out = capsys.readouterr().out
    assert f"complete: the run in {run} is at step 3, past the 2 asked for" in out
    assert "held_out/bits_per_byte" in out
    assert "--- samples/text_1\nimport" in out
    assert main([*argv, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["step"], result["stopped_by"], result["saved"]) == (3, None, True)
    assert result["metrics"]["held_out/bits_per_byte"] > 0
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*")} == before


def test_a_line_of_metrics_that_is_torn_does_not_stop_a_complete_run(run, tmp_path, capsys):
    folder = shutil.copytree(run, tmp_path / "run")
    file = folder / "metrics.jsonl"
    text = file.read_text()
    file.write_text(text[: text.index("\n") // 2] + "\n" + text + '{"step": 3, "lo')
    assert main(["train", "tiny-lm", *TINY, "--steps", "2", "--run", str(folder)]) == 0
    out = capsys.readouterr().out
    assert f"complete: the run in {folder} is at step 3" in out
    assert "held_out/bits_per_byte" in out


def test_a_profile_of_steps_that_are_behind_the_run_is_refused_at_once(run, capsys):
    argv = ["train", "tiny-lm", *TINY, "--steps", "5", "--run", str(run), "--profile", "1:3"]
    assert main(argv) == 2
    message = capsys.readouterr().err
    assert "--profile 1:3" in message
    assert "will take the steps 3:5" in message
    assert "compil" not in message


def test_the_chart_shows_the_whole_run_also_after_a_restart(tmp_path):
    lines = [{"step": step, "loss": 5.0 - step} for step in range(1, 5)] + [{"step": 4, "x/y": 1.0}]
    (tmp_path / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    (tmp_path / "run.json").write_text("{}")
    last_axis = summary(Outcome(4, losses=[(4, 1.0)]), tmp_path).split("\n\n")[0].splitlines()[-1]
    assert last_axis.split() == ["1", "step", "4"]


@pytest.mark.parametrize("option", [("--tokens", "0"), ("--top-p", "3")])
def test_bad_options_of_generate_print_nothing(run, option, capsys):
    assert main(["generate", str(run), *option]) == 2
    assert capsys.readouterr().out == ""


def test_a_damaged_run_json_is_named(tmp_path, capsys):
    (tmp_path / "run.json").write_text("{bad")
    assert main(["generate", str(tmp_path)]) == 2
    assert "run.json cannot be read as JSON" in capsys.readouterr().err


@pytest.mark.parametrize("damage", [b"dovetail.trainer:Trainer()\ncheckpointer.", b"\xea\x01"])
def test_a_damaged_config_names_its_file(edited, damage, capsys):
    folder = edited()
    (folder / "config.txt").write_bytes(damage)
    assert main(["generate", str(folder)]) == 2
    assert f"{folder / 'config.txt'}: " in capsys.readouterr().err


def test_a_prompt_that_is_no_text_is_refused(run, capsys, monkeypatch):
    assert main(["generate", str(run), "--prompt", "\udcff"]) == 2
    assert "--prompt: expected UTF-8 text" in capsys.readouterr().err
    monkeypatch.setattr(sys, "stdin", None)
    assert main(["generate", str(run), "--prompt", "-"]) == 2
    assert "standard input is closed" in capsys.readouterr().err


def test_checkpoints_that_are_a_file_are_refused_before_the_first_step(edited, capsys):
    folder = edited()
    shutil.rmtree(folder / "checkpoints")
    (folder / "checkpoints").touch()
    assert main(["train", "tiny-lm", *TINY, "--steps", "3", "--run", str(folder)]) == 2
    assert "checkpoints is a file, not a folder" in capsys.readouterr().err
