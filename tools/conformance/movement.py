"""Cases of the ops that move elements."""

from collections.abc import Iterator

from tools.conformance.case import (
    Case,
    Dimensions,
    Input,
    braces,
    module_text,
    of_one_op,
    scalar_region,
    shape_text,
)
from tools.conformance.types import ALL, ARITHMETIC, FLOATS, FLOATS_8, PACKED

BROADCASTS: tuple[tuple[Dimensions, Dimensions, Dimensions], ...] = (
    ((), (5,), ()), ((), (), ()), ((3,), (2, 3), (1,)), ((3,), (3, 2), (0,)),
    ((2, 3), (2, 4, 3, 1), (0, 2)), ((0,), (2, 0), (1,)), ((1,), (1, 1, 1, 1, 7), (3,)),
    ((2, 1, 3), (2, 2, 1, 2, 3), (0, 2, 4)), ((4,), (0, 4), (1,)),
)  # fmt: skip
"""(operand, result, dimensions)."""

RESHAPES: tuple[tuple[Dimensions, Dimensions], ...] = (
    ((), (1, 1)), ((6,), (2, 3)), ((2, 3, 5), (30,)), ((0, 3), (7, 0)),
    ((2, 3, 1, 5), (5, 1, 2, 3)),
    ((2, 1, 3, 2, 3), (6, 6)), ((1,), ()),
)  # fmt: skip
TRANSPOSES: tuple[tuple[Dimensions, Dimensions], ...] = (
    ((), ()), ((5,), (0,)), ((3, 7), (1, 0)), ((2, 3, 5), (2, 0, 1)), ((2, 3, 1, 5), (3, 1, 2, 0)),
    ((2, 1, 3, 2, 3), (4, 3, 2, 1, 0)), ((2, 1, 3, 2, 3), (1, 3, 0, 4, 2)), ((0, 3), (1, 0)),
)  # fmt: skip
REVERSES: tuple[tuple[Dimensions, Dimensions], ...] = (
    ((7,), (0,)), ((3, 5), (1,)), ((3, 5), (0, 1)), ((2, 3, 4), ()), ((0, 3), (0, 1)),
    ((2, 1, 3, 2, 3), (4, 0, 2)),
)  # fmt: skip
SLICES: tuple[tuple[Dimensions, str, Dimensions], ...] = (
    ((9,), "[2:7]", (5,)), ((9,), "[1:9:3]", (3,)), ((9,), "[4:4]", (0,)),
    ((4, 6), "[0:4:2], [1:6:3]", (2, 2)),
    ((2, 3, 1, 5), "[0:2], [2:3], [0:1], [0:5:4]", (2, 1, 1, 2)),
    ((0, 3), "[0:0], [1:3]", (0, 2)), ((2, 1, 3, 2, 3), "[1:2], [0:1], [0:3:2], [0:2], [1:3]",
    (1, 1, 2, 2, 2)), ((), "", ()),
)  # fmt: skip
PADS: tuple[tuple[Dimensions, str, Dimensions], ...] = (
    ((4,), "1_2", (7,)), ((4,), "1_0_1", (8,)), ((4,), "-1_0", (3,)), ((0,), "2_1", (3,)),
    ((3, 4), "-1_0x0_1", (2, 5)), ((3, 4), "1_1_0x1_3_1", (5, 11)), ((4,), "-1_-2_2", (7,)),
    ((1, 2, 3), "0_0x1_0_3x2_-1", (1, 6, 4)), ((2, 3, 1, 5), "0_1x0_0x2_2x-2_-2", (3, 3, 5, 1)),
    ((2, 1, 3, 2, 1), "0_0x1_1x0_0_2x-1_0x3_0", (2, 3, 7, 1, 4)), ((5,), "-3_-3_1", (3,)),
)  # fmt: skip
CONCATENATIONS: tuple[tuple[tuple[Dimensions, ...], int, Dimensions], ...] = (
    (((2,), (3,)), 0, (5,)), (((3,),), 0, (3,)), (((2, 3), (2, 0), (2, 4)), 1, (2, 7)),
    (((1, 2, 3), (2, 2, 3)), 0, (3, 2, 3)),
    (((2, 1, 3, 2, 3), (2, 1, 3, 2, 1)), 4, (2, 1, 3, 2, 4)),
    (((0, 3), (0, 3)), 0, (0, 3)), (((1, 1, 1, 1),) * 9, 2, (1, 1, 9, 1)),
)  # fmt: skip


def plain_cases() -> Iterator[Case]:
    """Yield ops whose attributes are fixed numbers, over all types."""
    for t in ALL:
        for source, target, dims in BROADCASTS:
            yield of_one_op("broadcast", [Input(t, source)], shape_text(t, target),
                            f"dimensions={braces(dims)}", variant=f"to {target}{dims}")  # fmt: skip
        for source, target in RESHAPES:
            yield of_one_op(
                "reshape", [Input(t, source)], shape_text(t, target), variant=str(target)
            )
        for source, order in TRANSPOSES:
            target = tuple(source[d] for d in order)
            yield of_one_op("transpose", [Input(t, source)], shape_text(t, target),
                            f"dimensions={braces(order)}", variant=str(order))  # fmt: skip
        for source, dims in REVERSES:
            yield of_one_op("reverse", [Input(t, source)], shape_text(t, source),
                            f"dimensions={braces(dims)}", variant=str(dims))  # fmt: skip
        for source, ranges, target in SLICES:
            yield of_one_op("slice", [Input(t, source)], shape_text(t, target),
                            f"slice={{{ranges}}}", variant=ranges)  # fmt: skip
        for source, padding, target in PADS:
            yield of_one_op("pad", [Input(t, source), Input(t, ())], shape_text(t, target),
                            f"padding={padding}", variant=padding)  # fmt: skip
        for sources, dim, target in CONCATENATIONS:
            if t in ("s2", "u2") and len(sources) > 1:
                continue  # XLA:CPU ends the process on joins of two-bit types
            yield of_one_op("concatenate", [Input(t, s) for s in sources], shape_text(t, target),
                            f"dimensions={{{dim}}}", variant=f"dim {dim}")  # fmt: skip
        for sizes in ((), (5,), (0, 3), (2, 1, 3, 2, 3)):
            for opcode in ("copy", "opt-barrier"):
                yield of_one_op(opcode, [Input(t, sizes)], shape_text(t, sizes))


def iota_cases() -> Iterator[Case]:
    """Yield iota over types, ranks and dimensions."""
    for t in (*ARITHMETIC, *FLOATS_8, *PACKED):
        for sizes, dim in (((5,), 0), ((300,), 0), ((2, 3), 1), ((0, 3), 1), ((2, 1, 3, 2, 3), 2)):
            shape = shape_text(t, sizes)
            text = module_text([], f"{shape} iota(), iota_dimension={dim}")
            yield Case("iota", t, f"{shape} {dim}", text, ())


DYNAMIC: tuple[tuple[Dimensions, Dimensions], ...] = (
    ((7,), (3,)), ((7,), (7,)), ((4, 6), (2, 3)), ((4, 6), (0, 6)), ((2, 3, 4), (1, 1, 1)),
    ((2, 3, 1, 5), (2, 2, 1, 2)), ((2, 1, 3, 2, 3), (1, 1, 2, 2, 3)), ((), ()),
)  # fmt: skip


def dynamic_cases() -> Iterator[Case]:
    """Yield dynamic slices and updates with starts beyond both ends, of every index type."""
    for t in ALL:
        for number, (sizes, window) in enumerate(DYNAMIC):
            index = ("s32", "s64", "u8", "s8", "u32", "u64", "s16", "s32")[number]
            styles = ("indices", "extreme") if t in ("f32", "s8", "pred") else ("indices",)
            for style in styles:
                starts = [Input(index, (), style, n) for n in sizes]
                yield of_one_op(
                    "dynamic-slice", [Input(t, sizes), *starts], shape_text(t, window),
                    f"dynamic_slice_sizes={braces(window)}", variant=f"{window} {style}",
                )  # fmt: skip
                yield of_one_op(
                    "dynamic-update-slice", [Input(t, sizes), Input(t, window), *starts],
                    shape_text(t, sizes), variant=style,
                )  # fmt: skip


GATHERS: tuple[tuple[Dimensions, Dimensions, str, Dimensions, int], ...] = (
    ((8, 5), (3,), "offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0}, "
     "index_vector_dim=1, slice_sizes={1,5}", (3, 5), 8),
    ((8, 5), (3, 1), "offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0}, "
     "index_vector_dim=1, slice_sizes={1,3}", (3, 3), 8),
    ((8, 5), (2, 4), "offset_dims={0,1}, collapsed_slice_dims={}, start_index_map={1,0}, "
     "index_vector_dim=0, slice_sizes={2,2}", (2, 2, 4), 6),
    ((5, 4), (3, 2, 2), "offset_dims={}, collapsed_slice_dims={0,1}, start_index_map={0,1}, "
     "index_vector_dim=2, slice_sizes={1,1}", (3, 2), 5),
    ((2, 8, 4), (2, 3, 1), "offset_dims={2}, collapsed_slice_dims={1}, start_index_map={1}, "
     "operand_batching_dims={0}, start_indices_batching_dims={0}, index_vector_dim=2, "
     "slice_sizes={1,1,4}", (2, 3, 4), 8),
    ((3, 2, 5, 2), (4, 2), "offset_dims={1,2,3}, collapsed_slice_dims={3}, start_index_map={2,0}, "
     "index_vector_dim=1, slice_sizes={2,1,3,1}", (4, 2, 1, 3), 3),
    ((8,), (0, 1), "offset_dims={}, collapsed_slice_dims={0}, start_index_map={0}, "
     "index_vector_dim=1, slice_sizes={1}", (0,), 8),
    ((7,), (1,), "offset_dims={0}, collapsed_slice_dims={}, start_index_map={0}, "
     "index_vector_dim=0, slice_sizes={7}", (7,), 7),
    ((2, 3, 2, 2, 3), (2, 2), "offset_dims={0,2,3}, collapsed_slice_dims={1,3}, "
     "start_index_map={4,1}, index_vector_dim=1, slice_sizes={2,1,2,1,2}", (2, 2, 2, 2), 3),
)  # fmt: skip
"""(operand, indices, attributes, result, index bound)."""


def gather_cases() -> Iterator[Case]:
    """Yield gathers with indices beyond both ends."""
    for t in ALL:
        for number, (sizes, indices, attributes, target, bound) in enumerate(GATHERS):
            index = ("s32", "s64", "u8", "s8", "u32", "u64", "s16", "s32", "s32")[number]
            for style in ("indices", "extreme") if t in ("f32", "u16") else ("indices",):
                yield of_one_op(
                    "gather", [Input(t, sizes), Input(index, indices, style, bound)],
                    shape_text(t, target), attributes, variant=f"{number} {style}",
                )  # fmt: skip
        row = "offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=1, "
        yield of_one_op(
            "gather", [Input(t, (8, 5)), Input("s32", (6, 1), "ascending", 8)],
            shape_text(t, (6, 5)), row + "slice_sizes={1,5}, indices_are_sorted=true",
            variant="sorted",
        )  # fmt: skip


SCATTERS: tuple[tuple[Dimensions, Dimensions, Dimensions, str, int], ...] = (
    ((8, 5), (3,), (3, 5), "update_window_dims={1}, inserted_window_dims={0}, "
     "scatter_dims_to_operand_dims={0}, index_vector_dim=1", 8),
    ((8, 5), (9, 1), (9, 3), "update_window_dims={1}, inserted_window_dims={0}, "
     "scatter_dims_to_operand_dims={0}, index_vector_dim=1", 8),
    ((2, 8, 4), (2, 3, 1), (2, 3, 4), "update_window_dims={2}, inserted_window_dims={1}, "
     "scatter_dims_to_operand_dims={1}, input_batching_dims={0}, "
     "scatter_indices_batching_dims={0}, index_vector_dim=2", 8),
    ((5, 4), (3, 2, 2), (3, 2), "update_window_dims={}, inserted_window_dims={0,1}, "
     "scatter_dims_to_operand_dims={0,1}, index_vector_dim=2", 5),
    ((8, 5), (2,), (2, 2), "update_window_dims={0,1}, inserted_window_dims={}, "
     "scatter_dims_to_operand_dims={1,0}, index_vector_dim=0", 6),
    ((8,), (0, 1), (0,), "update_window_dims={}, inserted_window_dims={0}, "
     "scatter_dims_to_operand_dims={0}, index_vector_dim=1", 8),
    ((2, 3, 2, 2, 3), (4, 1), (4, 2, 2, 2, 2), "update_window_dims={1,2,3,4}, "
     "inserted_window_dims={1}, scatter_dims_to_operand_dims={4}, index_vector_dim=1", 3),
)  # fmt: skip
"""(operand, indices, updates, attributes, index bound)."""


def scatter_cases() -> Iterator[Case]:
    """Yield scatters with every usual combiner, duplicates and indices beyond both ends."""
    for t in ALL:
        combiners = ["assign"]
        if t in ARITHMETIC:
            combiners += ["add", "multiply", "subtract"]
        if t in (*ARITHMETIC[:12], "pred"):
            combiners += ["maximum", "minimum"]
        for combiner in combiners:
            region = scalar_region("combine", combiner, t)
            if combiner == "assign":
                region = (
                    f"combine {{\n  a = {t}[] parameter(0)\n  ROOT b = {t}[] parameter(1)\n}}\n\n"
                )
            for number, (sizes, indices, updates, attributes, bound) in enumerate(SCATTERS):
                index = ("s32", "s64", "u8", "s8", "u32", "s32", "s16")[number]
                style = "moderate" if combiner in ("add", "multiply", "subtract") else "edges"
                yield of_one_op(
                    "scatter",
                    [Input(t, sizes, style), Input(index, indices, "indices", bound),
                     Input(t, updates, style)],
                    shape_text(t, sizes), f"{attributes}, to_apply=combine",
                    variant=f"{combiner} {number}", regions=region, terms=updates[0] + 2,
                    combiner=combiner if combiner != "subtract" else "add",
                    summed=(0, 2) if combiner in ("add", "multiply", "subtract") else None,
                )  # fmt: skip
            yield of_one_op(
                "scatter",
                [Input(t, (8, 5), style), Input("s32", (8, 1), "distinct"),
                 Input(t, (8, 5), style)],
                shape_text(t, (8, 5)),
                f"{SCATTERS[0][3]}, indices_are_sorted=false, unique_indices=true, "
                "to_apply=combine",
                variant=f"{combiner} unique", regions=region, terms=2,
                combiner=combiner if combiner != "subtract" else "add",
                summed=(0, 2) if combiner in ("add", "multiply", "subtract") else None,
            )  # fmt: skip
    for a, b in (("f32", "s32"), ("bf16", "u8"), ("f64", "pred"), ("s16", "s64")):
        region = (
            f"combine {{\n  a = {a}[] parameter(0)\n  b = {b}[] parameter(1)\n"
            f"  c = {a}[] parameter(2)\n  d = {b}[] parameter(3)\n  x = {a}[] maximum(a, c)\n"
            f"  y = {b}[] minimum(b, d)\n  ROOT z = ({a}[], {b}[]) tuple(x, y)\n}}\n\n"
        )
        for number, (sizes, indices, updates, attributes, bound) in enumerate(SCATTERS):
            yield of_one_op(
                "scatter",
                [Input(a, sizes), Input(b, sizes), Input("s32", indices, "indices", bound),
                 Input(a, updates), Input(b, updates)],
                f"({shape_text(a, sizes)}, {shape_text(b, sizes)})",
                f"{attributes}, to_apply=combine", variant=f"variadic {number}", regions=region,
                combiner="maximum",
            )  # fmt: skip


def tuple_cases() -> Iterator[Case]:
    """Yield tuples, their elements, and constants."""
    for t in ALL:
        x, y = Input(t, (3,)), Input("s32", ())
        yield of_one_op("tuple", [x, y], f"({x.shape}, s32[])")
        text = module_text(
            [x, y], f"{x.shape} get-tuple-element(n), index=1",
            before=f"  m = ({x.shape}, s32[]) tuple(p0, p1)\n"
            f"  g = {x.shape} get-tuple-element(m), index=0\n"
            f"  n = (s32[], {x.shape}) tuple(p1, g)",
        )  # fmt: skip
        yield Case("get-tuple-element", t, "nested", text, (x, y))
        literal = {"pred": "{true, false, true}", "c64": "{(1, -2.5), (inf, 0), (nan, -0)}"}.get(t)
        literal = literal or ("{(1, 2), (3, inf), (-0, 0)}" if t == "c128" else "{0, 1, 1}")
        literal = "{nan, -inf, -0}" if t in FLOATS else "{1, 2, 4}" if t == "f8e8m0fnu" else literal
        yield Case("constant", t, "of 3", module_text([], f"{t}[3] constant({literal})"), ())
        size = f"s32[] get-dimension-size(p0), dimensions={{{0}}}"
        yield Case("get-dimension-size", t, "0", module_text([x], size), (x,))


def cases() -> Iterator[Case]:
    """Yield all movement cases."""
    yield from plain_cases()
    yield from iota_cases()
    yield from dynamic_cases()
    yield from gather_cases()
    yield from scatter_cases()
    yield from tuple_cases()
