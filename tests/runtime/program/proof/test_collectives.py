"""The proof of collectives and of remote copies: each rule, broken once."""

from dataclasses import replace

import pytest

from hloipu_runtime.codelets.core.expression_form import Expression
from hloipu_runtime.program import collective as c
from hloipu_runtime.program.collective import Collective, CollectiveForm, Moved, RemoteCopy
from hloipu_runtime.program.mapping import Mapping, Sizes, Tiles, whole
from hloipu_runtime.program.program import Program, Role
from hloipu_runtime.program.proof.verify import faults_of
from hloipu_runtime.program.steps import Sync
from tests.support.program_builder import ProgramBuilder, blocks, rows

PAIRS = ((0, 1), (2, 3))
ALL = ((0, 1, 2, 3),)


def met(
    form: CollectiveForm, before: list[Sizes], after: list[Sizes], kind: str = "f32"
) -> Program:
    """Return a program of four replicas that meets once."""
    make = ProgramBuilder()
    inputs, outputs = [], []
    for shape in before:
        x = make.stream_in(make.variable(shape, blocks(shape, (1,) * len(shape))))
        inputs.append(Moved(x, make.held[x]))
    for shape in after:
        y = make.variable(shape, blocks(shape, (1,) * len(shape)), kind=kind)
        outputs.append(Moved(y, make.value_like(y)))
    make.emit(Collective(form, tuple(inputs), tuple(outputs)))
    return replace(make.program(), replicas=4)


def rules(program: Program) -> list[str]:
    return [fault.message for fault in faults_of(program, 4)]


RIGHT = [
    (CollectiveForm(c.ALL_REDUCE, PAIRS, monoid="add"), [(4,), (2, 2)], [(4,), (2, 2)]),
    (CollectiveForm(c.ALL_REDUCE, (), body=Expression(("f32",) * 2, (), (0,))), [(4,)], [(4,)]),
    (CollectiveForm(c.ALL_GATHER, PAIRS), [(4, 3)], [(8, 3)]),
    (CollectiveForm(c.ALL_GATHER, ALL, dimension=1), [(4, 3)], [(4, 12)]),
    (CollectiveForm(c.REDUCE_SCATTER, ALL, monoid="add"), [(8,)], [(2,)]),
    (CollectiveForm(c.ALL_TO_ALL, ALL), [(8, 2)], [(8, 2)]),
    (CollectiveForm(c.ALL_TO_ALL, PAIRS, dimension=c.TUPLE_FORM), [(3,), (3,)], [(3,), (3,)]),
    (CollectiveForm(c.PERMUTE, ALL, ((0, 1), (1, 0))), [(3,)], [(3,)]),
    (CollectiveForm(c.BROADCAST, ((2, 1),)), [(3,)], [(3,)]),
]


@pytest.mark.parametrize(("form", "before", "after"), RIGHT)
def test_what_is_right(form: CollectiveForm, before: list[Sizes], after: list[Sizes]) -> None:
    assert rules(met(form, before, after)) == []


WRONG = [
    (CollectiveForm("gossip", ALL), [(4,)], [(4,)], "there is no collective 'gossip'"),
    (CollectiveForm(c.ALL_REDUCE, ((0, 4),), monoid="add"), [(4,)], [(4,)], "participant 4"),
    (CollectiveForm(c.ALL_REDUCE, ((0, 1), (1, 2)), monoid="add"), [(4,)], [(4,)], "two places"),
    (CollectiveForm(c.ALL_REDUCE, ALL, monoid="mean"), [(4,)], [(4,)], "no reduction 'mean'"),
    (CollectiveForm(c.ALL_REDUCE, ALL, monoid="add"), [(4,)], [(3,)], "another type or shape"),
    (CollectiveForm(c.ALL_REDUCE, ALL, monoid="add"), [(4,)], [(4,), (4,)], "2 results"),
    (CollectiveForm(c.ALL_GATHER, ((0, 1), (2,))), [(4,)], [(8,)], "not of one size"),
    (CollectiveForm(c.ALL_GATHER, ((0, 1),)), [(4,)], [(8,)], "do not have all"),
    (CollectiveForm(c.ALL_GATHER, PAIRS, dimension=1), [(4,)], [(8,)], "no dimension 1"),
    (CollectiveForm(c.ALL_GATHER, PAIRS), [(4,)], [(9,)], "not of the shape"),
    (CollectiveForm(c.REDUCE_SCATTER, PAIRS, monoid="add"), [(4,)], [(4,)], "not of the shape"),
    (CollectiveForm(c.ALL_TO_ALL, ALL), [(6,)], [(6,)], "cannot be split over 4"),
    (CollectiveForm(c.ALL_TO_ALL, ALL, dimension=c.TUPLE_FORM), [(6,)], [(6,)], "each member"),
    (CollectiveForm(c.PERMUTE, ALL, ((0, 1), (2, 1))), [(3,)], [(3,)], "receives twice"),
    (CollectiveForm(c.REPLICA_ID), [(3,)], [(3,)], "makes one u32[]"),
    (CollectiveForm(c.RAGGED, ALL), [(3,)], [(3,)], "second operand"),
]  # fmt: skip


@pytest.mark.parametrize(("form", "before", "after", "said"), WRONG)
def test_what_is_wrong(
    form: CollectiveForm, before: list[Sizes], after: list[Sizes], said: str
) -> None:
    assert said in "; ".join(rules(met(form, before, after)))


def test_ids_are_u32() -> None:
    assert rules(met(CollectiveForm(c.PARTITION_ID), [], [()], "u32")) == []
    assert "u32[]" in rules(met(CollectiveForm(c.PARTITION_ID), [], [()], "s32"))[0]


def reducing() -> tuple[ProgramBuilder, CollectiveForm, int]:
    make = ProgramBuilder(ipus=2)
    return make, CollectiveForm(c.ALL_REDUCE, (), monoid="add"), make.variable((6,), rows(2, 3))


def test_operands_must_be_there() -> None:
    make, form, x = reducing()
    value = make.value_like(x)
    make.emit(Collective(form, (Moved(x, value),), (Moved(x, make.value_like(x)),)))
    assert "holds nothing" in rules(make.program())[0]


def test_a_result_is_on_its_operands_ipu() -> None:
    make, form, x = reducing()
    make.stream_in(x)
    y = make.variable((6,), rows(2, 3), ipu=1)
    make.emit(Collective(form, (Moved(x, make.held[x]),), (Moved(y, make.value_like(y)),)))
    assert "another IPU" in rules(make.program())[0]


def test_two_results_are_in_two_variables() -> None:
    make, form, x = reducing()
    make.stream_in(x)
    once = Moved(x, make.held[x])
    twice = (Moved(x, make.value_like(x)), Moved(x, make.value_like(x)))
    make.emit(Collective(form, (once, once), twice))
    assert "in one variable" in "; ".join(rules(make.program()))


def remote(make: ProgramBuilder, ipu: int = 0) -> int:
    there = Mapping(Tiles((), (), 0), (whole(6),))
    return make.variable((6,), there, role=Role.REMOTE, ipu=ipu)


def test_remote_copies_bring_a_value_away_and_back() -> None:
    make, _, x = reducing()
    make.stream_in(x)
    there, y = remote(make), make.variable((6,), rows(3, 2))
    value = make.held[x]
    make.emit(Sync())
    make.emit(RemoteCopy(x, there, value))
    make.emit(Sync())
    make.emit(RemoteCopy(there, y, value))
    make.held[y] = value
    make.stream_out(y)
    assert rules(make.program()) == []


def test_a_remote_copy_takes_what_is_there() -> None:
    make, _, x = reducing()
    make.stream_in(x)
    make.emit(RemoteCopy(remote(make), x, make.held[x]))
    assert "holds nothing" in rules(make.program())[0]


def test_one_end_of_a_remote_copy_is_remote() -> None:
    make, _, x = reducing()
    make.stream_in(x)
    make.emit(RemoteCopy(x, make.variable((6,), rows(2, 3)), make.held[x]))
    assert "not one of the two" in rules(make.program())[0]


def test_remote_memory_is_beside_one_ipu() -> None:
    make, _, x = reducing()
    make.stream_in(x)
    make.emit(RemoteCopy(x, remote(make, ipu=1), make.held[x]))
    assert "different IPUs" in rules(make.program())[0]


def test_tiles_do_not_compute_on_remote_memory() -> None:
    make, _, x = reducing()
    there = remote(make)
    make.stream_in(x)
    make.emit(RemoteCopy(x, there, make.held[x]))
    make.held[there] = make.held[x]
    make.add((there,), make.variable((6,), Mapping(Tiles((), (), 0), (whole(6),))))
    assert "is remote" in "; ".join(rules(make.program()))
