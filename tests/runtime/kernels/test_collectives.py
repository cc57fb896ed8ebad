import numpy as np
import pytest

from hloipu_runtime.errors import UsageError
from hloipu_runtime.kernels import collectives
from tests.support.ragged import drawn_members, ragged_results

GROUPS = [[0, 2], [3, 1]]
X = [np.array([10 * p, 10 * p + 1, 10 * p + 2, 10 * p + 3]) for p in range(4)]


def lists(results: list[np.ndarray]) -> list[list[int]]:
    return [r.tolist() for r in results]


def test_all_reduce_combines_within_groups() -> None:
    pair, other = [20, 22, 24, 26], [40, 42, 44, 46]
    assert lists(collectives.all_reduce(X, GROUPS, "add", "s64")) == [pair, other, pair, other]


def test_narrow_sums_are_rounded_as_xla_does() -> None:
    # bf16 once at the end, f16 after every step (XLA:CPU, jaxlib 0.10.2, four devices).
    for first, element_type, want in ((256, "bf16", 260), (2048, "f16", 2048)):
        values = [np.asarray(np.float32(v)) for v in (first, 1, 1, 1)]
        got = collectives.all_reduce(values, [[0, 1, 2, 3]], "add", element_type)
        assert [float(r) for r in got] == [want] * 4


def test_reduce_scatter_keeps_the_members_part() -> None:
    got = collectives.reduce_scatter(X, GROUPS, 0, "add", "s64")
    assert lists(got) == [[20, 22], [44, 46], [24, 26], [40, 42]]


def test_all_gather_joins_in_group_order() -> None:
    got = lists(collectives.all_gather([x[:1] for x in X], GROUPS, 0))
    assert got == [[0, 20], [30, 10], [0, 20], [30, 10]]


def test_all_to_all_in_both_forms() -> None:
    array = lists(collectives.all_to_all(X, GROUPS, 0))
    assert array == [[0, 1, 20, 21], [32, 33, 12, 13], [2, 3, 22, 23], [30, 31, 10, 11]]
    halves = [[x[:2], x[2:]] for x in X]
    by_tuple = collectives.all_to_all_tuple(halves, GROUPS)
    assert [[v for part in mine for v in part.tolist()] for mine in by_tuple] == array


def test_permute_and_broadcast_leave_zeros() -> None:
    assert lists(collectives.collective_permute(X, [(0, 1), (1, 2)])) == [
        [0] * 4,
        [0, 1, 2, 3],
        [10, 11, 12, 13],
        [0] * 4,
    ]
    got = lists(collectives.collective_broadcast(X, [[2, 1]]))
    assert got == [[0] * 4, X[2].tolist(), X[2].tolist(), [0] * 4]


@pytest.mark.parametrize(("groups", "runs"), [([[0, 1, 2, 3]], 1), ([[2, 0], [1, 3]], 2),
                                              ([[3], [0], [2], [1]], 1)])  # fmt: skip
@pytest.mark.parametrize("seed", range(4))
def test_ragged_all_to_all_is_its_definition(seed: int, groups: list[list[int]], runs: int) -> None:
    members: list[list[np.ndarray]] = [[] for _ in range(4)]
    for n, group in enumerate(groups):
        for m, operands in zip(
            group, drawn_members(seed + 9 * n, len(group), runs, 3), strict=True
        ):
            members[m] = operands
    got = collectives.ragged_all_to_all(members, groups)
    for mine, wanted in zip(got, ragged_results(members, groups), strict=True):
        np.testing.assert_array_equal(mine, wanted)


@pytest.mark.parametrize(("operand", "change"), [(2, 99), (2, -9), (4, 99), (3, 1), (5, 1)])
def test_ragged_rows_that_are_not_there_are_refused(operand: int, change: int) -> None:
    members = [
        [np.arange(3.0), np.zeros(2), *map(np.array, ([0, 1], [1, 1], [place, place], [1, 1]))]
        for place in (0, 1)
    ]
    collectives.ragged_all_to_all(members, [[0, 1]])
    members[1][operand] = members[1][operand] + np.array([change, 0])
    with pytest.raises(UsageError) as caught:
        collectives.ragged_all_to_all(members, [[0, 1]])
    assert caught.value.code == "E6011"
