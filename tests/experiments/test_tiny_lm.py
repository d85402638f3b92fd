"""tiny-lm is worth watching: what the README says of it holds."""

import pytest

from dovetail.experiments import find_experiment
from dovetail.parallel import MeshLayout


@pytest.mark.slow
def test_tiny_lm_beats_the_trigram_and_writes_python(tmp_path):
    config = find_experiment("tiny-lm").config().set(writers={})
    config.mesh = MeshLayout.Config(data=-1, fsdp=1)
    figures = config.build().train(tmp_path).figures
    assert figures["held_out/bits_per_byte"] < figures["trigram/bits_per_byte"] - 0.5
    assert figures["samples/python_lines"] >= 0.7
