"""Points at which variables take memory, counted by hand."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from hloipu_runtime.errors import LimitError
from hloipu_runtime.memory.liveness import Ranges, liveness_of, moment
from hloipu_runtime.memory.regions import MOST_LEVELS
from hloipu_runtime.program.collective import (
    ALL_REDUCE,
    Collective,
    CollectiveForm,
    Moved,
    RemoteCopy,
)
from hloipu_runtime.program.program import Role
from hloipu_runtime.program.steps import (
    Call,
    Carried,
    If,
    Merged,
    Parallel,
    Pipeline,
    Repeat,
    RepeatWhile,
    Sequence,
    Stage,
    Step,
    StreamIn,
    Switch,
    Sync,
)
from tests.support.program_builder import ProgramBuilder, rows

ROW = rows(4, 2)


def ranges(make: ProgramBuilder, *variables: int) -> list[Ranges]:
    found = liveness_of(make.program(synced=False)).ranges
    return [found[v] for v in variables]


def test_from_write_to_last_read() -> None:
    make = ProgramBuilder()
    a, b, c = (make.variable((8,), ROW) for _ in range(3))
    make.stream_in(a)  # point 0
    make.emit(Sync())  # takes no point
    make.add([a], b)  # 1
    make.add([b], c)  # 2
    make.add([a, c], b)  # 3
    make.stream_out(b)  # 4
    assert ranges(make, a, b, c) == [((0, 3),), ((1, 4),), ((2, 3),)]


def test_collectives_and_remote_copies_read_and_write_whole_variables() -> None:
    make = ProgramBuilder()
    a, b, c = (make.variable((8,), ROW) for _ in range(3))
    there = make.variable((8,), ROW, role=Role.REMOTE)
    make.stream_in(a)  # 0
    make.emit(Collective(CollectiveForm(ALL_REDUCE), (Moved(a, 0),), (Moved(b, 1),)))  # 1
    make.emit(RemoteCopy(b, there, 1))  # 2
    make.emit(RemoteCopy(there, c, 1))  # 3
    make.held[c] = 1
    make.stream_out(c)  # 4
    assert ranges(make, a, b, c, there) == [((0, 1),), ((1, 2),), ((3, 4),), ()]


def test_a_variable_is_free_between_two_values() -> None:
    make = ProgramBuilder()
    a, b = (make.variable((8,), ROW) for _ in range(2))
    make.stream_in(a)  # 0
    make.stream_out(a)  # 1
    make.stream_in(b)  # 2
    make.add([b], a)  # 3
    make.stream_out(a)  # 4
    assert ranges(make, a, b) == [((0, 1), (3, 4)), ((2, 3),)]


def test_what_nobody_reads_takes_memory_where_it_is_written() -> None:
    make = ProgramBuilder()
    a, b, unused = (make.variable((8,), ROW) for _ in range(3))
    make.stream_in(a)
    make.add([a], b)
    make.stream_out(a)
    assert ranges(make, b, unused) == [((1, 1),), ()]


def test_part_of_a_variable_written_keeps_the_rest() -> None:
    make = ProgramBuilder()
    a, b = (make.variable((8,), ROW) for _ in range(2))
    make.stream_in(a)  # 0
    make.stream_in(b)  # 1
    make.place([(b, ((2, 5),))], a, keep=True)  # 2
    make.place([(b, ((0, 8),))], a, keep=False)  # 3
    make.stream_out(a)  # 4
    assert ranges(make, a, b) == [((0, 4),), ((1, 3),)]


def test_constants_and_state_are_always_live_parameters_are_not() -> None:
    make = ProgramBuilder()
    constant = make.constant((8,), ROW)
    state = make.variable((8,), ROW, role=Role.STATE)
    parameter = make.variable((8,), ROW, role=Role.PARAMETER)
    make.stream_in(state)  # 0
    make.stream_in(parameter)  # 1
    make.add([parameter], make.variable((8,), ROW))  # 2
    make.add([state], make.variable((8,), ROW))  # 3
    assert ranges(make, constant, state, parameter) == [((0, 3),), ((0, 3),), ((1, 2),)]


def test_what_a_loop_reads_lives_until_it_ends() -> None:
    make = ProgramBuilder()
    outer, carried, inner, other = (make.variable((8,), ROW) for _ in range(4))
    make.stream_in(outer)  # 0
    make.stream_in(carried)  # 1
    with make.block() as body:
        make.add([outer], other)  # 2
        make.add([other], inner)  # 3
        make.add([carried], carried)  # 4
        make.add([inner], other)  # 5
    make.emit(Repeat(3, Sequence(tuple(body)), (Carried(carried, 1, 2, 3, 4),)))
    make.stream_out(carried)  # 6
    found = ranges(make, outer, carried, inner, other)
    assert found == [((0, 5),), ((1, 6),), ((3, 5),), ((2, 3), (5, 5))]


def test_a_loop_may_end_after_its_condition() -> None:
    make = ProgramBuilder()
    x, late, stop = (
        make.variable((8,), ROW),
        make.variable((8,), ROW),
        make.variable((), rows(1, 1, 0)),
    )
    make.stream_in(x)  # 0
    with make.block() as condition:
        make.stream_in(late)  # 1
        make.stream_in(stop)  # 2, looked at in 3
    with make.block() as body:
        make.add([x], make.variable((8,), ROW))  # 4
        make.add([x], make.variable((8,), ROW))  # 5
    make.emit(RepeatWhile(Sequence(tuple(condition)), stop, 9, Sequence(tuple(body)), ()))
    make.stream_out(late)  # 6
    assert ranges(make, x, late, stop) == [((0, 5),), ((1, 6),), ((2, 3),)]


def test_alternatives_share_memory() -> None:
    make = ProgramBuilder()
    chosen = make.stream_in(make.variable((), rows(1, 1, 0)))  # 0, looked at in 3
    a, b = (make.stream_in(make.variable((8,), ROW)) for _ in range(2))  # 1, 2
    merged, one, two = (make.variable((8,), ROW) for _ in range(3))
    with make.block() as then:
        make.add([a], one)  # 4
        make.add([one], merged)  # 5
    with make.block() as otherwise:
        make.add([b], two)  # 6
        make.add([two], merged)  # 7
    make.emit(
        If(
            chosen,
            0,
            Sequence(tuple(then)),
            Sequence(tuple(otherwise)),
            (Merged(merged, (1, 2), 3),),
        )
    )
    make.stream_out(merged)  # 8
    found = ranges(make, chosen, a, b, one, two, merged)
    assert found == [
        ((0, 3),),
        ((1, 4),),
        ((2, 3), (6, 6)),
        ((4, 5),),
        ((6, 7),),
        ((5, 5), (7, 8)),
    ]


def test_what_outlives_a_branch_lives_through_the_other() -> None:
    make = ProgramBuilder()
    chosen = make.stream_in(make.variable((), rows(1, 1, 0)))  # 0, looked at in 2
    kept = make.stream_in(make.variable((8,), ROW))  # 1
    with make.block() as then:
        make.add([kept], kept)  # 3
    with make.block() as otherwise:
        make.stream_in(make.variable((8,), ROW))  # 4
    make.emit(
        If(chosen, 0, Sequence(tuple(then)), Sequence(tuple(otherwise)), (Merged(kept, (1, 2), 3),))
    )
    make.stream_out(kept)  # 5
    assert ranges(make, kept) == [((1, 5),)]


def test_branches_on_one_ipu_take_memory_at_once() -> None:
    make = ProgramBuilder()
    a, b = (make.variable((8,), ROW) for _ in range(2))
    with make.block() as one:
        make.stream_in(a)  # 0
        make.stream_out(a)  # 1
    with make.block() as two:
        make.stream_in(b)  # 2
        make.stream_out(b)  # 3
    make.emit(Parallel((Sequence(tuple(one)), Sequence(tuple(two)))))
    assert ranges(make, a, b) == [((0, 3),), ((0, 3),)]


def test_a_function_is_put_in_at_every_call() -> None:
    make = ProgramBuilder()
    a, inside = (make.variable((8,), ROW) for _ in range(2))
    make.held[a] = make.value_like(a)
    with make.block() as body:
        make.add([a], inside)
        make.add([inside], a)
    make.functions["f"] = Sequence(tuple(body))
    make.emit(StreamIn("in", a, 0))  # 0
    make.emit(Call("f"))  # 1, 2
    make.emit(StreamIn("in", make.variable((8,), ROW), 0))  # 3
    make.emit(Call("f"))  # 4, 5
    assert ranges(make, a, inside) == [((0, 5),), ((1, 2), (4, 5))]


def test_moments_are_named_as_the_verifier_names_them() -> None:
    make = ProgramBuilder(ipus=2)
    chosen = make.stream_in(make.variable((), rows(1, 1, 0)))  # 0
    a = make.variable((8,), ROW)
    with make.block() as inner:
        make.emit(Sync())
        make.stream_in(a)
    body = Sequence(tuple(inner))
    make.functions["f"] = body
    make.emit(Repeat(2, body, ()))  # 1
    make.emit(RepeatWhile(body, chosen, 0, body, ()))  # 2, looked at in 3, 4
    make.emit(If(chosen, 0, body, body, ()))  # looked at in 5, 6, 7
    make.emit(Parallel((body, body)))  # 8, 9
    make.emit(Call("f"))  # 10
    make.emit(Switch(chosen, 0, (body, Sequence(), body, body), ()))  # looked at in 11, 12 to 14
    region = liveness_of(make.program(synced=False)).region
    assert [moment(region, point).path for point in range(15)] == [
        "body/0",
        "body/1/repeat/1",
        "body/2/condition/1",
        "body/2",
        "body/2/while/1",
        "body/3",
        "body/3?0/1",
        "body/3?1/1",
        "body/4|0/1",
        "body/4|1/1",
        "body/5/f/1",
        "body/6",
        "body/6?0/1",
        "body/6?2/1",
        "body/6?3/1",
    ]


@pytest.mark.parametrize("is_called", [True, False])
def test_functions_in_a_circle(is_called: bool) -> None:
    make = ProgramBuilder()
    make.functions["f"] = Sequence((Call("f"),))
    if is_called:
        make.emit(Call("f"))
    with pytest.raises(LimitError) as caught:
        liveness_of(make.program(synced=False))
    assert (caught.value.code, caught.value.allowed) == ("E5021", MOST_LEVELS)


def test_functions_in_a_long_row() -> None:
    make = ProgramBuilder()
    make.functions["f0"] = Sequence((StreamIn("in", make.variable((8,), ROW), 0),))
    for level in range(1, 2 * MOST_LEVELS):
        make.functions[f"f{level}"] = Sequence((Call(f"f{level - 1}"),))
    make.emit(Call(f"f{2 * MOST_LEVELS - 1}"))
    with pytest.raises(LimitError) as caught:
        liveness_of(make.program(synced=False))
    assert caught.value.code == "E5021"


def test_functions_that_double() -> None:
    make = ProgramBuilder()
    make.functions["f0"] = Sequence((StreamIn("in", make.variable((8,), ROW), 0),))
    for level in range(1, 40):
        make.functions[f"f{level}"] = Sequence((Call(f"f{level - 1}"),) * 2)
    make.emit(Call("f39"))
    with pytest.raises(LimitError) as caught:
        liveness_of(make.program(synced=False))
    assert caught.value.code == "E5022"


NESTED: tuple[Callable[[Sequence], Step], ...] = (
    lambda inner: inner,
    lambda inner: Repeat(2, inner, ()),
    lambda inner: RepeatWhile(inner, 0, 0, Sequence(), ()),
    lambda inner: RepeatWhile(Sequence(), 0, 0, inner, ()),
    lambda inner: If(0, 0, inner, Sequence(), ()),
    lambda inner: Switch(0, 0, (Sequence(), inner), ()),
    lambda inner: Parallel((inner, Sequence())),
    lambda inner: Pipeline(1, 1, (Stage("p", (0,), inner),), (), ()),
    lambda inner: Pipeline(1, 1, (Stage("p", (0,), Sequence(), inner),), (), ()),
)


@pytest.mark.parametrize("wrap", NESTED, ids=range(len(NESTED)))
def test_steps_may_be_nested_as_deep_as_the_limit_says(wrap: Callable[[Sequence], Step]) -> None:
    make = ProgramBuilder()
    make.stream_in(make.variable((), rows(1, 1, 0)))
    leaf = StreamIn("in", make.variable((8,), ROW), 0)
    program = make.program(synced=False)

    def levels(times: int) -> int:
        body = Sequence((leaf,))
        for _ in range(times):
            body = Sequence((wrap(body),))
        return liveness_of(replace(program, body=body)).region.levels

    each = levels(2) - levels(1)
    most = 1 + (64 - levels(1)) // each
    assert levels(most) > 64 - each
    with pytest.raises(LimitError, match="64"):
        levels(most + 1)


@pytest.mark.parametrize("wrap", NESTED, ids=range(len(NESTED)))
def test_steps_nested_too_deep_are_refused_before_they_are_walked(
    wrap: Callable[[Sequence], Step],
) -> None:
    make = ProgramBuilder()
    predicate = make.stream_in(make.variable((), rows(1, 1, 0)))
    assert predicate == 0
    inner = Sequence((StreamIn("in", make.variable((8,), ROW), 0),))
    for _ in range(1000):
        inner = Sequence((wrap(inner),))
    with pytest.raises(LimitError) as caught:
        liveness_of(replace(make.program(synced=False), body=inner))
    assert (caught.value.code, caught.value.allowed) == ("E5021", MOST_LEVELS)
