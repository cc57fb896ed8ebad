"""Row regions: normalisations, softmax, sums beside element-wise work, and values for them."""

from collections.abc import Callable
from math import prod

import numpy as np

from hloipu_runtime.codelets.core.expression_form import Expression, Node
from hloipu_runtime.codelets.core.tensors import Block
from hloipu_runtime.codelets.ops.row_region import RowRegion
from hloipu_runtime.element_types import GRIDS
from hloipu_runtime.kernels.core.rounding import round_to
from tests.support.native_cases import Array, some_values


def expression(kind: str, operands: int, results: tuple[int, ...], text: str = "") -> Expression:
    """Return an expression of nodes such as `multiply 0 1` or a constant's `=0x1p-9`."""
    nodes = []
    for words in map(str.split, filter(None, text.split(", "))):
        if words[0][0] == "=":
            nodes.append(Node("constant", (), kind, (("value", words[0][1:]),)))
        else:
            nodes.append(Node(words[0], tuple(map(int, words[1:])), kind))
    return Expression((kind,) * operands, tuple(nodes), results)


def layer_norm(kind: str) -> RowRegion:
    """Return a layer norm of 512 columns, whatever their number."""
    ending = (
        "=0x1p-9, multiply 1 4, =0x1p-10, add 5 6, rsqrt 7, multiply 0 8, multiply 9 2, add 10 3"
    )
    return RowRegion(
        labels=((0, 1), (1,), (1,)),
        rank=2,
        dimensions=(1,),
        operand_types=(kind,) * 3,
        expressions=(
            expression(kind, 1, (0,)),
            expression(kind, 2, (4,), "=0x1p-9, multiply 1 2, subtract 0 3"),
            expression(kind, 1, (1,), "multiply 0 0"),
            expression(kind, 4, (11,), ending),
        ),
        sources=((0,), (0, 4), (5,), (5, 7, 1, 2)),
        reductions=((0, 3, "add", "-0x0p+0"), (2, 6, "add", "0x0p+0")),
        results=(8,),
    )


def softmax(kind: str, *, log: bool = False) -> RowRegion:
    """Return a softmax, or its logarithm."""
    return RowRegion(
        labels=((0, 1),),
        rank=2,
        dimensions=(1,),
        operand_types=(kind,),
        expressions=(
            expression(kind, 1, (0,)),
            expression(kind, 2, (2, 3), "subtract 0 1, exponential 2"),
            expression(kind, 2, (3,), "log 1, subtract 0 2")
            if log
            else expression(kind, 2, (2,), "divide 0 1"),
        ),
        sources=((0,), (0, 2), (3, 5) if log else (4, 5)),
        reductions=((0, 1, "maximum", "-inf"), (1, 4, "add", "0x0p+0")),
        results=(6,),
    )


def gradient(kind: str) -> RowRegion:
    """Return reductions beside element-wise work; one reads an operand behind the first result."""
    return RowRegion(
        labels=((0, 1), (0, 1), (0,)),
        rank=2,
        dimensions=(1,),
        operand_types=(kind,) * 3,
        expressions=(
            expression(kind, 3, (3, 4), "multiply 0 1, subtract 3 2"),
            expression(kind, 4, (5,), "multiply 1 2, subtract 0 4"),
        ),
        sources=((0, 1, 2), (3, 3, 5, 6)),
        reductions=(
            (0, 1, "add", "-0x0p+0"),
            (0, 0, "maximum", "-inf"),
            (0, 4, "minimum", "inf"),
        ),
        results=(4, 8, 5, 6, 7),
    )


PATTERNS: dict[str, Callable[[str], RowRegion]] = {
    "layer norm": layer_norm,
    "softmax": softmax,
    "log-softmax": lambda kind: softmax(kind, log=True),
    "gradient": gradient,
}


def blocks_of(region: RowRegion, sizes: tuple[int, ...]) -> tuple[list[Block], list[Block]]:
    """Return a region's operands and results where its space has some sizes."""
    kept = tuple(n for d, n in enumerate(sizes) if d not in region.dimensions)
    parts = [tuple(sizes[d] for d in labels) for labels in region.labels]
    made = [sizes if region.is_full(x) else kept for x in region.results]
    blocks = [Block(np.zeros(x, np.float32), (), x, (0,) * len(x), x) for x in (*parts, *made)]
    return blocks[: len(parts)], blocks[len(parts) :]


def values_of(kind: str, sizes: tuple[int, ...], generator: np.random.Generator) -> Array:
    """Return rows of usual numbers, and some of any."""
    usual = generator.standard_normal(sizes).astype(np.float32)
    usual = round_to(usual, kind) if kind in GRIDS else usual
    some = some_values(kind, prod(sizes), generator).reshape(sizes)
    which = generator.random((*sizes[:-1], 1))
    return np.where(which < 0.5, usual, np.where(which < 0.9, some, np.float32(-0.0)))
