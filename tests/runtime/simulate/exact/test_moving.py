"""Memory that is the host's: which variables have it, and that no run sees what is another's."""

import weakref

import numpy as np
import pytest

from hloipu_runtime.program.program import Array
from hloipu_runtime.program.steps import Repeat, Sequence, StreamOut
from hloipu_runtime.simulate.exact import moving
from hloipu_runtime.simulate.exact.exact import ExactEngine
from hloipu_runtime.simulate.exact.moving import moving_variables
from hloipu_runtime.simulate.exact.private_variables import private_variables
from hloipu_runtime.simulate.run.host import Arrays
from tests.support.naive_run import DrawnHost, NaiveRun
from tests.support.program_builder import ProgramBuilder, rows
from tests.support.random_programs import random_program

ROWS, OTHERS, TWICE = rows(3, 2), rows(2, 3), rows(2, 3, copies=2)


@pytest.fixture(autouse=True)
def all_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moving, "LEAST_BYTES", 0)


class Drawn:
    """A parameter `a`, its copy `b` elsewhere, and a sum `c`; what else happens, a case says."""

    def __init__(self, result_on: str = "rows") -> None:
        self.make = ProgramBuilder()
        self.a = self.make.stream_in(self.make.variable((5,), ROWS))
        self.b = self.make.variable((5,), OTHERS)
        self.c = self.make.variable((5,), TWICE if result_on == "twice" else OTHERS)
        self.make.copy(self.a, self.b)
        self.make.add([self.b, self.b], self.c)

    def out(self) -> None:
        """Stream the sum out."""
        self.make.stream_out(self.c)

    def double(self) -> None:
        """Write over the parameter."""
        self.make.add([self.a, self.a], self.a)

    def copy_back(self) -> None:
        """Write over the parameter by an exchange."""
        self.make.copy(self.b, self.a)

    def use(self) -> None:
        """Write the sum once more."""
        self.make.add([self.b], self.c)

    def parameter_out(self) -> None:
        """Stream the parameter out."""
        self.make.emit(StreamOut("other", self.a, self.make.held[self.a]))

    def out_in_loop(self) -> None:
        """Stream the sum out twice."""
        value = self.make.held[self.c]
        self.make.emit(Repeat(2, Sequence((StreamOut("out", self.c, value),)), ()))


@pytest.mark.parametrize(
    ("does", "lent", "given"),
    [
        ("out", "a", "c"),
        ("double out", "", "c"),  # tiles write it
        ("copy_back out", "", "c"),
        ("parameter_out out", "", "ac"),  # is filled, and given away as it stands
        ("out use", "a", ""),  # is needed once more
        ("out out", "a", ""),  # so it is here
        ("out_in_loop", "a", ""),
        ("use", "a", ""),
    ],
)
def test_the_host_has_what_nobody_else_needs(does: str, lent: str, given: str) -> None:
    drawn = Drawn()
    for word in does.split():
        getattr(drawn, word)()
    program = drawn.make.program()
    moves = moving_variables(program, private_variables(program))
    assert moves.lent == {getattr(drawn, name) for name in lent}
    assert moves.given == {getattr(drawn, name) for name in given}


def test_results_are_arrays_of_their_own_and_arguments_stay_as_they_are() -> None:
    drawn = Drawn()
    drawn.out()
    engine = ExactEngine(drawn.make.program())
    numbers = np.arange(5, dtype=np.float32)
    given: list[Array] = [
        numbers.copy(),
        np.repeat(numbers, 2)[::2],  # lies otherwise
        numbers.astype(np.float64),
        numbers + 1,
    ]
    results = []
    for array in given:
        before = array.copy()
        host = Arrays({f"in{drawn.a}": array})
        engine.run(host)
        np.testing.assert_array_equal(array, before)
        array[...] = -1  # no later run may look at it
        results.append(host.outputs[f"out{drawn.c}"])
    for k, result in enumerate(results):
        np.testing.assert_array_equal(result, 2 * numbers + 2 * (k == 3))
    assert len({x.ctypes.data for x in results}) == len(results)


def test_a_result_is_not_copied_and_a_parameter_is_let_go() -> None:
    drawn = Drawn()
    drawn.out()
    engine = ExactEngine(drawn.make.program())
    for _ in range(2):
        array = np.arange(5, dtype=np.float32)
        host = Arrays({f"in{drawn.a}": array})
        engine.run(host)
        # Its base is what `begin` made: a copy would have none.
        is_copied = host.outputs[f"out{drawn.c}"].base is None
        held = weakref.ref(array)
        del array, host
        assert (is_copied, held()) == (False, None)


@pytest.mark.parametrize("seed", range(60))
def test_later_runs_on_other_data_give_what_a_naive_run_gives(seed: int) -> None:
    program = random_program(seed, steps=14)
    engine = ExactEngine(program)
    for data in range(3):
        host, naive = DrawnHost(program, data), NaiveRun(program, DrawnHost(program, data))
        engine.run(host)
        naive.run()
        for (_, ours), (_, theirs) in zip(host.given, naive.host.given, strict=True):
            np.testing.assert_array_equal(ours, theirs)
