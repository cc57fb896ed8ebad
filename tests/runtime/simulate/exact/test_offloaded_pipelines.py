"""Pipelines that keep things in remote memory, or go in groups: the same sums, proved and run."""

from itertools import combinations

import pytest

from hloipu_runtime.machine.load import load_machine
from hloipu_runtime.program.proof.verify import faults_of
from hloipu_runtime.program_io.text.printer import print_program
from tests.runtime.simulate.exact.test_pipelining import assert_totals
from tests.support.memory_checker import check_memory
from tests.support.pipelined_programs import PipelineMaker
from tests.support.program_reader.parser import parse_program

KINDS = ("activations", "weights", "totals")
OFFLOADED = [frozenset(x) for n in range(4) for x in combinations(KINDS, n)]


def named(offloaded: frozenset[str]) -> str:
    return "+".join(sorted(offloaded)) or "nothing"


MACHINE = load_machine("tiny")


def check(maker: PipelineMaker) -> None:
    """Assert that a pipeline is proved, read back, and computes the sums in closed form."""
    program = maker.program()
    assert faults_of(program, 4) == []
    text = print_program(program, constants=True)
    assert print_program(parse_program(text), constants=True) == text
    count = maker.count
    assert_totals(program, maker.stages, count)
    check_memory(program, MACHINE)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("offloaded", OFFLOADED, ids=named)
@pytest.mark.parametrize(("stages", "interval"), [(1, 1), (3, 1), (3, 2), (2, 4)])
@pytest.mark.parametrize("count", [1, 3, 6])
def test_what_lies_in_remote_memory_changes_nothing(
    stages: int, interval: int, count: int, offloaded: frozenset[str]
) -> None:
    check(PipelineMaker(stages, interval, count, offloaded=offloaded))


@pytest.mark.thinned(2)
@pytest.mark.parametrize("offloaded", OFFLOADED, ids=named)
@pytest.mark.parametrize("stages", [1, 3])
@pytest.mark.parametrize(("count", "group"), [(1, 4), (4, 2), (5, 2), (6, 3), (7, 9)])
def test_groups_change_nothing(
    stages: int, count: int, group: int, offloaded: frozenset[str]
) -> None:
    check(PipelineMaker(stages, 2 * stages, count, group=group, offloaded=offloaded))


@pytest.mark.parametrize("others", [(), ("activations", "weights")])
@pytest.mark.parametrize(("stages", "ipus"), [(1, ()), (3, ()), (4, (0, 1, 1, 0))])
@pytest.mark.parametrize(("count", "group"), [(1, 4), (4, 2), (5, 2), (7, 3)])
def test_totals_that_come_for_each_group_are_the_same(
    stages: int, ipus: tuple[int, ...], count: int, group: int, others: tuple[str, ...]
) -> None:
    offloaded = frozenset(("pages", *others))
    check(PipelineMaker(stages, 2 * stages, count, ipus=ipus, group=group, offloaded=offloaded))


@pytest.mark.parametrize("ipus", [(0, 1, 1, 0), (0, 0, 0, 0), (0, 1, 0, 1)])
@pytest.mark.parametrize("interval", [1, 2, 8])
@pytest.mark.parametrize("offloaded", OFFLOADED[1:], ids=named)
@pytest.mark.thinned(3)
def test_stages_may_share_ipus(
    offloaded: frozenset[str], interval: int, ipus: tuple[int, ...]
) -> None:
    check(PipelineMaker(4, interval, 9, ipus=ipus, offloaded=offloaded))
