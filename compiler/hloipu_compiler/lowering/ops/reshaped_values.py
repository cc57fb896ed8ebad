"""Lowering of reshapes: in place, or at the layout that their users prefer."""

from math import prod

from hloipu_compiler.lowering.core.builder import Builder
from hloipu_compiler.lowering.core.values import TileTensor
from hloipu_compiler.planners.op_grids import Demand
from hloipu_compiler.planners.redistribution import redistribution
from hloipu_compiler.planners.reshaping import reshaped_in_place
from hloipu_runtime.costs.exchange_form import copy_charge
from hloipu_runtime.element_types import ELEMENT_TYPES
from hloipu_runtime.program import steps as s
from hloipu_runtime.program.mapping import Mapping, Sizes, whole_box


def reshaped_value(builder: Builder, source: TileTensor, shape: Sizes) -> TileTensor:
    """Return a value in another shape: a copy on each tile if that is cheapest, or an exchange."""
    lying = builder.variables[source.variable].mapping
    staying = reshaped_in_place(lying, source.shape, shape)
    mapping = _cheapest(builder, source, shape, staying)
    if mapping is None:
        mapping = builder.default_mapping(source.element_type, shape)
    variable = builder.variable(source.element_type, shape, mapping)
    value = builder.value(source.element_type, shape)
    box, zeros = whole_box(shape), (0,) * len(shape)
    transfer = builder.transfer(source, variable, shape, box, zeros)
    definition = s.Definition(variable, value, None, (s.Piece(source.value, shape, box, zeros),))
    if mapping == staying:
        # Nothing crosses tiles, so that none waits for another.
        builder.emit(s.Exchange((transfer,), (definition,), builder.origin))
    else:
        builder.exchange([transfer], [definition])
    return TileTensor(value, variable, source.element_type, shape)


def _cheapest(
    builder: Builder, source: TileTensor, shape: Sizes, staying: Mapping | None
) -> Mapping | None:
    """Return where the reshaped value costs least, redistribution to its users included."""
    preferences = [x for x in builder.preferences if len(x.born.spans) == len(shape)]
    mappings = [x.place(shape) if len(preferences) == 1 else x.born for x in preferences]
    if staying is None:
        # What exchanges into each of them costs is alike: the first comes most often.
        return mappings[0] if mappings else None
    if not preferences:
        return staying
    costs = {staying: _copy_cycles(builder, source, staying)}
    for mapping in mappings:
        costs.setdefault(mapping, _cycles(builder, source, shape, staying, mapping))
    for mapping in costs:
        costs[mapping] += sum(_served(builder, source, shape, mapping, x) for x in preferences)
    return min(costs, key=costs.__getitem__)


def _copy_cycles(builder: Builder, source: TileTensor, mapping: Mapping) -> int:
    size = prod(mapping.block) * ELEMENT_TYPES[source.element_type].bits // 8
    return copy_charge(builder.machine, size, 1).cycles


def _cycles(
    builder: Builder, source: TileTensor, shape: Sizes, lying: Mapping, wanted: Mapping
) -> int:
    return redistribution(builder.machine, source.element_type, shape, lying, wanted).price


def _served(
    builder: Builder, source: TileTensor, shape: Sizes, lying: Mapping, preference: Demand
) -> int:
    return _cycles(builder, source, shape, lying, preference.need)
