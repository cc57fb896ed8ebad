"""Programs whose operands do not lie where they are read, as those that were measured.

Our compiler has a parameter born in the very parts that a product's tiles read, so that it is not
moved at all. The measured programs moved it: their time is that of products which receive both
operands whole. For comparison each such parameter is born in the same parts on other tiles.
"""

from dataclasses import replace
from math import prod

from hloipu_runtime.program.mapping import Mapping, Tiles, whole_box
from hloipu_runtime.program.program import Program, Role, Variable
from hloipu_runtime.program.steps import (
    ComputeSet,
    Definition,
    Exchange,
    Piece,
    Sequence,
    Step,
    StreamIn,
    Sync,
    Transfer,
)


def brought_from_elsewhere(program: Program) -> Program:
    """Return a program in which parameters that products read in place come from other tiles."""
    read = {
        operand.variable
        for step in program.body.steps
        if isinstance(step, ComputeSet)
        for group in step.groups
        for operand in group.inputs
    }
    moved = [v for v in sorted(read) if program.variables[v].role is Role.PARAMETER]
    if not moved:
        return program
    variables = list(program.variables)
    born: dict[int, int] = {}
    for v in moved:
        record = variables[v]
        born[v] = len(variables)
        variables.append(replace(record, mapping=_on_other_tiles(record.mapping)))
        variables[v] = replace(record, role=Role.TEMPORARY)
    steps: list[Step] = []
    waiting = {
        v: number for v, number in born.items() if _is_moved(variables[v], variables[number])
    }
    for step in program.body.steps:
        if isinstance(step, StreamIn) and step.variable in born:
            step = replace(step, variable=born[step.variable])
        needs_them = isinstance(step, ComputeSet) and any(
            operand.variable in waiting for group in step.groups for operand in group.inputs
        )
        if needs_them:
            steps += _brought(program, variables, waiting, steps)
            waiting = {}
        steps.append(step)
    return replace(program, variables=tuple(variables), body=Sequence(tuple(steps)))


def _brought(
    program: Program, variables: list[Variable], born: dict[int, int], steps: list[Step]
) -> list[Step]:
    """Return the exchange of parameters, in one with the exchange before it if there is one."""
    values = {x.variable: x.value for x in program.body.steps if isinstance(x, StreamIn)}
    transfers, definitions = [], []
    for v, source in born.items():
        record = variables[v]
        box, zeros = whole_box(record.shape), (0,) * len(record.shape)
        tiles = record.mapping.tiles
        transfers.append(
            Transfer(
                source, v, tiles, whole_box(tiles.extents), record.mapping.spans, box, zeros,
                record.shape, values[v],
            )
        )  # fmt: skip
        definitions.append(
            Definition(v, values[v], None, (Piece(values[v], record.shape, box, zeros),))
        )
    last = steps[-1] if steps else None
    if isinstance(last, Exchange):
        steps.pop()
        transfers = [*last.transfers, *transfers]
        definitions = [*last.definitions, *definitions]
        return [Exchange(tuple(transfers), tuple(definitions), last.name)]
    return [Sync(), Exchange(tuple(transfers), tuple(definitions), "operands")]


def _on_other_tiles(mapping: Mapping) -> Mapping:
    """Return the same parts on the same tiles, dealt out with the last axis as the first."""
    extents = mapping.tiles.extents
    order = sorted(range(len(extents)), key=lambda axis: mapping.tiles.strides[axis])
    strides = [0] * len(extents)
    for place, axis in enumerate(reversed(order)):
        strides[axis] = prod(extents[a] for a in list(reversed(order))[:place])
    return Mapping(Tiles(extents, tuple(strides), mapping.tiles.first), mapping.spans)


def _is_moved(here: Variable, there: Variable) -> bool:
    return here.mapping != there.mapping
