"""What transformers wrote is imported, and what is exported is loaded by transformers again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from dovetail.interop import export_hf, import_hf
from dovetail.layers import Places
from dovetail.models import Family
from dovetail.module import functional, parameter_specs
from dovetail.runtime import RunFolder, read_parameters
from tests.interop.llama_family import TINY

pytestmark = pytest.mark.parity


def our_logits(run: Path, tokens: np.ndarray) -> np.ndarray:
    config: Any = RunFolder(run).config()
    model = config.model.build()
    like = {path: spec.struct() for path, spec in parameter_specs(model).items()}
    found = read_parameters(RunFolder(run), like)
    assert found is not None
    positions = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
    inputs = (jnp.asarray(tokens), Places(positions, jnp.ones_like(positions)))
    return np.asarray(functional(model, found[1], inputs, method="all_logits")[0])


@pytest.mark.parametrize("tied", [False, True])
def test_there_and_back(llama_family: Family, tmp_path: Path, tied: bool) -> None:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    said = {**TINY, "tie_word_embeddings": tied}
    config = AutoConfig.for_model(
        said["model_type"], **{k: v for k, v in said.items() if k != "model_type"}
    )
    before = AutoModelForCausalLM.from_config(config).eval()
    before.save_pretrained(tmp_path / "hf")
    import_hf(str(tmp_path / "hf"), tmp_path / "run", progress=False)
    export_hf(tmp_path / "run", tmp_path / "out", progress=False)
    after, report = AutoModelForCausalLM.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    tokens = np.random.default_rng(0).integers(0, 40, (2, 9))
    with torch.no_grad():
        wanted = before(torch.from_numpy(tokens)).logits.numpy()
        again = after.eval()(torch.from_numpy(tokens)).logits.numpy()
    np.testing.assert_array_equal(wanted, again)
    np.testing.assert_allclose(our_logits(tmp_path / "run", tokens), wanted, atol=1e-5)
