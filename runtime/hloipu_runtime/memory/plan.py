"""The memory of a program: an address for every variable, and what each tile's bytes are for."""

from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from hloipu_runtime.machine.model import Machine
from hloipu_runtime.memory.charges import Charges, charges_of
from hloipu_runtime.memory.liveness import Liveness, liveness_of
from hloipu_runtime.memory.placing import place
from hloipu_runtime.memory.requests import Request
from hloipu_runtime.memory.tile_classes import TileClasses, classes_of
from hloipu_runtime.program.program import Program, Role, Variable
from hloipu_runtime.program.steps import VariableId

Numbers = NDArray[np.int64]
NO_ADDRESS = -1
"""Address of a variable that is never used and takes no memory."""


class Category(Enum):
    """What a byte of a tile's memory is used for."""

    VERTEX_CODE = "vertex code"
    CONTROL_CODE = "control code"
    EXCHANGE_CODE = "exchange code"
    VERTEX_STATE = "vertex state"
    STACKS = "stacks"
    CONSTANTS = "constants"
    STATE = "state"
    PARAMETERS = "parameters"
    TEMPORARIES = "temporaries"
    EXCHANGE_BUFFERS = "exchange buffers"
    ALIGNMENT = "alignment"
    GAPS = "gaps"


CODE = (Category.VERTEX_CODE, Category.CONTROL_CODE, Category.EXCHANGE_CODE)
LOW = (*CODE, Category.VERTEX_STATE)
"""What has to lie in the executable part of the memory."""
NOT_VARIABLES = (*LOW, Category.STACKS)
CATEGORY_OF_ROLE = {
    Role.TEMPORARY: Category.TEMPORARIES,
    Role.CONSTANT: Category.CONSTANTS,
    Role.STATE: Category.STATE,
    Role.PARAMETER: Category.PARAMETERS,
}


@dataclass(frozen=True, eq=False)
class IpuMemory:
    """Bytes on each class of tiles of one IPU, and when most of them are taken."""

    ipu: int
    classes: TileClasses
    fixed: dict[Category, Numbers]
    """What is not variables."""
    low_bytes: Numbers
    """Of these, what has to lie in the executable part."""
    floor: Numbers
    """First byte above all that, a multiple of the allocation grain."""
    extent: Numbers
    """Bytes from the lowest variable to where variables end."""
    always_bytes: Numbers
    """Variables that are always live, rounded up to the grain."""
    live_bytes: Numbers
    """Most bytes of variables at one point, always live ones included."""
    peak_point: Numbers
    """The first point at which it is so many."""

    @property
    def needed_bytes(self) -> Numbers:
        """Bytes that the tile needs in all."""
        return self.floor + self.extent

    @property
    def gap_bytes(self) -> Numbers:
        """Bytes that placement wastes: what variables take beyond what is live at once."""
        return self.extent - self.live_bytes


@dataclass(frozen=True, eq=False)
class MemoryPlan:
    """Where a program's variables lie.

    Code lies at the start of each tile's memory, variables at the end of what may be used, so that
    tiles with much code do not push the variables of others up. Addresses count from the start.
    """

    program: Program
    machine: Machine
    code_memory: bool
    liveness: Liveness
    addresses: tuple[int, ...]
    """Of each variable, on all tiles that hold it; NO_ADDRESS: it is never used."""
    buffers: frozenset[VariableId]
    """Variables that exchanges alone write."""
    ipus: tuple[IpuMemory, ...]

    def category(self, number: VariableId) -> Category:
        """Return what a variable's bytes are counted as."""
        role = self.program.variables[number].role
        if role is Role.TEMPORARY and number in self.buffers:
            return Category.EXCHANGE_BUFFERS
        return CATEGORY_OF_ROLE[role]

    @property
    def available_bytes(self) -> int:
        """Bytes of a tile that may be used."""
        return available_bytes(self.machine)

    @property
    def fits(self) -> bool:
        """Whether every tile has enough memory, and enough of it for code."""
        executable = min(self.machine.memory.executable_bytes, self.available_bytes)
        return all(
            int(ipu.needed_bytes.max()) <= self.available_bytes
            and int(ipu.low_bytes.max()) <= executable
            for ipu in self.ipus
        )


def plan_memory(program: Program, machine: Machine, *, code_memory: bool = True) -> MemoryPlan:
    """Return the memory plan of a proved program; it may need more than there is: see `fits`.

    Without `code_memory`, code of vertices, control and exchanges is taken to need none. Raises
    LimitError E5021 or E5022 for a program nested too deep or too long.
    """
    liveness = liveness_of(program)
    charges = charges_of(program, machine)
    addresses = [NO_ADDRESS] * len(program.variables)
    of_ipu: list[list[VariableId]] = [[] for _ in range(program.ipus)]
    for number, variable in enumerate(program.variables):
        if liveness.ranges[number]:
            of_ipu[variable.ipu].append(number)
    ipus = []
    for ipu, numbers in enumerate(of_ipu):
        grids = [program.variables[n].mapping.tiles for n in numbers]
        charged = charges.ipus[ipu]
        classes = classes_of((*charged.grids(), *grids), machine.chip.tiles_per_ipu)
        fixed = _fixed(charged, machine, classes, code_memory)
        ipus.append(_plan_ipu(program, machine, liveness, ipu, numbers, classes, fixed, addresses))
    return MemoryPlan(
        program,
        machine,
        code_memory,
        liveness,
        tuple(addresses),
        charges.buffers,
        tuple(ipus),
    )


def available_bytes(machine: Machine) -> int:
    """Return the bytes of a tile that code and variables may use."""
    return machine.usable_bytes - machine.memory.prefetch_slack_bytes


def kept_bytes(variable: Variable, machine: Machine) -> int:
    """Return the bytes of a variable on a tile, rounded up to the grain of addresses."""
    return rounded(variable.bytes_per_tile, machine)


def rounded(size_bytes: int, machine: Machine) -> int:
    """Return bytes rounded up to the grain of addresses."""
    grain = machine.memory.allocation_grain_bytes
    return -(-size_bytes // grain) * grain


def _fixed(
    charges: Charges, machine: Machine, classes: TileClasses, code_memory: bool
) -> dict[Category, Numbers]:
    """Return the bytes on each class of tiles that are not variables."""
    fixed = {category: np.zeros(classes.count, np.int64) for category in NOT_VARIABLES}
    fixed[Category.STACKS] += machine.memory.stack_bytes
    for grid, size in charges.vertex_state.items():
        fixed[Category.VERTEX_STATE][classes.members[grid]] += size
    if not code_memory:
        return fixed
    fixed[Category.CONTROL_CODE] += charges.steps * machine.memory.step_code_bytes
    for grid, size in charges.exchange_code.items():
        fixed[Category.EXCHANGE_CODE][classes.members[grid]] += size
    where: dict[object, np.ndarray[tuple[int], np.dtype[np.bool_]]] = {}
    sizes = {}
    for (key, grid), size in charges.vertex_code.items():
        marks = where.setdefault(key, np.zeros(classes.count, np.bool_))
        marks[classes.members[grid]] = True
        sizes[key] = size
    for key, marks in where.items():
        fixed[Category.VERTEX_CODE][marks] += sizes[key]
    return fixed


def _plan_ipu(
    program: Program,
    machine: Machine,
    liveness: Liveness,
    ipu: int,
    numbers: list[VariableId],
    classes: TileClasses,
    fixed: dict[Category, Numbers],
    addresses: list[int],
) -> IpuMemory:
    """Place one IPU's variables and count what its tiles need."""
    low_bytes = sum((fixed[category] for category in LOW), np.zeros(classes.count, np.int64))
    grain = machine.memory.allocation_grain_bytes
    floor = -(-(low_bytes + fixed[Category.STACKS]) // grain) * grain
    requests = [
        Request(
            kept_bytes(program.variables[n], machine),
            program.variables[n].mapping.tiles,
            liveness.ranges[n],
        )
        for n in numbers
    ]
    available = available_bytes(machine) // grain * grain
    always, live, point = _most_live(requests, liveness.points, classes)
    found = place(
        requests,
        liveness.points,
        classes,
        floor,
        live,
        available,
    )
    end = max(available, int((floor + found.extent).max()))
    for number, address, request in zip(numbers, found.addresses, requests, strict=True):
        addresses[number] = end - address - request.size
    return IpuMemory(ipu, classes, fixed, low_bytes, floor, found.extent, always, live, point)


def _most_live(
    requests: list[Request], points: int, classes: TileClasses
) -> tuple[Numbers, Numbers, Numbers]:
    """Return bytes always live, most bytes live at a point, and that point, by class of tiles."""
    always = np.zeros(classes.count, np.int64)
    starting: dict[int, list[Request]] = {}
    ending: list[tuple[int, int]] = []
    for number, request in enumerate(requests):
        if request.ranges == ((0, points - 1),):
            always[classes.members[request.grid]] += request.size
            continue
        for first, last in request.ranges:
            starting.setdefault(first, []).append(request)
            ending.append((last, number))
    ending.sort()
    live, most = always.copy(), always.copy()
    when = np.zeros(classes.count, np.int64)
    ended = 0
    for point in sorted(starting):
        while ended < len(ending) and ending[ended][0] < point:
            gone = requests[ending[ended][1]]
            live[classes.members[gone.grid]] -= gone.size
            ended += 1
        for request in starting[point]:
            live[classes.members[request.grid]] += request.size
        more = live > most
        if more.any():
            most[more] = live[more]
            when[more] = point
    return always, most, when
