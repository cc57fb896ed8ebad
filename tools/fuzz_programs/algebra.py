"""Families of linear solves and batch norms."""

from math import prod

from hloipu_compiler.ir.shapes import TupleShape
from tools.fuzz_programs.adjusting import arithmetic, positive, tamed
from tools.fuzz_programs.builder import Body, Families
from tools.fuzz_programs.contractions import fitting
from tools.fuzz_programs.facts import AnyFacts, Facts, UntameError, rounded
from tools.fuzz_programs.values import Value, array_shape, braces


def solve(body: Body) -> Value:
    """Append a cholesky or a triangular-solve of a matrix whose diagonal dominates."""
    rng = body.rng
    name, n = rng.choice(("f32", "f64")), rng.choice((1, 2, 3, 4, 5))
    batch = rng.choice(([], [], [2], [3]))
    facts = Facts(-1, 1, 0, 2.0**-6)
    noise = body.fresh(name, [*batch, n, n], facts)
    rank = len(noise.sizes)
    order = [*range(rank - 2), rank - 1, rank - 2]
    flipped = body.same("transpose", noise.shape, noise, f"dimensions={braces(order)}")
    both = arithmetic(body, "add", noise, flipped)
    square = array_shape("s32", [n, n])
    index = Facts(0, n, 0, 1)
    rows, columns = (
        body.add("iota", square, [], lambda: index, f"iota_dimension={d}") for d in (0, 1)
    )
    same = body.add(
        "compare", array_shape("pred", [n, n]), [rows, columns], lambda *_: Facts(0, 1, 0, 1),
        "direction=EQ",
    )  # fmt: skip
    diagonal = body.add("convert", array_shape(name, [n, n]), [same], lambda f: f)
    diagonal = body.broadcast(diagonal, noise.sizes, list(range(rank - 2, rank)))
    matrix = arithmetic(
        body, "add", both,
        arithmetic(body, "multiply", diagonal, body.filled(name, noise.sizes, 4.0 * n)),
    )  # fmt: skip
    if rng.random() < 0.5:
        # Eigenvalues lie within [2n, 6n], so the condition is at most 3.
        lower = rng.random() < 0.6
        factor = body.add(
            "cholesky", matrix.shape, [matrix],
            lambda f: rounded(name, Facts(-3 * n, 3 * n, 1e-300), roundings=16 * n),
            f"lower={str(lower).lower()}",
        )  # fmt: skip
        # The other triangle is whatever the matrix had or zero: mask it.
        row, column = (rows, columns) if lower else (columns, rows)
        keep = body.add(
            "compare", array_shape("pred", [n, n]), [row, column], lambda *_: Facts(0, 1, 0, 1),
            "direction=GE",
        )  # fmt: skip
        keep = body.broadcast(keep, noise.sizes, list(range(rank - 2, rank)))
        zero = body.filled(name, noise.sizes, 0)
        return body.add("select", factor.shape, [keep, factor, zero], lambda p, f, g: f)
    left = rng.random() < 0.5
    sizes = [*batch, n, 2] if left else [*batch, 2, n]
    b = fitting(body, name, sizes)

    def transfer(f: Facts, g: Facts) -> Facts:
        # The inverse of a triangle whose diagonal is twice the rest of its row has norm < 1/n.
        bound = 2 * g.magnitude
        return rounded(name, Facts(-bound, bound, 2 * g.error), roundings=16 * n)

    attributes = (
        f"left_side={str(left).lower()}, lower={rng.choice(('true', 'false'))}, "
        f"unit_diagonal=false, transpose_a={rng.choice(('NO_TRANSPOSE', 'TRANSPOSE', 'ADJOINT'))}"
    )
    return body.add("triangular-solve", b.shape, [matrix, b], transfer, attributes)


def batch_norm(body: Body) -> Value:
    """Append a batch norm for inference, or for training."""
    rng = body.rng
    value = body.pick(lambda v: v.type in ("f32", "f64") and 2 <= len(v.sizes) <= 4)
    if 0 in value.sizes:
        raise UntameError
    value = tamed(body, value, 4)
    feature = rng.randrange(len(value.sizes))
    channels = [value.sizes[feature]]
    scale, offset = (fitting(body, value.type, channels) for _ in range(2))
    scale, offset = tamed(body, scale, 4), tamed(body, offset, 4)
    attributes = f"epsilon=0.25, feature_index={feature}"
    count = prod(value.sizes) // max(1, channels[0])
    name = value.type

    def normal(f: Facts, g: Facts, h: Facts) -> Facts:
        # 1/sqrt(var + 1/4) is at most 2; its derivative by the variance at most 4.
        reach = 2 * f.magnitude
        bound = 2 * reach * g.magnitude + h.magnitude
        drift = 4 * f.error + 4 * reach * (2 * reach * f.error)
        error = g.magnitude * drift + 2 * reach * g.error + h.error
        roundings = (16 + 2 * count) * 4 * max(1, reach)
        return rounded(name, Facts(-bound, bound, error), roundings=roundings)

    if rng.random() < 0.5:
        mean = fitting(body, name, channels)
        variance = positive(body, fitting(body, name, channels))
        mean, variance = tamed(body, mean, 4), tamed(body, variance, 4)

        def inference(f: Facts, g: Facts, h: Facts, m: Facts, v: Facts) -> Facts:
            reach = f.magnitude + m.magnitude
            bound = 2 * reach * g.magnitude + h.magnitude
            drift = 2 * (f.error + m.error) + 4 * reach * v.error
            error = g.magnitude * drift + 2 * reach * g.error + h.error
            if v.low - v.error < 0:
                raise UntameError
            return rounded(name, Facts(-bound, bound, error), roundings=24)

        operands = [value, scale, offset, mean, variance]
        return body.add("batch-norm-inference", value.shape, operands, inference, attributes)

    def training(f: Facts, g: Facts, h: Facts) -> AnyFacts:
        reach = f.magnitude
        mean = rounded(name, Facts(f.low, f.high, f.error), roundings=4 + count)
        square = 4 * reach * reach
        spread = Facts(0, square, 4 * reach * f.error)
        return (normal(f, g, h), mean, rounded(name, spread, roundings=8 + 2 * count))

    vector = array_shape(name, channels)
    shape = TupleShape((value.shape, vector, vector))
    results = body.add("batch-norm-training", shape, [value, scale, offset], training, attributes)
    return body.elements(results)[0]


FAMILIES: Families = {solve: 1, batch_norm: 1}
"""Family -> weight."""
