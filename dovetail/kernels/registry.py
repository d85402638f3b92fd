"""The op registry: an op is an ordered list of implementations, and the first that can runs.

A new implementation is a new file that registers itself:

    @attention_op.register("splash", platforms=("tpu",), supports=_supports, before="blockwise")
    def splash(query_BSHD, ...): ...

The choice is made while JAX traces, from shapes and static arguments, so it costs nothing when the
program runs. The settings that steer it are part of what `jax.jit` caches by: a function that was
compiled under one setting is traced again under another.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

import jax
from jax.sharding import AbstractMesh

from dovetail.config import ConfigError, did_you_mean
from dovetail.parallel import current_placement

F = TypeVar("F", bound=Callable[..., Any])
Shape = tuple[int, ...]
KernelFlops = Callable[[str, Sequence[Shape]], float | None]


class SlowKernelWarning(UserWarning):
    """A slow implementation runs because no fast one can."""


class SlowKernelError(ConfigError):
    """A slow implementation would run, and `strict()` forbids it."""


class Choice(NamedTuple):
    """Which implementation an op chose on a platform, and why not those before it.

    One that `prefer()` asked for was not the op's own choice, and says so.
    """

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

    `supports` and `slow` get the arguments of the call. `supports` answers None for yes, or the
    reason why not; `slow` says whether running this one is worth a warning. `when` says whether it
    is in question at all: if not, its reasons are no news.

    What a hand-written kernel does is not to be seen in a program, so its implementation tells:
    `kernel_flops` gets the name of a kernel and the shapes of the arrays that it is given, and
    answers with the operations of its products, or None if it is not one of its own. `share` gets
    the arguments of a call, and says how much of that is left where blocks are skipped.
    """

    name: str
    run: Callable[..., Any]
    platforms: tuple[str, ...] | None
    supports: Callable[..., str | None]
    slow: Callable[..., bool]
    when: Callable[[], bool]
    kernel_flops: KernelFlops
    share: Callable[..., float]

    def in_question(self, platform: str) -> bool:
        """Returns whether it is made for a platform, and for what there is."""
        return self.runs_on(platform) and self.when()

    def runs_on(self, platform: str) -> bool:
        """Returns whether it is made for a platform."""
        return self.platforms is None or platform in self.platforms

    def refusal(self, platform: str, *args: Any, **kwargs: Any) -> str | None:
        """Returns why this implementation cannot take the call, or None if it can."""
        if not self.runs_on(platform):
            return f"it runs on {' and '.join(self.platforms or ())} only"
        return self.supports(*args, **kwargs)


class Op:
    """An operation with several implementations, tried in order."""

    def __init__(self, name: str) -> None:
        """Adds the op to those that `prefer()` and `choices()` know."""
        self.name = name
        self._implementations: tuple[Implementation, ...] = ()
        with _lock:
            _ops[name] = self

    @property
    def implementations(self) -> tuple[Implementation, ...]:
        """The implementations, in the order in which they are tried."""
        return self._implementations

    def register(
        self,
        name: str,
        *,
        platforms: tuple[str, ...] | None = None,
        supports: Callable[..., str | None] = lambda *_, **__: None,
        slow: Callable[..., bool] = lambda *_, **__: False,
        before: str | None = None,
        when: Callable[[], bool] = lambda: True,
        kernel_flops: KernelFlops = lambda *_: None,
        share: Callable[..., float] = lambda *_, **__: 1.0,
    ) -> Callable[[F], F]:
        """Returns a decorator that adds an implementation.

        Args:
            name: what `prefer()` and `choices()` call it.
            platforms: where it runs, as `jax.default_backend()` names them; None means everywhere.
            supports: answers None for a call that it can take, or the reason why not.
            slow: says for which calls running it is worth a warning.
            before: the implementation that it takes precedence over; None means last.
            when: says whether it is in question; where it is not, nobody is told why.
            kernel_flops: counts the operations of a kernel of its own, by name and shapes.
            share: says how much of those a call needs, where blocks are skipped.
        """

        def add(function: F) -> F:
            made = Implementation(
                name, function, platforms, supports, slow, when, kernel_flops, share
            )
            with _lock:
                others = [other for other in self._implementations if other.name != name]
                names = [other.name for other in others]
                if before is not None and before not in names:
                    raise ValueError(_unknown(self, before, names))
                others.insert(len(others) if before is None else names.index(before), made)
                self._implementations = tuple(others)
            return function

        return add

    def choose(self, *args: Any, **kwargs: Any) -> Implementation:
        """Returns the implementation for a call, and records the choice."""
        wanted = _preferred.get().get(self.name)
        if wanted is not None:
            return self._forced(wanted, *args, **kwargs)
        return self._first(*args, **kwargs)

    def _first(self, *args: Any, **kwargs: Any) -> Implementation:
        platform = current_platform()
        refusals: dict[Implementation, str] = {}
        for implementation in self._implementations:
            refusal = implementation.refusal(platform, *args, **kwargs)
            if refusal is None:
                asked = [text for one, text in refusals.items() if one.in_question(platform)]
                choice = Choice(self.name, implementation.name, platform, tuple(asked))
                _note(choice, is_slow=implementation.slow(*args, **kwargs))
                return implementation
            refusals[implementation] = f"{implementation.name}, because {refusal}"
        raise ValueError(
            f"{self.name}: no implementation can take this call on {platform}. "
            + "".join(f"Not {refusal}. " for refusal in refusals.values())
            + "Change the call, or register an implementation that takes it."
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the first implementation that can take the call."""
        return self._run(self.choose(*args, **kwargs), *args, **kwargs)

    def hand_on(self, *args: Any, **kwargs: Any) -> Any:
        """Runs a call that an implementation makes of its own: what was preferred is that one."""
        return self._run(self._first(*args, **kwargs), *args, **kwargs)

    def _run(self, chosen: Implementation, *args: Any, **kwargs: Any) -> Any:
        seen = _shares.get()
        if seen is not None:
            seen.setdefault((self.name, chosen.name), []).append(chosen.share(*args, **kwargs))
        return chosen.run(*args, **kwargs)

    def named(self, name: str) -> Implementation:
        """Returns an implementation by name."""
        for implementation in self._implementations:
            if implementation.name == name:
                return implementation
        raise ConfigError(_unknown(self, name, [one.name for one in self._implementations]))

    def _forced(self, name: str, *args: Any, **kwargs: Any) -> Implementation:
        implementation, platform = self.named(name), current_platform()
        refusal = implementation.refusal(platform, *args, **kwargs)
        if refusal is not None:
            raise ConfigError(
                f"{self.name}: prefer({self.name}={name!r}) is in force, but it cannot take this "
                f"call: {refusal}. Leave the choice to the op, or prefer another one."
            )
        if not _is_figure.get():
            # However slow it is, it was asked for by name: there is nothing to warn of.
            _note(Choice(self.name, name, platform, is_preferred=True), is_slow=False)
        return implementation


def choices() -> list[str]:
    """Returns what this process's ops have chosen so far, one line an op, choice and platform."""
    with _lock:
        return [str(choice) for choice in _choices.values()]


def forget_choices() -> None:
    """Clears what was recorded and warned of, as at the start of another run."""
    with _lock:
        _choices.clear()
        _warned.clear()


@contextmanager
def watch_kernels() -> Iterator[KernelCounter]:
    """Sees the calls that are traced inside of the block, and can count their kernels then."""
    seen: dict[tuple[str, str], list[float]] = {}
    token = _shares.set(seen)
    try:
        yield KernelCounter(seen)
    finally:
        _shares.reset(token)


class KernelCounter:
    """Counts the operations of hand-written kernels in what was traced."""

    def __init__(self, seen: Mapping[tuple[str, str], Sequence[float]]) -> None:
        """Takes the share of each call, by op and implementation."""
        self._seen = seen

    def flops(self, kernel: str, shapes: Sequence[Shape]) -> float | None:
        """Returns the operations of a kernel's products, or None where nobody knows it.

        Calls that skip different blocks cannot be told apart by shapes; they count by their mean.
        """
        for (op, name), shares in self._seen.items():
            whole = _ops[op].named(name).kernel_flops(kernel, shapes)
            if whole is not None:
                return whole * sum(shares) / len(shares)
        return None


def current_platform() -> str:
    """Returns the platform that ops choose for.

    It is that of the devices in the mesh, for which the program is compiled, whether they are here
    or not; without a mesh it is the default backend. `target_platform()` comes before both.
    """
    target = _platform.get()
    if target is not None:
        return target
    placement = current_placement()
    if placement is None:
        return jax.default_backend()
    return str(placement.mesh.devices.flat[0].platform)


def current_device() -> Any:
    """Returns one of the devices that a program is for, here or not; None where none is known.

    What a kernel may want of it is its kind, such as a GPU's generation.
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


@contextmanager
def target_platform(platform: str) -> Iterator[None]:
    """Makes ops choose for another platform, as in planning for a device that is not there."""
    with _set(_platform, platform):
        yield


@contextmanager
def interpreted(platform: str) -> Iterator[None]:
    """Makes ops choose for a platform, and runs its Pallas kernels here, step by step. For tests.

    It is slow, and what it shows is a kernel's numbers, not whether the compiler takes it.
    """
    with _set(_interpreted, True), _set(_platform, platform):
        yield


def is_interpreted() -> bool:
    """Returns whether `interpreted()` is in force: what a kernel hands to `pallas_call`."""
    return _interpreted.get()


@contextmanager
def strict(on: bool = True) -> Iterator[None]:
    """Makes a fall-back to a slow implementation an error instead of a warning."""
    with _set(_strict, on):
        yield


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
def unsteered() -> Iterator[None]:
    """Leaves every choice to the ops inside a `with`, whatever is preferred or strict around it.

    What is asked for a step's calls may not be able to take others, such as those of decoding.
    """
    with _set(_preferred, MappingProxyType({})), _set(_strict, False):
        yield


@contextmanager
def references() -> Iterator[None]:
    """Computes every op by its plain reference inside a `with`: what the mathematics asks for.

    That is for figures. What runs is chosen elsewhere, so nothing of this is recorded.
    """
    with _set(_is_figure, True), prefer(**dict.fromkeys(_ops, "reference")):
        yield


T = TypeVar("T")

_lock = threading.RLock()
_ops: dict[str, Op] = {}
_choices: dict[tuple[str, str, str], Choice] = {}
_warned: set[tuple[str, str, str]] = set()
_platform: ContextVar[str | None] = ContextVar("dovetail_platform", default=None)
_interpreted: ContextVar[bool] = ContextVar("dovetail_interpreted", default=False)
_shares: ContextVar[dict[tuple[str, str], list[float]] | None] = ContextVar(
    "dovetail_shares", default=None
)
_strict: ContextVar[bool] = ContextVar("dovetail_strict", default=False)
_is_figure: ContextVar[bool] = ContextVar("dovetail_is_figure", default=False)
_jit_key = jax.make_user_context(default_value=None)
_preferred: ContextVar[Mapping[str, str]] = ContextVar(
    "dovetail_preferred", default=MappingProxyType({})
)


def _note(choice: Choice, is_slow: bool) -> None:
    key = choice[:3]
    message = (
        f"{choice.op}: the slow {choice.implementation!r} implementation runs on "
        f"{choice.platform}. " + "".join(f"Not {refusal}. " for refusal in choice.refusals)
    )
    if is_slow and _strict.get():
        raise SlowKernelError(
            message
            + "strict() is in force (kernels.strict=true), so this is an error. Change what "
            "the reasons name, or leave strict off to run it all the same."
        )
    with _lock:
        _choices.setdefault(key, choice)
        first = key not in _warned
        if is_slow:
            _warned.add(key)
    if is_slow and first:
        # Up past _note, choose, __call__ and the op's typed front, to whoever called the op.
        warnings.warn(message + "Expect low speed.", SlowKernelWarning, stacklevel=5)


@contextmanager
def _set(variable: ContextVar[T], value: T) -> Iterator[None]:
    token = variable.set(value)
    try:
        settings = (_platform.get(), _interpreted.get(), _strict.get(), _is_figure.get())
        with _jit_key((*settings, tuple(sorted(_preferred.get().items())))):
            yield
    finally:
        variable.reset(token)


def _unknown(op: Op, name: str, known: list[str]) -> str:
    return f"{op.name}: there is no implementation {name!r}. " + did_you_mean(name, known)
