"""Cost surveys of a step: as one stage, or op by op where it is long."""

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from hloipu_compiler.analysis.equal_blocks import equal_blocks, letter_of
from hloipu_compiler.compilation import Compilation, CompileRequest, Distribution, Phase
from hloipu_compiler.cost_survey.leaves import names_of
from hloipu_compiler.cost_survey.op_prices import OpPrice
from hloipu_compiler.cost_survey.program_bytes import on_all_tiles
from hloipu_compiler.cost_survey.survey import CopyOfWeight, Survey, fed_positions, survey_of_kinds
from hloipu_compiler.cost_survey.whole_step import alone, peak_bytes, survey_of_program
from hloipu_compiler.driver import continued, for_participants, op_prices
from hloipu_compiler.ir.graph import Module
from hloipu_compiler.lowering.hoisting.room import Hoister
from hloipu_compiler.partition.training.step_phases import Phases
from hloipu_compiler.passes.outline_blocks import OutlineBlocks, outlining_weight
from hloipu_compiler.plan.pipelining import PipelineRequest
from hloipu_compiler.plan.plan import Plan
from hloipu_compiler.plan.wrapping import Wrapping
from hloipu_compiler.planners.tuning import Tuning
from hloipu_compiler.step_merging import hoister_of
from hloipu_runtime.errors import HloipuError
from hloipu_runtime.machine.model import Machine
from hloipu_runtime.memory.plan import available_bytes

MOST_WHOLE = 60_000
"""Instructions of a step whose program is made to look at it; longer ones are priced op by op."""


@dataclass(frozen=True, eq=False)
class PricedOps:
    """A flat step whose ops have prices on a machine."""

    module: Module
    machine: Machine
    tuning: Tuning
    prices: Sequence[OpPrice]
    plan: Plan
    """Has the participants that meet at collectives."""

    def survey(
        self, module: Module, phases: Phases, wrapping: Wrapping, request: PipelineRequest
    ) -> Survey:
        """Return the survey of the same step in any form."""
        fed = fed_positions(module.entry, wrapping)
        hoister = self._hoister(module, wrapping, request)
        if hoister is not None:
            program = for_participants(hoister.none().program, self.plan)
            survey = survey_of_program(module, phases, fed, self.machine, program)
            return outlined(replace(survey, copies=_copies(hoister, module)), module)
        prices = self.prices
        if module is not self.module:
            prices = op_prices(module, self.machine, self.tuning, self.plan)
        stack_bytes = self.machine.memory.stack_bytes
        return survey_of_kinds(module.entry, phases, prices, stack_bytes, fed)

    def _hoister(
        self, flat: Module, wrapping: Wrapping, request: PipelineRequest
    ) -> Hoister | None:
        """Return what makes the program of a form as one stage, with copies kept or not.

        None for what is too long or has none.
        """
        if sum(len(each.instructions) for each in flat.computations) > MOST_WHOLE:
            return None
        asked = CompileRequest(self.machine, pipelining=alone(request), tuning=self.tuning)
        step = Compilation(
            asked,
            flat,
            self.plan,
            phase=Phase.APART,
            distribution=Distribution.CUT,
            wrapping=replace(wrapping, loop=1, io_tiles=0),
        )
        try:
            lowered = continued(step, Phase.LOWERED)
        except HloipuError:  # ops that need their surroundings, such as collectives
            return None
        # Merged steps make other moments as full as the fullest one: not where memory lacks.
        most_bytes = peak_bytes(lowered.program, self.machine)
        room_bytes = self.machine.chip.tiles_per_ipu * available_bytes(self.machine)
        return hoister_of(lowered, {0: most_bytes} if most_bytes > room_bytes else {})


def outlined(survey: Survey, module: Module) -> Survey:
    """Return a survey in which equal blocks have their code once, as programs that lack room do.

    So have ops beside them that are equal to some in blocks: what all layers share, such as a mask,
    stands in the midst of one of them here, and is apart from it once the step is cut.
    """
    own, sizes = list(survey.op_code), survey.code_bytes.tolist()
    uses: list[tuple[int, int]] = []
    entry = module.entry
    outlining = OutlineBlocks()
    least = outlining.least_block, outlining.least_saved
    numbers: dict[Hashable, list[int]] = {}
    for equal in equal_blocks((entry,), outlining_weight, *least):
        for alike in zip(*(block.positions for block in equal.occurrences), strict=True):
            size = max(own[op] for op in alike)
            if size:
                uses += [(len(sizes), op) for op in alike]
                letter = letter_of(entry, entry.instructions[alike[0]])
                numbers.setdefault(letter, []).append(len(sizes))
                sizes.append(size)
            for op in alike:
                own[op] = 0.0
    seen: Counter[Hashable] = Counter()
    for op, x in enumerate(entry.instructions):
        letter = letter_of(entry, x) if own[op] else None
        if letter in numbers:
            number = numbers[letter][seen[letter] % len(numbers[letter])]
            seen[letter] += 1
            uses.append((number, op))
            sizes[number], own[op] = max(sizes[number], own[op]), 0.0
    more = np.array(uses, np.int64).reshape(-1, 2)
    return replace(
        survey,
        op_code=own,
        code_bytes=np.array(sizes, np.float64),
        code=np.concatenate((survey.code, more[:, 0])),
        code_op=np.concatenate((survey.code_op, more[:, 1])),
    )


def _copies(hoister: Hoister, module: Module) -> tuple[CopyOfWeight, ...]:
    copies = []
    blocks, position = hoister.blocks.blocks, module.entry.position
    for copy in hoister.copies:
        variable = hoister.program.variables[copy.variable]
        ops = set()
        for place in copy.readers:
            step = blocks[place.block].sequence.steps[place.position]
            named = [position[name] for name in names_of(step) if name in position]
            mine = position.get(variable.origin, -1)
            ops.add(mine if mine in named else next(iter(named), mine))
        ops.discard(-1)
        size = on_all_tiles(variable, hoister.machine)
        copies.append(CopyOfWeight(size, copy.cycles, tuple(sorted(ops))))
    return tuple(copies)
