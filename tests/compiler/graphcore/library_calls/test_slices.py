"""Rows by index, stretches of sequences, histograms, pools, images, against numpy."""

import json

import numpy as np
from scipy import ndimage

from tests.support.popops_call import called, drawn

TABLE, ROWS = drawn(6, 2), drawn(4, 2)
INDEX = np.array([0, 5, 2, 2], np.int32)
TWO = np.asarray(np.float32(2))


def test_rows_are_read() -> None:
    (made,) = called("MultiSlice", [TABLE, INDEX], "f32[4,2]", {"indices_are_sorted": False})
    np.testing.assert_array_equal(made, TABLE[INDEX])
    for spelled in ({"attributes": {"indices": [0, 2, 4]}}, {"line": "indices={0,2,4}"}):
        (made,) = called("StaticMultiSlice", [TABLE], "f32[3,2]", **spelled)
        np.testing.assert_array_equal(made, TABLE[[0, 2, 4]])


def test_rows_are_replaced_or_added_to() -> None:
    given = [TABLE, INDEX[:, None], ROWS]
    (made,) = called("MultiUpdate", given, "f32[6,2]", {"indices_are_sorted": False})
    replaced = TABLE.copy()
    replaced[INDEX] = ROWS
    np.testing.assert_array_equal(made, replaced)
    (made,) = called("MultiUpdateAdd", [*given, TWO], "f32[6,2]", {"indices_are_sorted": False})
    added = TABLE.copy()
    np.add.at(added, INDEX, 2 * ROWS)
    np.testing.assert_allclose(made, added, 1e-6)
    (made,) = called("StaticMultiUpdateAdd", [TABLE, ROWS, TWO], "f32[6,2]",
                     {"indices": INDEX.tolist()})  # fmt: skip
    np.testing.assert_allclose(made, added, 1e-6)


def test_stretches_of_a_sequence_are_packed_and_unpacked() -> None:
    source, target = drawn(5, 2), np.full((6, 2), 9, np.float32)
    counts, begins, ends = (np.array(x, np.int32) for x in ([2, 1], [1, 4], [0, 3]))
    wanted = target.copy()
    wanted[0:2], wanted[3] = source[1:3], source[4]
    (made,) = called("SequenceSlice", [target, source, counts, begins, ends], "f32[6,2]",
                     {"zero_unused": False})  # fmt: skip
    np.testing.assert_array_equal(made, wanted)
    (made,) = called("SequenceSliceUnpack", [source, counts, begins, ends], "f32[6,2]",
                     {"zero_unused": True, "total_elements": 6})  # fmt: skip
    np.testing.assert_array_equal(made, np.where(wanted == 9, 0, wanted))


def test_a_histogram_counts_between_levels() -> None:
    x = np.array([-2, -0.5, 0, 0.4, 0.5, 3], np.float32)
    levels = np.array([-0.5, 0.5], np.float32)
    (made,) = called("Histogram", [x, levels], "f32[3]", {"absolute_of_input": False})
    assert made.tolist() == [1, 3, 2]
    (made,) = called("HistogramUpdate", [made, x, levels], "f32[3]", {"absolute_of_input": True})
    assert made.tolist() == [1, 3 + 2, 2 + 4]


SIZES = ((1, 1, 0, 0), (3, 2, 1, 1), (2, 2, 0, 0), (1, 1, 0, 0))
_FIELDS = ("size", "stride", "paddingLow", "paddingHigh")
WINDOW = {"window": json.dumps({"dimensions": [
    dict(zip(_FIELDS, map(str, sizes), strict=True)) for sizes in SIZES
]})}  # fmt: skip
LINE = "window={size=1x3x2x1 stride=1x2x2x1 pad=0_0x1_1x0_0x0_0}"
IMAGE = np.random.default_rng(1).integers(0, 3, (1, 5, 4, 2)).astype(np.float32)


def test_pools_and_their_gradients() -> None:
    padded = np.full((7, 4, 2), np.nan)
    padded[1:6] = IMAGE[0]
    best, mean = np.zeros((3, 2, 2)), np.zeros((3, 2, 2))
    of_best, of_mean = np.zeros((7, 4, 2)), np.zeros((7, 4, 2))
    gradient = drawn(1, 3, 2, 2)
    for i, j, c in np.ndindex(3, 2, 2):
        place = (slice(2 * i, 2 * i + 3), slice(2 * j, 2 * j + 2), c)
        best[i, j, c], mean[i, j, c] = np.nanmax(padded[place]), np.nanmean(padded[place])
        of_best[place] += (padded[place] == best[i, j, c]) * gradient[0, i, j, c]
        of_mean[place] += gradient[0, i, j, c] / np.isfinite(padded[place]).sum()
    (made,) = called("MaxPool", [IMAGE], "f32[1,3,2,2]", line=LINE)
    np.testing.assert_array_equal(made[0], best)
    (back,) = called("MaxPoolGrad", [IMAGE, made, gradient], "f32[1,5,4,2]", WINDOW)
    np.testing.assert_allclose(back[0], of_best[1:6], 1e-5, 1e-6)
    (made,) = called("AvgPool", [IMAGE], "f32[1,3,2,2]", WINDOW)
    np.testing.assert_allclose(made[0], mean, 1e-6)
    (back,) = called("AvgPoolGrad", [gradient], "f32[1,5,4,2]", WINDOW)
    np.testing.assert_allclose(back[0], of_mean[1:6], 1e-5, 1e-6)


def test_images_are_normalised_and_get_a_fourth_channel() -> None:
    offsets, scales = drawn(3), drawn(3, seed=1)
    image = IMAGE[..., :1].repeat(3, -1)
    (made,) = called("NormaliseImage", [image, offsets, scales], "f32[1,5,4,4]", {"scale": 0.1})
    np.testing.assert_allclose(made[..., :3], (image * np.float32(0.1) - offsets) * scales, 1e-5)
    assert not made[..., 3].any()


def test_a_convolution_turns_its_kernel() -> None:
    image, kernel = drawn(1, 4, 4, 3), drawn(3, 3, 2, 3)
    wanted = sum(
        np.stack(
            [
                ndimage.convolve(image[0, ..., o], kernel[..., i, o], mode="constant")
                for i in (0, 1)
            ],
            -1,
        )
        for o in range(3)
    )
    line = "window={size=3x3 pad=1_1x1_1}, dim_labels=b01f_01oi->b01f, feature_group_count=1"
    (made,) = called("ConvWithReverse", [image, kernel], "f32[1,4,4,2]", {}, line)
    np.testing.assert_allclose(made[0], wanted, 1e-4, 1e-5)
