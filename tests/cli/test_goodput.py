"""`dovetail goodput`: of a run as text, JSON and a page; and the simulator."""

import json
import re

import pytest

from dovetail.cli import main
from tests.cli.pages import Page


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A run of two lives, of which the second repeats four of sixteen steps."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "runs" / "a<b>"
    (folder / "goodput").mkdir(parents=True)
    (folder / "run.json").write_text("{}")
    restart = {"event": "Restart", "cause": "crash by SIGKILL", "step": 10}
    (folder / "events.jsonl").write_text(json.dumps(restart) + "\n")
    lives = {
        1: [
            {"at": 20.0, "seconds": {"start": 10.0, "compile": 10.0}},
            {"at": 41.0, "seconds": {"step": 20.0, "save": 1.0}, "steps": [0, 10], "saves": 2},
        ],
        2: [
            {"at": 60.0, "seconds": {"start": 5.0, "restore": 3.0, "compile": 2.0}},
            {"at": 80.0, "seconds": {"step": 20.0}, "steps": [6, 16], "done": True},
        ],
    }
    for life, records in lives.items():
        text = "".join(json.dumps(record) + "\n" for record in records)
        (folder / "goodput" / f"{life:06d}-0.jsonl").write_text(text)
    return folder


def output(capsys, *argv):
    assert main(["goodput", *argv]) == 0
    return capsys.readouterr().out


def test_the_report_has_a_table_and_a_timeline(run, capsys):
    shown = output(capsys, "a<b>")
    assert "goodput 40.00% of 1 min 20 s; 40.00% in the last hour" in shown
    assert "step 16; 4 steps repeated" in shown
    assert "2 lives; 1 restart by the supervisor (crash by SIGKILL 1)" in shown
    assert re.search(r"^rolled back +8 s +10\.00%$", shown, re.MULTILINE)
    assert re.search(r"^idle +9 s +11\.25%$", shown, re.MULTILINE)
    assert "evaluation" not in shown, "no time went there"
    rows = re.findall(r"\|(.{64})\|", shown)
    marks = "".join(rows)
    assert re.fullmatch(r"[sc]+█+·+s+r*c*█+", marks), marks
    assert len(marks) == 2 * 64
    assert marks.count("·") == pytest.approx(128 * 9 / 80, abs=1)


def test_the_same_as_json(run, capsys):
    facts = json.loads(output(capsys, str(run), "--json"))
    assert facts["goodput"] == 0.4
    assert facts["wall_seconds"] == sum(facts["seconds"].values()) == 80.0
    assert (facts["lives"], facts["repeated_steps"], facts["saves"]) == (2, 4, 2)
    assert facts["restarts"] == {"crash by SIGKILL": 1}


@pytest.mark.parametrize("flag", ["--html", "--page"])
def test_the_same_as_a_page(run, capsys, tmp_path, flag):
    output(capsys, str(run), flag, str(tmp_path / "page.html"))
    shown = Page((tmp_path / "page.html").read_text())
    assert "Goodput of a<b>" in shown.text
    assert "rolled back" in shown.text
    assert "goodput 40.00% of 1 min 20 s" in shown.text
    assert not shown.loads


def test_a_run_without_a_log_is_explained(run, capsys):
    for file in (run / "goodput").iterdir():
        file.unlink()
    assert main(["goodput", "a<b>"]) == 2
    assert "has no goodput log" in capsys.readouterr().err


def test_the_simulator_compares_intervals_and_spares(capsys):
    shown = output(capsys, "simulate", "--days", "10", "--hosts", "2048", "--seed", "1")
    assert re.search(
        r"^goodput 9\d\.\d\d% \(±0\.\d\d%\) on 2,048 hosts, a failure every 3 h", shown
    )
    for name in ("as given", "best simulated", "Young, multi-level", "Daly", "save stall"):
        assert re.search(rf"^{name} ", shown, re.MULTILINE), name
    again = output(capsys, "simulate", "--days", "10", "--hosts", "2048", "--seed", "1")
    assert shown == again


def test_options_change_the_scenario(run, capsys):
    assert " on 1 host, a failure every " in output(capsys, "simulate", "--hosts", "1")
    options = ["--hosts", "100", "--interval", "30", "--durable-share", "0", "--spares", "0"]
    facts = json.loads(
        output(capsys, "simulate", *options, "--kinds", "byterobust", "--days", "5", "--json")
    )
    assert facts["scenario"]["hosts"] == 100
    assert facts["scenario"]["local"]["interval"] == 30
    assert facts["scenario"]["kinds"][0]["name"] == "CUDA error"
    assert set(facts["spares"]) == {"0", "1", "2", "4", "8", "16"}
    measured = json.loads(
        output(capsys, "simulate", "--phases-of", "a<b>", "--days", "5", "--json")
    )
    of_a_cluster = json.loads(
        output(capsys, "simulate", "--rate", "rsc-1", "--days", "5", "--json")
    )
    assert of_a_cluster["scenario"]["rate"] == 6.5
    assert measured["scenario"]["start"] == 7.0
    assert measured["scenario"]["detect"] == 9.0
    assert measured["scenario"]["local"]["stall"] == 0.5
    assert measured["scenario"]["local"]["restore"] == 3.0


def test_published_rows_stand_beside_ours(capsys):
    shown = output(capsys, "simulate", "--table", "--days", "20")
    assert re.search(r"Llama 3 405B .* above 90% +9\d\.\d%", shown)
    assert re.search(r"ByteRobust .* 97% on 9,600 GPUs +9\d\.\d%", shown)
    assert re.search(r"AXLearn .* 21 min lost per failure", shown)
    assert "Ours: the failure rate of Llama 3" in " ".join(shown.split())
    rows = json.loads(output(capsys, "simulate", "--table", "--days", "20", "--json"))
    assert rows[-1]["goodput"] > 0.97


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["a<b>", "--hosts", "3"], "--hosts is an option of the simulator"),
        (["simulate", "--hosts", "0"], "hosts: expected more than 0"),
        (["simulate", "--days", "-1"], "--days: expected 0.1 to 10,000"),
        (["simulate", "--kinds", "mine"], "expected one of llama3, byterobust, got 'mine'"),
        (["simulate", "--html", "page.html"], "--html draws the goodput of a run"),
        (["simulate", "--phases-of", "nowhere"], "nowhere is not a run folder"),
        (["nowhere"], "nowhere is not a run folder"),
    ],
)
def test_mistakes_are_explained(run, capsys, argv, message):
    assert main(["goodput", *argv]) == 2
    assert message in capsys.readouterr().err


def test_an_unknown_cluster_names_those_there_are(capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["goodput", "simulate", "--rate", "rsc-9"])
    assert "--rate: expected a number or one of llama3, rsc-1" in capsys.readouterr().err
