"""Sums of pieces: how many stages, what they save, and that they add each piece once."""

from itertools import product
from math import prod

import numpy as np
import pytest

import hloipu
from hloipu_compiler.planners.combining import combining
from hloipu_compiler.planners.placing import row_major
from hloipu_compiler.planners.stages import Stage
from hloipu_runtime.codelets.core.tensors import Tensor
from hloipu_runtime.codelets.ops.reduce import Reduce
from hloipu_runtime.costs.exchange_price import CodePrice
from hloipu_runtime.costs.forms import phases
from hloipu_runtime.machine.load import load_machine
from hloipu_runtime.program.mapping import Mapping, Span, whole
from hloipu_runtime.program.steps import ComputeSet

BLOCK = (3, 3, 64, 64)


def _planned(counts: tuple[int, ...]) -> tuple[Stage, ...]:
    """Return the stages of sums of whole blocks, where code has its highest price."""
    spans = [Span(axis, 1, 0, 1) for axis in range(len(counts))]
    mapping = Mapping(row_major(counts, 0), (*spans, *map(whole, BLOCK)))
    add = Reduce(tuple(range(len(counts))), "add", None, ("f16",), of_convolution=True)
    partials = Tensor("f16", (*counts, *BLOCK))
    plan = combining(load_machine("gc200"), add, partials, mapping, CodePrice(64, 64))
    assert plan is not None
    return plan.stages


@pytest.mark.parametrize(
    ("counts", "most_stages"), [((15,), 1), ((64,), 2), ((8, 8), 2), ((5, 7, 7), 3), ((256,), 3)]
)
def test_stages_take_less_code_than_one(counts: tuple[int, ...], most_stages: int) -> None:
    stages = _planned(counts)
    messages = prod(counts)
    assert len(stages) <= most_stages
    assert (len(stages) > 1) == (messages >= 16)
    if messages >= 16:
        # A message is 8 bytes at either end; in n stages of equal groups there are n p^(1/n).
        assert sum(stage.code_bytes for stage in stages) < 2 * 8 * messages
    for stage in stages:
        tiles = stage.placement.tiles
        places = [
            range(0, n * step, step) for n, step in zip(tiles.extents, tiles.strides, strict=True)
        ]
        used = [tiles.first + sum(at) for at in product(*places)]
        assert len(set(used)) == len(used)
        assert max(used) < messages


@pytest.mark.parametrize("kind", ["f16", "f32"])
def test_each_piece_is_added_once(kind: str) -> None:
    text = f"""HloModule m
ENTRY e {{
  x = {kind}[20,14,14,32] parameter(0)
  g = {kind}[20,14,14,32] parameter(1)
  ROOT w = {kind}[3,3,32,32] convolution(x, g), window={{size=14x14 pad=1_1x1_1}},
    dim_labels=f01b_i01o->01bf
}}"""
    numbers = np.random.default_rng(0)
    dtype = np.float16 if kind == "f16" else np.float32
    # Sums of whole numbers are exact in both types: a piece lost or added twice is seen.
    x, g = (numbers.integers(-1, 2, (20, 14, 14, 32)) for _ in range(2))
    program = hloipu.compile(text, target="gc200", partials_type="f16")
    steps = [step for step, _ in phases(program.program) if isinstance(step, ComputeSet)]
    reductions = [v.codelet for step in steps for v in step.groups if v.codelet.name == "reduce"]
    assert sorted(bool(r.parts) for r in reductions if isinstance(r, Reduce)) == [False, True]
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    windows = [[padded[:, i : i + 14, j : j + 14] for j in range(3)] for i in range(3)]
    expected = np.array([[np.einsum("nhwi,nhwo->io", w, g) for w in row] for row in windows])
    for mode in ("functional", "exact"):
        found = program.run(x.astype(dtype), g.astype(dtype), mode=mode)
        np.testing.assert_array_equal(found.outputs[0], expected.astype(dtype))
