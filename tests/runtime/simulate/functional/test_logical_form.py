"""The logical form: what is left of a program when tiles are taken away."""

from hloipu_runtime.codelets.core.codelet import Codelet
from hloipu_runtime.program.mapping import Mapping, Tiles
from hloipu_runtime.program.steps import (
    Carried,
    Definition,
    If,
    Merged,
    Repeat,
    Sequence,
    StreamIn,
    StreamOut,
    Sync,
)
from hloipu_runtime.simulate.functional.logical_form import collapse
from hloipu_runtime.simulate.functional.nodes import Node
from tests.support.program_builder import ProgramBuilder, rows

ROWS = rows(2, 3)


def kinds(nodes: tuple[Node, ...]) -> list[type]:
    return [Codelet if isinstance(x.what, Codelet) else type(x.what) for x in nodes]


def test_copies_and_syncs_vanish_and_other_exchanges_do_not() -> None:
    make = ProgramBuilder()
    a = make.stream_in(make.variable((6,), ROWS))
    make.emit(Sync())
    b = make.copy(a, make.variable((6,), rows(3, 2)))
    c = make.add([b, b], make.variable((6,), rows(3, 2)))
    d = make.place([(c, ((0, 4),)), (b, ((4, 6),))], make.variable((6,), ROWS), keep=False)
    make.stream_out(d)

    nodes = collapse(make.program()).nodes

    assert kinds(nodes) == [StreamIn, Codelet, Definition, StreamOut]
    assert nodes[1].reads == (make.held[a],) * 2
    assert set(nodes[2].reads) == {make.held[c], make.held[a]}


def test_each_value_is_freed_where_it_is_read_last() -> None:
    make = ProgramBuilder()
    a = make.stream_in(make.variable((6,), ROWS))
    b = make.add([a], make.variable((6,), ROWS))
    c = make.add([a, b], make.variable((6,), ROWS))
    make.stream_out(c)
    values = [make.held[v] for v in (a, b, c)]

    _, first, second, out = collapse(make.program()).nodes

    assert first.frees == ()
    assert set(second.frees) == set(values[:2])
    assert out.frees == (values[2],)


def test_a_loop_reads_what_its_body_takes_from_outside() -> None:
    make = ProgramBuilder()
    x = make.stream_in(make.variable((6,), ROWS))
    k = make.stream_in(make.variable((6,), ROWS))
    initial = make.held[x]
    turn = make.held[x] = make.value_like(x)
    with make.block() as body:
        t = make.add([x, k], make.variable((6,), ROWS))
        make.add([t], x)
    following = make.held[x]
    final = make.held[x] = make.value_like(x)
    item = Carried(x, initial, turn, following, final)
    make.emit(Repeat(3, Sequence(tuple(body)), (item,)))
    make.stream_out(x)

    loop = collapse(make.program()).nodes[2]

    assert isinstance(loop.what, Repeat)
    assert loop.reads == (initial, make.held[k])
    assert loop.writes == (final,)
    assert set(loop.frees) == {initial, make.held[k]}
    (block,) = loop.blocks
    assert block.outside == {make.held[k]}
    first, second = block.nodes
    assert first.frees == (turn,)
    assert second.frees == (make.held[t],)
    assert loop.block_values == ((following,),)


def test_a_value_that_a_loop_hands_on_unchanged_is_not_freed_in_it() -> None:
    make = ProgramBuilder()
    x = make.stream_in(make.variable((6,), ROWS))
    initial = make.held[x]
    turn = make.held[x] = make.value_like(x)
    with make.block() as body:
        y = make.add([x], make.variable((6,), ROWS))
        make.stream_out(y)
    final = make.held[x] = make.value_like(x)
    item = Carried(x, initial, turn, turn, final)
    make.emit(Repeat(3, Sequence(tuple(body)), (item,)))
    make.stream_out(x)

    (block,) = collapse(make.program()).nodes[1].blocks

    assert all(turn not in node.frees for node in block.nodes)


def test_branches_keep_what_they_leave_and_name_what_they_take() -> None:
    make = ProgramBuilder()
    x = make.stream_in(make.variable((6,), ROWS))
    y = make.stream_in(make.variable((6,), ROWS))
    p = make.stream_in(make.variable((), Mapping(Tiles(), ()), kind="pred"))
    before = make.held[x]
    with make.block() as then:
        make.add([x, y], x)
    left = make.held[x]
    merged = make.held[x] = make.value_like(x)
    items = (Merged(x, (left, before), merged),)
    make.emit(If(p, make.held[p], Sequence(tuple(then)), Sequence(), items))
    make.stream_out(x)

    choice = collapse(make.program()).nodes[3]

    assert choice.reads[0] == make.held[p]
    assert set(choice.reads) == {make.held[p], before, make.held[y]}
    assert choice.writes == (merged,)
    (first, second) = choice.blocks
    assert first.outside == {before, make.held[y]}
    assert second.outside == {before}
    assert second.nodes == ()
    assert choice.block_values == ((left,), ())
