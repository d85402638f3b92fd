"""The cases that take longest to compile, by the end of their names: `make slow` runs them.

Each stands beside quicker cases of the same test, which the default run keeps.
"""

from __future__ import annotations

import re

HEAVY = (
    r"test_one_forward\.py::.*\[(gated delta|mamba2|adapted mixture|mixture block with)",
    r"test_one_forward\.py::.*\[shared stack in",
    r"test_one_forward\.py::.*\[(unrolled stack|stack of a recurrent|shared stack of a recurrent)",
    r"test_one_forward\.py::.*\[(recurrent hybrid|mixture, biased|shared layers)",
    r"test_merging\.py::.*computes_the_same\[(deepseek-v3|gemma3|gpt-oss|olmo2|phi3|qwen2|qwen3)",
    r"test_every_layer\.py::.*\[(recurrent-hybrid|shared-stack-of-mixtures|mixture-of-directed)",
    r"test_lora\.py::test_only_the_adapters_are_trained\[qwen3-30b-a3b\]",
    r"test_distillation\.py::.*\[(qwen3-30b-a3b|deepseek-v3)\]",
    r"test_registry\.py::test_the_tiny_form_trains_and_evaluates\[(qwen3-30b-a3b|deepseek-v3)\]",
    r"test_workload\.py::test_every_kernel_is_counted\[.*(deepseek-v3|tiny-hybrid|mixtral-8x7b)\]",
    r"test_trainer\.py::test_a_signal_finishes.*\[SIGTERM\]",
    r"test_rounded\.py::.*\[fp8\]",
)

_PATTERN = re.compile("|".join(HEAVY))


def is_heavy(name: str) -> bool:
    """Says whether a test, by its whole name, is one of these."""
    return _PATTERN.search(name) is not None
