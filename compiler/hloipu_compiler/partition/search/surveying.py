"""Cost surveys of a step: as one stage, or op by op where it is long."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from hloipu_compiler.compilation import Compilation, CompileRequest, Distribution, Phase
from hloipu_compiler.cost_survey.op_prices import OpPrice
from hloipu_compiler.cost_survey.survey import Survey, fed_positions, survey_of_kinds
from hloipu_compiler.cost_survey.whole_step import alone, survey_of_program
from hloipu_compiler.driver import continued, op_prices
from hloipu_compiler.ir.graph import Module
from hloipu_compiler.partition.training.step_phases import Phases
from hloipu_compiler.plan.pipelining import PipelineRequest
from hloipu_compiler.plan.wrapping import Wrapping
from hloipu_compiler.planners.tuning import Tuning
from hloipu_runtime.errors import HloipuError
from hloipu_runtime.machine.model import Machine
from hloipu_runtime.program.program import Program

MOST_WHOLE = 15_000
"""Instructions of a step whose program is made to look at it; longer ones are priced op by op."""


@dataclass(frozen=True, eq=False)
class PricedOps:
    """A flat step whose ops have prices on a machine."""

    module: Module
    machine: Machine
    tuning: Tuning
    prices: Sequence[OpPrice]

    def survey(
        self, module: Module, phases: Phases, wrapping: Wrapping, request: PipelineRequest
    ) -> Survey:
        """Return the survey of the same step in any form."""
        fed = fed_positions(module.entry, wrapping)
        program = self._program(module, wrapping, request)
        if program is not None:
            return survey_of_program(module, phases, fed, self.machine, program)
        prices = self.prices
        if module is not self.module:
            prices = op_prices(module, self.machine, self.tuning)
        stack_bytes = self.machine.memory.stack_bytes
        return survey_of_kinds(module.entry, phases, prices, stack_bytes, fed)

    def _program(
        self, flat: Module, wrapping: Wrapping, request: PipelineRequest
    ) -> Program | None:
        """Return the program of a form as one stage; None for what is too long or has none."""
        if sum(len(each.instructions) for each in flat.computations) > MOST_WHOLE:
            return None
        step = Compilation(
            # As one stage it mostly does not fit; its copies are weighed with the stages.
            CompileRequest(
                self.machine,
                pipelining=alone(request),
                tuning=replace(self.tuning, hoist="all"),
            ),
            flat,
            phase=Phase.APART,
            distribution=Distribution.CUT,
            wrapping=replace(wrapping, loop=1, io_tiles=0),
        )
        try:
            return continued(step, Phase.MERGED).program
        except HloipuError:  # ops that need their surroundings, such as collectives
            return None
