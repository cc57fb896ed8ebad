"""Custom calls of which only their cycles are known, for estimates.

A call stays where it is among its operands and users: it takes a number of each operand and gives
one, which fills its results.
"""

from collections.abc import Sequence

from hloipu_compiler.formulas.call import Array
from hloipu_compiler.formulas.text import Text, Value
from hloipu_compiler.interpret.ops.custom_calls import OPAQUE
from hloipu_compiler.source import Source


def opaque_call(cycles: int, operands: Sequence[Array], results: Sequence[Array]) -> Source:
    """Return the text of a call of so many cycles, whose values are no numbers."""
    text = Text()
    given = [text.parameter(n, *array) for n, array in enumerate(operands)]
    numbers = ", ".join(_first(x).name for x in given if 0 not in x.dims)
    said = f'custom_call_target="{OPAQUE}", backend_config="{cycles}"'
    made = text.add("custom-call", "f32", (), numbers, said)
    return Source(text.written([_filled(made, *array) for array in results]), "<opaque>")


def _first(x: Value) -> Value:
    """Return an array's first element as f32."""
    for d in range(x.rank):
        x = x.sliced(d, 0, 1)
    x = x.shaped(())
    return (
        x.unary("real", "f64" if x.kind == "c128" else "f32").converted("f32")
        if (x.kind[0] == "c")
        else x.converted("f32")
    )


def _filled(x: Value, kind: str, dims: Sequence[int]) -> Value:
    """Return an array of a number."""
    if kind == "pred":
        return x.compared("NE", 0.0).spread(tuple(dims), ())
    if kind[0] == "c":
        part = x.converted("f64" if kind == "c128" else "f32")
        whole = x.text.add("complex", kind, (), f"{part.name}, {part.name}")
        return whole.spread(tuple(dims), ())
    return x.converted(kind).spread(tuple(dims), ())
