"""Convolution: the law, values by the definition, and cycles worked out by hand."""

from dataclasses import replace
from itertools import product
from math import prod
from typing import Any

import numpy as np
import pytest

from hloipu_runtime.codelets.core.tensors import Tensor
from hloipu_runtime.codelets.dense.convolution import Convolution
from hloipu_runtime.codelets.ops.windows import Window
from hloipu_runtime.kernels.contractions.convolution_geometry import output_size
from hloipu_runtime.machine.load import load_machine
from tests.support.codelet_law import Given, check_every_split, close_values

RNG = np.random.default_rng(3)
TINY = load_machine("tiny")

Labels = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]
# b01f_01io->b01f, bf01_oi01->bf01 and a mix of them.
LAST: Labels = ((0, 3, 1, 2), (2, 3, 0, 1), (0, 3, 1, 2))
FIRST: Labels = ((0, 1, 2, 3), (1, 0, 2, 3), (0, 1, 2, 3))
MIXED: Labels = ((3, 0, 2, 1), (1, 2, 3, 0), (1, 3, 0, 2))


class Case:
    """A convolution of whole numbers, with its operands."""

    def __init__(
        self,
        image: tuple[int, ...],
        kernel: tuple[int, ...],
        window: Window,
        labels: Labels = LAST,
        **fields: Any,
    ) -> None:
        self.image, self.kernel, self.window = image, kernel, window
        reversal = fields.pop("reversal", (False,) * len(window))
        element_type = fields.pop("element_type", "f32")
        self.codelet = Convolution(
            labels[0], labels[1], labels[2], window, reversal, element_type, **fields
        )

    def operands(self) -> list[Given]:
        """Return image [batch, feature, spatial] and kernel [in, out, spatial], put in order."""
        x = RNG.integers(-4, 5, self.image).astype(np.float32)
        w = RNG.integers(-4, 5, self.kernel).astype(np.float32)
        self.x, self.w = x, w
        kind = self.codelet.element_type
        return [
            Given(kind, x.transpose(np.argsort(self.codelet.lhs)).copy()),
            Given(kind, w.transpose(np.argsort(self.codelet.rhs)).copy()),
        ]

    @property
    def result(self) -> tuple[int, ...]:
        """Sizes of [batch, feature, spatial] of the result."""
        spatial = [
            output_size(n, k, stride, (low, high), base, dilation)
            for n, k, (_, stride, low, high, base, dilation) in zip(
                self.image[2:], self.kernel[2:], self.window, strict=True
            )
        ]
        return (self.image[0] // self.codelet.batch_groups, self.kernel[1], *spatial)

    def tensor(self) -> Tensor:
        """Return the result's tensor."""
        shape = tuple(self.result[d] for d in np.argsort(self.codelet.out))
        lengths = (self.kernel[0], *self.kernel[2:])
        pieces = (-(-lengths[along] // part) for along, part in self.codelet.cuts)
        return Tensor(self.codelet.element_type, (*pieces, *shape))

    def expected(self) -> np.ndarray[Any, Any]:
        """Compute [batch, feature, spatial] element by element."""
        x, w, c = self.x.astype(np.float64), self.w.astype(np.float64), self.codelet
        out = np.zeros(self.result)
        batch, features = self.result[:2]
        each = features // (c.feature_groups * c.batch_groups)
        for b, f, *at in product(*map(range, self.result)):
            group = f // each
            row = b + group * batch if c.batch_groups > 1 else b
            first = group * w.shape[0] if c.feature_groups > 1 else 0
            channels = slice(first, first + w.shape[0])
            for taps in product(*(range(n) for n in w.shape[2:])):
                places = []
                for o, k, (_, stride, low, _, base, dilation), n in zip(
                    at, taps, self.window, x.shape[2:], strict=True
                ):
                    place, hole = divmod(o * stride + k * dilation - low, base)
                    places.append(place if hole == 0 and 0 <= place < n else -1)
                if min(places, default=0) >= 0:
                    seen = tuple(
                        n - 1 - k if back else k
                        for k, n, back in zip(taps, w.shape[2:], c.reversal, strict=True)
                    )
                    pixel: Any = (slice(None), *places)
                    tap: Any = (slice(None), *seen)
                    out[(b, f, *at)] += x[row, channels][pixel] @ w[:, f][tap]
        return out


ONE = (1, 1, 0, 0, 1, 1)
CASES = {
    "same": Case((2, 3, 7, 5), (3, 4, 3, 3), ((3, 1, 1, 1, 1, 1), (3, 1, 1, 1, 1, 1))),
    "one tap": Case((2, 3, 5, 4), (3, 5, 1, 1), (ONE, ONE), FIRST),
    "strided": Case((1, 2, 9, 8), (2, 3, 3, 2), ((3, 2, 1, 0, 1, 1), (2, 3, 0, 1, 1, 1)), FIRST),
    "dilated": Case((2, 2, 9, 9), (2, 2, 3, 2), ((3, 1, 2, 2, 1, 2), (2, 1, 1, 2, 1, 3)), MIXED),
    "holes": Case((2, 3, 4, 5), (3, 2, 3, 3), ((3, 1, 1, 2, 2, 1), (3, 2, 2, 2, 3, 1))),
    "cropped": Case((1, 1, 9, 6), (1, 2, 2, 2), ((2, 1, -1, -2, 1, 1), (2, 1, 0, -1, 2, 1))),
    "reversed": Case(
        (1, 2, 6, 5), (2, 3, 3, 2), ((3, 1, 1, 1, 1, 1), (2, 1, 0, 0, 1, 1)), reversal=(True, False)
    ),
    "groups": Case(
        (2, 6, 5, 4), (2, 9, 3, 1), ((3, 1, 1, 1, 1, 1), ONE), MIXED, feature_groups=3
    ),
    "depthwise": Case(
        (2, 5, 6, 6), (1, 5, 3, 3), ((3, 1, 1, 1, 1, 1),) * 2, LAST, feature_groups=5
    ),
    "batch groups": Case(
        (6, 2, 5, 4), (2, 6, 3, 4), ((3, 1, 1, 1, 1, 1), (4, 1, 1, 1, 1, 1)), FIRST, batch_groups=3
    ),
    "weights": Case((3, 4, 8, 8), (4, 5, 6, 6), ((6, 1, 0, 0, 1, 1), (6, 1, 1, 1, 1, 1))),
    "holes and weights": Case(
        (2, 3, 5, 10), (3, 2, 9, 15), ((9, 1, 1, 1, 2, 1), (15, 1, -1, 3, 3, 2)), MIXED
    ),
    "row": Case((2, 3, 8), (3, 4, 3), ((3, 1, 2, 0, 1, 1),), ((0, 2, 1), (1, 2, 0), (0, 2, 1))),
    "no window": Case((4, 3), (3, 5), (), ((0, 1), (0, 1), (0, 1))),
    "bf16": Case(
        (2, 3, 7, 5), (3, 4, 3, 3), ((3, 1, 1, 1, 1, 1),) * 2, LAST, element_type="bf16"
    ),
    "whole numbers": Case(
        (2, 3, 5, 5), (3, 2, 2, 2), ((2, 1, 0, 1, 1, 1),) * 2, LAST, element_type="s32"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_split_convolutions_are_parts_of_the_whole(name: str) -> None:
    case = CASES[name]
    operands = case.operands()
    if case.codelet.element_type == "s32":
        operands = [Given("s32", x.array.astype(np.int32)) for x in operands]
    result = case.tensor()
    whole = check_every_split(case.codelet, operands, [result])
    expected = case.expected().transpose(np.argsort(case.codelet.out))
    tolerance = 2**-8 if case.codelet.element_type == "bf16" else 0
    if case.codelet.element_type == "s32":
        expected = expected.astype(np.int32)
    np.testing.assert_allclose(whole[0], expected, rtol=tolerance)


def check_pieces(name: str, *cuts: tuple[int, int]) -> None:
    """Compare the sum of pieces with the whole, however pieces and results are split."""
    case = CASES[name]
    operands = case.operands()
    expected = case.expected().transpose(np.argsort(case.codelet.out))
    cut = Case(case.image, case.kernel, case.window)
    cut.codelet = replace(case.codelet, cuts=cuts)
    whole = check_every_split(cut.codelet, operands, [cut.tensor()], same=close_values(0))
    axes = tuple(range(len(cuts)))
    np.testing.assert_array_equal(np.sum(whole[0], axis=axes), expected)


@pytest.mark.parametrize("part", [1, 2, 3, 7])
@pytest.mark.parametrize(
    "name", ["same", "strided", "dilated", "holes", "one tap", "no window", "batch groups"]
)
def test_pieces_of_the_input_features_add_up(name: str, part: int) -> None:
    check_pieces(name, (0, part))


@pytest.mark.parametrize("part", [1, 2, 4, 9])
@pytest.mark.parametrize("along", [1, 2])
@pytest.mark.parametrize(
    "name", ["same", "strided", "dilated", "groups", "batch groups", "weights"]
)
@pytest.mark.thinned(3)
def test_pieces_of_the_kernel_add_up(name: str, along: int, part: int) -> None:
    check_pieces(name, (along, part))


@pytest.mark.parametrize("cuts", [((1, 2),), ((1, 6),), ((2, 3),), ((2, 6),), ((1, 4), (2, 9))])
def test_pieces_of_the_kernel_add_up_over_holes(cuts: tuple[tuple[int, int], ...]) -> None:
    check_pieces("holes and weights", *cuts)


@pytest.mark.parametrize("name", ["strided", "batch groups", "weights"])
@pytest.mark.parametrize("cuts", [((0, 2), (1, 2)), ((2, 2), (0, 1)), ((0, 1), (1, 1), (2, 2))])
@pytest.mark.thinned(2)
def test_pieces_along_several_dimensions_add_up(
    name: str, cuts: tuple[tuple[int, int], ...]
) -> None:
    check_pieces(name, *cuts)


def test_sums_that_round() -> None:
    case = CASES["same"]
    operands = [
        Given("f32", np.asarray(RNG.standard_normal(x.array.shape), np.float32))
        for x in case.operands()
    ]
    check_every_split(case.codelet, operands, [case.tensor()], same=close_values(1e-5, 1e-5))


@pytest.mark.parametrize("empty", ["image", "features", "kernel"])
def test_empty_dimensions(empty: str) -> None:
    window = ((3, 1, 1, 1, 1, 1),) * 2
    case = {
        "image": Case((0, 2, 4, 4), (2, 3, 3, 3), window),
        "features": Case((2, 0, 4, 4), (0, 3, 3, 3), window),
        "kernel": Case((2, 2, 4, 4), (2, 0, 3, 3), window),
    }[empty]
    whole = check_every_split(case.codelet, case.operands(), [case.tensor()])
    assert not whole[0].any()


def _cycles(case: Case, kind: str = "f16", result: str = "f32") -> int:
    tensors = [
        Tensor(kind, tuple(np.asarray(case.image)[np.argsort(case.codelet.lhs)].tolist())),
        Tensor(kind, tuple(np.asarray(case.kernel)[np.argsort(case.codelet.rhs)].tolist())),
    ]
    return case.codelet.work(TINY, tensors, [case.tensor()._replace(element_type=result)]).cycles


def test_one_tap_costs_what_the_matrix_product_costs() -> None:
    # As the product of test_dot: 96 positions, 64 channels in and out.
    adding, zeroing = 6 * (38 + 4 * 13 - 7) + 14, 6 * (37 + 4 * 13 - 7) + 14
    expected = 50 + 6 * (7 + 3 * 3) + 13 + 3 * (15 + 4 * (19 + 6 + 64 + adding))
    expected += 11 + 4 * (18 + 7 + 64 + zeroing)
    assert _cycles(Case((1, 64, 12, 8), (64, 64, 1, 1), (ONE, ONE))) == expected


def test_three_by_three_cycles_by_hand() -> None:
    # 16 rows of 12 positions, 32 a worker, which are 3 rows' parts; 4 kernel rows in one pass of
    # groups of 4 channels, so that 64 channels are 16 groups, and the 3 x 3 kernel has 3 taps.
    worker = 18 - 9 + 3 * (3 + 34 - 12) + 32 * 4
    pass_cycles = 12 + 64 + 60 + 3 + 6 * worker
    four_rows = 16 + 16 * (14 + 14 + 14 + 3 * pass_cycles)
    one_row = 16 + 4 * (14 + 14 + 3 * (14 + 3 * (12 + 64 + 15 + 3 + 6 * worker)))
    case = Case((1, 64, 16, 12), (64, 16, 3, 3), ((3, 1, 1, 1, 1, 1),) * 2)
    # Sums are zeroed before: two a slot, 16 features of 192 positions among six workers.
    zeroing = 17 + 1 + 1 + 6 * (5 + 16 * 32 // 2)
    assert _cycles(case) == 109 + 2 * 6 * 9 + zeroing + min(four_rows, one_row)


@pytest.mark.parametrize("kind", ["f16", "f32", "bf16", "s8"])
@pytest.mark.parametrize("taps", [1, 3])
def test_larger_parts_never_cost_less(kind: str, taps: int) -> None:
    for turn in range(4):
        last = 0
        for size in range(1, 40):
            batch, channels, features, height = np.roll([size, 2, 5, 6], turn).tolist()
            window = ((taps, 1, taps // 2, taps // 2, 1, 1),) * 2
            case = Case((batch, channels, height, 9), (channels, features, taps, taps), window)
            cycles = _cycles(case, kind)
            assert cycles >= last, (turn, size)
            last = cycles


def test_the_cost_of_a_depthwise_convolution_is_far_below_that_of_a_dense_one() -> None:
    window = ((3, 1, 1, 1, 1, 1),) * 2
    dense = _cycles(Case((1, 32, 16, 16), (32, 32, 3, 3), window))
    depthwise = _cycles(Case((1, 32, 16, 16), (1, 32, 3, 3), window, feature_groups=32))
    assert 4 * depthwise < dense * prod((3, 3))
