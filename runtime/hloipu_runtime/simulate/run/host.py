"""The host side of a run: streams by name, and execution counts."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple, Protocol

import numpy as np

from hloipu_runtime.arguments import Progress
from hloipu_runtime.errors import UsageError
from hloipu_runtime.iteration_limit import limited_iterations, too_many_iterations
from hloipu_runtime.kernels.core.blocks import LINE_BYTES
from hloipu_runtime.kernels.core.movement import contiguous
from hloipu_runtime.program.program import Array
from hloipu_runtime.simulate.run.owning import is_held_alone, references_here

MODES = ("functional", "exact")


def require_mode(mode: str) -> None:
    """Raise UsageError E3140 for a mode that is none of `MODES`."""
    if mode not in MODES:
        raise UsageError(
            "E3140", f"there is no mode {mode!r} to run in", hint=f"modes: {', '.join(MODES)}"
        )


class Host(Protocol):
    """Where streams begin and end; arrays are in storage form."""

    def take(self, stream: str) -> Array:
        """Return the next element of a stream to the device."""
        ...

    def give(self, stream: str, value: Array) -> None:
        """Take over an element from the device; the array may be a view of device memory."""
        ...


class TurnLimit(NamedTuple):
    """How many iterations a loop may take each time it is entered; None: any number."""

    most: int | None = None
    sources: Mapping[str, str] = MappingProxyType({})
    """Loop -> where it stands in what was compiled."""
    free: frozenset[str] = frozenset()
    """Paths of blocks whose iterations are not limited: of the loop around a step."""


NO_LIMIT = TurnLimit()


@dataclass
class Counts:
    """How often each block of the tree was run; blocks go by their path."""

    runs: Counter[str] = field(default_factory=Counter)
    progress: Progress | None = None
    done: int = 0
    limit: TurnLimit = NO_LIMIT

    def iterations(self, name: str, path: str, count: int | None = None) -> Iterable[object]:
        """Return what a loop goes through that is entered: `count` iterations, or as data decides.

        `name` is that of a loop of the module, or empty; `path` is that of its block. What is
        returned raises LimitError E5031 where iterations are limited.
        """
        limit = self.limit
        most = limit.most if name and path not in limit.free else None
        return limited_iterations(
            most, lambda most: too_many_iterations(name, most, limit.sources.get(name, "")), count
        )

    def ran(self, place: str, runs: int = 1) -> None:
        """Count one run of a block, or some."""
        self.runs[place] += runs
        if self.progress is not None:
            self.advance(runs)

    def advance(self, count: int = 1) -> None:
        """Tell that one more step or iteration is done, or some."""
        self.done += count
        if self.progress is not None:
            self.progress(self.done)


@dataclass
class Arrays:
    """A host of whole arrays: one element for each stream."""

    inputs: dict[str, Array]
    outputs: dict[str, Array] = field(default_factory=dict)

    def take(self, stream: str) -> Array:
        """Return the array of a stream."""
        return self.inputs[stream]

    def give(self, stream: str, value: Array) -> None:
        """Keep what a stream carries: as it is where nobody else holds it, else a copy."""
        if is_held_alone(value, _GIVEN_REFERENCES) and _is_whole(value):
            self.outputs[stream] = value
        else:
            fresh = contiguous(value)
            self.outputs[stream] = value.copy() if fresh is value else fresh


def _is_whole(value: Array) -> bool:
    """Whether an array is row-major and keeps none in memory that is larger by more than a line."""
    base = value.base
    rest = 0 if base is None else base.nbytes - value.nbytes
    return value.flags.c_contiguous and 0 <= rest <= LINE_BYTES


def _given_references() -> int:
    array = np.empty(1)
    return _Probe().give(array)


class _Probe:
    """Counts the references to an array that somebody gives away whose name still stands."""

    def give(self, value: Array) -> int:
        return references_here(value)


_GIVEN_REFERENCES = _given_references()


class CurrentRun(Counts):
    """The host and the counts of the run at hand, for steps that were prepared in another one."""

    host: Host | None = None
    counts: Counts

    def __init__(self) -> None:
        self.counts = Counts()

    @property
    def limit(self) -> TurnLimit:  # type: ignore[override]  # nobody writes it
        """That of the run at hand."""
        return self.counts.limit

    def ran(self, place: str, runs: int = 1) -> None:
        """Count one run of a block, or some."""
        self.counts.ran(place, runs)

    def iterations(self, name: str, path: str, count: int | None = None) -> Iterable[object]:
        """Return what a loop goes through that is entered."""
        return self.counts.iterations(name, path, count)

    def take(self, stream: str) -> Array:
        """Return the next element of a stream to the device."""
        assert self.host is not None
        return self.host.take(stream)

    def give(self, stream: str, value: Array) -> None:
        """Hand an element over to the host."""
        assert self.host is not None
        self.host.give(stream, value)


def in_range(index: int, count: int) -> int:
    """Return a branch number: what is out of range runs the last branch, as HLO has it."""
    return index if 0 <= index < count else count - 1
