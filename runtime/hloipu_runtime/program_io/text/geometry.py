"""Shapes, grids of tiles, parts of dimensions and boxes as text, each beside its reader.

f32[4,8]            a tensor
@16[2 x 4,3 x 1]    from tile 16: 2 steps of 4 tiles, by 3 steps of 1
(a0*8:8, *, a1*4-1:6, 0:2)
of each dimension: 8 elements from 8 times coordinate 0; all; 6 from one
before 4 times coordinate 1; on every tile the first 2
(0..4, 2..5)        a box
"""

from hloipu_runtime.program.mapping import Box, Sizes, Span, Spans, Tiles, whole
from hloipu_runtime.program_io.text.tokens import Cursor


def sizes_text(sizes: Sizes) -> str:
    """Return sizes in brackets."""
    return f"[{','.join(map(str, sizes))}]"


def read_sizes(cursor: Cursor) -> Sizes:
    """Read sizes in brackets."""
    return cursor.items("[", "]", cursor.integer)


def tiles_text(tiles: Tiles) -> str:
    """Return a grid of tiles."""
    axes = ",".join(f"{n} x {s}" for n, s in zip(tiles.extents, tiles.strides, strict=True))
    return f"@{tiles.first}[{axes}]" if axes else f"@{tiles.first}"


def read_tiles(cursor: Cursor) -> Tiles:
    """Read a grid of tiles."""
    cursor.expect("@")
    first = cursor.integer()
    axes = cursor.items("[", "]", lambda: _axis(cursor)) if cursor.sees("[") else ()
    return Tiles(tuple(n for n, _ in axes), tuple(s for _, s in axes), first)


def _axis(cursor: Cursor) -> tuple[int, int]:
    extent = cursor.integer()
    cursor.expect("x")
    return extent, cursor.integer()


def spans_text(spans: Spans, shape: Sizes) -> str:
    """Return the parts of all dimensions."""
    shown = [
        "*" if len(shape) == len(spans) and span == whole(shape[n]) else _span_text(span)
        for n, span in enumerate(spans)
    ]
    return f"({', '.join(shown)})"


def _span_text(span: Span) -> str:
    if span.axis == -1 and span.step == 0:
        return f"{span.offset}:{span.size}"
    offset = f"{span.offset:+}" if span.offset else ""
    return f"a{span.axis}*{span.step}{offset}:{span.size}".replace("a-", "a -")


def read_spans(cursor: Cursor, shape: Sizes) -> Spans:
    """Read the parts of all dimensions of a shape."""
    spans: list[Span] = []

    def read() -> Span:
        number = len(spans)
        if cursor.take("*"):
            if number >= len(shape):
                cursor.fail("there are fewer dimensions")
            spans.append(whole(shape[number]))
        else:
            spans.append(_read_span(cursor))
        return spans[-1]

    return cursor.items("(", ")", read)


def _read_span(cursor: Cursor) -> Span:
    axis, step, offset = -1, 0, 0
    if cursor.token.kind == "word":
        start = cursor.token
        word = cursor.word("a grid axis")
        if word == "a":
            axis = cursor.integer()
        elif word[0] == "a" and word[1:].isdecimal() and len(word) < 4:
            axis = int(word[1:])
        else:
            cursor.fail("grid axes are a0, a1 and so on", start)
        cursor.expect("*")
        step = cursor.integer()
        if not cursor.sees(":"):
            cursor.take("+")
            offset = cursor.integer()
    else:
        offset = cursor.integer()
    cursor.expect(":")
    return Span(axis, step, offset, cursor.integer())


def box_text(box: Box) -> str:
    """Return a box."""
    return f"({', '.join(f'{low}..{high}' for low, high in box)})"


def read_box(cursor: Cursor) -> Box:
    """Read a box."""
    return cursor.items("(", ")", lambda: _range(cursor))


def _range(cursor: Cursor) -> tuple[int, int]:
    low = cursor.integer()
    cursor.expect("..")
    return low, cursor.integer()


def numbers_text(numbers: Sizes) -> str:
    """Return numbers in parentheses."""
    return f"({', '.join(map(str, numbers))})"


def read_numbers(cursor: Cursor) -> Sizes:
    """Read numbers in parentheses."""
    return cursor.items("(", ")", cursor.integer)
