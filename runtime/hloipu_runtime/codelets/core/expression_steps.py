"""Kernels of expression ops, bound to element types and parameters.

A step takes its arguments, which broadcast together, and perhaps an array of the result's shape to
write into, which may be an argument. Floating-point warnings are off around it.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import prod
from typing import Any

import numpy as np

from hloipu_runtime.codelets.core.constants import value_of
from hloipu_runtime.codelets.core.expression_form import Node
from hloipu_runtime.codelets.core.expression_rewriting import FLOORED, MASKED
from hloipu_runtime.codelets.core.straight import Sizes, Take, copying
from hloipu_runtime.element_types import ELEMENT_TYPES, ElementType, Kind
from hloipu_runtime.frozen import dataclass
from hloipu_runtime.kernels.core.blocks import BLOCK_ELEMENTS, Array
from hloipu_runtime.kernels.core.rounding import (
    Origin,
    is_narrow,
    origin_of,
    round_block,
    round_to,
    rounding_calls,
    rounds_in_place,
)
from hloipu_runtime.kernels.core.storage import storage_dtype
from hloipu_runtime.kernels.elementwise import binary as binary_kernels
from hloipu_runtime.kernels.elementwise.binary import binary, extremum_on_arrays
from hloipu_runtime.kernels.elementwise.compare import (
    DIRECTIONS,
    choose_by_mask,
    clamp,
    compare,
    is_own_order,
    mask,
    masked,
    select,
    select_on_arrays,
)
from hloipu_runtime.kernels.elementwise.convert import bitcast_convert, convert, stochastic_convert
from hloipu_runtime.kernels.elementwise.reduce_precision import reduce_precision
from hloipu_runtime.kernels.elementwise.unary import (
    ON_GRID,
    PARTS,
    REAL_KERNELS,
    UNARY,
    Parts,
    unary,
)

Step = Callable[[list[Array], Array | None], Array]


@dataclass(frozen=True, slots=True)
class Plain:
    """A step that is one ufunc."""

    ufunc: np.ufunc

    def __call__(self, x: list[Array], out: Array | None) -> Array:
        """Call it; numbers become arrays."""
        return np.asarray(self.ufunc(*x, out=out))


@dataclass(frozen=True, slots=True)
class OfReals:
    """A step that is several ufuncs."""

    opcode: str
    element_type: str

    def __call__(self, x: list[Array], out: Array | None) -> Array:
        """Call them, one after another."""
        if not _is_small(x[0]):
            return unary(self.opcode, x[0], self.element_type, out)
        made = np.empty(x[0].shape, x[0].dtype) if out is None else out
        REAL_KERNELS[self.opcode](x[0], made)
        return made

    def on_arrays(
        self, arguments: Sequence[Array], out: Array, take: Take
    ) -> list[Callable[[], object]] | None:
        """Return the calls on these arrays."""
        return _calls_of_parts(PARTS.get(self.opcode, ()), arguments[0], out) or None


def _calls_of_parts(parts: Parts, x: Array, out: Array) -> list[Callable[[], object]]:
    calls: list[Callable[[], object]] = []
    for ufunc, number in parts:
        second = () if number is None else (np.array(number, x.dtype),)
        calls.append(partial(ufunc, x, *second, out))
        x = out
    return calls


@dataclass(frozen=True, slots=True)
class Extremum:
    """The larger or the smaller of two floats each."""

    opcode: str
    step: Step

    def __call__(self, x: list[Array], out: Array | None) -> Array:
        """Choose."""
        return self.step(x, out)

    def on_arrays(
        self, arguments: Sequence[Array], out: Array, take: Take
    ) -> list[Callable[[], object]] | None:
        """Return the calls on these arrays."""
        return extremum_on_arrays(self.opcode, arguments, out, take(out.shape, out.dtype))


@dataclass(frozen=True, slots=True)
class Cast:
    """A step that is numpy's conversion."""

    before: str
    after: str

    def __call__(self, x: list[Array], out: Array | None) -> Array:
        """Convert."""
        if out is None:
            return convert(x[0], self.before, self.after)
        np.copyto(out, x[0], casting="unsafe")
        return out

    def on_arrays(
        self, arguments: Sequence[Array], out: Array, take: Take
    ) -> list[Callable[[], object]] | None:
        """Return the call on these arrays."""
        return [copying(out, arguments[0])]


@dataclass(frozen=True, slots=True)
class Narrowed:
    """A step that computes in f32 and rounds to a narrow grid."""

    kernel: Callable[..., object]
    """Writes what is rounded to its last argument."""
    element_type: str
    origin: Origin
    general: Step
    """The same on large arrays and empty ones."""
    parts: Parts = ()
    """Of the kernel, where it is several ufuncs."""

    def __call__(self, x: list[Array], out: Array | None) -> Array:
        """Compute; a number as an array of one."""
        shape, *others = [a.shape for a in x]
        if others and others[0] != shape:
            shape = (
                np.broadcast_shapes(shape, *others) if shape and others[0] else shape or others[0]
            )
        if not shape:
            made = self([a.reshape(1) for a in x], None if out is None else out.reshape(1))
            return made.reshape(()) if out is None else out
        if not 0 < prod(shape) <= BLOCK_ELEMENTS:
            return self.general(x, out)
        in_place = rounds_in_place(self.element_type, self.origin)
        exact = np.empty(shape, np.float32) if out is None or not in_place else out
        self.kernel(*x, exact)
        if out is None:
            out = exact if in_place else np.empty(shape, np.float32)
        round_block(exact, self.element_type, out, self.origin)
        return out

    def of_shape(self, shape: Sizes) -> Callable[..., Array]:
        """Return the step as a function of arguments that broadcast to a shape."""
        if not shape or not 0 < prod(shape) <= BLOCK_ELEMENTS:
            return lambda *x, out=None: self(list(x), out)
        kernel, element_type, origin = self.kernel, self.element_type, self.origin
        in_place = rounds_in_place(element_type, origin)

        def run(*x: Array, out: Array | None = None) -> Array:
            exact = np.empty(shape, np.float32) if out is None or not in_place else out
            kernel(*x, exact)
            if out is None:
                out = exact if in_place else np.empty(shape, np.float32)
            round_block(exact, element_type, out, origin)
            return out

        return run

    def on_arrays(
        self, arguments: Sequence[Array], out: Array, take: Take
    ) -> list[Callable[[], object]] | None:
        """Return the calls on these arrays."""
        if not 0 < out.size <= BLOCK_ELEMENTS:
            return None
        if not out.ndim:
            arguments, out = [x.reshape(1) for x in arguments], out.reshape(1)
        exact = take(out.shape, np.dtype(np.float32))
        calls = _calls_of_parts(self.parts, arguments[0], exact)
        calls = calls or [partial(self.kernel, *arguments, exact)]
        return [*calls, *rounding_calls(exact, self.element_type, out, self.origin, take)]


Parameters = Mapping[str, str | int]
Builder = Callable[[Sequence[str], str, Parameters], Step]
"""From the arguments' types, the result's type and the parameters."""


def _constant(types: Sequence[str], element_type: str, parameters: Parameters) -> Step:
    value = value_of(str(parameters["value"]), element_type)
    return lambda x, out: value


def _copy(types: Sequence[str], element_type: str, parameters: Parameters) -> Step:
    return lambda x, out: x[0]


def _unary(opcode: str, types: Sequence[str], element_type: str, parameters: Parameters) -> Step:
    argument = types[0]
    kernel = REAL_KERNELS.get(opcode)
    is_rounded = is_narrow(argument) and not (argument in ("f16", "bf16") and opcode in ON_GRID)
    if kernel is not None and is_rounded:
        general: Step = lambda x, out: unary(opcode, x[0], argument, out)  # noqa: E731
        return Narrowed(kernel, argument, origin_of(opcode), general, PARTS.get(opcode, ()))
    if kernel is not None and ELEMENT_TYPES[argument].is_float:
        return Plain(kernel) if isinstance(kernel, np.ufunc) else OfReals(opcode, argument)
    if opcode in ("real", "imag"):
        # Kernels may return a view of the operand, whose buffer others get while it is read.
        part = storage_dtype(element_type)
        return lambda x, out: unary(
            opcode, x[0], argument, np.empty(x[0].shape, part) if out is None else out
        )
    # Kernels of another result type make it themselves.
    keeps_type = argument == element_type
    return lambda x, out: unary(opcode, x[0], argument, out if keeps_type else None)


def _binary(opcode: str, types: Sequence[str], element_type: str, parameters: Parameters) -> Step:
    argument = types[0]
    plain = _plain_ufunc(opcode, ELEMENT_TYPES[argument])
    if plain is not None:
        return Plain(plain)
    kernel = binary_kernels.REAL_KERNELS.get(opcode)
    if kernel is not None and opcode in ("maximum", "minimum") and ELEMENT_TYPES[argument].is_float:
        choose = kernel

        def extremum(x: list[Array], out: Array | None) -> Array:
            a, b = x
            if a.shape != b.shape or not _is_small(a):
                return binary(opcode, a, b, argument, out)
            target = np.empty(a.shape, a.dtype) if out is None else out
            choose(a, b, target)
            return target

        return Extremum(opcode, extremum)
    if isinstance(kernel, np.ufunc) and is_narrow(argument):
        general: Step = lambda x, out: binary(opcode, x[0], x[1], argument, out)  # noqa: E731
        return Narrowed(kernel, argument, origin_of(opcode), general)
    return lambda x, out: binary(opcode, x[0], x[1], argument, out)


def _is_small(x: Array) -> bool:
    """Whether an array with axes is one block, for which the kernels' own walk is needless."""
    return x.ndim > 0 and 0 < x.size <= BLOCK_ELEMENTS


def _plain_ufunc(opcode: str, element: ElementType) -> np.ufunc | None:
    """Return the ufunc that is all that `binary` does for a type, or None."""
    if element.name in ("f32", "f64"):
        return _CORRECTLY_ROUNDED.get(opcode)
    if element.is_complex:
        return _CORRECTLY_ROUNDED.get(opcode) if opcode != "divide" else None
    if element.is_integer and element.bits >= 8:
        shift = "shift-right-arithmetic" if element.kind is Kind.SIGNED else "shift-right-logical"
        return np.right_shift if opcode == shift else _WRAPPING.get(opcode)
    return _OF_PREDICATES.get(opcode) if element.name == "pred" else None


_CORRECTLY_ROUNDED = {
    "add": np.add, "subtract": np.subtract, "multiply": np.multiply, "divide": np.divide,
}  # fmt: skip
_WRAPPING = {
    "add": np.add, "subtract": np.subtract, "multiply": np.multiply, "maximum": np.maximum,
    "minimum": np.minimum, "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
    "shift-left": np.left_shift,
}  # fmt: skip
_OF_PREDICATES = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}


def _compare(types: Sequence[str], element_type: str, parameters: Parameters) -> Step:
    direction, argument = str(parameters["direction"]), types[0]
    order = str(parameters.get("type") or "") or None
    if is_own_order(order, argument):
        return Plain(DIRECTIONS[direction])
    return lambda x, out: compare(x[0], x[1], direction, order, argument, out)


class Choose:
    """A step that chooses between two values for each element; `out` may be left as it is."""

    def __call__(self, x: list[Array], out: Array | None) -> Array:
        """Choose."""
        predicate, yes, no = x
        return select(predicate, yes, no, out)

    def on_arrays(
        self, arguments: Sequence[Array], out: Array, take: Take
    ) -> list[Callable[[], object]] | None:
        """Return the calls on these arrays."""
        predicate, yes, no = arguments
        return select_on_arrays(predicate, yes, no, out, take)


@dataclass(frozen=True, slots=True)
class OrZero:
    """A choice between values and zeros of all bits zero: bits times 0 or 1."""

    bits: np.dtype[Any]
    """The integer of the values' width."""
    dtype: np.dtype[Any]
    zero_where: bool
    """What the predicate says of zeros."""

    def __call__(self, x: list[Array], out: Array | None) -> Array:
        """Choose; as `select`, of a predicate, values and zeros in its order."""
        if self.zero_where:
            holds, values = np.asarray(np.logical_not(x[0])), x[2]
        else:
            holds, values = x[0], x[1]
        ones, bits = holds.view(np.int8), values.view(self.bits)
        if out is None:
            return np.asarray(np.multiply(ones, bits)).view(self.dtype)
        np.multiply(ones, bits, out=out.view(self.bits))
        return out

    def on_arrays(
        self, arguments: Sequence[Array], out: Array, take: Take
    ) -> list[Callable[[], object]] | None:
        """Return the calls on these arrays."""
        holds, values = arguments[0], arguments[2 if self.zero_where else 1]
        calls: list[Callable[[], object]] = []
        if self.zero_where:
            holds = take(holds.shape, holds.dtype)
            calls.append(partial(np.logical_not, arguments[0], holds))
        ones, bits = holds.view(np.int8), values.view(self.bits)
        return [*calls, partial(np.multiply, ones, bits, out.view(self.bits))]


def or_zero(node: Node, values: Sequence[Array | None]) -> OrZero | None:
    """Return the step of a `select` whose arguments are known where not None, if one is zero."""
    dtype = storage_dtype(node.element_type)
    if dtype.itemsize > 8 or dtype.kind == "c":
        return None
    for zero_where, value in ((False, values[2]), (True, values[1])):
        if value is not None and not any(value.tobytes()):
            return OrZero(np.dtype(f"i{dtype.itemsize}"), dtype, zero_where)
    return None


def _clamp(types: Sequence[str], element_type: str, parameters: Parameters) -> Step:
    def run(x: list[Array], out: Array | None) -> Array:
        low, value, high = x
        shape = np.broadcast_shapes(low.shape, value.shape, high.shape)
        if value.shape != shape:
            value = np.broadcast_to(value, shape)
        if out is not None and np.may_share_memory(out, high):
            out = None
        return clamp(low, value, high, element_type, out)

    return run


def _convert(types: Sequence[str], element_type: str, parameters: Parameters) -> Step:
    before, after = types[0], element_type
    source, target = ELEMENT_TYPES[before], ELEMENT_TYPES[after]
    wraps = (source.is_integer or before == "pred") and target.is_integer and target.bits >= 8
    exact = (source.is_integer or before == "pred" or before in ("f16", "bf16", "f32")) and (
        target.is_float and not is_narrow(after)
    )
    if after == "f32" and is_narrow(before) and before != "f8e8m0fnu":
        return _copy(types, element_type, parameters)  # it is kept as f32
    if is_narrow(after) and before in ("f16", "bf16", "f32", "f64") and before != after:

        def narrow(x: list[Array], out: Array | None) -> Array:
            return convert(x[0], before, after) if out is None else round_to(x[0], after, out)

        return narrow
    if not (wraps or exact) or storage_dtype(before) == storage_dtype(after):
        return lambda x, out: convert(x[0], before, after)

    return Cast(before, after)


def _floored_remainder(types: Sequence[str], element_type: str, parameters: Parameters) -> Step:
    def run(x: list[Array], out: Array | None) -> Array:
        value, divisor = x
        if not divisor & (divisor - 1):
            return np.asarray(np.bitwise_and(value, divisor - 1, out=out))
        multiple = np.asarray(np.floor_divide(value, divisor))
        multiple *= divisor
        return np.asarray(np.subtract(value, multiple, out=out))

    return run


def _bitcast_convert(types: Sequence[str], element_type: str, parameters: Parameters) -> Step:
    before = types[0]
    return lambda x, out: bitcast_convert(x[0], before, element_type)


def _reduce_precision(types: Sequence[str], element_type: str, parameters: Parameters) -> Step:
    exponent, mantissa = int(parameters["exponent_bits"]), int(parameters["mantissa_bits"])
    return lambda x, out: reduce_precision(x[0], exponent, mantissa, element_type)


def _stochastic_convert(types: Sequence[str], element_type: str, parameters: Parameters) -> Step:
    before = types[0]

    def run(x: list[Array], out: Array | None) -> Array:
        value, random = np.broadcast_arrays(*x)
        one = np.atleast_1d
        return stochastic_convert(one(value), one(random), before, element_type).reshape(
            value.shape
        )

    return run


def _mask(types: Sequence[str], element_type: str, parameters: Parameters) -> Step:
    bits, inverted = storage_dtype(element_type), bool(parameters["inverted"])
    return lambda x, out: mask(x[0], bits, out, inverted=inverted)


_BINARY = (
    "add subtract multiply divide remainder power maximum minimum atan2 and or xor mulhi complex "
    "shift-left shift-right-arithmetic shift-right-logical"
).split()

STEPS: dict[str, Builder] = {
    **{opcode: partial(_unary, opcode) for opcode in UNARY},
    **{opcode: partial(_binary, opcode) for opcode in _BINARY},
    "bitcast-convert": _bitcast_convert,
    "choose-by-mask": lambda types, element_type, parameters: (
        lambda x, out: choose_by_mask(x[0], x[1], x[2], out)
    ),
    "clamp": _clamp,
    "compare": _compare,
    "constant": _constant,
    "convert": _convert,
    "copy": _copy,
    "floored-divide": lambda types, element_type, parameters: Plain(np.floor_divide),
    "floored-remainder": _floored_remainder,
    "mask": _mask,
    "masked": lambda types, element_type, parameters: lambda x, out: masked(x[0], x[1], out),
    "reduce-precision": _reduce_precision,
    "select": lambda types, element_type, parameters: Choose(),
    "stochastic-convert": _stochastic_convert,
}
"""How each opcode that an expression may hold is bound to its kernel."""

WRITES_OUT = frozenset({*UNARY, *_BINARY, "clamp", "compare", *FLOORED, *MASKED})
"""Opcodes whose result shares no memory with an argument unless that is the given array."""

_QUIET = frozenset({"bitcast-convert", "constant", "copy", "negate", "select", *MASKED})


def never_warns(op: str, types: Sequence[str], element_type: str) -> bool:
    """Whether no operand can make numpy warn about an op."""
    if op in _QUIET:
        return True
    elements = [ELEMENT_TYPES[x] for x in types]
    whole = all(x.is_integer or x.name == "pred" for x in elements)
    return whole and (op == "convert" or not ELEMENT_TYPES[element_type].is_float)
