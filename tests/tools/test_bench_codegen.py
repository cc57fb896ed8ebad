"""The benchmark of compiled kernels: its limits by hand, its search, its targets where quick."""

import pytest

from hloipu_runtime.machine.load import load_machine
from tools.bench.codegen.__main__ import row_of
from tools.bench.codegen.kernels import kernels
from tools.bench.codegen.limits import Needs, amp_products_per_cycle, limit_of
from tools.bench.codegen.moving_kernels import views
from tools.bench.codegen.search import grids
from tools.bench.codegen.searched_ops import best_matmul, best_reduction, best_transpose
from tools.bench.codegen.small import MOST, compared

TINY, BOW = load_machine("tiny"), load_machine("bow")


def test_the_amp_does_what_the_vendor_says() -> None:
    """349 TFLOP/s in f16 and 87 in f32, on 1,472 tiles at 1.85 GHz."""
    for kind, tera in (("f16", 348.6), ("f32", 87.1)):
        peak = 2 * amp_products_per_cycle(BOW, kind) * 1472 * 1.85e9
        assert peak / 1e12 == pytest.approx(tera, rel=1e-3)


def test_the_limit_is_the_largest() -> None:
    # 4 tiles: 64 products a cycle each, 8 bytes in, 8 out, 4 exchanged.
    for needs, kind, cycles in (
        (Needs(products=25_600), "AMP", 100),
        (Needs(products=25_600, loaded_bytes=6_400), "load", 200),
        (Needs(loaded_bytes=6_400, wide_loads=True), "load", 100),
        (Needs(loaded_bytes=6_400, stored_bytes=9_600), "store", 300),
        (Needs(loaded_bytes=6_400, exchanged_bytes=6_400), "exchange", 400),
    ):
        found = limit_of(TINY, needs)
        assert (found.kind, found.cycles) == (kind, cycles)


def test_there_are_kernels_of_every_family() -> None:
    every = list(kernels())
    assert len(every) >= 24
    assert len({(x.family, x.name) for x in every}) == len(every)
    assert {"matmul", "convolution", "network", "lookup", "order", "view"} <= {
        x.family for x in every
    }


def test_every_split_is_tried() -> None:
    """Of 2 labels on 4 tiles: 1 whole, 2 x 3 of one label, and 2 x 2 in two orders of the axes."""
    assert len(list(grids((8, 8), 4))) == 1 + 6 + 2
    assert len(list(grids((1, 2), 4))) == 2


def test_searches_find_what_one_sees() -> None:
    # Rows that lie on tiles of their own: 10 + 6 * (3 rows * (64 / 4 + 12) + 17).
    assert best_reduction(TINY, "f32", (64, 64), (1,)).cycles == 616
    assert best_matmul(TINY, "f16", 16, 16, 16).tried > 100
    assert best_transpose(TINY, "f32", (4, 8), (1, 0)).cycles > 0


@pytest.mark.parametrize(
    "words", ["matmul f32 64x", "matmul f16 17", "over (0,)", "over (0, 2)", "transpose"]
)
@pytest.mark.thinned(5)
def test_mappings_are_near_the_best(words: str) -> None:
    found = list(compared([words]))
    assert found
    for one in found:
        assert one.times <= MOST, one


def test_views_cost_nothing() -> None:
    for kernel in views():
        assert row_of(kernel, "bow")["added_cycles"] == 0, kernel.name
