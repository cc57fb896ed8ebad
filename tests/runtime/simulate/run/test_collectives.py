"""Results of collectives of one group, against the same done in numpy; and meetings in rounds."""

from threading import Thread

import numpy as np
import pytest

from hloipu_runtime.program import collective as c
from hloipu_runtime.program.program import Array
from hloipu_runtime.simulate.run.meeting import Meeting
from hloipu_runtime.simulate.run.participant import group_results

GROUP = (4, 7, 5)
"""Three participants, in the order in which they count."""
GIVEN = [np.arange(18, dtype=np.float32).reshape(3, 6) * 10**n for n in range(3)]


def results(form: c.CollectiveForm, given: list[Array], group: tuple[int, ...] = GROUP) -> object:
    found = group_results(form, group, ["f32"], [[x] for x in given])
    return [x for (x,) in found]


@pytest.mark.parametrize(
    ("form", "wanted"),
    [
        (c.CollectiveForm(c.ALL_REDUCE, (GROUP,), monoid="add"), [sum(GIVEN)] * 3),
        (c.CollectiveForm(c.ALL_REDUCE, (GROUP,), monoid="maximum"), [GIVEN[2]] * 3),
        (
            c.CollectiveForm(c.REDUCE_SCATTER, (GROUP,), monoid="add", dimension=1),
            np.split(np.asarray(sum(GIVEN)), 3, axis=1),
        ),
        (
            c.CollectiveForm(c.ALL_GATHER, (GROUP,), dimension=0),
            [np.concatenate(GIVEN, axis=0)] * 3,
        ),
        (
            c.CollectiveForm(c.ALL_TO_ALL, (GROUP,), dimension=1),
            [np.concatenate([np.split(x, 3, axis=1)[n] for x in GIVEN], axis=1) for n in range(3)],
        ),
        (c.CollectiveForm(c.BROADCAST, (GROUP,)), [GIVEN[0]] * 3),
        # Nobody sends to 5; what leads elsewhere is another group's.
        (
            c.CollectiveForm(c.PERMUTE, pairs=((4, 7), (5, 4), (0, 1))),
            [GIVEN[2], GIVEN[0], np.zeros_like(GIVEN[0])],
        ),
    ],
    ids=lambda x: x.kind if isinstance(x, c.CollectiveForm) else "",
)
def test_results_of_a_group(form: c.CollectiveForm, wanted: list[Array]) -> None:
    np.testing.assert_array_equal(results(form, GIVEN), wanted)


def test_who_is_in_no_group_of_a_broadcast_gets_zeros() -> None:
    form = c.CollectiveForm(c.BROADCAST, ((0, 1), (3,)))
    np.testing.assert_array_equal(results(form, GIVEN[:1], (2,)), [np.zeros_like(GIVEN[0])])
    np.testing.assert_array_equal(results(form, GIVEN[:1], (3,)), GIVEN[:1])


def test_several_operands_are_each_by_themselves_but_parts_of_a_tuple() -> None:
    members = [[GIVEN[n], GIVEN[n].astype(np.int32)] for n in range(2)]
    form = c.CollectiveForm(c.ALL_REDUCE, ((0, 1),), monoid="add")
    found = group_results(form, (0, 1), ["f32", "s32"], members)
    for row in found:
        for x, (a, b) in zip(row, zip(*members, strict=True), strict=True):
            assert x.dtype == a.dtype
            np.testing.assert_array_equal(x, a + b)
    swapped = c.CollectiveForm(c.ALL_TO_ALL, ((0, 1),), dimension=c.TUPLE_FORM)
    members = [[GIVEN[0], GIVEN[1]], [GIVEN[2], GIVEN[0] + 1]]
    found = group_results(swapped, (0, 1), ["f32", "f32"], members)
    for n in range(2):
        for m in range(2):
            np.testing.assert_array_equal(found[n][m], members[m][n])


@pytest.mark.parametrize("groups", [((0, 1, 2),), ((0, 2), (1,)), ((0,), (1,), (2,))])
def test_rounds_of_one_meeting_have_nothing_to_do_with_each_other(
    groups: tuple[tuple[int, ...], ...],
) -> None:
    meeting, rounds = Meeting(3), 40
    found: dict[int, list[float]] = {n: [] for n in range(3)}

    def add(members: list[list[Array]]) -> list[list[Array]]:
        total = np.sum([x for (x,) in members], axis=0)
        return [[total + place] for place in range(len(members))]

    def take_part(participant: int) -> None:
        (group,) = (x for x in groups if participant in x)
        place = group.index(participant)
        for number in range(rounds):
            given = np.asarray(100.0 * number + participant)
            (result,) = meeting.attend("sum", group, place, [given], add)
            found[participant].append(float(result))
        meeting.leave()

    threads = [Thread(target=take_part, args=(n,), daemon=True) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    for group in groups:
        for place, participant in enumerate(group):
            assert found[participant] == [
                100.0 * number * len(group) + sum(group) + place for number in range(rounds)
            ]
