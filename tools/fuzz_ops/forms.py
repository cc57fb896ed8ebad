"""Forms of the ops that compute: elementwise, reductions, windows, sorts, products, spectra."""

from collections.abc import Iterator

from hloipu_compiler.ir.ops import OPS, Trait
from tools.conformance.elementwise import result_type
from tools.fuzz_ops.form import Form, Instruction, instruction, over

COMBINERS = ("add", "multiply", "maximum", "minimum", "and", "or", "xor", "subtract", "assign")
"""What regions of reductions and scatters do; types for which one is not defined are refused."""
_ORDERED = frozenset({"subtract", "assign"})
"""Of these a reduction's order decides, which XLA leaves open."""
_REAL = {"c64": "f32", "c128": "f64"}
_COMPLEX = {"f32": "c64", "f64": "c128"}
_BATCHED = (
    "lhs_batch_dims={0}, rhs_batch_dims={0}, lhs_contracting_dims={2}, rhs_contracting_dims={1}"
)


def pair_region(t: str, body: str = "  x = {t}[] add(a, c)\n  y = s32[] maximum(b, d)\n") -> str:
    """Return the computation `combine` of two pairs, each of a value and an s32."""
    return (
        f"combine {{\n  a = {t}[] parameter(0)\n  b = s32[] parameter(1)\n"
        f"  c = {t}[] parameter(2)\n  d = s32[] parameter(3)\n{body.replace('{t}', t)}"
        f"  ROOT z = ({t}[], s32[]) tuple(x, y)\n}}\n\n"
    )


_GREATER = """\
  gt = pred[] compare(a, c), direction=GT
  ne = pred[] compare(a, a), direction=NE
  or = pred[] or(gt, ne)
  x = {t}[] select(or, a, c)
  eq = pred[] compare(a, c), direction=EQ
  lt = pred[] compare(b, d), direction=LT
  and = pred[] and(eq, lt)
  first = pred[] or(or, and)
  y = s32[] select(first, b, d)
"""


def elementwise(t: str, opcode: str = "add", m: int = 2, n: int = 3) -> Instruction:
    """Return an elementwise op on operands of one type."""
    whole = f"{t}[{m},{n}] moderate"
    operands = [whole] * OPS[opcode].fewest_operands
    attributes = {
        "compare": ", direction=LT",
        "reduce-precision": ", exponent_bits=4, mantissa_bits=2",
    }.get(opcode, "")
    if opcode == "select":
        operands = [f"pred[{m},{n}]", whole, whole]
    target = "pred" if opcode == "compare" else _elementwise_type(opcode, t)
    return instruction(f"{target}[{m},{n}] {opcode}({', '.join(operands)}){attributes}")


def _elementwise_type(opcode: str, t: str) -> str:
    if opcode == "complex" and t not in ("f32", "f64"):
        return "c64"
    return result_type(opcode, t)


def convert(t: str, target: str = "", m: int = 2, n: int = 3) -> Instruction:
    """Return a conversion to another type."""
    return instruction(f"{target}[{m},{n}] convert({t}[{m},{n}])")


def bitcast_convert(t: str, target: str = "", m: int = 2, n: int = 4) -> Instruction:
    """Return a conversion of bits between types of one width."""
    return instruction(f"{target}[{m},{n}] bitcast-convert({t}[{m},{n}])")


def stochastic_convert(t: str, bits: str = "u32", m: int = 2, n: int = 3) -> Instruction:
    """Return a conversion that rounds by random bits."""
    return instruction(f"s8[{m},{n}] stochastic-convert({t}[{m},{n}], {bits}[{m},{n}])")


def clamp_by_scalars(t: str, m: int = 2, n: int = 3) -> Instruction:
    """Return a clamp whose bounds are scalars."""
    return instruction(f"{t}[{m},{n}] clamp({t}[], {t}[{m},{n}], {t}[])")


def map_elements(t: str, opcode: str = "add", m: int = 2, n: int = 3) -> Instruction:
    """Return a map of one op."""
    a = f"{t}[{m},{n}]"
    return instruction(f"{a} map({a}, {a}), dimensions={{0,1}}, to_apply={opcode}.{t}")


def _reduced(text: str, t: str, combiner: str) -> Instruction:
    return instruction(f"{text}, to_apply={combiner}.{t}", random=combiner in _ORDERED)


def reduce(t: str, combiner: str = "add", m: int = 3, n: int = 4, k: int = 2) -> Instruction:
    """Return a reduction of the middle dimension."""
    text = f"{t}[{m},{k}] reduce({t}[{m},{n},{k}], {t}[]), dimensions={{1}}"
    return _reduced(text, t, combiner)


def reduce_all(t: str, combiner: str = "add", m: int = 3, n: int = 4) -> Instruction:
    """Return a reduction to a scalar."""
    return _reduced(f"{t}[] reduce({t}[{m},{n}], {t}[]), dimensions={{0,1}}", t, combiner)


def _reduced_pair(t: str, m: int, n: int, region: str) -> Instruction:
    operands = f"{t}[{m},{n}], s32[{m},{n}], {t}[], s32[]"
    text = f"({t}[{m}], s32[{m}]) reduce({operands}), dimensions={{1}}, to_apply=combine"
    return instruction(text, region)


def reduce_pair(t: str, m: int = 3, n: int = 4) -> Instruction:
    """Return a reduction of two arrays at once, by a region of no known form."""
    return _reduced_pair(t, m, n, pair_region(t))


def arg_maximum(t: str, m: int = 3, n: int = 4) -> Instruction:
    """Return the greatest element of a row and its place, as JAX writes it."""
    return _reduced_pair(t, m, n, pair_region(t, _GREATER))


def reduce_window(t: str, combiner: str = "add", m: int = 2, n: int = 5, k: int = 2) -> Instruction:
    """Return a window that slides along the middle dimension, with borders."""
    a = f"{t}[{m},{n},{k}]"
    text = f"{a} reduce-window({a}, {t}[]), window={{size=1x3x1 pad=0_0x1_1x0_0}}"
    return _reduced(text, t, combiner)


def running_total(t: str, combiner: str = "add", m: int = 2, n: int = 5) -> Instruction:
    """Return a cumulative reduction, written as a window as large as the dimension."""
    a, window = f"{t}[{m},{n}]", f"size=1x{max(n, 1)} pad=0_0x{max(n - 1, 0)}_0"
    return _reduced(f"{a} reduce-window({a}, {t}[]), window={{{window}}}", t, combiner)


def empty_window(t: str, m: int = 2, n: int = 3, window: int = 4) -> Instruction:
    """Return a window that fits nowhere in a short dimension, or has no extent."""
    text = f"{t}[{m},{max(0, n - window + 1)}] reduce-window({t}[{m},{n}], {t}[])"
    return instruction(f"{text}, window={{size=1x{window}}}, to_apply=add.{t}")


def select_and_scatter(t: str, m: int = 2, n: int = 6) -> Instruction:
    """Return the gradient of a pool by maximum."""
    text = f"{t}[{m},{n}] select-and-scatter({t}[{m},{n}], {t}[{m},{n // 2}], {t}[])"
    window = "window={size=1x2 stride=1x2}"
    return instruction(f"{text}, {window}, select=at-least.{t}, scatter=add.{t}")


def sort(t: str, order: str = "less", m: int = 3, n: int = 5) -> Instruction:
    """Return a sort of the last dimension."""
    return instruction(f"{t}[{m},{n}] sort({t}[{m},{n}]), dimensions={{1}}, to_apply={order}.{t}")


def sort_pairs(t: str, order: str = "less", m: int = 4, n: int = 3) -> Instruction:
    """Return a stable sort of keys with values, along the first dimension."""
    both = f"{t}[{m},{n}], s32[{m},{n}]"
    attributes = f"dimensions={{0}}, is_stable=true, to_apply={order}.{t}.s32"
    return instruction(f"({both}) sort({both}), {attributes}")


def topk(t: str, largest: str = "true", m: int = 2, n: int = 7, k: int = 3) -> Instruction:
    """Return the largest or smallest of each row."""
    return instruction(f"({t}[{m},{k}], s32[{m},{k}]) topk({t}[{m},{n}]), k={k}, largest={largest}")


def sorted_top(t: str, direction: str = "GT", m: int = 2, n: int = 7, k: int = 3) -> Instruction:
    """Keys and their places sorted, and the first few kept: top-k as XLA decomposes it."""
    region = (
        f"combine {{\n  a = {t}[] parameter(0)\n  b = {t}[] parameter(1)\n"
        "  c = s32[] parameter(2)\n  d = s32[] parameter(3)\n"
        f"  ROOT e = pred[] compare(a, b), direction={direction}\n}}\n\n"
    )
    before = (
        f"  i = s32[{m},{n}] iota(), iota_dimension=1\n"
        f"  s = ({t}[{m},{n}], s32[{m},{n}]) sort(p0, i), dimensions={{1}}, is_stable=true, "
        "to_apply=combine\n"
        f"  g = {t}[{m},{n}] get-tuple-element(s), index=0\n"
        f"  h = s32[{m},{n}] get-tuple-element(s), index=1\n"
        f"  y = {t}[{m},{k}] slice(g), slice={{[0:{m}], [0:{k}]}}\n"
        f"  z = s32[{m},{k}] slice(h), slice={{[0:{m}], [0:{k}]}}\n"
    )
    text = f"({t}[{m},{k}], s32[{m},{k}]) tuple({t}[{m},{n}])"
    return instruction(text, region, before, "y, z")


def scan(t: str, opcode: str = "add", m: int = 5, n: int = 3) -> Instruction:
    """Return a running total as a scan."""
    region = (
        f"combine {{\n  a = {t}[{n}] parameter(0)\n  b = {t}[{n}] parameter(1)\n"
        f"  c = {t}[{n}] {opcode}(a, b)\n  ROOT d = ({t}[{n}], {t}[{n}]) tuple(c, c)\n}}\n\n"
    )
    both = f"{t}[{m},{n}], {t}[{n}]"
    text = f"({both}) scan({both}), dimensions={{0}}, num_carries=1, to_apply=combine"
    return instruction(text, region)


def dot(t: str, target: str = "", b: int = 2, m: int = 3, k: int = 4, n: int = 5) -> Instruction:
    """Return a batched product of matrices."""
    text = f"{target or t}[{b},{m},{n}] dot({t}[{b},{m},{k}], {t}[{b},{k},{n}])"
    return instruction(f"{text}, {_BATCHED}")


def matrix_product(t: str, m: int = 3, k: int = 4, n: int = 5) -> Instruction:
    """Return a product of two matrices, the left one turned."""
    text = f"{t}[{m},{n}] dot({t}[{k},{m}], {t}[{k},{n}])"
    return instruction(f"{text}, lhs_contracting_dims={{0}}, rhs_contracting_dims={{0}}")


def inner_product(t: str, k: int = 4) -> Instruction:
    """Return a product of two vectors."""
    text = f"{t}[] dot({t}[{k}], {t}[{k}])"
    return instruction(f"{text}, lhs_contracting_dims={{0}}, rhs_contracting_dims={{0}}")


def outer_product(t: str, m: int = 3, n: int = 4) -> Instruction:
    """Return a product without contracted dimensions."""
    return instruction(f"{t}[{m},{n}] dot({t}[{m}], {t}[{n}])")


def ragged_dot(t: str, m: int = 8, k: int = 4, n: int = 5, groups: int = 3) -> Instruction:
    """Return a product whose rows fall into groups."""
    operands = f"{t}[{m},{k}], {t}[{groups},{k},{n}], s32[{groups}] below:3"
    return instruction(
        f"{t}[{m},{n}] ragged-dot({operands}), lhs_contracting_dims={{1}}, "
        "rhs_contracting_dims={1}, lhs_ragged_dims={0}, rhs_group_dims={0}"
    )


def scaled_dot(t: str, m: int = 2, k: int = 2, n: int = 3) -> Instruction:
    """Return a product with a scale for each block of 32."""
    scales = f"f8e8m0fnu[{m},{k}] ones, f8e8m0fnu[{k},{n}] ones"
    text = f"f32[{m},{n}] scaled-dot({t}[{m},{32 * k}], {t}[{32 * k},{n}], {scales})"
    return instruction(f"{text}, lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}")


def convolution(
    t: str, b: int = 2, w: int = 5, i: int = 3, o: int = 4, window: int = 3
) -> Instruction:
    """Return a convolution over one dimension with borders."""
    places = max(0, w + 2 - window + 1)
    text = f"{t}[{b},{places},{o}] convolution({t}[{b},{w},{i}], {t}[{window},{i},{o}])"
    return instruction(f"{text}, window={{size={window} pad=1_1}}, dim_labels=b0f_0io->b0f")


def grouped_convolution(
    t: str, b: int = 2, h: int = 4, w: int = 3, i: int = 2, o: int = 2
) -> Instruction:
    """Return a convolution over two dimensions in two groups of features."""
    result = f"{t}[{b},{max(0, h - 1)},{max(0, w - 1)},{2 * o}]"
    text = f"{result} convolution({t}[{b},{h},{w},{2 * i}], {t}[2,2,{i},{2 * o}])"
    labels = "dim_labels=b01f_01io->b01f, feature_group_count=2"
    return instruction(f"{text}, window={{size=2x2}}, {labels}")


def _spectrum(t: str, kind: str, sizes: tuple[int, ...], lengths: tuple[int, ...]) -> Instruction:
    """Return a spectrum along the last dimensions; of real ones half is kept."""
    real, compound = _REAL.get(t, t), _COMPLEX.get(t, t)
    last = sizes[-1]
    half = (*sizes[:-1], last // 2 + 1 if last else 0)
    operand = {"RFFT": (real, sizes), "IRFFT": (compound, half)}.get(kind, (compound, sizes))
    result = {"RFFT": (compound, half), "IRFFT": (real, sizes)}.get(kind, (compound, sizes))
    shapes = [f"{name}[{','.join(map(str, given))}]" for name, given in (result, operand)]
    attributes = f"fft_type={kind}, fft_length={{{','.join(map(str, lengths))}}}"
    return instruction(f"{shapes[0]} fft({shapes[1]} moderate), {attributes}")


def fft(t: str, kind: str = "FFT", m: int = 2, n: int = 6, k: int = 4) -> Instruction:
    """Return a spectrum over two dimensions."""
    return _spectrum(t, kind, (m, n, k), (n, k))


def fft_rows(t: str, kind: str = "FFT", m: int = 3, n: int = 5) -> Instruction:
    """Return a spectrum of each row; the length is odd."""
    return _spectrum(t, kind, (m, n), (n,))


def cholesky(t: str, lower: str = "true", b: int = 2, n: int = 3) -> Instruction:
    """Return factors of a batch of matrices."""
    a, style = f"{t}[{b},{n},{n}]", "definite" if n else "whole"
    return instruction(f"{a} cholesky({a} {style}), lower={lower}")


def triangular_solve(
    t: str, left: str = "true", transpose: str = "NO_TRANSPOSE", b: int = 2, n: int = 3, k: int = 2
) -> Instruction:
    """Return solutions of triangular systems."""
    sides = f"{t}[{b},{n},{k}]" if left == "true" else f"{t}[{b},{k},{n}]"
    matrix = f"{t}[{b},{n},{n}] {'triangular' if n else 'whole'}"
    return instruction(
        f"{sides} triangular-solve({matrix}, {sides}), left_side={left}, lower=true, "
        f"unit_diagonal=false, transpose_a={transpose}"
    )


def batch_norm(t: str, kind: str = "training", m: int = 4, n: int = 3, k: int = 2) -> Instruction:
    """Return one of the three batch norms."""
    whole, line = f"{t}[{m},{n},{k}] moderate", f"{t}[{n}] positive"
    operands = {
        "training": (whole, line, line),
        "inference": (whole, line, line, line, line),
        "grad": (whole, line, line, line, whole),
    }[kind]
    result = f"{t}[{m},{n},{k}]"
    if kind != "inference":
        result = f"({result}, {t}[{n}], {t}[{n}])"
    text = f"{result} batch-norm-{kind}({', '.join(operands)})"
    return instruction(f"{text}, epsilon=0.001, feature_index=1")


def rng(t: str, distribution: str = "rng_uniform", m: int = 2, n: int = 3) -> Instruction:
    """Return random values."""
    text = f"{t}[{m},{n}] rng({t}[] zeros, {t}[] ones), distribution={distribution}"
    return instruction(text, random=True)


def rng_bits(t: str, algorithm: str = "rng_default", words: str = "2", n: int = 5) -> Instruction:
    """Return random bits; states of odd sizes are the target's own affair."""
    text = f"(u64[{words}], {t}[{n}]) rng-bit-generator(u64[{words}]), algorithm={algorithm}"
    return instruction(text)


def rng_state(t: str, n: int = 2) -> Instruction:
    """Return the next state of a generator."""
    return instruction(f"{t}[{n}] rng-get-and-update-state(), delta=4096", random=True)


def computing_forms() -> Iterator[Form]:
    """Yield every form of this file."""
    plain = [name for name, op in OPS.items() if Trait.ELEMENTWISE in op.traits]
    kept = tuple(name for name in plain if name not in ("convert", "stochastic-convert"))
    yield from over(elementwise, opcode=kept)
    yield from over(convert, target=("pred", "s8", "u64", "s4", "f16", "f8e4m3fn", "f32", "c64"))
    bits = ("pred", "u8", "s16", "f32", "u64", "c64", "s4", "f4e2m1fn")
    yield from over(bitcast_convert, target=bits)
    yield from over(stochastic_convert, bits=("u8", "u16", "u32", "u64"))
    yield clamp_by_scalars
    yield from over(map_elements, opcode=("add", "shift-left", "maximum", "atan2"))
    for reduction in (reduce, reduce_all, reduce_window, running_total):
        yield from over(reduction, combiner=COMBINERS)
    yield from (reduce_pair, arg_maximum, empty_window, select_and_scatter)
    yield from over(sort, order=("less", "more", "equal"))
    yield from over(sort_pairs, order=("less", "more", "equal"))
    yield from over(sorted_top, direction=("LT", "GT", "EQ"))
    yield from over(topk, largest=("true", "false"))
    yield from over(scan, opcode=("add", "maximum"))
    yield from over(dot, target=("", "f32", "s32", "f64"))
    yield from (matrix_product, inner_product, outer_product, ragged_dot, scaled_dot)
    yield from (convolution, grouped_convolution)
    for spectrum in (fft, fft_rows):
        yield from over(spectrum, kind=("FFT", "IFFT", "RFFT", "IRFFT"))
    yield from over(cholesky, lower=("true", "false"))
    yield from over(triangular_solve, left=("true",), transpose=("NO_TRANSPOSE",))
    yield from over(triangular_solve, left=("false",), transpose=("ADJOINT",))
    yield from over(batch_norm, kind=("training", "inference", "grad"))
    yield from over(rng, distribution=("rng_uniform", "rng_normal"))
    algorithms = ("rng_default", "rng_three_fry", "rng_philox")
    yield from over(rng_bits, algorithm=algorithms, words=tuple("01234"))
    yield rng_state
