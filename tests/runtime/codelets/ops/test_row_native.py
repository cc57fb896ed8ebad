"""Row regions by compiled kernels have the bits that numpy gives."""

from collections.abc import Callable
from contextlib import nullcontext
from math import prod
from typing import Any

import numpy as np
import pytest

from hloipu_runtime.codelets.core.codelet import Block
from hloipu_runtime.codelets.core.expression_form import Expression, Node
from hloipu_runtime.codelets.ops import row_native
from hloipu_runtime.codelets.ops.row_region import RowRegion
from hloipu_runtime.element_types import GRIDS
from hloipu_runtime.kernels.computing import computing
from hloipu_runtime.kernels.core.rounding import round_to
from hloipu_runtime.kernels.native.settings import Settings, is_there, native_kernels
from tests.support.native_cases import Array, differences, some_values

pytestmark = pytest.mark.skipif(not is_there(), reason="llvmlite is not installed")

SIZES = ((600, 33), (130, 127), (130, 128), (17, 1000), (5, 4097), (1, 70_000))
TYPES = ("f32", "bf16", "f16")


def _expression(kind: str, operands: int, results: tuple[int, ...], text: str = "") -> Expression:
    """Return an expression of nodes such as `multiply 0 1` or a constant's `=0x1p-9`."""
    nodes = []
    for words in map(str.split, filter(None, text.split(", "))):
        if words[0][0] == "=":
            nodes.append(Node("constant", (), kind, (("value", words[0][1:]),)))
        else:
            nodes.append(Node(words[0], tuple(map(int, words[1:])), kind))
    return Expression((kind,) * operands, tuple(nodes), results)


def _layer_norm(kind: str) -> RowRegion:
    ending = (
        "=0x1p-9, multiply 1 4, =0x1p-10, add 5 6, rsqrt 7, multiply 0 8, multiply 9 2, add 10 3"
    )
    return RowRegion(
        labels=((0, 1), (1,), (1,)),
        rank=2,
        dimensions=(1,),
        operand_types=(kind,) * 3,
        expressions=(
            _expression(kind, 1, (0,)),
            _expression(kind, 2, (4,), "=0x1p-9, multiply 1 2, subtract 0 3"),
            _expression(kind, 1, (1,), "multiply 0 0"),
            _expression(kind, 4, (11,), ending),
        ),
        sources=((0,), (0, 4), (5,), (5, 7, 1, 2)),
        reductions=((0, 3, "add", "-0x0p+0"), (2, 6, "add", "0x0p+0")),
        results=(8,),
    )


def _softmax(kind: str, *, log: bool = False) -> RowRegion:
    return RowRegion(
        labels=((0, 1),),
        rank=2,
        dimensions=(1,),
        operand_types=(kind,),
        expressions=(
            _expression(kind, 1, (0,)),
            _expression(kind, 2, (2, 3), "subtract 0 1, exponential 2"),
            _expression(kind, 2, (3,), "log 1, subtract 0 2")
            if log
            else _expression(kind, 2, (2,), "divide 0 1"),
        ),
        sources=((0,), (0, 2), (3, 5) if log else (4, 5)),
        reductions=((0, 1, "maximum", "-inf"), (1, 4, "add", "0x0p+0")),
        results=(6,),
    )


def _gradient(kind: str) -> RowRegion:
    """Return reductions beside element-wise work; one reads an operand behind the first result."""
    return RowRegion(
        labels=((0, 1), (0, 1), (0,)),
        rank=2,
        dimensions=(1,),
        operand_types=(kind,) * 3,
        expressions=(
            _expression(kind, 3, (3, 4), "multiply 0 1, subtract 3 2"),
            _expression(kind, 4, (5,), "multiply 1 2, subtract 0 4"),
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
    "layer norm": _layer_norm,
    "softmax": _softmax,
    "log-softmax": lambda kind: _softmax(kind, log=True),
    "gradient": _gradient,
}


def _blocks(region: RowRegion, sizes: tuple[int, ...]) -> tuple[list[Block], list[Block]]:
    kept = tuple(n for d, n in enumerate(sizes) if d not in region.dimensions)
    parts = [tuple(sizes[d] for d in labels) for labels in region.labels]
    made = [sizes if region.is_full(x) else kept for x in region.results]
    blocks = [Block(np.zeros(x, np.float32), (), x, (0,) * len(x), x) for x in (*parts, *made)]
    return blocks[: len(parts)], blocks[len(parts) :]


def _values(kind: str, sizes: tuple[int, ...], generator: np.random.Generator) -> Array:
    """Return rows of usual numbers, and some of any."""
    usual = generator.standard_normal(sizes).astype(np.float32)
    usual = round_to(usual, kind) if kind in GRIDS else usual
    some = some_values(kind, prod(sizes), generator).reshape(sizes)
    which = generator.random((*sizes[:-1], 1))
    return np.where(which < 0.5, usual, np.where(which < 0.9, some, np.float32(-0.0)))


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compile kernels at once, and forget what was counted before."""
    monkeypatch.setattr(row_native, "LOADING_WORK", 0)
    monkeypatch.setattr(row_native, "COMPILING_WORK", 0)
    row_native.native_rows.cache_clear()


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("pattern", PATTERNS)
def test_patterns_have_the_same_bits(
    pattern: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: list[int] = []
    run = row_native.NativeRows.run

    def counted(self: row_native.NativeRows, *given: Any) -> None:
        runs.append(given[-1])
        run(self, *given)

    monkeypatch.setattr(row_native.NativeRows, "run", counted)
    generator = np.random.default_rng(1)
    region = PATTERNS[pattern](kind)
    for flushing in (computing(), nullcontext()):
        with flushing, np.errstate(all="ignore"):
            for sizes in SIZES:
                operands, results = _blocks(region, sizes)
                arrays = [_values(kind, x.part, generator) for x in operands]
                bound = region.bound(operands, results)
                with native_kernels(Settings(is_on=False)):
                    wanted = [np.array(x) for x in bound(arrays, [None] * len(results))]
                with native_kernels(Settings(keeps=False)):
                    # The first result may stand where the first operand did.
                    made = bound(arrays, [arrays[0], *[None] * (len(results) - 1)])
                assert [differences(*x) for x in zip(wanted, made, strict=True)] == [0] * len(made)
    assert len(runs) == 2 * len(SIZES)


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("how", ["turned", "every other", "wider", "repeated"])
def test_operands_may_lie_as_they_like(how: str) -> None:
    generator = np.random.default_rng(2)
    region = _gradient("f32")
    operands, results = _blocks(region, (100, 200))
    arrays = [_values("f32", x.part, generator) for x in operands]
    match how:
        case "turned":
            arrays[1] = np.ascontiguousarray(arrays[1].T).T
        case "every other":
            arrays[1] = np.repeat(arrays[1], 2, axis=1)[:, ::2]
        case "wider":
            arrays[1] = np.concatenate([arrays[1]] * 2, axis=1)[:, 200:]
        case _:
            arrays[1] = np.broadcast_to(arrays[1][:1], (100, 200))
    bound = region.bound(operands, results)
    by_both = []
    for settings in (Settings(is_on=False), Settings(keeps=False)):
        with native_kernels(settings), computing():
            by_both.append([np.array(x) for x in bound(arrays, [None] * len(results))])
    assert [differences(*x) for x in zip(*by_both, strict=True)] == [0] * len(results)
