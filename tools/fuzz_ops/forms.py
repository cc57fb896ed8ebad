"""Forms of the ops that compute: elementwise, reductions, windows, sorts, products, spectra."""

from collections.abc import Iterator
from functools import partial

from hloipu_compiler.ir.ops import OPS, Trait
from tools.conformance.case import scalar_region
from tools.conformance.elementwise import result_type
from tools.fuzz_ops.form import Form, Instruction, array, combiner_region, shaped

COMBINERS = ("add", "multiply", "maximum", "minimum", "and", "or", "xor", "subtract", "assign")
"""What regions of reductions and scatters do; types for which one is not defined are refused."""
_ORDERED = frozenset({"subtract", "assign"})
"""Of these a reduction's order decides, which XLA leaves open."""


def elementwise(t: str, opcode: str = "add", m: int = 2, n: int = 3) -> Instruction:
    """Return an elementwise op on operands of one type."""
    operand = array(t, m, n, style="moderate")
    count = OPS[opcode].fewest_operands
    attributes = {
        "compare": "direction=LT",
        "reduce-precision": "exponent_bits=4, mantissa_bits=2",
    }.get(opcode, "")
    inputs = (operand,) * count
    if opcode == "select":
        inputs = (array("pred", m, n), operand, operand)
    target = "pred" if opcode == "compare" else _elementwise_type(opcode, t)
    return Instruction(opcode, inputs, shaped(target, m, n), attributes)


def _elementwise_type(opcode: str, t: str) -> str:
    if opcode == "complex" and t not in ("f32", "f64"):
        return "c64"
    return result_type(opcode, t)


def convert(t: str, target: str = "", m: int = 2, n: int = 3) -> Instruction:
    """Return a conversion to another type."""
    return Instruction("convert", (array(t, m, n),), shaped(target, m, n))


def bitcast_convert(t: str, target: str = "", m: int = 2, n: int = 4) -> Instruction:
    """Return a conversion of bits between types of one width."""
    return Instruction("bitcast-convert", (array(t, m, n),), shaped(target, m, n))


def stochastic_convert(t: str, bits: str = "u32", m: int = 2, n: int = 3) -> Instruction:
    """Return a conversion that rounds by random bits."""
    return Instruction(
        "stochastic-convert", (array(t, m, n), array(bits, m, n)), shaped("s8", m, n)
    )


def clamp_by_scalars(t: str, m: int = 2, n: int = 3) -> Instruction:
    """Return a clamp whose bounds are scalars."""
    low, high = array(t), array(t)
    return Instruction("clamp", (low, array(t, m, n), high), shaped(t, m, n))


def map_elements(t: str, opcode: str = "add", m: int = 2, n: int = 3) -> Instruction:
    """Return a map of one op."""
    whole = array(t, m, n)
    return Instruction(
        "map", (whole, whole), whole.shape, "dimensions={0,1}, to_apply=combine",
        combiner_region(opcode, t),
    )  # fmt: skip


def reduce(t: str, combiner: str = "add", m: int = 3, n: int = 4, k: int = 2) -> Instruction:
    """Return a reduction of the middle dimension."""
    return Instruction(
        "reduce", (array(t, m, n, k), array(t)), shaped(t, m, k),
        "dimensions={1}, to_apply=combine", combiner_region(combiner, t),
        random=combiner in _ORDERED,
    )  # fmt: skip


def reduce_all(t: str, combiner: str = "add", m: int = 3, n: int = 4) -> Instruction:
    """Return a reduction to a scalar."""
    return Instruction(
        "reduce", (array(t, m, n), array(t)), shaped(t),
        "dimensions={0,1}, to_apply=combine", combiner_region(combiner, t),
        random=combiner in _ORDERED,
    )  # fmt: skip


def reduce_pair(t: str, m: int = 3, n: int = 4) -> Instruction:
    """Return a reduction of two arrays at once, by a region of no known form."""
    region = (
        f"combine {{\n  a = {t}[] parameter(0)\n  b = s32[] parameter(1)\n"
        f"  c = {t}[] parameter(2)\n  d = s32[] parameter(3)\n  x = {t}[] add(a, c)\n"
        f"  y = s32[] maximum(b, d)\n  ROOT z = ({t}[], s32[]) tuple(x, y)\n}}\n\n"
    )
    return Instruction(
        "reduce", (array(t, m, n), array("s32", m, n), array(t), array("s32")),
        f"({shaped(t, m)}, s32[{m}])", "dimensions={1}, to_apply=combine", region,
    )  # fmt: skip


def arg_maximum(t: str, m: int = 3, n: int = 4) -> Instruction:
    """Return the greatest element of a row and its place, as JAX writes it."""
    region = (
        f"combine {{\n  a = {t}[] parameter(0)\n  b = s32[] parameter(1)\n"
        f"  c = {t}[] parameter(2)\n  d = s32[] parameter(3)\n"
        "  gt = pred[] compare(a, c), direction=GT\n  ne = pred[] compare(a, a), direction=NE\n"
        f"  or = pred[] or(gt, ne)\n  x = {t}[] select(or, a, c)\n"
        "  eq = pred[] compare(a, c), direction=EQ\n  lt = pred[] compare(b, d), direction=LT\n"
        "  and = pred[] and(eq, lt)\n  first = pred[] or(or, and)\n"
        f"  y = s32[] select(first, b, d)\n  ROOT z = ({t}[], s32[]) tuple(x, y)\n}}\n\n"
    )
    return Instruction(
        "reduce", (array(t, m, n), array("s32", m, n), array(t), array("s32")),
        f"({shaped(t, m)}, s32[{m}])", "dimensions={1}, to_apply=combine", region,
    )  # fmt: skip


def reduce_window(t: str, combiner: str = "add", m: int = 2, n: int = 5, k: int = 2) -> Instruction:
    """Return a window that slides along the middle dimension, with borders."""
    return Instruction(
        "reduce-window", (array(t, m, n, k), array(t)), shaped(t, m, n, k),
        "window={size=1x3x1 pad=0_0x1_1x0_0}, to_apply=combine", combiner_region(combiner, t),
        random=combiner in _ORDERED,
    )  # fmt: skip


def running_total(t: str, combiner: str = "add", m: int = 2, n: int = 5) -> Instruction:
    """Return a cumulative reduction, written as a window as large as the dimension."""
    return Instruction(
        "reduce-window", (array(t, m, n), array(t)), shaped(t, m, n),
        f"window={{size=1x{max(n, 1)} pad=0_0x{max(n - 1, 0)}_0}}, to_apply=combine",
        combiner_region(combiner, t),
        random=combiner in _ORDERED,
    )  # fmt: skip


def empty_window(t: str, m: int = 2, n: int = 3, window: int = 4) -> Instruction:
    """Return a window that fits nowhere in a short dimension, or has no extent."""
    places = max(0, n - window + 1)
    return Instruction(
        "reduce-window", (array(t, m, n), array(t)), shaped(t, m, places),
        f"window={{size=1x{window}}}, to_apply=combine", combiner_region("add", t),
    )  # fmt: skip


def select_and_scatter(t: str, m: int = 2, n: int = 6) -> Instruction:
    """Return the gradient of a pool by maximum."""
    regions = scalar_region("choose", "compare", t, ", direction=GE")
    regions += scalar_region("combine", "add", t)
    return Instruction(
        "select-and-scatter", (array(t, m, n), array(t, m, n // 2), array(t)), shaped(t, m, n),
        "window={size=1x2 stride=1x2}, select=choose, scatter=combine", regions,
    )  # fmt: skip


def sort(t: str, direction: str = "LT", m: int = 3, n: int = 5) -> Instruction:
    """Return a sort of the last dimension."""
    region = scalar_region("combine", "compare", t, f", direction={direction}")
    whole = array(t, m, n)
    return Instruction("sort", (whole,), whole.shape, "dimensions={1}, to_apply=combine", region)


def sort_pairs(t: str, direction: str = "LT", m: int = 4, n: int = 3) -> Instruction:
    """Return a stable sort of keys with values, along the first dimension."""
    region = (
        f"combine {{\n  a = {t}[] parameter(0)\n  b = {t}[] parameter(1)\n"
        "  c = s32[] parameter(2)\n  d = s32[] parameter(3)\n"
        f"  ROOT e = pred[] compare(a, b), direction={direction}\n}}\n\n"
    )
    keys, values = array(t, m, n), array("s32", m, n)
    return Instruction(
        "sort", (keys, values), f"({keys.shape}, {values.shape})",
        "dimensions={0}, is_stable=true, to_apply=combine", region,
    )  # fmt: skip


def topk(t: str, largest: str = "true", m: int = 2, n: int = 7, k: int = 3) -> Instruction:
    """Return the largest or smallest of each row."""
    return Instruction(
        "topk", (array(t, m, n),), f"({shaped(t, m, k)}, {shaped('s32', m, k)})",
        f"k={k}, largest={largest}",
    )  # fmt: skip


def sorted_top(t: str, direction: str = "GT", m: int = 2, n: int = 7, k: int = 3) -> Instruction:
    """Keys and their places sorted, and the first few kept: top-k as XLA decomposes it."""
    region = (
        f"combine {{\n  a = {t}[] parameter(0)\n  b = {t}[] parameter(1)\n"
        "  c = s32[] parameter(2)\n  d = s32[] parameter(3)\n"
        f"  ROOT e = pred[] compare(a, b), direction={direction}\n}}\n\n"
    )
    before = (
        f"  i = s32[{m},{n}] iota(), iota_dimension=1\n"
        f"  s = ({shaped(t, m, n)}, s32[{m},{n}]) sort(p0, i), dimensions={{1}}, is_stable=true, "
        "to_apply=combine\n"
        f"  g = {shaped(t, m, n)} get-tuple-element(s), index=0\n"
        f"  h = s32[{m},{n}] get-tuple-element(s), index=1\n"
        f"  y = {shaped(t, m, k)} slice(g), slice={{[0:{m}], [0:{k}]}}\n"
        f"  z = s32[{m},{k}] slice(h), slice={{[0:{m}], [0:{k}]}}\n"
    )
    return Instruction(
        "tuple", (array(t, m, n),), f"({shaped(t, m, k)}, s32[{m},{k}])", regions=region,
        before=before, operands="y, z",
    )  # fmt: skip


def scan(t: str, opcode: str = "add", m: int = 5, n: int = 3) -> Instruction:
    """Return a running total as a scan."""
    region = (
        f"combine {{\n  a = {t}[{n}] parameter(0)\n  b = {t}[{n}] parameter(1)\n"
        f"  c = {t}[{n}] {opcode}(a, b)\n  ROOT d = ({t}[{n}], {t}[{n}]) tuple(c, c)\n}}\n\n"
    )
    return Instruction(
        "scan", (array(t, m, n), array(t, n)), f"({shaped(t, m, n)}, {shaped(t, n)})",
        "dimensions={0}, num_carries=1, to_apply=combine", region,
    )  # fmt: skip


def dot(t: str, target: str = "", b: int = 2, m: int = 3, k: int = 4, n: int = 5) -> Instruction:
    """Return a batched product of matrices."""
    return Instruction(
        "dot", (array(t, b, m, k), array(t, b, k, n)), shaped(target or t, b, m, n),
        "lhs_batch_dims={0}, rhs_batch_dims={0}, lhs_contracting_dims={2}, "
        "rhs_contracting_dims={1}",
    )  # fmt: skip


def matrix_product(t: str, m: int = 3, k: int = 4, n: int = 5) -> Instruction:
    """Return a product of two matrices, the left one turned."""
    return Instruction(
        "dot", (array(t, k, m), array(t, k, n)), shaped(t, m, n),
        "lhs_contracting_dims={0}, rhs_contracting_dims={0}",
    )  # fmt: skip


def inner_product(t: str, k: int = 4) -> Instruction:
    """Return a product of two vectors."""
    return Instruction(
        "dot", (array(t, k), array(t, k)), shaped(t),
        "lhs_contracting_dims={0}, rhs_contracting_dims={0}",
    )  # fmt: skip


def outer_product(t: str, m: int = 3, n: int = 4) -> Instruction:
    """Return a product without contracted dimensions."""
    return Instruction("dot", (array(t, m), array(t, n)), shaped(t, m, n))


def ragged_dot(t: str, m: int = 8, k: int = 4, n: int = 5, groups: int = 3) -> Instruction:
    """Return a product whose rows fall into groups."""
    return Instruction(
        "ragged-dot",
        (array(t, m, k), array(t, groups, k, n), array("s32", groups, style="below", bound=3)),
        shaped(t, m, n),
        "lhs_contracting_dims={1}, rhs_contracting_dims={1}, lhs_ragged_dims={0}, "
        "rhs_group_dims={0}",
    )  # fmt: skip


def scaled_dot(t: str, m: int = 2, k: int = 2, n: int = 3) -> Instruction:
    """Return a product with a scale for each block of 32."""
    scale = "f8e8m0fnu"
    return Instruction(
        "scaled-dot",
        (array(t, m, 32 * k), array(t, 32 * k, n), array(scale, m, k, style="ones"),
         array(scale, k, n, style="ones")),
        shaped("f32", m, n), "lhs_contracting_dims={1}, rhs_contracting_dims={0}",
    )  # fmt: skip


def convolution(
    t: str, b: int = 2, w: int = 5, i: int = 3, o: int = 4, window: int = 3
) -> Instruction:
    """Return a convolution over one dimension with borders."""
    places = max(0, w + 2 - window + 1)
    return Instruction(
        "convolution", (array(t, b, w, i), array(t, window, i, o)), shaped(t, b, places, o),
        f"window={{size={window} pad=1_1}}, dim_labels=b0f_0io->b0f",
    )  # fmt: skip


def grouped_convolution(
    t: str, b: int = 2, h: int = 4, w: int = 3, i: int = 2, o: int = 2
) -> Instruction:
    """Return a convolution over two dimensions in two groups of features."""
    return Instruction(
        "convolution", (array(t, b, h, w, 2 * i), array(t, 2, 2, i, 2 * o)),
        shaped(t, b, max(0, h - 1), max(0, w - 1), 2 * o),
        "window={size=2x2}, dim_labels=b01f_01io->b01f, feature_group_count=2",
    )  # fmt: skip


def fft(t: str, kind: str = "FFT", m: int = 2, n: int = 6, k: int = 4) -> Instruction:
    """Return a spectrum over two dimensions."""
    real = {"c64": "f32", "c128": "f64"}.get(t, t)
    compound = {"f32": "c64", "f64": "c128"}.get(t, t)
    whole, half = (m, n, k), (m, n, k // 2 + 1 if k else 0)
    operand = {"RFFT": (real, whole), "IRFFT": (compound, half)}.get(kind, (compound, whole))
    result = {"RFFT": (compound, half), "IRFFT": (real, whole)}.get(kind, (compound, whole))
    return Instruction(
        "fft", (array(operand[0], *operand[1], style="moderate"),), shaped(result[0], *result[1]),
        f"fft_type={kind}, fft_length={{{n},{k}}}",
    )  # fmt: skip


def fft_rows(t: str, kind: str = "FFT", m: int = 3, n: int = 5) -> Instruction:
    """Return a spectrum of each row; the length is odd."""
    real = {"c64": "f32", "c128": "f64"}.get(t, t)
    compound = {"f32": "c64", "f64": "c128"}.get(t, t)
    half = n // 2 + 1 if n else 0
    operand = {"RFFT": (real, n), "IRFFT": (compound, half)}.get(kind, (compound, n))
    result = {"RFFT": (compound, half), "IRFFT": (real, n)}.get(kind, (compound, n))
    return Instruction(
        "fft", (array(operand[0], m, operand[1], style="moderate"),),
        shaped(result[0], m, result[1]), f"fft_type={kind}, fft_length={{{n}}}",
    )  # fmt: skip


def cholesky(t: str, lower: str = "true", b: int = 2, n: int = 3) -> Instruction:
    """Return factors of a batch of matrices."""
    whole = array(t, b, n, n, style="definite" if n else "whole")
    return Instruction("cholesky", (whole,), whole.shape, f"lower={lower}")


def triangular_solve(
    t: str, left: str = "true", transpose: str = "NO_TRANSPOSE", b: int = 2, n: int = 3, k: int = 2
) -> Instruction:
    """Return solutions of triangular systems."""
    sides = (b, n, k) if left == "true" else (b, k, n)
    matrix = array(t, b, n, n, style="triangular" if n else "whole")
    return Instruction(
        "triangular-solve", (matrix, array(t, *sides)), shaped(t, *sides),
        f"left_side={left}, lower=true, unit_diagonal=false, transpose_a={transpose}",
    )  # fmt: skip


def batch_norm(t: str, kind: str = "training", m: int = 4, n: int = 3, k: int = 2) -> Instruction:
    """Return one of the three batch norms."""
    whole, row = array(t, m, n, k, style="moderate"), array(t, n, style="positive")
    inputs = {
        "training": (whole, row, row),
        "inference": (whole, row, row, row, row),
        "grad": (whole, row, row, row, whole),
    }[kind]
    result = whole.shape if kind == "inference" else f"({whole.shape}, {row.shape}, {row.shape})"
    return Instruction(f"batch-norm-{kind}", inputs, result, "epsilon=0.001, feature_index=1")


def rng(t: str, distribution: str = "rng_uniform", m: int = 2, n: int = 3) -> Instruction:
    """Return random values."""
    return Instruction(
        "rng", (array(t, style="zeros"), array(t, style="ones")), shaped(t, m, n),
        f"distribution={distribution}", random=True,
    )  # fmt: skip


def rng_bits(t: str, algorithm: str = "rng_default", words: str = "2", n: int = 5) -> Instruction:
    """Return random bits; states of odd sizes are the target's own affair."""
    state = int(words)
    return Instruction(
        "rng-bit-generator", (array("u64", state),), f"(u64[{state}], {t}[{n}])",
        f"algorithm={algorithm}",
    )  # fmt: skip


def rng_state(t: str, n: int = 2) -> Instruction:
    """Return the next state of a generator."""
    return Instruction("rng-get-and-update-state", (), shaped(t, n), "delta=4096", random=True)


def computing_forms() -> Iterator[Form]:
    """Yield every form of this file."""
    for opcode, op in OPS.items():
        plain = Trait.ELEMENTWISE in op.traits
        if plain and opcode not in ("convert", "stochastic-convert"):
            yield partial(elementwise, opcode=opcode)
    for target in ("pred", "s8", "u64", "s4", "f16", "f8e4m3fn", "f32", "c64"):
        yield partial(convert, target=target)
    for target in ("pred", "u8", "s16", "f32", "u64", "c64", "s4", "f4e2m1fn"):
        yield partial(bitcast_convert, target=target)
    for bits in ("u8", "u16", "u32", "u64"):
        yield partial(stochastic_convert, bits=bits)
    yield clamp_by_scalars
    for opcode in ("add", "shift-left", "maximum", "atan2"):
        yield partial(map_elements, opcode=opcode)
    for combiner in COMBINERS:
        yield partial(reduce, combiner=combiner)
        yield partial(reduce_all, combiner=combiner)
        yield partial(reduce_window, combiner=combiner)
        yield partial(running_total, combiner=combiner)
    yield from (reduce_pair, arg_maximum, empty_window, select_and_scatter)
    for direction in ("LT", "GT", "EQ"):
        yield partial(sort, direction=direction)
        yield partial(sort_pairs, direction=direction)
        yield partial(sorted_top, direction=direction)
    yield partial(topk, largest="true")
    yield partial(topk, largest="false")
    yield partial(scan, opcode="add")
    yield partial(scan, opcode="maximum")
    for target in ("", "f32", "s32", "f64"):
        yield partial(dot, target=target)
    yield from (matrix_product, inner_product, outer_product, ragged_dot, scaled_dot)
    yield from (convolution, grouped_convolution)
    for kind in ("FFT", "IFFT", "RFFT", "IRFFT"):
        yield partial(fft, kind=kind)
        yield partial(fft_rows, kind=kind)
    for lower in ("true", "false"):
        yield partial(cholesky, lower=lower)
    yield partial(triangular_solve, left="true", transpose="NO_TRANSPOSE")
    yield partial(triangular_solve, left="false", transpose="ADJOINT")
    for kind in ("training", "inference", "grad"):
        yield partial(batch_norm, kind=kind)
    for distribution in ("rng_uniform", "rng_normal"):
        yield partial(rng, distribution=distribution)
    for algorithm in ("rng_default", "rng_three_fry", "rng_philox"):
        for words in "01234":
            yield partial(rng_bits, algorithm=algorithm, words=words)
    yield rng_state
