"""Evaluation of elementwise ops and conversions."""

import numpy as np

from hloipu_compiler.interpret.planning.plan import Action, Array, may_overwrite
from hloipu_compiler.interpret.planning.site import Site, lowers
from hloipu_compiler.ir.ops import OPS, Trait
from hloipu_runtime.element_types import ElementType
from hloipu_runtime.kernels.core.blocks import repeats
from hloipu_runtime.kernels.core.movement import contiguous
from hloipu_runtime.kernels.elementwise.binary import binary
from hloipu_runtime.kernels.elementwise.compare import clamp, compare, select
from hloipu_runtime.kernels.elementwise.unary import REAL_KERNELS, unary

REUSED_ELEMENTS = 1 << 14
"""From here on writing into a dead operand beats a fresh buffer, whose pages must be mapped."""

_OWN_LOWERING = frozenset(
    "convert reduce-precision stochastic-convert compare select clamp complex real imag abs "
    "is-finite".split()
)


def _plain(operands: int) -> list[str]:
    return [
        name
        for name, op in OPS.items()
        if Trait.ELEMENTWISE in op.traits
        and op.most_operands == operands
        and name not in _OWN_LOWERING
    ]


def spare_buffer(operands: list[Array], elements: int) -> Array | None:
    """Return a dead operand of `elements` elements to write the result into, if there is one."""
    if elements < REUSED_ELEMENTS:
        return None
    for index in range(len(operands)):
        if operands[index].size == elements and may_overwrite(operands, index):
            return operands[index]
    return None


@lowers(*_plain(1))
def _unary(site: Site) -> Action:
    opcode, element_type = site.instruction.opcode, site.element_type(0)
    kernel = REAL_KERNELS.get(opcode)
    small = kernel if element_type in ("f32", "f64") and isinstance(kernel, np.ufunc) else None

    def run(x: list[Array]) -> tuple[Array]:
        if small is not None and x[0].size < REUSED_ELEMENTS:
            return (np.asarray(small(x[0])),)
        out = spare_buffer(x, x[0].size)  # before x[0] stands on the stack: that is a reference
        return (unary(opcode, x[0], element_type, out),)

    return run


@lowers("real", "imag", "abs", "is-finite")
def _unary_of_another_type(site: Site) -> Action:
    opcode, element_type = site.instruction.opcode, site.element_type(0)
    return lambda x: (unary(opcode, x[0], element_type),)


def align(operands: list[Array]) -> None:
    """Copy a transposed operand to row-major order if the other one has that order.

    Walking two large arrays in different orders misses the cache at every element of one.
    """
    ordered = [x.flags.c_contiguous for x in operands]
    if any(ordered) and not all(ordered):
        for index, is_ordered in enumerate(ordered):
            if not is_ordered and not repeats(operands[index]):
                operands[index] = contiguous(operands[index])


@lowers(*_plain(2))
def _binary(site: Site) -> Action:
    opcode, element_type = site.instruction.opcode, site.element_type(0)
    small = _plain_ufunc(opcode, site.array_shape(0).element_type)

    def run(x: list[Array]) -> tuple[Array]:
        a, b = x
        elements = a.size
        if elements < REUSED_ELEMENTS:
            if small is not None and elements:
                return (np.asarray(small(a, b)),)
            return (binary(opcode, a, b, element_type),)
        del a, b
        out = None
        if x[1].size == elements:
            align(x)
            out = spare_buffer(x, elements)
        return (binary(opcode, x[0], x[1], element_type, out),)

    return run


def _plain_ufunc(opcode: str, element: ElementType) -> np.ufunc | None:
    """Return the ufunc that is all that `binary` does for a type, or None."""
    if element.name in ("f32", "f64") and opcode in _CORRECTLY_ROUNDED:
        return _CORRECTLY_ROUNDED[opcode]
    if element.is_integer and element.bits >= 8:
        return _WRAPPING.get(opcode)
    return None


_WRAPPING = {
    "add": np.add, "subtract": np.subtract, "multiply": np.multiply, "maximum": np.maximum,
    "minimum": np.minimum, "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
}  # fmt: skip
_CORRECTLY_ROUNDED = {
    "add": np.add, "subtract": np.subtract, "multiply": np.multiply, "divide": np.divide,
}  # fmt: skip


@lowers("complex")
def _complex(site: Site) -> Action:
    element_type = site.element_type(0)
    return lambda x: (binary("complex", x[0], x[1], element_type),)


@lowers("compare")
def _compare(site: Site) -> Action:
    direction = site.attributes.text("direction")
    order = site.attributes.text("type") or None
    element_type = site.element_type(0)
    return lambda x: (compare(x[0], x[1], direction, order, element_type),)


@lowers("select")
def _select(site: Site) -> Action:
    return lambda x: (select(x[0], x[1], x[2]),)


@lowers("clamp")
def _clamp(site: Site) -> Action:
    element_type = site.element_type()
    return lambda x: (clamp(x[0], x[1], x[2], element_type),)


@lowers("convert", "bitcast-convert", "stochastic-convert")
def _convert(site: Site) -> Action:
    before, after = site.element_type(0), site.element_type()
    from hloipu_runtime.kernels.elementwise import convert

    kernel = getattr(convert, site.instruction.opcode.replace("-", "_"))
    return lambda x: (kernel(*x, before, after),)


@lowers("reduce-precision")
def _reduce_precision(site: Site) -> Action:
    exponent = site.attributes.integer("exponent_bits")
    mantissa = site.attributes.integer("mantissa_bits")
    element_type = site.element_type(0)
    from hloipu_runtime.kernels.elementwise.reduce_precision import reduce_precision

    return lambda x: (reduce_precision(x[0], exponent, mantissa, element_type),)
