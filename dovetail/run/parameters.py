"""The parameters of a run: from its newest checkpoint, or else from imported weights."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import jax
import numpy as np

from dovetail.config import ConfigError, RunError
from dovetail.interop import RunWeights, SliceReader
from dovetail.module import Module, Spec, VariableSpec, parameter_specs, variable_specs
from dovetail.parallel import AxisRules, MeshLayout, Placement
from dovetail.runtime import ArraySpecs, RunFolder, StoredWeights, host_device

if TYPE_CHECKING:
    from dovetail.trainer import Trainer


class DamagedStepError(RunError):
    """The checkpoint that an export began with is damaged; an older one is intact."""

    def __init__(self, message: str, step: int) -> None:
        """Takes the step of the damaged checkpoint."""
        super().__init__(message)
        self.step = step


@dataclass(frozen=True)
class LoadedParameters:
    """All parameters and variables of a run, sharded over the devices of this machine."""

    step: int
    params: dict[str, jax.Array]
    variables: dict[str, jax.Array]
    placement: Placement


class RunParameters:
    """Reads the parameters of a run, through its own checkpointer."""

    def __init__(self, folder: RunFolder, config: Trainer.Config) -> None:
        """Reads no array yet."""
        self.folder = folder
        self.checkpointer = config.checkpointer.build()
        self.checkpointer.open(folder.checkpoints)

    def exist(self) -> bool:
        """Says whether there is a checkpoint, or imported weights."""
        return bool(self.checkpointer.steps()) or any(self.folder.weights.glob("*.safetensors"))

    def read(self, like: ArraySpecs) -> tuple[int, dict[str, jax.Array]] | None:
        """Returns (step, arrays) of the newest parameters; None if there are none yet.

        Arrays of `like` that are not stored are left out. Imported weights are step 0.

        Args:
            like: parameters and variables by path, as shapes, dtypes and shardings.
        """
        found = self.checkpointer.restore_parameters(like)
        if found is not None:
            return found
        weights = StoredWeights(self.folder.weights)
        return (0, weights.read(like)) if weights.shapes else None

    def load(self, model: Module, rules: AxisRules) -> LoadedParameters:
        """Loads everything that the model needs."""
        params, variables = parameter_specs(model), variable_specs(model)
        specs: dict[str, Spec] = {**params, **variables}
        placement = _local_placement(rules, specs)
        like = _structs(specs, placement)
        found = self.read(like)
        if found is None:
            raise RunError(
                f"{self.folder.path} has no checkpoint yet. Train first: `dovetail train`."
            )
        step, arrays = found
        missing = sorted(like.keys() - arrays.keys())
        if not step:  # imported weights have no variables
            fresh = [path for path in missing if isinstance(specs[path], VariableSpec)]
            initial = {path: specs[path].initial(jax.random.key(0), path) for path in fresh}
            arrays |= {path: jax.device_put(initial[path], like[path].sharding) for path in fresh}
            missing = [path for path in missing if path not in arrays]
        if missing:
            raise RunError(
                f"{self.folder.path}: its checkpoint of step {step} lacks {len(missing)} of the "
                f"model's parameters, such as {missing[0]!r}: config.txt or the model's code has "
                "changed since. Restore them, or train again."
            )
        return LoadedParameters(
            step,
            {path: arrays[path] for path in params},
            {path: arrays[path] for path in variables},
            placement,
        )

    def weights(self, model: Module) -> RunWeights:
        """Returns the newest weights, to be read a few at a time in host memory."""
        variables = variable_specs(model)
        specs: dict[str, Spec] = {**parameter_specs(model), **variables}
        smallest = min(specs, key=lambda path: specs[path].size)
        found = self.read(_on_host(specs, [smallest]))
        if found is None:
            raise RunError(
                f"{self.folder.path} has neither a checkpoint nor imported weights to export."
            )
        step, weights = found[0], StoredWeights(self.folder.weights)
        if step or not weights.shapes:
            return self._from_checkpoint(specs, step)
        missing = sorted(specs.keys() - weights.shapes.keys() - variables.keys())
        if missing:
            raise RunError(f"{self.folder.weights} lacks the parameter {missing[0]}.")
        return RunWeights(
            0, weights.dtypes, lambda _: lambda at: weights.read_at(at.path, at.index)
        )

    def _from_checkpoint(self, specs: Mapping[str, Spec], step: int) -> RunWeights:
        """Reads stacked arrays, only those that are needed together."""

        def reader(paths: list[str]) -> SliceReader:
            now, arrays = self.read(_on_host(specs, paths)) or (0, {})
            if now < step:  # what was read of it before is intact
                raise DamagedStepError(
                    f"{self.folder.path}: the checkpoint of step {step} is damaged; that of step "
                    f"{now} is intact. Export again.",
                    step,
                )
            if now != step:  # the run is still training: the export would mix two steps
                raise RunError(
                    f"{self.folder.path} was at step {step} when this export began and is at {now} "
                    "now. Export again, or when training has ended."
                )
            missing = [path for path in paths if path not in arrays]
            if missing:
                raise RunError(
                    f"{self.folder.path}: its checkpoint lacks the parameter {missing[0]}."
                )
            stacked = {path: np.asarray(array) for path, array in arrays.items()}
            return lambda at: stacked[at.path][at.index]

        dtypes = {path: np.dtype(spec.dtype) for path, spec in specs.items()}
        return RunWeights(step, dtypes, reader)


def _local_placement(rules: AxisRules, specs: Mapping[str, Spec]) -> Placement:
    """Shards parameters over as many local devices as divide all of them, at least 1."""
    layout, devices = MeshLayout.Config().build(), jax.local_devices()
    while len(devices) > 1:
        placement = Placement(layout.mesh(devices), rules)
        with contextlib.suppress(ConfigError):  # an axis that does not divide
            _structs(specs, placement)
            return placement
        devices = devices[:-1]
    return Placement(layout.mesh(devices), rules)


def _structs(specs: Mapping[str, Spec], placement: Placement) -> dict[str, jax.ShapeDtypeStruct]:
    """Returns each array's shape, dtype and sharding."""

    def sharding(path: str, spec: Spec) -> jax.sharding.NamedSharding:
        axes = placement.rules.for_parameter(path, spec.axes)
        return placement.sharding(axes, spec.shape, path)

    return {
        path: jax.ShapeDtypeStruct(spec.shape, spec.dtype, sharding=sharding(path, spec))
        for path, spec in specs.items()
    }


def _on_host(specs: Mapping[str, Spec], paths: list[str]) -> dict[str, jax.ShapeDtypeStruct]:
    device = jax.sharding.SingleDeviceSharding(host_device())
    return {
        path: jax.ShapeDtypeStruct(specs[path].shape, specs[path].dtype, sharding=device)
        for path in paths
    }
