"""A child process that runs modules again and again, on our side or on XLA's.

    python -m tools.bench.shared.runner ours|functional|exact|functional-plain|exact-plain|xla

`ours` is the evaluator, `functional` and `exact` are the modes of a compiled program, `plain`
without compiled kernels. A JSON object a line in, one out: `{"text", "seed", "scale"}` loads a
module and draws its arguments (the same on all sides), `{"calls"}` runs it and answers with the
processor seconds of one call, `{"slow"}` says where they go, `{"compile"}` compiles a text and
answers with the processor seconds of that.
"""

import cProfile
import gc
import json
import os
import pstats
import sys
import time
from collections.abc import Callable
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
from hloipu_runtime.kernels.native.settings import Settings, is_there, native_kernels
from hloipu_runtime.program.program import Program
from hloipu_runtime.simulate.exact.exact import ExactEngine
from hloipu_runtime.simulate.functional.functional import FunctionalEngine
from hloipu_runtime.simulate.run.host import Arrays
from hloipu_runtime.simulate.run.ports import given_arrays

Run = Callable[[int], None]
_KERNELS = Settings()
_NO_KERNELS = Settings(is_on=False)


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


def functional(module: Module, text: str, arguments: list[Any]) -> Run:
    """Return how to run a compiled program on whole tensors."""
    return _compiled(module, arguments, lambda program: FunctionalEngine(program))


def exact(module: Module, text: str, arguments: list[Any]) -> Run:
    """Return how to run a compiled program tile by tile, memories not poisoned."""
    return _compiled(module, arguments, lambda program: ExactEngine(program))


def _compiled(
    module: Module,
    arguments: list[Any],
    engine_of: Callable[[Program], FunctionalEngine | ExactEngine],
    kernels: Settings = _KERNELS,
) -> Run:
    options = resolve("compile", {"target": "gc200", "over_memory": "allow"}).options
    program = compile_verified(module, options).program
    stored = given_arrays(program.parameters, flat(arguments))
    with native_kernels(kernels):
        engine = engine_of(program)

    def run(calls: int) -> None:
        with computing(), native_kernels(kernels):
            for _ in range(calls):
                engine.run(Arrays(stored))

    return run


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


def functional_plain(module: Module, text: str, arguments: list[Any]) -> Run:
    """Return `functional` without compiled kernels."""
    return _compiled(module, arguments, lambda program: FunctionalEngine(program), _NO_KERNELS)


def exact_plain(module: Module, text: str, arguments: list[Any]) -> Run:
    """Return `exact` without compiled kernels."""
    return _compiled(module, arguments, lambda program: ExactEngine(program), _NO_KERNELS)


SIDES: dict[str, Callable[[Module, str, list[Any]], Run]] = {
    "ours": ours, "functional": functional, "exact": exact, "xla": xla,
    "functional-plain": functional_plain, "exact-plain": exact_plain,
}  # fmt: skip


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
            reply = {"slow": slow(run)}
        else:
            start = time.process_time()
            run(request["calls"])
            reply = {"seconds": (time.process_time() - start) / request["calls"]}
        print(json.dumps(reply), file=answers)


def slow(run: Run, most: int = 4) -> str:
    """Say which functions take most of a run's time themselves."""
    profile = cProfile.Profile()
    profile.runcall(run, 1)
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
