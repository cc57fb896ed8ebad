"""The device loop: resident state, queues, and iterations."""

from collections.abc import Mapping
from dataclasses import field, replace
from types import MappingProxyType
from typing import NamedTuple

from hloipu_runtime.element_types import shape_text
from hloipu_runtime.frozen import dataclass


@dataclass(frozen=True, slots=True)
class WrappingRequest:
    """The user's options; numbers are those of parameters and results, arrays counted."""

    loop: int | None = None
    roles: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """Number, name, or name of a whole group of parameters -> role."""
    feeds: Mapping[str, tuple[int, ...]] = field(default_factory=lambda: MappingProxyType({}))
    outfeeds: tuple[str, ...] = ()
    """`NAME=N,…`, or `NAME` for all other results; `NAME:MODE` before the rest of either.

    `KEY=N` in the place of N names an array, whose elements are dictionaries then.
    """
    io_tiles: int = 0
    """Tiles to set apart for the queues."""
    replica_keys: str = "auto"
    """Whether replicas draw from keys of their own: auto, folded or same."""
    queues_take_all: bool = False
    """Whether results that no outfeed names go to queues `result.N`, as in steps that are cut."""

    @property
    def asks(self) -> bool:
        """Whether anything is to be wrapped."""
        return bool(self.loop or self.roles or self.feeds or self.outfeeds or self.io_tiles)


def looped(request: WrappingRequest) -> WrappingRequest:
    """Return a request with a loop, if only of one step, where queues take every result."""
    return replace(request, loop=request.loop or 1, queues_take_all=True)


class EntryArray(NamedTuple):
    """A parameter or a result of the entry, tuples flattened."""

    number: int
    element_type: str
    shape: tuple[int, ...]
    name: str = ""
    group: str = ""
    """The argument of the user's function that it is part of; empty where the dump does not say."""

    def __str__(self) -> str:
        return f"{self.name or self.number} {self.tensor}"

    @property
    def tensor(self) -> str:
        """Type and shape as HLO writes them."""
        return shape_text(self.element_type, self.shape)

    @property
    def kind(self) -> tuple[str, tuple[int, ...]]:
        """Type and shape of a pair of state."""
        return self.element_type, self.shape


class StatePair(NamedTuple):
    """A parameter that stays on the device, and the result that is its next value."""

    name: str
    parameter: int
    result: int


class FeedBinding(NamedTuple):
    """A queue, and the parameters or results that its elements are."""

    name: str
    places: tuple[int, ...]
    reduction: str = ""
    """`sum` or `mean`: of an outfeed that gives one element a run, made of those of all steps."""
    mode: str = ""
    """Of an outfeed, which elements its queue keeps unless a session says otherwise."""
    names: tuple[str, ...] = ()
    """Of the parameters that it feeds, as the dump has them; of an outfeed's arrays, as asked."""


@dataclass(frozen=True, slots=True)
class Wrapping:
    """A step's place on the device; every parameter and result of it is accounted for."""

    loop: int | None
    """Steps of one run; None: one, with no loop around it."""
    state: tuple[StatePair, ...]
    feeds: tuple[FeedBinding, ...]
    constants: tuple[int, ...]
    """Parameters that are loaded once, as constants are."""
    outfeeds: tuple[FeedBinding, ...]
    results: tuple[int, ...]
    """Results that are handed over at the end of a run."""
    evidence: str = ""
    """What says which parameters are state."""
    inputs: tuple[int, ...] = ()
    """Parameters that the host gives with each call."""
    io_tiles: int = 0
    """Tiles set apart for the queues of the loop, whose transfers go on beside computing."""
    assumed: str = ""
    """What was taken for data or state without anybody's word, and how to say otherwise."""

    @property
    def lasting(self) -> tuple[int, ...]:
        """Parameters that are the same in all steps of a call, and are no state."""
        return tuple(sorted((*self.constants, *self.inputs)))

    def lines(self) -> list[str]:
        """Return what was decided, for people."""
        turns = "one step a run" if self.loop in (None, 1) else f"{self.loop} steps a run"
        arrays = "1 array stays" if len(self.state) == 1 else f"{len(self.state)} arrays stay"
        lines = [f"{turns}; {arrays} on the device ({self.evidence})"]
        if self.state:
            pairs = [(pair.parameter, pair.result) for pair in self.state]
            lines.append(f"  state: parameters {_ranges([p for p, _ in pairs])} become results "
                         f"{_ranges([r for _, r in pairs])}")  # fmt: skip
        lines += [f"  feed {feed.name}: parameters {_ranges(feed.places)}" for feed in self.feeds]
        if self.assumed:
            lines.append(f"  {self.assumed}")
        if self.constants:
            lines.append(f"  loaded once: parameters {_ranges(self.constants)}")
        if self.inputs:
            lines.append(f"  given with each call: parameters {_ranges(self.inputs)}")
        lines += [
            f"  outfeed {outfeed.name}: {_reduction_text(outfeed)}results {_ranges(outfeed.places)}"
            for outfeed in self.outfeeds
        ]
        if self.results:
            lines.append(f"  at the end of a run: results {_ranges(self.results)}")
        return lines


def _reduction_text(outfeed: FeedBinding) -> str:
    reduction_or_mode = outfeed.reduction or outfeed.mode
    return f"{reduction_or_mode} of " if reduction_or_mode else ""


def _ranges(numbers: "tuple[int, ...] | list[int]") -> str:
    """Return numbers with runs of neighbours shortened."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][-1] + 1:
            parts[-1] = [parts[-1][0], number]
        else:
            parts.append([number])
    return ", ".join("-".join(map(str, part)) for part in parts)
