"""Merges the steps of a lowered program as far as its tiles have memory, and levels them."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING

from hloipu_compiler.compilation import Compilation, CompileRequest
from hloipu_runtime.costs.forms import Forms
from hloipu_runtime.costs.levelling import levelled
from hloipu_runtime.memory.plan import IpuMemory, MemoryPlan, least_memory
from hloipu_runtime.program.merging import Merger
from hloipu_runtime.program.program import Program
from hloipu_runtime.program.steps import LOOPS, Transfer, VariableId
from hloipu_runtime.program.uses import steps_within

if TYPE_CHECKING:
    from hloipu_compiler.lowering.hoisting.room import Hoister, Hoisting
    from hloipu_runtime.program.live_bytes import Message
    from hloipu_runtime.program.side_by_side import SideBySide


def with_merged_steps(current: Compilation) -> Compilation:
    """Return a compilation with the steps of its program merged, and copies before loops."""
    request, program = current.request, current.program
    steps = steps_within(program.body, program)
    if not program.is_resident and not any(isinstance(x, LOOPS) for x in steps):
        memory = _planned(_StepMerger(request).merged(program), request).placed()
        if not memory.fits:
            from hloipu_compiler.lowering.hoisting.room import Hoisting

            less = _less_merged(Hoisting(memory.program, (), memory, program), request)
            memory = less.memory or memory
        return replace(current, lowered=memory.program, memory=memory)
    from hloipu_compiler.lowering.hoisting.room import Draft

    known = current.draft
    if known is not None:
        hoister, hoisting = known.hoister, known.hoister.where_free()
    else:
        hoister = hoister_of(current)
        hoisting = hoister.by(request.tuning.hoist, is_draft=request.is_draft)
    if known is not None and hoisting is hoister.planned_none:
        hoisting = known.hoisting._replace(is_draft=False)
    elif hoisting.memory is None:
        level = _levelled(hoisting.program, request, hoisting.alone)
        hoisting = hoisting._replace(program=level)
    else:
        hoisting = _less_merged(hoisting, request)
    plans = (*current.plans, *hoister.records(hoisting)) if request.keeps_plans else ()
    return replace(
        current,
        lowered=hoisting.program,
        memory=hoisting.memory,
        hoisting=hoister.summary(hoisting),
        draft=Draft(hoister, hoisting) if hoisting.is_draft else None,
        plans=plans,
    )


_SPARED_TIMES = (0, 1, 2, 4)
"""Of the bytes that a program lacks, by which other moments stay below the fullest. Assumed. Steps
are not levelled then."""


def hoister_of(current: Compilation, spared: Mapping[int, int] = MappingProxyType({})) -> "Hoister":
    """Return what makes copies of a lowered program before loops or in them.

    `spared`: as for `merged`.
    """
    from hloipu_compiler.lowering.hoisting.room import Hoister

    request = current.request
    return Hoister(
        current.program,
        request.machine,
        request.computing,
        lambda program, alone: _StepMerger(request, alone).merged(program, spared),
        lambda program, alone: _planned(program, request, alone),
    )


def _less_merged(hoisting: "Hoisting", request: CompileRequest) -> "Hoisting":
    """Return a program that lacks memory with fewer steps merged, where it lacks less so.

    Merging fills other moments up to the fullest one, which is too full here. So they stay below it
    by what is lacking, or some times as much, as what lies on tiles side by side counts together.
    Moments that are too full as lowered get no fuller, and show what products have to do without.
    """
    memory, before = hoisting.memory, hoisting.before
    if memory is None or before is None or memory.fits or not request.tuning.merge_steps:
        return hoisting
    if memory.lacks_in_any_order:
        return hoisting
    lacking = {ipu.ipu: max(0, _most_bytes(ipu) - memory.available_bytes) for ipu in memory.ipus}
    least = max(map(_most_bytes, memory.ipus))
    from hloipu_runtime.memory.charges import messages_of

    messages = partial(messages_of, memory.program, memory.forms)
    merger = _StepMerger(request, hoisting.alone, messages)
    for times in _SPARED_TIMES:
        spared = {ipu: times * size for ipu, size in lacking.items()}
        merged_less = merger.merged(before, spared)
        less = least_memory(
            merged_less,
            request.machine,
            code_memory=request.tuning.code_memory,
            known=memory.forms,
        )
        if max(map(_most_bytes, less.ipus)) <= least:
            less = less.placed()
        size = max(map(_most_bytes, less.ipus))
        if size > least or (times and size == least):
            break  # merged as before, or less spared, it lacks no more
        least, hoisting = size, hoisting._replace(program=merged_less, memory=less)
        if less.fits:
            break
    return hoisting


def _most_bytes(ipu: IpuMemory) -> int:
    """Return what the fullest tile of an IPU needs."""
    return int(ipu.needed_bytes.max())


class _StepMerger:
    """Merges steps of programs that have sequences in common, and puts their IPUs side by side.

    Steps that write variables of `alone` stay alone. `messages`: see `merged`.
    """

    def __init__(
        self,
        request: CompileRequest,
        alone: frozenset[VariableId] = frozenset(),
        messages: "Callable[[Transfer], Iterable[Message]] | None" = None,
    ) -> None:
        machine = request.machine
        self.merges = request.tuning.merge_steps
        self.first, self.last = (
            Merger(machine.chip.tiles_per_ipu, alone, messages) for _ in range(2)
        )
        self.machine = machine
        self.side_by_side: SideBySide | None = None

    def merged(self, program: Program, spared: Mapping[int, int] = MappingProxyType({})) -> Program:
        """Return a program with its steps merged; `spared`: see `merged`."""
        program = self.first.merged(program, spared) if self.merges else program
        if program.ipus == 1:
            return program
        from hloipu_runtime.program.side_by_side import SideBySide

        self.side_by_side = self.side_by_side or SideBySide(self.machine)
        apart = self.side_by_side.side_by_side(program)
        # Steps of an IPU that were written between those of others are next to each other then.
        together = self.merges and apart is not program
        return self.last.merged(apart, spared) if together else apart


def _planned(
    program: Program, request: CompileRequest, alone: frozenset[VariableId] = frozenset()
) -> MemoryPlan:
    """Return what a program with its steps merged needs, levelled if they may have room."""
    machine, code_memory = request.machine, request.tuning.code_memory
    memory = least_memory(program, machine, code_memory=code_memory)
    if memory.has_room_on_tiles:
        level = _levelled(program, request, alone, memory.forms)
        if level is not program:
            memory = least_memory(level, machine, code_memory=code_memory, known=memory.forms)
    return memory


def _levelled(
    program: Program,
    request: CompileRequest,
    alone: frozenset[VariableId],
    forms: Forms | None = None,
) -> Program:
    machine = request.machine
    if not request.tuning.merge_steps:
        return program
    forms = forms or Forms(program, machine, code_memory=request.tuning.code_memory)
    return levelled(program, machine, alone, forms)
