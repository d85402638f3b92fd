"""Greedy generation gives the tokens of transformers, for every family."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dovetail.generate import Generator, Greedy
from dovetail.models import families
from tests.parity.reference import pair

NEW = 12


@pytest.mark.parametrize("name", families())
def test_greedy_tokens(name: str) -> None:
    one = pair(name)
    prompt = np.random.default_rng(2).integers(3, 96, (1, 9))
    with torch.no_grad():
        theirs = one.theirs.generate(
            torch.tensor(prompt),
            attention_mask=torch.ones(1, 9, dtype=torch.long),
            max_new_tokens=NEW,
            min_new_tokens=NEW,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )[0, 9:].tolist()
    generator = Generator(one.ours.config, one.params, length=9 + NEW, variables=one.variables)
    (ours,) = generator.generate([prompt[0].tolist()], max_new_tokens=NEW, sampler=Greedy.Config())
    assert len(theirs) == NEW
    assert ours.tokens == theirs
