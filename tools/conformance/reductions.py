"""Cases of reductions, windows, sorting, maps and scans."""

from collections.abc import Iterator
from math import prod

from hloipu_runtime.element_types import ELEMENT_TYPES
from tools.conformance.case import (
    Case,
    Dimensions,
    Input,
    braces,
    of_one_op,
    scalar_region,
    shape_text,
)
from tools.conformance.types import ALL, ARITHMETIC, FLOATS, FLOATS_8, INTEGERS, PACKED

REDUCED: tuple[tuple[Dimensions, Dimensions], ...] = (
    ((131,), (0,)), ((2, 37), (1,)), ((37, 2), (0,)), ((3, 5, 7), (0, 2)), ((3, 5, 7), (1,)),
    ((2, 3, 1, 5), (0, 1, 2, 3)), ((2, 1, 3, 2, 3), (1, 3)), ((0, 3), (0,)), ((4, 0), (0,)),
    ((1, 1), (0, 1)), ((), ()), ((2, 3), ()),
)  # fmt: skip
COMBINERS = ("add", "multiply", "maximum", "minimum")
SUMS = ("add", "multiply")


def combiners_of(element_type: str) -> tuple[str, ...]:
    """Return the opcodes that may reduce a type."""
    element = ELEMENT_TYPES[element_type]
    if element_type == "pred":
        return ("and", "or", "xor")
    if element.is_complex:
        return SUMS
    return (*COMBINERS, "and", "or", "xor") if element.is_integer else COMBINERS


def style_of(combiner: str, element_type: str) -> str:
    """Return how operands of a combiner are drawn: sums of edges say nothing."""
    if not (ELEMENT_TYPES[element_type].is_float or ELEMENT_TYPES[element_type].is_complex):
        return "edges"
    return {"add": "moderate", "multiply": "positive"}.get(combiner, "edges")


def left(sizes: Dimensions, dims: Dimensions) -> Dimensions:
    """Return the sizes that reducing over `dims` leaves."""
    return tuple(n for d, n in enumerate(sizes) if d not in dims)


def reduce_cases() -> Iterator[Case]:
    """Yield reductions by every monoid, over every type and rank."""
    for t in ("pred", *ARITHMETIC, *FLOATS_8, "s4", "u4"):
        for combiner in combiners_of(t):
            region = scalar_region("combine", combiner, t)
            for sizes, dims in REDUCED:
                yield of_one_op(
                    "reduce",
                    [Input(t, sizes, style_of(combiner, t)), Input(t, (), f"identity {combiner}")],
                    shape_text(t, left(sizes, dims)),
                    f"dimensions={braces(dims)}, to_apply=combine",
                    variant=f"{combiner} {dims}", regions=region,
                    terms=1 + prod(sizes[d] for d in dims), combiner=combiner,
                    summed=(0, 1) if combiner in SUMS else None,
                )  # fmt: skip
    yield from variadic_reduce_cases()
    yield from general_reduce_cases()


def arg_region(value: str, index: str, direction: str) -> str:
    """Return JAX's arg reduction: the larger (or smaller) value, the lower index at a tie."""
    return (
        f"argbest {{\n  v = {value}[] parameter(0)\n  i = {index}[] parameter(1)\n"
        f"  w = {value}[] parameter(2)\n  j = {index}[] parameter(3)\n"
        f"  better = pred[] compare(v, w), direction={direction}\n"
        f"  isnan = pred[] compare(v, v), direction=NE\n  first = pred[] or(better, isnan)\n"
        f"  same = pred[] compare(v, w), direction=EQ\n"
        f"  lower = pred[] compare(i, j), direction=LT\n  tie = pred[] and(same, lower)\n"
        f"  choose = pred[] or(first, tie)\n  x = {value}[] select(first, v, w)\n"
        f"  k = {index}[] select(choose, i, j)\n"
        f"  ROOT r = ({value}[], {index}[]) tuple(x, k)\n}}\n\n"
    )


def variadic_reduce_cases() -> Iterator[Case]:
    """Yield arg reductions and mixed sums."""
    for t in ("f32", "bf16", "f64", "f16", "s32", "u8", "s64"):
        for direction in ("GT", "LT"):
            region = arg_region(t, "s32", direction)
            best = "maximum" if direction == "GT" else "minimum"
            for sizes, dims in REDUCED:
                style = "whole" if len(sizes) < 3 else "edges"
                target = left(sizes, dims)
                yield of_one_op(
                    "reduce",
                    [Input(t, sizes, style), Input("s32", sizes, "distinct"),
                     Input(t, (), f"identity {best}"), Input("s32", (), "identity minimum")],
                    f"({shape_text(t, target)}, {shape_text('s32', target)})",
                    f"dimensions={braces(dims)}, to_apply=argbest",
                    variant=f"arg {direction} {dims}", regions=region, combiner="maximum",
                )  # fmt: skip
    region = (
        "mixed {\n  a = f32[] parameter(0)\n  b = s32[] parameter(1)\n  c = f32[] parameter(2)\n"
        "  d = s32[] parameter(3)\n  x = f32[] add(a, c)\n  y = s32[] multiply(b, d)\n"
        "  ROOT r = (f32[], s32[]) tuple(x, y)\n}\n\n"
    )
    for sizes, dims in REDUCED:
        target = left(sizes, dims)
        yield of_one_op(
            "reduce",
            [Input("f32", sizes, "moderate"), Input("s32", sizes), Input("f32", (), "zeros"),
             Input("s32", (), "ones")],
            f"({shape_text('f32', target)}, {shape_text('s32', target)})",
            f"dimensions={braces(dims)}, to_apply=mixed", variant=f"mixed {dims}", regions=region,
            terms=1 + prod(sizes[d] for d in dims), summed=(0, 2),
        )  # fmt: skip


GENERAL = {
    "saturating": "  s = {t}[] add(a, b)\n"
    "  m = {t}[] constant({top})\n  ROOT r = {t}[] minimum(s, m)",
    "root of squares": "  x = {t}[] multiply(a, a)\n  y = {t}[] multiply(b, b)\n"
    "  s = {t}[] add(x, y)\n  ROOT r = {t}[] sqrt(s)",
    "reversed sum": "  ROOT r = {t}[] add(b, a)",
    "last": "  ROOT r = {t}[] add(b, b)",
}
"""Regions that are no monoid that a backend recognises."""


def general_reduce_cases() -> Iterator[Case]:
    """Yield reductions by regions of several ops; associative ones, as any order is allowed."""
    for t in FLOATS:
        for name in ("saturating", "root of squares", "reversed sum"):
            region = (
                f"combine {{\n  a = {t}[] parameter(0)\n  b = {t}[] parameter(1)\n"
                f"{GENERAL[name].format(t=t, top=4)}\n}}\n\n"
            )
            for sizes, dims in REDUCED:
                style = "positive" if name != "reversed sum" else "moderate"
                yield of_one_op(
                    "reduce", [Input(t, sizes, style), Input(t, (), "zeros")],
                    shape_text(t, left(sizes, dims)),
                    f"dimensions={braces(dims)}, to_apply=combine",
                    variant=f"{name} {dims}", regions=region,
                    terms=1 + prod(sizes[d] for d in dims), combiner=None, summed=(0, 1),
                )  # fmt: skip


WINDOWS: tuple[tuple[Dimensions, str, Dimensions], ...] = (
    ((9,), "size=3", (7,)), ((9,), "size=3 stride=2", (4,)), ((9,), "size=3 pad=1_1", (9,)),
    ((9,), "size=9 pad=8_0", (9,)), ((9,), "size=3 rhs_dilate=2", (5,)),
    ((5,), "size=3 lhs_dilate=2", (7,)), ((5,), "size=3 pad=-1_2 lhs_dilate=3 rhs_dilate=2", (10,)),
    ((4, 6), "size=2x3 stride=2x1", (2, 4)), ((4, 6), "size=2x2 pad=0_1x1_0 stride=1x2", (4, 3)),
    ((2, 5, 7, 3), "size=1x3x3x1 stride=1x2x2x1 pad=0_0x1_1x1_1x0_0", (2, 3, 4, 3)),
    ((2, 3, 4), "size=1x2x2 rhs_dilate=1x1x2", (2, 2, 2)),
    ((2, 1, 3, 2, 3), "size=2x1x2x1x3", (1, 1, 2, 2, 1)), ((0, 3), "size=1x2", (0, 2)),
    ((3,), "size=5", (0,)), ((4,), "size=2 rhs_reversal=1", (3,)),
)  # fmt: skip


def window_size(window: str) -> int:
    """Return the number of elements in a window."""
    return prod(int(n) for n in window.split()[0].removeprefix("size=").split("x"))


def reduce_window_cases() -> Iterator[Case]:
    """Yield windows with strides, padding and dilations, by every monoid."""
    for t in ("pred", *ARITHMETIC, "f8e5m2", "f8e4m3fn", "s4"):
        for combiner in combiners_of(t):
            region = scalar_region("combine", combiner, t)
            style = style_of(combiner, t)
            for sizes, window, target in WINDOWS:
                yield of_one_op(
                    "reduce-window",
                    [Input(t, sizes, style), Input(t, (), f"identity {combiner}")],
                    shape_text(t, target), f"window={{{window}}}, to_apply=combine",
                    variant=f"{combiner} {window}", regions=region,
                    terms=1 + window_size(window), combiner=combiner,
                    summed=(0, 1) if combiner in SUMS else None,
                )  # fmt: skip
    for t in ("f32", "s32", "bf16"):
        region = arg_region(t, "s32", "GT")
        for sizes, window, target in WINDOWS:
            yield of_one_op(
                "reduce-window",
                [Input(t, sizes, "edges"), Input("s32", sizes, "distinct"),
                 Input(t, (), "identity maximum"), Input("s32", (), "identity minimum")],
                f"({shape_text(t, target)}, {shape_text('s32', target)})",
                f"window={{{window}}}, to_apply=argbest", variant=f"arg {window}",
                regions=region, combiner="maximum",
            )  # fmt: skip


SELECTIONS: tuple[tuple[Dimensions, str, Dimensions], ...] = (
    ((8,), "size=2 stride=2", (4,)), ((8,), "size=3 stride=2", (3,)),
    ((7,), "size=3 pad=1_1", (7,)),
    ((4, 6), "size=2x3 stride=2x3", (2, 2)), ((4, 6), "size=3x3 stride=1x2 pad=1_1x1_1", (4, 3)),
    ((2, 5, 7, 3), "size=1x3x3x1 stride=1x2x2x1 pad=0_0x1_1x1_1x0_0", (2, 3, 4, 3)),
    ((2, 1, 3, 2, 3), "size=1x1x2x1x3", (2, 1, 2, 2, 1)), ((0, 3), "size=1x2", (0, 2)),
)  # fmt: skip


def select_and_scatter_cases() -> Iterator[Case]:
    """Yield select-and-scatter, with ties, overlaps and padding."""
    for t in (*FLOATS, "s32", "u8", "s64"):
        for direction in ("GE", "LE", "GT"):
            regions = scalar_region("choose", "compare", t, f", direction={direction}")
            for combiner in ("add", "maximum"):
                both = regions + scalar_region("combine", combiner, t)
                for sizes, window, target in SELECTIONS:
                    yield of_one_op(
                        "select-and-scatter",
                        [Input(t, sizes, "whole"), Input(t, target, "moderate"),
                         Input(t, (), "zeros")],
                        shape_text(t, sizes),
                        f"window={{{window}}}, select=choose, scatter=combine",
                        variant=f"{direction} {combiner} {window}", regions=both,
                        terms=1 + window_size(window), combiner=combiner,
                        summed=(1, 2) if combiner == "add" else None,
                    )  # fmt: skip


SORTED: tuple[tuple[Dimensions, int], ...] = (
    ((97,), 0), ((5, 17), 1), ((17, 5), 0), ((2, 3, 1, 5), 1), ((2, 1, 3, 2, 3), 4), ((0, 3), 0),
    ((3, 0), 0), ((1,), 0), ((600,), 0),
)  # fmt: skip


def comparator(types: list[str], direction: str, order: str = "") -> str:
    """Return a comparator of the first operand's elements."""
    lines = [f"  a{i} = {t}[] parameter({2 * i})\n  b{i} = {t}[] parameter({2 * i + 1})\n"
             for i, t in enumerate(types)]  # fmt: skip
    tail = f"  ROOT r = pred[] compare(a0, b0), direction={direction}{order}\n"
    return "comparator {\n" + "".join(lines) + tail + "}\n\n"


def sort_cases() -> Iterator[Case]:
    """Yield sorts over types, directions, orders and payloads; ties show their stability."""
    # XLA:CPU sorts packed two-bit integers as if they were bytes, and spoils its own heap.
    for t in [t for t in ALL if not ELEMENT_TYPES[t].is_complex and t not in ("s2", "u2")]:
        element = ELEMENT_TYPES[t]
        orders = [("LT", ", type=TOTALORDER"), ("GT", ", type=TOTALORDER"), ("LT", "")]
        for direction, order in orders if element.is_float else [("LT", ""), ("GT", "")]:
            for sizes, dim in SORTED:
                # An order without NaN: with it, a plain comparison is no order at all.
                style = "edges" if order or not element.is_float else "moderate"
                for payload in (None, "s32", "bf16"):
                    if payload == "bf16" and len(sizes) != 2:
                        continue
                    types = [t] if payload is None else [t, payload]
                    inputs = [Input(t, sizes, style)]
                    if payload:
                        inputs.append(
                            Input(payload, sizes, "moderate" if payload == "bf16" else "distinct")
                        )
                        inputs[0] = Input(t, sizes, "whole" if t not in ("f8e8m0fnu",) else style)
                    shapes = ", ".join(shape_text(x, sizes) for x in types)
                    yield of_one_op(
                        "sort", inputs, f"({shapes})" if payload else shapes,
                        f"dimensions={{{dim}}}, is_stable=true, to_apply=comparator",
                        variant=f"{direction}{order} {dim}",
                        regions=comparator(types, direction, order),
                    )  # fmt: skip
    lexicographic = (
        "comparator {\n  a = s32[] parameter(0)\n  b = s32[] parameter(1)\n"
        "  c = f32[] parameter(2)\n"
        "  d = f32[] parameter(3)\n  less = pred[] compare(a, b), direction=LT\n"
        "  same = pred[] compare(a, b), direction=EQ\n"
        "  more = pred[] compare(c, d), direction=GT, type=TOTALORDER\n"
        "  both = pred[] and(same, more)\n  ROOT r = pred[] or(less, both)\n}\n\n"
    )
    folded = (
        "comparator {\n  a = s32[] parameter(0)\n  b = s32[] parameter(1)\n"
        "  c = f32[] parameter(2)\n"
        "  d = f32[] parameter(3)\n  x = s32[] multiply(a, a)\n  y = s32[] multiply(b, b)\n"
        "  ROOT r = pred[] compare(x, y), direction=LT\n}\n\n"
    )
    for region, name in ((lexicographic, "two keys"), (folded, "derived key")):
        for sizes, dim in SORTED:
            yield of_one_op(
                "sort", [Input("s32", sizes, "moderate"), Input("f32", sizes, "edges")],
                f"({shape_text('s32', sizes)}, {shape_text('f32', sizes)})",
                f"dimensions={{{dim}}}, is_stable=true, to_apply=comparator",
                variant=f"{name} {dim}", regions=region,
            )  # fmt: skip


def topk_cases() -> Iterator[Case]:
    """Yield topk, as an opcode and as JAX's custom call."""
    for t in ("f32", "bf16", "f16", "f64", "s32", "u8", "s64"):
        for sizes, k in (((9,), 3), ((2, 17), 5), ((2, 17), 17), ((2, 3, 8), 1), ((0, 8), 2)):
            target = (*sizes[:-1], k)
            shapes = f"({shape_text(t, target)}, {shape_text('s32', target)})"
            style = "whole" if len(sizes) == 2 else "moderate"
            for largest in ("true", "false"):
                yield of_one_op("topk", [Input(t, sizes, style)], shapes,
                                f"k={k}, largest={largest}", variant=f"{k} {largest}")  # fmt: skip


def map_cases() -> Iterator[Case]:
    """Yield maps of one, two and three operands."""
    for t in (*FLOATS, "s32", "u8", "c64"):
        for sizes in ((), (5,), (0, 3), (2, 3, 4), (2, 1, 3, 2, 3)):
            one = "(1, 0)" if t == "c64" else 1
            region = (
                f"f {{\n  a = {t}[] parameter(0)\n  b = {t}[] parameter(1)\n"
                f"  c = {t}[] multiply(a, b)\n  d = {t}[] constant({one})\n"
                f"  ROOT r = {t}[] subtract(c, d)\n}}\n\n"
            )
            dims = braces(range(len(sizes)))
            x = Input(t, sizes, "moderate")
            yield of_one_op("map", [x, x], x.shape, f"dimensions={dims}, to_apply=f",
                            regions=region, variant="a*b-1")  # fmt: skip


def cases() -> Iterator[Case]:
    """Yield all cases of this family."""
    yield from reduce_cases()
    yield from reduce_window_cases()
    yield from select_and_scatter_cases()
    yield from sort_cases()
    yield from topk_cases()
    yield from map_cases()


__all__ = ["INTEGERS", "PACKED", "cases"]
