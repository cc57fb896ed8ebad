"""What the exact engine keeps from run to run: memories and prepared steps, never values."""

import numpy as np
import pytest

from hloipu_runtime.kernels.native.llvm import the_compiler
from hloipu_runtime.kernels.native.settings import Settings, native_kernels
from hloipu_runtime.simulate.exact import small_steps, tile_memories
from hloipu_runtime.simulate.exact.exact import ExactEngine
from hloipu_runtime.simulate.functional import loop_turns
from hloipu_runtime.simulate.run.pool import MemoryPool
from tests.support.naive_run import DrawnHost, NaiveRun
from tests.support.program_builder import ProgramBuilder, rows
from tests.support.random_programs import random_program

ROWS = rows(2, 3)


@pytest.mark.parametrize("kept_bytes", [0, tile_memories.KEPT_BYTES])
@pytest.mark.parametrize("seed", range(30))
def test_later_runs_on_other_data_give_what_a_naive_run_gives(
    seed: int, kept_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tile_memories, "KEPT_BYTES", kept_bytes)
    program = random_program(seed, steps=16)
    engine = ExactEngine(program)
    for data in range(4):  # other branches are taken, and more turns of loops
        host, naive = DrawnHost(program, data), NaiveRun(program, DrawnHost(program, data))
        engine.run(host)
        naive.run()
        for (_, ours), (_, theirs) in zip(host.given, naive.host.given, strict=True):
            np.testing.assert_array_equal(ours, theirs)


@pytest.mark.skipif(the_compiler() is None, reason="llvmlite is not installed")
@pytest.mark.parametrize("seed", range(20))
def test_compiled_steps_give_what_a_naive_run_gives(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for user in (loop_turns, small_steps):
        monkeypatch.setattr(user, "FEWEST_SECONDS", 0.0)
    monkeypatch.setattr(loop_turns, "SECONDS_PER_NODE", 0.0)
    program = random_program(seed, steps=16)
    with native_kernels(Settings(keeps=False)):
        engine = ExactEngine(program)
        for data in range(4):
            host, naive = DrawnHost(program, data), NaiveRun(program, DrawnHost(program, data))
            engine.run(host)
            naive.run()
            for (_, ours), (_, theirs) in zip(host.given, naive.host.given, strict=True):
                np.testing.assert_array_equal(ours, theirs)


def test_a_run_that_breaks_off_spoils_no_later_one() -> None:
    class Broken(DrawnHost):
        def give(
            self, stream: str, value: np.ndarray[tuple[int, ...], np.dtype[np.float32]]
        ) -> None:
            raise ConnectionError

    for seed in range(20):
        program = random_program(seed, steps=16)
        engine = ExactEngine(program)
        with pytest.raises(ConnectionError):
            engine.run(Broken(program, 1))
        host, naive = DrawnHost(program, 2), NaiveRun(program, DrawnHost(program, 2))
        engine.run(host)
        naive.run()
        for (_, ours), (_, theirs) in zip(host.given, naive.host.given, strict=True):
            np.testing.assert_array_equal(ours, theirs)


def test_a_constant_that_is_written_over_is_itself_again() -> None:
    make = ProgramBuilder()
    k = make.constant((6,), ROWS)
    make.constants[k] = (make.constants[k][0], np.arange(6, dtype=np.float32))
    make.add([k, k], k)
    make.stream_out(k)
    program = make.program()
    engine = ExactEngine(program)
    for _ in range(2):
        host = DrawnHost(program, 0)
        engine.run(host)
        np.testing.assert_array_equal(host.given[0][1], 2 * np.arange(6.0))


def test_free_memory_is_used_again_where_little_of_it_is_wasted() -> None:
    pool = MemoryPool()
    small, large = pool.take(1000), pool.take(8000)
    assert pool.bytes == 9000
    pool.give_back(small)
    pool.give_back(large)
    assert pool.take(600) is small
    assert pool.take(600) is not large
    assert pool.take(4001) is large
    assert pool.bytes == 9600
    assert all(pool.take(size).ctypes.data % 64 == 0 for size in (1, 65, 4096))
