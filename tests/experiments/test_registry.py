"""Every registered experiment: its tiny form trains."""

import numpy as np
import pytest

from dovetail.config import ConfigError
from dovetail.experiments import experiments, find_experiment
from dovetail.parallel import MeshLayout
from tests.experiments.tiny_models import every_tiny_model


@every_tiny_model("tiny-lm", "qwen3-30b-a3b", "deepseek-v3")
def test_the_tiny_form_trains_and_evaluates(name, tmp_path):
    config = experiments()[name].tiny()
    config.set(writers={}, mesh=MeshLayout.Config(data=-1, fsdp=1))
    outcome = config.build().train(tmp_path)
    assert outcome.step == config.steps
    assert np.isfinite(outcome.metrics["held_out/bits_per_byte"])
    if "samples" in config.evaluators:
        assert 0.0 <= outcome.metrics["samples/python_lines"] <= 1.0
        assert isinstance(outcome.metrics["samples/text_1"], str)


def test_an_unknown_name_gives_the_nearest():
    with pytest.raises(ConfigError, match=r"no experiment 'tinylm'.*'tiny-lm'"):
        find_experiment("tinylm")
