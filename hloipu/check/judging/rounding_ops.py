"""Write ops that round f64 values to another type's grid, or perturb them."""

from collections.abc import Callable
from math import frexp, inf, nan

from hloipu_compiler.interpret.widen import WideWriter
from hloipu_compiler.ir.shapes import ArrayShape, Shape, TupleShape, array_shape
from hloipu_runtime.element_types import F64, GRIDS, PRED, ElementType, Grid

F64_SCALAR = ArrayShape(F64)
_EXPONENT_BITS = 11


class RoundingOps:
    """Appends ops to a computation; whatever it makes once per shape is kept for the next time.

    `spread` is the position of a scalar: what the grids that values are moved on are stretched by,
    or 0 to move nothing. Without it nothing is moved.
    """

    def __init__(self, writer: WideWriter, spread: int | None) -> None:
        self._writer = writer
        self._spread = spread
        self._kept: dict[tuple[str, Shape], int] = {}

    def moved(self, at: int, bits: int) -> int:
        """Append what moves a value by up to half a step of a grid of so many mantissa bits.

        Parts of complex numbers move by as much as their moduli would.
        """
        spread = self._spread
        if spread is None:
            return at
        return self._leafwise(at, lambda leaf: self._moved_leaf(leaf, bits, spread))

    def rounded(self, at: int, target_shape: Shape) -> int:
        """Append what rounds a value, leaf by leaf, to the element types of its own shape."""
        if isinstance(target_shape, TupleShape):
            parts = [
                self.rounded(self._writer.element(self._name(at), at, number), part)
                for number, part in enumerate(target_shape.elements)
            ]
            return self._writer.add(self._name(at), "tuple", self._writer.made[at].shape, parts)
        if not isinstance(target_shape, ArrayShape):
            return at
        kind = target_shape.element_type
        if kind.is_float and kind.mantissa_bits < F64.mantissa_bits:
            return self._rounded_floats(at, kind)
        if kind.is_complex and kind.bits == 64:
            return self._on_parts(at, lambda part: self._cut(part, 8, 23))
        return at

    def _leafwise(self, at: int, change: Callable[[int], int]) -> int:
        shape = self._writer.made[at].shape
        if isinstance(shape, TupleShape):
            name = self._name(at)
            parts = [
                self._leafwise(self._writer.element(name, at, number), change)
                for number in range(len(shape.elements))
            ]
            return self._writer.add(name, "tuple", shape, parts)
        if not isinstance(shape, ArrayShape):
            return at
        kind = shape.element_type
        return change(at) if kind.is_float or kind.is_complex else at

    def _moved_leaf(self, at: int, bits: int, spread: int) -> int:
        shape = self._array(at)
        on = self._once("on", PRED, shape, self._is_on)
        if not shape.element_type.is_complex:
            moved = self._stretched_cut(at, bits, spread)
            return self._op("select", shape, on, moved, at)
        modulus = self._op("abs", self._real(shape), at)
        error = self._op(
            "subtract", self._real(shape), self._stretched_cut(modulus, bits, spread), modulus
        )
        moved = self._on_parts(at, lambda part: self._op("add", self._real(shape), part, error))
        return self._op("select", shape, on, moved, at)

    def _on_parts(self, at: int, change: Callable[[int], int]) -> int:
        shape = self._array(at)
        parts = [change(self._op(part, self._real(shape), at)) for part in ("real", "imag")]
        return self._op("complex", shape, *parts)

    def _rounded_floats(self, at: int, kind: ElementType) -> int:
        if kind.exponent_bits == 8:  # f32, bf16: subnormals are flushed
            return self._cut(at, 8, kind.mantissa_bits)
        form = GRIDS[kind.name]
        shape = self._array(at)
        size = self._op("abs", shape, at)
        normal = self._cut(at, _EXPONENT_BITS, form.mantissa_bits)
        small = self._compare(size, 2.0**form.min_exponent, "LT")
        rounded = self._op("select", shape, small, self._subnormal(at, form), normal)
        # Halfway above the largest number values go to the even neighbour, which may be none.
        step = 2.0 ** (frexp(form.largest)[1] - 1 - form.mantissa_bits)
        is_odd = form.largest / step % 2 == 1
        beyond = self._compare(size, form.largest + step / 2, "GE" if is_odd else "GT")
        overflow = {"infinity": inf, "nan": nan, "saturate": form.largest}[form.overflow]
        signed = self._op(
            "multiply", shape, self._op("sign", shape, at), self._value(overflow, shape)
        )
        return self._op("select", shape, beyond, signed, rounded)

    def _subnormal(self, at: int, form: Grid) -> int:
        """Append what rounds to whole multiples of the smallest number of a grid."""
        shape = self._array(at)
        step = 2.0 ** (form.min_exponent - form.mantissa_bits)
        steps = self._op("multiply", shape, at, self._value(1 / step, shape))
        rounded_steps = self._op("round-nearest-even", shape, steps)
        back = self._op("multiply", shape, rounded_steps, self._value(step, shape))
        return back

    def _cut(self, at: int, exponent_bits: int, mantissa_bits: int) -> int:
        return self._writer.add(
            self._name(at),
            "reduce-precision",
            self._array(at),
            (at,),
            exponent_bits=exponent_bits,
            mantissa_bits=mantissa_bits,
        )

    def _stretched_cut(self, at: int, bits: int, spread: int) -> int:
        """Append rounding to some number of bits on a stretched grid."""
        shape = self._array(at)
        wide = self._once("spread", F64, shape, lambda: spread)
        cut = self._cut(self._op("multiply", shape, at, wide), _EXPONENT_BITS, bits)
        return self._op("divide", shape, cut, wide)

    def _value(self, value: float, shape: ArrayShape) -> int:
        return self._once(
            f"value {value}", F64, shape, lambda: self._writer.constant("value", value)
        )

    def _is_on(self) -> int:
        spread = self._spread or 0
        zero = self._writer.constant("off", 0.0)
        return self._writer.add("on", "compare", ArrayShape(PRED), (spread, zero), direction="NE")

    def _compare(self, size: int, bound: float, direction: str) -> int:
        shape = self._array(size)
        return self._writer.add(
            self._name(size),
            "compare",
            _like(shape, PRED),
            (size, self._value(bound, shape)),
            direction=direction,
        )

    def _once(
        self, purpose: str, kind: ElementType, like: ArrayShape, scalar: Callable[[], int]
    ) -> int:
        """Return a scalar spread over a shape, made on the first request."""
        shape = _like(like, kind)
        key = purpose, shape
        if key not in self._kept:
            lone = purpose, ArrayShape(kind)
            if lone not in self._kept:
                self._kept[lone] = scalar()
            if shape.dimensions:
                self._kept[key] = self._writer.add(
                    "spread", "broadcast", shape, (self._kept[lone],), dimensions=()
                )
        return self._kept[key]

    def _op(self, opcode: str, shape: ArrayShape, *operands: int) -> int:
        return self._writer.add(self._name(operands[0]), opcode, shape, operands)

    def _name(self, at: int) -> str:
        return self._writer.made[at].name.partition(".w")[0]

    def _array(self, at: int) -> ArrayShape:
        return array_shape(self._writer.made[at].shape)

    def _real(self, shape: ArrayShape) -> ArrayShape:
        return _like(shape, F64)


def _like(shape: ArrayShape, kind: ElementType) -> ArrayShape:
    return ArrayShape(kind, shape.dimensions, shape.layout if shape.dimensions else None)
