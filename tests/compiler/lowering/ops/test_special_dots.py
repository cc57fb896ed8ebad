"""Ragged and scaled dots on tiles: what the evaluator computes."""

import numpy as np
import pytest

import hloipu
from hloipu_runtime.kernels.core.storage import user_dtype
from hloipu_runtime.machine.load import load_machine
from tests.support.tile_runs import same_on_tiles

RNG = np.random.default_rng(24)
MACHINES = {"tiny": load_machine("tiny"), "gc200": load_machine("gc200")}


@pytest.mark.parametrize("machine", MACHINES)
def test_ragged_rows(machine: str) -> None:
    text = """HloModule ragged
    ENTRY e {
      x = f32[64,32] parameter(0)
      w = f32[3,32,40] parameter(1)
      g = s32[3] parameter(2)
      ROOT r = f32[64,40] ragged-dot(x, w, g), lhs_contracting_dims={1},
        rhs_contracting_dims={1}, lhs_ragged_dims={0}, rhs_group_dims={0}
    }"""
    x, w = (RNG.integers(-3, 4, shape).astype(np.float32) for shape in ((64, 32), (3, 32, 40)))
    same_on_tiles(text, MACHINES[machine], [x, w, np.asarray([10, 0, 50], np.int32)])


def test_many_ragged_rows_are_cut_in_depth() -> None:
    """Tiles need all rows; with all of their depth too they would take 60 times a plain product."""
    text = """HloModule ragged
    ENTRY e {
      x = f32[512,256] parameter(0)
      w = f32[8,256,64] parameter(1)
      g = s32[8] parameter(2)
      ROOT r = f32[512,64] ragged-dot(x, w, g), lhs_contracting_dims={1},
        rhs_contracting_dims={1}, lhs_ragged_dims={0}, rhs_group_dims={0}
    }"""
    x, w = (RNG.integers(-3, 4, shape).astype(np.float32) for shape in ((512, 256), (8, 256, 64)))
    sizes = np.asarray([100, 0, 30, 1, 200, 7, 64, 100], np.int32)
    same_on_tiles(text, MACHINES["gc200"], [x, w, sizes])
    batched = """HloModule plain
    ENTRY e {
      x = f32[8,64,256] parameter(0)
      w = f32[8,256,64] parameter(1)
      ROOT r = f32[8,64,64] dot(x, w), lhs_contracting_dims={2}, rhs_contracting_dims={1},
        lhs_batch_dims={0}, rhs_batch_dims={0}
    }"""
    ragged, plain = (hloipu.compile(x).estimate().device_cycles for x in (text, batched))
    assert ragged < 8 * plain


@pytest.mark.parametrize(("rows", "depth", "columns"), [(0, 65, 33), (3, 65, 0), (3, 0, 5)])
def test_ragged_dots_of_nothing(rows: int, depth: int, columns: int) -> None:
    text = f"""HloModule ragged
    ENTRY e {{
      x = f32[{rows},{depth}] parameter(0)
      w = f32[2,{depth},{columns}] parameter(1)
      g = s32[2] parameter(2)
      ROOT r = f32[{rows},{columns}] ragged-dot(x, w, g), lhs_contracting_dims={{1}},
        rhs_contracting_dims={{1}}, lhs_ragged_dims={{0}}, rhs_group_dims={{0}}
    }}"""
    x, w = (np.ones(shape, np.float32) for shape in ((rows, depth), (2, depth, columns)))
    same_on_tiles(text, MACHINES["tiny"], [x, w, np.asarray([rows, 0], np.int32)])


@pytest.mark.parametrize("machine", MACHINES)
def test_scaled_blocks(machine: str) -> None:
    text = """HloModule scaled
    ENTRY e {
      x = f8e4m3fn[20,64] parameter(0)
      w = f8e4m3fn[64,40] parameter(1)
      a = f8e8m0fnu[20,2] parameter(2)
      b = f8e8m0fnu[2,40] parameter(3)
      ROOT r = f32[20,40] scaled-dot(x, w, a, b), lhs_contracting_dims={1},
        rhs_contracting_dims={0}
    }"""
    x, w = (
        RNG.integers(-3, 4, shape).astype(user_dtype("f8e4m3fn")) for shape in ((20, 64), (64, 40))
    )
    a, b = (
        (2.0 ** RNG.integers(-2, 3, shape)).astype(user_dtype("f8e8m0fnu"))
        for shape in ((20, 2), (2, 40))
    )
    same_on_tiles(text, MACHINES[machine], [x, w, a, b])
