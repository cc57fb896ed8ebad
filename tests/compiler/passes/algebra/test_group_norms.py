"""Group norms in the sizes of activations, so that none is converted or reshaped as a whole."""

import numpy as np
import pytest

import hloipu
from hloipu_compiler.ir.shapes import ArrayShape, array_shape, sizes_of
from hloipu_compiler.passes import run_passes
from hloipu_compiler.passes.algebra.reshape_rules import common_parts
from hloipu_compiler.verify.verifier import verify
from tests.support.passes import SUM, entry
from tests.support.xla_oracle import Oracle

STEP = """HloModule m
sum { a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b) }
half { a = f16[] parameter(0)
  b = f16[] parameter(1)
  ROOT c = f16[] add(a, b) }
ENTRY main {
  x = f16[2,6,6,16] parameter(0)
  z = f32[] constant(0)
  g = f16[2,6,6,4,4] reshape(x)
  w = f32[2,6,6,4,4] convert(g)
  s = f32[2,4] reduce(w, z), dimensions={1,2,4}, to_apply=sum
  q = f16[2,6,6,4,4] multiply(g, g)
  v = f32[2,6,6,4,4] convert(q)
  t = f32[2,4] reduce(v, z), dimensions={1,2,4}, to_apply=sum
  m = f16[2,4] convert(s)
  b = f16[2,6,6,4,4] broadcast(m), dimensions={0,3}
  d = f16[2,6,6,4,4] subtract(g, b)
  o = f16[2,6,6,16] reshape(d)
  n = f16[] constant(0)
  h = f16[2,4] reduce(d, n), dimensions={1,2,4}, to_apply=half
  ROOT r = (f32[2,4], f32[2,4], f16[2,6,6,16], f16[2,4]) tuple(s, t, o, h)
}
"""


def test_no_whole_activation_is_converted_or_reshaped() -> None:
    after, _ = run_passes(hloipu.parse(STEP), None, "default")
    wide = {
        x.opcode
        for x in after.entry.instructions
        if isinstance(x.shape, ArrayShape) and x.shape.dimensions.count(6)
    }
    assert wide <= {"parameter", "fusion", "get-tuple-element"}
    ranks = {
        x.shape.rank
        for computation in after.computations
        for x in computation.instructions
        if isinstance(x.shape, ArrayShape) and x.shape.dimensions.count(6)
    }
    assert ranks == {4}


@pytest.mark.parametrize("batch", [1, 2])
def test_sums_of_groups_are_right(batch: int) -> None:
    text = STEP.replace("[2,6", f"[{batch},6").replace("[2,4]", f"[{batch},4]")
    verify(run_passes(hloipu.parse(text), None, "simplify")[0])
    step = hloipu.compile(text, target="tiny")
    x = np.random.default_rng(0).standard_normal((batch, 6, 6, 16)).astype(np.float16)
    wide = x.reshape(batch, 6, 6, 4, 4)
    *sums, o, h = step.run(x, mode="exact").outputs
    for found, terms in zip(sums, (wide, wide * wide), strict=True):
        np.testing.assert_allclose(found, terms.astype(np.float64).sum((1, 2, 4)), rtol=1e-5)
    d = wide - sums[0].astype(np.float16)[:, None, None, :, None]
    np.testing.assert_array_equal(o, d.reshape(o.shape).astype(o.dtype))
    exact = d.astype(np.float64).sum((1, 2, 4))
    np.testing.assert_allclose(h, exact, rtol=2**-10, atol=1e-3)


@pytest.mark.parametrize(
    ("sizes", "at", "dimensions"),
    [
        ("8,90", "0", "1"),
        ("1,8,90", "1", "0,2"),
        ("2,4,90", "0,1", "2"),
        ("2,4,3,30", "0,1", "2,3"),
        ("2,360", "0", "1"),
    ],
)
def test_groups_put_together_are_taken_apart(
    sizes: str, at: str, dimensions: str, oracle: Oracle
) -> None:
    """Forms in which PyTorch and texts by hand have the groups of images: [2, 4 * 3, 5, 6]."""
    few = ",".join(sizes.split(",")[int(d)] for d in at.split(","))
    text = entry(
        f"""\
  x = f32[2,12,5,6] parameter(0)
  k = f32[12,12,1,1] parameter(1)
  y = f32[2,12,5,6] convolution(x, k), window={{size=1x1}}, dim_labels=bf01_oi01->bf01
  g = f32[{sizes}] reshape(y)
  z = f32[] constant(0)
  s = f32[{few}] reduce(g, z), dimensions={{{dimensions}}}, to_apply=sum
  b = f32[{sizes}] broadcast(s), dimensions={{{at}}}
  d = f32[{sizes}] subtract(g, b)
  o = f32[2,12,5,6] reshape(d)
  ROOT r = f32[2,12,5,6] convolution(o, k), window={{size=1x1}}, dim_labels=bf01_oi01->bf01""",
        SUM,
    )
    after, _ = run_passes(hloipu.parse(text), None, "absorb-views,eliminate-dead-code")
    wide = [x for x in after.entry.instructions if array_shape(x.shape).element_count == 720]
    assert {sizes_of(x.shape) for x in wide} == {(2, 12, 5, 6)}
    random = np.random.default_rng(1)
    arrays = [random.integers(-3, 4, s).astype(np.float32) for s in ((2, 12, 5, 6), (12, 12, 1, 1))]
    (found,) = hloipu.compile(text, target="tiny").run(*arrays, mode="exact").outputs
    (expected,) = oracle.run(text, arrays)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("new", "old", "parts"),
    [
        ((9, 32), (36, 8), [(9, 0, 0), (4, 1, 0), (8, 1, 1)]),
        ((2, 12, 1, 5), (8, 15), [(2, 0, 0), (4, 1, 0), (3, 1, 1), (5, 3, 1)]),
        ((7, 6, 4), (7, 8, 3), [(7, 0, 0), (8, 1, 1), (1, 2, 1), (3, 1, 2), (1, 2, 2)]),
    ],
)
def test_common_parts_of_two_shapes(
    new: tuple[int, ...], old: tuple[int, ...], parts: list[tuple[int, int, int]]
) -> None:
    assert common_parts(new, old) == parts
