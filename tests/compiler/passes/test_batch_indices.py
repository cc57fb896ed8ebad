"""Gathers and scatters whose indices count along a batch, as ops with batching dimensions."""

import numpy as np
import pytest

from hloipu_compiler.hlo.parse import parse
from hloipu_compiler.interpret.participants import evaluate_participants
from hloipu_compiler.passes.batch_indices import with_batch_indices
from hloipu_compiler.verify.verifier import verify

ROWS = (
    "i = s32[6,2] parameter(1)\n  j = s32[6,2,1] reshape(i)\n"
    "  n = s32[6] iota(), iota_dimension=0\n  m = s32[6,1] reshape(n)\n"
)
COUNTED = "  k = s32[6,2,1] broadcast(n), dimensions={0}\n"
TAKE = (
    "offset_dims={}, collapsed_slice_dims={0,1}, start_index_map=%s, index_vector_dim=2, "
    "slice_sizes={1,1}"
)
PUT = (
    "update_window_dims={}, inserted_window_dims={0,1}, scatter_dims_to_operand_dims=%s, "
    "index_vector_dim=2, to_apply=add"
)
MERGED_TAKE = (
    "offset_dims={1,2,3}, collapsed_slice_dims={}, start_index_map={0,1}, index_vector_dim=1, "
    "slice_sizes={1,1,2}"
)
MERGED_PUT = (
    "update_window_dims={1,2}, inserted_window_dims={}, scatter_dims_to_operand_dims={1,0}, "
    "index_vector_dim=1, to_apply=add"
)
CASES: dict[str, tuple[str, tuple[int, ...]]] = {
    "a gather along rows": (
        f"{ROWS}{COUNTED}  b = s32[6,2,2] concatenate(k, j), dimensions={{2}}\n"
        f"  ROOT g = f32[6,2] gather(x, b), {TAKE % '{0,1}'}", (0,),
    ),
    "a gather whose index comes first": (
        f"{ROWS}{COUNTED}  b = s32[6,2,2] concatenate(j, k), dimensions={{2}}\n"
        f"  ROOT g = f32[6,2] gather(x, b), {TAKE % '{1,0}'}", (0,),
    ),
    "a scatter along rows": (
        f"{ROWS}{COUNTED}  b = s32[6,2,2] concatenate(k, j), dimensions={{2}}\n"
        "  u = f32[6,2] parameter(2)\n"
        f"  ROOT g = f32[6,6] scatter(x, b, u), {PUT % '{0,1}'}", (0,),
    ),
    "all indices count": (
        f"{ROWS}  k = s32[6,6,1] broadcast(m), dimensions={{0,2}}\n"
        "  l = s32[6,6,1] iota(), iota_dimension=1\n"
        "  b = s32[6,6,2] concatenate(l, k), dimensions={2}\n"
        f"  ROOT g = f32[6,6] gather(x, b), {TAKE % '{0,1}'}", (1,),
    ),
    "a gather whose rows are merged": (
        f"{ROWS}{COUNTED}  b = s32[6,2,2] concatenate(k, j), dimensions={{2}}\n"
        "  c = s32[12,2] reshape(b)\n  w = f32[6,6,3] broadcast(x), dimensions={0,1}\n"
        f"  ROOT g = f32[12,1,1,2] gather(w, c), {MERGED_TAKE}", (0,),
    ),
    "a gather whose merged rows are divided as stated": (
        f"{ROWS}{COUNTED}  b = s32[6,2,2] concatenate(k, j), dimensions={{2}}\n"
        "  c = s32[12,2] reshape(b)\n  w = f32[6,6,3] broadcast(x), dimensions={0,1}\n"
        f"  ROOT g = f32[12,1,1,2] gather(w, c), {MERGED_TAKE}, "
        "sharding={devices=[2,1,1,1]<=[2]}", (),
    ),
    "a scatter whose rows are merged": (
        f"{ROWS}{COUNTED}  b = s32[6,2,2] concatenate(j, k), dimensions={{2}}\n"
        "  c = s32[12,2] reshape(b)\n  u = f32[6,2] parameter(2)\n  v = f32[12,1,1] reshape(u)\n"
        f"  ROOT g = f32[6,6] scatter(x, c, v), {MERGED_PUT}", (0,),
    ),
    "merged rows of which nothing counts": (
        f"{ROWS}{COUNTED}  b = s32[6,2,2] concatenate(j, j), dimensions={{2}}\n"
        "  c = s32[12,2] reshape(b)\n  w = f32[6,6,3] broadcast(x), dimensions={0,1}\n"
        f"  ROOT g = f32[12,1,1,2] gather(w, c), {MERGED_TAKE}", (),
    ),
    "fewer rows than the operand has": (
        "i = s32[4,2,1] parameter(1)\n  k = s32[4,2,1] iota(), iota_dimension=0\n"
        "  b = s32[4,2,2] concatenate(k, i), dimensions={2}\n"
        f"  ROOT g = f32[4,2] gather(x, b), {TAKE % '{0,1}'}", (),
    ),
    "numbers that the type has not": (
        "i = s32[600,2] parameter(1)\n  j = s8[600,2] convert(i)\n  k = s8[600,2,1] reshape(j)\n"
        "  n = s32[600,2,1] iota(), iota_dimension=0\n  m = s8[600,2,1] convert(n)\n"
        "  b = s8[600,2,2] concatenate(m, k), dimensions={2}\n"
        f"  y = f32[100,6,6] broadcast(x), dimensions={{1,2}}\n  z = f32[600,6] reshape(y)\n"
        f"  ROOT g = f32[600,2] gather(z, b), {TAKE % '{0,1}'}", (),
    ),
    "nothing counts": (
        f"{ROWS}  k = s32[6,2,1] add(j, j)\n  b = s32[6,2,2] concatenate(k, j), dimensions={{2}}\n"
        f"  ROOT g = f32[6,2] gather(x, b), {TAKE % '{0,1}'}", (),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_values_stay(case: str) -> None:
    body, batch = CASES[case]
    add = "add { p = f32[] parameter(0)  q = f32[] parameter(1)  ROOT s = f32[] add(p, q) }\n"
    module = parse(f"HloModule m\n{add}ENTRY e {{\n  x = f32[6,6] parameter(0)\n  {body}\n}}")
    verify(module)
    made = with_batch_indices(module)
    verify(made)
    draws = np.random.default_rng(0)
    shapes = [module.entry.instructions[i].shape.dimensions for i in module.entry.parameters]  # type: ignore[union-attr]
    arguments = [
        draws.integers(-2, 8, n).astype(np.int32) if i == 1 else draws.random(n, np.float32)
        for i, n in enumerate(shapes)
    ]
    (before,), (after,) = (evaluate_participants(m, [arguments])[0] for m in (module, made))
    np.testing.assert_array_equal(after, before)
    (op,) = (x for x in made.entry.instructions if x.opcode in ("gather", "scatter"))
    named = "operand_batching_dims" if op.opcode == "gather" else "input_batching_dims"
    assert op.attributes.integers(named) == batch
    kept = {x.name for x in made.entry.instructions}
    assert ("b" in kept) == (not batch)
