"""Lowering of reshapes that are left: where a value lies already, or where its users wish it."""

from math import prod

from hloipu_compiler.lowering.core.builder import Builder
from hloipu_compiler.lowering.core.values import Held
from hloipu_compiler.planners.layout_propagation import reshaped_in_place
from hloipu_compiler.planners.op_grids import Demand
from hloipu_compiler.planners.redistribution import bringing
from hloipu_runtime.costs.exchange_form import copy_charge
from hloipu_runtime.element_types import ELEMENT_TYPES
from hloipu_runtime.program import steps as s
from hloipu_runtime.program.mapping import Mapping, Sizes, whole_box


def reshaped_value(builder: Builder, source: Held, shape: Sizes) -> Held:
    """Return a value in another shape: a copy on each tile if that is cheapest, or an exchange."""
    lying = builder.variables[source.variable].mapping
    staying = reshaped_in_place(lying, source.shape, shape)
    mapping = _cheapest(builder, source, shape, staying)
    if mapping is None:
        mapping = builder.home(source.element_type, shape)
    variable = builder.variable(source.element_type, shape, mapping)
    value = builder.value(source.element_type, shape)
    box, zeros = whole_box(shape), (0,) * len(shape)
    transfer = builder.transfer(source, variable, shape, box, zeros)
    made = s.Definition(variable, value, None, (s.Piece(source.value, shape, box, zeros),))
    if mapping == staying:
        # Nothing crosses tiles, so that none waits for another.
        builder.emit(s.Exchange((transfer,), (made,), builder.origin))
    else:
        builder.exchange([transfer], [made])
    return Held(value, variable, source.element_type, shape)


def _cheapest(
    builder: Builder, source: Held, shape: Sizes, staying: Mapping | None
) -> Mapping | None:
    """Return where the reshaped value costs least, its way to those who wish it included."""
    wishes = [x for x in builder.wishes if len(x.born.spans) == len(shape)]
    found = [x.place(shape) if len(wishes) == 1 else x.born for x in wishes]
    if staying is None:
        # What exchanges into each of them costs is alike: the first comes most often.
        return found[0] if found else None
    if not wishes:
        return staying
    costs = {staying: _copy_cycles(builder, source, staying)}
    for mapping in found:
        costs.setdefault(mapping, _cycles(builder, source, shape, staying, mapping))
    for mapping in costs:
        costs[mapping] += sum(_served(builder, source, shape, mapping, x) for x in wishes)
    return min(costs, key=costs.__getitem__)


def _copy_cycles(builder: Builder, source: Held, mapping: Mapping) -> int:
    size = prod(mapping.block) * ELEMENT_TYPES[source.element_type].bits // 8
    return copy_charge(builder.machine, size, 1).cycles


def _cycles(builder: Builder, source: Held, shape: Sizes, lying: Mapping, wanted: Mapping) -> int:
    return bringing(builder.machine, source.element_type, shape, lying, wanted).price


def _served(builder: Builder, source: Held, shape: Sizes, lying: Mapping, wish: Demand) -> int:
    return _cycles(builder, source, shape, lying, wish.need)
