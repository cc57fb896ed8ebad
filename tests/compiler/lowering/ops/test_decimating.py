"""Elements that windows of one element read are left where they lie, tile by tile."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from hloipu_compiler.lowering.core.builder import Builder
from hloipu_compiler.lowering.core.values import TileTensor
from hloipu_compiler.lowering.ops.decimating import decimated
from hloipu_compiler.planners.placing import Placement
from hloipu_runtime.codelets.dense.convolution import Convolution
from hloipu_runtime.codelets.ops.move import StridedSlice
from hloipu_runtime.program.mapping import Mapping, Span, Tiles, whole

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


def test_nothing_is_taken_where_windows_skip_nothing() -> None:
    assert taken(16, 1, 4).strides == ()
