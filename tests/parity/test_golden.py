"""Golden logits of tests/models are those of transformers; `GOLDEN=1 make parity` writes them."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest
import torch
import transformers

from dovetail.experiments.published import published_sizes
from dovetail.models import families
from tests.models.formula import TOKENS
from tests.models.test_families import GOLDEN, SHOWN
from tests.parity.reference import pair


@pytest.mark.parametrize("name", families())
def test_golden_logits(name: str) -> None:
    with torch.no_grad():
        logits = pair(name).theirs(torch.tensor(TOKENS)).logits[0, :, :SHOWN].double().numpy()
    file = GOLDEN / f"{name}.json"
    if os.environ.get("GOLDEN"):
        rows = [[round(float(value), 6) for value in row] for row in logits]
        lines = ",\n  ".join(json.dumps(row) for row in rows)
        about = f"transformers {transformers.__version__}"
        file.write_text(f'{{"by": "{about}", "logits": [\n  {lines}\n]}}\n')
    np.testing.assert_allclose(json.loads(file.read_text())["logits"], logits, atol=2e-5)


@pytest.mark.parametrize("name", published_sizes())
def test_every_size_has_as_many_parameters_as_theirs(name: str) -> None:
    size = published_sizes()[name]
    family = families()[size.family]
    settings = transformers.AutoConfig.for_model(family.model_type, **size.values)
    with torch.device("meta"):
        model = getattr(transformers, family.architecture)(settings)
    model.tie_weights()
    assert model.num_parameters() == size.parameters
