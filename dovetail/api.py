"""The Python API: an experiment with its changes, trained, planned, and opened as a run.

    import dovetail

    experiment = dovetail.experiment("tiny-lm").with_features("moe:num_experts=4")
    run = experiment.override("learner.schedule.peak=3e-4").train(steps=200)
    print(run.generate("def main(", max_new_tokens=64).text)

The command line calls the same functions.
"""

from __future__ import annotations

import contextlib
import functools
import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dovetail.config import (
    ConfigError,
    apply_modifier,
    apply_overrides,
    collect_reports,
    import_packages,
    modifiers,
    own_modules,
)
from dovetail.experiments import (
    ConfigKeys,
    cache_keys,
    cached_keys,
    experiments,
    find_experiment,
)
from dovetail.runtime import explained_failures
from dovetail.targets import (
    Machine,
    apply_target,
    create_virtual_devices,
    local_mismatch,
    parse_target,
)
from dovetail.utils import Progress, launched_index

if TYPE_CHECKING:
    from dovetail.data import DataInspection
    from dovetail.plan import Plan, Planner
    from dovetail.run import DryRun, PreparedRun, RemoteDryRun, Run
    from dovetail.trainer import Trainer

_BARE = re.compile(r"[\w./:~*@+-]+")  # needs no quotes as the value of a feature's option


@explained_failures()
def experiment(name: str | Path, *, imports: Sequence[str] = ()) -> Experiment:
    """Returns a named experiment, or that of a run, which it continues.

    Args:
        name: one of `dovetail config list`, such as "tiny-lm"; or a run folder, or the name of one
            in `runs/`.
        imports: your own packages, with their components, features and experiments.
    """
    if not isinstance(name, str | Path):
        raise ConfigError(f"experiment: expected a name such as 'tiny-lm', got {name!r}.")
    entry_points = import_packages(imports)
    found = Experiment(str(name), imports=tuple(imports), entry_points=tuple(entry_points))
    if found.run is None:
        find_experiment(found.name)  # an unknown name is an error now, not at first use
    return found


@explained_failures()
def load(path: str | Path, *, imports: Sequence[str] = ()) -> Run:
    """Opens a run folder, such as "runs/tiny-lm".

    Args:
        path: the folder, or its name in `runs/`.
        imports: your own packages that it was trained with.
    """
    from dovetail.run import Run, run_path

    return Run(run_path(path), imports=imports)


@explained_failures()
def import_hf(
    source: str | Path, run: str | Path, *, progress: bool = True, imports: Sequence[str] = ()
) -> Run:
    """Imports a model of Hugging Face's format into a new run folder, and opens it.

    Args:
        source: a folder, an fsspec URL, or `hub:org/name`.
        run: the new run folder.
        progress: whether to show a progress bar.
        imports: your own packages, with their model families.
    """
    import_packages(imports)
    from dovetail.interop import import_hf
    from dovetail.run import Run

    return Run(import_hf(str(source), Path(run), progress=progress, imports=imports).run)


@dataclass(frozen=True)
class Experiment:
    """A named experiment with changes; every method returns a new one.

    The order of the calls does not matter. Changes apply in this order: features, the target's
    rule, overrides. If the name is that of a run folder, the changes apply to the config of that
    run, and training continues it; model, learner, data and seed cannot change.
    """

    name: str
    features: tuple[str, ...] = ()
    target_name: str | None = None
    overrides: tuple[str, ...] = ()
    imports: tuple[str, ...] = ()
    entry_points: tuple[str, ...] = ()

    def with_features(self, *features: str) -> Experiment:
        """Adds features or other modifiers, as `--with` takes them: "moe:num_experts=4"."""
        _check_texts("with_features", features, "NAME:option=value")
        return replace(self, features=(*self.features, *features))

    def data(self, *files: str | Path, text: str = "") -> Experiment:
        """Trains on your own files, as `--data` does.

        Args:
            files: files, folders, patterns or URLs.
            text: the column of the text, or a template such as "{title}: {body}".
        """
        if not files:
            raise ConfigError("data: expected a file, a folder, a pattern or a URL, got nothing.")
        return self.with_features(data_feature([str(file) for file in files], text))

    def override(self, *changes: str, **values: Any) -> Experiment:
        """Sets values: "learner.schedule.peak=3e-4", or by name for fields of the trainer."""
        _check_texts("override", changes, "key.path=value")
        named = [f"{name}={value!r}" for name, value in values.items()]
        return replace(self, overrides=(*self.overrides, *changes, *named))

    def target(self, name: str) -> Experiment:
        """Fits the experiment to a machine, such as "tpu-v5p-512"."""
        _check_texts("target", [name], "tpu-v5p-512")
        return replace(self, target_name=name)

    @property
    def config(self) -> Trainer.Config:
        """The complete config. It is a copy: changing it changes nothing here."""
        return self.resolved.config.clone()

    @functools.cached_property
    def run(self) -> Run | None:
        """The run that this continues; None for a named experiment."""
        if self.name in experiments():
            return None
        folders = [Path(self.name), Path("runs") / self.name]
        found = next((folder for folder in folders if (folder / "run.json").is_file()), None)
        return None if found is None else _opened(found, self.imports)

    @property
    def machine(self) -> Machine | None:
        """The target, if there is one."""
        return self.resolved.machine

    @property
    def reports(self) -> tuple[str, ...]:
        """What features and the target's rule report, one line each."""
        return self.resolved.reports

    @functools.cached_property
    def resolved(self) -> ResolvedExperiment:
        """The config with all changes, and what they reported."""
        return resolve(self)

    @property
    def folder(self) -> Path:
        """The default run folder, below `runs/`."""
        if self.run is not None:
            return self.run.path
        from dovetail.run import default_folder

        return default_folder(
            self.name, self.features, self.resolved.with_features, self.resolved.config
        )

    def about(self) -> dict[str, Any]:
        """Returns what run.json records of the experiment, earlier changes of a run included."""
        before = self._recorded
        record: dict[str, Any] = {
            "experiment": before.get("experiment", self.name),
            "features": [*before.get("features", ()), *self.new_features],
            "overrides": _last_of_each_key([*before.get("overrides", ()), *self.overrides]),
            "imports": list(dict.fromkeys([*self.imports, *self._own_modules()])),
            "entry_points": list(self.entry_points),
        }
        target = self.target_name or before.get("target")
        return record if target is None else record | {"target": target}

    @property
    def new_features(self) -> tuple[str, ...]:
        """The features to apply: a run that continues has its earlier ones already."""
        return tuple(t for t in self.features if t not in self._recorded.get("features", ()))

    @property
    def _recorded(self) -> dict[str, Any]:
        """What run.json of the run that this continues records; empty for a named experiment."""
        return {} if self.run is None else self.run.about

    def _own_modules(self) -> list[str]:
        """Returns the modules of your components that no package in `imports` contains."""
        packages = tuple(f"{name}." for name in self.imports)
        found = own_modules(self.resolved.config)
        return [name for name in found if not f"{name}.".startswith(packages)]

    @explained_failures()
    def train(
        self,
        *,
        steps: int | None = None,
        folder: str | Path | None = None,
        progress: bool = True,
        profile: range | None = None,
    ) -> Run:
        """Trains to the last step, or continues a run of the same experiment; returns the run.

        Ctrl-C finishes the step, saves, and raises `Interrupted`; the same call continues. A run
        that a fault has stopped, or whose last save failed, raises `FaultError`. Failures of
        the machine (out of memory, a lost process, no device) also raise a `dovetail.Error`.
        Where the environment describes several processes (see `start_distributed`), each makes
        this call, and only the first shows progress.

        Args:
            steps: the number of steps, if not that of the experiment.
            folder: the run folder; by default below `runs/`, named after experiment and changes.
            progress: whether to show progress, on standard error.
            profile: steps to trace, counted from 0, such as `range(10, 13)`; the trace is in the
                folder `profile` of the run.
        """
        if steps is not None:
            return self.override(steps=steps).train(
                folder=folder, progress=progress, profile=profile
            )
        with Progress(self.name, enabled=progress and not launched_index()) as shown:
            shown.stage("loading")
            from dovetail.run import Interrupted, Run
            from dovetail.trainer import FaultError, Hooks

            run = self.prepare(shown, folder=folder, profile=profile, shows_training=progress)
        if run.is_complete:
            return Run(run.folder.path)
        outcome = run.train(self.about(), reports=self.reports, hooks=Hooks(shown.say))
        if (problem := outcome.problem(run.folder.path)) is not None:
            raise FaultError(f"{run.folder.path}: {problem}")
        if outcome.stopped_by:
            raise Interrupted(
                f"stopped by {outcome.stopped_by} after step {outcome.step}; it is saved in "
                f"{run.folder.path}, and the same call continues"
            )
        return Run(run.folder.path)

    def prepare(
        self,
        progress: Progress,
        *,
        folder: str | Path | None = None,
        profile: range | None = None,
        shows_training: bool = True,
    ) -> PreparedRun:
        """Does all that `train` does before training; writes nothing. See `prepare_run`."""
        from dovetail.run import prepare_run

        return prepare_run(
            self.config,
            self._folder(folder),
            progress,
            machine=self.machine,
            profile=profile,
            shows_training=shows_training,
        )

    def _folder(self, chosen: str | Path | None) -> Path:
        """Returns the folder to train in."""
        if chosen is None:
            return self.folder
        if self.run is not None and Path(chosen).resolve() != self.run.path.resolve():
            raise ConfigError(
                f"run folder {chosen}: {self.name} is a run, and continues in its own folder. "
                "Leave the other one out, or copy the run there and continue the copy."
            )
        return Path(chosen)

    @explained_failures()
    def dry_run(
        self,
        *,
        folder: str | Path | None = None,
        on_progress: Callable[[str], None] = lambda stage: None,
    ) -> DryRun | RemoteDryRun:
        """Checks what `train` would check, and says what it would take; writes and trains nothing.

        The step is compiled for this machine. For a target that is not here, it is only traced.

        Args:
            folder: the run folder, as for `train`.
            on_progress: called with a message before each long operation.
        """
        from dovetail.parallel import start_distributed
        from dovetail.run import dry_run, dry_run_elsewhere
        from dovetail.runtime import RunFolder, use_compilation_cache

        config, machine = self.config, self.machine
        use_compilation_cache()
        create_virtual_devices(machine)
        start_distributed()
        run_folder = RunFolder(self._folder(folder))
        run_folder.check_identity(config)
        if machine is None or local_mismatch(machine) is None:
            return dry_run(config, run_folder.path, on_progress)
        return dry_run_elsewhere(config, machine, on_progress)

    @explained_failures()
    def inspect_data(
        self, *, step: int = 0, rows: int | None = 2, split: str = "train", progress: bool = True
    ) -> DataInspection:
        """Prepares the data and says what it gives the model: sizes, packing, shares and rows.

        Of a run it shows the data that the run was trained on, without batches that it skipped.

        Args:
            step: the step whose rows are decoded; of the held-out split, the number of the batch.
            rows: how many of its rows; None decodes all.
            split: "train" or "held_out".
            progress: whether to show the progress of preparing data.
        """
        from dovetail.data import inspect_data
        from dovetail.run import open_input

        config = self.config
        source = config.input.build()
        if self.run is not None:
            self.run.folder.check_identity(config)
            open_input(self.run.folder, source, lambda text: warnings.warn(text, stacklevel=3))
        return inspect_data(
            source, steps=config.steps, step=step, rows=rows, split=split, progress=progress
        )

    @explained_failures()
    def plan(self, target: str | None = None, *, compile: bool = True) -> Plan:
        """Predicts memory, step time and cost on a machine that need not be there.

        Shapes that do not divide over the mesh raise a `dovetail.Error`.

        Args:
            target: the machine, such as "tpu-v5p-512"; None takes that of `target()`, or this one.
            compile: compiles the step, if the machine's compiler is installed; else, and if it is
                not, the plan is by arithmetic.
        """
        return self.planner(target, compile=compile).best_plan()

    def planner(self, target: str | None = None, *, compile: bool = True) -> Planner:
        """Returns the planner, whose stages can be called separately; arguments as for `plan`."""
        from dovetail.plan import Planner, ProgramCache

        fitted = self if target is None else self.target(target)
        machine = fitted.machine or parse_target("cpu")
        create_virtual_devices(machine)
        return Planner(
            self.name,
            fitted.config,
            machine,
            ProgramCache(),
            is_analytic=not compile,
            is_mesh_set=any(text.startswith("mesh.") for text in self.about()["overrides"]),
        )


def data_feature(files: Sequence[str], text: str = "") -> str:
    """Returns the feature that trains on files, as `--with` takes it."""
    named = _value(files[0]) if len(files) == 1 else repr(tuple(files))
    return f"data:files={named}" + (f",text={_value(text)}" if text else "")


def _value(text: str) -> str:
    """Writes a text as the value of a feature's option, without quotes if it needs none."""
    return text if _BARE.fullmatch(text) else repr(text)


def _opened(folder: Path, imports: Sequence[str]) -> Run:
    """Opens a run to continue it."""
    from dovetail.run import Run

    run = Run(folder, imports=imports)
    if "experiment" not in run.about:
        raise ConfigError(
            f"{folder} is an imported model, not an experiment. `dovetail train EXPERIMENT --with "
            f"from-run:path={folder}` trains from its parameters, and `dovetail generate {folder}` "
            "generates text with it."
        )
    return run


def _check_texts(method: str, given: Sequence[Any], example: str) -> None:
    """Raises a ConfigError for anything but texts."""
    for value in given:
        if not isinstance(value, str):
            raise ConfigError(f"{method}: expected a text such as {example!r}, got {value!r}.")


@dataclass(frozen=True)
class ResolvedExperiment:
    """An experiment with all its changes.

    Attributes:
        base: the config of the named experiment.
        with_features: with its features.
        config: complete.
        reports: what features and the target's rule report, one line each.
        machine: the target.
    """

    base: Trainer.Config
    with_features: Trainer.Config
    config: Trainer.Config
    reports: tuple[str, ...]
    machine: Machine | None


def resolve(experiment: Experiment) -> ResolvedExperiment:
    """Applies the changes to an experiment: features, then the target's rule, then overrides."""
    config = base = _base_config(experiment)
    if any(text.startswith("initialization") for text in experiment.overrides):
        import dovetail.run  # noqa: F401  # has initializations, which a text may name
    with collect_reports() as found:
        for text in experiment.new_features:
            config = apply_modifier(config, text)
    reports, with_features, machine = [str(report) for report in found], config, None
    overrides = list(experiment.overrides)
    if experiment.target_name is not None:
        fitted = apply_target(_sized(config, overrides), experiment.target_name)
        config, machine = fitted.config, fitted.machine
        keys = [text.partition("=")[0].strip() for text in overrides]
        reports.append(fitted.summary(exclude=keys))
    elif experiment.run is not None and (trained_for := experiment.run.about.get("target")):
        machine = parse_target(trained_for)
    ConfigKeys.of(config).check(overrides)
    config = apply_overrides(config, _without_replaced(overrides))
    return ResolvedExperiment(base, with_features, config, tuple(reports), machine)


def _base_config(experiment: Experiment) -> Trainer.Config:
    """Returns the config of the named experiment; a mistyped key is refused without JAX.

    A user's package may add any key, so the cache of keys is for the package's own experiments.
    """
    if experiment.run is not None:
        return experiment.run.config.clone()
    found = find_experiment(experiment.name)
    if experiment.imports or experiment.entry_points or _has_own_modifiers(experiment):
        return found.config()
    keys = cached_keys(experiment.name)
    if keys is not None:
        is_final = not (experiment.features or experiment.target_name)
        keys.check(experiment.overrides, is_final=is_final)
    base = found.config()
    if keys is None or not keys.is_current:
        cache_keys(experiment.name, base)
    return base


def _has_own_modifiers(experiment: Experiment) -> bool:
    """Says whether a modifier was registered outside of the package, as in a notebook."""
    known = modifiers()
    names = (text.partition(":")[0].strip() for text in experiment.features)
    found = (known[name] for name in names if name in known)
    return any(not function.__module__.startswith("dovetail.") for function in found)


def _without_replaced(overrides: Sequence[str]) -> list[str]:
    """Drops overrides below a component that a later override replaces.

    So it makes no difference to apply them twice.
    """
    keys = [text.partition("=")[0].strip() for text in overrides]
    return [
        text
        for index, text in enumerate(overrides)
        if not any(keys[index].startswith(f"{later}.") for later in keys[index + 1 :])
    ]


def _last_of_each_key(overrides: Sequence[str]) -> list[str]:
    """Returns the overrides without those that a later one of the same key replaces."""
    last = {text.partition("=")[0].strip(): text for text in overrides}
    return [text for text in dict.fromkeys(overrides) if text in last.values()]


def _sized(config: Trainer.Config, overrides: Sequence[str]) -> Trainer.Config:
    """Returns the config with the sizes that it will have, on which a target's rule depends.

    Overrides are applied before the rule, and again after it, because they take precedence. Those
    that only apply after the rule, to a component that it adds, fail the first time.
    """
    for override in _without_replaced(overrides):
        with contextlib.suppress(ConfigError):  # a real mistake is reported the second time
            config = apply_overrides(config, [override])
    return config
