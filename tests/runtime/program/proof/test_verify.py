"""The proof: programs that do what they say pass, and each broken rule is told by its name."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from hloipu_runtime.codelets.ops.move import Copy
from hloipu_runtime.program.descriptors import is_complete
from hloipu_runtime.program.faults import Fault, ProgramError
from hloipu_runtime.program.mapping import Mapping, Span, Tiles, whole
from hloipu_runtime.program.program import Program, Role, Value
from hloipu_runtime.program.proof.verify import faults_of, verify
from hloipu_runtime.program.steps import (
    Call,
    Carried,
    ComputeSet,
    If,
    Merged,
    Operand,
    Parallel,
    Repeat,
    RepeatWhile,
    Sequence,
    Step,
    StreamOut,
    Switch,
    Sync,
    VertexGroup,
)
from tests.support.program_builder import ProgramBuilder, rows
from tests.support.program_checker import violations
from tests.support.random_programs import random_program

TILES = 4
ROWS = rows(2, 3)
"""Six elements on two tiles."""


def rules(faults: list[Fault]) -> set[str]:
    return {fault.rule for fault in faults}


def found_in(program: Program) -> set[str]:
    return rules(faults_of(program, TILES))


class Small:
    """y = a + b; z = y copied elsewhere; z handed out."""

    def __init__(self) -> None:
        make = self.make = ProgramBuilder()
        self.a = make.stream_in(make.variable((6,), ROWS))
        self.b = make.stream_in(make.variable((6,), ROWS))
        self.y = make.add([self.a, self.b], make.variable((6,), ROWS))
        self.z = make.copy(self.y, make.variable((6,), rows(3, 2)))
        make.stream_out(self.z)

    @property
    def steps(self) -> list[Step]:
        return self.make.blocks[0]

    @property
    def group(self) -> VertexGroup:
        step = self.steps[2]
        assert isinstance(step, ComputeSet)
        return step.groups[0]

    def with_group(self, *groups: VertexGroup) -> Program:
        self.steps[2] = ComputeSet(groups)
        return self.make.program()


def test_a_right_program_passes() -> None:
    program = Small().make.program()
    assert faults_of(program, TILES) == []
    verify(program, TILES)


@pytest.mark.parametrize("seed", range(25))
def test_drawn_programs_pass_here_and_with_the_referee(seed: int) -> None:
    program = random_program(seed, ipus=1 + seed % 2)
    assert faults_of(program, TILES) == []
    assert violations(program, TILES, seed) == []


def test_the_error_lists_all_faults_and_tells_the_first() -> None:
    small = Small()
    group = small.group
    program = small.with_group(replace(group, reads=(90, 91)), replace(group, writes=(92,)))
    program = replace(program, values=(*program.values, *[Value("f32", (6,))] * 90))

    with pytest.raises(ProgramError) as caught:
        verify(program, TILES)

    assert caught.value.code == "E4050"
    assert caught.value.exit_code == 9
    assert len(caught.value.faults) > 1
    assert caught.value.faults[0].message in str(caught.value)


Change = Callable[[VertexGroup], VertexGroup]


def reading(number: int, **changed: object) -> Change:
    def change(group: VertexGroup) -> VertexGroup:
        inputs = list(group.inputs)
        inputs[number] = inputs[number]._replace(**changed)  # type: ignore[arg-type]
        return replace(group, inputs=tuple(inputs))

    return change


def writing(**changed: object) -> Change:
    return lambda group: replace(
        group,
        outputs=(group.outputs[0]._replace(**changed),),  # type: ignore[arg-type]
    )


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        (reading(0, variable=1), {"version"}),
        (reading(1, spans=(Span(0, 3, 1, 3),)), {"resident", "law"}),
        (reading(1, spans=(Span(0, 3, 0, 2),)), {"law"}),
        (reading(1, spans=(whole(6),)), {"resident", "law"}),
        (reading(1, spans=(Span(1, 3, 0, 3),)), {"resident", "law"}),
        (reading(1, spans=()), {"resident", "law"}),
        (lambda g: replace(g, tiles=replace(g.tiles, first=1)), {"resident", "cover"}),
        (writing(spans=(Span(0, 3, 0, 2),)), {"cover", "law"}),
        (writing(variable=3), {"cover", "version"}),
        (lambda g: replace(g, reads=(g.reads[1], g.reads[0])), {"version"}),
        (lambda g: replace(g, writes=g.reads[:1]), {"value", "version"}),
    ],
)
def test_a_vertex_that_is_not_what_it_says_is_told(change: Change, wanted: set[str]) -> None:
    small = Small()
    assert found_in(small.with_group(change(small.group))) == wanted


def test_vertices_write_what_they_are_alone_to_touch() -> None:
    small = Small()
    group = small.group
    value = small.make.value_like(small.y)
    twice = replace(group, writes=(value,))
    assert "race" in found_in(small.with_group(group, twice))

    small = Small()
    other = small.make.variable((6,), ROWS)
    beside = VertexGroup(
        group.codelet,
        group.tiles,
        (Operand(small.y, ROWS.spans), Operand(small.b, ROWS.spans)),
        (Operand(other, ROWS.spans),),
        (group.writes[0], group.reads[1]),
        (small.make.value_like(other),),
    )
    assert found_in(small.with_group(small.group, beside)) == {"race", "version"}


class Keeping(Copy):
    """A copy that may not be written over what it reads."""

    def may_overwrite(self, operand: int) -> bool:
        return False


def test_a_result_may_overwrite_an_operand_of_equal_parts_only() -> None:
    make = ProgramBuilder()
    a = make.stream_in(make.variable((6,), ROWS))
    make.add([a], a)
    make.stream_out(a)
    assert found_in(make.program()) == set()

    step = make.blocks[0][1]
    assert isinstance(step, ComputeSet)
    make.blocks[0][1] = ComputeSet((replace(step.groups[0], codelet=Keeping()),))
    assert found_in(make.program()) == {"race"}


@pytest.mark.parametrize(
    ("mapping", "said"),
    [
        (Mapping(Tiles((2,), (1,), 3), (Span(0, 3, 0, 3),)), "lies on tiles 3 to 4 of 4"),
        (Mapping(Tiles((2,), (-1,), 3), (Span(0, 3, 0, 3),)), "lies on tiles"),
        (Mapping(Tiles((2, 2), (1, 1)), (Span(0, 3, 0, 3),)), "two grid coordinates on one tile"),
        (Mapping(Tiles((1,), (1,)), (Span(0, 6, 0, 6),)), "an axis of one tile"),
        (Mapping(Tiles((2,), ()), (Span(0, 3, 0, 3),)), "an axis of one tile"),
        (Mapping(Tiles((2,), (1,)), ()), "another rank"),
        (Mapping(Tiles((2,), (1,)), (Span(1, 3, 0, 3),)), "splits two dimensions"),
    ],
)
def test_a_mapping_on_no_proper_grid_is_told(mapping: Mapping, said: str) -> None:
    make = ProgramBuilder()
    make.variable((6,), mapping)
    (fault, *_) = faults_of(make.program(), TILES)

    assert fault.rule == "grid"
    assert said in fault.message


def test_an_axis_splits_one_dimension_only() -> None:
    make = ProgramBuilder()
    make.variable((6, 6), Mapping(Tiles((2,), (1,)), (Span(0, 3, 0, 3),) * 2))
    assert found_in(make.program()) == {"grid"}


def test_an_ipu_that_is_not_there_is_told() -> None:
    make = ProgramBuilder(ipus=2)
    make.variable((6,), ROWS, ipu=2)
    assert found_in(make.program()) == {"grid"}


def test_operands_on_two_ipus_are_told() -> None:
    make = ProgramBuilder(ipus=2)
    a = make.stream_in(make.variable((6,), ROWS, ipu=0))
    b = make.stream_in(make.variable((6,), ROWS, ipu=1))
    make.add([a, b], make.variable((6,), ROWS))
    assert found_in(make.program()) == {"resident"}


def test_what_is_handed_out_lies_somewhere_and_was_written() -> None:
    make = ProgramBuilder()
    part = make.variable((6,), Mapping(Tiles((2,), (1,)), (Span(0, 2, 0, 2),)))
    make.stream_in(part)
    make.stream_out(part)
    assert found_in(make.program()) == {"cover"}

    make = ProgramBuilder()
    lost = make.variable((6,), ROWS)
    make.emit(StreamOut("out", lost, make.value_like(lost)))
    assert found_in(make.program()) == {"version"}


class Looped:
    """x is carried through a loop that adds k to it; what else the body writes is t."""

    def __init__(self) -> None:
        make = self.make = ProgramBuilder()
        self.x = make.stream_in(make.variable((6,), ROWS))
        self.k = make.stream_in(make.variable((6,), ROWS))
        self.t = make.stream_in(make.variable((6,), ROWS))
        initial = make.held[self.x]
        turn = make.held[self.x] = make.value_like(self.x)
        with make.block() as body:
            make.add([self.x, self.k], self.t)
            make.add([self.t, self.k], self.x)
        following = make.held[self.x]
        self.before_loop = make.held[self.t]
        final = make.held[self.x] = make.value_like(self.x)
        self.body = Sequence(tuple(body))
        self.carried = Carried(self.x, initial, turn, following, final)

    def program(self, step: Step | None = None, *outputs: int) -> Program:
        self.make.emit(step or Repeat(3, self.body, (self.carried,)))
        for variable in outputs or (self.x,):
            self.make.stream_out(variable)
        return self.make.program()


def test_a_loop_hands_on_what_it_says() -> None:
    assert found_in(Looped().program()) == set()
    loop = Looped()
    changed = loop.carried._replace(following=loop.carried.turn)
    assert found_in(loop.program(Repeat(3, loop.body, (changed,)))) == {"version"}
    loop = Looped()
    changed = loop.carried._replace(initial=loop.make.held[loop.k])
    assert found_in(loop.program(Repeat(3, loop.body, (changed,)))) == {"version"}


def test_what_a_turn_leaves_is_gone_in_the_next_one_and_after_the_loop() -> None:
    loop = Looped()
    assert found_in(loop.program(None, loop.t)) == {"version"}

    loop = Looped()
    first, second = loop.body.steps
    swapped = Repeat(3, Sequence((second, first)), (loop.carried,))
    assert "version" in found_in(loop.program(swapped))


def test_a_loop_that_data_ends_checks_its_predicate() -> None:
    def program(value: int | None) -> Program:
        loop = Looped()
        make = loop.make
        p = make.variable((), Mapping(Tiles(), ()), kind="pred")
        with make.block() as condition:
            make.stream_in(p)
        held = make.held[p] if value is None else value
        step = RepeatWhile(Sequence(tuple(condition)), p, held, loop.body, (loop.carried,))
        return loop.program(step)

    assert found_in(program(None)) == set()
    assert found_in(program(0)) == {"version"}


def test_branches_leave_what_is_merged() -> None:
    def program(wrong: bool, count: int) -> Program:
        make = ProgramBuilder()
        x = make.stream_in(make.variable((6,), ROWS))
        k = make.stream_in(make.variable((6,), ROWS))
        p = make.stream_in(
            make.variable((), Mapping(Tiles(), ()), kind="pred" if count == 2 else "s32")
        )
        before, left, branches = make.held[x], [], []
        for _ in range(count):
            make.held[x] = before
            with make.block() as steps:
                make.add([x, k], x)
            left.append(make.held[x])
            branches.append(Sequence(tuple(steps)))
        made = make.held[x] = make.value_like(x)
        merged = (Merged(x, tuple(reversed(left)) if wrong else tuple(left), made),)
        if count == 2:
            make.emit(If(p, make.held[p], branches[0], branches[1], merged))
        else:
            make.emit(Switch(p, make.held[p], tuple(branches), merged))
        make.stream_out(x)
        return make.program()

    assert found_in(program(False, 2)) == found_in(program(False, 3)) == set()
    assert found_in(program(True, 2)) == found_in(program(True, 3)) == {"version"}


def test_what_one_branch_writes_is_unknown_after_both() -> None:
    make = ProgramBuilder()
    x = make.stream_in(make.variable((6,), ROWS))
    p = make.stream_in(make.variable((), Mapping(Tiles(), ()), kind="pred"))
    before = make.held[x]
    with make.block() as steps:
        make.add([x], x)
    make.held[x] = before
    make.emit(If(p, make.held[p], Sequence(tuple(steps)), Sequence(), ()))
    make.stream_out(x)
    assert found_in(make.program()) == {"version"}


@pytest.mark.parametrize(
    ("first", "second", "wanted"),
    [
        ((0, 2), (1, 3), set()),
        ((1, 3), (0, 0), set()),
        ((0, 2), (2, 0), {"race"}),
        ((0, 2), (0, 0), {"race"}),
        ((3, 1), (1, 3), {"race"}),
    ],
)
def test_branches_at_once_are_on_ipus_of_their_own(
    first: tuple[int, int], second: tuple[int, int], wanted: set[str]
) -> None:
    make = ProgramBuilder(ipus=2)
    for number in range(4):
        make.stream_in(make.variable((6,), ROWS, ipu=number % 2))
    before = dict(make.held)
    branches = []
    for source, target in (first, second):
        make.held.update(before)
        with make.block() as steps:
            make.add([source], target)
        branches.append(Sequence(tuple(steps)))
    make.emit(Parallel(tuple(branches)))
    assert found_in(make.program()) == wanted


def test_branches_at_once_meet_nobody() -> None:
    make = ProgramBuilder(ipus=2)
    for ipu in range(2):
        make.stream_in(make.variable((6,), ROWS, ipu=ipu))
    branches = []
    for ipu in range(2):
        with make.block() as steps:
            make.emit(Sync(2 - ipu))
            make.add([ipu], ipu)
        branches.append(Sequence(tuple(steps)))
    make.emit(Parallel(tuple(branches)))
    assert found_in(make.program()) == {"race"}


def test_functions_are_there_and_do_not_call_themselves() -> None:
    make = ProgramBuilder()
    make.emit(Call("f"))
    assert found_in(make.program()) == {"call"}
    make.functions["f"] = Sequence((Call("f"),))
    assert found_in(make.program()) == {"call"}
    make.functions["f"] = Sequence()
    assert found_in(make.program()) == set()


@pytest.mark.parametrize("role", [Role.TEMPORARY, Role.PARAMETER, Role.STATE, Role.BUFFER])
def test_what_is_loaded_stays(role: Role) -> None:
    """Else its memory would be taken by others after its last use."""
    make = ProgramBuilder()
    constant = make.constant((6,), ROWS)
    program = make.program()
    assert "role" not in found_in(program)
    variables = list(program.variables)
    variables[constant] = replace(variables[constant], role=role)
    assert "role" in found_in(replace(program, variables=tuple(variables)))


def test_a_constant_is_never_written() -> None:
    make = ProgramBuilder()
    constant = make.constant((6,), ROWS)
    make.stream_in(constant)
    assert "constant" in found_in(make.program())

    make = ProgramBuilder()
    constant = make.constant((6,), ROWS)
    x = make.stream_in(make.variable((6,), ROWS, role=Role.PARAMETER))
    make.add([x], constant)
    assert "constant" in found_in(make.program())


def test_a_mapping_that_leaves_elements_out_is_not_complete() -> None:
    assert is_complete(ROWS, (6,))
    assert not is_complete(ROWS, (7,))
