"""Check a compiled program: its results, and the first instruction whose value on tiles is off."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hloipu.check.ops import check_room
from hloipu.check.outputs import judge_leaf, nested
from hloipu.ports import without_tokens
from hloipu_compiler.inference.site import is_array
from hloipu_compiler.interpret.evaluator import EvaluationLimits
from hloipu_compiler.interpret.participants import evaluate_everywhere
from hloipu_compiler.interpret.planning.plan import TOKEN_VALUE, Array
from hloipu_compiler.interpret.planning.site import array_leaves
from hloipu_compiler.ir.graph import Instruction, Module
from hloipu_compiler.ir.shapes import ArrayShape
from hloipu_runtime.compiled import CompiledProgram
from hloipu_runtime.errors import UsageError
from hloipu_runtime.kernels.core.storage import from_storage


@dataclass(frozen=True, slots=True)
class OffOnTiles:
    """The first instruction whose value on tiles is not the evaluator's."""

    instruction: Instruction
    said: str


@dataclass(frozen=True, slots=True)
class Tiles:
    """A compiled program and how to run it."""

    program: CompiledProgram
    mode: str
    poison: bool
    max_iterations: int | None = None

    def outputs(self, module: Module, leaves: Sequence[Array]) -> list[Array]:
        """Return the leaves of a module's result as its program computes them."""
        results = iter(self._outputs(without_tokens(module, leaves)))
        return [
            next(results) if shape.element_type.name != "token" else TOKEN_VALUE
            for shape in array_leaves(module.entry.program_shape.result)
        ]

    def _outputs(self, arguments: Sequence[Array]) -> list[Array]:
        """Return what a run gives; what outfeeds take is let go."""
        program = self.program.program
        if not program.is_resident:
            return self.program.run(
                *arguments, mode=self.mode, poison=self.poison, max_iterations=self.max_iterations
            ).outputs
        if program.state:
            raise UsageError(
                "E2042",
                f"{program.name!r} is wrapped for the device: its results stay there",
                hint="check the step as it is, without loop, role, feed and outfeed",
            )
        with self.program.session(
            constants=arguments,
            mode=self.mode,
            poison=self.poison,
            max_iterations=self.max_iterations,
        ) as session:
            return session.run().outputs

    def first_off(
        self, flat: Module, leaves: Sequence[Array], limits: EvaluationLimits
    ) -> OffOnTiles | None:
        """Return the first instruction of the entry whose value on tiles is off.

        `flat` is the module after the passes, whose instructions the program's values come from.
        Both sides run from the same arguments, so rounding adds up on both: values differ where
        they are further apart than results may be. Values that have no form of their own on tiles
        are passed over.
        """
        program = self.program.program
        if program.is_resident or program.partitioning is not None:
            return None  # sessions show no values on the way, and one partition's are blocks
        value_on_tiles = self._values(flat, leaves)
        candidates: list[OffOnTiles] = []

        def compare(instruction: Instruction, evaluated: Sequence[Array]) -> None:
            if (
                candidates
                or id(instruction) not in value_on_tiles
                or not isinstance(instruction.shape, ArrayShape)
            ):
                return
            kind = instruction.shape.element_type.name
            ours, theirs = (
                from_storage(v, kind) for v in (value_on_tiles[id(instruction)], evaluated[0])
            )
            agrees, verdict = judge_leaf(instruction.shape, ours, theirs, None)
            if not agrees:
                candidates.append(OffOnTiles(instruction, verdict))

        evaluate_everywhere(flat, *nested(flat, leaves), limits=limits, watch=compare)
        return candidates[0] if candidates else None

    def _values(self, flat: Module, leaves: Sequence[Array]) -> dict[int, Array]:
        """Return the last value of each instruction on tiles, by the instruction's identity."""
        wanted = {op.name: op for op in flat.entry.instructions if is_array(op.shape)}
        check_room(flat, wanted.values())
        values = self.program.program.values
        array_by_instruction: dict[int, Array] = {}

        def keep(number: int, array: Array) -> None:
            value = values[number]
            instruction = wanted.get(value.origin)
            if instruction is None or not isinstance(instruction.shape, ArrayShape):
                return
            form = (instruction.shape.element_type.name, instruction.shape.dimensions)
            if form == (value.element_type, value.shape):
                array_by_instruction[id(instruction)] = np.array(array)

        self.program.run(
            *without_tokens(flat, leaves), mode=self.mode, poison=self.poison, watch=keep
        )
        return array_by_instruction
