"""Verbs about an experiment whose batches are images: nothing is said of tokens."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from dovetail.cli import main
from dovetail.experiments import experiments
from dovetail.experiments.registry import _experiments

EXAMPLES = Path(__file__).parents[2] / "examples"
DIGITS = ["digits-example", "--import", "own_input"]


@pytest.fixture(autouse=True)
def digits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes the example importable, in an empty folder."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "own_input", raising=False)  # imported anew in every test
    assert "tiny-lm" in experiments(), "the first use loads the package's own"
    with _experiments.restored():
        yield


@pytest.fixture
def ask(capsys: pytest.CaptureFixture[str]) -> Any:
    """Runs a verb and returns what it prints."""

    def run(*argv: str) -> str:
        assert main(list(argv)) == 0
        return capsys.readouterr().out

    return run


@pytest.mark.parametrize("target", [[], ["--target", "tpu-v5e-8"]])
def test_a_dry_run_counts_images(ask: Any, target: list[str]) -> None:
    text = ask("train", *DIGITS, *target, "--dry-run", "mesh.fsdp=8", "mesh.data=1")
    rows = dict(line.split("  ", 1) for line in text.splitlines() if not line.startswith(" "))
    assert rows["images per step"].strip() == "64 x 150 steps"
    assert rows["input"].strip() == "DrawnDigits"
    assert "token" not in text
    assert "vocabulary" not in text


def test_a_dry_run_as_json(ask: Any) -> None:
    facts = json.loads(ask("train", *DIGITS, "--dry-run", "--json"))
    assert (facts["batch"], facts["images_per_step"], facts["vocabulary"]) == ([64], 64, None)
    assert facts["items_per_step"] == {"images": 64}
    assert "tokens_per_step" not in facts


def test_a_plan_prices_images(ask: Any) -> None:
    argv = ["plan", *DIGITS, "--target", "tpu-v5e-8", "--analytic"]
    text = ask(*argv)
    assert "a step has 64 images and costs $" in text
    assert "; a trillion images $" in text
    assert "token" not in text
    facts = json.loads(ask(*argv, "--json"))
    assert facts["images_per_step"] == 64
    assert facts["usd_per_trillion_images"] == pytest.approx(facts["usd_per_step"] * 1e12 / 64)
    assert "usd_per_trillion_tokens" not in facts
    assert main([*argv, "--html", "plan.html"]) == 0
    assert "per trillion images" in Path("plan.html").read_text()


@pytest.mark.parametrize(
    "argv",
    [
        ["train", *DIGITS],
        ["train", *DIGITS, "--dry-run"],
        ["plan", *DIGITS, "--target", "cpu-8", "--analytic"],
        ["config", "sharding", *DIGITS, "--target", "cpu-8"],
    ],
)
def test_a_batch_of_no_rows_is_refused(
    argv: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main([*argv, "input.batch_size=0"]) == 2
    message = capsys.readouterr().err.splitlines()[-1]
    assert message == ("dovetail: input.batch_size: expected a batch of 1 or more rows, got 0.")
    assert list(tmp_path.iterdir()) == []


def test_a_plan_is_compiled(ask: Any) -> None:
    facts = json.loads(ask("plan", *DIGITS, "--target", "cpu-8", "--json"))
    assert (facts["source"], facts["fits"], facts["images_per_step"]) == ("compiled", True, 64)


def test_a_search_shards_no_sequence(ask: Any) -> None:
    argv = ["plan", *DIGITS, "--target", "tpu-v5e-8", "--analytic", "--search", "--json"]
    found = json.loads(ask(*argv))
    assert found["best"]["plan"]["fits"]
    assert all("sequence" not in each["candidate"]["mesh"] for each in found["verified"])


def test_the_sharding_of_images(ask: Any) -> None:
    argv = ["config", "sharding", *DIGITS, "--target", "tpu-v5e-8", "--json"]
    arrays = {array["path"]: array for array in json.loads(ask(*argv))["arrays"]}
    assert arrays["batch/images"]["shape"] == [64, 12, 12]
    assert arrays["batch/images"]["local_shape"] == [8, 12, 12]
