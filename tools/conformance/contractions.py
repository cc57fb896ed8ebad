"""Cases of dot, convolution, FFT, factorisations, solves and batch norms."""

from collections.abc import Iterator
from math import prod

from hloipu_runtime.element_types import ELEMENT_TYPES
from tools.conformance.case import Case, Dimensions, Input, braces, of_one_op, shape_text
from tools.conformance.types import ARITHMETIC, COMPLEX, FLOATS, FLOATS_8, WIDE_FLOATS

Four = tuple[Dimensions, Dimensions, Dimensions, Dimensions]

DOTS: tuple[tuple[Dimensions, Dimensions, Four], ...] = (
    ((3,), (3,), ((), (), (0,), (0,))), ((7, 13), (13, 5), ((), (), (1,), (0,))),
    ((13, 7), (5, 13), ((), (), (0,), (1,))), ((7, 13), (13,), ((), (), (1,), (0,))),
    ((2, 3), (4, 5), ((), (), (), ())), ((3, 2, 7), (3, 7, 4), ((0,), (0,), (2,), (1,))),
    ((2, 5, 3), (4, 2, 3, 5), ((0,), (1,), (1, 2), (3, 2))),
    ((2, 3, 4, 5, 1), (3, 5, 2, 2, 4), ((0, 1), (2, 0), (3, 2), (1, 4))),
    ((0, 3), (3, 4), ((), (), (1,), (0,))), ((2, 0), (0, 4), ((), (), (1,), (0,))),
    ((1, 1), (1, 1), ((), (), (1,), (0,))), ((33, 257), (257, 19), ((), (), (1,), (0,))),
    ((), (), ((), (), (), ())),
)  # fmt: skip
"""(lhs, rhs, (lhs batch, rhs batch, lhs contracting, rhs contracting))."""

MIXED = (
    ("bf16", "bf16", "f32"), ("f16", "f16", "f32"), ("s8", "s8", "s32"), ("u8", "u8", "u32"),
    ("s8", "s8", "f32"), ("f32", "f32", "f64"), ("bf16", "f32", "f32"), ("u8", "s8", "s32"),
    ("f8e4m3fn", "f8e5m2", "f32"), ("f8e4m3fn", "f8e4m3fn", "bf16"),
    ("f8e5m2", "f8e5m2", "f16"), ("s16", "s16", "s32"),
)  # fmt: skip
"""(lhs, rhs, result) with a preferred element type."""


def dot_result(lhs: Dimensions, rhs: Dimensions, dims: Four) -> Dimensions:
    """Return a dot's sizes: batch, lhs free, rhs free."""
    left = [n for d, n in enumerate(lhs) if d not in (*dims[0], *dims[2])]
    right = [n for d, n in enumerate(rhs) if d not in (*dims[1], *dims[3])]
    return (*(lhs[d] for d in dims[0]), *left, *right)


def dot_attributes(dims: Four) -> str:
    """Return a dot's dimension numbers as text."""
    batch = f"lhs_batch_dims={braces(dims[0])}, rhs_batch_dims={braces(dims[1])}, "
    contracting = f"lhs_contracting_dims={braces(dims[2])}, rhs_contracting_dims={braces(dims[3])}"
    return (batch if dims[0] else "") + contracting


def dot_case(
    types: tuple[str, str, str], lhs: Dimensions, rhs: Dimensions, dims: Four, extra: str = ""
) -> Case:
    """Return one dot."""
    return of_one_op(
        "dot", [Input(types[0], lhs, "moderate"), Input(types[1], rhs, "moderate")],
        shape_text(types[2], dot_result(lhs, rhs, dims)), dot_attributes(dims) + extra,
        element_type=types[2], variant=f"{dims}{extra}", summed=(0, 1),
        terms=prod(lhs[d] for d in dims[2]),
    )  # fmt: skip


def dot_cases() -> Iterator[Case]:
    """Yield dots in general form."""
    for t in ("pred", *ARITHMETIC, *FLOATS_8):
        for lhs, rhs, dims in DOTS:
            yield dot_case((t, t, t), lhs, rhs, dims)
    for types in MIXED:
        for lhs, rhs, dims in DOTS:
            yield dot_case(types, lhs, rhs, dims)
    for precision in ("highest,highest", "high,default"):
        for lhs, rhs, dims in DOTS[1:5]:
            for t in ("f32", "bf16"):
                extra = f", operand_precision={{{precision}}}"
                yield dot_case((t, t, t), lhs, rhs, dims, extra)


def ragged_dot_cases() -> Iterator[Case]:
    """Yield ragged dots: groups of rows, of the contraction and of batches."""
    for t in ("f32", "bf16", "f64"):
        for sizes, groups in (((8, 4), 3), ((5, 13), 2), ((8, 4), 1)):
            rows, inner = sizes
            yield of_one_op(
                "ragged-dot",
                [Input(t, sizes, "moderate"), Input(t, (groups, inner, 5), "moderate"),
                 Input("s32", (groups,), "below", rows // groups + 1)],
                shape_text(t, (rows, 5)),
                "lhs_contracting_dims={1}, rhs_contracting_dims={1}, lhs_ragged_dims={0}, "
                "rhs_group_dims={0}",
                variant=f"{groups}", summed=(0, 1), terms=inner,
            )  # fmt: skip


def scaled_dot_cases() -> Iterator[Case]:
    """Yield block-scaled dots."""
    for t in ("f8e4m3fn", "f8e5m2", "bf16"):
        for rows, columns, inner in ((2, 4, 32), (3, 5, 64)):
            yield of_one_op(
                "scaled-dot",
                [Input(t, (rows, inner), "moderate"), Input(t, (inner, columns), "moderate"),
                 Input("f8e8m0fnu", (rows, inner // 32), "moderate"),
                 Input("f8e8m0fnu", (inner // 32, columns), "moderate")],
                shape_text("f32", (rows, columns)),
                "lhs_contracting_dims={1}, rhs_contracting_dims={0}", element_type=t,
                summed=(0, 1, 2, 3), terms=inner,
            )  # fmt: skip


CONVOLUTIONS: tuple[tuple[Dimensions, Dimensions, str, str, Dimensions], ...] = (
    ((1, 5, 3), (3, 3, 8), "size=3 pad=1_1", "b0f_0io->b0f", (1, 5, 8)),
    ((2, 7, 3), (3, 3, 4), "size=3 stride=2 pad=0_1", "b0f_0io->b0f", (2, 3, 4)),
    ((2, 3), (3, 8), "", "bf_io->bf", (2, 8)),
    ((1, 4, 4, 3), (3, 3, 3, 8), "size=3x3 pad=1_1x1_1", "b01f_01io->b01f", (1, 4, 4, 8)),
    ((1, 3, 4, 4), (8, 3, 3, 3), "size=3x3 stride=2x2 pad=1_1x1_1", "bf01_oi01->bf01",
     (1, 8, 2, 2)),
    ((1, 4, 4, 3), (1, 1, 3, 8), "size=1x1 lhs_dilate=2x2", "b01f_01io->b01f", (1, 7, 7, 8)),
    ((1, 6, 6, 3), (3, 3, 3, 2), "size=3x3 rhs_dilate=2x2 rhs_reversal=1x1", "b01f_01io->b01f",
     (1, 2, 2, 2)),
    ((2, 5, 6, 2), (2, 3, 2, 3), "size=2x3 pad=-1_2x1_-1 lhs_dilate=2x1", "b01f_01io->b01f",
     (2, 9, 4, 3)),
    ((2, 4, 5, 6, 2), (2, 1, 3, 2, 3), "size=2x1x3 stride=1x2x1 pad=0_1x0_0x1_1",
     "b012f_012io->b012f", (2, 4, 3, 6, 3)),
    ((4, 5, 2, 3), (3, 3, 3, 7), "size=3x3 pad=1_1x1_1", "01bf_01io->01bf", (4, 5, 2, 7)),
    ((4, 1, 4, 3), (1, 3, 3, 3), "size=1x3 pad=0_0x3_3", "b01f_01io->b01f", (4, 1, 8, 3)),
    ((0, 4, 4, 3), (3, 3, 3, 8), "size=3x3", "b01f_01io->b01f", (0, 2, 2, 8)),
    ((1, 4, 4, 0), (3, 3, 0, 8), "size=3x3", "b01f_01io->b01f", (1, 2, 2, 8)),
    ((1, 2, 2, 3), (3, 3, 3, 8), "size=3x3", "b01f_01io->b01f", (1, 0, 0, 8)),
    ((3, 9, 9, 2), (4, 4, 3, 2), "size=4x4 stride=3x2 pad=2_1x0_3", "b01f_01oi->f01b",
     (3, 3, 5, 3)),
)  # fmt: skip
GROUPED: tuple[tuple[Dimensions, Dimensions, str, str, Dimensions, str], ...] = (
    ((1, 4, 4, 3), (3, 3, 1, 6), "size=3x3 pad=1_1x1_1", "b01f_01io->b01f", (1, 4, 4, 6),
     "feature_group_count=3"),
    ((2, 5, 4), (3, 2, 6), "size=3", "b0f_0io->b0f", (2, 3, 6), "feature_group_count=2"),
    ((4, 4, 4, 3), (3, 3, 3, 4), "size=3x3 pad=1_1x1_1", "b01f_01io->b01f", (2, 4, 4, 4),
     "batch_group_count=2"),
    ((6, 5, 2), (3, 2, 6), "size=3 stride=2", "b0f_0io->b0f", (2, 2, 6), "batch_group_count=3"),
)  # fmt: skip


def convolution_cases() -> Iterator[Case]:
    """Yield convolutions: dilations, paddings, groups, reversal, dimension orders, ranks."""
    triples = [(t, t, t) for t in (*ARITHMETIC, "f8e5m2", "f8e4m3fn")]
    triples += [("bf16", "bf16", "f32"), ("f16", "f16", "f32"), ("s8", "s8", "s32")]
    for lhs_type, rhs_type, t in triples:
        rows = [(*row, "") for row in CONVOLUTIONS] + list(GROUPED)
        for lhs, rhs, window, labels, target, extra in rows:
            inner = prod(rhs) // max(1, rhs[labels.split("_")[1].split("->")[0].index("o")])
            attributes = f"window={{{window}}}, " if window else ""
            attributes += f"dim_labels={labels}" + (f", {extra}" if extra else "")
            yield of_one_op(
                "convolution", [Input(lhs_type, lhs, "moderate"), Input(rhs_type, rhs, "moderate")],
                shape_text(t, target), attributes, element_type=t,
                variant=f"{window} {labels} {extra}", summed=(0, 1), terms=inner,
            )  # fmt: skip


def fft_cases() -> Iterator[Case]:
    """Yield every kind of FFT over lengths that are powers of two, odd and prime."""
    for real, t in zip(WIDE_FLOATS, COMPLEX, strict=True):
        for lead in ((), (2,), (2, 3)):
            for lengths in ((1,), (4,), (7,), (12,), (4, 6), (3, 5), (2, 3, 4)):
                whole, half = (*lead, *lengths), (*lead, *lengths[:-1], lengths[-1] // 2 + 1)
                tail = f"fft_length={braces(lengths)}"
                forms = (
                    ("FFT", t, whole, t, whole), ("IFFT", t, whole, t, whole),
                    ("RFFT", real, whole, t, half), ("IRFFT", t, half, real, whole),
                )  # fmt: skip
                for kind, before, source, after, target in forms:
                    yield of_one_op(
                        "fft", [Input(before, source, "moderate")], shape_text(after, target),
                        f"fft_type={kind}, {tail}", element_type=after, variant=f"{kind} {lengths}",
                        terms=prod(lengths), normwise=True,
                    )  # fmt: skip


MATRICES: tuple[tuple[Dimensions, int], ...] = (
    ((), 1),
    ((), 5),
    ((3,), 4),
    ((2, 1, 2), 3),
    ((0,), 3),
    ((), 17),
)


def factor_cases() -> Iterator[Case]:
    """Yield Cholesky factors and triangular solves in all forms."""
    for t in (*WIDE_FLOATS, *COMPLEX, "f16", "bf16"):
        for lead, n in MATRICES:
            square = (*lead, n, n)
            for lower in ("true", "false"):
                yield of_one_op(
                    "cholesky", [Input(t, square, "definite")], shape_text(t, square),
                    f"lower={lower}", variant=lower, terms=n, normwise=True,
                    tags=frozenset({"lower" if lower == "true" else "upper"}),
                )  # fmt: skip
            for number in range(8):
                left, low = number % 2 == 0, number // 2 % 2 == 0
                transpose = ("NO_TRANSPOSE", "TRANSPOSE", "ADJOINT", "NO_TRANSPOSE")[number // 2]
                sides = (*lead, n, 3) if left else (*lead, 3, n)
                attributes = (
                    f"left_side={str(left).lower()}, lower={str(low).lower()}, "
                    f"unit_diagonal={str(number > 4).lower()}, transpose_a={transpose}"
                )
                yield of_one_op(
                    "triangular-solve",
                    [Input(t, square, "triangular"), Input(t, sides, "moderate")],
                    shape_text(t, sides), attributes, variant=f"{number}", terms=n, normwise=True,
                )  # fmt: skip


NORMALISED: tuple[tuple[Dimensions, int], ...] = (
    ((7, 3), 1), ((2, 3, 4), 1), ((2, 3, 3, 4), 3), ((4, 2, 3, 3), 0), ((2, 1, 3, 2, 3), 4),
    ((5, 1), 1),
)  # fmt: skip


def batch_norm_cases() -> Iterator[Case]:
    """Yield the three batch norms."""
    for t in FLOATS:
        for sizes, feature in NORMALISED:
            one = (sizes[feature],)
            x, scale = Input(t, sizes, "moderate"), Input(t, one, "positive")
            offset, variance = Input(t, one, "moderate"), Input(t, one, "positive")
            tail = f"epsilon=0.001, feature_index={feature}"
            whole, row = shape_text(t, sizes), shape_text(t, one)
            count = prod(sizes) // sizes[feature]
            three = f"({whole}, {row}, {row})"
            yield of_one_op("batch-norm-training", [x, scale, offset], three, tail,
                            variant=str(feature), terms=count, normwise=True)  # fmt: skip
            yield of_one_op(
                "batch-norm-inference", [x, scale, offset, offset, variance], whole, tail,
                variant=str(feature), terms=4, normwise=True,
            )  # fmt: skip
            yield of_one_op(
                "batch-norm-grad", [x, scale, offset, variance, x], three, tail,
                variant=str(feature), terms=count, normwise=True,
            )  # fmt: skip


def cases() -> Iterator[Case]:
    """Yield all cases of this family."""
    yield from dot_cases()
    yield from ragged_dot_cases()
    yield from scaled_dot_cases()
    yield from convolution_cases()
    yield from fft_cases()
    yield from factor_cases()
    yield from batch_norm_cases()


__all__ = ["ELEMENT_TYPES", "cases"]
