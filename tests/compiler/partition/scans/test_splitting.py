"""Loops in parts compute what whole ones do, bit by bit, on fewer rows."""

from collections.abc import Sequence

import numpy as np
import pytest

from hloipu_compiler.interpret.evaluator import Evaluator
from hloipu_compiler.ir.graph import Module
from hloipu_compiler.ir.shapes import ArrayShape, TupleShape
from hloipu_compiler.partition.scans.loop_form import (
    CARRIED,
    COUNTER,
    PASSED,
    READ,
    WRITTEN,
    StackedLoop,
    stacked_loop,
)
from hloipu_compiler.partition.scans.splitting import Split, split_loops
from hloipu_compiler.verify.verifier import verify
from tests.support.loop_texts import ACCUMULATING, EVERY_OTHER, LOOPS, READ_WHOLE
from tests.support.pieces import front


def loop_of(module: Module) -> StackedLoop:
    entry = module.entry
    position = next(n for n, x in enumerate(entry.instructions) if x.opcode == "while")
    loop = stacked_loop(module, entry, position)
    assert loop is not None
    return loop


def kinds(text: str) -> list[tuple[str, int]]:
    return [(x.kind, x.axis) for x in loop_of(front(text)).elements]


def split(module: Module, boundaries: Sequence[int]) -> Split:
    loop = loop_of(module)
    made = split_loops(module, [loop], {loop.name: boundaries})
    verify(made.module)
    return made


def values(module: Module) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    shapes = [module.entry.instructions[p].shape for p in module.entry.parameters]
    sizes = [x.dimensions for x in shapes if isinstance(x, ArrayShape)]
    arguments = [rng.normal(size=size).astype(np.float32) for size in sizes]
    return [np.asarray(x) for x in Evaluator(module)(*arguments)]


def whiles(module: Module) -> list[TupleShape]:
    found = [x.shape for x in module.entry.instructions if x.opcode == "while"]
    return [x for x in found if isinstance(x, TupleShape)]


def cuts(trips: int) -> list[list[int]]:
    """Return boundaries: in the middle, near both ends, and around every trip."""
    some = [[0, trips // 2, trips], [0, 1, trips], [0, trips - 1, trips]]
    return [*some, [0, 1, 2, trips], list(range(trips + 1))]


@pytest.mark.parametrize("text", LOOPS.values(), ids=LOOPS)
def test_parts_compute_what_the_whole_does(text: str) -> None:
    module = front(text)
    wanted = values(module)
    for boundaries in cuts(loop_of(module).trips):
        for a, b in zip(values(split(module, boundaries).module), wanted, strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("text", [EVERY_OTHER, ACCUMULATING, READ_WHOLE])
def test_stacks_that_are_no_rows_go_through_the_parts_whole(text: str) -> None:
    module = front(text)
    for boundaries in cuts(loop_of(module).trips):
        for a, b in zip(values(split(module, boundaries).module), values(module), strict=True):
            np.testing.assert_array_equal(a, b)


def test_what_an_element_of_the_state_is() -> None:
    plain = [(COUNTER, -1), (CARRIED, -1), (READ, 0), (WRITTEN, 0)]
    for name in ("up", "from the last", "negative indices", "rows from a table", "counting down",
                 "parts of rows"):  # fmt: skip
        assert kinds(LOOPS[name]) == plain
    assert kinds(LOOPS["axis 1"])[2] == (READ, 1)
    assert kinds(EVERY_OTHER)[2:] == [(READ, 0), (CARRIED, -1)]
    assert kinds(ACCUMULATING)[3] == (CARRIED, -1)
    assert kinds(READ_WHOLE)[2] == (PASSED, -1)


def test_a_part_carries_its_rows_alone() -> None:
    made = split(front(LOOPS["from the last"]), [0, 2, 5]).module
    rows = [[x.dimensions[0] for x in shape.elements if isinstance(x, ArrayShape) and x.rank == 3]
            for shape in whiles(made)]  # fmt: skip
    assert rows == [[2, 2], [3, 3]]


def test_parts_of_one_trip_are_written_out() -> None:
    made = split(front(LOOPS["up"]), [0, 1, 3, 4, 5]).module
    assert len(whiles(made)) == 1
    opcodes = [x.opcode for x in made.entry.instructions]
    assert opcodes.count("dot") == 3
    assert "dynamic-slice" not in opcodes


def test_ops_are_known_by_their_loop_and_trips() -> None:
    made = split(front(LOOPS["up"]), [0, 3, 4, 5])
    parts = {
        made.parts[x.name] for x in made.module.entry.instructions if x.opcode in ("while", "dot")
    }
    assert parts == {("loop", 0, 3), ("loop", 3, 4), ("loop", 4, 5)}


def test_a_loop_in_one_part_is_left_as_it_is() -> None:
    module = front(LOOPS["up"])
    assert split(module, [0, 5]).module is module


FROM_DATA = """\
  %corner = f32[1,1] slice(%x), slice={[0:1], [0:1]}
  %number = f32[] reshape(%corner)
  %start = s32[] convert(%number)"""


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("constant(5)", "constant(1)"),  # one trip, which the passes before write out
        ("%start = s32[] constant(0)", FROM_DATA.lstrip()),
        ("tanh(%product)", "tanh(%product), control-predecessors={%matrix}"),
    ],
)
def test_other_loops_are_no_stacked_loops(old: str, new: str) -> None:
    module = front(LOOPS["up"].replace(old, new))
    found = [
        stacked_loop(module, module.entry, n)
        for n, x in enumerate(module.entry.instructions)
        if x.opcode == "while"
    ]
    assert found in ([], [None])
