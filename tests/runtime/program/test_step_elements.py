"""How many elements of its queues a step takes, and whether data has a say in that."""

import pytest

from hloipu_runtime.program.program import Port, Program, Queue
from hloipu_runtime.program.step_elements import takes_alike
from hloipu_runtime.program.steps import (
    Call,
    If,
    Parallel,
    Repeat,
    RepeatWhile,
    Sequence,
    Step,
    StreamIn,
    Switch,
)

TAKEN = StreamIn("data", 0, 0)
OTHER = StreamIn("argument", 0, 0)
TAKES = Sequence((OTHER, TAKEN))
NOT = Sequence((OTHER,))


@pytest.mark.parametrize(
    ("step", "alike"),
    [
        (TAKES, True),
        (Call("f"), True),
        (Repeat(3, TAKES, ()), True),  # the loop over steps
        (Repeat(3, Sequence((Repeat(2, TAKES, ()),)), ()), False),
        (Repeat(3, Sequence((Repeat(2, NOT, ()), TAKEN)), ()), True),
        (Repeat(3, Sequence((Parallel((TAKES, NOT)),)), ()), True),
        (Repeat(3, Sequence((Call("f"),)), ()), True),
        (Repeat(3, Sequence((Repeat(2, Sequence((Call("f"),)), ()),)), ()), False),
        (RepeatWhile(NOT, 0, 0, TAKES, ()), False),
        (RepeatWhile(TAKES, 0, 0, NOT, ()), False),
        (If(0, 0, NOT, TAKES, ()), False),
        (If(0, 0, NOT, NOT, ()), True),
        (Switch(0, 0, (NOT, TAKES), ()), False),
    ],
)
def test_only_what_stands_in_branches_or_inner_loops_is_taken_as_data_says(
    step: Step, alike: bool
) -> None:
    queue = Queue("q", True, (Port("data", "f32", ()),))
    program = Program(
        "p", "tiny", 1, (), (), body=Sequence((step,)), functions={"f": TAKES}, queues=(queue,)
    )
    assert takes_alike(program) is alike
    handed_out = Program(
        "p", "tiny", 1, (), (), body=Sequence((step,)), functions={"f": TAKES},
        queues=(Queue("q", False, queue.streams),),
    )  # fmt: skip
    assert takes_alike(handed_out)
