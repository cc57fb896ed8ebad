"""What integers of a loop's body are in each trip, where the counter and constants alone decide.

Whatever arithmetic a tracer writes around the counter (counting down, wrapping of negative
indices, clamping) is simply computed, for all trips at once.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hloipu_compiler.ir.graph import Computation, Instruction
from hloipu_compiler.ir.shapes import ArrayShape, Shape
from hloipu_compiler.passes.constant_values import scalar_constant

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
    "abs": np.abs,
    "select": lambda which, a, b: np.choose(which, (b, a)),
    "clamp": lambda low, x, high: np.minimum(np.maximum(x, low), high),
    "copy": lambda x: x,
    "bitcast": lambda x: x,
    "reshape": lambda x: x,
    "convert": lambda x: x,
}
_BITS = (8, 16, 32, 64)


def trip_values(body: Computation, elements: Mapping[int, Values], trips: int) -> dict[int, Values]:
    """Return, by position in a body, the numbers of all trips that can be told.

    `elements`: of elements of the loop's state, by index.
    """
    found: dict[int, Values] = {}
    parameter = body.parameters[0]
    for position, x in enumerate(body.instructions):
        kind = number_type(x.shape)
        if kind is None:
            continue
        value: Values | None = None
        if x.opcode == "get-tuple-element" and x.operands[0] == parameter:
            value = elements.get(x.attributes.integer("index"))
        elif x.opcode == "constant":
            number = scalar_constant(x)
            value = None if number is None else np.full(trips, int(number.reshape(-1)[0]))
        elif x.operands and all(i in found for i in x.operands):
            value = _computed(x, [found[i] for i in x.operands])
        if value is not None:
            found[position] = value.astype(kind)
    return found


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


def _computed(x: Instruction, operands: list[Values]) -> Values | None:
    if x.opcode == "compare":
        compared = _COMPARED.get(x.attributes.text("direction"))
        return None if compared is None else compared(*operands)
    if x.opcode == "bitcast" and operands[0].dtype != number_type(x.shape):
        return None
    computed = _COMPUTED.get(x.opcode)
    if computed is None or (x.opcode in ("negate", "subtract") and operands[0].dtype == np.bool_):
        return None
    return computed(*operands)
