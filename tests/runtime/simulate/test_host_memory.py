"""What a run takes of the host's memory, counted by hand, and how a refusal tells it."""

import re

import pytest

from hloipu_runtime.errors import LimitError
from hloipu_runtime.program.program import Program
from hloipu_runtime.simulate.host_memory import host_bytes, memory_told, require_host_memory
from tests.support.program_builder import ProgramBuilder, rows

GIBIBYTE = 1 << 30


def chain(elements: int) -> Program:
    """Return a program of four values, of which two are alive at a time, and a small one first."""
    make = ProgramBuilder()
    mapping = rows(4, -(-elements // 4))
    small = make.stream_in(make.variable((8,), rows(4, 2)))
    make.stream_out(small)
    value = make.stream_in(make.variable((elements,), mapping))
    for _ in range(3):
        value = make.add([value], make.variable((elements,), mapping))
    make.stream_out(value)
    return make.program()


def test_tiles_hold_what_is_alive_at_one_time() -> None:
    assert host_bytes(chain(1000), "exact") == 2 * 4 * 1000
    # parts are as large as the largest one
    assert host_bytes(chain(1001), "exact") == 2 * 4 * 4 * 251


def test_whole_tensors_take_the_largest_value() -> None:
    assert host_bytes(chain(1000), "functional") == 4 * 1000


def test_a_refusal_tells_what_is_taken_and_allowed() -> None:
    program = chain(GIBIBYTE // 4)
    require_host_memory(program, "functional", GIBIBYTE, 1)
    require_host_memory(program, "functional", 3 * GIBIBYTE, 3)
    with pytest.raises(LimitError) as caught:
        require_host_memory(program, "functional", 3 * GIBIBYTE // 2, 3)
    error = caught.value
    assert (error.code, error.found, error.allowed) == ("E5016", 3 * GIBIBYTE, 3 * GIBIBYTE // 2)
    assert re.findall(r"[\d.,]+ GiB", error.message) == ["3.0 GiB", "1.5 GiB"]
    with pytest.raises(LimitError):
        require_host_memory(program, "exact", 2 * GIBIBYTE - 1, 1)


def test_memory_that_runs_out_is_told_as_a_limit() -> None:
    with (
        pytest.raises(LimitError) as caught,
        memory_told(chain(GIBIBYTE // 4), "exact", 8 * GIBIBYTE),
    ):
        raise MemoryError
    assert (caught.value.found, caught.value.allowed) == (2 * GIBIBYTE, 8 * GIBIBYTE)
    assert re.findall(r"[\d.,]+ GiB", caught.value.message) == ["2.0 GiB", "8.0 GiB"]
