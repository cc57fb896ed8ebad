"""Convolutions on tiles: what the evaluator computes, and where that is spread."""

import itertools
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from hloipu_compiler.lowering.core.builder import Builder
from hloipu_compiler.lowering.core.values import TileTensor
from hloipu_compiler.lowering.ops.convolutions import decimated
from hloipu_compiler.planners.convolution_grids import Bounds, convolution_grid
from hloipu_compiler.planners.convolution_prices import ConvolutionWork
from hloipu_compiler.planners.placing import Placement
from hloipu_compiler.planners.tuning import Tuning
from hloipu_runtime.codelets.core.tensors import Tensor
from hloipu_runtime.codelets.dense.convolution import Convolution
from hloipu_runtime.codelets.ops.move import Reverse, StridedSlice
from hloipu_runtime.machine.load import load_machine
from hloipu_runtime.program.mapping import Mapping, Span, Tiles, whole
from tests.support.on_tiles import groups_of
from tests.support.tile_runs import same_on_tiles

RNG = np.random.default_rng(21)
MACHINES = {
    "tiny": load_machine("tiny"),
    "seven tiles": load_machine("tiny", {"tiles_per_ipu": "7"}),
    "gc200": load_machine("gc200"),
}

CASES = {
    "same": ("f32[4,12,12,8]", "f32[3,3,8,20]", "f32[4,12,12,20]", "b01f_01io->b01f",
             "size=3x3 pad=1_1x1_1", ""),
    "strided": ("f32[2,5,13,13]", "f32[6,5,3,3]", "f32[2,6,7,7]", "bf01_oi01->bf01",
                "size=3x3 stride=2x2 pad=1_1x1_1", ""),
    "input gradient": ("f32[2,7,7,12]", "f32[3,3,8,12]", "f32[2,14,14,8]", "b01f_01oi->b01f",
                       "size=3x3 pad=1_2x1_2 lhs_dilate=2x2 rhs_reversal=1x1", ""),
    "weight gradient": ("f32[16,14,14,8]", "f32[16,14,14,12]", "f32[3,3,8,12]", "f01b_i01o->01bf",
                        "size=14x14 pad=1_1x1_1", ""),
    "weight gradient of a number of features that is no multiple of 16": (
        "f32[16,14,14,8]", "f32[16,14,14,24]", "f32[3,3,8,24]", "f01b_i01o->01bf",
        "size=14x14 pad=1_1x1_1", ""),
    "weight gradient of every other position": (
        "f32[6,14,14,8]", "f32[6,7,7,12]", "f32[1,1,8,12]", "f01b_i01o->01bf",
        "size=7x7 pad=0_-1x0_-1 rhs_dilate=2x2", ""),
    "weight gradient of every third column": (
        "f32[6,5,14,8]", "f32[6,5,5,12]", "f32[1,1,8,12]", "f01b_i01o->01bf",
        "size=5x5 pad=0_0x0_-1 rhs_dilate=1x3", ""),
    "few channels, large image": ("f32[1,40,40,2]", "f32[1,40,40,3]", "f32[3,3,2,3]",
                                  "f01b_i01o->01bf", "size=40x40 pad=1_1x1_1", ""),
    "grouped weight gradient": (
        "f32[4,24,24,32]", "f32[4,24,24,32]", "f32[3,3,16,32]", "f01b_i01o->01bf",
        "size=24x24 pad=1_1x1_1", ", batch_group_count=2"),
    "depthwise": ("f32[2,9,9,24]", "f32[3,3,1,24]", "f32[2,9,9,24]", "b01f_01io->b01f",
                  "size=3x3 pad=1_1x1_1", ", feature_group_count=24"),
    "groups": ("f32[2,9,9,12]", "f32[3,3,4,18]", "f32[2,9,9,18]", "b01f_01io->b01f",
               "size=3x3 pad=1_1x1_1", ", feature_group_count=3"),
    "batch groups": ("f32[6,8,8,4]", "f32[6,6,4,9]", "f32[2,3,3,9]", "b01f_01io->b01f",
                     "size=6x6", ", batch_group_count=3"),
    "every other position": ("f32[2,9,8,12]", "f32[1,1,12,20]", "f32[2,5,4,20]", "b01f_01io->b01f",
                             "size=1x1 stride=2x2", ""),
    "every third position": ("f32[1,6,20,3]", "f32[8,6,2,1]", "f32[1,8,20,1]", "bf01_oi01->bf01",
                             "size=2x1 stride=1x3 pad=0_1x0_0", ""),
    "long kernel of groups, read backwards": (
        "f32[1,40,32]", "f32[32,32,16]", "f32[1,40,32]", "b0f_0oi->b0f",
        "size=32 pad=15_16 rhs_reversal=1", ", feature_group_count=2"),
    "deep": ("f32[1,4,4,256]", "f32[3,3,256,32]", "f32[1,4,4,32]", "b01f_01io->b01f",
             "size=3x3 pad=1_1x1_1", ""),
}  # fmt: skip


def _text(name: str) -> str:
    image, kernel, result, labels, window, groups = CASES[name]
    return f"""HloModule convolutions
    ENTRY e {{
      x = {image} parameter(0)
      w = {kernel} parameter(1)
      ROOT r = {result} convolution(x, w), window={{{window}}}, dim_labels={labels}{groups}
    }}"""


def _whole_numbers(shape: str) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    sizes = [int(n) for n in shape[4:-1].split(",")]
    return RNG.integers(-3, 4, sizes).astype(np.float32)


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("name", CASES)
def test_convolutions_on_tiles(name: str, machine: str) -> None:
    inputs = [_whole_numbers(CASES[name][0]), _whole_numbers(CASES[name][1])]
    same_on_tiles(_text(name), MACHINES[machine], inputs)


def test_sums_over_images_are_cut_along_several_dimensions() -> None:
    """Pieces of few rows and columns overlap less than pieces of rows alone."""
    inputs = [_whole_numbers(x) for x in CASES["grouped weight gradient"][:2]]
    run = same_on_tiles(_text("grouped weight gradient"), MACHINES["gc200"], inputs)
    codelets = [group.codelet for group in groups_of(run.program)]
    (cut,) = [x for x in codelets if isinstance(x, Convolution)]
    assert {1, 2} <= {along for along, _ in cut.cuts}


@pytest.mark.parametrize(
    ("name", "along"), [("deep", 0), ("weight gradient", 0), ("few channels, large image", 1)]
)
def test_long_sums_are_cut_into_pieces(name: str, along: int) -> None:
    inputs = [_whole_numbers(CASES[name][0]), _whole_numbers(CASES[name][1])]
    run = same_on_tiles(_text(name), MACHINES["gc200"], inputs)
    codelets = [group.codelet for group in groups_of(run.program)]
    (cut,) = [x for x in codelets if isinstance(x, Convolution)]
    assert along == 0 or along in [x for x, _ in cut.cuts]
    assert cut.cuts


def test_positions_that_no_window_reads_stay_where_they_are() -> None:
    inputs = [_whole_numbers(x) for x in CASES["every other position"][:2]]
    run = same_on_tiles(_text("every other position"), MACHINES["tiny"], inputs)
    names = [group.codelet.name for group in groups_of(run.program)]
    assert names == ["slice", "convolution"]
    (whole,) = (g.codelet for g in groups_of(run.program) if isinstance(g.codelet, Convolution))
    assert [w[1] for w in whole.window] == [1, 1]


@pytest.mark.parametrize("name", ["same", "strided", "deep", "weight gradient"])
@pytest.mark.parametrize("percent", [1, 3])
def test_little_memory_means_slices(name: str, percent: int) -> None:
    """Whole numbers add up exactly, in whatever order."""
    inputs = [_whole_numbers(CASES[name][0]), _whole_numbers(CASES[name][1])]
    few = same_on_tiles(_text(name), MACHINES["tiny"], inputs, Tuning("f32", percent))
    whole = same_on_tiles(_text(name), MACHINES["tiny"], inputs)
    np.testing.assert_array_equal(few.functional[0], whole.functional[0])


@pytest.mark.parametrize("percent", [2, 60])
def test_a_kernel_read_backwards_is_turned_where_memory_is_scarce(percent: int) -> None:
    """Of one in groups nothing but the taps can be cut, which only go forwards."""
    name = "long kernel of groups, read backwards"
    inputs = [_whole_numbers(CASES[name][0]), _whole_numbers(CASES[name][1])]
    run = same_on_tiles(_text(name), MACHINES["tiny"], inputs, Tuning("f32", percent))
    codelets = [group.codelet for group in groups_of(run.program)]
    (convolution,) = [x for x in codelets if isinstance(x, Convolution)]
    is_scarce = percent < 60
    assert any(isinstance(x, Reverse) for x in codelets) is is_scarce
    assert convolution.reversal == (not is_scarce,)
    assert bool(convolution.cuts) is is_scarce


def test_a_cut_of_the_sum_does_not_hide_that_positions_may_be_shared_out() -> None:
    """Its pieces have all positions each: few tiles would make a kernel of many taps in groups."""
    machine, features = MACHINES["gc200"], Tensor("f16", (1, 249, 768))
    window = ((249, 1, 64, 63, 1, 1),)
    codelet = Convolution(
        (2, 0, 1), (0, 2, 1), (1, 2, 0), window, (False,), "f16", batch_groups=16
    )  # fmt: skip
    result = Tensor("f16", (128, 48, 768))
    work = ConvolutionWork(machine, codelet, (features, features), result, "f16")
    grid = convolution_grid(work, Bounds(machine.usable_bytes))
    assert grid.placement.tiles.count > machine.chip.tiles_per_ipu // 2
    assert grid.bytes_per_tile < machine.usable_bytes // 4


def test_slices_take_less_memory() -> None:
    machine, codelet = MACHINES["tiny"], _convolution(3, 1, 1, "f32")
    operands = Tensor("f32", (8, 24, 24, 16)), Tensor("f32", (3, 3, 16, 64))
    result = Tensor("f32", (8, 24, 24, 64))
    whole = convolution_grid(
        ConvolutionWork(machine, codelet, operands, result, "f32"), Bounds(10**9)
    )
    few = convolution_grid(
        ConvolutionWork(machine, codelet, operands, result, "f32"), Bounds(200_000)
    )
    assert whole.slices == 1
    assert few.slices > 1
    assert few.bytes_per_tile < whole.bytes_per_tile


def _convolution(window: int, stride: int, pad: int, kind: str) -> Convolution:
    return Convolution(
        (0, 3, 1, 2), (2, 3, 0, 1), (0, 3, 1, 2),
        ((window, stride, pad, pad, 1, 1),) * 2, (False, False), kind,
    )  # fmt: skip


@pytest.mark.parametrize("kind", ["f32", "f16"])
@pytest.mark.parametrize(
    ("window", "stride", "image", "features"),
    [(3, 1, (2, 12, 12, 16), 32), (1, 1, (4, 6, 6, 24), 48), (5, 2, (1, 16, 16, 8), 16)],
)
def test_no_split_of_features_images_and_positions_is_cheaper(
    kind: str, window: int, stride: int, image: tuple[int, ...], features: int
) -> None:
    """Every split, by the codelet's own cycles and whole operands received."""
    machine, pad = MACHINES["tiny"], window // 2
    size = (image[1] + 2 * pad - window) // stride + 1
    codelet = _convolution(window, stride, pad, kind)
    operands = Tensor(kind, image), Tensor(kind, (window, window, image[3], features))
    result = Tensor(kind, (image[0], size, size, features))
    found = convolution_grid(
        ConvolutionWork(machine, codelet, operands, result, "f32"), Bounds(machine.usable_bytes)
    )
    width = 4 if kind == "f32" else 2
    begin = 10 + 20 + 100  # set-up, route, sync of `tiny`
    least = None
    for f, b, y, x in itertools.product((1, 2, 4), repeat=4):
        if f * b * y * x > machine.chip.tiles_per_ipu or b > image[0]:
            continue
        rows, columns = -(-size // y), -(-size // x)
        part = (
            -(-image[0] // b),
            min(image[1], (rows - 1) * stride + window),
            min(image[2], (columns - 1) * stride + window),
            image[3],
        )
        parts = [Tensor(kind, part), Tensor(kind, (window, window, image[3], features // f))]
        made = Tensor(kind, (part[0], rows, columns, features // f))
        image_bytes, kernel_bytes = (tensor.elements * width for tensor in parts)
        # One of them at the rate at which tiles of one bus receive the same.
        taken = image_bytes // 4 + kernel_bytes // 4 - max(image_bytes, kernel_bytes) // 8
        cycles = codelet.work(machine, parts, [made]).cycles + begin + taken
        least = cycles if least is None else min(least, cycles)
    assert least is not None
    assert found.cycles.total <= 1.15 * least


def test_a_grid_keeps_what_a_tile_holds_within_its_memory() -> None:
    machine = MACHINES["gc200"]
    codelet = Convolution(
        (0, 3, 1, 2), (2, 3, 0, 1), (0, 3, 1, 2), ((3, 1, 1, 1, 1, 1),) * 2, (False, False), "f16"
    )
    operands = Tensor("f16", (8, 56, 56, 256)), Tensor("f16", (3, 3, 256, 512))
    result, budget_bytes = Tensor("f16", (8, 56, 56, 512)), machine.usable_bytes // 2
    found = convolution_grid(
        ConvolutionWork(machine, codelet, operands, result, "f32"), Bounds(budget_bytes)
    )
    assert found.placement.tiles.count > machine.chip.tiles_per_ipu // 2
    assert found.bytes_per_tile <= budget_bytes
    fewer = replace(machine, chip=replace(machine.chip, tiles_per_ipu=64))
    slower = convolution_grid(
        ConvolutionWork(fewer, codelet, operands, result, "f32"), Bounds(budget_bytes)
    )
    assert slower.cycles.total > 4 * found.cycles.total


FEATURES = 2


class Taking:
    """Stands for a builder: notes where a slice goes."""

    def __init__(self, lying: Mapping) -> None:
        self.variables = [SimpleNamespace(mapping=lying)]
        self.placement: Placement | None = None
        self.strides: tuple[int, ...] = ()

    def compute(
        self, codelet: StridedSlice, operands: Any, results: Any, *, placement: Placement | None
    ) -> list[TileTensor]:
        self.placement, self.strides = placement, codelet.strides
        ((kind, shape),) = results
        return [TileTensor(1, 0, kind, shape)]


def taken(size: int, stride: int, tiles: int, apart: int = 3) -> Taking:
    """Take every so many rows of an image that lies on so many tiles in blocks of rows."""
    block = -(-size // tiles)
    spans = (whole(1), whole(FEATURES), Span(0, block, 0, block))
    builder = Taking(Mapping(Tiles((tiles,), (apart,), 5), spans))
    out = -(-size // stride)
    left_out = size - 1 - (out - 1) * stride
    window = ((1, stride, 0, -left_out, 1, 1),)
    codelet = Convolution((0, 1, 2), (0, 1, 2), (0, 1, 2), window, (False,), "f32")
    image = TileTensor(0, 0, "f32", (1, FEATURES, size))
    made, held = decimated(cast(Builder, builder), codelet, image, (1, 4, out))
    if stride > 1:
        assert made.window == ((1, 1, 0, 0, 1, 1),)
        assert held.shape == (1, FEATURES, out)
        assert builder.strides == (1, 1, stride)
    else:
        assert (made, held) == (codelet, image)
    return builder


@pytest.mark.parametrize("tiles", [2, 4, 8])
@pytest.mark.parametrize("stride", [2, 3, 4, 8])
@pytest.mark.parametrize("size", [16, 32, 24])
def test_elements_stay_on_their_tiles(size: int, stride: int, tiles: int) -> None:
    block, placement = -(-size // tiles), taken(size, stride, tiles).placement
    if block % stride and stride % block:
        return  # elements of a tile are no range of what is taken
    if -(-size // max(stride, block)) < 2:
        assert placement is None
        return
    assert placement is not None
    ((label, span),) = placement.labels
    assert label == 2
    numbers = placement.tiles.numbers.ravel().tolist()
    for element in range(-(-size // stride)):
        assert numbers[element // span.step] == 5 + 3 * (element * stride // block)
    assert max(numbers) <= 5 + 3 * (tiles - 1)


def test_elements_of_one_dilated_window_are_taken() -> None:
    """As in the weight gradient of a strided convolution of one element."""
    builder = Taking(Mapping(Tiles((2,), (1,), 0), (whole(1), whole(FEATURES), Span(0, 8, 0, 8))))
    codelet = Convolution((0, 1, 2), (0, 1, 2), (0, 1, 2), ((8, 1, 0, -1, 1, 2),), (False,), "f32")
    image = TileTensor(0, 0, "f32", (1, FEATURES, 16))
    made, held = decimated(cast(Builder, builder), codelet, image, (1, 4, 1))
    assert (made.window, held.shape) == (((8, 1, 0, 0, 1, 1),), (1, FEATURES, 8))
    assert builder.strides == (1, 1, 2)
    assert decimated(cast(Builder, builder), codelet, image, (1, 4, 2)) == (codelet, image)


def test_nothing_is_taken_where_windows_skip_nothing() -> None:
    assert taken(16, 1, 4).strides == ()
