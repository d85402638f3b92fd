"""The trainer: the only place where model, learner, data and runtime meet."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import jax

from dovetail.config import REQUIRED, ConfigError, ConfigOf, Part, incidental
from dovetail.data import Input
from dovetail.kernels import KernelSettings
from dovetail.learner import Learner
from dovetail.module import Module
from dovetail.parallel import AnyMesh, AxisRules, MeshLayout, Placement
from dovetail.runtime import Checkpointer, Console, JsonLines, StopRequest, TensorBoard, Writer
from dovetail.trainer.interfaces import Evaluator, StateLearner, StateSaver
from dovetail.trainer.loop import Hooks, Loop, Outcome
from dovetail.trainer.program import Program
from dovetail.trainer.start import FromScratch, Start


class Trainer(Part):
    """Trains a model on an input for a number of steps."""

    class Config(Part.Config["Trainer"]):
        """Model, learner, input, start and seed are a run's identity; the rest may change."""

        model: ConfigOf[Module] = REQUIRED
        learner: ConfigOf[StateLearner] = Learner.Config()
        input: ConfigOf[Input] = REQUIRED
        start: ConfigOf[Start] = FromScratch.Config()
        seed: int = 0
        steps: int = incidental(REQUIRED)
        evaluators: dict[str, ConfigOf[Evaluator]] = incidental({})
        checkpointer: ConfigOf[StateSaver] = incidental(Checkpointer.Config())
        writers: dict[str, ConfigOf[Writer]] = incidental(
            {
                "console": Console.Config(),
                "json": JsonLines.Config(),
                "tensorboard": TensorBoard.Config(),
            }
        )
        mesh: ConfigOf[MeshLayout] = incidental(MeshLayout.Config())
        rules: ConfigOf[AxisRules] = incidental(AxisRules.Config())
        kernels: ConfigOf[KernelSettings] = incidental(KernelSettings.Config())
        log_every: int = incidental(1)

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        if config.steps < 1 or config.log_every < 1:
            raise ConfigError(
                f"steps={config.steps} and log_every={config.log_every} must be 1 or more."
            )
        self.steps, self.seed, self.log_every = config.steps, config.seed, config.log_every
        self.input = config.input.build()
        self.model = _with_vocabulary(config.model, self.input.vocab_size).build()
        self.learner = config.learner.build(total_steps=config.steps)
        self.mesh, self.rules = config.mesh.build(), config.rules.build()
        self.kernels = config.kernels.build()
        self.evaluators = {name: child.build() for name, child in config.evaluators.items()}
        self.checkpointer = config.checkpointer.build()
        self.start = config.start.build()
        self.writers = {name: child.build() for name, child in config.writers.items()}

    @functools.lru_cache(maxsize=1)  # noqa: B019  # a trainer lives as long as the process
    def program(self, devices: Any = None) -> Program:
        """Returns the step of this experiment, ready to be compiled for some devices."""
        return self.program_on(self.mesh.mesh(devices))

    def program_on(self, mesh: AnyMesh) -> Program:
        """Returns the step on a mesh, which may be one of devices that are not there."""
        placement = Placement(mesh, self.rules)
        _check_batch(self.input.spec(), placement)
        self.learner.check(placement)
        key = functools.partial(jax.random.key, self.seed)
        parts = (self.model, self.learner, self.input.spec())
        return Program(*parts, placement, key, self.kernels.in_force)

    def check(self, folder: Path) -> None:
        """Raises a ConfigError for what would stop a run in this folder; writes nothing there."""
        self.program().check()
        self.input.prepare()
        if self.evaluators:
            _ = self.input.held_out().num_batches  # an input without held-out data says so
        saved = self.saved_step(folder)
        if not saved:
            self.start.check()
        if saved > self.steps:
            raise ConfigError(
                f"steps: the run in {folder} is at step {saved} already, past the {self.steps} "
                "asked for. Ask for more steps, or choose another folder."
            )

    def saved_step(self, folder: Path) -> int:
        """Returns the step that the run in a folder is saved at; 0 where nothing is."""
        self.checkpointer.open(folder / "checkpoints")
        return max(self.checkpointer.steps(), default=0)

    def train(
        self, folder: Path, hooks: Hooks | None = None, stop: StopRequest | None = None
    ) -> Outcome:
        """Trains to the end, or until a signal; continues a run that is already in the folder."""
        self.check(folder)
        return Loop(self, folder, hooks, stop).run()


def _with_vocabulary(model: Any, size: int) -> Any:
    """Tells the model how many tokens the input has, unless it says so itself."""
    if "vocab_size" not in model.fields():
        return model
    if model.vocab_size is REQUIRED:
        return model.clone(vocab_size=size)
    if model.vocab_size < size:
        raise ConfigError(
            f"model.vocab_size: the tokenizer has {size} tokens, but the model only "
            f"{model.vocab_size}. Leave model.vocab_size out, or make it at least as large."
        )
    return model


def _check_batch(spec: Any, placement: Placement) -> None:
    tokens = spec.tokens
    placement.sharding(tokens.axes, tokens.shape, "input.batch_size (the global batch)")
