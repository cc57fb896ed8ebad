"""Row regions by compiled kernels have the bits that numpy gives."""

from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hloipu_runtime.codelets.ops import row_native
from hloipu_runtime.kernels.computing import computing
from hloipu_runtime.kernels.native.settings import Settings, is_there, native_kernels
from tests.support.native_cases import Array, differences
from tests.support.row_cases import PATTERNS, blocks_of, gradient, values_of

pytestmark = pytest.mark.skipif(not is_there(), reason="llvmlite is not installed")

SIZES = ((600, 33), (130, 127), (130, 128), (17, 1000), (5, 4097), (1, 70_000))
TYPES = ("f32", "bf16", "f16")


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compile kernels at once, and forget what was counted before."""
    monkeypatch.setattr(row_native, "LOADING_WORK", 0)
    monkeypatch.setattr(row_native, "COMPILING_WORK", 0)
    row_native.native_rows.cache_clear()


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("pattern", PATTERNS)
def test_patterns_have_the_same_bits(
    pattern: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: list[int] = []
    run = row_native.NativeRows.run

    def counted(self: row_native.NativeRows, *given: Any) -> None:
        runs.append(given[-1])
        run(self, *given)

    monkeypatch.setattr(row_native.NativeRows, "run", counted)
    generator = np.random.default_rng(1)
    region = PATTERNS[pattern](kind)
    for flushing in (computing(), nullcontext()):
        with flushing, np.errstate(all="ignore"):
            for sizes in SIZES:
                operands, results = blocks_of(region, sizes)
                arrays = [values_of(kind, x.part, generator) for x in operands]
                bound = region.bound(operands, results)
                with native_kernels(Settings(is_on=False)):
                    wanted = [np.array(x) for x in bound(arrays, [None] * len(results))]
                with native_kernels(Settings(keeps=False)):
                    # The first result may stand where the first operand did.
                    made = bound(arrays, [arrays[0], *[None] * (len(results) - 1)])
                assert [differences(*x) for x in zip(wanted, made, strict=True)] == [0] * len(made)
    assert len(runs) == 2 * len(SIZES)


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("how", ["turned", "every other", "wider", "repeated", "turned columns"])
def test_operands_may_lie_as_they_like(how: str) -> None:
    generator = np.random.default_rng(2)
    region, sizes = gradient("f32"), [100, 200]
    if how == "turned columns":
        region = replace(region, labels=((0, 1, 2), (0, 1, 2), (0,)), rank=3, dimensions=(1, 2))
        sizes = [1, 100, 200]
    operands, results = blocks_of(region, tuple(sizes))
    arrays: list[Array] = [generator.standard_normal(x.part, np.float32) for x in operands]
    match how:
        case "turned" | "turned columns":
            arrays[1] = np.ascontiguousarray(arrays[1].T).T
        case "every other":
            arrays[1] = np.repeat(arrays[1], 2, axis=1)[:, ::2]
        case "wider":
            arrays[1] = np.concatenate([arrays[1]] * 2, axis=1)[:, 200:]
        case _:
            arrays[1] = np.broadcast_to(arrays[1][:1], (100, 200))
    bound = region.bound(operands, results)
    by_both = []
    for settings in (Settings(is_on=False), Settings(keeps=False)):
        with native_kernels(settings), computing():
            by_both.append([np.array(x) for x in bound(arrays, [None] * len(results))])
    assert [differences(*x) for x in zip(*by_both, strict=True)] == [0] * len(results)


@pytest.mark.usefixtures("at_once")
def test_views_that_may_only_be_read_are_read_anew() -> None:
    generator = np.random.default_rng(4)
    region = replace(
        gradient("f32"), labels=((0, 1, 2), (0, 1, 2), (0, 1)), rank=3, dimensions=(2,)
    )
    operands, results = blocks_of(region, (10, 10, 200))
    arrays: list[Array] = [generator.standard_normal(x.part, np.float32) for x in operands]
    memory = generator.standard_normal((10, 20, 200), np.float32)
    arrays[1] = memory[:, 10:]  # which is copied to be rows
    arrays[1].flags.writeable = False
    with native_kernels(Settings(keeps=False)), computing():
        bound = region.bound(operands, results)
        bound(arrays, [None] * len(results))
        memory *= 3  # as tiles write between runs to memory that is seen through such views
        again = [np.array(x) for x in bound(arrays, [None] * len(results))]
        wanted = region.bound(operands, results)(arrays, [None] * len(results))
    assert [differences(*x) for x in zip(wanted, again, strict=True)] == [0] * len(results)


@pytest.mark.usefixtures("at_once")
def test_buffers_of_many_widths_are_not_all_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_native, "MOST_LAYOUTS", 3)
    generator = np.random.default_rng(3)
    kept: dict[int, row_native.NativeRows] = {}
    run = row_native.NativeRows.run

    def watched(self: row_native.NativeRows, *given: Any) -> None:
        run(self, *given)
        kept[id(self)] = self

    monkeypatch.setattr(row_native.NativeRows, "run", watched)
    region = gradient("f32")
    with native_kernels(Settings(keeps=False)), computing():
        for columns in range(130, 140):
            operands, results = blocks_of(region, (200, columns))
            arrays = [values_of("f32", x.part, generator) for x in operands]
            region.bound(operands, results)(arrays, [None] * len(results))
    (native,) = kept.values()
    assert 1 <= len(native._idle) <= 3
