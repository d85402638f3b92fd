"""Layers written again in plain numpy, in double precision, sharing nothing with the package.

They favour the textbook over speed: loops over heads and positions, complex numbers for rotations.
"""

from __future__ import annotations

import numpy as np

Array = np.ndarray


def rms_norm(x: Array, scale: Array, epsilon: float) -> Array:
    return x / np.sqrt(np.mean(np.square(x), axis=-1, keepdims=True) + epsilon) * scale


def layer_norm(x: Array, scale: Array, bias: Array, epsilon: float) -> Array:
    deviation = np.sqrt(np.var(x, axis=-1, keepdims=True) + epsilon)
    return (x - np.mean(x, axis=-1, keepdims=True)) / deviation * scale + bias


def swiglu(x: Array, gate: Array, up: Array, down: Array) -> Array:
    gated = x @ gate
    return (gated / (1 + np.exp(-gated)) * (x @ up)) @ down


def rotary(x_BSHD: Array, positions_BS: Array, base: float) -> Array:
    """Pairs feature i with i + D/2 as one complex number, and turns it."""
    half = x_BSHD.shape[-1] // 2
    numbers = x_BSHD[..., :half] + 1j * x_BSHD[..., half:]
    speed = base ** (-np.arange(half) / half)
    turned = numbers * np.exp(1j * positions_BS[:, :, None, None] * speed)
    return np.concatenate([turned.real, turned.imag], axis=-1)


def grouped_attention(
    q_BSHD: Array, k_BSKD: Array, v_BSKD: Array, segment_ids_BS: Array, scale: float
) -> Array:
    """Causal within each segment, one head, one row and one query at a time."""
    batch, length, heads, _ = q_BSHD.shape
    group = heads // k_BSKD.shape[2]
    result = np.zeros_like(q_BSHD)
    for b in range(batch):
        for h in range(heads):
            for s in range(length):
                seen = [t for t in range(s + 1) if segment_ids_BS[b, t] == segment_ids_BS[b, s]]
                scores = k_BSKD[b, seen, h // group] @ q_BSHD[b, s, h] * scale
                weights = np.exp(scores - scores.max())
                result[b, s, h] = weights / weights.sum() @ v_BSKD[b, seen, h // group]
    return result
