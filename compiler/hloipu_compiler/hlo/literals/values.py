"""Check a literal's text against its shape as XLA does, and read its values.

Three ways, all with one answer. A literal in printed form whose numbers are plainly in range is
recognised by one regular expression and a comparison of its braces and commas with those the shape
asks for: no number is read. A large one whose range is in doubt is read by numpy. Everything else
goes element by element (`literal_walk`), which also words the faults.
"""

from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING

from hloipu_compiler.hlo.literals.patterns import printed_form
from hloipu_compiler.hlo.literals.tokens import LiteralTokens, Token
from hloipu_compiler.hlo.literals.walk import ArrayWalk
from hloipu_compiler.hlo.syntax.text_fault import TextFault
from hloipu_compiler.ir.literals import Literal
from hloipu_compiler.ir.shapes import ArrayShape, BufferShape, Shape, TupleShape, leaves
from hloipu_runtime.errors import UnsupportedError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    ArrayTree = NDArray[np.generic] | list["ArrayTree"]
import re

from hloipu_runtime.element_types import ELEMENT_TYPES, Kind

_SHAPE = rf"(?:{'|'.join(ELEMENT_TYPES)})\[[\d, ]*\](?:\{{[\d, ]*\}})?"
_INNER_SHAPE = re.compile(rf"(?<![\w.%-]){_SHAPE}(?=[ \t\r\n]*[\w{{(-])")
_TUPLE_SHAPE = re.compile(
    rf"[ \t\r\n]*\((?:[ ]*(?:/\*[^*]*\*/)?[ ]*{_SHAPE},?)*[ ]*\)(?=[ \t\r\n]*\()"
)
_DIGIT_RUN = re.compile(r"\{[ ]*[01]{2,}[ ]*\}")


def modern_text(text: str, shape: Shape) -> str:
    """Return a literal's text in today's form; the same string where it already is.

    Until December 2018 arrays of rank 2 and more, and tuples, carried their shape inside
    (`f32[2,2] { { 1, … } }`), and predicate arrays had no commas (`{101}`). A shape is blanked,
    which keeps the offsets.

    Only a text that today's parser refuses is ever changed: no type name and no unseparated
    predicate row stands in a valid one.
    """
    if "[" in text:
        text = _TUPLE_SHAPE.sub(_blank, text)
        text = _INNER_SHAPE.sub(_blank, text)
    if (
        isinstance(shape, ArrayShape)
        and shape.element_type.kind is Kind.PREDICATE
        and bool(shape.dimensions)
        and shape.dimensions[-1] > 1
    ):
        text = _DIGIT_RUN.sub(_separated, text)
    return text


def _blank(match: re.Match[str]) -> str:
    return " " * len(match[0])


def _separated(match: re.Match[str]) -> str:
    return "{" + ",".join(match[0].strip("{} ")) + "}"


_SHORT = 64
"""Texts up to this length have their check remembered: most constants of a program repeat."""

_DEEPEST_TUPLE = 100


class ElidedConstantError(UnsupportedError):
    """The values of a constant were left out when its text was printed (`{...}`)."""

    def __init__(self, name: str = "") -> None:
        which = f"of constant `{name}` " if name else "of a constant "
        super().__init__(
            "E0148",
            f"the values {which}were left out when the text was printed: `{{...}}`",
            hint="print the module with its large constants "
            "(XLA: --xla_dump_large_constants; JAX: as_hlo_text(print_large_constants=True)), "
            "or let `hloipu eval` put random values there: --fill-elided SEED",
        )
        self.name = name


def check_literal(text: str, shape: Shape) -> None:
    """Check that a literal's text fits a shape as XLA's parser wants it.

    `text` is what stands between the parentheses of `constant(…)`. Raises TextFault (E0140 to
    E0143) with an offset into `text`. Elided arrays pass: they can be compiled, though not run.
    """
    if len(text) <= _SHORT:
        _check_short(text, shape)
    else:
        _check(text, shape)


def _check(text: str, shape: Shape) -> None:
    if isinstance(shape, ArrayShape) and printed_form(text, shape):
        return
    modern = modern_text(text, shape)
    if modern != text and isinstance(shape, ArrayShape) and printed_form(modern, shape):
        return
    _walk(modern, shape)


_check_short = lru_cache(maxsize=4096)(_check)


def _walk(text: str, shape: Shape) -> "list[ArrayWalk]":
    """Read a whole literal element by element; the leaves come in order."""
    tokens = LiteralTokens(text)
    walks: list[ArrayWalk] = []
    _walk_part(tokens, shape, walks, 0)
    if tokens.kind is not Token.END:
        raise TextFault(
            "E0140", f"found {tokens.shown()} after the literal", tokens.start, expected="`)`"
        )
    return walks


def _walk_part(tokens: LiteralTokens, shape: Shape, walks: list[ArrayWalk], depth: int) -> None:
    if isinstance(shape, TupleShape) and depth < _DEEPEST_TUPLE:
        tokens.expect("(", "before a tuple's elements")
        if tokens.is_mark(")") and shape.elements:
            tokens.advance()  # XLA accepts this and holds no values; so do we
            return
        for i, element in enumerate(shape.elements):
            if i and tokens.is_mark(","):
                tokens.advance()
            _walk_part(tokens, element, walks, depth + 1)
        tokens.expect(")", f"after a tuple of {len(shape.elements)}")
    elif isinstance(array := _array_of(shape), ArrayShape):
        walk = ArrayWalk(tokens, array)
        walk.run()
        walks.append(walk)
    else:
        raise TextFault("E0143", f"no literal has the shape {shape}", tokens.start)


def _array_of(shape: Shape) -> ArrayShape | None:
    array = shape.contents if isinstance(shape, BufferShape) else shape
    return array if isinstance(array, ArrayShape) and array.element_type.is_array else None


def literal_array(literal: Literal, shape: Shape, name: str = "") -> "ArrayTree":
    """Return a literal's values in storage form, row-major; a list of them for a tuple shape.

    Storage form is that of `hloipu_runtime.kernels`. Numbers are rounded exactly as XLA's parser
    rounds them, nan payloads included. The arrays are read-only.
    Raises TextFault where the text does not fit the shape, ElidedConstantError naming the
    instruction `name` where its values were left out.
    """
    if literal.array is not None:
        return literal.array
    if literal.is_elided:
        raise ElidedConstantError(name)
    from hloipu_compiler.hlo.literals import arrays as literal_arrays

    text = modern_text(literal.text, shape)
    if isinstance(shape, ArrayShape):
        values = literal_arrays.from_printed_form(text, shape)
        if values is not None:
            return values
    walks = _walk(text, shape)
    if len(walks) != sum(1 for _ in leaves(shape)):
        raise ElidedConstantError(name)
    return _assemble(shape, (literal_arrays.from_walk(walk) for walk in walks))


def _assemble(shape: Shape, arrays: "Iterator[NDArray[np.generic]]") -> "ArrayTree":
    if isinstance(shape, TupleShape):
        return [_assemble(element, arrays) for element in shape.elements]
    return next(arrays)
