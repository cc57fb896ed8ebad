"""Each source against the plain list of what it must give, from any place on."""

from collections.abc import Callable
from itertools import islice

import numpy as np
import pytest

from hloipu_runtime.errors import StreamError
from hloipu_runtime.streams.arrays import from_arrays
from hloipu_runtime.streams.element import ElementSpec, LeafSpec
from hloipu_runtime.streams.made import (
    from_callable,
    from_iterable,
    null_feed,
    source_of,
    synthetic,
)
from hloipu_runtime.streams.source import Source

ROWS = np.arange(7, dtype=np.float32)
SPEC = ElementSpec((LeafSpec("f32", (2,)), LeafSpec("s32", ())))


def listed(source: Source, skip: int = 0, most: int = 50) -> list[object]:
    return [np.asarray(element).tolist() for element in islice(source.elements(skip), most)]


PLAIN: tuple[Callable[[], Source], ...] = (
    lambda: from_arrays(ROWS),
    lambda: from_iterable(list(ROWS)),
)


@pytest.mark.parametrize("make", PLAIN)
def test_combined_as_lists_are(make: Callable[[], Source]) -> None:
    plain = ROWS.tolist()
    assert listed(make()) == plain
    assert listed(make().repeat(3)) == plain * 3
    assert listed(make().wrap(), most=20) == (plain * 3)[:20]
    assert listed(make().take(3)) == plain[:3]
    assert listed(make().batch(3)) == [plain[:3], plain[3:6]]
    assert listed(make().batch(3, drop_remainder=False)) == [plain[:3], plain[3:6], plain[6:]]
    assert listed(make().map(lambda x: x * 2)) == [2 * x for x in plain]
    assert listed(make().repeat(2).batch(4)) == np.reshape((plain * 2)[:12], (3, 4)).tolist()


COMBINED: tuple[Callable[[Source], Source], ...] = (
    lambda s: s,
    lambda s: s.repeat(4),
    lambda s: s.shuffle(3).wrap(),
    lambda s: s.shuffle(3, buffer=3).repeat(3),
    lambda s: s.shuffle(5).batch(2).wrap(),
    lambda s: s.batch(3, drop_remainder=False).repeat(3),
    lambda s: s.map(np.negative).take(4).repeat(2),
    lambda s: s.wrap().shuffle(2, buffer=4).take(33),
    lambda s: s.shuffle(1).shuffle(2).repeat(2),
    lambda s: s.shuffle(1).repeat(2).repeat(2),
)


@pytest.mark.parametrize("make", PLAIN)
@pytest.mark.parametrize("number", range(len(COMBINED)))
def test_skipping_leaves_out_the_first_elements(make: Callable[[], Source], number: int) -> None:
    source = COMBINED[number](make())
    whole = listed(source)
    assert whole
    assert listed(source) == whole
    for skip in (0, 1, 5, 7, 8, 15, 49):
        assert listed(source, skip, 50 - skip) == whole[skip:]


@pytest.mark.parametrize("make", PLAIN)
def test_a_shuffle_permutes_each_pass_anew(make: Callable[[], Source]) -> None:
    twice = np.ravel(np.asarray(listed(make().shuffle(11).repeat(2))))
    first, second = twice[:7].tolist(), twice[7:].tolist()
    assert sorted(first) == sorted(second) == ROWS.tolist()
    assert first != second
    assert listed(make().shuffle(11)) == first
    assert listed(make().shuffle(12)) != first


def test_passes_of_passes_are_all_different() -> None:
    rows = listed(from_arrays(ROWS).shuffle(5).repeat(2).repeat(3))
    passes = {tuple(rows[at : at + 7]) for at in range(0, 42, 7)}
    assert len(passes) == 6


def test_a_buffered_shuffle_moves_elements_back_by_less_than_its_buffer_at_most() -> None:
    got = np.asarray(listed(from_iterable(list(range(50))).shuffle(0, buffer=4)))
    assert sorted(got) == list(range(50))
    # An element cannot come before the buffer has reached it.
    assert all(value <= at + 3 for at, value in enumerate(got))


def test_rows_and_their_batches_are_views() -> None:
    x = np.zeros((8, 3), np.float32)
    for source in (from_arrays(x), from_arrays(x).batch(4), from_arrays(x).batch(4).wrap()):
        assert all(np.shares_memory(e, x) for e in islice(source.elements(), 6))


def test_nested_arrays_give_nested_rows() -> None:
    source = from_arrays({"b": ROWS, "a": (ROWS * 2, ROWS * 3)})
    first, second = islice(source.elements(1), 2)
    assert first == {"a": (2, 3), "b": 1}
    assert second == {"a": (4, 6), "b": 2}
    batch = next(source.shuffle(1).batch(7).elements())
    assert (batch["a"][0] == batch["b"] * 2).all()
    stacked = next(source.map(lambda e: e).batch(7).elements())
    assert (stacked["a"][1] == ROWS * 3).all()


def test_counts() -> None:
    source = from_arrays(ROWS)
    assert source.batch(3).count == 2
    assert source.batch(3, drop_remainder=False).count == 3
    assert source.repeat(4).count == 28
    assert source.wrap().count is None
    assert source.shuffle(1).map(str).take(5).count == 5
    assert from_iterable(ROWS).count is None


def test_a_pass_without_elements_ends_a_wrap() -> None:
    assert listed(from_iterable([]).wrap()) == []
    assert listed(from_arrays(ROWS[:0]).wrap()) == []
    assert listed(from_iterable(iter([1, 2])).wrap()) == [1, 2]


def test_a_function_of_the_number_may_end() -> None:
    def squares(number: int) -> int:
        if number == 4:
            raise StopIteration
        return number * number

    assert listed(from_callable(squares)) == [0, 1, 4, 9]
    assert listed(from_callable(squares), 2) == [4, 9]


def test_made_up_data_depends_on_seed_and_number_alone() -> None:
    first = list(islice(synthetic(SPEC, 1).elements(), 5))
    again = list(islice(synthetic(SPEC, 1).elements(3), 2))
    other = next(synthetic(SPEC, 2).elements())
    assert (first[3][0] == again[0][0]).all()
    assert (first[0][0] != other[0]).any()
    assert {int(e[1]) for e in islice(synthetic(SPEC, 1).elements(), 30)} == {0, 1}
    zero = next(null_feed(SPEC).elements())
    assert zero[0].tolist() == [0, 0]
    assert zero[1] == 0


@pytest.mark.parametrize("data", [3, "data.npz", b"x", None, {"a": 1}])
def test_what_is_no_source_is_refused(data: object) -> None:
    with pytest.raises(StreamError) as caught:
        source_of(data)
    assert caught.value.code == "E2031"


def test_settings_that_cannot_be() -> None:
    source = from_arrays(ROWS)
    with pytest.raises(StreamError):
        source.batch(0)
    with pytest.raises(StreamError):
        source.repeat(0)
    with pytest.raises(StreamError):
        source.shuffle(1, 0)
    with pytest.raises(StreamError):
        from_arrays((ROWS, ROWS[:3]))
    with pytest.raises(StreamError):
        from_arrays(np.float32(3))
