"""Writer of HLO ops for formulas: `x * y + 1.0` appends a multiply and an add; loops.

A text is parsed once, and its ops put in the place of a custom call.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from hloipu_runtime.element_types import shape_text

Dims = tuple[int, ...]
Pairs = tuple[Sequence[int], Sequence[int]]
"""Dimensions of one operand, and of the other."""
_WIDE = frozenset({"f32", "f64", "c64", "c128"})


@dataclass(slots=True)
class Text:
    """The lines of one computation, and the computations that it calls."""

    lines: list[str] = field(default_factory=list)
    callees: dict[str, str] = field(default_factory=dict)
    """Name -> text."""

    def add(
        self, opcode: str, kind: str, dims: Sequence[int], operands: str, attributes: str = ""
    ) -> "Value":
        """Append an op with its operands' text and its attributes'."""
        name = f"v{len(self.lines)}"
        attributes = f", {attributes}" if attributes else ""
        self.lines.append(f"  {name} = {shape_text(kind, dims)} {opcode}({operands}){attributes}")
        return Value(self, name, kind, tuple(dims))

    def several(
        self, arrays: Sequence[tuple[str, Sequence[int]]], op: str, layouts: Sequence[str] = ()
    ) -> list["Value"]:
        """Append an op, as written behind its shape, that gives arrays of these types and sizes."""
        name = f"v{len(self.lines)}"
        shapes = [shape_text(*array) for array in arrays]
        if layouts:
            shapes = [x + layout for x, layout in zip(shapes, layouts, strict=True)]
        self.lines.append(f"  {name} = ({', '.join(shapes)}) {op}")
        return [
            self.add("get-tuple-element", *array, name, f"index={n}")
            for n, array in enumerate(arrays)
        ]

    def parameter(self, number: int, kind: str, dims: Sequence[int]) -> "Value":
        """Append a parameter."""
        return self.add("parameter", kind, dims, str(number))

    def number(self, kind: str, value: float) -> "Value":
        """Append a number."""
        text = repr(float(value)) if kind[0] in "fbc" else str(int(value))
        if kind[0] == "c":
            text = f"({text}, 0)"
        return self.add("constant", kind, (), text)

    def full(self, kind: str, dims: Sequence[int], value: float) -> "Value":
        """Append an array of one number."""
        number = self.number(kind, value)
        return number.broadcast(tuple(dims), ())

    def iota(self, kind: str, dims: Sequence[int], dimension: int) -> "Value":
        """Append the indices along a dimension."""
        return self.add("iota", kind, dims, "", f"iota_dimension={dimension}")

    def reducer(self, opcode: str, kind: str) -> str:
        """Return the name of a computation that combines two numbers."""
        name = f"{opcode}.{kind}"
        self.callees[name] = (
            f"{name} {{\n  a = {kind}[] parameter(0)\n  b = {kind}[] parameter(1)\n"
            f"  ROOT c = {kind}[] {opcode}(a, b)\n}}\n"
        )
        return name

    def written(self, results: Sequence["Value"]) -> str:
        """Return the text of a module whose entry gives some values as a tuple."""
        shapes = ", ".join(shape_text(result.kind, result.dims) for result in results)
        names = ", ".join(result.name for result in results)
        root = f"  ROOT results = ({shapes}) tuple({names})"
        entry = "\n".join(["ENTRY op {", *self.lines, root, "}"])
        return "\n".join(["HloModule op", "", *self.callees.values(), entry, ""])


@dataclass(frozen=True, slots=True)
class Value:
    """An array of a text."""

    text: Text
    name: str
    kind: str
    """Its element type."""
    dims: Dims

    @property
    def rank(self) -> int:
        """Dimensions."""
        return len(self.dims)

    # -- elementwise -------------------------------------------------------------------------------

    def like(self, other: "Value | float") -> "Value":
        """Return an operand as an array of this one's shape."""
        if isinstance(other, Value):
            return other if other.dims == self.dims else other.broadcast(self.dims, ())
        return self.text.full(self.kind, self.dims, other)

    def binary(self, opcode: str, other: "Value | float") -> "Value":
        """Return an elementwise op of two values; one without dimensions is broadcast."""
        other = self.like(other)
        left = self if self.dims == other.dims else self.broadcast(other.dims, ())
        return self.text.add(opcode, self.kind, other.dims, f"{left.name}, {other.name}")

    def __add__(self, other: "Value | float") -> "Value":
        return self.binary("add", other)

    def __sub__(self, other: "Value | float") -> "Value":
        return self.binary("subtract", other)

    def __mul__(self, other: "Value | float") -> "Value":
        return self.binary("multiply", other)

    def __truediv__(self, other: "Value | float") -> "Value":
        return self.binary("divide", other)

    def __rsub__(self, other: float) -> "Value":
        return self.like(other) - self

    def __rmul__(self, other: float) -> "Value":
        return self * other

    def __radd__(self, other: float) -> "Value":
        return self + other

    def __neg__(self) -> "Value":
        return self.unary("negate")

    def __mod__(self, other: "Value | float") -> "Value":
        return self.binary("remainder", other)

    def __and__(self, other: "Value") -> "Value":
        return self.binary("and", other)

    def __or__(self, other: "Value") -> "Value":
        return self.binary("or", other)

    def unary(self, opcode: str, kind: str = "") -> "Value":
        """Return an elementwise op of the value, in its own element type or another."""
        return self.text.add(opcode, kind or self.kind, self.dims, self.name)

    def compared(self, direction: str, other: "Value | float") -> "Value":
        """Return where the value is equal, less and so on."""
        other = self.like(other)
        return self.text.add(
            "compare", "pred", self.dims, f"{self.name}, {other.name}", f"direction={direction}"
        )

    def select(self, yes: "Value | float", no: "Value | float", like: "Value") -> "Value":
        """Return `yes` where this mask is true, else `no`, as an array like `like`."""
        if_true, if_false = like.like(yes), like.like(no)
        operands = f"{self.name}, {if_true.name}, {if_false.name}"
        return self.text.add("select", like.kind, like.dims, operands)

    def converted(self, kind: str) -> "Value":
        """Return the value in another element type."""
        if kind == self.kind:
            return self
        return self.text.add("convert", kind, self.dims, self.name)

    def wide(self) -> "Value":
        """Return the value in f32, if its type is narrower."""
        return self if self.kind in _WIDE or self.kind[0] not in "fb" else self.converted("f32")

    # -- shapes ------------------------------------------------------------------------------------

    def broadcast(self, dims: Sequence[int], along: Sequence[int]) -> "Value":
        """Return the value broadcast to a shape, in which its dimensions are those in `along`."""
        if tuple(dims) == self.dims and tuple(along) == tuple(range(self.rank)):
            return self
        attributes = f"dimensions={{{','.join(map(str, along))}}}"
        return self.text.add("broadcast", self.kind, dims, self.name, attributes)

    def reshaped(self, dims: Sequence[int]) -> "Value":
        """Return the value in another shape."""
        if tuple(dims) == self.dims:
            return self
        return self.text.add("reshape", self.kind, dims, self.name)

    def transposed(self, order: Sequence[int]) -> "Value":
        """Return the value with its dimensions in another order."""
        if list(order) == list(range(self.rank)):
            return self
        dims = [self.dims[d] for d in order]
        attributes = f"dimensions={{{','.join(map(str, order))}}}"
        return self.text.add("transpose", self.kind, dims, self.name, attributes)

    def sliced(self, dimension: int, start: int, stop: int) -> "Value":
        """Return a stretch along one dimension."""
        if start == 0 and stop == self.dims[dimension]:
            return self
        ranges = [(0, n) for n in self.dims]
        ranges[dimension] = (start, stop)
        dims = [b - a for a, b in ranges]
        attributes = "slice={" + ", ".join(f"[{a}:{b}]" for a, b in ranges) + "}"
        return self.text.add("slice", self.kind, dims, self.name, attributes)

    def padded(self, low: Sequence[int], high: Sequence[int], inner: Sequence[int],
               value: float = 0.0) -> "Value":  # fmt: skip
        """Return the value with numbers around it and between its elements."""
        dims = [
            a + b + n + max(n - 1, 0) * i
            for a, b, n, i in zip(low, high, self.dims, inner, strict=True)
        ]
        nothing = self.text.number(self.kind, value)
        padding = "x".join(f"{a}_{b}_{i}" for a, b, i in zip(low, high, inner, strict=True))
        operands = f"{self.name}, {nothing.name}"
        return self.text.add("pad", self.kind, dims, operands, f"padding={padding}")

    def concatenated(self, more: Sequence["Value"], dimension: int) -> "Value":
        """Return the value followed by others along a dimension."""
        if not more:
            return self
        parts = [self, *more]
        dims = list(self.dims)
        dims[dimension] = sum(part.dims[dimension] for part in parts)
        names = ", ".join(part.name for part in parts)
        return self.text.add("concatenate", self.kind, dims, names, f"dimensions={{{dimension}}}")

    # -- combining ---------------------------------------------------------------------------------

    def reduced(self, opcode: str, dimensions: Sequence[int], start: float = 0.0) -> "Value":
        """Return the value combined over some dimensions."""
        kept_sizes = [n for d, n in enumerate(self.dims) if d not in dimensions]
        begin = self.text.number(self.kind, start)
        attributes = (
            f"dimensions={{{','.join(map(str, sorted(dimensions)))}}}, "
            f"to_apply={self.text.reducer(opcode, self.kind)}"
        )
        return self.text.add(
            "reduce", self.kind, kept_sizes, f"{self.name}, {begin.name}", attributes
        )

    def product(self, other: "Value") -> "Value":
        """Return the product of two matrices."""
        return self.dot(other, ((1,), (0,)))

    def dot(self, other: "Value", contracting: Pairs, batch: Pairs = ((), ()),
               kind: str = "") -> "Value":  # fmt: skip
        """Return a product over dimensions of both, for each index of others of both."""
        sides = ((self, contracting[0], batch[0]), (other, contracting[1], batch[1]))
        free = [
            n
            for operand, over, batched in sides
            for d, n in enumerate(operand.dims)
            if d not in (*over, *batched)
        ]
        dims = [self.dims[d] for d in batch[0]] + free
        attributes = [
            f"{side}_{role}_dims={{{','.join(map(str, at))}}}"
            for role, pair in (("batch", batch), ("contracting", contracting))
            for side, at in zip(("lhs", "rhs"), pair, strict=True)
            if at or role == "contracting"
        ]
        operands = f"{self.name}, {other.name}"
        return self.text.add("dot", kind or self.kind, dims, operands, ", ".join(attributes))


@dataclass(frozen=True, slots=True)
class Loop:
    """A loop with a known count, in the text of its body: a counter and arrays go on."""

    text: Text
    steps: int

    def run(self, arrays: Sequence[Value], body: "Step") -> list[Value]:
        """Write the loop; `body` makes the arrays after a step of those before it."""
        text = self.text
        inner = Text()
        shapes = ["s32[]", *(shape_text(array.kind, array.dims) for array in arrays)]
        tuple_shape = f"({', '.join(shapes)})"
        inner.lines.append(f"  state = {tuple_shape} parameter(0)")
        iteration = inner.add("get-tuple-element", "s32", (), "state", "index=0")
        elements = [
            inner.add("get-tuple-element", array.kind, array.dims, "state", f"index={n + 1}")
            for n, array in enumerate(arrays)
        ]
        next_arrays = body(iteration, elements)
        names = ", ".join([(iteration + 1).name, *(array.name for array in next_arrays)])
        number = len(text.callees)
        lines = "\n".join([*inner.lines, f"  ROOT next = {tuple_shape} tuple({names})"])
        text.callees |= inner.callees
        text.callees[f"body.{number}"] = f"body.{number} {{\n{lines}\n}}\n"
        text.callees[f"goes_on.{number}"] = (
            f"goes_on.{number} {{\n  state = {tuple_shape} parameter(0)\n"
            "  turn = s32[] get-tuple-element(state), index=0\n"
            f"  steps = s32[] constant({self.steps})\n"
            "  ROOT is = pred[] compare(turn, steps), direction=LT\n}\n"
        )
        first = text.number("s32", 0)
        start = f"v{len(text.lines)}"
        begun = ", ".join([first.name, *(array.name for array in arrays)])
        text.lines.append(f"  {start} = {tuple_shape} tuple({begun})")
        kinds = [("s32", ()), *((array.kind, array.dims) for array in arrays)]
        op = f"while({start}), condition=goes_on.{number}, body=body.{number}"
        return text.several(kinds, op)[1:]


class Step:
    """Body of a counted loop: the arrays after a step from those before it."""

    def __call__(self, iteration: Value, carried: Sequence[Value]) -> Sequence[Value]:
        """Write a step, of that number; return the arrays after it."""
        raise NotImplementedError


def row_at(x: Value, iteration: Value) -> Value:
    """Return one row of an array: its element along the first dimension."""
    zero = x.text.number("s32", 0)
    sizes = (1, *x.dims[1:])
    starts = ", ".join([iteration.name, *[zero.name] * (x.rank - 1)])
    attributes = f"dynamic_slice_sizes={{{','.join(map(str, sizes))}}}"
    part = x.text.add("dynamic-slice", x.kind, sizes, f"{x.name}, {starts}", attributes)
    return part.reshaped(x.dims[1:])


def with_row_at(array: Value, part: Value, iteration: Value) -> Value:
    """Return an array with one row replaced."""
    zero = array.text.number("s32", 0)
    row = part.reshaped((1, *part.dims))
    starts = ", ".join([iteration.name, *[zero.name] * (array.rank - 1)])
    operands = f"{array.name}, {row.name}, {starts}"
    return array.text.add("dynamic-update-slice", array.kind, array.dims, operands)
