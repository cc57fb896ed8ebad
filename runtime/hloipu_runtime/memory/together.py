"""Memory of several programs that stay on one device together.

What a program always has there adds up: code, the state of vertices, constants and state, an array
that several lay out alike counted once. Temporaries, stacks and messages of programs that do not
run at one time use the same memory: the most that one of them needs counts. As an address may not
suit all programs alike, a device of real programs may need somewhat more.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hloipu_runtime.errors import HloipuError
from hloipu_runtime.memory.categories import Category
from hloipu_runtime.memory.does_not_fit import DoesNotFit
from hloipu_runtime.memory.plan import MemoryPlan, kept_bytes
from hloipu_runtime.memory.report_records import MemoryReport
from hloipu_runtime.program.program import Variable

Bytes = NDArray[np.int64]
Layouts = Mapping[str, Sequence[Variable]]


@dataclass(frozen=True)
class Together:
    """Bytes of the fullest tile with all programs, and which it is."""

    total_bytes: int
    available_bytes: int
    ipu: int
    tile: int
    by_program: tuple[int, ...]
    """Of these, what each program always has there."""
    running_bytes: int
    """And what the program that needs most has there while it runs."""
    code_bytes: int
    """Of the tile with most code."""
    executable_bytes: int
    remote_bytes: int
    """Beside the IPU that has most there."""
    remote_available_bytes: int

    @property
    def fits(self) -> bool:
        """Whether tiles and remote memory have room for all of it."""
        return (
            self.total_bytes <= self.available_bytes
            and self.code_bytes <= self.executable_bytes
            and self.remote_bytes <= self.remote_available_bytes
        )


class Fitted(Protocol):
    """What `together` needs of a program; `CompiledProgram` is one."""

    @property
    def memory_plan(self) -> MemoryPlan:
        """Addresses of its variables."""

    @property
    def memory(self) -> MemoryReport:
        """Bytes of its variables."""


def require_room(programs: Sequence[tuple[Fitted, Layouts]], over_memory: str) -> None:
    """Raise DoesNotFit E1004 where programs with arrays in common do not fit on a device.

    `over_memory`: `allow` for a program, the last one, that need not fit. Programs of different
    machines are not looked at.
    """
    plans = [program.memory_plan for program, _ in programs]
    if over_memory == "allow" or len({plan.machine.name for plan in plans}) > 1:
        return
    need = together(plans, [layouts for _, layouts in programs])
    if not need.fits:
        raise DeviceFull([program.program.name for program in plans], need, programs[-1][0].memory)


def together(plans: Sequence[MemoryPlan], shared: Sequence[Layouts]) -> Together:
    """Return what programs need in all; `shared`: of each, its arrays by the device's name.

    Replica r of a program of n IPUs is on the IPUs from r * n.
    """
    machine = plans[0].machine
    ipus = max(plan.program.ipus * plan.program.replicas for plan in plans)
    shape = (ipus, machine.chip.tiles_per_ipu)
    running, code = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    remote = np.zeros(ipus, np.int64)
    always = []
    known: set[tuple[Any, ...]] = set()
    for plan, arrays in zip(plans, shared, strict=True):
        lasting, transient, own_code = (np.zeros(shape, np.int64) for _ in range(3))
        for replica in range(plan.program.replicas):
            first = replica * plan.program.ipus
            for memory, parts in zip(plan.ipus, plan.remote_parts, strict=True):
                classes, at = memory.classes.of_tile, first + memory.ipu
                stacks = memory.fixed[Category.STACKS]
                lasting[at] = (memory.floor - stacks + memory.live.always_bytes)[classes]
                transient[at] = (memory.extent - memory.live.always_bytes + stacks)[classes]
                own_code[at] = memory.code_bytes[classes]
                remote[at] += sum(parts.values())
            lasting -= _counted_before(plan, arrays, first, known, shape)
        always.append(lasting)
        running, code = np.maximum(running, transient), code + own_code
    total = np.sum(always, axis=0) + running
    ipu, tile = map(int, np.unravel_index(int(total.argmax()), shape))
    return Together(
        int(total[ipu, tile]), plans[0].available_bytes, ipu, tile,
        tuple(int(lasting_bytes[ipu, tile]) for lasting_bytes in always), int(running[ipu, tile]),
        int(code.max()), min(machine.memory.executable_bytes, plans[0].available_bytes),
        int(remote.max()), machine.remote.remote_bytes,
    )  # fmt: skip


def _counted_before(
    plan: MemoryPlan, arrays: Layouts, first: int, known: set[tuple[Any, ...]], shape: Any
) -> Bytes:
    """Return the bytes of arrays that a program before has in the same place, and note the rest."""
    shared_bytes = np.zeros(shape, np.int64)
    mine = set()
    for name, variables in arrays.items():
        for v in variables:
            place = (name, first + v.ipu, v.element_type, v.shape, v.mapping)
            if place in known:
                shared_bytes[first + v.ipu, v.mapping.tiles.numbers.ravel()] += kept_bytes(
                    v, plan.machine
                )
            mine.add(place)
    known |= mine
    return shared_bytes


class DeviceFull(DoesNotFit):
    """Programs that are to stay on one device need more memory together than it has (E1004)."""

    def __init__(self, names: Sequence[str], need: Together, report: MemoryReport) -> None:
        parts = ", ".join(
            f"{name} {size:,}" for name, size in zip(names, need.by_program, strict=True)
        )
        if need.total_bytes > need.available_bytes:
            message = (
                f"tile {need.tile} of IPU {need.ipu} needs {need.total_bytes:,} bytes of "
                f"{need.available_bytes:,} for {len(names)} programs together: {parts} always, "
                f"{need.running_bytes:,} for the one that runs"
            )
        elif need.code_bytes > need.executable_bytes:
            message = (
                f"code of {len(names)} programs takes {need.code_bytes:,} bytes of the "
                f"{need.executable_bytes:,} of a tile that it can lie in"
            )
        else:
            message = (
                f"remote buffers of {len(names)} programs need {need.remote_bytes:,} bytes of "
                f"{need.remote_available_bytes:,} beside an IPU"
            )
        hint = (
            "close a session first, have them take turns: program.session(device=device), or "
            "compile with over_memory='allow'"
        )
        HloipuError.__init__(self, "E1004", message, hint=hint)
        self.report = report
