"""Zeros beyond the ends of parts, and convolutions and pools of all tiles at once on them."""

from itertools import product
from random import Random

import numpy as np
import pytest

from hloipu_runtime.codelets.core.tensors import Tensor
from hloipu_runtime.codelets.dense.convolution import Convolution
from hloipu_runtime.codelets.ops.windows import ReduceWindow
from hloipu_runtime.kernels.core.quiet import quietly
from hloipu_runtime.program.law import required_spans
from hloipu_runtime.program.mapping import Mapping, Span, Tiles, whole
from hloipu_runtime.program.program import Array, Variable
from hloipu_runtime.program.steps import Operand, VertexGroup
from hloipu_runtime.simulate.exact.shared_buffers import whole_place
from hloipu_runtime.simulate.exact.storage import TileStorage, allocate, within
from hloipu_runtime.simulate.exact.vertices import calls_of, prepare_group
from hloipu_runtime.simulate.exact.zero_ends import with_zero_ends
from hloipu_runtime.simulate.run.pool import Scratch


def drawn_memory(mapping: Mapping, value: Array, *, lies_in_another: bool) -> TileStorage:
    """Return memory that holds a value and, wherever else there is room, NaN."""
    variable = Variable("x", "f32", value.shape, mapping)
    if lies_in_another:
        source = allocate(
            Variable("s", "f32", value.shape, Mapping(Tiles(), tuple(map(whole, value.shape)))),
            shared=True, others=(-4096, 4096),
        )  # fmt: skip
        assert source.memory is not None
        source.memory[: source.memory.nbytes // 4 * 4].view(np.float32)[...] = np.nan
        source.merged[...] = value
        return within(source, whole_place(0, variable), variable)
    memory = allocate(variable, shared=False)
    for place in np.ndindex(*mapping.tiles.extents):
        for at in np.ndindex(*mapping.block):
            element = tuple(
                s.offset + (place[s.axis] * s.step if s.axis >= 0 else 0) + k
                for s, k in zip(mapping.spans, at, strict=True)
            )
            inside = all(0 <= e < n for e, n in zip(element, value.shape, strict=True))
            memory.tiles[(*place, *at)] = value[element] if inside else np.nan
    return memory


@pytest.mark.parametrize("lies_in_another", [False, True])
@pytest.mark.parametrize("zero", [0.0, -np.inf])
def test_parts_hold_the_value_and_zeros_beyond_its_ends(lies_in_another: bool, zero: float) -> None:
    mapping = Mapping(Tiles((3, 2), (2, 1)), (Span(0, 2, -1, 4), Span(1, 3, 0, 3)))
    value = np.arange(1, 26, dtype=np.float32).reshape(5, 5)
    memory = drawn_memory(mapping, value, lies_in_another=lies_in_another)
    parts, actions = with_zero_ends(memory, (0, 1), np.float32(zero))
    for action in actions:
        action()
    padded = np.full((8, 8), zero, np.float32)
    padded[1:6, :5] = value
    for r, c in product(range(3), range(2)):
        np.testing.assert_array_equal(parts[r, c], padded[2 * r : 2 * r + 4, 3 * c : 3 * c + 3])


@pytest.mark.parametrize("seed", range(36))
def test_a_convolution_of_all_tiles_at_once_is_that_of_the_whole(seed: int) -> None:
    draw = Random(seed)
    size, taps, stride, base = 24, draw.choice([2, 3]), draw.choice([1, 2]), draw.choice([1, 1, 2])
    groups = 3 if seed >= 24 else 1
    low, high, parts = draw.randint(0, 2), draw.randint(0, 2), draw.choice([1, 2, 3, 4])
    outputs = (low + (size - 1) * base + 1 + high - taps) // stride + 1
    cut = draw.choice([0, 2]) if groups == 1 else 0
    codelet = Convolution(
        (0, 2, 1), (1, 2, 0), (0, 2, 1), ((taps, stride, low, high, base, 1),), (False,), "f32",
        feature_groups=groups, cuts=((0, cut),) if cut else (),
    )  # fmt: skip
    numbers = np.random.default_rng(seed)
    image = numbers.standard_normal((2, size, 3), np.float32)
    features = 4 if groups == 1 else 6
    kernel = numbers.standard_normal((taps, 3 // groups, features), np.float32)
    pieces = (2,) if cut else ()
    shapes = [image.shape, kernel.shape, (*pieces, 2, outputs, features)]
    tensors = [Tensor("f32", shape) for shape in shapes]
    block = -(-outputs // parts)
    block += block % base  # as many as lie alike between zeros put in
    parts = -(-outputs // block)
    extents = [n for n in (*pieces, parts) if n > 1]
    along = Span(len(extents) - 1, block, 0, block) if parts > 1 else whole(outputs)
    spans = (*((Span(0, 1, 0, 1),) if cut else ()), whole(2), along, whole(features))
    tiles = Tiles(tuple(extents), tuple([parts, 1][-len(extents) :]) if extents else ())
    needed = required_spans(
        codelet.indexing(tensors[:2], tensors[2:]), [spans], [shapes[2]], shapes[:2]
    )
    assert not isinstance(needed, str)
    inputs = [
        drawn_memory(Mapping(tiles, own), value, lies_in_another=draw.random() < 0.5)
        for own, value in zip(needed, (image, kernel), strict=True)
    ]
    target = allocate(Variable("y", "f32", shapes[2], Mapping(tiles, spans)), shared=False)
    group = VertexGroup(
        codelet, tiles, tuple(Operand(n, own) for n, own in enumerate(needed)),
        (Operand(2, spans),), (0, 1), (2,),
    )  # fmt: skip
    actions = prepare_group(group, inputs, [target], Scratch())
    with quietly():
        for action in actions:
            action()
    # Straight from the definition: every output adds up taps that meet an element.
    expected = np.zeros(shapes[2], np.float64)
    for o, t in product(range(outputs), range(taps)):
        at, rest = divmod(o * stride + t - low, base)
        if rest or not 0 <= at < size:
            continue
        for c in range(3):
            mine = slice(None) if groups == 1 else slice(2 * c, 2 * c + 2)
            term = image[:, at, c, None].astype(np.float64) * kernel[t, c % (3 // groups), mine]
            here = expected[c // cut] if cut else expected
            here[:, o, mine] += term
    np.testing.assert_allclose(target.whole(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("seed", range(24))
def test_a_pool_of_all_tiles_at_once_is_that_of_the_whole(seed: int) -> None:
    draw, numbers = Random(seed), np.random.default_rng(seed)
    monoid = draw.choice(["add", "maximum", "minimum"])
    taps, stride, size = draw.choice([2, 3]), draw.choice([1, 2]), 24
    low, high, parts = draw.randint(0, 2), draw.randint(0, 2), draw.choice([2, 3, 4])
    outputs = (low + size + high - taps) // stride + 1
    window = ((1, 1, 0, 0, 1, 1), (taps, stride, low, high, 1, 1), (1, 1, 0, 0, 1, 1))
    codelet = ReduceWindow(window, monoid, None, ("f32",))
    # Whole numbers, so that sums are exact; zeros of both signs, and what is lost beside them.
    value = numbers.integers(-3, 4, (2, size, 5)).astype(np.float32)
    value[value == 0] = draw.choice([0.0, -0.0])
    value[0, ::5, 1] = numbers.choice([np.inf, -np.inf, np.nan], len(value[0, ::5, 1]))
    start = {"add": -0.0, "maximum": -np.inf, "minimum": np.inf}[monoid]
    block = -(-outputs // parts)
    tiles = Tiles((-(-outputs // block), 3), (3, 1))
    spans = (whole(2), Span(0, block, 0, block), Span(1, 2, 0, 2))
    shapes = [value.shape, (), (2, outputs, 5)]
    tensors = [Tensor("f32", shape) for shape in shapes]
    needed = required_spans(
        codelet.indexing(tensors[:2], tensors[2:]), [spans], [shapes[2]], shapes[:2]
    )
    assert not isinstance(needed, str)
    memory = drawn_memory(Mapping(tiles, needed[0]), value, lies_in_another=draw.random() < 0.5)
    init = allocate(Variable("i", "f32", (), Mapping(tiles, ())), shared=True)
    init.merged[...] = start
    target = allocate(Variable("y", "f32", shapes[2], Mapping(tiles, spans)), shared=False)
    group = VertexGroup(
        codelet, tiles, tuple(Operand(n, own) for n, own in enumerate(needed)),
        (Operand(2, spans),), (0, 1), (2,),
    )  # fmt: skip
    calls = calls_of(group, [memory, init], [target])
    assert len(calls) == 1
    with quietly():
        for action in prepare_group(group, [memory, init], [target], Scratch()):
            action()
    found = target.whole()
    ufunc = {"add": np.add, "maximum": np.maximum, "minimum": np.minimum}[monoid]
    for o in range(outputs):
        at = [n for n in range(o * stride - low, o * stride - low + taps) if 0 <= n < size]
        with quietly():
            expected = ufunc.reduce(value[:, at], axis=1, initial=start)
        np.testing.assert_array_equal(found[:, o], expected)
        if monoid == "add":
            signs = np.where(np.signbit(value[:, at]), 1, 0).min(axis=1, initial=1)
            held = np.asarray(expected == 0)
            np.testing.assert_array_equal(np.signbit(found[:, o])[held], signs[held] == 1)
