"""Reductions on tiles: rows, pieces, and arrays that lie split along what is reduced."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import hloipu
from hloipu_runtime.codelets.ops.reduce import Reduce
from tests.support.on_tiles import check_on_tiles, groups_of

HEAD = """HloModule r
add {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b)
}
max {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] maximum(a, b)
}
"""


def module(shape: tuple[int, ...], dims: tuple[int, ...], how: str, init: str) -> str:
    kept = tuple(n for d, n in enumerate(shape) if d not in dims)
    sizes, left = ",".join(map(str, shape)), ",".join(map(str, kept))
    return (
        f"{HEAD}ENTRY e {{\n  x = f32[{sizes}] parameter(0)\n  i = f32[] constant({init})\n"
        f"  ROOT r = f32[{left}] reduce(x, i), dimensions={{{','.join(map(str, dims))}}}, "
        f"to_apply={how}\n}}\n"
    )


@pytest.mark.parametrize("dims", [(0,), (1,), (2,), (0, 1), (1, 2), (0, 2), (0, 1, 2)])
@pytest.mark.parametrize(("how", "init", "numpy"), [("add", "2", np.sum), ("max", "-inf", np.max)])
def test_every_choice_of_dimensions(
    dims: tuple[int, ...], how: str, init: str, numpy: Callable[..., Any]
) -> None:
    x = np.random.default_rng(0).standard_normal((13, 37, 29)).astype(np.float32)
    expected = numpy(x.astype(np.float64), axis=dims) + (2 if how == "add" else 0)
    tolerance = 1e-5 if how == "add" else 1e-7
    check_on_tiles(
        module(x.shape, dims, how, init), [x], [expected], relative=tolerance, absolute=1e-4
    )


def test_a_long_sum_is_cut_and_its_start_counts_once() -> None:
    x = np.ones(100_000, np.float32)
    programs = check_on_tiles(module(x.shape, (0,), "add", "0.5"), [x], [np.array(100_000.5)])
    for program in programs:
        codelets = [g.codelet for g in groups_of(program)]
        parts = [c.parts for c in codelets if isinstance(c, Reduce)]
        assert parts[0]
        assert not parts[-1]


def test_tiles_first_reduce_what_they_have() -> None:
    """Rows lie on tiles and rows are summed: no tile takes in more than partial sums."""
    x = np.random.default_rng(1).standard_normal((2048, 64)).astype(np.float32)
    expected = x.astype(np.float64).sum(0)
    programs = check_on_tiles(
        module(x.shape, (0,), "add", "0"), [x], [expected], relative=1e-5, absolute=1e-4
    )
    for program in programs:
        first = next(g for g in groups_of(program) if isinstance(g.codelet, Reduce))
        assert program.variables[first.inputs[0].variable].role.value == "parameter"


@pytest.mark.parametrize("dims", [(0,), (1,)])
def test_a_machine_of_one_tile_sums_on_it(dims: tuple[int, ...]) -> None:
    program = hloipu.compile(
        module((64, 3), dims, "add", "0"), target="tiny", set={"tiles_per_ipu": 1}, cache=False
    )
    x = np.random.default_rng(0).integers(-9, 9, (64, 3)).astype(np.float32)
    np.testing.assert_array_equal(program.run(x, mode="exact").outputs[0], x.sum(dims))
