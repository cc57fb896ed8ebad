"""Async sugar for printing: `async-start` around one plain instruction becomes `X-start`.

Source: openxla/xla `xla/hlo/ir/hlo_instruction.cc` (PrintWithCanonicalNameMap),
`hlo_computation.cc` (CanExpandIntoSingleInstruction).
"""

from collections import Counter
from collections.abc import Mapping

from hloipu_compiler.ir.attributes import Attributes
from hloipu_compiler.ir.graph import Computation, Instruction, Module
from hloipu_compiler.ir.ops import OPS
from hloipu_compiler.ir.shapes import TupleShape

Sugar = Mapping[str, Instruction]
"""The one instruction of each computation that async sugar hides, by the computation's name."""

NO_SUGAR: Sugar = {}


def async_sugar(module: Module) -> Sugar:
    """Return the computations that sugar can hide: wrapped once, around one plain instruction."""
    calls = Counter(
        name for c in module.computations for op in c.instructions for name in op.attributes.called
    )
    wrapped_by_computation: dict[str, Instruction] = {}
    for computation in module.computations:
        for start in computation.instructions:
            if start.opcode != "async-start" or len(start.attributes.called) != 1:
                continue
            name = start.attributes.called[0]
            wrapped = module.computation.get(name)
            if wrapped is not None and calls[name] == 1 and _is_plain(wrapped, start):
                wrapped_by_computation[name] = wrapped.instructions[wrapped.root]
    return wrapped_by_computation


def _is_plain(wrapped: Computation, start: Instruction) -> bool:
    """Whether reading the sugar back gives this computation again, names apart."""
    root = wrapped.instructions[wrapped.root]
    shape = start.shape
    return (
        isinstance(shape, TupleShape)
        and len(shape.elements) > 1
        and shape.elements[1] == root.shape
        and len(wrapped.instructions) == len(root.operands) + 1 == len(start.operands) + 1
        and root.operands == wrapped.parameters
        and root.literal is None
        and root.opcode in OPS
        and f"{root.opcode}-start" not in OPS
        and start.attributes.text("async_execution_thread", "main") == wrapped.execution_thread
    )


def starts_of(computation: Computation) -> Mapping[str, Instruction]:
    """Return, for each async instruction by name, the `async-start` of its chain."""
    start_by_name: dict[str, Instruction] = {}
    for instruction in computation.instructions:
        if instruction.opcode == "async-start":
            start_by_name[instruction.name] = instruction
        elif instruction.opcode in ("async-update", "async-done") and instruction.operands:
            start = start_by_name.get(computation.instructions[instruction.operands[0]].name)
            if start is not None:
                start_by_name[instruction.name] = start
    return start_by_name


def sugared(
    instruction: Instruction, start: Instruction, sugar: Sugar
) -> tuple[str, Attributes] | None:
    """Return the opcode and attributes that stand for an async instruction; None to print as is."""
    called = start.attributes.called
    root = sugar.get(called[0]) if called else None
    if root is None:
        return None
    opcode = root.opcode + instruction.opcode.removeprefix("async")
    remaining = {k: v for k, v in instruction.attributes.items() if k != "calls"}
    if instruction is not start:
        return opcode, Attributes(remaining)
    return opcode, Attributes({**root.attributes, **remaining}, root.attributes.called)
