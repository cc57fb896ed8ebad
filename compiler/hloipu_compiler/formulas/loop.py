"""Counted loops, written as a `while`."""

from collections.abc import Sequence
from dataclasses import dataclass

from hloipu_compiler.formulas.text import Text, Value
from hloipu_runtime.element_types import shape_text


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
