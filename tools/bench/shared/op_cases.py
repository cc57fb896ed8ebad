"""One-op modules of each family at three sizes: what the ratio of kernels is measured on."""

from collections.abc import Iterator
from dataclasses import dataclass

SIZES = {"small": 1 << 10, "cached": 1 << 17, "large": 1 << 22}
"""Elements of the largest operand, about: call overhead, second-level cache, memory."""

ADD = "add { a = {t}[] parameter(0) b = {t}[] parameter(1) ROOT r = {t}[] add(a, b) }"
MAXIMUM = "maximum { a = {t}[] parameter(0) b = {t}[] parameter(1) ROOT r = {t}[] maximum(a, b) }"
LESS = "less { a = f32[] parameter(0) b = f32[] parameter(1) ROOT r = pred[] compare(a, b), direction=LT }"  # noqa: E501
LESS_PAIR = """less {
  a = f32[] parameter(0) b = f32[] parameter(1) i = s32[] parameter(2) j = s32[] parameter(3)
  ROOT r = pred[] compare(a, b), direction=LT
}"""
BY_SIZE_THEN_VALUE = """by_size {
  a = f32[] parameter(0) b = f32[] parameter(1)
  s = f32[] abs(a) t = f32[] abs(b)
  nearer = pred[] compare(s, t), direction=LT
  equal = pred[] compare(s, t), direction=EQ
  below = pred[] compare(a, b), direction=LT
  ROOT r = pred[] select(equal, below, nearer)
}"""
NEGATIVE_DIFFERENCE = """negative {
  a = f32[] parameter(0) b = f32[] parameter(1)
  d = f32[] subtract(a, b) z = f32[] constant(0)
  ROOT r = pred[] compare(d, z), direction=LT
}"""
ARGMAX = """argmax {
  a = f32[] parameter(0) i = s32[] parameter(1) b = f32[] parameter(2) j = s32[] parameter(3)
  gt = pred[] compare(a, b), direction=GT
  ne = pred[] compare(a, a), direction=NE
  better = pred[] or(gt, ne)
  eq = pred[] compare(a, b), direction=EQ
  lt = pred[] compare(i, j), direction=LT
  tie = pred[] and(eq, lt)
  first = pred[] or(better, tie)
  v = f32[] select(better, a, b)
  k = s32[] select(first, i, j)
  ROOT r = (f32[], s32[]) tuple(v, k)
}"""


@dataclass(frozen=True, slots=True)
class Case:
    """One module to time on both sides."""

    family: str
    name: str
    size: str
    text: str
    scale: float = 1.0
    """Float arguments of rank 2 and more, which are drawn from -1..1, are multiplied by this."""


def module(body: str, *parameters: str, region: str = "", element_type: str = "f32") -> str:
    """Return a module whose entry takes `parameters` (shapes) as p0, p1, … and ends in `body`."""
    lines = [f"  p{i} = {shape} parameter({i})" for i, shape in enumerate(parameters)]
    called = region.replace("{t}", element_type)
    return "\n".join(["HloModule m", "", called, "ENTRY main {", *lines, f"  {body}", "}", ""])


def op_cases() -> Iterator[Case]:
    """Yield every case, family by family."""
    for family, make in FAMILIES.items():
        for size, elements in SIZES.items():
            for name, text in make(elements):
                yield Case(family, name, size, text)


Named = Iterator[tuple[str, str]]


def _maps(opcode: str, operands: int, types: str, n: int) -> Named:
    for t in types.split():
        names = ", ".join(f"p{i}" for i in range(operands))
        yield (
            f"{opcode} {t}",
            module(f"ROOT r = {t}[{n}] {opcode}({names})", *[f"{t}[{n}]"] * operands),
        )


def _cheap(n: int) -> Named:
    yield from _maps("add", 2, "f32 bf16 f16 s32 s8", n)
    yield from _maps("multiply", 2, "f32 bf16", n)
    yield from _maps("divide", 2, "f32 bf16 f16 s32", n)
    yield from _maps("maximum", 2, "f32 bf16 s32", n)
    yield from _maps("negate", 1, "f32 f16", n)
    yield from _maps("floor", 1, "f32", n)


def _bits(n: int) -> Named:
    yield from _maps("shift-right-logical", 2, "u32", n)
    yield from _maps("xor", 2, "s32", n)
    yield from _maps("popcnt", 1, "s32", n)
    yield from _maps("count-leading-zeros", 1, "s32 s8", n)


def _transcendental(n: int) -> Named:
    yield from _maps("exponential", 1, "f32 bf16 f16", n)
    yield from _maps("tanh", 1, "f32 bf16 f16", n)
    yield from _maps("log", 1, "f32", n)
    yield from _maps("logistic", 1, "f32 bf16", n)
    yield from _maps("erf", 1, "f32 f16", n)
    yield from _maps("sine", 1, "f32", n)
    yield from _maps("rsqrt", 1, "f32", n)
    yield from _maps("power", 2, "f32", n)


def _compare(n: int) -> Named:
    for t in ("f32", "bf16", "s32"):
        body = f"ROOT r = pred[{n}] compare(p0, p1), direction=LT"
        yield f"compare {t}", module(body, *[f"{t}[{n}]"] * 2)
    for t in ("f32", "s8"):
        body = f"ROOT r = {t}[{n}] select(p0, p1, p2)"
        yield f"select {t}", module(body, f"pred[{n}]", f"{t}[{n}]", f"{t}[{n}]")
    body = f"ROOT r = f32[{n}] clamp(p0, p1, p2)"
    yield "clamp f32", module(body, "f32[]", f"f32[{n}]", "f32[]")


def _convert(n: int) -> Named:
    for pair in ("f32 bf16", "bf16 f32", "f32 f16", "f32 s32", "s32 f32", "s8 f32",
                 "f32 f8e4m3fn", "s32 s8", "pred f32"):  # fmt: skip
        source, target = pair.split()
        yield (
            f"convert {source} {target}",
            module(f"ROOT r = {target}[{n}] convert(p0)", f"{source}[{n}]"),
        )


def _rows(n: int) -> tuple[int, int]:
    """Return (rows, columns) of a matrix of `n` elements, wide by two or square."""
    bits = n.bit_length() - 1
    return 1 << bits // 2, 1 << (bits - bits // 2)


def _reduce(n: int) -> Named:
    r, c = _rows(n)
    for name, t, kept, dimensions, how in (
        ("rows add", "f32", r, "1", ADD), ("columns add", "f32", c, "0", ADD),
        ("rows maximum", "f32", r, "1", MAXIMUM), ("columns maximum", "f32", c, "0", MAXIMUM),
        ("rows add", "bf16", r, "1", ADD), ("rows add", "s32", r, "1", ADD),
        ("all add", "f32", "", "0,1", ADD),
    ):  # fmt: skip
        region = how.split()[0]
        start = "-inf" if how is MAXIMUM else "0"
        body = (
            f"z = {t}[] constant({start})\n  "
            f"ROOT r = {t}[{kept}] reduce(p0, z), dimensions={{{dimensions}}}, to_apply={region}"
        )
        yield f"{name} {t}", module(body, f"{t}[{r},{c}]", region=how, element_type=t)
    body = (
        f"i = s32[{r},{c}] iota(), iota_dimension=1\n  low = f32[] constant(-inf)\n  "
        "zero = s32[] constant(0)\n  "
        f"ROOT r = (f32[{r}], s32[{r}]) reduce(p0, i, low, zero), dimensions={{1}}, to_apply=argmax"
    )
    yield "rows argmax f32", module(body, f"f32[{r},{c}]", region=ARGMAX)


def _windows(n: int) -> Named:
    batch, side, features = {1 << 10: (1, 8, 16), 1 << 17: (2, 32, 64)}.get(n, (16, 64, 64))
    shape, pooled = f"f32[{batch},{side},{side},{features}]", side // 2
    result = f"f32[{batch},{pooled},{pooled},{features}]"
    window = "window={size=1x3x3x1 stride=1x2x2x1 pad=0_0x0_1x0_1x0_0}"
    for name, how, start in (("max pool", MAXIMUM, "-inf"), ("sum pool", ADD, "0")):
        body = (
            f"z = f32[] constant({start})\n  "
            f"ROOT r = {result} reduce-window(p0, z), {window}, to_apply={how.split()[0]}"
        )
        yield f"{name} 3x3/2", module(body, shape, region=how)
    r, c = _rows(n)
    body = (
        "z = f32[] constant(0)\n  "
        f"ROOT r = f32[{r},{c}] reduce-window(p0, z), "
        f"window={{size=1x{c} pad=0_0x{c - 1}_0}}, to_apply=add"
    )
    yield "cumsum rows", module(body, f"f32[{r},{c}]", region=ADD)


def _sort(n: int) -> Named:
    n = min(n, 1 << 20)  # XLA takes seconds for more
    r, c = _rows(n)
    yield (
        "1-D f32",
        module(f"ROOT r = f32[{n}] sort(p0), dimensions={{0}}, to_apply=less", f"f32[{n}]",
               region=LESS),
    )  # fmt: skip
    body = f"ROOT r = f32[{r},{c}] sort(p0), dimensions={{1}}, to_apply=less"
    yield "rows f32", module(body, f"f32[{r},{c}]", region=LESS)
    body = (
        f"i = s32[{r},{c}] iota(), iota_dimension=1\n  "
        f"ROOT r = (f32[{r},{c}], s32[{r},{c}]) sort(p0, i), dimensions={{1}}, is_stable=true, "
        "to_apply=less"
    )
    yield "argsort rows", module(body, f"f32[{r},{c}]", region=LESS_PAIR)
    body = f"ROOT r = f32[{n}] sort(p0), dimensions={{0}}, to_apply=by_size"
    yield "two derived keys", module(body, f"f32[{n}]", region=BY_SIZE_THEN_VALUE)
    body = f"ROOT r = f32[{n}] sort(p0), dimensions={{0}}, to_apply=negative"
    yield "general comparator", module(body, f"f32[{n}]", region=NEGATIVE_DIFFERENCE)


def _topk(n: int) -> Named:
    r, c = _rows(n)
    for k in (1, 8):
        body = f"ROOT r = (f32[{r},{k}], s32[{r},{k}]) topk(p0), k={k}, largest=true"
        yield f"{k} of rows", module(body, f"f32[{r},{c}]")


def _gather(n: int) -> Named:
    width = 64
    rows = n // width
    body = (
        f"ROOT r = f32[{rows},{width}] gather(p0, p1), offset_dims={{1}}, "
        "collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=1, "
        f"slice_sizes={{1,{width}}}"
    )
    yield "rows of 64", module(body, f"f32[{rows},{width}]", f"s32[{rows},1]")
    count = n // 4
    body = (
        f"ROOT r = f32[{count}] gather(p0, p1), offset_dims={{}}, collapsed_slice_dims={{0}}, "
        "start_index_map={0}, index_vector_dim=1, slice_sizes={1}"
    )
    yield "elements", module(body, f"f32[{n}]", f"s32[{count},1]")


def _scatter(n: int) -> Named:
    width = 64
    rows = n // width
    body = (
        f"ROOT r = f32[{rows},{width}] scatter(p0, p1, p2), update_window_dims={{1}}, "
        "inserted_window_dims={0}, scatter_dims_to_operand_dims={0}, index_vector_dim=1, "
        "to_apply=add"
    )
    shapes = (f"f32[{rows},{width}]", f"s32[{rows},1]", f"f32[{rows},{width}]")
    yield "add rows of 64", module(body, *shapes, region=ADD)
    count = n // 4
    body = (
        f"ROOT r = f32[{n}] scatter(p0, p1, p2), update_window_dims={{}}, "
        "inserted_window_dims={0}, scatter_dims_to_operand_dims={0}, index_vector_dim=1, "
        "to_apply=add"
    )
    shapes = (f"f32[{n}]", f"s32[{count},1]", f"f32[{count}]")
    yield "add elements", module(body, *shapes, region=ADD)


def _dynamic(n: int) -> Named:
    r, c = _rows(n)
    body = (
        f"ROOT r = f32[{r // 2},{c}] dynamic-slice(p0, p1, p2), "
        f"dynamic_slice_sizes={{{r // 2},{c}}}"
    )
    yield "dynamic-slice", module(body, f"f32[{r},{c}]", "s32[]", "s32[]")
    body = f"ROOT r = f32[{r},{c}] dynamic-update-slice(p0, p1, p2, p3)"
    shapes = (f"f32[{r},{c}]", f"f32[{r // 4},{c // 2}]", "s32[]", "s32[]")
    yield "dynamic-update-slice", module(body, *shapes)


def _movement(n: int) -> Named:
    r, c = _rows(n)
    for t in ("f32", "bf16"):
        body = f"ROOT r = {t}[{c},{r}] transpose(p0), dimensions={{1,0}}"
        yield f"transpose 2-D {t}", module(body, f"{t}[{r},{c}]")
    a, b, h, w = (2, 4, 8, 16) if n == 1 << 10 else (4, n >> 12, 16, 64)
    body = f"ROOT r = f32[{a},{h},{b},{w}] transpose(p0), dimensions={{0,2,1,3}}"
    yield "transpose 0213 f32", module(body, f"f32[{a},{b},{h},{w}]")
    body = f"ROOT r = f32[{r},{c}] concatenate(p0, p1), dimensions={{1}}"
    yield "concatenate f32", module(body, f"f32[{r},{c // 2}]", f"f32[{r},{c // 2}]")
    body = f"z = f32[] constant(0)\n  ROOT r = f32[{r + 2},{c + 2}] pad(p0, z), padding=1_1x1_1"
    yield "pad f32", module(body, f"f32[{r},{c}]")
    body = f"z = f32[] constant(0)\n  ROOT r = f32[{r},{2 * c - 1}] pad(p0, z), padding=0_0x0_0_1"
    yield "pad interior f32", module(body, f"f32[{r},{c}]")
    body = f"ROOT r = f32[{r},{c}] reverse(p0), dimensions={{1}}"
    yield "reverse f32", module(body, f"f32[{r},{c}]")
    body = f"ROOT r = f32[{r},{c}] broadcast(p0), dimensions={{0}}"
    yield "broadcast f32", module(body, f"f32[{r}]")


def _dot(n: int) -> Named:
    side = {1 << 10: 32, 1 << 17: 256}.get(n, 1024)
    plain = "lhs_contracting_dims={1}, rhs_contracting_dims={0}"
    square = f"[{side},{side}]"
    for t, result in (("f32", "f32"), ("bf16", "bf16"), ("bf16", "f32"), ("s8", "s32")):
        body = f"ROOT r = {result}{square} dot(p0, p1), {plain}"
        yield f"square {t} {result}", module(body, t + square, t + square)
    r, c = _rows(n)
    body = f"ROOT r = f32[{r}] dot(p0, p1), {plain}"
    yield "matrix vector f32", module(body, f"f32[{r},{c}]", f"f32[{c}]")
    heads, length = {1 << 10: (2, 16), 1 << 17: (8, 128)}.get(n, (32, 512))
    batched = "lhs_batch_dims={0}, rhs_batch_dims={0}, lhs_contracting_dims={2}, "
    shape = f"f32[{heads},{length},64]"
    body = (
        f"ROOT r = f32[{heads},{length},{length}] dot(p0, p1), {batched}rhs_contracting_dims={{2}}"
    )
    yield "batched q k^T f32", module(body, shape, shape)


def _convolution(n: int) -> Named:
    b, s, f = {1 << 10: (1, 8, 16), 1 << 17: (2, 32, 64)}.get(n, (8, 64, 128))
    data, labels = f"f32[{b},{s},{s},{f}]", "dim_labels=b01f_01io->b01f"
    window = "window={size=3x3 pad=1_1x1_1}"
    body = f"ROOT r = {data} convolution(p0, p1), {window}, {labels}"
    yield "3x3", module(body, data, f"f32[3,3,{f},{f}]")
    body = f"ROOT r = {data} convolution(p0, p1), window={{size=1x1}}, {labels}"
    yield "1x1", module(body, data, f"f32[1,1,{f},{f}]")
    body = f"ROOT r = {data} convolution(p0, p1), {window}, {labels}, feature_group_count={f}"
    yield "depthwise 3x3", module(body, data, f"f32[3,3,1,{f}]")
    body = (
        f"ROOT r = f32[3,3,{f},{f}] convolution(p0, p1), "
        f"window={{size={s}x{s} pad=1_1x1_1}}, dim_labels=f01b_i01o->01bf"
    )
    yield "weight gradient 3x3", module(body, data, data)
    half = f"f32[{b},{s // 2},{s // 2},{f}]"
    strided = "window={size=3x3 stride=2x2 pad=0_1x0_1}"
    body = f"ROOT r = {half} convolution(p0, p1), {strided}, {labels}"
    yield "3x3 stride 2", module(body, data, f"f32[3,3,{f},{f}]")


def _fft(n: int) -> Named:
    length = min(n // 2, 1024)
    rows = n // 2 // length
    body = f"ROOT r = c64[{rows},{length}] fft(p0), fft_type=FFT, fft_length={{{length}}}"
    yield "c64 rows", module(body, f"c64[{rows},{length}]")
    result = f"c64[{2 * rows},{length // 2 + 1}]"
    body = f"ROOT r = {result} fft(p0), fft_type=RFFT, fft_length={{{length}}}"
    yield "real rows", module(body, f"f32[{2 * rows},{length}]")


def _linear_algebra(n: int) -> Named:
    side = {1 << 10: 32, 1 << 17: 256}.get(n, 1024)
    matrix = f"f32[{side},{side}]"
    yield "cholesky", module(f"ROOT r = {matrix} cholesky(p0), lower=true", matrix)
    body = (
        f"ROOT r = {matrix} triangular-solve(p0, p1), left_side=true, lower=true, "
        "unit_diagonal=false, transpose_a=NO_TRANSPOSE"
    )
    yield "triangular-solve", module(body, matrix, matrix)


def _random(n: int) -> Named:
    for algorithm, words in (("rng_three_fry", 2), ("rng_philox", 3)):
        body = f"ROOT r = (u64[{words}], u32[{n}]) rng-bit-generator(p0), algorithm={algorithm}"
        yield algorithm.removeprefix("rng_"), module(body, f"u64[{words}]")


def _batch_norm(n: int) -> Named:
    b, s, f = {1 << 10: (1, 8, 16), 1 << 17: (2, 32, 64)}.get(n, (16, 64, 64))
    data, feature = f"f32[{b},{s},{s},{f}]", f"f32[{f}]"
    rest = "epsilon=0.001, feature_index=3"
    body = f"ROOT r = ({data}, {feature}, {feature}) batch-norm-training(p0, p1, p2), {rest}"
    yield "training", module(body, data, feature, feature)
    body = f"ROOT r = {data} batch-norm-inference(p0, p1, p2, p3, p4), {rest}"
    yield "inference", module(body, data, *[feature] * 4)
    body = f"ROOT r = ({data}, {feature}, {feature}) batch-norm-grad(p0, p1, p2, p3, p4), {rest}"
    yield "gradient", module(body, data, *[feature] * 3, data)


FAMILIES = {
    "elementwise": _cheap, "bits": _bits, "transcendental": _transcendental,
    "compare/select": _compare, "convert": _convert, "reduce": _reduce, "reduce-window": _windows,
    "sort": _sort, "topk": _topk, "gather": _gather, "scatter": _scatter, "dynamic": _dynamic,
    "movement": _movement, "dot": _dot, "convolution": _convolution, "fft": _fft,
    "linear algebra": _linear_algebra, "random": _random, "batch-norm": _batch_norm,
}  # fmt: skip
"""Family -> its one-op modules for a number of elements, with names."""
