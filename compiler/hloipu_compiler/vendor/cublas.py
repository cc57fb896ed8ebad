"""Matrix products of cuBLAS and cuBLASLt, as XLA:GPU calls them; triangular solves.

Operands and configuration: openxla/xla: xla/service/gpu/backend_configs.proto (GemmBackendConfig),
xla/service/gpu/thunk_emitter.cc (EmitGemmThunk, EmitCublasLtMatmulThunk,
EmitCublasLtMatmulThunkF8). A product is epilogue(alpha a b + beta c + bias); of 8-bit floats it is
times both scales before, and times the result's scale afterwards, with the largest absolute value
taken in between (NVIDIA cuBLAS documentation: cublasLtMatmul, 8-bit floating point). GELU is its
form by tanh there.
"""

import math
from collections.abc import Sequence

from hloipu_compiler.formulas import activations
from hloipu_compiler.formulas.call import Call, formula
from hloipu_compiler.formulas.text import Value

_F8 = ("f8e4m3fn", "f8e5m2", "f8e4m3fnuz", "f8e5m2fnuz")
_LARGEST = {"f8e4m3fn": 448.0, "f8e5m2": 57344.0, "f8e4m3fnuz": 240.0, "f8e5m2fnuz": 57344.0}
_EPILOGUES = ("", "RELU", "GELU", "SILU")
_SUMS = {"s8": "s32", "f16": "f32", "bf16": "f32"} | dict.fromkeys(_F8, "f32")
"""Element types of operands and those that sums have; others are their own."""
_SIDES = ("lhs_contracting", "rhs_contracting", "lhs_batch", "rhs_batch")


def _epilogue(settings: Call) -> tuple[bool, str, bool]:
    """Return whether there is a bias, the activation, and whether what goes into it is kept."""
    text = str(settings.attributes.get("epilogue", "DEFAULT"))
    name = "" if text == "DEFAULT" else text
    has_bias = name == "BIAS" or name.startswith("BIAS_")
    name = name.removeprefix("BIAS").removeprefix("_")
    is_kept = name.endswith("_AUX")
    name = name.removesuffix("_AUX")
    if name not in _EPILOGUES:
        raise settings.unsupported(
            f"its epilogue is {text[:40]!r}", "print the module before its products are rewritten"
        )
    return has_bias, name, is_kept


def _activated(name: str, x: Value) -> Value:
    if name == "RELU":
        return activations.relu(x)
    if name == "GELU":
        return activations.gelu_by_tanh(x)
    return activations.swish(x) if name == "SILU" else x


def product_of(settings: Call, a: Value, b: Value, kind: str) -> Value:
    """Return the product that dot_dimension_numbers say, its elements of a type."""
    numbers = settings.section("dot_dimension_numbers")
    dimensions = []
    for side in _SIDES:
        key = f"{side}_dimensions"
        dimensions.append(tuple(numbers.integers(key)) if numbers.has(key) else ())
    contracting, batch = (dimensions[0], dimensions[1]), (dimensions[2], dimensions[3])
    for operand, used in (
        (a, (*dimensions[0], *dimensions[2])),
        (b, (*dimensions[1], *dimensions[3])),
    ):
        fits = len(set(used)) == len(used) and all(0 <= d < operand.rank for d in used)
        settings.need(fits, f"its dimensions {used} are none of {operand.dims}")
    for lhs_dims, rhs_dims in (contracting, batch):
        alike = [a.dims[d] for d in lhs_dims] == [b.dims[d] for d in rhs_dims]
        settings.need(alike, "its operands differ in size where they meet")
    return a.dot(b, contracting, batch, kind)


def _scaled(x: Value, factor: float) -> Value:
    return x if factor == 1 else x * factor


def _settings(call: Call) -> Call:
    """Return the call with the configuration of its product: older versions have it alone."""
    key = "gemm_backend_config"
    settings = call.section(key) if call.has(key) else call
    if settings.number("alpha_imag", 0) != 0:
        raise call.unsupported("its factor alpha is complex", "write the product out in HLO")
    return settings


@formula("__cublas$gemm")
def _gemm(call: Call) -> Sequence[Value]:
    """Return alpha a b + beta c, and a workspace where the call has one."""
    settings = _settings(call)
    beta = settings.number("beta", 0)
    a, b, *optional = call.takes(3 if beta else 2)
    has_bias, name, _ = _epilogue(settings)
    call.need(not has_bias and not name, "a product of cuBLAS has no epilogue")
    product = _matrix(settings, a, b, optional[0] if beta else None, call.results[0][0])
    return [product, *call.workspaces(1)]


def _matrix(settings: Call, a: Value, b: Value, c: Value | None, kind: str) -> Value:
    """Return alpha a b + beta c in a type; sums are wider than narrow operands."""
    alpha, beta = settings.number("alpha_real"), settings.number("beta", 0)
    if alpha == 1 and c is None:
        return product_of(settings, a, b, kind)
    return _summed(
        settings, product_of(settings, a, b, _SUMS.get(a.kind, a.kind)), c, alpha, beta
    ).converted(kind)


def _summed(settings: Call, product: Value, c: Value | None, alpha: float, beta: float) -> Value:
    if product.kind[0] == "s":
        stays_integer = float(alpha).is_integer() and float(beta).is_integer()
        product = product if stays_integer else product.converted("f32")
    scaled = _scaled(product, alpha)
    if c is None:
        return scaled
    settings.need(c.dims == scaled.dims, f"its third operand is no {scaled.dims}")
    return scaled + _scaled(c.converted(scaled.kind), beta)


@formula("__cublas$lt$matmul")
def _lt(call: Call) -> Sequence[Value]:
    """Return a product, what went into its activation if it is kept, and a workspace."""
    settings = _settings(call)
    beta = settings.number("beta", 0)
    has_bias, name, is_kept = _epilogue(settings)
    a, b, *optional = call.takes(2 + (beta != 0) + has_bias)
    kind = call.results[0][0]
    c = optional.pop(0) if beta else None
    if not has_bias and not name:
        return [_matrix(settings, a, b, c, kind), *call.workspaces(1)]
    wide = _SUMS.get(a.kind, a.kind)
    total = _summed(
        settings, product_of(settings, a, b, wide), c, settings.number("alpha_real"), beta
    )
    if has_bias:
        total = _with_bias(call, total, optional[0])
    results = [_activated(name, total).converted(kind)]
    if is_kept:
        call.need(
            len(call.results) > 1, "it keeps its pre-activation, and declares no result for it"
        )
        results.append(total.converted(call.results[1][0]))
    return [*results, *call.workspaces(len(results))]


def _with_bias(call: Call, x: Value, bias: Value) -> Value:
    """Return a matrix with a number of each column, or place of its last dimensions, added."""
    along = tuple(range(x.rank - bias.rank, x.rank))
    fits = 0 < bias.rank <= x.rank and bias.dims == tuple(x.dims[d] for d in along)
    call.need(fits, f"its bias {bias.dims} does not go with {x.dims}")
    return x + bias.converted(x.kind).broadcast(x.dims, along)


@formula("__cublas$lt$matmul$f8")
def _lt_f8(call: Call) -> Sequence[Value]:
    """Return a product of 8-bit floats with their scales, its largest value, a workspace."""
    settings = _settings(call)
    beta = settings.number("beta", 0)
    has_bias, name, is_kept = _epilogue(settings)
    call.need(not is_kept, "what goes into its activation is not kept for 8-bit floats")
    kind = call.results[0][0]
    is_narrow = kind in _F8
    # Later versions give the result's scale where it has one; earlier ones both c's and its.
    later, earlier = 4 + (beta != 0) + has_bias + is_narrow, 6 + (beta != 0) + has_bias
    a, b, *optional = call.takes(later, earlier)
    call.need(a.kind in _F8 and b.kind in _F8, f"its operands are {a.kind} and {b.kind}")
    c = optional.pop(0) if beta else None
    if c is not None and c.kind in _F8:
        raise call.unsupported("its third operand is of 8 bits", "convert that one before")
    scale_a, scale_b = (_scalar(call, optional.pop(0)) for _ in range(2))
    out: Value | None = None
    if len(call.operands) == earlier:
        out = optional[1] if is_narrow else None
        optional = optional[2:]
    elif is_narrow:
        out = optional.pop()
    product = product_of(settings, a.converted("f16"), b.converted("f16"), "f32")
    product = product * (scale_a * scale_b)
    product = _summed(settings, product, c, settings.number("alpha_real"), beta)
    if has_bias:
        product = _with_bias(call, product, optional[0])
    product = _activated(name, product)
    results = [_rounded(product if out is None else product * _scalar(call, out), kind)]
    if settings.flag("damax_output", default=False):
        call.need(len(call.results) > 1, "it gives its largest value, and does not say")
        most = product.unary("abs").reduced("maximum", range(product.rank), 0)
        results.append(most.converted(call.results[1][0]).reshaped(call.results[1][1]))
    return [*results, *call.workspaces(len(results))]


def _scalar(call: Call, x: Value) -> Value:
    call.need(math.prod(x.dims) == 1, "a scale is one number")
    return x.reshaped(()).converted("f32")


def _rounded(x: Value, kind: str) -> Value:
    """Return f32 in another type; beyond the largest number of 8 bits it is that one."""
    if kind in _LARGEST:
        most = _LARGEST[kind]
        x = x.binary("minimum", most).binary("maximum", -most)
    return x.converted(kind)


@formula("__cublas$triangularSolve")
def _triangular_solve(call: Call) -> Sequence[Value]:
    a, b = call.takes(2)
    left, lower = call.flag("left_side", default=False), call.flag("lower", default=False)
    unit = call.flag("unit_diagonal", default=False)
    turned = call.word("transpose_a", "NO_TRANSPOSE", "TRANSPOSE", "ADJOINT")
    attributes = ", ".join(
        [f"{key}={str(is_so).lower()}" for key, is_so in
         (("left_side", left), ("lower", lower), ("unit_diagonal", unit))]
        + [f"transpose_a={turned}"]
    )  # fmt: skip
    solution = call.text.add("triangular-solve", b.kind, b.dims, f"{a.name}, {b.name}", attributes)
    return [solution, *call.workspaces(1)]
