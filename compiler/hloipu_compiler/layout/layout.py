"""Initial layouts of parameters and loop state, and the preferences of users.

A demand is a user's preference for where a value lies. Demands start at products and at ops that
index, and go backwards through everything that keeps elements together, however it sees them,
through loops and branches too. Where a value is born, or stays from iteration to iteration, is the
place that is cheapest for all of its demands together, each weighed by how often it comes.
"""

from collections.abc import Iterable, Sequence
from collections.abc import Mapping as MappingType
from dataclasses import field
from typing import NamedTuple

from hloipu_compiler.planners.op_grids import Demand
from hloipu_compiler.planners.redistribution import redistribution
from hloipu_runtime.codelets.core.tensors import Tensor
from hloipu_runtime.costs.exchange_price import NO_CODE_PRICE, CodePrice
from hloipu_runtime.frozen import dataclass
from hloipu_runtime.machine.model import Machine
from hloipu_runtime.program.mapping import Mapping

MOST_DEMANDS = 6
"""Of one value that are looked at: the ones that come most often."""

LeafKey = tuple[str, str, int]
"""Computation, instruction, number of the array within its result."""


class InitialLayout(NamedTuple):
    """Where a value lies, and on whose account."""

    mapping: Mapping
    user: str
    demands: tuple[Demand, ...] = ()
    """All that were weighed."""
    next_mapping: Mapping | None = None
    """Where each iteration of a loop makes it."""
    iterations: int = 1


@dataclass(frozen=True)
class Layout:
    """What was decided for a module."""

    initial_layouts: MappingType[LeafKey, InitialLayout] = field(default_factory=dict)
    """Of what loops carry, under the loop's name."""
    parameters: MappingType[int, InitialLayout] = field(default_factory=dict)
    """Of arrays of the entry's parameters, counted as in one flattened tuple."""
    demands: MappingType[LeafKey, tuple[Demand, ...]] = field(default_factory=dict)
    """Of instructions that have any, the heaviest first."""
    first_tiles: MappingType[LeafKey, int] = field(default_factory=dict)
    """Where the grids of products begin."""

    def born(self, parameter: int) -> Mapping | None:
        """Return where an array of the entry's parameters is born; None: as any other value."""
        layout = self.parameters.get(parameter)
        return layout and layout.mapping


NO_LAYOUT = Layout()


def heaviest(demands: Iterable[Demand]) -> tuple[Demand, ...]:
    """Return different demands, those that come most often first, users of one place as one."""
    different: dict[tuple[object, ...], Demand] = {}
    for demand in demands:
        key = demand.born, demand.need, demand.price
        known = different.get(key)
        if known is not None:
            demand = known._replace(times=known.times + demand.times)
        different[key] = demand
    return tuple(sorted(different.values(), key=lambda demand: -demand.times)[:MOST_DEMANDS])


def chosen_initial_layout(
    machine: Machine,
    tensor: Tensor,
    demands: Sequence[Demand],
    next_mapping: Mapping | None = None,
    iterations: int = 1,
    code_price: CodePrice = NO_CODE_PRICE,
) -> InitialLayout | None:
    """Return the place with which all demands together cost least; None if there are none.

    `next_mapping`: where each iteration of a loop makes the value that is to come to its home.
    `code_price`: what a byte of the exchanges' code is worth.
    """
    candidates = {demand.born: demand.user for demand in demands}
    if next_mapping is not None and next_mapping.is_partition and not next_mapping.replicated_axes:
        candidates.setdefault(next_mapping, "")
    if not candidates:
        return None
    if len(candidates) == 1:
        best = next(iter(candidates))
    else:
        best = min(
            candidates,
            key=lambda mapping: cost_of_layout(
                machine, tensor, mapping, demands, next_mapping, iterations, code_price
            ),
        )
    return InitialLayout(best, candidates[best], tuple(demands), next_mapping, iterations)


def cost_of_layout(
    machine: Machine,
    tensor: Tensor,
    initial_layout: Mapping,
    demands: Sequence[Demand],
    next_mapping: Mapping | None,
    iterations: int,
    code_price: CodePrice = NO_CODE_PRICE,
) -> int:
    """Return the cycles of serving all demands from one place, and of redistributing what is made.

    `code_price`: what a byte of the exchanges' code is worth.
    """
    cycles = 0
    for demand in demands:
        redistributed = redistribution(machine, *tensor, initial_layout, demand.need, code_price)
        cycles += min(
            demand.times * redistributed.cycles + code_price.compared * redistributed.code_bytes,
            demand.times * demand.loss(initial_layout),
        )
    if next_mapping is not None:
        redistributed = redistribution(machine, *tensor, next_mapping, initial_layout, code_price)
        cycles += iterations * redistributed.cycles + code_price.compared * redistributed.code_bytes
    return cycles
