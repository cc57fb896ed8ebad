"""A child process that runs modules again and again, on our side or on XLA's.

    python -m tools.bench.shared.runner ours|functional|exact|functional-plain|exact-plain|xla

`ours` is the evaluator, `functional` and `exact` are the modes of a compiled program, `plain`
without compiled kernels. A JSON object a line in, one out: `{"text", "seed", "scale"}` loads a
module and draws its arguments (the same on all sides), `{"calls"}` runs it and answers with the
processor seconds of one call and with those of the clock, `{"slow"}` says where they go,
`{"compile"}` compiles a text and answers with the processor seconds of that.
"""

import cProfile
import gc
import json
import math
import os
import pstats
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from threadpoolctl import threadpool_info

from hloipu.api import compile_verified
from hloipu.inputs import flat
from hloipu.options.resolve import resolve
from hloipu_compiler.hlo.parse import parse
from hloipu_compiler.interpret.evaluator import Evaluator
from hloipu_compiler.interpret.random_inputs import random_arguments
from hloipu_compiler.ir.graph import Module
from hloipu_compiler.verify.verifier import verify
from hloipu_runtime.kernels.computing import computing
from hloipu_runtime.kernels.core.blocks import Array
from hloipu_runtime.kernels.core.movement import contiguous
from hloipu_runtime.kernels.core.storage import storage_dtype
from hloipu_runtime.kernels.native.settings import Settings, is_there, native_kernels
from hloipu_runtime.simulate.exact.exact import ExactEngine
from hloipu_runtime.simulate.functional.functional import FunctionalEngine
from hloipu_runtime.simulate.run.host import Arrays, Counts
from hloipu_runtime.simulate.run.ports import given_arrays

Run = Callable[[int], None]
_KERNELS = Settings()
_NO_KERNELS = Settings(is_on=False)
_LOOKS = 5
"""Runs that are looked at: the least time of each step counts, others may use the machine."""


def scaled_arguments(module: Module, seed: int, scale: float) -> list[Any]:
    """Draw arguments; float matrices are scaled, so that deep models stay in range."""
    arguments = random_arguments(module, seed)
    if scale == 1:
        return arguments
    return [
        (x * x.dtype.type(scale)).astype(x.dtype)
        if isinstance(x, np.ndarray) and x.ndim > 1 and x.dtype.kind in "fV"  # V: bf16
        else x
        for x in arguments
    ]


def ours(module: Module, text: str, arguments: list[Any]) -> Run:
    """Return how to run a module here: storage form in, row-major arrays of their own out."""
    evaluator = Evaluator(module)
    stored = evaluator.arguments_in_storage(arguments)
    # XLA's results are row-major arrays of their own, so a view is not yet a result.
    finish = [
        None if value.flags.c_contiguous and not _is_one_of(value, stored) else _copy
        for value in evaluator.run_stored(stored.copy())
    ]

    def run(calls: int) -> None:
        for _ in range(calls):
            for value, end in zip(evaluator.run_stored(stored.copy()), finish, strict=True):
                if end is not None:
                    end(value)

    return run


def _is_one_of(value: Array, arguments: list[Array]) -> bool:
    return any(np.may_share_memory(value, argument) for argument in arguments)


def _copy(value: Array) -> Array:
    fresh = contiguous(value)
    return value.copy() if fresh is value else fresh


class CompiledRun:
    """A compiled program for `gc200`, run in one mode, with compiled kernels or without."""

    def __init__(self, module: Module, arguments: list[Any], mode: str, kernels: Settings) -> None:
        options = resolve("compile", {"target": "gc200", "over_memory": "allow"}).options
        self._program = compile_verified(module, options).program
        self._arguments = given_arrays(self._program.parameters, flat(arguments))
        self._kernels = kernels
        with native_kernels(kernels):
            self._engine: FunctionalEngine | ExactEngine = (
                ExactEngine(self._program) if mode == "exact" else FunctionalEngine(self._program)
            )

    def __call__(self, calls: int) -> None:
        """Run it so often."""
        with computing(), native_kernels(self._kernels):
            for _ in range(calls):
                self._engine.run(Arrays(self._arguments))

    def slow(self, most: int = 3) -> str:
        """Say which steps take most of a run, with the bytes that they write, and which kernels.

        The time of steps that leave no whole value counts to the next one that does.
        """
        seconds: dict[int, float] = {}
        for _ in range(_LOOKS):
            for value, taken in self._seconds().items():
                seconds[value] = min(taken, seconds.get(value, taken))
        whole = sum(seconds.values()) or 1.0
        worst = sorted(seconds, key=lambda value: -seconds[value])[:most]
        steps = [f"{seconds[v] / whole:.0%} {self._named(v)}" for v in worst]
        return f"{', '.join(steps)}; {functions(self, most)}"

    def _seconds(self) -> dict[int, float]:
        """Return the seconds of a run that went into each value."""
        seconds: dict[int, float] = {}
        ended = before = time.perf_counter()

        def progress(_: int) -> None:
            nonlocal ended
            ended = time.perf_counter()

        def watch(value: int, _: object) -> None:
            nonlocal before
            seconds[value] = seconds.get(value, 0.0) + max(0.0, ended - before)
            before = time.perf_counter()

        with computing(), native_kernels(self._kernels):
            self._engine.run(Arrays(self._arguments), Counts(progress=progress), watch)
        return seconds

    def _named(self, value: int) -> str:
        made = self._program.values[value]
        size = math.prod(made.shape) * storage_dtype(made.element_type).itemsize
        return f"{made.origin or 'a copy'} ({size:,} bytes)"


def _compiled(
    module: Module, text: str, arguments: list[Any], *, mode: str, kernels: Settings
) -> Run:
    return CompiledRun(module, arguments, mode, kernels)


def compile_here(text: str) -> None:
    """Read, verify, compile, prove, price and place a module."""
    module = parse(text)
    verify(module)
    options = resolve("compile", {"target": "gc200", "over_memory": "allow"}).options
    made = compile_verified(module, options)
    made.estimate()
    made.memory  # noqa: B018  planned on the first request


def compile_by_xla(text: str) -> None:
    """Read and compile a module by XLA:CPU."""
    from tests.support.xla_child import Child

    child = Child()
    child.load({"text": text, "program": 0, "replicas": 1, "partitions": 1, "optimised": False})


def xla(module: Module, text: str, arguments: list[Any]) -> Run:
    """Return how to run a module through XLA:CPU, arguments on the device."""
    import jax

    from tests.support.xla_child import Child

    child = Child()
    child.load({"text": text, "program": 0, "replicas": 1, "partitions": 1, "optimised": False})
    executable, _, dtypes = child._programs[0]
    leaves = jax.tree.leaves(arguments)
    placed = [
        jax.device_put(x if x.dtype == d else x.view(d))
        for x, d in zip(map(np.asarray, leaves), dtypes, strict=True)
    ]

    def run(calls: int) -> None:
        for _ in range(calls):
            for value in executable.execute(placed):
                value.block_until_ready()

    return run


SIDES: dict[str, Callable[[Module, str, list[Any]], Run]] = {
    "ours": ours,
    "xla": xla,
    **{
        f"{mode}{plain}": partial(_compiled, mode=mode, kernels=kernels)
        for mode in ("functional", "exact")
        for plain, kernels in (("", _KERNELS), ("-plain", _NO_KERNELS))
    },
}


def compiling(function: Callable[[str], None], request: dict[str, Any]) -> dict[str, object]:
    """Return how long a compilation takes, or what it raised."""
    gc.collect()
    start = time.process_time()
    try:
        function(request["compile"])
    except Exception as error:  # the boundary: whatever either side raises is told
        return {"error": f"{type(error).__name__}: {error}"[:300]}
    return {"seconds": time.process_time() - start}


def main() -> None:
    """Serve on the standard streams."""
    side = sys.argv[1]
    # A second descriptor for answers: XLA prints on the first.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    run: Run | None = None
    for line in sys.stdin:
        request = json.loads(line)
        if "text" in request:
            run = None
            reply: dict[str, object] = {}
            try:
                module = parse(request["text"])
                arguments = scaled_arguments(module, request["seed"], request["scale"])
                run = SIDES[side](module, request["text"], arguments)
                run(1)
            except Exception as error:  # the boundary: whatever either side raises is told
                reply = {"error": f"{type(error).__name__}: {error}"[:300]}
        elif "compile" in request:
            reply = compiling(compile_by_xla if side == "xla" else compile_here, request)
        elif run is None:
            reply = {"blas": blas(), "threads": len(os.sched_getaffinity(0)), "kernels": is_there()}
        elif "slow" in request:
            reply = {"slow": run.slow() if isinstance(run, CompiledRun) else functions(run)}
        else:
            start, wall = time.process_time(), time.perf_counter()
            run(request["calls"])
            reply = {
                "seconds": (time.process_time() - start) / request["calls"],
                "wall": (time.perf_counter() - wall) / request["calls"],
            }
        print(json.dumps(reply), file=answers)


def functions(run: Run, most: int = 3) -> str:
    """Say which functions take most of a run's time themselves."""
    profile = cProfile.Profile()
    profile.runcall(run, _LOOKS)
    rows: list[tuple[float, str]] = []
    for (file, line, name), (_, _, own, _, _) in pstats.Stats(profile).stats.items():  # type: ignore[attr-defined]
        place = f"{os.path.basename(file)}:{line} " if line else ""
        rows.append((own, f"{place}{name}"))
    whole = sum(own for own, _ in rows)
    worst = sorted(rows, reverse=True)[:most]
    return ", ".join(f"{own / whole:.0%} {name}" for own, name in worst)


def blas() -> str:
    """Name the BLAS library, its kernels and its threads."""
    found = [x for x in threadpool_info() if x["user_api"] == "blas"]
    return ", ".join(
        f"{x['internal_api']} {x['version']} {x.get('architecture', '?')} "
        f"{x['num_threads']} thread(s)"
        for x in found
    )


if __name__ == "__main__":
    main()
