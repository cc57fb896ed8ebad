"""Samples of configurations: every pair of values, no row twice."""

from itertools import combinations

from tests.support.covering import covering

DIMENSIONS = {"a": (1, 2, 3, 4), "b": "xyz", "c": (False, True), "d": tuple(range(6))}


def pairs(row: dict[str, object]) -> set[tuple[tuple[str, object], ...]]:
    return set(combinations(sorted(row.items()), 2))


def test_every_pair_comes_in_few_rows() -> None:
    rows = covering(DIMENSIONS, 40)
    found = set().union(*map(pairs, rows))
    sizes = [len(values) for values in DIMENSIONS.values()]
    assert len(found) == sum(a * b for a, b in combinations(sizes, 2))
    # 4 * 6 rows are the fewest that hold the pairs of the two longest dimensions
    few = set().union(*map(pairs, covering(DIMENSIONS, 30)))
    assert few == found


def test_rows_differ_and_are_the_same_for_a_seed() -> None:
    rows = covering(DIMENSIONS, 100)
    assert len({tuple(row.items()) for row in rows}) == len(rows) == 100
    assert rows == covering(DIMENSIONS, 100)
    assert rows != covering(DIMENSIONS, 100, seed=1)


def test_no_more_rows_than_there_are() -> None:
    rows = covering({"a": (1, 2), "b": (1, 2, 3)}, 100)
    assert len(rows) == 6


def test_rows_that_cannot_be_are_left_out() -> None:
    rows = covering(DIMENSIONS, 60, admits=lambda row: row["a"] != 1 or row["b"] == "x")
    assert len(rows) == 60
    assert all(row["a"] != 1 or row["b"] == "x" for row in rows)
    assert any(row["a"] == 1 for row in rows)
