"""Shapes from text: a quick reader of the printed form, and the grammar for everything else.

The quick reader takes what printers write: no blanks but after commas, no comments but
`/*index=5*/`. Any other spelling goes through the grammar, which says what is wrong with it or
yields its terminals; joined without blanks they are the printed form again. So each shape has one
reading, whichever way it came.
"""

import re
from math import prod

from hloipu_compiler.hlo.syntax import grammar
from hloipu_compiler.hlo.syntax.limits import DEFAULT_LIMITS, Limits, check_limit
from hloipu_compiler.hlo.syntax.text_fault import TextFault
from hloipu_compiler.ir.shapes import UNBOUNDED, ArrayShape, BufferShape, Layout, Shape, TupleShape
from hloipu_runtime.element_types import ELEMENT_TYPES

_ARRAY = r"([a-z]\w*)\[([0-9<=?,]*+)\](?>(?:\{([0-9,]*+)(?::([^{}]*+))?\})?)"
_array = re.compile(_ARRAY, re.ASCII).fullmatch
_SIZES = re.compile(r"(?:(?:<=)?[0-9]+|\?)(?>(?:,(?:(?:<=)?[0-9]+|\?))*)")
_piece = re.compile(
    rf"(?:(?P<array>{_ARRAY})|(?P<open>b?\()|(?P<close>\))"
    r"|(?P<comma>, ?(?>(?:/\*index=[0-9]++\*/)?)))",
    re.ASCII,
)


class ShapeReader:
    """Reads shapes and remembers them: a program of 50,000 instructions has some 60 shape texts."""

    def __init__(self, limits: Limits = DEFAULT_LIMITS) -> None:
        self.limits = limits
        self.memo: dict[str, Shape] = {}
        self._interned: dict[ArrayShape, ArrayShape] = {}

    def read(self, text: str) -> Shape:
        """Return the shape that `text` spells; TextFault where it spells none."""
        known = self.memo.get(text)
        if known is None:
            known = self._quick(text)
            if known is None:
                known = self._quick(grammar.printed_form(text, "shape", self.limits))
            if known is None:
                if "-" in text:
                    raise TextFault("E0110", "a negative size", expected="sizes of 0 and more")
                raise TextFault("E0110", "this is not a shape", expected="a shape like f32[2,3]")
            self.memo[text] = known
        return known

    def read_list(self, text: str, rule: str) -> tuple[Shape, ...]:
        """Return the shapes of `{shape, …}`; of `{(shape, …)->shape}` the result comes last."""
        if rule == "program_shape":
            inner = text[1:-1]
            arrow = inner.rfind("->")
            parameters = self._quick(inner[:arrow].rstrip()) if arrow > 0 else None
            result = self._quick(inner[arrow + 2 :].lstrip()) if parameters else None
            if isinstance(parameters, TupleShape) and result is not None:
                return (*parameters.elements, result)
        else:
            listed = self._quick(f"({text[1:-1]})")
            if isinstance(listed, TupleShape):
                return listed.elements
        joined = grammar.printed_form(text, rule, self.limits)
        if joined == text:
            raise TextFault("E0110", "this is not a list of shapes", expected="shapes")
        return self.read_list(joined, rule)

    def _quick(self, text: str) -> Shape | None:
        match = _array(text)
        if match is not None:
            return self._array_shape(*match.groups())
        if text.startswith(("(", "b(")):
            return self._nested(text)
        return None

    def _array_shape(
        self, type_name: str, sizes: str, order: str | None, extension: str | None
    ) -> ArrayShape | None:
        element_type = ELEMENT_TYPES.get(type_name)
        if element_type is None or (sizes and not _SIZES.fullmatch(sizes)):
            return None
        if order == "" and extension is None:  # `{}` opens a body, it is never a layout
            return None
        dimensions, dynamic = self._dimensions(sizes)
        if not element_type.is_array and dimensions:
            raise TextFault("E0111", f"{type_name}[…] has no dimensions", expected=f"{type_name}[]")
        layout = None
        if order is not None:
            try:
                layout = _layout(order, extension, len(dimensions))
            except TextFault as fault:  # places count from the start of the shape
                before = len(type_name) + len(sizes) + 2
                fault.offset += before + (len(order) + 2 if fault.code == "E0157" else 0)
                raise
            if layout is None:
                return None
        shape = ArrayShape(element_type, dimensions, layout, dynamic)
        return self._interned.setdefault(shape, shape)

    def _dimensions(self, sizes: str) -> tuple[tuple[int, ...], tuple[bool, ...] | None]:
        if not sizes:
            return (), None
        words = sizes.split(",")
        check_limit(self.limits, "rank", len(words))
        if any(len(word) > 22 for word in words):
            check_limit(self.limits, "elements", 10**18 * 100)
        dynamic = None
        if "?" in sizes or "<" in sizes:
            dynamic = tuple(not word.isdigit() for word in words)
            numbers = [UNBOUNDED if w == "?" else int(w.removeprefix("<=")) for w in words]
        else:
            numbers = list(map(int, words))
        check_limit(self.limits, "elements", max(max(numbers), prod(n for n in numbers if n > 0)))
        return tuple(numbers), dynamic

    def _nested(self, text: str) -> Shape | None:
        """Read a tuple or buffer in printed form; None where the form is another."""
        match = _piece.match
        stack: list[tuple[str, list[Shape]]] = []
        at, items, after_item, leaves = 0, list[Shape](), False, 0
        while at < len(text):
            token = match(text, at)
            if token is None:
                return None
            at = token.end()
            kind = token.lastgroup
            if kind == "array":
                shape = self.memo.get(token[1]) or self._array_shape(*token.group(2, 3, 4, 5))
                if shape is None or after_item:
                    return None
                self.memo[token[1]] = shape
                items.append(shape)
                after_item = True
                leaves += 1
                check_limit(self.limits, "tuple_leaves", leaves)
            elif kind == "open":
                if after_item:
                    return None
                stack.append((token[0], items))
                items = []
                check_limit(self.limits, "nesting", len(stack))
            elif kind == "comma":
                if not after_item:
                    return None
                after_item = False
            else:
                if not stack or (items and not after_item):
                    return None
                opened, outer = stack.pop()
                outer.append(_closed(opened, items))
                items, after_item = outer, True
            if not stack:
                break
        return items[0] if at == len(text) and len(items) == 1 and not stack else None


def _closed(opened: str, items: list[Shape]) -> Shape:
    if opened == "(":
        return TupleShape(tuple(items))
    if len(items) != 1 or not isinstance(items[0], ArrayShape):
        raise TextFault("E0112", "a buffer holds one array", expected="a buffer like b(f32[4])")
    return BufferShape(items[0])


def _layout(order: str, extension: str | None, rank: int) -> Layout | None:
    words = order.split(",") if order else []
    if any(not word or len(word) > 9 for word in words):
        return None
    if len(words) != rank:
        raise TextFault(
            "E0113",
            f"the layout lists {len(words)} dimensions, the array has {rank}",
            expected="each dimension once, the fastest-varying first",
        )
    if extension:
        from hloipu_compiler.hlo.attributes.layout_extension import read_layout_extension

        read_layout_extension(extension)
    return Layout(tuple(map(int, words)), extension or "")


def parse_shape(text: str) -> Shape:
    """Return the shape that `text` spells, for example `f32[2,3]{1,0}`; TextFault otherwise."""
    return ShapeReader().read(text.strip())
