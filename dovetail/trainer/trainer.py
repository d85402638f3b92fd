"""The trainer: the only place where model, learner, data and runtime meet."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

from dovetail.config import REQUIRED, Component, ConfigError, ConfigOf, incidental
from dovetail.data import HasHeldOut, HasPreparedData, HasVocabulary, Input
from dovetail.kernels import KernelSettings
from dovetail.learner import Learner, TrainState
from dovetail.module import ArraySpec, Module, batch_size, parameter_specs
from dovetail.parallel import AnyMesh, AxisRules, MeshLayout, Placement
from dovetail.runtime import (
    Checkpointer,
    Console,
    FaultPolicy,
    JsonLines,
    MetricsWriter,
    Preflight,
    RepeatSteps,
    StopFile,
    StopNotice,
    StopOnFaults,
    StopRequest,
    TensorBoard,
    reach,
)
from dovetail.trainer.feed import device_batch
from dovetail.trainer.initialization import Initialization, RandomInit, initial_state
from dovetail.trainer.interfaces import (
    ChecksInput,
    ChecksModel,
    DeviceCheck,
    Evaluator,
    StateLearner,
    StateSaver,
    StepCheck,
)
from dovetail.trainer.loop import Hooks, Outcome, TrainingLoop
from dovetail.trainer.program import Program
from dovetail.utils import format_count

_SEEDS = (-(2**31), 2**32 - 1)  # a random key takes 32 bits of its seed
_MAX_STEPS = 2**31 - 1  # the state counts steps in int32
_MAX_PARAMETER_SIZE = 2**46  # a hundred times the largest published model


class Trainer(Component):
    """Trains a model on an input for a number of steps."""

    class Config(Component.Config["Trainer"]):
        """Model, learner, input, initialization and seed identify a run; the rest may change."""

        model: ConfigOf[Module] = REQUIRED
        learner: ConfigOf[StateLearner] = Learner.Config()
        input: ConfigOf[Input] = REQUIRED
        initialization: ConfigOf[Initialization] = RandomInit.Config()
        seed: int = 0
        steps: int = incidental(REQUIRED)
        evaluators: dict[str, ConfigOf[Evaluator]] = incidental({})
        checkpointer: ConfigOf[StateSaver] = incidental(Checkpointer.Config())
        faults: ConfigOf[FaultPolicy] = incidental(StopOnFaults.Config())
        preflight: ConfigOf[DeviceCheck] = incidental(Preflight.Config())
        step_check: ConfigOf[StepCheck] = incidental(RepeatSteps.Config())
        stop_notices: dict[str, ConfigOf[StopNotice]] = incidental({"file": StopFile.Config()})
        writers: dict[str, ConfigOf[MetricsWriter]] = incidental(
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
        _check_range("steps", config.steps, 1, _MAX_STEPS)
        _check_range("log_every", config.log_every, 1, _MAX_STEPS)
        _check_range("seed", config.seed, *_SEEDS)
        self.steps, self.seed, self.log_every = config.steps, config.seed, config.log_every
        self.input = config.input.build()
        self.model = build_model(config.model, self.input)
        self.learner = config.learner.build(total_steps=config.steps)
        self.mesh, self.rules = config.mesh.build(), config.rules.build()
        self.kernels = config.kernels.build()
        self.evaluators = {name: child.build() for name, child in config.evaluators.items()}
        self.checkpointer, self.faults = config.checkpointer.build(), config.faults.build()
        self.preflight, self.step_check = config.preflight.build(), config.step_check.build()
        self.stop_notices = [child.build() for child in config.stop_notices.values()]
        self.initialization = config.initialization.build()
        self.writers = {name: child.build() for name, child in config.writers.items()}
        self.shows_progress = True

    def hide_progress(self) -> None:
        """Shows no progress to a person from now on; metrics are still written to files."""
        self.shows_progress = False
        others = {k: each for k, each in self.writers.items() if not isinstance(each, Console)}
        self.writers = others

    @functools.lru_cache(maxsize=1)  # noqa: B019  # a trainer lives as long as the process
    def program(self, devices: Any = None) -> Program:
        """Returns the program of this experiment for some devices, or for all."""
        return self.program_on(self.mesh.mesh(devices))

    def program_on(self, mesh: AnyMesh) -> Program:
        """Returns the program on a mesh, which may be abstract."""
        placement = Placement(mesh, self.rules)
        _check_sizes(self.model)
        self.rules.check_parameters(
            {path: spec.axes for path, spec in parameter_specs(self.model).items()}
        )
        _check_batch(self.input.spec(), placement)
        self.learner.check(placement)
        key = functools.partial(jax.random.key, self.seed)
        components = (self.model, self.learner, self.input.spec())
        return Program(*components, placement, key, self.kernels.in_force)

    def initial_state(self, log: Callable[[str], None] = lambda line: None) -> TrainState:
        """Returns the state before the first step, on the devices."""
        return initial_state(self.program(), self.initialization, log)

    def batch(self, step: int) -> Any:
        """Returns the global batch of a step, sharded over the devices."""
        program = self.program()
        return device_batch(self.input, step, program.batch_shardings, program.batch_spec)

    def check(self, folder: Path, *, prepare: bool = True) -> None:
        """Raises a ConfigError for what would stop a run in this folder; writes nothing there.

        Args:
            folder: the run folder.
            prepare: prepares the data. Without it, only the presence of the corpus is checked.
        """
        self.program().check()
        for evaluator in self.evaluators.values():
            if isinstance(evaluator, ChecksInput):
                evaluator.check_input(self.input)
            if isinstance(evaluator, ChecksModel):
                evaluator.check_model(self.model)
        if isinstance(self.input, HasPreparedData) and not prepare:
            self.input.check_data()
        elif isinstance(self.input, HasPreparedData):
            reach("data begins")
            self.input.prepare(self.shows_progress)
            reach("data prepared")
            if self.evaluators and isinstance(self.input, HasHeldOut):
                _ = self.input.held_out().num_batches  # an empty held-out split raises
        saved = self.saved_step(folder)
        if not saved:
            self.initialization.check()
        if saved > self.steps:
            raise ConfigError(
                f"steps: the run in {folder} is at step {saved} already, past the {self.steps} "
                "asked for. Set more steps, or choose another folder."
            )

    def saved_step(self, folder: Path) -> int:
        """Returns the newest saved step of the run in a folder; 0 if there is none."""
        checkpoints = folder / "checkpoints"
        if checkpoints.exists() and not checkpoints.is_dir():
            raise ConfigError(f"{checkpoints} is a file, not a folder. Remove it, or move it away.")
        self.checkpointer.open(checkpoints)
        return max(self.checkpointer.steps(), default=0)

    def train(
        self, folder: Path, hooks: Hooks | None = None, stop: StopRequest | None = None
    ) -> Outcome:
        """Trains to the last step, or until a signal; resumes a run that is in the folder."""
        self.check(folder)
        return TrainingLoop(self, folder, hooks, stop).run()


def build_model(model: ConfigOf[Module], source: Input) -> Module:
    """Builds the model of an experiment, with the vocabulary of its input."""
    built: Module = _with_vocabulary(model, source).build()
    return built


def _with_vocabulary(model: Any, source: Input) -> Any:
    """Sets the model's vocabulary size to the input's, unless it is set."""
    if "vocab_size" not in model.fields():
        return model
    if not isinstance(source, HasVocabulary):
        if model.vocab_size is REQUIRED:
            raise ConfigError(
                f"model.vocab_size: it is not set, and the input, {type(source).__name__}, has no "
                "vocabulary (a property vocab_size). Set model.vocab_size."
            )
        return model
    size = source.vocab_size
    if model.vocab_size is REQUIRED:
        return model.clone(vocab_size=size)
    if model.vocab_size < size:
        raise ConfigError(
            f"model.vocab_size: the tokenizer has {size} tokens, but the model only "
            f"{model.vocab_size}. Leave out model.vocab_size, or make it at least as large."
        )
    return model


def _check_range(name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise ConfigError(f"{name}: expected {low:,} to {high:,}, got {value:,}.")


def _check_sizes(model: Module) -> None:
    """Raises for a parameter so large that XLA, which counts in 64 bits, would abort."""
    for path, spec in parameter_specs(model).items():
        if spec.size > _MAX_PARAMETER_SIZE:
            raise ConfigError(
                f"The parameter {path} of shape {spec.shape} has {format_count(spec.size)} "
                f"elements, more than the {format_count(_MAX_PARAMETER_SIZE)} that can be planned. "
                "Which size was mistyped?"
            )


def _check_batch(spec: Any, placement: Placement) -> None:
    """Raises a ConfigError for a batch that does not divide over the mesh."""
    for leaf in jax.tree.leaves(spec):
        if not isinstance(leaf, ArraySpec):
            kind = type(leaf).__name__
            raise ConfigError(
                f"input.spec() has a {kind}, expected an ArraySpec for each array of the batch. Is "
                f"{kind} a dataclass without @jax.tree_util.register_dataclass?"
            )
    batch_size(spec)
    for leaf in jax.tree.leaves(spec):
        for name in leaf.axes:
            if (advice := placement.rules.misspelt(name)) is not None:
                raise ConfigError(f"input.spec(): {advice}")
        placement.sharding(leaf.axes, leaf.shape, "input.batch_size (the global batch)")
