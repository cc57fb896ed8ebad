"""Chains looked up in tables, against numpy's and ml_dtypes' own arithmetic on every number."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from hloipu_runtime.codelets.core.constants import number_node
from hloipu_runtime.codelets.core.expression import Expression, Node, plan_of
from hloipu_runtime.codelets.core.expression_planning import planned
from hloipu_runtime.codelets.core.expression_rewriting import LOOKED_UP, with_tables
from hloipu_runtime.codelets.core.expression_walk import LookedUp
from hloipu_runtime.kernels.computing import computing
from hloipu_runtime.kernels.native.settings import Settings, native_kernels

Array = np.ndarray[Any, Any]
DTYPES = {"f16": np.dtype(np.float16), "bf16": np.dtype(ml_dtypes.bfloat16)}


def _every(kind: str) -> Array:
    """Return every number of a type, several times, in no order."""
    values = np.arange(1 << 16, dtype=np.uint16).view(DTYPES[kind])
    return np.random.default_rng(1).permutation(np.tile(values, 5))


def _node(op: str, *arguments: int, kind: str) -> Node:
    return Node(op, arguments, kind)


def _horner(kind: str) -> Expression:
    """Return (x * x + x) * y + x and x * x < x."""
    nodes = (
        _node("multiply", 0, 0, kind=kind),
        _node("add", 2, 0, kind=kind),
        _node("multiply", 3, 1, kind=kind),
        _node("add", 4, 0, kind=kind),
        Node("compare", (2, 0), "pred", (("direction", "LT"),)),
    )
    return Expression((kind, kind), nodes, (5, 6))


@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_chains_are_looked_up_and_are_what_the_type_itself_computes(kind: str) -> None:
    expression = _horner(kind)
    plan = plan_of(expression)
    assert plan.by_tables is not None
    assert any(isinstance(move.step, LookedUp) for move in plan.by_tables.moves)
    x, y = _every(kind), _every(kind)[::-1]
    with np.errstate(all="ignore"):
        wanted = ((x * x + x) * y + x).astype(np.float32)
        less = x * x < x
    given = [v.astype(np.float32) for v in (x, y)]
    for _ in range(2):  # computed, then looked up
        with np.errstate(all="ignore"), native_kernels(Settings(is_on=False)):
            found, is_less = plan_of(expression).run(given)
        np.testing.assert_array_equal(found, wanted)
        np.testing.assert_array_equal(
            np.signbit(found)[wanted == 0], np.signbit(wanted[wanted == 0])
        )
        np.testing.assert_array_equal(is_less, less)


@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_tables_have_the_bits_of_functions_where_subnormals_are_flushed(kind: str) -> None:
    nodes = (
        _node("tanh", 0, kind=kind),
        number_node(0.5, kind),
        _node("multiply", 1, 2, kind=kind),
        _node("convert", 3, kind="f32"),
        _node("exponential", 4, kind="f32"),
    )
    expression = Expression((kind,), nodes, (5,))
    x = _every(kind).astype(np.float32)
    with computing(), native_kernels(Settings(is_on=False)):
        (wanted,) = planned(expression).run([x])
        for _ in range(2):
            (found,) = plan_of(expression).run([x])
            np.testing.assert_array_equal(found.view(np.uint32), wanted.view(np.uint32))


def test_what_two_values_make_or_costs_little_is_computed() -> None:
    apart = Expression(("f16", "f16"), (_node("add", 0, 1, kind="f16"),), (2,))
    cheap = Expression(("f16",), (_node("negate", 0, kind="f16"),), (1,))
    wide = Expression(("f32",), (_node("tanh", 0, kind="f32"), _node("tanh", 1, kind="f32")), (2,))
    for expression in (apart, cheap, wide):
        assert plan_of(expression).by_tables is None
    nodes, chains = with_tables(_horner("f16"), [1, 1, 1, 1, 0])
    assert [x.op for x in nodes] == ["multiply", LOOKED_UP, "multiply", "add", "compare"]
    assert len(chains) == 1
