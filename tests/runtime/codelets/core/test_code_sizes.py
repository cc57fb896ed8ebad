"""Bytes of vertices: code as counted in poplibs, state and tables summed by hand."""

import pytest

from hloipu_runtime.codelets.core.codelet import Codelet
from hloipu_runtime.codelets.core.expression_form import Expression, Node
from hloipu_runtime.codelets.core.tensors import Tensor
from hloipu_runtime.codelets.dense.convolution import Convolution
from hloipu_runtime.codelets.dense.dot import Dot
from hloipu_runtime.codelets.ops.elementwise import Elementwise
from hloipu_runtime.codelets.ops.move import Copy
from hloipu_runtime.codelets.ops.reduce import Reduce
from hloipu_runtime.machine.load import load_machine

GC200 = load_machine("gc200")
DOT = Dot((), (), (1,), (0,), "f16")


def sums(kind: str, nodes: int) -> Elementwise:
    """Return a chain of additions."""
    chain = tuple(Node("add", (max(0, n + 1) if n else 0, 1), kind, ()) for n in range(nodes))
    expression = Expression((kind, kind), chain, (1 + nodes,))
    return Elementwise(expression, ((0,), (0,)), 1)


@pytest.mark.parametrize(
    ("codelet", "types", "size"),
    [
        (sums("f16", 1), ("f16",) * 3, 332),
        (sums("f32", 1), ("f32",) * 3, 288),
        (DOT, ("f16",) * 3, 1176),
        (DOT, ("f16", "f16", "f32"), 1048),
        (Reduce((0,), "add", None, ("f32",)), ("f32",) * 3, 144 + 140),
    ],
)
def test_code_that_was_counted(codelet: Codelet, types: tuple[str, ...], size: int) -> None:
    found = codelet.code_size(types)
    assert (found.size_bytes, found.is_assumed) == (size, False)
    assert found.source.startswith("pop")


def test_code_that_nobody_counted() -> None:
    for codelet, types in ((DOT, ("s32",) * 3), (Copy(), ("f32", "f32"))):
        assert codelet.code_size(types) == (512, "")
    # The frame of a vertex on f16, and three additions in two loops, an instruction each.
    chain = sums("f16", 3)
    assert chain.code_size(("f16",) * 3) == (332 - 24 + 3 * 2 * 4, "")


@pytest.mark.parametrize(("rows", "columns"), [(9, 70), (70, 9)])
def test_tables_of_a_product(rows: int, columns: int) -> None:
    """Depth 40 of f16 in 3 groups; the 9 channels are in the unit, the 70 are its positions.

    Six work lists of 3 half words, ten more half words, and the pointer to the lists.
    """
    parts = [Tensor("f16", (rows, 40)), Tensor("f16", (40, columns))]
    made = [Tensor("f16", (rows, columns))]
    work = (10 + 6 * 3) * 2
    assert DOT.table_bytes(GC200, parts, made) == 4 * (3 + 1 + 3 * 1 + 1) + work
    whole = [Tensor("s32", x.shape) for x in parts]
    assert DOT.table_bytes(GC200, whole, made) == 0


def test_tables_of_a_convolution() -> None:
    """Of 32 features by nine positions to 16: as they are, by rows at once, or as patches."""
    window = ((3, 1, 0, 0, 1, 1),) * 2
    convolution = Convolution((0, 3, 1, 2), (2, 3, 0, 1), (0, 3, 1, 2), window, (False,) * 2, "f16")
    parts = [Tensor("f16", (1, 6, 6, 32)), Tensor("f16", (3, 3, 32, 16))]
    made = [Tensor("f16", (1, 4, 4, 16))]
    direct = 4 * (2 + 1 + 2 + 1) + (10 + 9 * 18) * 2
    two_rows = 4 * (4 + 1 + 4 + 1) + (10 + 6 * 18) * 2
    four_rows = 4 * (8 + 1 + 8 + 1) + (10 + 3 * 18) * 2
    patches = 4 * (18 + 1 + 18 + 1) + (10 + 18) * 2
    assert convolution.table_bytes(GC200, parts, made) == min(direct, two_rows, four_rows, patches)


def test_state_is_a_pointer_an_edge_and_a_length() -> None:
    assert DOT.state_bytes(GC200, 2, 1) == 8 + 3 * 4 + 4
