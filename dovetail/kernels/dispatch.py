"""The dispatch of ops: an op is an ordered tuple of implementations, and the first that can runs.

A file holds one implementation:

    @implementation("splash", platforms=("tpu",), supports=_supports)
    def splash(call): ...

The op's `__init__.py` lists them in the order in which they are tried:

    attention_op.implementations = (splash.splash, ..., reference.reference)

The choice is made at trace time, from shapes and static arguments, so it costs nothing at run time.
The settings that steer it are part of the `jax.jit` cache key: a function compiled under one
setting is traced again under another.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

import jax
from jax.sharding import AbstractMesh

from dovetail.config import ConfigError, did_you_mean
from dovetail.parallel import current_placement

Shape = tuple[int, ...]
KernelFlops = Callable[[str, Sequence[Shape]], float | None]


class SlowKernelWarning(UserWarning):
    """A slow implementation runs because no fast one supports the call."""


class SlowKernelError(ConfigError):
    """A slow implementation would run, and `strict()` forbids it."""


class KernelChoice(NamedTuple):
    """The implementation that an op chose on a platform, and why not those before it."""

    op: str
    implementation: str
    platform: str
    refusals: tuple[str, ...] = ()
    is_preferred: bool = False

    def __str__(self) -> str:
        """Writes `attention: blockwise (cpu)`, with the reasons against faster ones if any."""
        reasons = "".join(f"; not {refusal}" for refusal in self.refusals)
        preferred = ", preferred" if self.is_preferred else ""
        return f"{self.op}: {self.implementation} ({self.platform}{preferred}{reasons})"


@dataclass(frozen=True)
class Implementation:
    """One way to compute an op.

    The callables `supports`, `slow` and `flops_fraction` get the arguments of the call.

    Attributes:
        name: the name in `prefer()` and `choices()`.
        run: computes the op.
        platforms: where it runs, as `jax.default_backend()` names them; None means everywhere.
        supports: returns None if it can take the call, or the reason why not.
        slow: whether running it for this call is worth a warning.
        applies: whether it is a candidate at all; if not, its refusal is not reported.
        kernel_flops: counts the matmul FLOPs of one of its own kernels, from the kernel's name and
            the shapes of its inputs; None for a kernel that is not its own. XLA cannot see into a
            hand-written kernel, so plans ask for this.
        flops_fraction: the fraction of those FLOPs that a call needs, where blocks are skipped.
    """

    name: str
    run: Callable[..., Any]
    platforms: tuple[str, ...] | None = None
    supports: Callable[..., str | None] = lambda *_, **__: None
    slow: Callable[..., bool] = lambda *_, **__: False
    applies: Callable[[], bool] = lambda: True
    kernel_flops: KernelFlops = lambda *_: None
    flops_fraction: Callable[..., float] = lambda *_, **__: 1.0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs it, without asking whether it supports the call."""
        return self.run(*args, **kwargs)

    def is_candidate(self, platform: str) -> bool:
        """Returns whether it is made for a platform and applies here."""
        return self.runs_on(platform) and self.applies()

    def runs_on(self, platform: str) -> bool:
        """Returns whether it is made for a platform."""
        return self.platforms is None or platform in self.platforms

    def refusal(self, platform: str, *args: Any, **kwargs: Any) -> str | None:
        """Returns why this implementation cannot take the call, or None if it can."""
        if not self.runs_on(platform):
            return f"it runs on {' and '.join(self.platforms or ())} only"
        return self.supports(*args, **kwargs)


def implementation(name: str, **options: Any) -> Callable[[Callable[..., Any]], Implementation]:
    """Returns a decorator that makes a function an `Implementation`; see there for the options."""
    return lambda run: Implementation(name, run, **options)


class Op:
    """An operation with several implementations, tried in order.

    Attributes:
        name: the name in `prefer()` and `choices()`.
        implementations: in the order in which they are tried. To add one, assign a new tuple.
    """

    def __init__(self, name: str, implementations: tuple[Implementation, ...] = ()) -> None:
        """Adds the op to those that `prefer()` and `choices()` know."""
        self.name = name
        self.implementations = implementations
        _ops[name] = self

    def choose(self, *args: Any, **kwargs: Any) -> Implementation:
        """Returns the implementation for a call, and records the choice."""
        preferred = _preferred.get().get(self.name)
        if preferred is not None:
            return self._preferred(preferred, *args, **kwargs)
        return self._first(*args, **kwargs)

    def _first(self, *args: Any, **kwargs: Any) -> Implementation:
        platform = current_platform()
        refusals: dict[Implementation, str] = {}
        for candidate in self.implementations:
            refusal = candidate.refusal(platform, *args, **kwargs)
            if refusal is None:
                reported = [text for one, text in refusals.items() if one.is_candidate(platform)]
                choice = KernelChoice(self.name, candidate.name, platform, tuple(reported))
                _record(choice, is_slow=candidate.slow(*args, **kwargs))
                return candidate
            refusals[candidate] = f"{candidate.name}, because {refusal}"
        raise ValueError(
            f"{self.name}: no implementation can take this call on {platform}. "
            + "".join(f"Not {refusal}. " for refusal in refusals.values())
            + "Change the call, or add an implementation that takes it."
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the first implementation that supports the call."""
        return self._run(self.choose(*args, **kwargs), *args, **kwargs)

    def redispatch(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the call that an implementation makes to its own op, ignoring `prefer()`.

        The preference chose the outer implementation (such as `ulysses`), not the inner one.
        """
        return self._run(self._first(*args, **kwargs), *args, **kwargs)

    def _run(self, chosen: Implementation, *args: Any, **kwargs: Any) -> Any:
        calls = _flops_fractions.get()
        if calls is not None:
            fraction = chosen.flops_fraction(*args, **kwargs)
            calls.setdefault((self.name, chosen.name), []).append(fraction)
        return chosen.run(*args, **kwargs)

    def named(self, name: str) -> Implementation:
        """Returns an implementation by name."""
        for one in self.implementations:
            if one.name == name:
                return one
        known = did_you_mean(name, [one.name for one in self.implementations])
        raise ConfigError(f"{self.name}: there is no implementation {name!r}. {known}")

    def _preferred(self, name: str, *args: Any, **kwargs: Any) -> Implementation:
        chosen, platform = self.named(name), current_platform()
        refusal = chosen.refusal(platform, *args, **kwargs)
        if refusal is not None:
            raise ConfigError(
                f"{self.name}: prefer({self.name}={name!r}) is in force, but it cannot take this "
                f"call: {refusal}. Leave the choice to the op, or prefer another one."
            )
        if not _is_reference_only.get():
            # The user asked for it by name, so its speed is not worth a warning.
            _record(KernelChoice(self.name, name, platform, is_preferred=True), is_slow=False)
        return chosen


def choices() -> list[str]:
    """Returns the choices of this process so far, one line per op, implementation and platform."""
    with _lock:
        return [str(choice) for choice in _choices.values()]


def clear_choices() -> None:
    """Clears the recorded choices and warnings, as at the start of a run."""
    with _lock:
        _choices.clear()
        _warned.clear()


@contextmanager
def watch_kernels() -> Iterator[KernelCounter]:
    """Records the calls that are traced inside the `with`, so that their kernels can be counted."""
    calls: dict[tuple[str, str], list[float]] = {}
    token = _flops_fractions.set(calls)
    try:
        yield KernelCounter(calls)
    finally:
        _flops_fractions.reset(token)


class KernelCounter:
    """Counts the FLOPs of the hand-written kernels in a traced program."""

    def __init__(self, calls: Mapping[tuple[str, str], Sequence[float]]) -> None:
        """Takes the `flops_fraction` of each call, by op and implementation."""
        self._calls = calls

    def flops(self, kernel: str, shapes: Sequence[Shape]) -> float | None:
        """Returns the matmul FLOPs of a kernel, or None if no implementation knows it.

        Shapes do not tell apart calls that skip different blocks, so their mean counts.
        """
        for (op, name), fractions in self._calls.items():
            dense = _ops[op].named(name).kernel_flops(kernel, shapes)
            if dense is not None:
                return dense * sum(fractions) / len(fractions)
        return None


def current_platform() -> str:
    """Returns the platform that ops choose for.

    In order of precedence: `target_platform()`, the devices of the mesh (attached or not), the
    default backend.
    """
    target = _platform.get()
    if target is not None:
        return target
    placement = current_placement()
    if placement is None:
        return jax.default_backend()
    return str(placement.mesh.devices.flat[0].platform)


def current_device() -> Any:
    """Returns a device that the program is compiled for (attached or not), or None if unknown.

    Kernels read its kind from it, such as a GPU's compute capability.
    """
    placement = current_placement()
    if placement is None:
        return None if _platform.get() is not None else jax.local_devices()[0]
    mesh: Any = placement.mesh
    if isinstance(mesh, AbstractMesh):
        return None
    devices = list(mesh.devices.flat)
    own = (one for one in devices if one.process_index == jax.process_index())
    found = next(own, devices[0])
    return found if _platform.get() in (None, found.platform) else None


def target_platform(platform: str) -> AbstractContextManager[None]:
    """Makes ops choose for another platform, as when planning for a device that is not attached."""
    return _set(_platform, platform)


@contextmanager
def interpreted(platform: str) -> Iterator[None]:
    """Makes ops choose for a platform, and runs its Pallas kernels in interpret mode. For tests.

    It is slow. It checks a kernel's numerics, not whether the platform's compiler accepts it.
    """
    with _set(_interpreted, True), _set(_platform, platform):
        yield


def is_interpreted() -> bool:
    """Returns whether `interpreted()` is in force: the `interpret` argument of `pallas_call`."""
    return _interpreted.get()


def strict(on: bool = True) -> AbstractContextManager[None]:
    """Makes a fall-back to a slow implementation an error instead of a warning."""
    return _set(_strict, on)


@contextmanager
def prefer(**implementations: str) -> Iterator[None]:
    """Forces implementations, each by its name: `attention="reference"`."""
    for op_name, name in implementations.items():
        if op_name not in _ops:
            raise ConfigError(
                f"prefer({op_name}={name!r}): there is no op {op_name!r}. "
                + did_you_mean(op_name, sorted(_ops))
            )
        _ops[op_name].named(name)
    with _set(_preferred, MappingProxyType({**_preferred.get(), **implementations})):
        yield


@contextmanager
def default_choices() -> Iterator[None]:
    """Ignores `prefer()` and `strict()` inside the `with`: every op chooses for itself.

    An implementation that was preferred for a training step may not support decoding.
    """
    with _set(_preferred, MappingProxyType({})), _set(_strict, False):
        yield


@contextmanager
def reference_only() -> Iterator[None]:
    """Runs the reference of every op inside the `with`, and records no choice.

    For counting FLOPs: the reference computes what the mathematics asks for, and no more.
    """
    with _set(_is_reference_only, True), prefer(**dict.fromkeys(_ops, "reference")):
        yield


T = TypeVar("T")

_lock = threading.RLock()
_ops: dict[str, Op] = {}
_choices: dict[tuple[str, str, str], KernelChoice] = {}
_warned: set[tuple[str, str, str]] = set()
_platform: ContextVar[str | None] = ContextVar("dovetail_platform", default=None)
_interpreted: ContextVar[bool] = ContextVar("dovetail_interpreted", default=False)
_flops_fractions: ContextVar[dict[tuple[str, str], list[float]] | None] = ContextVar(
    "dovetail_flops_fractions", default=None
)
_strict: ContextVar[bool] = ContextVar("dovetail_strict", default=False)
_is_reference_only: ContextVar[bool] = ContextVar("dovetail_is_reference_only", default=False)
_jit_key = jax.make_user_context(default_value=None)
_preferred: ContextVar[Mapping[str, str]] = ContextVar(
    "dovetail_preferred", default=MappingProxyType({})
)


def _record(choice: KernelChoice, is_slow: bool) -> None:
    key = choice[:3]
    reasons = "".join(f"Not {refusal}. " for refusal in choice.refusals)
    message = (
        f"{choice.op}: the slow {choice.implementation!r} implementation runs on "
        f"{choice.platform}. {reasons or 'There is no faster one yet. '}"
    )
    if is_slow and _strict.get():
        raise SlowKernelError(
            message
            + "strict() is in force (kernels.strict=true), so this is an error. "
            + ("Change what the reasons name, or leave" if reasons else "Leave")
            + " strict off to run it anyway."
        )
    with _lock:
        _choices.setdefault(key, choice)
        first = key not in _warned
        if is_slow:
            _warned.add(key)
    if is_slow and first:
        # Up past _record, _first, choose and __call__, to the op's typed function.
        warnings.warn(message + "Expect low speed.", SlowKernelWarning, stacklevel=5)


@contextmanager
def _set(variable: ContextVar[T], value: T) -> Iterator[None]:
    token = variable.set(value)
    try:
        settings = (_platform.get(), _interpreted.get(), _strict.get(), _is_reference_only.get())
        with _jit_key((*settings, tuple(sorted(_preferred.get().items())))):
            yield
    finally:
        variable.reset(token)
