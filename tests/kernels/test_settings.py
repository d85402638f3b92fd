"""kernels.strict and kernels.prefer: the settings of a run reach what is traced."""

from __future__ import annotations

from functools import partial

import jax
import pytest

from dovetail.config import ConfigError, from_text
from dovetail.kernels import (
    KernelSettings,
    SlowKernelError,
    SlowKernelWarning,
    choices,
    clear_choices,
    target_platform,
)
from dovetail.kernels.attention import Causal, attention
from tests.kernels.attention.cases import aligned_call, arrays


def call() -> None:
    """Calls attention in a way that no fast kernel of a GPU takes."""
    arguments = aligned_call(Causal(), 1, 200, is_packed=True)
    with target_platform("gpu"):
        jax.eval_shape(partial(attention, **arguments), *arrays(1, 200, 200, 2, 2, 16))


def test_by_default_a_slow_choice_is_a_warning() -> None:
    clear_choices()
    with KernelSettings.Config().build().in_force(), pytest.warns(SlowKernelWarning):
        call()


def test_strict_makes_it_an_error_that_says_what_to_do() -> None:
    with (
        KernelSettings.Config(strict=True).build().in_force(),
        pytest.raises(SlowKernelError, match=r"kernels.strict=true.*leave strict off") as caught,
    ):
        call()
    assert isinstance(caught.value, ConfigError), "so that the command line prints it in one line"


def test_the_preferred_implementation_runs_and_is_recorded() -> None:
    clear_choices()
    with KernelSettings.Config(prefer={"attention": "reference"}).build().in_force():
        call()
    assert choices() == ["attention: reference (gpu, preferred)"]


def test_an_unknown_name_is_refused_when_the_run_is_built() -> None:
    with pytest.raises(ConfigError, match="Did you mean 'splash'"):
        KernelSettings.Config(prefer={"attention": "splosh"}).build()


def test_old_names_of_ops_still_load() -> None:
    old = {"attention_piece": "reference", "exchange": "ragged"}
    config = from_text(f"dovetail.kernels:KernelSettings()\nprefer = {old}")
    assert config.build().prefer == {"attention_chunk": "reference", "all_to_all": "ragged"}
