"""Host memory of a run: checked before it is allocated, and reported where it ran out."""

from math import prod

from hloipu_runtime.errors import LimitError
from hloipu_runtime.kernels.core.storage import storage_dtype
from hloipu_runtime.program.mapping import Sizes, extent_of
from hloipu_runtime.program.program import Port, Program, Variable
from hloipu_runtime.program.uses import used
from hloipu_runtime.simulate.exact.private_variables import private_variables
from hloipu_runtime.simulate.exact.shared_buffers import shared_buffers

_GIBIBYTE = 2**30
_MOST_BYTES = 2**62
"""Whatever is allowed: numpy counts bytes in 63 bits."""


def require_host_memory(program: Program, mode: str, allowed: int, participants: int) -> None:
    """Raise LimitError E5016 where a run takes more bytes of the host than allowed."""
    needed = participants * host_bytes(program, mode)
    if needed > min(allowed, _MOST_BYTES):
        raise _too_much(
            allowed,
            needed,
            f"running {program.name!r} takes at least {_gibibytes(needed)} of the host's memory, "
            f"{_gibibytes(allowed)} are allowed",
        )


class memory_told:
    """Raise LimitError E5016 in place of a MemoryError of the block."""

    __slots__ = ("_allowed", "_mode", "_program")

    def __init__(self, program: Program, mode: str, allowed: int) -> None:
        self._program, self._mode, self._allowed = program, mode, allowed

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if not isinstance(error, MemoryError):
            return
        needed, allowed = host_bytes(self._program, self._mode), self._allowed
        raise _too_much(
            allowed,
            needed,
            f"the host's memory ran out while {self._program.name!r} was run, which takes at least "
            f"{_gibibytes(needed)}; {_gibibytes(allowed)} were allowed",
        ) from error


def host_bytes(program: Program, mode: str) -> int:
    """Return bytes that a run of one participant takes at least.

    Of whole tensors: all that goes in and out, and the largest value beside. Of tiles: what the
    variables take that are alive at one time, replicas where they are written apart, without the
    buffers that may lie in others' memory.
    """
    return _tile_bytes(program) if mode == "exact" else _whole_bytes(program)


def _whole_bytes(program: Program) -> int:
    ports: list[Port] = [*program.parameters, *program.results]
    outside = sum(_array_bytes(port.element_type, port.shape) for port in ports)
    values = (_array_bytes(value.element_type, value.shape) for value in program.values)
    return max(outside, max(values, default=0))


def _tile_bytes(program: Program) -> int:
    private = private_variables(program)
    elsewhere = shared_buffers(program, private).places
    steps = [used(step, program) for step in program.body.steps]
    last = {variable: number for number, touched in enumerate(steps) for variable in touched}
    state = {port.variable for port in program.state}
    sizes: dict[int, int] = {}
    most = live = 0
    for number, touched in enumerate(steps):
        for variable in touched:
            if variable not in sizes:
                record = program.variables[variable]
                own = 0 if variable in elsewhere else 1
                sizes[variable] = own * _variable_bytes(record, shared=variable not in private)
                live += sizes[variable]
        most = max(most, live)
        live -= sum(sizes[v] for v in touched if last[v] == number and v not in state)
    return max(most, _whole_bytes(program))


def _variable_bytes(variable: Variable, *, shared: bool) -> int:
    """Return what `sim.storage.allocate` takes for a variable."""
    mapping = variable.mapping
    replicas = prod(mapping.tiles.extents[axis] for axis in mapping.replicated_axes)
    parts = prod(span.size * extent_of(mapping.tiles, span) for span in mapping.spans)
    size = storage_dtype(variable.element_type).itemsize
    return (1 if shared else replicas) * parts * size


def _array_bytes(element_type: str, shape: Sizes) -> int:
    return prod(shape) * storage_dtype(element_type).itemsize


def _gibibytes(count: int) -> str:
    return f"{count / _GIBIBYTE:,.1f} GiB"


def _too_much(allowed: int, needed: int, message: str) -> LimitError:
    return LimitError(
        "E5016",
        message,
        limit="live_bytes",
        allowed=allowed,
        found=needed,
        hint="raise it with --limit live_bytes=N if the memory is there, from Python with "
        "dataclasses.replace(program, live_bytes=N)",
    )
