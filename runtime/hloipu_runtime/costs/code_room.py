"""How much of the memory for code is left to exchanges."""

from collections.abc import Iterable, Iterator

from hloipu_runtime.machine.model import Machine
from hloipu_runtime.program.channels import popped, pushed
from hloipu_runtime.program.program import Program
from hloipu_runtime.program.steps import ComputeSet, Exchange, Pipeline, Step, inner_steps

_LEAST_SHARE = 4
"""Exchanges have at least one part in so many of the memory for code. Assumed."""


def room_for_exchanges(steps: Iterable[ComputeSet | Exchange], machine: Machine) -> int:
    """Return the bytes for exchange code on a tile that takes part in all steps."""
    memory = machine.memory
    control = state = 0
    codes: set[tuple[str, int]] = set()
    for step in steps:
        control += memory.step_code_bytes + memory.instruction_bytes
        if isinstance(step, ComputeSet):
            for group in step.groups:
                codelet = group.codelet
                state += codelet.state_bytes(machine, len(group.inputs), len(group.outputs))
                codes.add((codelet.name, codelet.code_bytes))
    others = control + state + sum(size for _, size in codes)
    return max(memory.executable_bytes // _LEAST_SHARE, memory.executable_bytes - others)


def phases(program: Program) -> Iterator[ComputeSet | Exchange]:
    """Yield what a program computes and exchanges; a loop's body and a function's once."""
    waiting: list[Step] = [*program.functions.values(), program.body]
    while waiting:
        match waiting.pop():
            case ComputeSet() | Exchange() as phase:
                yield phase
            case step:
                waiting += inner_steps(step)
                if isinstance(step, Pipeline):
                    yield pushed(program, step.channels)
                    yield popped(program, step.channels)
