"""Integers of a loop's body in each trip, where counter and constants decide them.

Whatever arithmetic a tracer writes around the counter (counting down, wrapping of negative
indices, clamping) is simply computed, for all trips at once.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hloipu_compiler.ir.graph import Computation, Instruction
from hloipu_compiler.ir.shapes import ArrayShape, Shape
from hloipu_compiler.passes.framework.constant_values import constant_array, scalar_constant

Values = NDArray[Any]
"""One number for each trip, in the type that the op has."""

_COMPARED: Mapping[str, Callable[[Values, Values], Values]] = {
    "LT": np.less,
    "LE": np.less_equal,
    "GT": np.greater,
    "GE": np.greater_equal,
    "EQ": np.equal,
    "NE": np.not_equal,
}
_COMPUTED: Mapping[str, Callable[..., Values]] = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "not": np.invert,
    "negate": np.negative,
    "sign": np.sign,
    "remainder": np.fmod,
    "divide": lambda a, b: (a - np.fmod(a, b)) // b,
    "abs": np.abs,
    "select": lambda which, a, b: np.choose(which, (b, a)),
    "clamp": lambda low, x, high: np.minimum(np.maximum(x, low), high),
    "copy": lambda x: x,
    "bitcast": lambda x: x,
    "reshape": lambda x: x,
    "convert": lambda x: x,
}
_BITS = (8, 16, 32, 64)
MOST_ROWS = 1 << 20
"""Of numbers that are written down to be looked up."""


def trip_values(
    body: Computation, elements: Mapping[int, Values], tables: Mapping[int, Values], trips: int
) -> dict[int, Values]:
    """Return, by position in a body, the numbers of all trips that can be told.

    `elements`: of elements of the loop's state, by index; `tables`: elements that are a row of
    numbers which never change, such as the numbers of the layers.
    """
    values_by_position: dict[int, Values] = {}
    rows: dict[int, Values] = {}
    parameter = body.parameters[0]
    for position, op in enumerate(body.instructions):
        index = -1
        if op.opcode == "get-tuple-element" and op.operands[0] == parameter:
            index = op.attributes.integer("index")
        kind = number_type(op.shape)
        if kind is None:
            table = table_of(op) if index < 0 else tables.get(index)
            if table is not None:
                rows[position] = table
            continue
        value: Values | None = None
        if index >= 0:
            value = elements.get(index)
        elif op.opcode == "dynamic-slice" and op.operands[0] in rows:
            value = _looked_up(rows[op.operands[0]], values_by_position.get(op.operands[1]))
        elif op.opcode == "constant":
            number = scalar_constant(op)
            value = None if number is None else np.full(trips, int(number.reshape(-1)[0]))
        elif op.operands and all(i in values_by_position for i in op.operands):
            value = _computed(op, [values_by_position[i] for i in op.operands])
        if value is not None:
            values_by_position[position] = value.astype(kind)
    return values_by_position


def _looked_up(table: Values, at: Values | None) -> Values | None:
    """Return the number at each index, moved into range as dynamic-slice does it."""
    return None if at is None else table[np.clip(at.astype(np.int64), 0, len(table) - 1)]


def table_of(op: Instruction) -> Values | None:
    """Return a row of integers that an op makes of nothing; None for anything else."""
    shape = op.shape
    if not isinstance(shape, ArrayShape) or shape.rank != 1 or not shape.is_static:
        return None
    if not shape.element_type.is_integer or shape.element_type.bits not in _BITS:
        return None
    if op.opcode == "iota" and shape.dimensions[0] <= MOST_ROWS:
        return np.arange(shape.dimensions[0])
    return constant_array(op) if op.opcode == "constant" else None


def number_type(shape: Shape) -> np.dtype[Any] | None:
    """Return the type of a single integer or truth value; None for anything else."""
    if not isinstance(shape, ArrayShape) or shape.element_count != 1:
        return None
    kind = shape.element_type
    if kind.name == "pred":
        return np.dtype(np.bool_)
    if not kind.is_integer or kind.bits not in _BITS:
        return None
    return np.dtype(f"{'u' if kind.name[0] == 'u' else 'i'}{kind.bits // 8}")


def _computed(op: Instruction, operands: list[Values]) -> Values | None:
    if op.opcode == "compare":
        compared = _COMPARED.get(op.attributes.text("direction"))
        return None if compared is None else compared(*operands)
    if op.opcode == "bitcast" and operands[0].dtype != number_type(op.shape):
        return None
    computed = _COMPUTED.get(op.opcode)
    if computed is None or (op.opcode in ("negate", "subtract") and operands[0].dtype == np.bool_):
        return None
    if op.opcode in ("divide", "remainder") and not operands[1].all():
        return None
    return computed(*operands)
