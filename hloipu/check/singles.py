"""Single instructions as modules, and many of them batched in one module.

A reference takes a fixed time for each module that it is handed, most of it before it begins to
compute. So instructions go to it by the dozen; a batch that it refuses is halved until what it
refuses stands alone.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from hloipu.check.outputs import Reference
from hloipu_compiler.interpret.planning.plan import Array
from hloipu_compiler.interpret.planning.site import array_leaves
from hloipu_compiler.ir.attributes import Attributes
from hloipu_compiler.ir.graph import Computation, Instruction, Module
from hloipu_compiler.ir.shapes import Shape, TupleShape

BATCH_BYTES = 512 * 2**20
"""Operands handed to the reference at a time; they go through files."""
BATCH_OPS = 64
"""Instructions handed to it at a time: more would make what is known after an interrupt, or a
time limit, too little. Assumed."""


@dataclass(frozen=True, slots=True)
class Single:
    """An instruction as a module, with its operands' leaves in user dtypes."""

    instruction: Instruction
    module: Module
    leaves: list[Array]


Answer = list[Array] | str
"""Leaves of the result, or why the reference could not compute it."""


def alone(module: Module, computation: Computation, position: int) -> Module:
    """Return one instruction as a module: its operands' leaves are the parameters."""
    instruction = computation.instructions[position]
    instructions: list[Instruction] = []
    operands = []
    for number, i in enumerate(instruction.operands):
        operands.append(
            _parameter(instructions, computation.instructions[i].shape, f"operand{number}")
        )
    instructions.append(
        instruction._replace(operands=tuple(operands), metadata="", start=-1, end=-1)
    )
    entry = Computation(f"only.{instruction.name}", tuple(instructions), len(instructions) - 1)
    called = tuple(_needed(module, instruction))
    return Module(f"only_{instruction.opcode.replace('-', '_')}", (*called, entry), len(called))


def together(singles: Sequence[Single]) -> tuple[Module, list[Array]]:
    """Return a module that computes several instructions of one module, and its arguments.

    Its result is a flat tuple of the leaves of all results.
    """
    instructions: list[Instruction] = []
    results: list[int] = []
    leaves: list[Array] = []
    called: dict[str, Computation] = {}
    for number, single in enumerate(singles):
        first, entry = len(instructions), single.module.entry
        for instruction in entry.instructions:
            is_parameter = instruction.parameter_number >= 0
            instructions.append(
                instruction._replace(
                    name=f"{instruction.name}.{number}",
                    operands=tuple(first + i for i in instruction.operands),
                    parameter_number=instruction.parameter_number + len(leaves)
                    if is_parameter
                    else -1,
                )
            )
        results += _leaves_of(instructions, first + entry.root)
        leaves += single.leaves
        called |= {c.name: c for c in single.module.computations if c is not entry}
    shape = TupleShape(tuple(instructions[i].shape for i in results))
    instructions.append(Instruction("results", "tuple", shape, tuple(results)))
    entry = Computation("ops.alone", tuple(instructions), len(instructions) - 1)
    return Module("ops_alone", (*called.values(), entry), len(called)), leaves


def answers(
    singles: Sequence[Single], reference: Reference
) -> Iterator[list[tuple[Single, Answer]]]:
    """Yield instructions with the reference's answers, batch by batch, in their order."""
    batch: list[Single] = []
    waiting_bytes = 0
    for number, single in enumerate(singles):
        batch.append(single)
        waiting_bytes += sum(leaf.nbytes for leaf in single.leaves)
        is_full = waiting_bytes >= BATCH_BYTES or len(batch) >= BATCH_OPS
        if is_full or number + 1 == len(singles):
            yield list(zip(batch, answered(batch, reference), strict=True))
            batch, waiting_bytes = [], 0


def answered(batch: Sequence[Single], reference: Reference) -> list[Answer]:
    """Return the reference's answer for each instruction of a batch."""
    if len(batch) == 1:
        return reference([(batch[0].module, batch[0].leaves)])
    (answer,) = reference([together(batch)])
    if isinstance(answer, str):
        half = len(batch) // 2
        return [*answered(batch[:half], reference), *answered(batch[half:], reference)]
    return [*split(batch, answer)]


def split(batch: Sequence[Single], leaves: Sequence[Array]) -> Iterator[list[Array]]:
    """Yield the leaves of each instruction of those of all."""
    at = 0
    for single in batch:
        count = len(array_leaves(single.instruction.shape))
        yield list(leaves[at : at + count])
        at += count


def _leaves_of(instructions: list[Instruction], position: int) -> list[int]:
    """Take every leaf out of a value; return their positions."""
    instruction = instructions[position]
    if not isinstance(instruction.shape, TupleShape):
        return [position]
    numbers = []
    for number, element in enumerate(instruction.shape.elements):
        attributes = Attributes({"index": number})
        name = f"{instruction.name}.leaf{number}"
        instructions.append(
            Instruction(name, "get-tuple-element", element, (position,), attributes)
        )
        numbers += _leaves_of(instructions, len(instructions) - 1)
    return numbers


def _parameter(instructions: list[Instruction], shape: Shape, name: str) -> int:
    """Add parameters for the leaves of a shape and put them together; return its position."""
    if isinstance(shape, TupleShape):
        parts = [_parameter(instructions, e, f"{name}.{i}") for i, e in enumerate(shape.elements)]
        instructions.append(Instruction(name, "tuple", shape, tuple(parts)))
    else:
        number = sum(p.opcode == "parameter" for p in instructions)
        instructions.append(Instruction(name, "parameter", shape, parameter_number=number))
    return len(instructions) - 1


def _needed(module: Module, instruction: Instruction) -> Iterator[Computation]:
    """Yield the computations that an instruction calls, callees first, each once."""
    callees: dict[str, Computation] = {}

    def visit(names: Sequence[Any]) -> None:
        for name in names:
            if name not in callees:
                callee = module.computation[name]
                visit([n for y in callee.instructions for n in y.attributes.called])
                callees[name] = callee

    visit(instruction.attributes.called)
    yield from callees.values()
