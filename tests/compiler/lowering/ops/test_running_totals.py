"""Running totals over tiles: values in both modes, and whether long rows are cut."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from hloipu_runtime.machine.load import load_machine
from tests.support.on_tiles import groups_of
from tests.support.tile_runs import same_on_tiles

MACHINES = {
    "tiny": load_machine("tiny"),
    "seven": load_machine("tiny", {"tiles_per_ipu": "7"}),
    "gc200": load_machine("gc200"),
}
CASES = [
    ("4096", 0, "add", False), ("4096", 0, "add", True), ("600,3", 0, "add", True),
    ("2,600,3", 1, "maximum", False), ("5,504", 1, "minimum", True), ("499", 0, "add", False),
]  # fmt: skip
NEUTRAL = {"add": "0", "maximum": "-2147483648", "minimum": "2147483647"}
REFERENCE: dict[str, Callable[..., Any]] = {
    "add": np.cumsum,
    "maximum": np.maximum.accumulate,
    "minimum": np.minimum.accumulate,
}


def module(shape: str, dimension: int, how: str, init: str, *, is_reverse: bool) -> str:
    sizes = list(map(int, shape.split(",")))
    window = "x".join(str(n) if d == dimension else "1" for d, n in enumerate(sizes))
    beyond = sizes[dimension] - 1
    pad = f"0_{beyond}" if is_reverse else f"{beyond}_0"
    pads = "x".join(pad if d == dimension else "0_0" for d in range(len(sizes)))
    return (
        f"HloModule m\nf {{\n  a = s32[] parameter(0)\n  b = s32[] parameter(1)\n"
        f"  ROOT c = s32[] {how}(a, b)\n}}\n"
        f"ENTRY e {{\n  x = s32[{shape}] parameter(0)\n  i = s32[] constant({init})\n"
        f"  ROOT r = s32[{shape}] reduce-window(x, i), window={{size={window} pad={pads}}}, "
        "to_apply=f\n}\n"
    )


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize(("shape", "dimension", "how", "is_reverse"), CASES)
def test_totals(machine: str, shape: str, dimension: int, how: str, is_reverse: bool) -> None:
    sizes = tuple(map(int, shape.split(",")))
    x = np.random.default_rng(3).integers(-50, 50, sizes, dtype=np.int32)
    text = module(shape, dimension, how, NEUTRAL[how], is_reverse=is_reverse)
    run = same_on_tiles(text, MACHINES[machine], [x])
    flipped = np.flip(x, dimension) if is_reverse else x
    expected = REFERENCE[how](flipped, axis=dimension)
    expected = np.flip(expected, dimension) if is_reverse else expected
    np.testing.assert_array_equal(run.exact[0], expected)


def test_a_long_row_is_spread_over_tiles_and_a_prime_one_is_not() -> None:
    for shape, spread in (("4096", True), ("499", False)):
        text = module(shape, 0, "add", "0", is_reverse=False)
        x = np.ones(int(shape), np.int32)
        run = same_on_tiles(text, MACHINES["gc200"], [x])
        windows = [g for g in groups_of(run.program) if g.codelet.name == "reduce_window"]
        assert (max(g.tiles.count for g in windows) > 30) is spread


def test_a_start_that_counts_keeps_rows_whole() -> None:
    """A start of 7 belongs to each total once: pieces that begin with it would add it again."""
    text = module("4096", 0, "add", "7", is_reverse=False)
    run = same_on_tiles(text, MACHINES["gc200"], [np.ones(4096, np.int32)])
    np.testing.assert_array_equal(run.exact[0], np.arange(8, 4104))
