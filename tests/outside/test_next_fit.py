"""A packing from outside the package: a run trains with it, and resumes."""

import pytest

from dovetail.data import TokenInput
from tests.outside.next_fit import NextFit
from tests.outside.steps import ONE, layout_on
from tests.trainer import conftest
from tests.trainer.test_trainer import losses, train

corpus, small = conftest.corpus, conftest.config


def test_rows_hold_documents_that_follow_each_other(small):
    source = small.input.set(packing=NextFit.Config(), sequence_length=1024).build()
    statistics = source.packing_statistics()
    assert statistics.tokens == source.prepare().splits["train"].tokens
    found = [
        [piece.document for piece in pieces]
        for step in range(8)
        for pieces in source.documents(step)
    ]
    assert any(len(documents) > 1 for documents in found)
    for documents in found:
        assert documents == list(range(documents[0], documents[0] + len(documents)))


@pytest.mark.slow
def test_a_run_trains_and_resumes(small, tmp_path):
    assert isinstance(small.input, TokenInput.Config)
    small.input.set(packing=NextFit.Config())
    small.set(mesh=layout_on(ONE))
    small.checkpointer.every = 2
    train(small.clone(steps=4), tmp_path / "whole")
    train(small.clone(steps=2), tmp_path / "run")
    train(small.clone(steps=4), tmp_path / "run")
    assert losses(tmp_path / "run") == losses(tmp_path / "whole")
