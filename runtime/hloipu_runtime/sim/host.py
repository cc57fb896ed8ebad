"""What a run has outside of the tiles: streams by name, and how often each block was run."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Protocol

from hloipu_runtime.program.program import Array


class Host(Protocol):
    """Where streams begin and end; arrays are in storage form."""

    def take(self, stream: str) -> Array:
        """Return the next element of a stream to the device."""
        ...

    def give(self, stream: str, value: Array) -> None:
        """Take over an element from the device; the array may be a view of device memory."""
        ...


@dataclass
class Counts:
    """How often each block of the tree was run; blocks go by their path."""

    runs: Counter[str] = field(default_factory=Counter)


@dataclass
class Arrays:
    """A host of whole arrays: one element for each stream."""

    inputs: dict[str, Array]
    outputs: dict[str, Array] = field(default_factory=dict)

    def take(self, stream: str) -> Array:
        """Return the array of a stream."""
        return self.inputs[stream]

    def give(self, stream: str, value: Array) -> None:
        """Keep a copy of what a stream carries."""
        self.outputs[stream] = value.copy()
