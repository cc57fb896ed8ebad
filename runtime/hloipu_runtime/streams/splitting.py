"""Arrays of a queue's elements that go through several streams, each with a piece of them."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from hloipu_runtime.program.seen import Split
from hloipu_runtime.program.stacks import Stack
from hloipu_runtime.streams.element import Array, Leaves

NO_SPLIT: Mapping[str, Split] = MappingProxyType({})


def names_of(streams: Sequence[str], split: Mapping[str, Split]) -> tuple[str, ...]:
    """Return the program's streams of a queue's leaves."""
    return tuple(
        name
        for stream in streams
        for name in (split[stream].streams if stream in split else (stream,))
    )


def cuts_of(streams: Sequence[str], split: Mapping[str, Split]) -> tuple[Stack | None, ...]:
    """Return how each leaf is cut; nothing where none is."""
    if not any(stream in split for stream in streams):
        return ()
    return tuple(split[stream].stack if stream in split else None for stream in streams)


def cut(leaves: Leaves, cuts: Sequence[Stack | None]) -> Leaves:
    """Return what each stream carries of an element."""
    found: list[Array] = []
    for leaf, stack in zip(leaves, cuts, strict=True):
        found += [leaf] if stack is None else stack.pieces(leaf)
    return tuple(found)


def joined(pieces: Leaves, cuts: Sequence[Stack | None]) -> Leaves:
    """Return the element of which each stream carried a piece."""
    rest = iter(pieces)
    found: list[Array] = []
    for stack in cuts:
        own = [next(rest) for _ in range(1 if stack is None else len(stack.sizes))]
        found.append(own[0] if stack is None else stack.joined(own))
    return tuple(found)
