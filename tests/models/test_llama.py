"""Llama: the published number of parameters, and logits that agree with Hugging Face's."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail.config import from_text, to_text
from dovetail.layers import TokenContext
from dovetail.models.llama import llama
from dovetail.module import functional, parameter_specs

# What LlamaForCausalLM of transformers 5.22 gives for TOKENS with the weights of `formula`, its
# linear weights being the transposes of ours and its rms_norm_eps 1e-6.
TOKENS = [[1, 5, 2, 7]]
LOGITS = [
    [1.484672, -2.254766, -0.087033, -1.184543, -3.384258, 1.175758, -2.039863, -0.182128],
    [0.622069, -1.968518, -1.136489, -0.864966, -0.464355, -0.747070, -0.060456, -1.610034],
    [-0.417827, -2.072942, -1.264323, -0.237037, 0.653742, -1.076830, 0.467189, -1.646274],
    [1.094744, -1.173785, 1.513622, 2.200132, -0.951776, 0.137785, -1.501388, -0.506525],
]


def formula(path: str, shape: tuple[int, ...]) -> np.ndarray:
    """Weights that need no file: waves that run faster and faster, another phase a path."""
    wave = np.sin(np.arange(np.prod(shape)) ** 2 * 0.37 + sum(map(ord, path))).reshape(shape)
    return 1 + 0.3 * wave if path.endswith("scale") else 0.5 * wave


def test_logits_agree_with_hugging_face() -> None:
    config = llama(vocab_size=8, width=16, num_layers=2, num_heads=4, num_kv_heads=2, hidden=24)
    specs = parameter_specs(config.build())
    params = {p: jnp.asarray(formula(p, spec.shape), jnp.float32) for p, spec in specs.items()}
    positions = jnp.arange(4)[None]
    inputs = (jnp.asarray(TOKENS), TokenContext(positions, jnp.ones_like(positions)))
    model = config.build()
    score = jax.jit(lambda *arguments: functional(model, *arguments, method="all_logits")[0])
    logits = score(params, inputs)
    np.testing.assert_allclose(logits[0], LOGITS, atol=1e-5)


def count(**sizes: int | bool) -> int:
    specs = parameter_specs(llama(**sizes).build())  # type: ignore[arg-type]  # sizes by name
    return sum(spec.size for spec in specs.values())


@pytest.mark.parametrize(
    ("published", "sizes"),
    [
        (6_738_415_616, (32_000, 4096, 32, 32, 32, 11_008)),  # Llama 2 7B
        (68_976_648_192, (32_000, 8192, 80, 64, 8, 28_672)),  # Llama 2 70B
        (8_030_261_248, (128_256, 4096, 32, 32, 8, 14_336)),  # Llama 3 8B
    ],
)
def test_published_numbers_of_parameters(published: int, sizes: tuple[int, ...]) -> None:
    vocab, width, layers, heads, kv_heads, hidden = sizes
    total = count(
        vocab_size=vocab,
        width=width,
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=kv_heads,
        hidden=hidden,
    )
    assert total == published


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("kv_heads", [1, 4])
def test_the_number_of_parameters_follows_from_the_sizes(tied: bool, kv_heads: int) -> None:
    vocab, width, layers, heads, hidden = 50, 24, 3, 4, 40
    key_width = kv_heads * width // heads
    layer = 2 * width * width + 2 * width * key_width + 3 * width * hidden + 2 * width
    expected = (1 if tied else 2) * vocab * width + layers * layer + width
    assert expected == count(
        vocab_size=vocab,
        width=width,
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=kv_heads,
        hidden=hidden,
        tied=tied,
    )


def test_text_round_trip() -> None:
    config = llama(vocab_size=8, width=8, num_layers=1, num_heads=2, hidden=8, tied=True)
    assert from_text(to_text(config)) == config
