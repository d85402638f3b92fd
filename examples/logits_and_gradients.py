"""Load a run, and compute logits, the loss of a text, and its gradients.

dovetail train tiny-lm
python examples/logits_and_gradients.py runs/tiny-lm
"""

import sys

import jax
import jax.numpy as jnp

import dovetail

TEXT = "def add(a, b):\n    return a + b\n"


def main(folder: str = "runs/tiny-lm") -> None:
    run = dovetail.load(folder)

    logits = run.logits(TEXT)  # [tokens, vocabulary]
    next_token = int(jnp.argmax(logits[-1]))
    print(f"{logits.shape} logits; next: {run.tokenizer.decode([next_token])!r}")

    loss, gradients = jax.value_and_grad(lambda params: run.loss(TEXT, params))(run.params)
    print(f"loss {loss:.3f}")
    for path, gradient in gradients.items():
        print(f"{path}  gradient norm {jnp.linalg.norm(gradient):.3g}")

    tokens = jnp.asarray(run.tokenizer.encode(TEXT))[None]
    assert jnp.allclose(run.model(tokens)[0], logits)  # the model itself, on token ids


if __name__ == "__main__":
    main(*sys.argv[1:])
