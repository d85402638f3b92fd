"""What verbs print for people."""

from dovetail.cli.output import format_metrics
from dovetail.cli.train_summary import summary
from dovetail.trainer import Outcome


def test_texts_are_above_the_numbers():
    found = format_metrics({"a/loss": 2.34567, "samples/0": "def f():", "b/items": 12})
    assert found == "--- samples/0\ndef f():\n\na/loss   2.346\nb/items  12"
    assert format_metrics({"samples/0": "x"}) == "--- samples/0\nx"
    assert format_metrics({}) == ""


def test_the_summary_of_a_run_shows_metrics_of_evaluators_alone(tmp_path):
    (tmp_path / "run.json").write_text("{}")
    metrics = {"loss": 1.0, "held_out/loss": 2.0, "badput/compile": 0.3, "samples/0": "text"}
    blocks = summary(Outcome(4, metrics=metrics), tmp_path, "end").split("\n\n")
    assert blocks == ["--- samples/0\ntext", "held_out/loss  2", "end"]
