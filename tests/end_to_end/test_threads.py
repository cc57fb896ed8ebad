"""One program in many threads, beside sessions, within its own callbacks: bits do not change."""

from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

import hloipu
from hloipu_compiler.interpret.random_inputs import random_arguments
from hloipu_runtime.compiled import CompiledProgram

SAMPLES = Path(__file__).parents[2] / "hlo_samples"
NAMES = ["mnist_train_step", "convnet_train_step", "transformer_block_bf16"]
"""The first has products that take all threads of BLAS, and others that take one."""


@cache
def program(name: str) -> CompiledProgram:
    return hloipu.compile(SAMPLES / f"{name}.hlo", target="gc200", cache=False)


def arguments(name: str, seed: int) -> list[Any]:
    return random_arguments(hloipu.verify(SAMPLES / f"{name}.hlo"), seed)


def bits(outputs: list[Any]) -> list[bytes]:
    return [np.asarray(x).tobytes() for x in outputs]


SESSION = """HloModule step, input_output_alias={ {0}: (0, {}, must-alias) }

ENTRY e {
  w = f32[64,64] parameter(0)
  x = f32[32,64] parameter(1)
  p = f32[32,64] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  g = f32[64,64] dot(x, p), lhs_contracting_dims={0}, rhs_contracting_dims={0}
  rate = f32[] constant(1e-4)
  rates = f32[64,64] broadcast(rate), dimensions={}
  change = f32[64,64] multiply(g, rates)
  new = f32[64,64] subtract(w, change)
  ROOT t = (f32[64,64], f32[32,64]) tuple(new, p)
}
"""


def session_bits(_: int) -> list[bytes]:
    """Return the bits of the state after a session's steps."""
    looped = hloipu.compile(SESSION, target="tiny", loop=4, feed={"data": (1,)}, cache=False)
    draw = np.random.default_rng(0)
    weights = draw.normal(size=(64, 64)).astype(np.float32)
    rows = draw.normal(size=(20, 32, 64)).astype(np.float32)
    with looped.session(state=[weights], infeeds={"data": (rows,)}) as session:
        session.run(20)
        return bits(list(session.state().values()))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.thinned(3)
def test_runs_in_threads_give_the_bits_of_runs_alone(name: str) -> None:
    given = [arguments(name, seed) for seed in range(4)]
    alone = [bits(program(name).run(*x).outputs) for x in given]
    kept = session_bits(0)

    def run(number: int) -> bool:
        return bits(program(name).run(*given[number % 4]).outputs) == alone[number % 4]

    with ThreadPoolExecutor(8) as pool:
        beside = [pool.submit(session_bits, n) for n in range(2)]
        assert all(pool.map(run, range(64)))
        assert all(each.result() == kept for each in beside)


@pytest.mark.parametrize("told", ["watch", "progress"])
def test_a_callback_may_run_the_program(told: str) -> None:
    name = NAMES[0]
    given, others = arguments(name, 0), arguments(name, 1)
    alone = bits(program(name).run(*given).outputs)
    nested: list[list[bytes]] = []

    def callback(*_: object) -> None:
        if len(nested) < 5:
            nested.append([])
            nested[-1] = bits(program(name).run(*others).outputs)

    callbacks: Any = {told: callback}
    assert bits(program(name).run(*given, **callbacks).outputs) == alone
    assert nested == [bits(program(name).run(*others).outputs)] * len(nested)
    assert nested


def test_a_run_that_fails_leaves_nothing_behind() -> None:
    name = NAMES[0]
    given = arguments(name, 0)
    alone = bits(program(name).run(*given).outputs)

    def fail(*_: object) -> None:
        raise KeyError

    with pytest.raises(KeyError):
        program(name).run(*given, watch=fail)
    assert bits(program(name).run(*given).outputs) == alone


def blas_threads() -> list[int]:
    return [each["num_threads"] for each in threadpool_info() if each["user_api"] == "blas"]


def test_blas_has_the_threads_that_it_had() -> None:
    """A run sets them as each product asks, and never takes more than the user leaves it."""
    name = NAMES[0]
    given = arguments(name, 0)
    before = blas_threads()
    program(name).run(*given)
    assert blas_threads() == before
    with threadpool_limits(1):
        program(name).run(*given)
        assert set(blas_threads()) == {1}
    assert blas_threads() == before
