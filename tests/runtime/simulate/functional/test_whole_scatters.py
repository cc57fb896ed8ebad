"""Slices of a scatter as one scatter on whole tensors: equal bits, and what is no such slice."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import product
from math import prod
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest

import hloipu
from hloipu_runtime.codelets.indexed.scatter import Scatter, SharedScatter
from hloipu_runtime.kernels.native.counted import CountedKernel
from hloipu_runtime.kernels.native.settings import Settings, native_kernels
from hloipu_runtime.kernels.scatter import ScatterDimensions
from hloipu_runtime.program.program import Program, Value
from hloipu_runtime.program.steps import Definition
from hloipu_runtime.simulate.functional import whole_scatters
from hloipu_runtime.simulate.functional.logical_form import collapse
from hloipu_runtime.simulate.functional.nodes import Node
from hloipu_runtime.simulate.functional.whole_scatters import with_whole_scatters
from tests.support.arrays import Array
from tests.support.native_cases import AT_ONCE
from tests.support.scattered import Combine, scattered

DTYPES: dict[str, Any] = {
    "f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16, "s32": np.int32,
}  # fmt: skip


class Form(NamedTuple):
    table: tuple[int, ...]
    indices: tuple[int, ...]
    updates: tuple[int, ...]
    dims: ScatterDimensions


ROWS = ScatterDimensions((1,), (0,), (0,), 1)
FORMS = {
    "rows": Form((40, 4), (640, 1), (640, 4), ROWS),
    "wide rows": Form((20, 12), (900, 1), (900, 12), ROWS),
    "elements": Form((50,), (1800, 1), (1800,), ScatterDimensions((), (0,), (0,), 1)),
    "two indices": Form((9, 8), (1300, 2), (1300,), ScatterDimensions((), (0, 1), (0, 1), 1)),
    "boxes": Form((12, 7, 3), (400, 2), (400, 2, 3), ScatterDimensions((1, 2), (1,), (0, 1), 1)),
    "vectors first": Form((2, 40), (1, 1300), (2, 1300), ScatterDimensions((0,), (1,), (1,), 0)),
    "batched": Form(
        (2, 30, 2), (2, 700, 1), (2, 700, 2), ScatterDimensions((2,), (1,), (1,), 2, (0,), (0,))
    ),
    "behind a batch of one": Form(
        (40, 4), (1, 640, 1), (1, 640, 4), ScatterDimensions((2,), (0,), (0,), 2)
    ),
    "none": Form((40, 4), (0, 1), (0, 4), ROWS),
}
OPS = ("assign", "add", "multiply", "minimum", "maximum", "subtract")


def _extremum(sign: int) -> Combine:
    """Return the maximum, or with -1 the minimum; of both zeros the one of that sign."""

    def combine(a: Any, b: Any) -> Any:
        if a == b:
            return b if bool(np.signbit(a)) == (sign > 0) else a
        return a if (a > b) == (sign > 0) else b

    return combine


COMBINE: dict[str, Combine] = {
    "assign": lambda a, b: b, "add": lambda a, b: a + b, "multiply": lambda a, b: a * b,
    "minimum": _extremum(-1), "maximum": _extremum(1), "subtract": lambda a, b: a - b,
}  # fmt: skip


def _text(form: Form, kind: str, op: str) -> str:
    def of(sizes: tuple[int, ...]) -> str:
        return "{" + ",".join(map(str, sizes)) + "}"

    def typed(kind: str, sizes: tuple[int, ...]) -> str:
        return f"{kind}[{','.join(map(str, sizes))}]"

    table, dims = typed(kind, form.table), form.dims
    batching = (
        f"input_batching_dims={of(dims.input_batching_dims)}, "
        f"scatter_indices_batching_dims={of(dims.scatter_indices_batching_dims)}, "
        if dims.input_batching_dims
        else ""
    )
    made = "parameter(1)" if op == "assign" else f"{op}(a, b)"
    left = "" if op == "assign" else f"b = {kind}[] parameter(1)"
    return f"""HloModule m
  by {{ a = {kind}[] parameter(0) {left} ROOT r = {kind}[] {made} }}
  ENTRY e {{
    x = {table} parameter(0) i = {typed("s32", form.indices)} parameter(1)
    u = {typed(kind, form.updates)} parameter(2)
    ROOT s = {table} scatter(x, i, u), update_window_dims={of(dims.update_window_dims)},
      inserted_window_dims={of(dims.inserted_window_dims)}, {batching}
      scatter_dims_to_operand_dims={of(dims.scatter_dims_to_operand_dims)},
      index_vector_dim={dims.index_vector_dim}, to_apply=by
  }}"""


def _compiled(form: Form, kind: str = "f32", op: str = "maximum") -> Any:
    return hloipu.compile(_text(form, kind, op), target="tiny", cache=False)


def _given(form: Form, kind: str, op: str, *, in_order: bool) -> list[Array]:
    """Return arguments with zeros of both signs, repeated places and such that are outside."""
    generator = np.random.default_rng(5)
    dtype = DTYPES[kind]

    def values(shape: tuple[int, ...]) -> Array:
        if kind == "s32":
            return generator.integers(-(2**31), 2**31, shape, dtype=np.int32)
        spread = generator.standard_normal(shape) * 2.0 ** generator.integers(-3, 4, shape)
        if op == "multiply":
            return np.asarray(1 + spread / 64).astype(dtype)
        zeros = np.where(generator.random(shape) < 0.5, 0.0, -0.0)
        return np.where(generator.random(shape) < 0.2, zeros, spread).astype(dtype)

    high = max(form.table)
    places = generator.integers(-1, high + 1, form.indices, dtype=np.int32)
    if in_order:
        places.sort(axis=-2 if form.dims.index_vector_dim else -1)
    return [values(form.table), places, values(form.updates)]


@contextmanager
def _kernels_at_once(patch: pytest.MonkeyPatch) -> Iterator[None]:
    code_for = CountedKernel.code_for
    with patch.context() as patched, native_kernels(Settings(keeps=False)):
        patched.setattr(CountedKernel, "code_for", lambda self, work: code_for(self, AT_ONCE))
        yield


def _bits(x: Any) -> Array:
    array = np.asarray(x)
    return array.view(f"u{array.itemsize}")


@pytest.mark.parametrize("name", FORMS)
def test_slices_leave_the_same_bits_as_one_scatter(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    form = FORMS[name]
    for kind, op in product(DTYPES, OPS):
        exe = _compiled(form, kind, op)
        whole = [x.what for x in collapse(exe.program).nodes]
        assert sum(isinstance(x, Scatter | SharedScatter) for x in whole) == 1
        for in_order in (False, True):
            given = _given(form, kind, op, in_order=in_order)
            in_shares = any(isinstance(x, SharedScatter) for x in whole)
            expected = _bits(_expected(form, given, op, in_shares=in_shares))
            with native_kernels(Settings(is_on=False)):
                (plain,) = exe.run(*given).outputs
                (exact,) = exe.run(*given, mode="exact").outputs
            np.testing.assert_array_equal(_bits(plain), expected, f"{kind} {op}")
            with _kernels_at_once(monkeypatch):
                (fast,) = exe.run(*given).outputs
            np.testing.assert_array_equal(_bits(fast), expected, f"{kind} {op}")
            if kind == "s32" or not in_shares:  # whose tables are added up tile by tile
                np.testing.assert_array_equal(_bits(exact), expected, f"{kind} {op}")


def _expected(form: Form, given: list[Array], op: str, *, in_shares: bool) -> Array:
    """Return what windows one after another make: of shares a sum, which the table is added to."""
    table, places, windows = given
    with np.errstate(all="ignore"):
        if in_shares:
            zeros = np.full_like(table, -0.0)
            return np.asarray(table + scattered(zeros, places, windows, form.dims, COMBINE[op]))
        return scattered(table, places, windows, form.dims, COMBINE[op])


def _sliced(program: Program, patch: pytest.MonkeyPatch) -> list[Node]:
    """Return the logical form with the slices of the scatter."""
    with patch.context() as patched:
        patched.setattr(whole_scatters, "with_whole_scatters", lambda nodes, table, results: nodes)
        return list(collapse(program).nodes)


def _count(nodes: list[Node], table: Sequence[Value], *results: int) -> int:
    joined = with_whole_scatters(nodes, table, frozenset(results))
    return sum(isinstance(node.what, Scatter) for node in joined)


@pytest.mark.parametrize("name", [x for x in FORMS if x != "none"])
def test_what_is_no_slice_is_left_as_it_is(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    program = _compiled(FORMS[name]).program
    nodes = _sliced(program, monkeypatch)
    scatters = [n for n, node in enumerate(nodes) if isinstance(node.what, Scatter)]
    windows = {v for n in scatters for v in nodes[n].reads[1:]}
    count = len(scatters)
    assert count > 1
    assert _count(nodes, program.values) == 1
    first, second, last = scatters[0], scatters[1], scatters[-1]

    def changed(n: int, **fields: Any) -> list[Node]:
        return [*nodes[:n], replace(nodes[n], **fields), *nodes[n + 1 :]]

    def remain(given: list[Node], *results: int) -> None:
        assert _count(given, program.values, *results) == count

    remain(nodes, nodes[first].writes[0])
    scatter = nodes[second].what
    assert isinstance(scatter, Scatter)
    other = replace(scatter, monoid="minimum")
    remain(changed(second, what=other))
    remain([*nodes, replace(nodes[0], reads=nodes[first].writes, writes=())])
    data, places, updates = nodes[second].reads
    remain(changed(second, reads=(data, nodes[first].reads[1], updates)))
    remain(changed(second, reads=(data, places, nodes[first].reads[2])))
    remain(changed(last, reads=(nodes[first].reads[0], *nodes[last].reads[1:])))
    later = list(nodes)
    for n, node in enumerate(nodes):
        what = node.what
        if not isinstance(what, Definition) or what.value not in windows:
            continue
        (piece,) = what.pieces
        for d in range(len(piece.shift)):
            shift = tuple(x + (k == d) for k, x in enumerate(piece.shift))
            moved = replace(what, pieces=(piece._replace(shift=shift),))
            remain(changed(n, what=moved))
            if piece.shift[d] and what.value in nodes[second].reads:
                later[n] = replace(node, what=moved)
        remain(changed(n, what=replace(what, pieces=(piece._replace(value=0),))))
        remain(changed(n, what=replace(what, base=0)))
        seen = list(program.values)
        seen[piece.value] = replace(seen[piece.value], shape=(prod(piece.view), 1, 1))
        assert _count(nodes, seen) == count
    remain(later)
