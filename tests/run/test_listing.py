"""`dovetail runs` and `dovetail compare`: on folders as training leaves them, without training."""

import json
import re

import pytest

import dovetail
from dovetail.cli import main
from dovetail.run import run_path
from dovetail.runtime import RunFolder


@pytest.fixture
def make_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def make(name, *overrides, losses=(5.0, 4.0), steps=2):
        experiment = dovetail.experiment("tiny-lm").override(*overrides, f"steps={steps}")
        folder = tmp_path / "runs" / name
        folder.mkdir(parents=True)
        RunFolder(folder).describe(experiment.config, experiment.about())
        entries = [
            {"step": step, "loss": loss, "steps": steps}
            for step, loss in enumerate(losses, start=1)
        ]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(e) + "\n" for e in entries))
        return folder

    return make


def rows(capsys, *arguments):
    assert main(["runs", "--json", *arguments]) == 0
    return {row["path"].split("/")[-1]: row for row in json.loads(capsys.readouterr().out)}


def test_runs_are_listed_with_changes_state_and_loss(make_run, capsys):
    make_run("plain")
    make_run("fast", "learner.schedule.peak=0.02", losses=(5.0,))
    make_run("new", losses=())
    (make_run("broken") / "run.json").write_text("{")
    found = rows(capsys)
    assert {name: row["state"] for name, row in found.items()} == {
        "plain": "complete",
        "fast": "stopped",
        "new": "empty",
        "broken": "damaged",
    }
    assert (found["plain"]["loss"], found["plain"]["step"], found["plain"]["steps"]) == (4.0, 2, 2)
    assert found["fast"]["changes"] == ["learner.schedule.peak=0.02", "steps=2"]
    assert main(["runs"]) == 0
    out, err = capsys.readouterr()
    assert re.search(r"fast +peak=0.02 steps=2 +stopped +1/2 +5\.000", out)
    assert "broken/run.json cannot be read as JSON" in err


def test_a_loop_that_writes_no_metrics_is_judged_by_its_checkpoints(make_run, capsys):
    folder = make_run("own", losses=(), steps=4)
    for step in (2, 4):
        (folder / "checkpoints" / f"{step}-1").mkdir(parents=True)
        (folder / "checkpoints" / f"{step}-1" / "manifest.json").write_text("{}")
    row = rows(capsys)["own"]
    assert (row["state"], row["step"], row["steps"], row["loss"]) == ("complete", 4, 4, None)


def test_a_run_that_is_trained_longer_is_not_complete(make_run, capsys):
    """It was stopped before it logged a step."""
    folder = make_run("longer")
    experiment = dovetail.experiment("tiny-lm").override("steps=4")
    RunFolder(folder).describe(experiment.config, experiment.about())
    row = rows(capsys)["longer"]
    assert (row["state"], row["step"], row["steps"]) == ("stopped", 2, 4)


def test_a_target_is_a_change(make_run, capsys):
    folder = make_run("here")
    about = dovetail.experiment("tiny-lm").target("cpu-8").override("seed=1").about()
    (folder / "run.json").write_text(json.dumps(about))
    assert rows(capsys)["here"]["changes"] == ["target=cpu-8", "seed=1"]


def test_a_run_is_named_by_its_path_or_its_name(make_run, tmp_path):
    folder = make_run("fast")
    assert run_path("fast").resolve() == run_path("runs/fast").resolve() == folder
    assert run_path(folder) == folder
    assert str(run_path("nothing")) == "nothing"
    (tmp_path / "fast").mkdir()
    assert run_path("fast").resolve() == folder, "a folder that is no run hides none"
    assert dovetail.load("fast").about == dovetail.load(folder).about


def test_runs_are_filtered_by_words(make_run, capsys):
    make_run("plain")
    make_run("fast", "learner.schedule.peak=0.02", losses=(5.0,))
    assert set(rows(capsys, "peak")) == {"fast"}
    assert set(rows(capsys, "tiny-lm", "complete")) == {"plain"}
    assert main(["runs", "nothing"]) == 0
    assert "no runs that match 'nothing'" in capsys.readouterr().err


def test_a_run_is_deleted_by_its_exact_name_unless_it_is_training(make_run, capsys):
    kept, gone = make_run("kept"), make_run("gone")
    holder = RunFolder(kept)
    holder.claim(dovetail.experiment("tiny-lm").override("steps=2").config)
    assert rows(capsys)["kept"]["state"] == "running"
    assert main(["runs", "--delete", "gon"]) == 2
    assert "Did you mean 'gone'" in capsys.readouterr().err
    assert main(["runs", "--delete", "kept"]) == 2
    assert "a process is writing to this run" in capsys.readouterr().err
    assert main(["runs", "--delete", "gone"]) == 0
    holder.release()
    assert kept.is_dir()
    assert not gone.exists()
    assert main(["runs", "--delete"]) == 2
    (kept.parent / "mine").mkdir()
    assert main(["runs", "--delete", "mine"]) == 2, "a folder that is no run is never deleted"


def test_the_run_of_the_listed_folder_is_deleted(make_run, tmp_path):
    run = make_run("tiny-lm")
    archived = run.rename(tmp_path / "archive")
    (tmp_path / "both").mkdir()
    archived = archived.rename(tmp_path / "both" / "tiny-lm")
    here = make_run("tiny-lm").rename(tmp_path / "tiny-lm")
    assert main(["runs", "--in", "both", "--delete", "tiny-lm"]) == 0
    assert here.is_dir()
    assert not archived.exists()


def test_goodput_of_a_newer_run_is_refused(make_run, capsys):
    folder = make_run("newer")
    about = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps(about | {"format": 99}))
    for command in (["goodput", "newer"], ["goodput", "simulate", "--phases-of", "newer"]):
        assert main(command) == 2
        assert "written by a newer Dovetail" in capsys.readouterr().err
    assert main(["goodput", "simulate", "--phases-of", "newr"]) == 2
    assert "newr is not a run folder. Did you mean 'newer'" in capsys.readouterr().err


def test_the_versions_of_earlier_lives_are_kept(make_run, monkeypatch):
    folder = make_run("long")
    experiment = dovetail.experiment("tiny-lm").override("steps=2")
    for version in ("1", "1", "2"):
        monkeypatch.setattr(
            "dovetail.runtime.run_folder.package_versions", lambda value=version: {"jax": value}
        )
        RunFolder(folder).describe(experiment.config, experiment.about())
    about = RunFolder(folder).about()
    assert about["versions"] == {"jax": "2"}
    assert [each["versions"]["jax"] for each in about["earlier"]][1:] == ["1"]


def test_compare_shows_what_differs_and_the_curves(make_run, capsys, tmp_path):
    make_run("plain")
    make_run("<fast>", "learner.schedule.peak=0.02", losses=(4.5, 3.5))
    assert main(["compare", "plain", "<fast>"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"learner\.schedule\.peak +0\.01 +0\.02", out)
    assert re.search(r"step 2 +4 +3\.5", out)
    assert "input.batch_size" not in out, "what is equal is left out"
    # On one scale from 3.5 to 5: a loss of 4 is 2.67 rows high, and one of 4.5 is 5.33 rows.
    for name, top, third in (("plain", "█", "█▅"), ("<fast>", "", "█")):
        chart = out.partition(f"--- loss of {name}\n")[2].splitlines()
        assert chart[0].rstrip() == f"   5.000 |{top}"
        assert chart[5].rstrip() == f"         |{third}"
        assert chart[7].startswith("   3.500 |█")
    assert main(["compare", "plain", "runs/<fast>", "--json"]) == 0
    compared = json.loads(capsys.readouterr().out)
    assert compared["losses"]["<fast>"] == [[1, 4.5], [2, 3.5]]
    assert compared["metrics"]["loss"] == [4.0, 3.5]
    page = tmp_path / "page.html"
    assert main(["compare", "plain", "<fast>", "--html", str(page)]) == 0
    text = page.read_text()
    assert "<polyline" in text
    assert "&lt;fast&gt;" in text
    assert "<fast>" not in text


def test_compare_needs_two_runs_that_exist(make_run, capsys):
    make_run("plain")
    assert main(["compare", "plain"]) == 2
    assert main(["compare", "plain", "plane"]) == 2
    assert "plane is not a run folder. Did you mean 'plain'" in capsys.readouterr().err
