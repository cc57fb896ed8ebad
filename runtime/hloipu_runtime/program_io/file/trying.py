"""Tries a vertex once, to check a codelet's parameters."""

from collections.abc import Sequence
from math import prod

import numpy as np

from hloipu_runtime.codelets.core.codelet import Block, Codelet, Tensor
from hloipu_runtime.codelets.core.expression import evaluate
from hloipu_runtime.codelets.core.expression_form import Expression
from hloipu_runtime.kernels.core.storage import storage_dtype
from hloipu_runtime.machine.model import Machine
from hloipu_runtime.program.mapping import Box, Sizes
from hloipu_runtime.program.program import Variable
from hloipu_runtime.program.steps import Operand, VertexGroup

MOST_ELEMENTS = 2**17
"""Of all operands and results of a vertex that is tried."""


def try_expression(expression: Expression) -> None:
    """Compute an expression once on single elements; raises ValueError where its types are wrong.

    Ops are chosen by name and types together, and no table says which go together: they are tried.
    """
    with np.errstate(all="ignore"):
        results = evaluate(
            expression, [np.ones(1, storage_dtype(kind)) for kind in expression.operand_types]
        )
    for array, kind in zip(results, expression.result_types, strict=True):
        if array.dtype != storage_dtype(kind):
            raise ValueError(f"an expression gives {array.dtype} where it says {kind}")


def vertex_elements(group: VertexGroup) -> int:
    """Return how many elements a vertex of a group touches, at most."""
    return sum(
        prod(span.size for span in operand.spans) for operand in (*group.inputs, *group.outputs)
    )


def vertex_work(group: VertexGroup, variables: Sequence[Variable], machine: Machine) -> None:
    """Ask for the cost of the vertex on a group's first tile; what it raises comes through."""
    operands, results = (
        [
            Tensor(
                variables[operand.variable].element_type,
                _part(operand, variables[operand.variable]),
            )
            for operand in side
        ]
        for side in (group.inputs, group.outputs)
    )
    group.codelet.work(machine, operands, results)
    group.codelet.state_bytes(machine, len(operands), len(results))
    group.codelet.table_bytes(machine, operands, results)
    group.codelet.room_bytes(machine, operands, results)


def try_vertex(group: VertexGroup, variables: Sequence[Variable], number: int) -> None:
    """Run the vertex on a group's first tile, on one number; ValueError for a wrong result.

    Whatever its codelet raises for parameters that fit neither each other nor the operands comes
    through.
    """
    inputs = [_block(operand, variables[operand.variable], number) for operand in group.inputs]
    outputs = [_block(operand, variables[operand.variable], 0) for operand in group.outputs]
    if any(0 in block.part for block in outputs):
        return
    results = _run(group.codelet, inputs, outputs)
    if len(results) != len(outputs):
        raise ValueError(f"it gives {len(results)} results, not {len(outputs)}")
    for (shape, dtype), block in zip(results, outputs, strict=True):
        if shape != block.part or dtype != block.data.dtype:
            raise ValueError(f"a result is {dtype}{list(shape)}, its place {list(block.part)}")


def _run(
    codelet: Codelet, inputs: list[Block], outputs: list[Block]
) -> list[tuple[Sizes, "np.dtype[np.generic]"]]:
    with np.errstate(all="ignore"):
        return [(array.shape, array.dtype) for array in codelet.run(inputs, outputs)]


def _part(operand: Operand, variable: Variable) -> Sizes:
    return tuple(high - low for low, high in _ranges(operand, variable))


def _ranges(operand: Operand, variable: Variable) -> Box:
    """Return which elements of an operand the first tile of its grid has."""
    ranges = []
    for span, size in zip(operand.spans, variable.shape, strict=True):
        low = min(max(span.offset, 0), size)
        ranges.append((low, max(low, min(span.offset + span.size, size))))
    return tuple(ranges)


def _block(operand: Operand, variable: Variable, number: int) -> Block:
    part = _part(operand, variable)
    starts = tuple(low for low, _ in _ranges(operand, variable))
    array = np.full(part, number, storage_dtype(variable.element_type))
    return Block(array, (), part, starts, variable.shape)
