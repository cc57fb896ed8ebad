"""The memory plan: an address for every variable, and the use of each tile's bytes."""

from collections.abc import Hashable, Mapping
from dataclasses import replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from hloipu_runtime.costs.forms import Forms
from hloipu_runtime.frozen import dataclass
from hloipu_runtime.machine.model import Machine
from hloipu_runtime.memory.categories import CATEGORY_OF_ROLE, CODE, NOT_VARIABLES, Category
from hloipu_runtime.memory.charges import Charges, charges_of
from hloipu_runtime.memory.liveness import Liveness, liveness_of
from hloipu_runtime.memory.messages import Message, points_of
from hloipu_runtime.memory.placing import Placement, place
from hloipu_runtime.memory.remote_parts import RemoteParts, remote_bytes, remote_parts
from hloipu_runtime.memory.requests import (
    Live,
    Request,
    Requests,
    TileClasses,
    classes_of,
    most_live,
)
from hloipu_runtime.program.mapping import Tiles
from hloipu_runtime.program.program import Program, Role, Variable
from hloipu_runtime.program.steps import VariableId

Numbers = NDArray[np.int64]
NO_ADDRESS = -1
"""Address of a variable that is never used and takes no memory."""


@dataclass(frozen=True, eq=False)
class IpuMemory:
    """Bytes on each class of tiles of one IPU, and when most of them are taken."""

    ipu: int
    classes: TileClasses
    charges: Charges
    fixed: dict[Category, Numbers]
    """What is not variables."""
    code_bytes: Numbers
    """Of these, what has to lie in the executable part."""
    floor: Numbers
    """First byte above all that, a multiple of the allocation grain."""
    variables: tuple[VariableId, ...]
    """Those that take memory."""
    messages: tuple[Message, ...]
    """Of exchanges; they count as variables."""
    requests: Requests
    """Of variables and then messages."""
    live: Live
    """Of these, in bytes rounded up to the grain."""
    extent: Numbers
    """Bytes from the lowest variable to where variables end; without addresses, as few as are live
    at once."""
    placement: tuple[int, Placement] | None = None
    """Bytes that a tile has, as far as it mattered, and where requests were placed for that."""

    @property
    def needed_bytes(self) -> Numbers:
        """Bytes that the tile needs in all."""
        return self.floor + self.extent

    @property
    def gap_bytes(self) -> Numbers:
        """Bytes that placement wastes: what variables take beyond what is live at once."""
        return self.extent - self.live.most_bytes


@dataclass(frozen=True, eq=False)
class MemoryPlan:
    """Addresses of a program's variables.

    Code lies at the start of each tile's memory, variables at the end of what may be used, so that
    tiles with much code do not push the variables of others up. Addresses count from the start.
    """

    program: Program
    machine: Machine
    code_memory: bool
    liveness: Liveness
    addresses: tuple[int, ...]
    """Of each variable, on all tiles that hold it; NO_ADDRESS: it is never used, or not placed."""
    buffers: frozenset[VariableId]
    """Variables that exchanges alone write."""
    ipus: tuple[IpuMemory, ...]
    forms: Forms
    """Of its exchanges."""

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
        """Whether every tile has enough memory, enough of it for code, and every IPU beside it."""
        return self.has_room_for_code and self.has_room_beside and self.has_room_on_tiles

    @property
    def has_room_on_tiles(self) -> bool:
        """Whether every tile has enough memory, be it for code or not."""
        return all(int(ipu.needed_bytes.max()) <= self.available_bytes for ipu in self.ipus)

    @cached_property
    def remote_parts(self) -> tuple[RemoteParts, ...]:
        """Bytes of each kind in the remote memory of each IPU."""
        return remote_parts(self.program)

    @cached_property
    def has_room_beside(self) -> bool:
        """Whether the remote memory of every IPU has room for what lies there."""
        return max(remote_bytes(self.program)) <= self.machine.remote.remote_bytes

    @property
    def lacks_in_any_order(self) -> bool:
        """Whether some tile is too full with one variable, or with those that are always live.

        Then neither another order or merging of steps nor smaller code makes the program fit.
        """
        available = self.available_bytes
        return any(int(ipu.live.always_bytes.max()) > available for ipu in self.ipus) or any(
            variable.bytes_per_tile > available
            for variable, ranges in zip(self.program.variables, self.liveness.ranges, strict=True)
            if ranges
        )

    @property
    def lacks_with_any_forms(self) -> bool:
        """Whether some tile is too full with its variables alone at its fullest moment.

        Then no exchange can take another form that makes the program fit.
        """
        for ipu in self.ipus:
            variable_bytes = ipu.live.most_bytes.copy()
            for message in ipu.messages:
                classes = ipu.classes.members[message.tiles]
                points = ipu.live.peak_point[classes]
                is_live = np.zeros(points.shape, np.bool_)
                for first, last in message.ranges:
                    is_live |= (first <= points) & (points <= last)
                variable_bytes[classes] -= rounded(message.size_bytes, self.machine) * is_live
            if int(variable_bytes.max()) > self.available_bytes:
                return True
        return False

    def placed(self) -> "MemoryPlan":
        """Return the plan with an address for every variable and message."""
        available = self.available_bytes
        available -= available % self.machine.memory.allocation_grain_bytes
        addresses = [NO_ADDRESS] * len(self.program.variables)
        most = available if self.fits else 0  # nothing is decisive where it does not fit anyway
        ipus = []
        for ipu in self.ipus:
            known = ipu.placement
            if known is None or known[0] != most:
                known = most, place(ipu.requests, ipu.classes, ipu.floor, ipu.live, most)
            offsets, extent = known[1]
            needed = int((ipu.floor + extent).max())
            most = most if needed <= available else 0
            end = max(available, needed)
            sizes = ipu.requests.sizes.tolist()
            ipu_addresses = [
                end - size - offset for size, offset in zip(sizes, offsets, strict=True)
            ]
            for number, address in zip(ipu.variables, ipu_addresses, strict=False):
                addresses[number] = address
            messages = tuple(
                message._replace(address=address)
                for message, address in zip(
                    ipu.messages, ipu_addresses[len(ipu.variables) :], strict=True
                )
            )
            ipus.append(replace(ipu, extent=extent, messages=messages, placement=known))
        return replace(self, addresses=tuple(addresses), ipus=tuple(ipus))

    def with_forms(self, forms: Forms) -> "MemoryPlan":
        """Return the plan of the program with other forms of exchanges, without addresses."""
        return _without_addresses(
            self.program, self.machine, self.liveness, forms, self.code_memory, self.ipus
        )

    @property
    def has_room_for_code(self) -> bool:
        """Whether every tile has enough memory of the part that code can lie in."""
        executable = min(self.machine.memory.executable_bytes, self.available_bytes)
        return all(int(ipu.code_bytes.max()) <= executable for ipu in self.ipus)


def plan_memory(program: Program, machine: Machine, *, code_memory: bool = True) -> MemoryPlan:
    """Return the memory plan of a proved program; it may need more than there is: see `fits`.

    Without `code_memory`, code of vertices, control and exchanges is taken to need none, and
    exchanges take their fastest forms. Raises LimitError E5021 or E5022 for a program nested too
    deep or too long.
    """
    return least_memory(program, machine, code_memory=code_memory).placed()


def least_memory(
    program: Program, machine: Machine, *, code_memory: bool = True, known: Forms | None = None
) -> MemoryPlan:
    """Return the same without addresses, in half the time: what lacks so does with any.

    `known`: forms of a program with the same steps otherwise merged.
    """
    forms = Forms(program, machine, code_memory=code_memory, known=known)
    return _without_addresses(program, machine, liveness_of(program), forms, code_memory)


def _without_addresses(
    program: Program,
    machine: Machine,
    liveness: Liveness,
    forms: Forms,
    code_memory: bool,
    known: tuple[IpuMemory, ...] = (),
) -> MemoryPlan:
    """Return the plan; `known`: that of its IPUs with other forms, which may do for some."""
    charges = charges_of(program, machine, forms)
    variables: list[list[VariableId]] = [[] for _ in range(program.ipus)]
    for number, variable in enumerate(program.variables):
        if liveness.ranges[number]:
            variables[variable.ipu].append(number)
    points = points_of(
        liveness.region,
        {id(step): step for charged in charges.ipus for step, *_ in charged.messages},
    )
    ipus = []
    for ipu, numbers in enumerate(variables):
        charged = charges.ipus[ipu]
        if known and known[ipu].charges == charged:
            ipus.append(replace(known[ipu], extent=known[ipu].live.most_bytes))
            continue
        grids = [program.variables[n].mapping.tiles for n in numbers]
        classes = classes_of((*charged.grids(), *grids), machine.chip.tiles_per_ipu)
        fixed = fixed_bytes(charged, machine, classes, code_memory)
        code_bytes = sum((fixed[category] for category in CODE), np.zeros(classes.count, np.int64))
        state_and_stacks = fixed[Category.VERTEX_STATE] + fixed[Category.STACKS]
        grain = machine.memory.allocation_grain_bytes
        floor = -(-(code_bytes + state_and_stacks) // grain) * grain
        messages = tuple(
            Message(step, tiles, size_bytes, destination, points[id(step)])
            for step, tiles, size_bytes, destination in charged.messages
            if points[id(step)]
        )
        requests = Requests(
            [
                *(
                    Request(kept_bytes(program.variables[n], machine), grid, liveness.ranges[n])
                    for n, grid in zip(numbers, grids, strict=True)
                ),
                *(Request(rounded(m.size_bytes, machine), m.tiles, m.ranges) for m in messages),
            ]
        )
        live = most_live(requests, liveness.points, classes, floor)
        ipus.append(
            IpuMemory(
                ipu, classes, charged, fixed, code_bytes, floor,
                tuple(numbers), messages, requests, live, live.most_bytes,
            )
        )  # fmt: skip
    addresses = (NO_ADDRESS,) * len(program.variables)
    return MemoryPlan(
        program, machine, code_memory, liveness, addresses, charges.buffers, tuple(ipus), forms
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


def fixed_bytes(
    charges: Charges, machine: Machine, classes: TileClasses, code_memory: bool
) -> dict[Category, Numbers]:
    """Return the bytes on each class of tiles that are not variables."""
    fixed = {category: np.zeros(classes.count, np.int64) for category in NOT_VARIABLES}
    fixed[Category.STACKS] += machine.memory.stack_bytes
    for grid, size in charges.vertex_state.items():
        fixed[Category.VERTEX_STATE][classes.members[grid]] += size
    largest_room = np.zeros(classes.count, np.int64)
    for sizes in charges.rooms.values():
        room = np.zeros(classes.count, np.int64)
        for grid, size in sizes.items():
            room[classes.members[grid]] += size
        largest_room = np.maximum(largest_room, room)
    fixed[Category.VERTEX_STATE] += largest_room
    if not code_memory:
        return fixed
    fixed[Category.CONTROL_CODE] += charges.common_code_bytes
    _add_once(fixed[Category.CONTROL_CODE], charges.control_code, classes)
    _add_once(fixed[Category.VERTEX_CODE], charges.vertex_code, classes)
    for grid, size in charges.exchange_code.items():
        fixed[Category.EXCHANGE_CODE][classes.members[grid]] += size
    return fixed


def _add_once(
    sums: Numbers, charged: Mapping[tuple[Hashable, Tiles], int], classes: TileClasses
) -> None:
    """Add what is charged to classes of tiles; of what has one key, each class counts once."""
    grids: dict[Hashable, list[Tiles]] = {}
    sizes: dict[Hashable, int] = {}
    for (key, grid), size in charged.items():
        grids.setdefault(key, []).append(grid)
        sizes[key] = size
    for key, alike in grids.items():
        if len(alike) == 1:
            sums[classes.members[alike[0]]] += sizes[key]
            continue
        marks = np.zeros(classes.count, np.bool_)
        for grid in alike:
            marks[classes.members[grid]] = True
        sums[marks] += sizes[key]
