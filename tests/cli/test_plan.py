"""`dovetail plan` on the command line."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from dovetail.cli import main
from tests.cli.pages import Page


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_a_plan_for_this_machine_has_every_number(capsys, tmp_path):
    page = tmp_path / "plan.html"
    small = ["input.batch_size=8", "input.sequence_length=64"]
    argv = ["plan", "tiny-lm", "--target", "cpu-8", *small]
    assert main([*argv, "--json", "--html", str(page)]) == 0
    captured = capsys.readouterr()
    facts = json.loads(captured.out)
    assert facts["fits"] is True
    assert (facts["source"], facts["target"]) == ("compiled", "cpu-8")
    assert facts["compile_s"] > 0
    assert facts["predicted_step_s"] == pytest.approx(
        sum(value for name, value in facts["seconds_by_kind"].items() if name != "hidden")
    )
    assert 0 < facts["memory_bytes_per_chip"] < facts["memory_limit_bytes"]
    assert facts["collective_bytes"] == sum(each["bytes"] for each in facts["collectives"]) > 0
    assert "attention: " in "\n".join(facts["kernels"])
    assert captured.err.index("analytic: fits") < captured.err.index("wrote")
    drawn = Page(page.read_text())
    assert "tiny-lm on cpu-8" in drawn.text
    assert drawn.loads == []
    assert f"MFU {facts['mfu']:.1%}" in drawn.text
    assert main(argv) == 0
    text = capsys.readouterr().out
    for line in (
        "fits, ",
        "memory per chip",
        "step time: ",
        "MFU ",
        "communication per step",
        "kernels",
    ):
        assert line in text


def test_without_a_compiler_it_says_what_to_install(capsys, monkeypatch):
    from dovetail.targets import topology

    monkeypatch.setattr(topology, "can_compile_for", lambda _: False)
    assert main(["plan", "llama2-7b", "--target", "tpu-v5p-512", "--json"]) == 0
    captured = capsys.readouterr()
    assert "needs libtpu: `pip install 'dovetail[compile]'`" in captured.err
    facts = json.loads(captured.out)
    assert (facts["source"], facts["compile_s"], facts["fits"]) == ("analytic", None, True)


# A whole copy of the parameters on every chip, which is far too much.
WHOLE = ["plan", "llama2-70b", "--target", "tpu-v5p-1024", "--analytic", "mesh.fsdp=1"]


def test_what_is_too_big_says_what_would_fit(capsys, tmp_path):
    page = tmp_path / "plan.html"
    argv = [*WHOLE, "mesh.data=-1"]
    assert main([*argv, "--html", str(page)]) == 0
    text = capsys.readouterr().out
    assert "does not fit, " in text
    assert "parameters and optimizer alone take" in text
    assert "the nearest changes that fit, by arithmetic alone:" in text
    drawn = Page(page.read_text())
    assert "What would fit" in drawn.text
    assert "The bar is the total; the chip has" in drawn.text
    assert main([*argv, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["fits"] is False
    assert facts["remedies"]
    for each in facts["remedies"]:
        assert each["plan"]["fits"]
        assert each["candidate"]["mesh"]["fsdp"] > 1


def test_a_plan_by_arithmetic_names_its_kernels(capsys):
    argv = ["plan", "llama2-7b", "--target", "tpu-v5p-512", "--analytic"]
    assert main(argv) == 0
    text = capsys.readouterr().out
    assert "attention: splash" in text
    assert "(analytic, within 50%)" in text
    assert main([*argv, "kernels.prefer.attention=reference", "--json"]) == 0
    assert "attention: reference" in str(json.loads(capsys.readouterr().out)["kernels"])
    ring = ["kernels.prefer.attention=ring", "mesh.data=-1", "mesh.fsdp=16", "mesh.sequence=4"]
    assert main([*argv, *ring]) == 0
    assert "sequence 4" in capsys.readouterr().out


def test_trainium_is_analytic_and_says_so(capsys):
    assert main(["plan", "llama2-7b", "--target", "trn2-1024"]) == 0
    captured = capsys.readouterr()
    assert "analytic alone: there is no compiler for trainium2 here" in captured.err
    assert "analytic: by arithmetic, nothing was compiled" in captured.out


def test_machines_side_by_side(capsys):
    argv = ["plan", "llama2-7b", "--targets", "tpu-v5p-512,gpu-h100-256,tpu-v5e-4"]
    assert main([*argv, "--by", "time"]) == 0
    lines = capsys.readouterr().out.splitlines()[2:]
    assert [line.split()[0] for line in lines] == ["gpu-h100-256", "tpu-v5p-512", "tpu-v5e-4"]
    assert "does not fit: too big" in lines[-1]
    assert main([*argv, "--by", "chips", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert {row["source"] for row in facts} == {"analytic"}
    assert {row["target"]: row["fits"] for row in facts}["tpu-v5e-4"] is False
    smallest = [row["smallest_chips"] for row in facts]
    assert smallest == sorted(smallest)
    assert smallest[0] >= 1


def test_a_search_without_a_compiler_ranks_and_writes_a_rule(capsys, tmp_path, monkeypatch):
    from dovetail.targets import topology

    monkeypatch.setattr(topology, "can_compile_for", lambda _: False)
    file = tmp_path / "found.py"
    argv = ["plan", "llama2-7b", "--target", "tpu-v5p-512", "--search", "--write", str(file)]
    assert main([*argv, "--json"]) == 0
    captured = capsys.readouterr()
    facts = json.loads(captured.out)
    assert facts["considered"] > 500
    assert facts["best"]["plan"]["source"] == "analytic"
    assert facts["best"]["plan"]["predicted_step_s"] <= facts["rule"]["predicted_step_s"]
    assert "--import found" in captured.err
    assert '@target_rule("llama2-7b-on-tpu-v5p-512", "tpu-v5p-512")' in file.read_text()
    assert main(argv[:-2]) == 0
    pasted = capsys.readouterr().out.partition("to paste: ")[2].splitlines()[0]
    assert main(["plan", "llama2-7b", *shlex.split(pasted), "--json"]) == 0
    again, best = json.loads(capsys.readouterr().out), facts["best"]["plan"]
    assert again["predicted_step_s"] == pytest.approx(best["predicted_step_s"])
    assert again["memory_bytes_per_chip"] == pytest.approx(best["memory_bytes_per_chip"])


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["llama2-7b"], "for which machine? Pass --target"),
        (["llama2-7b", "--target", "tpu-v9-8"], "there is no such target"),
        (["llama2-7b", "--target", "cpu", "--write", "x.py"], "--write saves what --search finds"),
        (["llama2-7b", "--targets", "all", "--target", "cpu"], "--targets compares machines"),
        (
            ["llama2-7b", "--targets", "all", "--chips", "0"],
            "--chips: expected 1 to 1,048,576, got 0",
        ),
        (["llama2-7b", "--targets", "nothing"], "there is no such target"),
        (["verify"], "name one run folder"),
        (["verify", "x", "--html", "x.html"], "--html draws one plan"),
        (["verify", "x", "--search"], "takes a run as it was"),
        (["verify", "x", "--targets", "all"], "leave --target, --search and verify out"),
        (["llama2-7b", "--target", "cpu", "--search", "--write", "x.txt"], "such as found.py"),
        (["llama2-7b", "--target", "tpu-v5p-8", "--search", "mesh.data=2"], "leave mesh.* out"),
        (
            ["gpt2", "--target", "tpu-v5e-4", "--analytic", "input.batch_size=3"],
            "does not divide",
        ),
        (
            ["llama2-7b", "--target", "tpu-v5e-4", "--analytic", "--with", "accumulate:steps=3"],
            "microbatches=3",
        ),
        (
            ["llama2-7b", "--target", "2xtpu-v5e-256", "mesh.data=1", "mesh.fsdp=-1"],
            "expected data (or pipeline) to be a multiple of 2",
        ),
        (["verify", "nowhere"], "is not a run folder"),
        (["nonsense", "--target", "cpu"], "nonsense"),
    ],
)
def test_mistakes_are_refused(capsys, argv, message):
    assert main(["plan", *argv]) == 2
    assert message in capsys.readouterr().err
