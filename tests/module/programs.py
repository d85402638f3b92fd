"""Compares compiled programs: does the module system leave anything behind after jit?"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import jax


def lowered(function: Callable[..., Any], *args: Any) -> str:
    """Returns what is handed to the compiler, with functions named by order of appearance."""
    text = jax.jit(function).lower(*args).as_text()
    names = dict.fromkeys(re.findall(r"@[\w.]+", text))
    for number, name in enumerate(names):
        text = re.sub(re.escape(name) + r"(?![\w.])", f"@function{number}", text)
    # Where a result came from in the tree of outputs is a label, not a computation.
    return re.sub(r"jax\.result_info = \"[^\"]*\"", "", text)


def operations(function: Callable[..., Any], *args: Any) -> Counter[str]:
    """Returns how often each operation stands in the optimised program."""
    text = jax.jit(function).lower(*args).compile().as_text()
    return Counter(re.findall(r"^\s+(?:ROOT )?%?[\w.-]+ = .*? ([a-z][\w-]*)\(", text, re.MULTILINE))


def temporary_bytes(function: Callable[..., Any], *args: Any) -> int:
    """Returns the memory that the optimised program needs beside arguments and results."""
    return jax.jit(function).lower(*args).compile().memory_analysis().temp_size_in_bytes
