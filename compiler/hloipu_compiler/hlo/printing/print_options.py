"""Print options: three forms, and switches that depart from them; shapes as they ask for them."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from hloipu_compiler.ir.shapes import (
    ArrayShape,
    BufferShape,
    Shape,
    TupleShape,
    with_default_layout,
    without_layouts,
)


class Form(Enum):
    """Whose text to write."""

    FULL = "full"
    """As XLA's `to_string()` and its dumps: `%` before names, signatures, metadata, tables."""
    SHORT = "short"
    """As JAX's `as_hlo_text()`: bare names, no signatures, metadata or tables, async sugar."""
    CANONICAL = "canonical"
    """One text for programs that differ in names, metadata, written defaults or order of
    attributes only."""


class Layouts(Enum):
    """Which layouts of shapes are written."""

    VERBATIM = "verbatim"
    """Where the shape has one."""
    EXPLICIT = "explicit"
    """On every array of rank 1 and more."""
    MINIMAL = "minimal"
    """Where it is not the default, row-major without extension."""
    NONE = "none"


@dataclass(frozen=True, slots=True)
class PrintOptions:
    """Print options; None stands for the form's default."""

    form: Form = Form.FULL
    layouts: Layouts | None = None
    metadata: bool | None = None
    backend_config: bool | None = None
    signatures: bool | None = None
    percent: bool | None = None
    async_sugar: bool | None = None
    """Write `X-start` for an `async-start` around one plain X, as XLA does."""
    operand_shapes: bool = False
    """Write each operand's shape before its name, as XLA did until March 2025."""
    index_comments: int = 5
    """Write `/*index=5*/` before every n-th operand and tuple element; 0 for never."""
    largest_constant: int | None = None
    """Elide (`{...}`) constants of more elements than this, and tuples; None elides nothing."""

    @property
    def shows_metadata(self) -> bool:
        """Whether metadata and the stack tables are written."""
        return self.form is Form.FULL if self.metadata is None else self.metadata

    @property
    def shows_backend_config(self) -> bool:
        """Whether backend configurations are written."""
        if self.backend_config is None:
            return self.form is not Form.CANONICAL
        return self.backend_config

    @property
    def shows_signatures(self) -> bool:
        """Whether computations say their parameters and result before the brace."""
        return self.form is Form.FULL if self.signatures is None else self.signatures

    @property
    def shows_percent(self) -> bool:
        """Whether names have their `%`."""
        return self.form is Form.FULL if self.percent is None else self.percent

    @property
    def shows_async_sugar(self) -> bool:
        """Whether async sugar is written; it drops the names of the computations that it hides."""
        return self.form is Form.SHORT if self.async_sugar is None else self.async_sugar

    @property
    def shown_layouts(self) -> Layouts:
        """The layouts that are written."""
        if self.layouts is not None:
            return self.layouts
        return Layouts.MINIMAL if self.form is Form.CANONICAL else Layouts.VERBATIM

    @property
    def comment_interval(self) -> int:
        """Distance of index comments; 0 for none."""
        return self.index_comments if self.form is Form.FULL else 0


FULL = PrintOptions()
SHORT = PrintOptions(form=Form.SHORT)
CANONICAL = PrintOptions(form=Form.CANONICAL)


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
