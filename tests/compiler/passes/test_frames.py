"""Gathers of frames at constant places: values of numpy's indexing, and ops that they become."""

from typing import Any

import numpy as np
import pytest

from hloipu_compiler.interpret.participants import evaluate_everywhere
from hloipu_compiler.passes.algebra.simplify_algebra import SimplifyAlgebra
from hloipu_compiler.plan.plan import Plan
from tests.support.passes import opcodes, parsed


def literal(places: Any) -> str:
    return str(places.tolist()).replace("[", "{").replace("]", "}")


def run(shape: tuple[int, ...], d: int, places: Any, front: bool) -> tuple[Any, Any, bool]:
    """Gather along a dimension, those of the places in front of all others or in its place."""
    x = np.random.default_rng(3).standard_normal(shape).astype(np.float32)
    expected = np.take(x, np.clip(places, 0, shape[d] - 1), d)
    at = 0 if front else d
    batch = range(at, at + places.ndim)
    expected = np.moveaxis(expected, range(d, d + places.ndim), batch)
    offsets = [e for e in range(expected.ndim) if e not in batch]
    sizes = ["1" if e == d else str(n) for e, n in enumerate(shape)]
    text = f"""
HloModule m
ENTRY e {{
  x = f32[{",".join(map(str, shape))}] parameter(0)
  p = s32[{",".join(map(str, (*places.shape, 1)))}] constant({literal(places[..., None])})
  ROOT y = f32[{",".join(map(str, expected.shape))}] gather(x, p),
    offset_dims={{{",".join(map(str, offsets))}}}, collapsed_slice_dims={{{d}}},
    start_index_map={{{d}}}, index_vector_dim={places.ndim}, slice_sizes={{{",".join(sizes)}}}
}}
"""
    made, _ = SimplifyAlgebra().run(parsed(text), Plan())
    (found,) = evaluate_everywhere(made, x)
    return found, expected, "gather" in opcodes(made)


def steps(first: int, *counts_and_steps: tuple[int, int]) -> Any:
    axes = [np.arange(n) * step for n, step in counts_and_steps]
    return first + sum(np.ix_(*axes), start=np.zeros((1,) * len(axes), np.int64))


FRAMES = {
    "overlapping": steps(0, (4, 16), (40, 1)),
    "to the end": steps(0, (6, 16), (20, 1)),
    "from within": steps(3, (4, 16), (33, 1)),
    "side by side": steps(0, (6, 16), (16, 1)),
    "apart": steps(2, (5, 20), (9, 1)),
    "elements first": steps(1, (40, 1), (4, 16)),
    "one frame": steps(7, (30, 1)),
    "strided": steps(7, (30, 3)),
    "with a dimension of one": steps(0, (4, 16), (1, 5), (40, 1)),
}


@pytest.mark.parametrize("frames", FRAMES)
@pytest.mark.parametrize("front", [False, True])
@pytest.mark.parametrize(
    ("shape", "d"), [((100,), 0), ((3, 100), 1), ((100, 2), 0), ((2, 100, 3), 1)]
)
def test_frames_are_slices(frames: str, front: bool, shape: tuple[int, ...], d: int) -> None:
    made, expected, gathered = run(shape, d, FRAMES[frames], front)
    np.testing.assert_array_equal(made, expected)
    assert not gathered


OTHERS = {
    "outside": steps(50, (5, 16), (40, 1)),
    "before": steps(-3, (5, 16), (20, 1)),
    "back": steps(90, (5, -16), (10, 1)),
    "no progression": steps(0, (5, 16), (10, 1)) ** 2 // 20,
    "short steps": steps(0, (40, 2), (7, 1)),
    "the same": steps(0, (5, 0), (10, 1)),
}


@pytest.mark.parametrize("places", OTHERS)
def test_others_are_gathered(places: str) -> None:
    made, expected, gathered = run((3, 100), 1, OTHERS[places], False)
    np.testing.assert_array_equal(made, expected)
    assert gathered
