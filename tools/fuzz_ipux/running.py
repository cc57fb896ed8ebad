"""Running a loaded program in both modes, which have to agree."""

from math import prod
from typing import Any

import numpy as np

from hloipu_runtime.compiled import CompiledProgram
from hloipu_runtime.executable import Executable
from hloipu_runtime.kernels.core.storage import from_storage, storage_dtype
from hloipu_runtime.program.program import Array, Port
from hloipu_runtime.program.seen import seen_by_users
from hloipu_runtime.program_io.file.span_checks import streams
from hloipu_runtime.simulate.exact.exact import ExactEngine
from hloipu_runtime.simulate.functional.functional import FunctionalEngine
from hloipu_runtime.simulate.run.host import Arrays


def run(program: CompiledProgram) -> str:
    """Run a program once in each mode and say how they differ."""
    ports = seen_by_users(program.program).parameters
    inputs = [
        from_storage(_stored(port.element_type, port.shape), port.element_type) for port in ports
    ]
    functional = program.run(*inputs, mode="functional")
    exact = program.run(*inputs, mode="exact", poison=True)
    if functional.cycles != exact.cycles:
        return f"cycles {functional.cycles} and {exact.cycles}"
    return _difference(functional.outputs, exact.outputs)


def run_resident(executable: Executable) -> str:
    """Run a program that keeps state from some state, in each mode, and say how they differ."""
    program = executable.program
    given = {x.stream: _of(x) for x in streams(program, to_device=True)}
    outputs, states = [], []
    for engine in (FunctionalEngine(program), ExactEngine(program, poison=True)):
        engine.state = {
            port.name: _stored(program.values[port.initial].element_type,
                               program.values[port.initial].shape)
            for port in program.state
        }  # fmt: skip
        host = Arrays(given)
        with np.errstate(all="ignore"):
            engine.run(host)
        outputs.append(host.outputs)
        states.append(engine.state)
        for kept in seen_by_users(program).state:
            pieces = [engine.state[port.name] for port in kept.ports]
            if kept.stack is not None and kept.joined(pieces).shape != kept.shape:
                return f"the pieces of state {kept.name!r} are not the whole"
    for one, other in (outputs, states):
        if one.keys() != other.keys():
            return f"{sorted(one)} and {sorted(other)} were given"
        difference = _difference(list(one.values()), [other[name] for name in one])
        if difference:
            return difference
    return ""


def _of(port: Port) -> Array:
    return _stored(port.element_type, port.shape)


def _stored(element_type: str, shape: tuple[int, ...]) -> Array:
    rng = np.random.default_rng(prod(shape))
    return np.asarray(rng.integers(0, 2, shape)).astype(storage_dtype(element_type))


def _difference(ones: list[Any], others: list[Any]) -> str:
    return "" if all(map(_agree, ones, others)) else "values differ between modes"


def _agree(one: Any, other: Any) -> bool:
    """Whether results agree as far as another order of additions allows."""
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return False
    wide = np.complex128 if one.dtype.kind == "c" else np.float64
    a, b = np.asarray(one).astype(wide), np.asarray(other).astype(wide)
    scale = np.abs(a[np.isfinite(a)]).max(initial=0.0)
    return bool(np.allclose(a, b, rtol=1e-2, atol=1e-2 * scale + 1e-30, equal_nan=True))
