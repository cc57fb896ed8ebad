"""The same bits as another type, and sizes as numbers: values in both modes."""

import numpy as np
import pytest

from hloipu_compiler.errors import CodegenError
from hloipu_runtime.machine.load import load_machine
from tests.support.tile_runs import same_on_tiles

MACHINES = {name: load_machine(name) for name in ("tiny", "gc200")}

CASTS = [
    ("s32", "60,7", "f32", "60,7"),
    ("s32", "60,7", "u8", "60,7,4"),
    ("u8", "500,4", "s32", "500"),
    ("u8", "4", "f32", ""),
    ("s32", "", "u16", "2"),
    ("s32", "", "f32", ""),
]
DTYPES = {"s32": "<i4", "f32": "<f4", "u8": "u1", "u16": "<u2"}


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize(("source", "before", "target", "after"), CASTS)
def test_a_bit_cast(machine: str, source: str, before: str, target: str, after: str) -> None:
    text = f"""
HloModule m
ENTRY e {{
  x = {source}[{before}] parameter(0)
  ROOT y = {target}[{after}] bitcast-convert(x)
}}
"""
    shape = tuple(map(int, before.split(","))) if before else ()
    x = (np.arange(np.prod(shape, dtype=int)) * 0x01030507 % 2**31).astype(DTYPES[source])
    run = same_on_tiles(text, MACHINES[machine], [x.reshape(shape)])
    assert run.exact[0].tobytes() == x.tobytes()


SIZES = """
HloModule m
ENTRY e {{
  x = f32[60,7] parameter(0)
  k = s32[] constant({size})
  y = f32[60,7] set-dimension-size(x, k), dimensions={{0}}
  n = s32[] get-dimension-size(y), dimensions={{1}}
  z = f32[7,60] dynamic-reshape(y, n, k)
  ROOT t = (f32[7,60], s32[]) tuple(z, n)
}}
"""


def test_sizes_are_what_the_shape_says() -> None:
    x = np.arange(420, dtype=np.float32).reshape(60, 7)
    run = same_on_tiles(SIZES.format(size=60), MACHINES["tiny"], [x])
    np.testing.assert_array_equal(run.exact[0].ravel(), x.ravel())
    assert run.exact[1] == 7


def test_a_shorter_size_is_refused() -> None:
    with pytest.raises(CodegenError, match="E0401"):
        same_on_tiles(SIZES.format(size=59), MACHINES["tiny"], [np.zeros((60, 7), np.float32)])
