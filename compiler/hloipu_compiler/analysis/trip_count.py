"""Trip counts of while loops, where the module tells them.

The rules generalise graphcore/tensorflow `while_loop_to_repeat_simplify`: any constant step, both
operand orders, NE, several tests joined by `and`, and constants reached through copies, tuples,
calls, fusions and unchanged loop state.
"""

import re
from collections.abc import Callable

from hloipu_compiler.analysis.linear_form import Frame, LinearForm, Path, followed, linear_form
from hloipu_compiler.ir.graph import Computation, Instruction, Module
from hloipu_compiler.ir.shapes import ArrayShape, subshape
from hloipu_runtime.frozen import dataclass

_Lookup = Callable[[Path], int | None]
"""From a leaf of the loop's state to an integer, where there is one."""

_SWAPPED = {"LT": "GT", "GT": "LT", "LE": "GE", "GE": "LE", "NE": "NE", "EQ": "EQ"}


@dataclass(frozen=True, slots=True)
class CountedLoop:
    """A loop whose counter goes from `start` by `step` until the condition fails."""

    trips: int
    counter: Path
    """Which leaf of the loop's state counts; empty where the state is a lone scalar."""
    start: int
    step: int


def trip_count(module: Module, computation: Computation, instruction: Instruction) -> int | None:
    """Return how often a `while` of `computation` runs: as derived, else as XLA noted it down."""
    loop = counted_loop(module, computation, instruction)
    return loop.trips if loop is not None else _noted_trips(instruction)


_NOTED = re.compile(r'"known_trip_count"\s*:\s*\{\s*"n"\s*:\s*"?([0-9]{1,19})"?')


def _noted_trips(instruction: Instruction) -> int | None:
    """Read the count that XLA's WhileLoopTripCountAnnotator leaves in the backend config."""
    config = instruction.backend_config
    if config.startswith('"'):  # older dumps quote the JSON
        config = config.replace('\\"', '"')
    match = _NOTED.search(config)
    return int(match[1]) if match else None


_MOST_LOOPS = 2
"""Followed from one to the one before: a loop that goes back ends where that forward did."""


def counted_loop(
    module: Module, computation: Computation, instruction: Instruction, most: int = _MOST_LOOPS
) -> CountedLoop | None:
    """Return the count of a `while` instruction of `computation`, or None where data decides.

    Its limit may be what a loop before it has counted to; so many loops are followed at most.
    """
    condition = module.computation.get(instruction.attributes.text("condition"))
    body = module.computation.get(instruction.attributes.text("body"))
    if instruction.opcode != "while" or condition is None or body is None:
        return None
    before, change = _leaves(module, computation, instruction, most)
    tests = _tests(module, Frame(condition), condition.root)
    loops = [_counted(module, instruction, test, before, change) for test in tests]
    known = [loop for loop in loops if loop is not None]
    # The first test that fails ends the loop.
    return min(known, key=lambda loop: loop.trips) if len(known) == len(tests) else None


def _leaves(
    module: Module, computation: Computation, loop: Instruction, most: int
) -> tuple[_Lookup, _Lookup]:
    """Return what leaves of a loop's state are before it, and by how much an iteration adds."""
    body = module.computation[loop.attributes.text("body")]

    def after(earlier: Instruction, path: Path) -> int | None:
        counted = counted_loop(module, computation, earlier, most - 1) if most else None
        if counted is None:
            return None
        start, step = (lookup(path) for lookup in _leaves(module, computation, earlier, most - 1))
        return None if start is None or step is None else start + step * counted.trips

    def before(path: Path) -> int | None:
        form = linear_form(module, Frame(computation), loop.operands[0], path, after)
        return form.constant if form is not None and form.carried is None else None

    def change(path: Path) -> int | None:
        form = linear_form(module, Frame(body), body.root, path)
        return form.constant if form is not None and form.carried == path else None

    return before, change


_MOST_TESTS = 8
"""Of one condition; TensorFlow writes two, and hardly anybody more."""


def _tests(module: Module, frame: Frame, position: int) -> list[tuple[Frame, int]]:
    tests: list[tuple[Frame, int]] = []
    waiting = [(frame, position)]
    while waiting and len(tests) + len(waiting) <= _MOST_TESTS:
        frame, position = followed(module, *waiting.pop())
        test = frame.computation.instructions[position]
        if test.opcode == "and" and isinstance(test.shape, ArrayShape):
            waiting.extend((frame, operand) for operand in test.operands)
        else:
            tests.append((frame, position))
    return tests + waiting


def _counted(
    module: Module, loop: Instruction, test: tuple[Frame, int], before: _Lookup, change: _Lookup
) -> CountedLoop | None:
    """Return how often a loop runs that one test ends, or None where data decides."""
    frame, position = test
    compare = frame.computation.instructions[position]
    if compare.opcode != "compare":
        return None
    sides = [linear_form(module, frame, side) for side in compare.operands]
    direction = compare.attributes.text("direction")
    for counter, bound, relation in (
        (sides[0], sides[1], direction),
        (sides[1], sides[0], _SWAPPED.get(direction, "")),
    ):
        if counter is None or counter.carried is None or bound is None:
            continue
        limit = _invariant(bound, before, change)
        start, step = before(counter.carried), change(counter.carried)
        if limit is None or start is None or not step:
            continue
        shape = subshape(loop.shape, counter.carried)
        trips = _trips(start + counter.constant, step, limit, relation)
        if trips is not None and _no_overflow(shape, start, step, trips, counter.constant):
            return CountedLoop(trips, counter.carried, start, step)
    return None


def _invariant(bound: LinearForm, before: _Lookup, change: _Lookup) -> int | None:
    """Return the value of a bound that the loop never changes."""
    if bound.carried is None:
        return bound.constant
    start = before(bound.carried)
    if start is None or change(bound.carried) != 0:
        return None
    return start + bound.constant


def _trips(start: int, step: int, limit: int, relation: str) -> int | None:
    """Return how often `x relation limit` holds for x = start, start + step, …; None: no end."""
    if relation == "LE":
        limit, relation = limit + 1, "LT"
    elif relation == "GE":
        limit, relation = limit - 1, "GT"
    distance = limit - start
    if relation == "NE":
        if distance == 0:
            return 0
        return distance // step if distance % step == 0 and distance // step > 0 else None
    if relation == "GT":
        distance, step = -distance, -step
    elif relation != "LT":
        return None
    if distance <= 0:
        return 0
    return -(-distance // step) if step > 0 else None


def _no_overflow(shape: object, start: int, step: int, trips: int, offset: int) -> bool:
    """Whether the counter stays in its type's range, so that it really reaches the limit."""
    if not isinstance(shape, ArrayShape) or not shape.element_type.is_integer:
        return False
    bits = shape.element_type.bits
    low, high = (
        (0, 2**bits) if shape.element_type.name[0] == "u" else (-(2 ** (bits - 1)), 2 ** (bits - 1))
    )
    last = start + step * trips
    return all(low <= value < high for value in (start, last, start + offset, last + offset))
