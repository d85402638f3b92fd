"""`dovetail config` and its sisters: what they print, and what they do not load."""

import json
import subprocess
import sys

import pytest

from dovetail.cli import main
from dovetail.config import from_text
from dovetail.hardware import MFU_FORMULA


def output(capsys, *argv):
    assert main(list(argv)) == 0
    return capsys.readouterr().out


def test_list_names_every_experiment(capsys):
    assert "tiny-lm" in output(capsys, "config", "list")
    assert "tiny-lm" in json.loads(output(capsys, "config", "list", "--json"))["experiments"]


def test_show_prints_every_value_and_its_text_reads_back(capsys):
    shown = output(capsys, "config", "show", "tiny-lm", "model.width=64")
    assert "model.width = 64" in shown
    assert "learner.clip_norm = " in shown, "defaults are shown too"
    text = output(capsys, "config", "show", "tiny-lm", "model.width=64", "--text")
    assert from_text(text).model.width == 64


def test_why_names_the_line_that_set_a_value(capsys):
    shown = output(capsys, "config", "show", "tiny-lm", "model.width=64", "--why")
    lines = {line.split(" = ")[0]: line for line in shown.splitlines()}
    assert "command line: model.width=64" in lines["model.width"]
    assert "experiments/laptop.py:" in lines["steps"]


def test_diff_shows_both_sides(capsys):
    shown = output(capsys, "config", "diff", "tiny-lm", "small-lm")
    assert "model.width: " in shown
    changes = json.loads(output(capsys, "config", "diff", "tiny-lm", "small-lm", "--json"))
    assert any(change["path"] == "model.width" for change in changes)


def test_diff_of_one_experiment_shows_what_the_changes_do(capsys):
    changed = ["--with", "moe:num_experts=4", "model.width=64", "--steps", "7"]
    assert main(["config", "diff", "tiny-lm", *changed]) == 0
    shown, remark = capsys.readouterr()
    lines = {line.split(": ")[0]: line for line in shown.splitlines()}
    assert lines["model.width"].endswith("128 -> 64")
    assert lines["steps"].endswith("240 -> 7")
    layer = "model.decoder.stack.layer.feed_forward"
    assert lines[layer].endswith("MixtureOfExperts()")
    assert lines[f"{layer}.num_experts"].endswith("(absent) -> 4")
    assert lines[f"{layer}.expert.hidden"].endswith("(absent) -> 352")
    assert all(path.startswith(layer) for path in lines if path not in ("model.width", "steps"))
    assert f"{layer}.router" not in lines, "a default of the new part"
    everything = json.loads(output(capsys, "config", "diff", "tiny-lm", *changed, "--json"))
    assert any(change["path"] == f"{layer}.router" for change in everything)
    assert f"left out: {len(everything) - len(lines)} defaults" in remark


def test_diff_of_two_experiments_changes_both(capsys):
    plain = output(capsys, "config", "diff", "tiny-lm", "small-lm")
    assert "model.width: " in plain
    assert "model.width: " not in output(
        capsys, "config", "diff", "tiny-lm", "model.width=64", "small-lm"
    )


def test_diff_of_one_experiment_without_a_change_is_refused(capsys):
    assert main(["config", "diff", "tiny-lm"]) == 2
    assert "nothing to compare tiny-lm with" in capsys.readouterr().err
    assert main(["config", "diff", "tiny-lm", "small-lm", "tiny-lm"]) == 2
    assert "one or two experiments" in capsys.readouterr().err


def test_json_values_are_typed_and_why_adds_where_they_were_set(capsys):
    argv = ["config", "show", "tiny-lm", "model.width=64", "--json"]
    values = json.loads(output(capsys, *argv))
    assert values["model.width"] == 64
    assert values["mesh.fsdp"] == -1
    assert values["model.decoder.stack.layer.feed_forward.up.bias"] is False
    assert values["model.dtype"] is None
    assert values["input.skips"] == []
    assert values["input.split"] == "train"
    assert values["input.corpus"] == "dovetail.data:StandardLibrary()"
    explained = json.loads(output(capsys, *argv, "--why"))
    assert {path: entry["value"] for path, entry in explained.items()} == values
    assert explained["model.width"]["set_by"] == "command line: model.width=64"
    assert "experiments/laptop.py:" in explained["steps"]["set_by"]


def test_params_adds_up(capsys):
    counted = json.loads(output(capsys, "config", "params", "tiny-lm", "--json"))
    assert counted["total"] == counted["by_module"][""]
    top = [n for path, n in counted["by_module"].items() if path and "/" not in path]
    assert sum(top) == counted["total"]
    assert "embedding" in output(capsys, "config", "params", "tiny-lm")


def test_params_tells_what_a_token_uses(capsys):
    plain = json.loads(output(capsys, "config", "params", "tiny-lm", "--json"))
    assert plain["active"] == plain["total"]
    assert "active" not in output(capsys, "config", "params", "tiny-lm")
    experts = ["config", "params", "tiny-lm", "--with", "moe:num_experts=8,top_k=2"]
    mixed = json.loads(output(capsys, *experts, "--json"))
    router = 4 * 128 * 8
    one = 4 * 3 * 128 * 352  # the feed-forwards of all layers
    assert mixed["total"] == plain["total"] + router + 7 * one
    assert mixed["active"] == plain["total"] + router + one
    assert "active for each token" in output(capsys, *experts)


def test_doctor_tells_about_the_machine(capsys):
    facts = json.loads(output(capsys, "doctor", "--json"))
    assert facts["devices"]["platform"] == "cpu"
    assert facts["missing"] == []


def test_a_dry_run_writes_nothing(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = ["model.decoder.stack.num_layers=1", "mesh.fsdp=1", "mesh.data=-1"]
    facts = json.loads(output(capsys, "train", "tiny-lm", *options, "--dry-run", "--json"))
    assert facts["parameters"] > 0
    assert facts["kernels"]
    assert facts["data"]["corpus"] == "StandardLibrary"
    assert facts["data"]["tokenizer"] == "BytePairTokenizer (vocab_size=2048)"
    assert (facts["vocabulary"], facts["batch"], facts["tokens_per_step"]) == (2048, [8, 256], 2048)
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_says_plainly_whether_the_memory_suffices(capsys, monkeypatch):
    options = ["model.decoder.stack.num_layers=1", "mesh.fsdp=1", "mesh.data=-1"]
    argv = ["train", "tiny-lm", *options, "input.sequence_length=32", "--dry-run"]
    facts = json.loads(output(capsys, *argv, "--json"))
    assert facts["needed_bytes"] >= 8 * facts["argument_bytes"], "eight devices share the memory"
    for there, verdict in ((10**12, "fits: needs about"), (10**6, "does not fit: needs about")):
        monkeypatch.setattr("dovetail.run.dry_runs.host_memory_bytes", lambda there=there: there)
        shown = output(capsys, *argv)
        assert f"{verdict} " in shown
        assert f"this machine has 1 {'TB' if there == 10**12 else 'MB'}" in shown
        assert "corpus             StandardLibrary" in shown
        assert "256 (8 sequences of 32) x 240 steps" in shown


def test_doctor_only_remarks_on_a_missing_make(capsys, monkeypatch):
    monkeypatch.setattr("shutil.which", lambda name: None)
    facts = json.loads(output(capsys, "doctor", "--json"))
    assert facts["missing"] == []
    assert "no `make`" in facts["remarks"][0]


def test_the_help_of_train_says_what_mfu_is(capsys):
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    assert MFU_FORMULA in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    "argv",
    [
        ["--help"],
        ["train", "--help"],
        ["config", "list"],
        ["completion", "bash"],
        ["goodput", "simulate", "--table"],
    ],
)
def test_light_verbs_load_no_jax(argv):
    code = (
        "import sys; from dovetail.cli import main\n"
        f"try: main({argv!r})\n"
        "except SystemExit: pass\n"
        "assert 'jax' not in sys.modules and 'numpy' not in sys.modules, 'heavy import'"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_tab_completion_offers_experiments(tmp_path):
    script = (
        'eval "$(dovetail completion bash)"\n'
        "COMP_LINE='dovetail train ti' COMP_POINT=17 COMP_WORDS=(dovetail train ti) COMP_CWORD=2\n"
        "complete -p dovetail >/dev/null\n"
        "_python_argcomplete dovetail ti train 2>/dev/null; printf '%s\\n' \"${COMPREPLY[@]}\"\n"
    )
    import os
    from pathlib import Path

    folder = str(Path(sys.executable).parent)
    environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "COMP_TYPE": "9"}
    found = subprocess.run(
        ["bash", "-c", script], env=environment, capture_output=True, text=True, check=False
    )
    assert "tiny-lm" in found.stdout, found.stderr
