"""`--target` on the command line: fitting, refusing, and telling what there is."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from dovetail.cli import main
from dovetail.hardware import MFU_FORMULA
from dovetail.kernels import clear_choices
from dovetail.parallel import MESH_AXES
from dovetail.targets.sharding import STATE_GROUPS
from dovetail.targets.sharding_page import COLOURS
from dovetail.utils import format_bytes
from tests.cli.pages import Page


def output(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert main(list(argv)) == 0
    return capsys.readouterr().out


def test_show_fits_and_says_who_did(capsys):
    argv = ["config", "show", "llama2-7b", "--target", "tpu-v5p-512", "--json"]
    values = json.loads(output(capsys, *argv))
    assert (values["mesh.data"], values["mesh.fsdp"]) == (-1, 64)
    explained = json.loads(output(capsys, *argv, "--why"))
    assert "--target tpu-v5p-512" in explained["mesh.fsdp"]["set_by"]


def test_without_a_target_nothing_changes(capsys):
    values = json.loads(output(capsys, "config", "show", "llama2-7b", "--json"))
    assert (values["mesh.data"], values["mesh.fsdp"]) == (1, -1)


def test_key_value_has_the_last_word_and_the_rule_sees_it(capsys):
    argv = ["config", "show", "tiny-lm", "--target", "tpu-v5p-512", "--json"]
    plain = json.loads(output(capsys, *argv, "mesh.fsdp=2"))
    assert plain["mesh.fsdp"] == 2
    # 256 devices for 128 sequences: two must share each layer. The experiment itself has 8.
    few = json.loads(output(capsys, *argv, "input.batch_size=128"))
    many = json.loads(output(capsys, *argv, "input.batch_size=256"))
    assert (few["mesh.model"], many["mesh.model"]) == (2, 1)
    argv = ["config", "show", "llama2-70b", "--target", "gpu-h100-512", "--json"]
    values = json.loads(output(capsys, *argv, "learner.gradients.microbatches=16"))
    assert values["learner.gradients.microbatches"] == 16, "set in a part that the rule brings"


def test_a_modifier_comes_before_the_rule(capsys):
    argv = ["config", "show", "llama2-70b", "--with", "accumulate:steps=2", "--json"]
    values = json.loads(output(capsys, *argv, "--target", "gpu-h100-512"))
    assert values["learner.gradients.microbatches"] == 2, "the experiment said how"
    assert values["mesh.model"] == 8


@pytest.mark.parametrize(
    ("asked", "kept"), [("remat:save=nothing", "SaveNothing"), ("offload", "OffloadNamed")]
)
def test_a_rule_leaves_the_remat_policy_of_a_modifier(capsys, asked, kept):
    argv = ["config", "diff", "llama2-7b", "--target", "tpu-v5p-512"]
    assert "SaveDots" in output(capsys, *argv), "what the rule chooses by itself"
    shown = output(capsys, *argv, "--with", asked)
    assert f":{kept}(" in shown
    assert "SaveDots" not in shown


def test_slices_of_gpus_share_parameters_and_those_of_tpus_do_not(capsys):
    argv = ["config", "sharding", "tiny-lm", "mesh.data=1", "mesh.fsdp=-1", "input.batch_size=32"]
    assert "fsdp 32" in output(capsys, *argv, "--target", "2xgpu-h100-16")
    assert main([*argv, "--target", "2xtpu-v5e-16"]) == 2
    assert "mesh.dcn.fsdp=2" in capsys.readouterr().err
    across = output(capsys, *argv, "mesh.dcn.fsdp=2", "--target", "2xtpu-v5e-16")
    assert "fsdp 32" in across


def test_a_dry_run_elsewhere_takes_slices_as_they_were_asked_for(capsys):
    argv = ["train", "tiny-lm", "--dry-run", "--target", "2xtpu-v5e-16", "input.batch_size=32"]
    shown = output(capsys, *argv, "mesh.data=1", "mesh.fsdp=-1", "mesh.dcn.fsdp=2")
    assert "fsdp=32" in shown


def test_diff_shows_what_a_target_does(capsys):
    shown = output(capsys, "config", "diff", "llama2-7b", "--target", "tpu-v5p-512")
    assert "mesh.fsdp: -1 -> 64" in shown


@pytest.mark.parametrize(
    ("target", "words"),
    [("tpu-v5q-512", ["Did you mean 'tpu-v5", "trn2-N"]), ("gpu-h100-12", ["gpu-h100-16"])],
)
def test_an_unknown_target_is_bad_input(capsys, target, words):
    assert main(["config", "show", "tiny-lm", "--target", target]) == 2
    message = capsys.readouterr().err
    assert all(word in message for word in words)


def test_training_elsewhere_is_refused(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["train", "tiny-lm", "--target", "tpu-v5p-16"]) == 2
    message = capsys.readouterr().err
    assert "not that machine: it has 8 devices of tpu-v5p, but this process has 8 x cpu" in message
    assert "--dry-run" in message
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_for_a_machine_that_is_not_here(capsys):
    clear_choices()
    tiny = ["train", "tiny-lm", "--dry-run", "--target"]
    facts = json.loads(output(capsys, *tiny, "tpu-v5p-16", "--json"))
    assert facts["mesh"] == {"data": 8}
    assert facts["state_fits"] is True
    assert "cross_entropy: chunked (tpu)" in facts["kernels"]
    assert facts["usd_per_hour"] == pytest.approx(8 * facts["price"]["usd_per_chip_hour"])
    assert main([*tiny, "tpu-v5p-16"]) == 0
    shown, told = capsys.readouterr()
    assert "rule tpu-pod changes mesh.data: 1 -> -1; mesh.fsdp: -1 -> 1" in told
    assert "nothing was compiled" in shown
    assert "kernel             attention: splash (tpu)" in shown
    assert "$33.60 per hour" in shown
    assert "no public list price is known" in output(capsys, *tiny, "tpu-v4-8")


@pytest.mark.parametrize("target", ["cpu", "cpu-8"])
def test_the_machine_that_is_here_runs(capsys, tmp_path, monkeypatch, target):
    monkeypatch.chdir(tmp_path)
    sizes = ["model.decoder.stack.num_layers=1", "input.sequence_length=16", "model.width=32"]
    argv = ["train", "tiny-lm", *sizes, "--steps", "1", "evaluators={}", "--target", target]
    assert main([*argv, "--json"]) == 0
    shown, told = capsys.readouterr()
    assert json.loads(shown)["step"] == 1
    noted = json.loads((Path(json.loads(shown)["run"]) / "run.json").read_text())
    assert noted["target"] == target
    assert f"target {target} " in told
    assert "MFU refers to a peak of " in told
    assert MFU_FORMULA not in told, "the formula is in --help"
    assert "TFLOP/s (cpu in float32)" in told


def test_another_number_of_devices_is_refused(capsys):
    assert main(["train", "tiny-lm", "--target", "cpu-3"]) == 2
    assert "it has 3 devices of cpu, but this process has 8 x cpu" in capsys.readouterr().err


def test_virtual_devices_are_made_where_none_are_chosen_yet():
    code = (
        "import sys; from dovetail.cli import main\n"
        "code = main(['train', 'tiny-lm', '--target', 'cpu-4', '--dry-run', '--json',"
        " 'model.decoder.stack.num_layers=1', 'input.sequence_length=16', 'model.width=32'])\n"
        "import jax; sys.exit(code or jax.device_count() - 4)"
    )
    run = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert json.loads(run.stdout)["mesh"] == {"fsdp": 4}


def test_list_and_targets_name_them(capsys):
    assert "tpu-v5p-N" in output(capsys, "config", "list")
    assert "trn2-N" in json.loads(output(capsys, "config", "list", "--json"))["targets"]
    shown = output(capsys, "config", "targets")
    assert "tpu-v4         none found" in shown
    assert "https://" in shown
    facts = json.loads(output(capsys, "config", "targets", "--json"))
    assert facts["targets"]["trn2"]["peak_flops"]["float8"] == 1299e12
    assert facts["targets"]["tpu-v5p"]["price"]["date"]
    assert facts["targets"]["tpu-v5p"]["example"]["topology"] == "v5p:4x8x8"
    assert [rule["name"] for rule in facts["rules"]] == [
        "cpu",
        "gpu-cluster",
        "tpu-pod",
        "trainium",
    ]


def test_listing_targets_loads_no_jax():
    code = (
        "import sys; from dovetail.cli import main; main(['config', 'targets'])\n"
        "assert 'jax' not in sys.modules and 'numpy' not in sys.modules, 'heavy import'"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_sharding_prints_every_array(capsys):
    shown = output(capsys, "config", "sharding", "llama2-7b", "--target", "tpu-v5p-512")
    weight = "decoder/stack/layer/attention/query/weight  stage:32 embed:4096 heads:4096  float32"
    assert weight in shown
    assert "embed over fsdp: 32x64x4096, 33.6 MB per device, 4 copies\n" in shown
    assert "optimizer: mu, nu sharded like it, 67.1 MB per device" in shown
    assert "batch over data x fsdp: 4x4096x4096, 134 MB per device\n" in shown, (
        "the residual stream"
    )
    assert "on each device (1.2%)" in shown
    assert "warning" not in shown


def test_what_does_not_fit_is_told_plainly(capsys):
    argv = ["llama2-70b", "--target", "gpu-a100-40gb-8"]
    assert "does not fit: 104 GB of 40 GB" in output(capsys, "config", "sharding", *argv)
    shown = output(capsys, "train", *argv, "--dry-run")
    assert "does not fit, even without activations" in shown


def test_sharding_warns_of_what_is_replicated(capsys):
    argv = ["config", "sharding", "tiny-lm", "--target", "cpu-8", "mesh.fsdp=1", "mesh.data=-1"]
    shown = output(capsys, *argv)
    assert "warning: " in shown
    assert "are replicated on every device" in shown
    facts = json.loads(output(capsys, *argv, "--json"))
    assert facts["replicated_bytes"] > facts["bytes_per_device"]["parameters"]
    stacked = next(array for array in facts["arrays"] if "query/weight" in array["path"])
    assert stacked["axes"][0] == "stage"


def test_what_lies_with_the_host_is_shown_there(capsys, tmp_path):
    tiny = ["config", "sharding", "tiny-lm", "--target", "cpu-8", "mesh.fsdp=8", "mesh.data=1"]
    argv = [*tiny, "--with", "offload-optimizer"]
    shown = output(capsys, *argv)
    states = [line for line in shown.splitlines() if line.startswith("      optimizer: ")]
    assert states
    assert all(line.endswith(" on the host for each device") for line in states)
    assert "on the host" not in output(capsys, *tiny)
    file = tmp_path / "sharding.html"
    assert main([*argv, "--html", str(file)]) == 0
    page = file.read_text(encoding="utf-8")
    facts = json.loads(output(capsys, *argv, "--json"))
    assert f"On the host: {format_bytes(facts['host_bytes_per_device'])} for each device." in page
    there = [array for array in facts["arrays"] if array["memory"] is not None]
    assert page.count("<br>on the host") == len(there) > 0


def test_sharding_draws_a_page_that_needs_nothing_else(capsys, tmp_path: Path):
    file = tmp_path / "sharding.html"
    argv = ["config", "sharding", "tiny-lm", "--target", "cpu-8", "--html", str(file)]
    assert output(capsys, *argv) == ""
    page = Page(file.read_text(encoding="utf-8"))
    assert "script" not in page.tags
    assert page.loads == []
    assert "prefers-color-scheme: dark" in page.text
    assert "decoder/embedding/weight" in page.text
    assert "Activations that layers name" in page.text
    assert "wbr" in page.tags, "long paths break at slashes"


def test_every_colour_of_the_page_means_one_thing(capsys, tmp_path: Path):
    file = tmp_path / "sharding.html"
    argv = ["config", "sharding", "tiny-lm", "--target", "cpu-8", "--html", str(file)]
    output(capsys, *argv)
    text = file.read_text(encoding="utf-8")
    assert set(MESH_AXES) | set(STATE_GROUPS) <= set(COLOURS)
    assert len(set(COLOURS.values())) == len(COLOURS)
    named = [re.findall(r"--(\w+): (#\w{6})", part) for part in text.split("@media")[:2]]
    for colours in map(dict, named):
        assert {f"colour{number}" for number in COLOURS.values()} <= set(colours)
        assert len(set(colours.values())) == len(colours)


def test_sharding_needs_a_target_and_sizes_that_divide(capsys):
    assert main(["config", "sharding", "tiny-lm"]) == 2
    assert "Pass --target" in capsys.readouterr().err
    argv = ["config", "sharding", "gpt2", "--target", "gpu-h100-8", "mesh.model=4", "mesh.fsdp=2"]
    assert main([*argv, "mesh.data=1"]) == 2
    message = capsys.readouterr().err
    assert "decoder/embedding/weight: axis 0 ('vocab') has size 50257" in message
    assert "50256 or 50260 would divide" in message
