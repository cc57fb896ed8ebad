"""Inputs of findings: a program, its profile, its memory, its steps by path."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from math import prod

from hloipu_runtime.machine.costs import sync
from hloipu_runtime.machine.model import Machine
from hloipu_runtime.memory.report_records import MemoryReport
from hloipu_runtime.program import steps as s
from hloipu_runtime.program.program import Program
from hloipu_runtime.report.profile import NO_ORIGIN, Profile, StepRow

LEAST_SHARE = 0.02
"""Of the cycles that the tiles work: what takes less is not worth a line."""

_ABOUT_ONCE = 1.5
"""Copies of an element on tiles, the unused ends of last blocks included."""


class Work:
    """Cost of one instruction, over all steps that are mostly its own."""

    __slots__ = ("bytes_moved", "compute", "conversions", "exchange", "tile_cycles")

    def __init__(self) -> None:
        self.compute = 0
        """Cycles."""
        self.exchange = 0
        """Cycles."""
        self.conversions = 0
        """Of these, cycles of moving whole values as they are."""
        self.tile_cycles = 0
        """Sum over compute steps of cycles times tiles."""
        self.bytes_moved = 0
        """Over all executions."""


@dataclass(frozen=True)
class Facts:
    """All that the rules look at; what several of them need is worked out once."""

    program: Program
    machine: Machine
    profile: Profile
    memory: MemoryReport

    @property
    def tiles(self) -> int:
        """Tiles of the system."""
        return self.profile.tiles_per_ipu * self.profile.ipus

    @cached_property
    def device_cycles(self) -> int:
        """Cycles that are not the host's: what a change of the program can save."""
        return self.profile.device_cycles

    @cached_property
    def least_cycles(self) -> int:
        """Cycles from which on something is worth a line."""
        return max(1, int(LEAST_SHARE * self.device_cycles))

    @cached_property
    def sync_cycles(self) -> int:
        """Cycles of one barrier."""
        return sync(self.machine, self.profile.ipus).cycles

    @cached_property
    def source_of(self) -> dict[str, str]:
        """Source line of each instruction, where the dump has one."""
        return {row.name: row.source for row in self.profile.origins if row.source}

    @cached_property
    def rows(self) -> dict[str, StepRow]:
        """Each step's row of the profile, by path."""
        return {row.path: row for row in self.profile.steps}

    @cached_property
    def works(self) -> dict[str, Work]:
        """Cost of each instruction."""
        work_by_name: defaultdict[str, Work] = defaultdict(Work)
        for row in self.profile.steps:
            if row.name == NO_ORIGIN or not row.cycles:
                continue
            if row.kind == "compute":
                work = work_by_name[row.name]
                work.compute += row.cycles
                work.tile_cycles += row.cycles * row.tiles
        for row, exchange in self.exchanging:
            if row.name == NO_ORIGIN or not row.cycles:
                continue
            work = work_by_name[row.name]
            work.exchange += row.cycles
            work.bytes_moved += row.moved_bytes * row.executions
            if not row.moved_bytes or self._is_conversion(exchange):
                work.conversions += row.cycles
        return dict(work_by_name)

    def _is_conversion(self, exchange: s.Exchange) -> bool:
        """Whether an exchange only copies values as they are, and each element about once.

        What several tiles receive is an operand on its way to all who compute with it.
        """
        for definition in exchange.definitions:
            if definition.base is not None or len(definition.pieces) != 1:
                return False
            if definition.pieces[0].value != definition.value:
                return False
            variable = self.program.variables[definition.variable]
            elements_on_tiles = prod(variable.mapping.block) * variable.mapping.tiles.count
            if elements_on_tiles > _ABOUT_ONCE * prod(variable.shape):
                return False
        return bool(exchange.definitions)

    @cached_property
    def computing(self) -> tuple[tuple[StepRow, tuple[s.VertexGroup, ...]], ...]:
        """Rows of compute sets, with the vertices of the instruction that takes most of each."""
        sets = [
            (self.rows[path], step.groups)
            for path, step in self._steps
            if isinstance(step, s.ComputeSet) and path in self.rows
        ]
        return tuple(
            (row, tuple([x for x in groups if (x.name or NO_ORIGIN) == row.name]))
            for row, groups in sets
        )

    @cached_property
    def exchanging(self) -> tuple[tuple[StepRow, s.Exchange], ...]:
        """Exchanges with their rows."""
        return tuple(
            (self.rows[path], step)
            for path, step in self._steps
            if isinstance(step, s.Exchange) and path in self.rows
        )

    @cached_property
    def _steps(self) -> tuple[tuple[str, s.Step], ...]:
        steps = list(_leaves(self.program.body, "body"))
        for name, body in self.program.functions.items():
            steps += _leaves(body, s.function_path(name))
        return tuple(steps)


def _leaves(body: s.Sequence, path: str) -> Iterator[tuple[str, s.Step]]:
    """Yield every step without steps inside, in order, with its path as costs name it."""
    stack: list[tuple[str, s.Step]] = [(path, body)]
    inside: list[tuple[str, s.Step]]
    while stack:
        path, step = stack.pop()
        match step:
            case s.Sequence():
                inside = [(f"{path}/{n}", inner) for n, inner in enumerate(step.steps)]
                stack += reversed(inside)
            case s.Repeat():
                stack.append((f"{path}/repeat", step.body))
            case s.Pipeline():
                for n, stage in enumerate(step.stages):
                    inside = [(f"{path}/repeat/{n}", stage.body)]
                    stack += [*inside, (f"{path}/repeat/{n}/first", stage.first)]
            case s.RepeatWhile():
                stack.append((f"{path}/condition", step.condition))
                stack.append((f"{path}/while", step.body))
            case s.If() | s.Switch():
                stack += ((f"{path}?{n}", inner) for n, inner in enumerate(step.branches))
            case s.Parallel():
                stack += ((f"{path}|{n}", inner) for n, inner in enumerate(step.branches))
            case _:
                yield path, step
