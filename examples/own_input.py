"""Train a model of your own on data of your own: a classifier of drawn digits.

    python examples/own_input.py

A batch is any registered dataclass whose arrays share their rows. An input gives its spec and the
rows of a step; a model reads it and adds a loss. Neither needs a tokenizer or a vocabulary.
"""

import sys
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import dovetail
from dovetail.config import Component
from dovetail.experiments import experiment
from dovetail.learner import ConstantSchedule, Learner
from dovetail.module import ArraySpec, Mean, Module, parameter
from dovetail.trainer import HeldOutLoss, Trainer

# The segments of each digit on a seven-segment display, and their places: y, x, height, width.
SEGMENTS = ("abcdef", "bc", "abged", "abgcd", "fgbc", "afgcd", "afgedc", "abc", "abcdefg", "abcdfg")
SIZE = 12


def draw(digit: int, random: np.random.Generator) -> np.ndarray:
    """Draws a digit of seven segments at a random place, with noise."""
    left, top = random.integers(1, 5), random.integers(0, 3)
    image = random.normal(0.0, 0.15, (SIZE, SIZE))
    lines = {
        "a": (0, 0, 1, 5),
        "g": (4, 0, 1, 5),
        "d": (8, 0, 1, 5),
        "f": (0, 0, 5, 1),
        "b": (0, 4, 5, 1),
        "e": (4, 0, 5, 1),
        "c": (4, 4, 5, 1),
    }
    for segment in SEGMENTS[digit]:
        y, x, height, width = lines[segment]
        image[top + y : top + y + height, left + x : left + x + width] += 1.0
    return image.astype(np.float32)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class ImageBatch:
    """Images [batch, height, width] and their labels [batch]."""

    images: Any
    labels: Any

    def items(self) -> dict[str, int]:
        """Counts images, for the throughput in images/s."""
        return {"images": self.images.shape[0]}


class DrawnDigits(Component):
    """An endless input of drawn digits: a pure function of the seed and the step."""

    class Config(Component.Config["DrawnDigits"]):
        batch_size: int = 64
        seed: int = 0

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.batch_size, self.seed = config.batch_size, config.seed

    def spec(self) -> ImageBatch:
        images = ArraySpec((self.batch_size, SIZE, SIZE), "float32", ("batch", None, None))
        return ImageBatch(images, ArraySpec((self.batch_size,), "int32", ("batch",)))

    def batch(self, step: int, rows: slice | None = None) -> ImageBatch:
        numbers = range(self.batch_size)[rows or slice(None)]
        random = [np.random.default_rng((self.seed, step, number)) for number in numbers]
        labels = [int(each.integers(10)) for each in random]
        images = [draw(label, each) for label, each in zip(labels, random, strict=True)]
        return ImageBatch(np.stack(images), np.array(labels, np.int32))

    def held_out(self, num_batches: int | None = None) -> "HeldOutDigits":
        return HeldOutDigits(self, num_batches or 4)


class HeldOutDigits:
    """Batches that training never sees: those of steps from 2**30 on."""

    def __init__(self, source: DrawnDigits, num_batches: int) -> None:
        self.source, self.num_batches = source, num_batches

    def spec(self) -> ImageBatch:
        return self.source.spec()

    def batch(self, index: int, rows: slice | None = None) -> ImageBatch:
        return self.source.batch(2**30 + index, rows)


class DigitClassifier(Module):
    """Two layers on the pixels of an image."""

    class Config(Module.Config["DigitClassifier"]):
        hidden: int = 64

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        shape = (SIZE * SIZE, config.hidden)
        self.up = parameter(shape, ("embed", "mlp"), fan_in=(0,), fan_out=(1,))
        self.down = parameter((config.hidden, 10), ("mlp", None), fan_in=(0,), fan_out=(1,))

    def predict(self, images: jax.Array) -> jax.Array:
        """Returns the logits of ten digits; `run.model(images)` calls this."""
        return jax.nn.relu(images.reshape(len(images), -1) @ self.up) @ self.down

    def __call__(self, batch: ImageBatch) -> None:
        log_probs = jax.nn.log_softmax(self.predict(batch.images))
        rows = jnp.arange(len(batch.labels))
        self.add_loss("cross_entropy", -log_probs[rows, batch.labels].sum(), len(rows))
        correct = (log_probs.argmax(-1) == batch.labels).sum()
        self.add_summary("accuracy", Mean(correct, len(rows)))


def digits() -> Trainer.Config:
    return Trainer.Config(
        model=DigitClassifier.Config(),
        input=DrawnDigits.Config(),
        learner=Learner.Config(schedule=ConstantSchedule.Config(peak=3e-3)),
        evaluators={"held_out": HeldOutLoss.Config()},
        steps=150,
    )


experiment("digits-example", "a classifier of drawn digits", tiny=digits)(digits)


def main(*changes: str) -> dovetail.Run:
    run = dovetail.experiment("digits-example").override(*changes).train()
    print(run.evaluate())
    batch = run.trainer.input.batch(10**6)
    print("labels     ", batch.labels[:16])
    print("predictions", np.argmax(run.model(batch.images[:16]), axis=-1))
    return run


if __name__ == "__main__":
    main(*sys.argv[1:])
