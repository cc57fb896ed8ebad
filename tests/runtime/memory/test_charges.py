"""Code, state and stacks of each tile, counted tile by tile and by hand."""

from itertools import product
from random import Random

import numpy as np
import pytest

from hloipu_runtime.codelets.core.codelet import Codelet
from hloipu_runtime.codelets.core.constants import number_node
from hloipu_runtime.codelets.core.expression_form import Expression, Node
from hloipu_runtime.codelets.core.tensors import Tensor
from hloipu_runtime.codelets.ops.elementwise import Elementwise
from hloipu_runtime.codelets.ops.reduce import Reduce
from hloipu_runtime.machine.load import load_machine
from hloipu_runtime.machine.model import Machine
from hloipu_runtime.memory.categories import Category
from hloipu_runtime.memory.charges import receivers, senders
from hloipu_runtime.memory.plan import MemoryPlan, plan_memory
from hloipu_runtime.memory.report import memory_report
from hloipu_runtime.program.mapping import Box, Mapping, Sizes, Span, Tiles, whole, whole_box
from hloipu_runtime.program.program import Program, Variable
from hloipu_runtime.program.steps import (
    Call,
    ComputeSet,
    Operand,
    Parallel,
    Repeat,
    Sequence,
    Step,
    Sync,
    Transfer,
    VertexGroup,
)
from tests.support.cases import each
from tests.support.memory_checker import tiles_of
from tests.support.pipelined_programs import PipelineMaker
from tests.support.program_builder import ProgramBuilder, blocks, rows
from tests.support.random_programs import random_program

TINY = load_machine("tiny")
ADD_BYTES = 288
"""Instructions of popops's `BinaryOp1D` of float additions."""
COPY_BYTES = 512
"""Assumed."""


def on_tiles(plan: MemoryPlan, category: Category, ipu: int = 0) -> list[int]:
    memory = plan.ipus[ipu]
    found: list[int] = memory.fixed[category][memory.classes.of_tile].tolist()
    return found


def sums(make: ProgramBuilder, count: int) -> None:
    """Add on tiles 0 to 3 once, then on tile 2 `count` times."""
    wide = make.stream_in(make.variable((8,), rows(4, 2)))
    one = make.stream_in(make.variable((8,), Mapping(Tiles((), (), 2), (whole(8),))))
    make.add([wide, wide], make.variable((8,), rows(4, 2)))
    for _ in range(count):
        make.add([one, one], make.variable((8,), Mapping(Tiles((), (), 2), (whole(8),))))


def test_code_counts_once_on_a_tile_and_state_each_time() -> None:
    make = ProgramBuilder()
    sums(make, 3)
    plan = plan_memory(make.program(synced=False), TINY)
    assert on_tiles(plan, Category.VERTEX_CODE) == [ADD_BYTES] * 4
    # 8 for the vertex, 4 for each of its three edges and for their length.
    assert on_tiles(plan, Category.VERTEX_STATE) == [24, 24, 4 * 24, 24]
    assert on_tiles(plan, Category.STACKS) == [1024] * 4


def test_code_of_another_expression_is_other_code() -> None:
    make = ProgramBuilder()
    sums(make, 1)
    one = make.variable((8,), Mapping(Tiles((), (), 2), (whole(8),)))
    make.add([1], one)  # a copy
    plan = plan_memory(make.program(synced=False), TINY)
    assert on_tiles(plan, Category.VERTEX_CODE) == [
        ADD_BYTES,
        ADD_BYTES,
        ADD_BYTES + COPY_BYTES,
        ADD_BYTES,
    ]


def group_of(make: ProgramBuilder, codelet: Codelet, sizes: Sizes, result: Sizes) -> VertexGroup:
    """Return a vertex on tile 2 that makes an array of one that comes in, both whole."""

    def operand(shape: Sizes) -> Operand:
        spans = tuple(map(whole, shape))
        return Operand(make.variable(shape, Mapping(Tiles((), (), 2), spans)), spans)

    given, target = operand(sizes), operand(result)
    read = make.held[make.stream_in(given.variable)]
    made = make.value_like(target.variable)
    return VertexGroup(
        codelet, Tiles((), (), 2), (given,), (target,), (read,), (made,), f"of{made}"
    )


def test_code_is_the_same_whatever_numbers_it_reads() -> None:
    """By half, by a quarter: numbers of four bytes in the state. A zero is in a register."""

    def by(number: float) -> Codelet:
        nodes = (number_node(number, "f32"), Node("multiply", (0, 1), "f32"))
        return Elementwise(Expression(("f32",), nodes, (2,)), ((0,),), 1)

    kinds = {}
    for numbers in ((0.5,), (0.5, 0.25), (0.5, 0.25, 0.0)):
        make = ProgramBuilder()
        for number in numbers:
            make.emit(ComputeSet((group_of(make, by(number), (8,), (8,)),)))
        plan = plan_memory(make.program(synced=False), TINY)
        kinds[numbers] = [
            on_tiles(plan, category)[2]
            for category in (Category.VERTEX_CODE, Category.VERTEX_STATE)
        ]
    (code, state), two, three = kinds.values()
    assert state == 8 + 2 * 4 + 4 + 4
    assert two == [code, 2 * state]
    assert three == [2 * code, 3 * state - 4]


@pytest.mark.parametrize("together", [False, True])
def test_vertices_that_run_one_after_the_other_share_a_room(together: bool) -> None:
    """Six workers cut seven rows in three pieces each, and nine in two, of four bytes a sum."""
    make, rows_of = ProgramBuilder(), (7, 9)
    codelet = Reduce((1,), "add", None, ("f32",), (600,))
    groups = [group_of(make, codelet, (count, 600), (1, count)) for count in rows_of]
    rooms = [
        codelet.room_bytes(TINY, [Tensor("f32", (count, 600))], [Tensor("f32", (1, count))])
        for count in rows_of
    ]
    assert rooms == [4 * 7 * 3, 4 * 9 * 2]
    for some in (groups,) if together else map(list, zip(groups, strict=True)):
        make.emit(ComputeSet(tuple(some)))
    plan = plan_memory(make.program(synced=False), TINY)
    states = 2 * (8 + 2 * 4 + 4)
    room = sum(rooms) if together else max(rooms)
    assert on_tiles(plan, Category.VERTEX_STATE) == [0, 0, states + room, 0]


def test_steps_have_code_on_tiles_that_take_part() -> None:
    make = ProgramBuilder(ipus=2)
    sums(make, 1)  # a stream and a compute set on all tiles, and one each on tile 2
    far = make.variable((), Mapping(Tiles(), ()), ipu=1)
    with make.block() as body:
        make.emit(Sync())
        make.stream_in(far)
    make.functions["f"] = Sequence(tuple(body))
    make.emit(Repeat(5, Sequence((Call("f"), Call("f"))), ()))
    plan = plan_memory(make.program(synced=False), TINY)
    call = 3 * 4  # of a vertex: a pointer, a call and a sync
    shared = 32 * (1 + 2) + 4  # repeat and its two calls; the sync is one instruction
    assert on_tiles(plan, Category.CONTROL_CODE, 0) == [
        32 + call + shared,
        32 + call + shared,
        64 + 2 * call + shared,
        32 + call + shared,
    ]
    assert on_tiles(plan, Category.CONTROL_CODE, 1) == [32 + shared, shared, shared, shared]


def test_steps_of_a_branch_have_code_on_its_ipu() -> None:
    make = ProgramBuilder(ipus=2)
    with make.block() as near:
        make.emit(Sync())
        make.stream_in(make.variable((), Mapping(Tiles(), ())))
    with make.block() as far:
        make.stream_in(make.variable((), Mapping(Tiles(), ()), ipu=1))
    make.emit(Parallel((Sequence(tuple(near)), Sequence(tuple(far)))))
    plan = plan_memory(make.program(synced=False), TINY)
    assert on_tiles(plan, Category.CONTROL_CODE, 0) == [36, 4, 4, 4]
    assert on_tiles(plan, Category.CONTROL_CODE, 1) == [32, 0, 0, 0]


def test_exchange_code_of_a_gathering() -> None:
    """Three tiles send a piece each; the fourth receives three and has its own already."""
    make = ProgramBuilder()
    wide = make.stream_in(make.variable((8,), rows(4, 2)))
    make.copy(wide, make.variable((8,), Mapping(Tiles((), (), 3), (whole(8),))))
    plan = plan_memory(make.program(synced=False), TINY)
    pieces = [n // 32 - 1 for n in on_tiles(plan, Category.EXCHANGE_CODE)]  # one for the stream
    assert pieces[:3] == [1, 1, 1]
    assert pieces[3] in (4, 5)  # its own piece is counted with the others


def to_columns(machine: Machine, *, code_memory: bool = True) -> MemoryPlan:
    """Return the plan of a matrix of 64 x 64, in rows on four tiles, then in columns."""
    make = ProgramBuilder()
    in_rows = make.stream_in(make.variable((64, 64), blocks((64, 64), (4, 1))))
    make.copy(in_rows, make.variable((64, 64), blocks((64, 64), (1, 4))))
    return plan_memory(make.program(synced=False), machine, code_memory=code_memory)


def test_exchange_code_of_rows_that_become_columns() -> None:
    plan = to_columns(TINY)
    # A tile sends parts of 16 rows to four tiles, its own included, and receives from three.
    sent, received, packets = 16 * 4, 3, 4
    assert on_tiles(plan, Category.EXCHANGE_CODE) == [32 * (sent + received + packets)] * 4
    assert plan.ipus[0].messages == ()


def test_exchange_code_gives_way_to_messages_where_room_is_small() -> None:
    """Senders put 48 parts of rows, 64 bytes each, side by side first, in two rounds."""
    plan = to_columns(load_machine("tiny", {"executable_bytes": "2048"}))
    assert on_tiles(plan, Category.EXCHANGE_CODE) == [32 * (4 + 4 + 4)] * 4
    (message,) = plan.ipus[0].messages
    assert (message.size_bytes, message.ranges) == (1536, ((1, 1),))
    # Two edges, four loops of three half words.
    assert on_tiles(plan, Category.VERTEX_STATE) == [8 + 8 + 24] * 4
    assert on_tiles(plan, Category.VERTEX_CODE) == [512] * 4
    live = 2 * 64 * 64 * 4 // 4 + 1536
    assert plan.ipus[0].live.most_bytes.tolist() == [live] * plan.ipus[0].classes.count
    report = memory_report(plan)
    assert report.peak.step == "body/1"
    assert report.peak.parts[Category.EXCHANGE_BUFFERS] == 4096 + 1536
    assert sum(report.peak.parts.values()) == report.peak.total_bytes


def test_code_left_out() -> None:
    make = ProgramBuilder()
    sums(make, 3)
    plan = plan_memory(make.program(synced=False), TINY, code_memory=False)
    for category in (Category.VERTEX_CODE, Category.CONTROL_CODE, Category.EXCHANGE_CODE):
        assert on_tiles(plan, category) == [0] * 4
    assert on_tiles(plan, Category.VERTEX_STATE)[2] == 4 * 24


def test_exchanges_take_their_fastest_forms_where_code_is_not_counted() -> None:
    machine = load_machine("tiny", {"executable_bytes": "2048"})
    assert to_columns(machine).ipus[0].messages
    assert not to_columns(machine, code_memory=False).ipus[0].messages


def test_what_rests_on_assumed_sizes() -> None:
    """The sum's code was counted, the copy's was not; of the sum's vertex the fixed part is."""
    make = ProgramBuilder()
    one = make.stream_in(make.variable((8,), Mapping(Tiles((), (), 2), (whole(8),))))
    made = make.add([one, one], make.variable((8,), Mapping(Tiles((), (), 2), (whole(8),))))
    make.add([made], make.variable((8,), Mapping(Tiles((), (), 2), (whole(8),))))
    peak = memory_report(plan_memory(make.program(synced=False), TINY)).peak
    # Of the tiny machine, every number is assumed.
    assert peak.assumed == {
        Category.VERTEX_STATE: 8 + (8 + 2 * 4 + 4),
        Category.VERTEX_CODE: COPY_BYTES,
        Category.CONTROL_CODE: peak.parts[Category.CONTROL_CODE],
        Category.EXCHANGE_CODE: peak.parts[Category.EXCHANGE_CODE],
    }
    bare = memory_report(plan_memory(make.program(synced=False), TINY, code_memory=False)).peak
    assert bare.assumed == {Category.VERTEX_STATE: 28}


def compute_sets(program: Program) -> list[ComputeSet]:
    found: list[ComputeSet] = []
    waiting: list[Step] = [program.body, *program.functions.values()]
    while waiting:
        step = waiting.pop()
        if isinstance(step, ComputeSet):
            found.append(step)
        elif isinstance(step, Sequence):
            waiting += step.steps
        else:
            for name in ("body", "condition"):
                if hasattr(step, name):
                    waiting.append(getattr(step, name))
            waiting += getattr(step, "branches", ())
    return found


@pytest.mark.parametrize("seed", range(20))
def test_vertices_of_drawn_programs(seed: int) -> None:
    program = random_program(seed, ipus=1 + seed % 2)
    plan = plan_memory(program, TINY)
    sizes = {"copy": COPY_BYTES, "elementwise": ADD_BYTES}
    for ipu in range(program.ipus):
        state, codes = [0] * 4, [dict[str, int]() for _ in range(4)]
        for group in (g for step in compute_sets(program) for g in step.groups):
            if program.variables[group.outputs[0].variable].ipu != ipu:
                continue
            for tile in tiles_of(Mapping(group.tiles, ())):
                state[tile] += 8 + 4 * (len(group.inputs) + len(group.outputs)) + 4
                # What is drawn are copies and sums, all of f32.
                codes[tile][group.codelet.name] = sizes[group.codelet.name]
        assert on_tiles(plan, Category.VERTEX_STATE, ipu) == state
        assert on_tiles(plan, Category.VERTEX_CODE, ipu) == [sum(found.values()) for found in codes]


@pytest.mark.parametrize("group", [1, 3])
@pytest.mark.parametrize("offloaded", ["activations", "weights", "totals", "pages"])
def test_code_of_what_a_pipeline_keeps_in_remote_memory(offloaded: str, group: int) -> None:
    """Two stages on one IPU: parts of 12 bytes come in 3 packets and leave in 2.

    Channels, state, weights and pages are copied by code that each counts once.
    """
    packets = {"to_device_packet_bytes": "4", "from_device_packet_bytes": "6"}
    machine = load_machine("tiny", packets)
    kinds = frozenset((offloaded, "activations"))
    program = PipelineMaker(2, 4, 6, ipus=(0, 0), group=group, offloaded=kinds).program()
    come, leave = {
        "activations": (0, 0),  # no more than the three channels below
        "weights": (2, 0),
        "totals": (2, 2),
        "pages": (2, 2),
    }[offloaded]
    channels = 4  # from either stage to its own backward pass, up and down
    packets_code = 3 * (1 + channels + come) + 2 * (channels + leave)
    plan = plan_memory(program, machine)
    assert on_tiles(plan, Category.EXCHANGE_CODE) == [32 * packets_code] * 2 + [0, 0]


EXTENTS = (3, 2, 2)
"""Of the grid: of its axes, some cut a dimension, the others replicate."""
STRIDES = (5, 2, 1)
FIRST = 4


def drawn_mapping(draw: Random, shape: Sizes) -> Mapping:
    """Return a mapping in which every element lies somewhere, with halos."""
    axes = draw.sample(range(len(EXTENTS)), len(shape))
    spans = []
    for size, axis in zip(shape, axes, strict=True):
        step, halo = -(-size // EXTENTS[axis]), draw.choice((0, 0, 1))
        cut = Span(axis, step, -halo, step + 2 * halo)
        spans.append(draw.choice((cut, cut, whole(size))))
    return Mapping(Tiles(EXTENTS, STRIDES, FIRST), tuple(spans))


def drawn_box(draw: Random, shape: Sizes) -> Box:
    lows = [draw.randrange(size) for size in shape]
    return tuple((low, draw.randint(low + 1, size)) for low, size in zip(lows, shape, strict=True))


def tiles_with(mapping: Mapping, shape: Sizes, box: Box, *, once: bool) -> list[int]:
    """Return the tiles whose parts meet a box; `once`: at place 0 of axes that replicate."""
    tiles = []
    cutting = {span.axis for span in mapping.spans}
    for place in product(*(range(n) for n in EXTENTS)):
        if once and any(n for axis, n in enumerate(place) if axis not in cutting):
            continue
        meets = True
        for span, size, (low, high) in zip(mapping.spans, shape, box, strict=True):
            begin = span.offset + (place[span.axis] * span.step if span.axis >= 0 else 0)
            held = range(max(0, begin), min(size, begin + span.size))
            meets &= any(low <= element < high for element in held)
        if meets:
            tiles.append(FIRST + sum(n * s for n, s in zip(place, STRIDES, strict=True)))
    return tiles


def numbers(tiles: Tiles) -> list[int]:
    assert 1 not in tiles.extents
    return sorted(tiles.numbers.ravel().tolist())


@each("seed", range(60))
def test_receivers_and_senders(seed: int) -> None:
    draw = Random(seed)
    shape = (draw.randint(6, 12), draw.randint(4, 9))
    mapping, box = drawn_mapping(draw, shape), drawn_box(draw, shape)
    variable = Variable("v", "f32", shape, mapping)
    shift = tuple(
        draw.randint(-low, size - high) for (low, high), size in zip(box, shape, strict=True)
    )
    everyone = whole_box(EXTENTS)
    moved = Transfer(0, 1, mapping.tiles, everyone, mapping.spans, box, shift, shape, 0)
    assert numbers(receivers(moved, variable)) == tiles_with(mapping, shape, box, once=False)
    there = tuple((low + s, high + s) for (low, high), s in zip(box, shift, strict=True))
    assert numbers(senders(moved, variable)) == tiles_with(mapping, shape, there, once=True)


@pytest.mark.parametrize("seed", range(30))
def test_senders_of_a_source_that_is_seen_in_another_shape(seed: int) -> None:
    """All rows between the first and the last element are taken to be sent."""
    draw = Random(seed)
    shape, view = (12, 5), draw.choice(((60,), (4, 15), (5, 12), (3, 4, 5)))
    mapping = drawn_mapping(draw, shape)
    box = drawn_box(draw, view)
    shift = tuple(
        draw.randint(-low, size - high) for (low, high), size in zip(box, view, strict=True)
    )
    moved = Transfer(0, 1, mapping.tiles, whole_box(EXTENTS), mapping.spans, box, shift, view, 0)
    where = tuple(slice(low + s, high + s) for (low, high), s in zip(box, shift, strict=True))
    rows = np.arange(60).reshape(view)[where].ravel() // shape[1]
    wanted = ((int(rows.min()), int(rows.max()) + 1), (0, shape[1]))
    variable = Variable("v", "f32", shape, mapping)
    assert numbers(senders(moved, variable)) == tiles_with(mapping, shape, wanted, once=True)


def test_a_scalar_is_sent_by_one_tile() -> None:
    mapping = Mapping(Tiles((3,), (2,), 1), ())
    moved = Transfer(0, 1, mapping.tiles, ((0, 3),), (), (), (), (), 0)
    scalar = Variable("v", "f32", (), mapping)
    assert numbers(senders(moved, scalar)) == [1]
    assert numbers(receivers(moved, scalar)) == [1, 3, 5]
    one = Transfer(0, 1, mapping.tiles, ((0, 3),), (), ((0, 1),), (0,), (1,), 0)
    assert numbers(senders(one, scalar)) == [1]
