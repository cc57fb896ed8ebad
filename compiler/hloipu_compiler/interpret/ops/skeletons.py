"""HLO text to start from, for an unknown custom call."""

from collections.abc import Sequence

from hloipu_compiler.ir.shapes import ArrayShape, Shape, TupleShape
from hloipu_runtime.plain_text import printable

_MOST_ARRAYS = 64
"""Operands and results that a message shows."""


def _quoted(word: str) -> str:
    """Return one word of a shell."""
    return "'" + word.replace("'", "'\\''") + "'"


def how_to_define(target: str, operands: Sequence[Shape], result: Shape) -> str:
    """Return the hint of an error: which options say what a target computes, and a text for them.

    The text is a whole module, which gives zeros.
    """
    # Copied to a shell it stays one word, whatever the module calls it.
    file, cycles = (
        _quoted(f"{printable(target)}={placeholder}") for placeholder in ("FILE.hlo", "CYCLES")
    )
    advice = (
        f"say what it computes: --define {file}, in Python define={{{target!r}: …}}, "
        f"or for an estimate how long it takes: --opaque {cycles}"
    )
    text = _skeleton([x for shape in operands for x in _arrays(shape)], _arrays(result))
    if not text:
        return advice
    return f"{advice}; FILE.hlo to begin with, whose zeros are to be replaced:\n\n{text}"


def _skeleton(operands: Sequence[ArrayShape], results: Sequence[ArrayShape]) -> str:
    if not results or len(operands) + len(results) > _MOST_ARRAYS:
        return ""
    lines = [f"p{n} = {_shape(shape)} parameter({n})" for n, shape in enumerate(operands)]
    for n, x in enumerate(results):
        kind = x.element_type.name
        lines.append(f"zero{n} = {kind}[] constant({_ZEROS.get(kind, 0)})")
        lines.append(f"r{n} = {_shape(x)} broadcast(zero{n}), dimensions={{}}")
    names = ", ".join(f"r{n}" for n in range(len(results)))
    shapes = ", ".join(_shape(shape) for shape in results)
    lines.append(f"ROOT results = ({shapes}) tuple({names})")
    body = "".join(f"  {line}\n" for line in lines)
    return f"HloModule definition\n\nENTRY main {{\n{body}}}\n"


_ZEROS = {"pred": "false", "c64": "(0, 0)", "c128": "(0, 0)"}


def _shape(x: ArrayShape) -> str:
    return f"{x.element_type.name}[{','.join(map(str, x.dimensions))}]"


def _arrays(shape: Shape) -> list[ArrayShape]:
    if isinstance(shape, TupleShape):
        return [x for part in shape.elements for x in _arrays(part)]
    return [shape] if isinstance(shape, ArrayShape) and shape.element_type.is_array else []
