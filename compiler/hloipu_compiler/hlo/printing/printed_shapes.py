"""Shapes to text with a memo, and with the layouts that a form asks for."""

from collections.abc import Callable

from hloipu_compiler.hlo.printing.print_options import Layouts
from hloipu_compiler.ir.shapes import (
    ArrayShape,
    BufferShape,
    Shape,
    TupleShape,
    with_default_layout,
    without_layouts,
)


def _minimal(shape: Shape) -> Shape:
    """Return `shape` without the layouts that say nothing: row-major, no extension."""
    if isinstance(shape, TupleShape):
        return TupleShape(tuple(map(_minimal, shape.elements)))
    if isinstance(shape, BufferShape):
        contents = _minimal(shape.contents)
        return BufferShape(contents) if isinstance(contents, ArrayShape) else shape
    layout = shape.layout
    if layout is None or layout.extension:
        return shape
    is_default = layout.minor_to_major == tuple(range(shape.rank - 1, -1, -1))
    return shape.without_layout() if is_default else shape


def _explicit(shape: Shape) -> Shape:
    if isinstance(shape, BufferShape):
        contents = with_default_layout(shape.contents)
        return BufferShape(contents) if isinstance(contents, ArrayShape) else shape
    if isinstance(shape, TupleShape):
        return TupleShape(tuple(map(_explicit, shape.elements)))
    return with_default_layout(shape)


_REWRITES: dict[Layouts, Callable[[Shape], Shape]] = {
    Layouts.EXPLICIT: _explicit,
    Layouts.MINIMAL: _minimal,
    Layouts.NONE: without_layouts,
}


class ShapePrinter:
    """Writes shapes; each distinct one once."""

    def __init__(self, layouts: Layouts, comment_interval: int) -> None:
        self._rewrite = _REWRITES.get(layouts)
        self._interval = comment_interval
        self._texts: dict[Shape, str] = {}
        self._bare: dict[Shape, str] = {}

    def text(self, shape: Shape) -> str:
        """Return the text of a shape with the layouts asked for."""
        known = self._texts.get(shape)
        if known is None:
            known = self._written(self._rewrite(shape) if self._rewrite else shape)
            self._texts[shape] = known
        return known

    def without_layouts(self, shape: Shape) -> str:
        """Return the text of a shape without layouts, as signatures have it."""
        known = self._bare.get(shape)
        if known is None:
            known = self._bare[shape] = self._written(without_layouts(shape))
        return known

    def _written(self, shape: Shape) -> str:
        if not isinstance(shape, TupleShape):
            return str(shape)
        interval = self._interval
        parts = [self._written(element) for element in shape.elements]
        if interval and len(parts) > interval:
            for i in range(interval, len(parts), interval):
                parts[i] = f"/*index={i}*/{parts[i]}"
        return f"({', '.join(parts)})"
