"""A run continues from its folder: neither its command nor the run it began with is needed."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dovetail
from dovetail.cli import main
from dovetail.run import list_runs
from dovetail.runtime.checkpoints.manifest import read_manifest
from tests.experiments.test_fine_tuning import imported

__all__ = ["imported"]

TINY = (
    "model.width=16",
    "model.decoder.stack.num_layers=1",
    "model.decoder.stack.layer.attention.num_heads=2",
    "model.decoder.stack.layer.feed_forward.hidden=16",
)
SMALL_INPUT = (
    "input.corpus=TextFiles",
    "input.sequence_length=16",
    "input.batch_size=8",
    "checkpointer.every=1",
    "evaluators={}",
)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    for number in range(30):
        (folder / f"{number}.txt").write_text(f"def f{number}(x):\n    return x\n" * 30)
    return folder


def experiment(corpus: Path) -> Any:
    changes = (*SMALL_INPUT, f"input.corpus.files={corpus}")
    return dovetail.experiment("tiny-lm").override(*changes)


@pytest.fixture(scope="module")
def base(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    changed = experiment(corpus).override(*TINY, "input.tokenizer.vocab_size=300")
    folder: Path = changed.train(
        steps=2, folder=tmp_path_factory.mktemp("base") / "run", progress=False
    ).path
    return folder


@pytest.fixture
def run(base: Path, tmp_path: Path) -> Path:
    return shutil.copytree(base, tmp_path / "run")


def losses(folder: Path) -> list[float]:
    return [entry["loss"] for entry in dovetail.load(folder).metrics() if "loss" in entry]


def test_the_folder_is_enough_to_continue(corpus: Path, run: Path, tmp_path: Path) -> None:
    same = shutil.copytree(run, tmp_path / "same")
    by_experiment = experiment(corpus).override(*TINY, "input.tokenizer.vocab_size=300")
    by_experiment.train(steps=4, folder=same, progress=False)
    continued = dovetail.experiment(run).train(steps=4, progress=False)
    assert continued.path == run
    assert losses(run) == losses(same)
    about = continued.about
    assert about["experiment"] == "tiny-lm"
    assert about["overrides"][-1] == "steps=4"
    assert "steps=2" not in about["overrides"]
    assert continued.config == dovetail.load(same).config
    remat = dovetail.experiment(run).with_features("remat")
    for steps in (5, 6):  # as a supervisor repeats a command
        remat.train(steps=steps, folder=run.absolute(), progress=False)
        assert dovetail.load(run).about["features"] == ["remat"]


def test_a_dry_run_of_a_run_needs_no_corpus_either(corpus: Path, run: Path) -> None:
    gone = corpus.rename(corpus.with_name("gone"))
    try:
        assert dovetail.experiment(run).override(steps=9).dry_run().size.steps == 9
    finally:
        gone.rename(corpus)


def test_the_command_line_continues_a_run_by_its_folder(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", str(run), "--steps", "3", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["run"], shown["step"]) == (str(run), 3)
    assert main(["train", str(run), "model.width=32"]) == 2
    assert "is a run of another identity" in capsys.readouterr().err
    assert main(["train", str(run), "--run", "elsewhere"]) == 2
    assert "continues in its own folder" in capsys.readouterr().err
    assert main(["config", "show", str(run), "model.width"]) == 0
    assert "16" in capsys.readouterr().out


def test_a_run_continues_without_the_run_it_began_with(
    corpus: Path, base: Path, imported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent, tuned = shutil.copytree(base, tmp_path / "parent"), tmp_path / "tuned"
    changed = experiment(corpus).override(*TINY, "input.tokenizer.vocab_size=300")
    changed = changed.override("seed=7", "learner.schedule.peak=0.0")
    changed = changed.override("initialization=InitFromRun", f"initialization.run={parent}")
    before = np.asarray(dovetail.load(parent).logits("def"))
    changed.train(steps=1, folder=tuned, progress=False)
    shutil.rmtree(parent)
    monkeypatch.chdir(tmp_path)
    after = dovetail.experiment("tuned").train(steps=2, progress=False)
    assert after.step == 2
    assert after.base() == {}
    np.testing.assert_allclose(after.logits("def"), before, atol=1e-5)
    shutil.copytree(imported, parent)
    assert dovetail.load(tuned).source_folder is None, "another run in its place is not its parent"
    shutil.rmtree(parent)
    with pytest.raises(dovetail.Error, match=r"not a run folder.*`dovetail train RUN` needs no"):
        _ = experiment(corpus).with_features(f"from-run:path={parent}").config


def test_the_tokenizer_comes_from_the_run(corpus: Path, base: Path, tmp_path: Path) -> None:
    """One that is trained again on other text would give other token ids to the weights."""
    (tmp_path / "other").mkdir()
    for number in range(30):
        (tmp_path / "other" / f"{number}.txt").write_text(f"class C{number}: pass\n" * 40)
    elsewhere = experiment(tmp_path / "other")
    tuned = elsewhere.with_features(f"from-run:path={base}")
    assert tuned.config.input.tokenizer.folder == str(base / "tokenizer")
    run = tuned.train(steps=1, folder=tmp_path / "tuned", progress=False)
    assert run.about["tokenizer"] == dovetail.load(base).about["tokenizer"]
    again = tuned.train(steps=2, folder=tmp_path / "tuned", progress=False)
    assert again.step == 2
    changed = elsewhere.override(*TINY, "input.tokenizer.vocab_size=300")
    changed = changed.override("initialization=InitFromRun", f"initialization.run={base}")
    advice = r"has another tokenizer than this run.*input\.tokenizer\.folder="
    with pytest.raises(dovetail.Error, match=advice):
        changed.train(steps=1, folder=tmp_path / "wrong", progress=False)
    assert not (tmp_path / "wrong").exists()
    same = changed.override(f"input.tokenizer.folder={base / 'tokenizer'}")
    assert same.train(steps=1, folder=tmp_path / "right", progress=False).step == 1


def test_a_run_of_an_imported_model_continues_with_its_own_tokenizer(
    corpus: Path, imported: Path, tmp_path: Path
) -> None:
    parent, tuned = shutil.copytree(imported, tmp_path / "parent"), tmp_path / "tuned"
    changed = experiment(corpus).with_features(f"from-run:path={parent}")
    changed.train(steps=1, folder=tuned, progress=False)
    imported_from = dovetail.load(tuned).about["base"]
    shutil.rmtree(parent)
    shutil.rmtree(tuned / "data")  # as if it were too large to be kept
    after = dovetail.experiment(tuned).train(steps=2, progress=False)
    assert after.step == 2
    assert after.about["base"] == imported_from
    assert after.source_folder == tuned / "source"
    after.export_hf(tmp_path / "out", progress=False)
    assert (tmp_path / "out" / "tokenizer.json").is_file()
    (tuned / "tokenizer" / "tokenizer.json").write_text("{}")
    with pytest.raises(dovetail.Error, match=r"tokenizer\.json is damaged"):
        dovetail.experiment(tuned).train(steps=3, progress=False)


def test_an_imported_model_is_no_experiment(imported: Path) -> None:
    with pytest.raises(dovetail.Error, match=r"is an imported model.*--with from-run:path="):
        dovetail.experiment(imported)


def test_a_lost_tokenizer_of_an_import_is_not_left_out_of_an_export(
    imported: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = shutil.copytree(imported, tmp_path / "run")
    (folder / "tokenizer").rename(tmp_path / "gone")
    for old in (False, True):
        if old:  # a run that was imported before digests were recorded
            about = json.loads((folder / "run.json").read_text())
            del about["tokenizer"]
            (folder / "run.json").write_text(json.dumps(about))
        assert main(["export", "hf", str(folder), "--to", str(tmp_path / "out")]) == 2
        assert "tokenizer.json" in capsys.readouterr().err
        assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("damaged", [2])
def test_an_export_passes_over_damaged_checkpoints(
    run: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, damaged: int
) -> None:
    dovetail.experiment(run).train(steps=3, progress=False)
    dovetail.experiment(run).override("checkpointer.keep=3").train(steps=4, progress=False)
    steps = sorted((run / "checkpoints").glob("[0-9]*-[0-9]*"), key=step_of)
    assert len(steps) > damaged
    for folder in steps[-damaged:]:
        damage_embedding(folder)
    expected = shutil.copytree(run, tmp_path / "expected")
    for folder in sorted((expected / "checkpoints").glob("[0-9]*-[0-9]*"), key=step_of)[-damaged:]:
        shutil.rmtree(folder)
    dovetail.load(expected).export_hf(tmp_path / "wanted", progress=False)
    dovetail.load(run).export_hf(tmp_path / "out", progress=False)
    wanted, out = (tmp_path / name / "model.safetensors" for name in ("wanted", "out"))
    assert out.read_bytes() == wanted.read_bytes()
    assert "cannot be used" in caplog.text


def step_of(folder: Path) -> int:
    return int(folder.name.partition("-")[0])


def damage_embedding(checkpoint: Path) -> None:
    """What is read of the embedding is not what was saved; the smallest array is intact."""
    manifest = read_manifest(checkpoint)
    assert manifest is not None
    arrays = {
        path: replace(array, digest="0" * 16) if "embedding" in path else array
        for path, array in manifest.arrays.items()
    }
    replace(manifest, arrays=arrays).write(checkpoint)


def test_the_list_knows_how_far_a_run_without_metrics_is(run: Path) -> None:
    (run / "metrics.jsonl").unlink()
    (run / "checkpoints").rename(run / "of-a-checkpointer-of-ones-own")
    (found,) = (each for each in list_runs(run.parent) if each.path == run)
    assert (found.step, found.steps, found.state) == (2, 2, "complete")
