"""Shares of work and traffic: parts of a variable, lanes of a bus, calls of a body."""

from hloipu_runtime.costs.computing import operand_part
from hloipu_runtime.costs.counting import cycles_of_blocks
from hloipu_runtime.costs.estimate import estimate
from hloipu_runtime.costs.step_costs import step_charges
from hloipu_runtime.machine.charges import Charge
from hloipu_runtime.machine.load import load_machine
from hloipu_runtime.memory.liveness import liveness_of
from hloipu_runtime.program.mapping import Mapping, Span, Tiles, whole
from hloipu_runtime.program.program import Role
from hloipu_runtime.program.steps import Call, Operand, Repeat, Sequence
from tests.support.priced_programs import Maker, everywhere, row, rows
from tests.support.program_builder import ProgramBuilder

UNIT, GC200 = load_machine("unit"), load_machine("gc200")


def test_a_part_ends_where_its_variable_does() -> None:
    make = Maker()
    x = make.variable((5, 3), everywhere((5, 3), row(1)))
    program = make.program()
    part = operand_part(program, Operand(x, (Span(-1, 0, 0, 9), Span(-1, 0, 0, 2))))
    assert part.shape == (5, 2)


def test_both_tiles_of_a_bus_send_over_the_lanes_of_both() -> None:
    """Two tiles of a bus have 160 bytes each; pairs of tiles receive a quarter of all.

    Receiving takes 80 bytes at 8 a cycle, but the one bus sends 320: 40 cycles, after 9 of set-up
    and 74 of way; the senders receive no piece that would need control.
    """
    make = Maker()
    x = make.variable((80,), rows((80,), row(2)))
    pairs = Mapping(Tiles((4, 2), (2, 1), 2), (Span(0, 20, 0, 20),))
    y = make.variable((80,), pairs)
    (step,) = step_charges(make.program(make.exchange((x, y))), GC200).steps
    assert step.spent.exchange == Charge(9 + 74 + 40, 9)


def test_blocks_cost_their_share_of_what_is_inside() -> None:
    """A function is called by two loops; each loop has the part of it that it calls.

    On `unit` each of three vertices takes six cycles, and every branch of control one: two for a
    call and one for a turn.
    """
    make = Maker()
    x = make.variable((6,), everywhere((6,), row(1)))
    loops = (
        Repeat(5, Sequence((Call("f"), make.toil(x))), ()),
        Repeat(2, Sequence((Call("f"),)), ()),
    )
    make.functions["f"] = Sequence((make.toil(x), make.toil(x)))
    program = make.program(*loops)
    costs = step_charges(program, UNIT)
    found = estimate(program, UNIT, costs=costs)
    paths = [block.path for block in costs.blocks]
    cycles = dict(zip(paths, cycles_of_blocks(costs, found.counts), strict=True))
    assert cycles.pop("body") == found.total_cycles == 5 * (18 + 3) + 2 * (12 + 3)
    assert sorted(cycles.values()) == [2 * (12 + 3), 7 * 12, 5 * (18 + 3)]


def test_buffers_of_streams_always_take_memory() -> None:
    make = ProgramBuilder()
    one = Mapping(Tiles(), (whole(4),))
    roles = (Role.BUFFER, Role.STATE, Role.TEMPORARY, Role.REMOTE)
    numbers = [make.variable((4,), one, role=role) for role in roles]
    used = make.stream_in(make.variable((4,), one))
    make.stream_out(make.add([used, used], make.variable((4,), one)))
    liveness = liveness_of(make.program())
    assert [liveness.always(v) for v in numbers] == [True, True, False, False]
    assert [bool(liveness.ranges[v]) for v in numbers] == [True, True, False, False]
