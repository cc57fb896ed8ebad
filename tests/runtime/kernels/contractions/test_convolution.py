import itertools
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from hloipu_runtime.kernels.contractions import convolution_strategies
from hloipu_runtime.kernels.contractions.convolution import (
    ConvolutionDimensions,
    ConvolutionWindow,
    convolution,
)
from hloipu_runtime.kernels.contractions.convolution_geometry import (
    Axis,
    output_size,
    phases,
    trimmed,
)
from tests.support.cases import each


def dimensions(labels: Any) -> Any:
    lhs, rest = labels.split("_")
    rhs, out = rest.split("->")
    digits = [str(i) for i in range(len(lhs) - 2)]
    return ConvolutionDimensions(
        lhs.index("b"),
        lhs.index("f"),
        tuple(lhs.index(d) for d in digits),
        rhs.index("i"),
        rhs.index("o"),
        tuple(rhs.index(d) for d in digits),
        out.index("b"),
        out.index("f"),
        tuple(out.index(d) for d in digits),
    )


def window(
    rank: Any,
    strides: Any = None,
    padding: Any = None,
    base: Any = None,
    dilation: Any = None,
    reversal: Any = None,
) -> Any:
    return ConvolutionWindow(
        tuple(strides or (1,) * rank),
        tuple(padding or ((0, 0),) * rank),
        tuple(base or (1,) * rank),
        tuple(dilation or (1,) * rank),
        tuple(reversal or (False,) * rank),
    )


def padded(x: Any, axis: int, low: int, high: int) -> Any:
    shape = list(x.shape)
    shape[axis] = max(0, x.shape[axis] + low + high)
    wide = np.zeros(shape, x.dtype)
    for position in range(x.shape[axis]):
        if 0 <= position + low < shape[axis]:
            np.moveaxis(wide, axis, 0)[position + low] = np.moveaxis(x, axis, 0)[position]
    return wide


def reference(
    lhs: Any, rhs: Any, dims: Any, win: Any, feature_groups: Any = 1, batch_groups: Any = 1
) -> Any:
    """The definition, tap by tap, on an x that is really dilated and padded."""
    x = np.transpose(lhs, (dims.lhs_batch, dims.lhs_feature, *dims.lhs_spatial))
    w = np.transpose(rhs, (dims.rhs_output_feature, dims.rhs_input_feature, *dims.rhs_spatial))
    rank = x.ndim - 2
    for d in range(rank):
        size = x.shape[d + 2]
        dilated = (size - 1) * win.base_dilations[d] + 1 if size else 0
        wide = np.zeros((*x.shape[: d + 2], dilated, *x.shape[d + 3 :]), x.dtype)
        wide[(slice(None),) * (d + 2) + (slice(None, None, win.base_dilations[d]),)] = x
        x = padded(wide, d + 2, *win.padding[d])
        if win.reversal[d]:
            w = np.flip(w, d + 2)
    groups = feature_groups * batch_groups
    images: Any = np.split(x, groups, 1 if batch_groups == 1 else 0)
    kernels: Any = np.split(w, groups, 0)
    parts = []
    for image, kernel in zip(images, kernels, strict=True):
        sizes: list[Any] = [
            max(0, (image.shape[d + 2] - (kernel.shape[d + 2] - 1) * win.window_dilations[d] - 1))
            // win.strides[d]
            + 1
            if image.shape[d + 2] > (kernel.shape[d + 2] - 1) * win.window_dilations[d]
            else 0
            for d in range(rank)
        ]
        out = np.zeros((image.shape[0], kernel.shape[0], *sizes), x.dtype)
        for taps in itertools.product(*(range(k) for k in kernel.shape[2:])):
            at = tuple(
                slice(t * dil, t * dil + (n - 1) * s + 1 if n else t * dil, s)
                for t, dil, n, s in zip(taps, win.window_dilations, sizes, win.strides, strict=True)
            )
            image_at: Any = image[(slice(None), slice(None), *at)]
            kernel_at: Any = kernel[(slice(None), slice(None), *taps)]
            out += np.tensordot(kernel_at, image_at, ([1], [1])).swapaxes(0, 1)
        parts.append(out)
    whole = np.concatenate(parts, 1)
    order = [0] * whole.ndim
    order[dims.out_batch], order[dims.out_feature] = 0, 1
    for i, d in enumerate(dims.out_spatial):
        order[d] = i + 2
    return whole.transpose(order)


def operands(
    rng: Any,
    dims: Any,
    batch: Any,
    channels: Any,
    features: Any,
    sizes: Any,
    kernels: Any,
    groups: Any = 1,
) -> Any:
    lhs, rhs = [0] * (len(sizes) + 2), [0] * (len(sizes) + 2)
    lhs[dims.lhs_batch], lhs[dims.lhs_feature] = batch, channels
    rhs[dims.rhs_input_feature], rhs[dims.rhs_output_feature] = channels // groups, features
    for i, (size, kernel) in enumerate(zip(sizes, kernels, strict=True)):
        lhs[dims.lhs_spatial[i]], rhs[dims.rhs_spatial[i]] = size, kernel
    # Small integers: every strategy must then give exactly the same sums.
    return (rng.integers(-8, 9, shape).astype(np.float64) for shape in (lhs, rhs))


NHWC, NCHW = "b01f_01io->b01f", "bf01_oi01->bf01"
CASES = {
    # labels, batch, channels, features, sizes, kernels, window, feature groups, batch groups
    "no spatial dims": ("bf_io->bf", 3, 4, 5, (), (), window(0), 1, 1),
    "one tap": (NHWC, 2, 3, 4, (5, 6), (1, 1), window(2, (2, 3)), 1, 1),
    "same padding": (NHWC, 2, 3, 4, (5, 6), (3, 3), window(2, padding=((1, 1),) * 2), 1, 1),
    "channels first": (NCHW, 2, 3, 4, (5, 6), (3, 3), window(2, padding=((1, 1),) * 2), 1, 1),
    "stride": (NCHW, 2, 3, 4, (15, 16), (7, 7), window(2, (2, 2), ((3, 3),) * 2), 1, 1),
    "asymmetric": (NHWC, 1, 2, 3, (9, 7), (2, 3), window(2, (3, 1), ((0, 2), (2, -1))), 1, 1),
    "negative": (NHWC, 1, 2, 3, (9, 7), (2, 3), window(2, (1, 2), ((-3, -2), (-1, 3))), 1, 1),
    "base dilation": (
        NHWC, 2, 3, 4, (5, 4), (3, 3), window(2, padding=((2, 1),) * 2, base=(2, 2)), 1, 1,
    ),
    "all dilations": (
        NHWC, 1, 2, 3, (9, 7), (3, 4),
        window(2, (2, 3), ((4, 3), (5, 6)), (3, 4), (2, 6), (True, False)), 1, 1,
    ),
    "transposed by 3 with 1 tap": (
        "b0f_0io->b0f", 1, 2, 3, (4,), (1,), window(1, padding=((1, 4),), base=(3,)), 1, 1,
    ),
    "atrous, mostly padding": (
        NHWC, 1, 3, 4, (5, 5), (3, 3), window(2, padding=((9, 9),) * 2, dilation=(9, 9)), 1, 1,
    ),
    "tap between dilated holes": (
        "b0f_0io->b0f", 2, 3, 2, (1,), (2,), window(1, padding=((2, 1),), dilation=(2,)), 1, 1,
    ),
    "weights gradient": (
        "f01b_i01o->01bf", 6, 3, 5, (8, 8), (8, 8), window(2, padding=((1, 1),) * 2), 1, 1,
    ),
    "weights gradient of many channels": (
        "f01b_i01o->01bf", 9, 3, 5, (8, 9), (8, 8), window(2, padding=((1, 1),) * 2), 1, 1,
    ),
    "weights gradient of a stride": (
        "fb01_io01->01bf", 9, 3, 5, (8, 9), (4, 4),
        window(2, padding=((1, 1),) * 2, dilation=(2, 2)), 1, 1,
    ),
    "one axis only": (NHWC, 2, 3, 4, (6, 5), (3, 1), window(2, padding=((1, 1), (0, 0))), 1, 1),
    "one axis whole": (NHWC, 2, 3, 4, (6, 5), (6, 2), window(2), 1, 1),
    "grouped": (NHWC, 2, 6, 4, (6, 5), (3, 3), window(2, padding=((1, 1),) * 2), 2, 1),
    "grouped first": (NCHW, 3, 6, 4, (6, 5), (3, 3), window(2, padding=((1, 1),) * 2), 2, 1),
    "depthwise": (NCHW, 2, 5, 5, (6, 5), (3, 3), window(2, padding=((1, 1),) * 2), 5, 1),
    "depthwise last": (NHWC, 2, 5, 10, (6, 5), (3, 3), window(2, (2, 2)), 5, 1),
    "batch groups": ("fb01_io01->01bf", 4, 3, 8, (6, 6), (6, 6), window(2, padding=((1, 1),) * 2),
                     1, 4),
    "odd labels": ("1f0b_o0i1->f1b0", 2, 3, 4, (6, 5), (3, 2), window(2), 1, 1),
    "three dims": ("b012f_012io->b012f", 2, 2, 3, (4, 5, 6), (2, 3, 2), window(3, (1, 2, 1)), 1, 1),
    "no output": (NHWC, 1, 2, 3, (2, 5), (3, 3), window(2), 1, 1),
    "no channels": (NHWC, 1, 0, 3, (4, 5), (3, 3), window(2), 1, 1),
    "no input": ("b0f_0io->b0f", 1, 2, 3, (0,), (2,), window(1, padding=((2, 1),)), 1, 1),
    "only padding": ("b0f_0io->b0f", 1, 2, 3, (2,), (1,), window(1, (5,), ((4, 0),)), 1, 1),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_against_the_definition(name: Any) -> None:
    labels, batch, channels, features, sizes, kernels, win, *groups = CASES[name]
    dims = dimensions(labels)
    lhs, rhs = operands(
        np.random.default_rng(0), dims, batch, channels, features, sizes, kernels, groups[0]
    )
    result = convolution(lhs, rhs, dims, win, "f64", *groups)
    np.testing.assert_array_equal(result, reference(lhs, rhs, dims, win, *groups))


@each("seed", range(150))
def test_random_windows_against_the_definition(seed: Any) -> None:
    rng = np.random.default_rng(seed)
    rank = int(rng.integers(0, 4))
    digits = [str(i) for i in range(rank)]
    parts = ["".join(rng.permutation([*kind, *digits])) for kind in ("bf", "io", "bf")]
    dims = dimensions(f"{parts[0]}_{parts[1]}->{parts[2]}")
    count = int(rng.integers(1, 4))
    groups = (count, 1) if rng.random() < 0.5 else (1, count)
    win = window(
        rank,
        rng.integers(1, 4, rank).tolist(),
        [(int(a), int(b)) for a, b in rng.integers(-2, 5, (rank, 2))],
        rng.integers(1, 4, rank).tolist(),
        rng.integers(1, 4, rank).tolist(),
        (rng.random(rank) < 0.3).tolist(),
    )
    lhs, rhs = operands(
        rng,
        dims,
        int(rng.integers(1, 4)) * groups[1],
        int(rng.integers(1, 4)) * groups[0],
        int(rng.integers(1, 4)) * count,
        rng.integers(1, 9, rank).tolist(),
        rng.integers(1, 5, rank).tolist(),
        groups[0],
    )
    result = convolution(lhs, rhs, dims, win, "f64", *groups)
    np.testing.assert_array_equal(result, reference(lhs, rhs, dims, win, *groups))


@pytest.mark.parametrize("labels", [NHWC, NCHW])
def test_many_blocks_of_patches(labels: Any) -> None:
    dims, win = dimensions(labels), window(2, padding=((1, 1),) * 2)
    lhs, rhs = operands(np.random.default_rng(1), dims, 3, 64, 5, (40, 21), (3, 3))
    np.testing.assert_array_equal(
        convolution(lhs, rhs, dims, win, "f64"), reference(lhs, rhs, dims, win)
    )


@pytest.mark.parametrize("name", ["stride", "channels first", "three dims", "depthwise last"])
def test_wide_rows_are_halved(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convolution_strategies, "_MAX_ROW_BYTES", 100)
    test_against_the_definition(name)


@pytest.mark.parametrize(
    ("element_type", "dtype"),
    [("s8", np.int8), ("u8", np.uint8), ("s32", np.int32), ("s64", np.int64), ("u64", np.uint64)],
)
def test_integers_wrap(element_type: Any, dtype: Any) -> None:
    info = np.iinfo(dtype)
    rng = np.random.default_rng(2)
    dims, win = dimensions(NHWC), window(2, padding=((1, 1),) * 2)
    lhs = rng.integers(info.min, info.max, (1, 4, 5, 3), dtype, endpoint=True)
    rhs = rng.integers(info.min, info.max, (3, 3, 3, 2), dtype, endpoint=True)
    result = convolution(lhs, rhs, dims, win, element_type)
    exact = reference(lhs.astype(object), rhs.astype(object), dims, win) % (1 << info.bits)
    assert result.dtype == dtype
    np.testing.assert_array_equal(result.astype(object) % (1 << info.bits), exact)


def test_result_types() -> None:
    dims, win = dimensions("b0f_0io->b0f"), window(1)
    ones = np.full((1, 3, 2), 100, np.int8)
    kernel = np.full((2, 2, 1), 100, np.int8)
    assert convolution(ones, kernel, dims, win, "s32").ravel().tolist() == [40000, 40000]
    assert convolution(ones != 0, kernel != 0, dims, win, "pred").ravel().tolist() == [True] * 2
    assert convolution(ones, kernel, dims, win, "f32").dtype == np.float32
    imaginary = convolution(ones * np.complex64(1j), kernel * np.complex64(1j), dims, win, "c64")
    assert imaginary.ravel().tolist() == [-40000, -40000]
    thirds = np.full((1, 3, 2), 1 / 3, ml_dtypes.bfloat16).astype(np.float32)
    rounded = convolution(thirds, np.ones((2, 2, 1), np.float32), dims, win, "bf16")
    assert rounded.ravel().tolist() == [float(ml_dtypes.bfloat16(4 * thirds[0, 0, 0]))] * 2


def test_phases_name_every_pair_that_meets_x_once() -> None:
    for size, kernel, stride, dilation, base, low in itertools.product(
        (1, 4), (1, 3, 4), (1, 2, 3), (1, 2, 4), (1, 2, 3, 4), (-1, 0, 2)
    ):
        out = output_size(size, kernel, stride, (low, 3), base, dilation)
        wanted = {
            (o, k, (o * stride + k * dilation - low) // base)
            for o in range(out)
            for k in range(kernel)
            if (o * stride + k * dilation - low) % base == 0
            and 0 <= (o * stride + k * dilation - low) // base < size
        }
        found = []
        for phase in phases(Axis(size, kernel, out, stride, dilation, low), base):
            cut = trimmed(phase.axis)
            if cut is None:
                continue
            axis = cut.axis
            for o, k in itertools.product(range(axis.out), range(axis.kernel)):
                position = o * axis.stride + k * axis.dilation - axis.low
                if 0 <= position < size:
                    found.append(
                        (
                            phase.first_out + (cut.first_out + o) * phase.out_step,
                            phase.first_tap + (cut.first_tap + k) * phase.tap_step,
                            position,
                        )
                    )
        assert sorted(found) == sorted(wanted)


def test_huge_dilation_and_padding_need_little_memory() -> None:
    far = 1 << 40
    lhs, rhs = np.ones((1, 5, 2)), np.ones((2, 2, 3))
    win = window(1, strides=(far,), padding=((far, 0),), dilation=(far,))
    result = convolution(lhs, rhs, dimensions("b0f_0io->b0f"), win, "f64")
    assert result.tolist() == [[[2.0, 2.0, 2.0]]]


@pytest.mark.parametrize("labels", ["bf01_oi01->bf01", "b01f_01io->b01f"])
def test_what_is_kept_for_the_next_convolution_leaves_results_alone(labels: str) -> None:
    generator, dims = np.random.default_rng(5), dimensions(labels)
    sizes = {"b": 3, "f": 4, "i": 4, "o": 5, "0": 7, "1": 8}
    left, right = labels.split("->")[0].split("_")
    win = window(2, padding=((1, 1), (2, 0)))
    results, wanted = [], []
    for _ in range(3):
        x = generator.standard_normal([sizes[d] for d in left]).astype(np.float32)
        w = generator.standard_normal([{**sizes, "0": 3, "1": 3}[d] for d in right])
        w = w.astype(np.float32)
        results.append(convolution(x, w, dims, win, "f32"))
        wanted.append(reference(x, w, dims, win))
    for made, expected in zip(results, wanted, strict=True):
        np.testing.assert_allclose(made, expected, rtol=1e-4, atol=1e-5)
