"""Runs of one program in many threads at once, and what their engines keep."""

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest

import hloipu
from hloipu_runtime.codelets.core import expression_plan, native_expression, native_running
from hloipu_runtime.codelets.core.native_running import Prepared, WholeCall
from hloipu_runtime.kernels.native.settings import is_there
from hloipu_runtime.simulate import plain_runs
from hloipu_runtime.simulate.exact.exact import ExactEngine
from hloipu_runtime.simulate.functional import loop_turns
from hloipu_runtime.simulate.plain_runs import PlainRuns

Arrays = list[np.ndarray[Any, Any]]

CHAIN = """HloModule chain
ENTRY e {
  a = f32[2,700] parameter(0)
  b = f32[2,700] parameter(1)
  m = f32[2,700] multiply(a, b)
  t = f32[2,700] tanh(m)
  d = f32[2,700] subtract(t, a)
  e = f32[2,700] exponential(d)
  n = f32[2,700] negate(e)
  ROOT z = f32[2,700] add(n, m)
}
"""


@pytest.fixture
def forced(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Compile kernels at once, and change threads as often as can be."""
    for name in ("NATIVE_WORK", "WHOLE_CALL_WORK"):
        monkeypatch.setattr(expression_plan, name, 0)
    for name in ("COMPILING_WORK", "LOADING_WORK"):
        monkeypatch.setattr(native_expression, name, 0)
    monkeypatch.setattr(loop_turns, "FEWEST_OPS", 99)  # expressions are kernels of their own
    native_expression.native_expression.cache_clear()
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)
    native_expression.native_expression.cache_clear()


@pytest.mark.parametrize("mode", ["functional", "exact"])
@pytest.mark.skipif(not is_there(), reason="llvmlite is not installed")
def test_threads_at_once_get_what_one_gets(
    mode: Any, forced: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, whole = Prepared.run, native_running.whole_call
    runs: list[Any] = []

    def counted(self: Prepared, *given: Any) -> None:
        runs.append(self)
        run(self, *given)

    def counted_call(*given: Any) -> WholeCall | None:
        call = whole(*given)

        def counting(*x: Any) -> Any:
            runs.append(call)
            return call(*x) if call else None

        return counting if call else None

    monkeypatch.setattr(Prepared, "run", counted)
    monkeypatch.setattr(native_expression, "whole_call", counted_call)
    program = hloipu.compile(CHAIN, target="unit", cache=False)
    generator = np.random.default_rng(3)
    given = [list(generator.normal(size=(2, 2, 700)).astype(np.float32)) for _ in range(4)]
    wanted = [_bits(program, each, mode) for each in given]
    with ThreadPoolExecutor(8) as threads:
        made = list(threads.map(lambda k: _bits(program, given[k % 4], mode), range(64)))
    assert made == wanted * 16
    assert len(runs) >= 68


def _bits(program: hloipu.CompiledProgram, given: Arrays, mode: Any) -> bytes:
    """Return a run's result, and write over it: it is no other run's."""
    out = np.asarray(program.run(*given, mode=mode).outputs[0])
    bits = out.tobytes()
    if out.flags.writeable:
        out[...] = 7
    return bits


def test_idle_engines_keep_so_much_together(monkeypatch: pytest.MonkeyPatch) -> None:
    program = hloipu.compile(CHAIN, target="unit", cache=False)
    monkeypatch.setattr(plain_runs, "MOST_KEPT_BYTES", 25)
    for size_bytes, kept in ((10, 2), (25, 1), (26, 0)):
        monkeypatch.setattr(ExactEngine, "kept_bytes", size_bytes)
        runs = PlainRuns(program.program, program.parameter_names, program.live_bytes)
        with ExitStack() as stack:
            lent = [runs._engine("exact", poison=False, seed=0) for _ in range(4)]
            engines = [stack.enter_context(each) for each in lent]
        assert [engine for _, engine in runs._idle] == engines[:kept][::-1]  # the last ones back
