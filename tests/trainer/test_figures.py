"""Figures: their names as people read them."""

import pytest

from dovetail.learner import StepReport
from dovetail.trainer.figures import report_figures


@pytest.mark.parametrize(
    ("paths", "names"),
    [
        (["loss/next_token"], set()),  # the loss itself says it all
        (
            ["loss/next_token", "decoder/stack/feed_forward/losses/balance"],
            {"loss/next_token", "loss/balance"},
        ),
        (["a/balance", "b/balance"], {"loss/a/balance", "loss/b/balance"}),
    ],
)
def test_losses_are_named_by_the_end_of_their_path(paths, names):
    report = StepReport(
        loss=1.0,
        losses=dict.fromkeys(paths, 1.0),
        weight=1.0,
        gradient_norm=1.0,
        learning_rate=1.0,
        finite=True,
        bad_parameter=-1,
        summaries={},
    )
    assert {name for name in report_figures(report) if name.startswith("loss/")} == names
