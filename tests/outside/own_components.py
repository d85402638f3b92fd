"""A checkpointer and an input from outside, each in a few lines."""

import functools
from pathlib import Path

import jax
import numpy as np

from dovetail.config import Component
from dovetail.data import ByteTokenizer
from dovetail.module import sequence_batch_spec, token_batch


class NumpyCheckpointer(Component):
    """Saves every array of the state in one `.npz` file a step."""

    class Config(Component.Config["NumpyCheckpointer"]):
        every: int = 100

    def __init__(self, config):
        super().__init__(config)
        self.every, self.folder = config.every, None

    def open(self, folder: Path):
        self.folder = folder

    def steps(self):
        return sorted(int(path.stem) for path in self.folder.glob("*.npz"))

    def due(self, step):
        return step % self.every == 0

    def save(self, step, state):
        self.folder.mkdir(parents=True, exist_ok=True)
        leaves = jax.tree_util.tree_leaves_with_path(state)
        arrays = {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in leaves}
        np.savez(self.folder / f"{step}.npz", **arrays)

    def restore(self, like):
        if not self.steps():
            return None
        with np.load(self.folder / f"{self.steps()[-1]}.npz") as saved:
            place = functools.partial(_place, saved)
            state = jax.tree_util.tree_map_with_path(place, like)
        return self.steps()[-1], state

    def restore_parameters(self, like):
        if not self.steps():
            return None
        with np.load(self.folder / f"{self.steps()[-1]}.npz") as saved:
            arrays = {}
            for path, spec in like.items():
                for group in ("params", "variables"):
                    if f".{group}['{path}']" in saved:
                        array = saved[f".{group}['{path}']"]
                        arrays[path] = jax.device_put(array, spec.sharding)
        return self.steps()[-1], arrays

    def finish(self):
        return True


def _place(saved, path, spec):
    return jax.device_put(saved[jax.tree_util.keystr(path)], spec.sharding)


class Sums(Component):
    """An input of sums such as `3+4=7;`, in bytes: a pure function of the step."""

    class Config(Component.Config["Sums"]):
        batch_size: int = 8
        length: int = 24

    def __init__(self, config):
        super().__init__(config)
        self.batch_size, self.length = config.batch_size, config.length
        self.tokenizer, self.vocab_size = ByteTokenizer.Config().build(), 257

    def load_tokenizer(self, folder):
        return self.tokenizer

    def spec(self):
        return sequence_batch_spec(self.batch_size, self.length)

    def batch(self, step, rows=None):
        numbers = range(self.batch_size)[rows or slice(None)]
        return token_batch(np.stack([self._row(step, number) for number in numbers]))

    def _row(self, step, number):
        random, text = np.random.default_rng((step, number)), ""
        while len(text) <= self.length:
            one, other = random.integers(10, size=2)
            text += f"{one}+{other}={one + other};"
        return self.tokenizer.encode(text)[: self.length + 1]
