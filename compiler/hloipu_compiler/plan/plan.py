"""The plan: decisions of passes, and facts that they found about a module."""

from collections.abc import Hashable, Mapping
from dataclasses import field, replace
from types import MappingProxyType

from hloipu_runtime.frozen import dataclass

SCHEMA = "hloipu.plan/1"

LoopKey = tuple[str, str]
"""Name of a computation, and of a `while` instruction in it."""


class Chosen:
    """Chosen candidates of ops, by all that the choice depends on.

    Programs of one module fill and read the same record, so that none weighs candidates again.
    """

    def __init__(self) -> None:
        self.by_key: dict[Hashable, int] = {}


@dataclass(frozen=True, slots=True)
class Plan:
    """Decisions that hold for one module; a pass that changes the module keeps them true."""

    trip_counts: Mapping[LoopKey, int] = field(default_factory=lambda: MappingProxyType({}))
    """How often a loop runs each time it is reached, for the loops where that is known."""
    ipus: Mapping[tuple[str, str], int] = field(default_factory=lambda: MappingProxyType({}))
    """Computation and instruction -> the IPU that it runs on, where it is not that of its caller.
    """
    held_ipus: Mapping[tuple[str, str, int], int] = field(
        default_factory=lambda: MappingProxyType({})
    )
    """Computation, instruction and leaf of its result -> the IPU that holds it: of the entry's
    parameters, of loops' state and of what branches share."""
    replicas: int = 1
    """Of those that meet at collectives: how many `replica-id` tells apart."""
    partitions: int = 1
    """And how many `partition-id` does."""
    averages_gradients: bool = False
    """Whether replicas combine their gradients before the update, which no op of the module does.
    """
    added_up: Mapping[str, frozenset[int]] = field(default_factory=lambda: MappingProxyType({}))
    """Computation -> arrays of its result that go into sums as soon as they are there."""
    product_rooms: Mapping[tuple[int, str], int] = field(
        default_factory=lambda: MappingProxyType({})
    )
    """IPU and instruction -> bytes that a product may take on a tile, where a program told them."""
    chosen: Chosen | None = field(default=None, compare=False)
    """Choices of other programs of the same module, once it is lowered."""
    pinned: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """Options that the user gave and that no pass may decide otherwise."""

    @property
    def shards(self) -> int:
        """IPUs that a replica takes: the next power of two, as multi-IPU devices have."""
        return 1 << max((*self.ipus.values(), *self.held_ipus.values()), default=0).bit_length()

    def trips(self, computation: str, instruction: str) -> int | None:
        """Return how often a loop runs, or None where that is not known."""
        return self.trip_counts.get((computation, instruction))

    def with_trip_counts(self, counts: Mapping[LoopKey, int]) -> "Plan":
        """Return the plan with these trip counts and no others."""
        return replace(self, trip_counts=MappingProxyType(dict(counts)))

    def record(self) -> dict[str, object]:
        """Return the plan as JSON data."""
        return {
            "schema": SCHEMA,
            "trip_counts": [
                {"computation": computation, "instruction": instruction, "trips": trips}
                for (computation, instruction), trips in sorted(self.trip_counts.items())
            ],
            "pinned": dict(sorted(self.pinned.items())),
        }
