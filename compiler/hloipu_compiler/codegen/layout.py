"""Where values are to lie, decided before anything is lowered: parameters, loops' state, wishes.

A demand is a user's wish for where a value lies. Demands start at products and at ops that index,
and go backwards through everything that keeps elements together, however it sees them, through
loops and branches too. Where a value is born, or stays from turn to turn, is the place that is
cheapest for all of its demands together, each weighed by how often it comes.
"""

from collections.abc import Iterable, Sequence
from collections.abc import Mapping as MappingType
from dataclasses import dataclass, field
from typing import NamedTuple

from hloipu_compiler.codegen.bringing import CODE_CYCLES_PER_BYTE, bringing
from hloipu_runtime.codelets.codelet import Tensor
from hloipu_runtime.machine.model import Machine
from hloipu_runtime.program.mapping import Mapping

MOST_DEMANDS = 6
"""Of one value that are looked at: the ones that come most often."""

LeafKey = tuple[str, str, int]
"""Computation, instruction, number of the array within its result."""


class Demand(NamedTuple):
    """What one user of a value wishes."""

    born: Mapping
    """Where the value best lies: each element once."""
    need: Mapping
    """What the user's tiles read."""
    times: int
    """How often in each run of the computation."""
    user: str
    """Name of the instruction."""


class Home(NamedTuple):
    """Where a value lies, and on whose account."""

    mapping: Mapping
    user: str
    saved_cycles: int
    """Against the worst of the places that were looked at."""


@dataclass(frozen=True)
class Layout:
    """What was decided for a module."""

    homes: MappingType[LeafKey, Home] = field(default_factory=dict)
    """Of parameters of the entry, and of what loops carry, under the loop's name."""
    demands: MappingType[LeafKey, tuple[Demand, ...]] = field(default_factory=dict)
    """Of instructions that have any, the heaviest first."""
    first_tiles: MappingType[LeafKey, int] = field(default_factory=dict)
    """Where the grids of products begin."""


NO_LAYOUT = Layout()


def heaviest(demands: Iterable[Demand]) -> tuple[Demand, ...]:
    """Return different demands, those that come most often first, users of one place as one."""
    found: dict[tuple[Mapping, Mapping], Demand] = {}
    for x in demands:
        known = found.get((x.born, x.need))
        if known is not None:
            x = known._replace(times=known.times + x.times)
        found[(x.born, x.need)] = x
    return tuple(sorted(found.values(), key=lambda x: -x.times)[:MOST_DEMANDS])


def chosen_home(
    machine: Machine,
    tensor: Tensor,
    demands: Sequence[Demand],
    made: Mapping | None = None,
    turns: int = 1,
) -> Home | None:
    """Return the place with which all demands together cost least; None if there are none.

    `made`: where each turn of a loop makes the value that is to come to its home.
    """
    candidates = {x.born: x.user for x in demands}
    if made is not None and made.is_partition and not made.replicated_axes:
        candidates.setdefault(made, "")
    if not candidates:
        return None
    if len(candidates) == 1:
        ((mapping, user),) = candidates.items()
        return Home(mapping, user, 0)
    costs = {
        mapping: _cost(machine, tensor, mapping, demands, made, turns) for mapping in candidates
    }
    best = min(costs, key=costs.__getitem__)
    return Home(best, candidates[best], max(costs.values()) - costs[best])


def _cost(
    machine: Machine,
    tensor: Tensor,
    home: Mapping,
    demands: Sequence[Demand],
    made: Mapping | None,
    turns: int,
) -> int:
    """Return the cycles of serving all demands from one place, and of bringing what is made."""
    found = 0
    moves = [(home, x.need, x.times) for x in demands]
    if made is not None:
        moves.append((made, home, turns))
    for source, target, times in moves:
        way = bringing(machine, tensor.element_type, tensor.shape, source, target)
        found += times * way.cycles + CODE_CYCLES_PER_BYTE * way.code_bytes
    return found
