"""The search for an extremum and its place: what the body says, bit for bit."""

from itertools import pairwise, permutations, product

import numpy as np
import pytest

from hloipu_runtime.codelets.core.expression import region
from hloipu_runtime.codelets.core.expression_form import Expression, Node
from hloipu_runtime.codelets.ops.arg_reduction import by_places, keeps_largest, many_never_fall
from hloipu_runtime.codelets.ops.reduce import Reduce
from hloipu_runtime.simulate.functional.whole_tensors import whole_block

INF, NAN = float("inf"), float("nan")


def body(direction: str, *, strict: bool = True) -> Expression:
    """Return the body that JAX prints, or one that keeps the last of equal values."""
    tie = "LT" if strict else "GT"

    def compare(a: int, b: int, how: str) -> Node:
        return Node("compare", (a, b), "pred", (("direction", how),))

    return Expression(
        ("f32", "s32", "f32", "s32"),
        (
            compare(0, 2, direction), compare(0, 0, "NE"), Node("or", (4, 5), "pred"),
            compare(0, 2, "EQ"), compare(1, 3, tie), Node("and", (7, 8), "pred"),
            Node("or", (6, 9), "pred"), Node("select", (6, 0, 2), "f32"),
            Node("select", (10, 1, 3), "s32"),
        ),
        (11, 12),
    )  # fmt: skip


def test_bodies_are_told_apart() -> None:
    assert keeps_largest(body("GT")) is True
    assert keeps_largest(body("LT")) is False
    assert keeps_largest(body("GT", strict=False)) is None


ROWS = [
    [1, 3, 3, 2], [-1, -2, -1, -3], [NAN, 5, NAN, 9], [0.0, -0.0, -1, -2], [-INF, -INF, -INF, 1],
    [-INF] * 4, [INF, 1, INF, 0], [-0.0, 0.0, 1, 2],
]  # fmt: skip


@pytest.mark.parametrize("direction", ["GT", "LT"])
@pytest.mark.parametrize("dimension", [0, 1])
def test_the_extremum_is_that_of_the_body(direction: str, dimension: int) -> None:
    x = np.array(ROWS, np.float32)
    x = x if dimension else np.ascontiguousarray(x.T)
    places = np.indices(x.shape, np.int32)[dimension]
    worst = np.asarray(-INF if direction == "GT" else INF, np.float32)
    given = [x, places, worst, np.asarray(0, np.int32)]
    codelet = Reduce((dimension,), "", body(direction), ("f32", "s32"))
    kept = (x.shape[1 - dimension],)
    operands = [whole_block(a.shape) for a in given]
    results = [whole_block(kept)] * 2
    expected = codelet.run(
        [b._replace(array=a) for b, a in zip(operands, given, strict=True)], results
    )
    for n, row in enumerate(x if dimension else x.T):  # each alone: one odd row changes the way
        one = row[None] if dimension else row[:, None]
        shapes = [whole_block(one.shape)] * 2 + operands[2:]
        own = np.indices(one.shape, np.int32)[dimension]
        found = codelet.bound(shapes, [whole_block((1,))] * 2)([one, own, *given[2:]], [None] * 2)
        assert [y.tobytes() for y in found] == [y[n : n + 1].tobytes() for y in expected]


def test_numpy_searches_where_it_may() -> None:
    def never(arrays: object, outs: object) -> list[np.ndarray]:
        raise AssertionError

    search = by_places(never, 0, largest=True)
    x = np.array([1, 3, 3, 2], np.float32)
    given = [x, np.arange(4, dtype=np.int32), np.asarray(-INF, np.float32), np.asarray(0, np.int32)]
    assert [int(y) for y in search(given, [None] * 2)] == [3, 1]
    with pytest.raises(AssertionError):
        search([x, given[1][::-1], *given[2:]], [None] * 2)


@pytest.mark.parametrize("parts", [(), (3,), (2,)])
@pytest.mark.parametrize("is_read_only", [False, True])
def test_a_prepared_search_sees_what_arrays_hold_now(
    parts: tuple[int, ...], is_read_only: bool
) -> None:
    """Against the body, one element after the other."""
    codelet = Reduce((1,), "", body("GT"), ("f32", "s32"), parts)
    step = region(body("GT"))
    both: list[np.ndarray] = [np.empty((1, 4), np.float32), np.empty((1, 4), np.int32)]
    inits = () if parts else (np.asarray(-INF, np.float32), np.asarray(0, np.int32))
    size = parts[0] if parts else 4
    pieces = -(-4 // size)
    made = [np.empty((pieces, 1) if parts else (1,), x.dtype) for x in both]
    given = [x.view() for x in both]
    for x in given:
        x.flags.writeable = not is_read_only
    prepared = codelet.on_arrays(
        [whole_block(x.shape)._replace(array=x) for x in (*given, *inits)],
        [whole_block(x.shape)._replace(array=x) for x in made],
    )
    assert prepared is not None
    for row in ROWS:
        both[0][0] = np.array(row, np.float32)
        both[1][0] = np.arange(4)
        prepared.run()
        for n in range(pieces):
            columns = range(n * size, min(4, (n + 1) * size))
            best = list(inits) or [x[0, columns[0]] for x in both]
            for k in columns[0 if inits else 1 :]:
                best = step(*best, *(x[0, k] for x in both))
            found = [x[n, 0] if parts else x[0] for x in made]
            assert [np.asarray(x).tobytes() for x in best] == [x.tobytes() for x in found], row


@pytest.mark.parametrize("sizes", [(5, 7, 300), (3, 1, 2000), (2000, 1), (1300,)])
def test_many_places_are_looked_at_in_any_order_of_rows(sizes: tuple[int, ...]) -> None:
    *rows, count = sizes
    falls = {"nowhere": None, "at the end": -1, "at a row's end": count - 1, "inside": count // 2}
    for order, (where, at) in product(permutations(range(len(rows))), falls.items()):
        laid = np.empty((*(rows[d] for d in order), count), np.int32)
        laid[:] = np.arange(count)
        if at is not None:
            laid.reshape(-1)[at] = -1
        for places in (laid.transpose(*np.argsort(order), -1), np.repeat(laid, 2, -1)[..., ::2]):
            expected = all(
                a <= b for row in places.reshape(-1, count).tolist() for a, b in pairwise(row)
            )
            assert many_never_fall(places) == expected, (order, where)
