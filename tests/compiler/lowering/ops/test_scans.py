"""Scan on tiles, in both modes, against numpy's running sums."""

import numpy as np
import pytest

from hloipu_compiler.errors import CodegenError
from tests.support.on_tiles import check_on_tiles, programs_of

RNG = np.random.default_rng(15)


def _scan(body: str, reverse: bool) -> str:
    return f"""HloModule scans
    body {{ x = s32[6,5] parameter(0) c = s32[6,5] parameter(1) {body} }}
    ENTRY e {{
      x = s32[6,40,5] parameter(0)
      c = s32[6,5] parameter(1)
      ROOT r = (s32[6,40,5], s32[6,5]) scan(x, c), dimensions={{1}}, num_carries=1,
        is_reverse={str(reverse).lower()}, to_apply=body
    }}"""


@pytest.mark.parametrize("reverse", [False, True])
def test_running_sums(reverse: bool) -> None:
    x = RNG.integers(-9, 9, (6, 40, 5)).astype(np.int32)
    start = RNG.integers(-9, 9, (6, 5)).astype(np.int32)
    rows = x[:, ::-1] if reverse else x
    sums = rows.cumsum(axis=1) + 2 * np.arange(1, 41)[:, np.newaxis] + start[:, np.newaxis]
    two = """two = s32[] constant(2) many = s32[6,5] broadcast(two), dimensions={}
        y = s32[6,5] add(x, c) z = s32[6,5] add(y, many)
        ROOT t = (s32[6,5], s32[6,5]) tuple(z, z)"""
    stacked = sums[:, ::-1] if reverse else sums
    check_on_tiles(_scan(two, reverse), [x, start], [stacked, sums[:, -1]])


def test_a_body_that_mixes_places_is_refused() -> None:
    mixing = """y = s32[6,5] reverse(c), dimensions={0}
        ROOT t = (s32[6,5], s32[6,5]) tuple(x, y)"""
    with pytest.raises(CodegenError, match="not elementwise"):
        programs_of(_scan(mixing, reverse=False))
