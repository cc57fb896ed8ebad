"""Evaluation plan: steps over slots, each freeing its last uses."""

import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from hloipu_compiler.ir.graph import Instruction
from hloipu_runtime.frozen import dataclass

Array = np.ndarray[Any, Any]
"""A leaf value in storage form (`hloipu_runtime.kernels`); tokens are zero-size arrays."""

Action = Callable[[list[Array]], Sequence[Array]]
"""What a step does: its operands' leaves in, its result's leaves out.

The action owns the list: a leaf that nobody else holds may be written (`may_overwrite`).
"""

Watcher = Callable[[Instruction, Sequence[Array]], None]
"""Sees each instruction's leaves right after they are computed."""

TOKEN_VALUE: Array = np.empty(0, np.uint8)
"""The value of a token: nothing, but something to hand on."""


class Step(NamedTuple):
    """One step: run `action` on the input slots, put its results into the output slots."""

    action: Action
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    frees: tuple[int, ...]
    """Slots that are read for the last time here."""
    instruction: Instruction


@dataclass(frozen=True, slots=True)
class Plan:
    """The steps of one computation; parameters' leaves stand in the first slots, in order."""

    name: str
    slot_count: int
    parameter_count: int
    """Number of parameter leaves."""
    constants: tuple[tuple[int, Array], ...]
    folded: tuple[tuple[Instruction, tuple[int, ...]], ...]
    """Instructions whose values stand among the constants, for watchers."""
    steps: tuple[Step, ...]
    results: tuple[int, ...]
    unused_parameters: tuple[int, ...]

    def run(self, arguments: list[Array], watch: Watcher | None = None) -> list[Array]:
        """Run the steps; `arguments` is emptied, so that its arrays can die while the plan runs."""
        slots: list[Array | None] = [None] * self.slot_count
        slots[: len(arguments)] = arguments
        arguments.clear()
        value: Array | None
        for slot, value in self.constants:
            slots[slot] = value
        if watch is not None:
            for instruction, outputs in self.folded:
                watch(instruction, [slots[i] for i in outputs])  # type: ignore[misc]
        for slot in self.unused_parameters:
            slots[slot] = None
        for action, inputs, outputs, frees, instruction in self.steps:
            operands: list[Any] = [slots[i] for i in inputs]
            for i in frees:
                slots[i] = None
            results = action(operands)
            for slot, value in zip(outputs, results, strict=True):
                slots[slot] = value
            if watch is not None:
                watch(instruction, results)
            # These names would keep values from dying, and from being written over, for a step.
            del results
            value = None
        return [slots[i] for i in self.results]  # type: ignore[misc]


def may_overwrite(arrays: list[Array], index: int) -> bool:
    """Whether an operand's buffer is held by this list alone, so that a step may write into it.

    CPython counts references exactly: the list's own, and the one that passing it here makes. A
    view of the array, a slot, the caller of the evaluator or a plan's constant would add another.
    """
    if sys.getrefcount(arrays[index]) > _LONE_REFERENCES:
        return False
    array = arrays[index]
    return array.base is None and array.flags.writeable


def _lone_references() -> int:
    probe: list[Array] = [np.empty(1)]
    return sys.getrefcount(probe[0])


_LONE_REFERENCES = _lone_references()
