"""A third way to run drawn programs: variables as whole arrays, one step after the other.

Only for the codelets that `random_programs` draws: sums and copies. Nothing of the engines is used.
"""

from collections import Counter
from random import Random
from typing import Any

import numpy as np

from hloipu_runtime.kernels.core.storage import storage_dtype
from hloipu_runtime.program.program import Program
from hloipu_runtime.program.steps import (
    Call,
    ComputeSet,
    Exchange,
    If,
    Parallel,
    Repeat,
    RepeatWhile,
    Sequence,
    Step,
    StreamIn,
    StreamOut,
    Switch,
)

Array = np.ndarray[Any, Any]


class DrawnHost:
    """Streams of drawn whole numbers; the same for a seed, whoever takes from them."""

    def __init__(self, program: Program, seed: int) -> None:
        self.seed = seed
        self.shapes = {f"in{n}": (x.shape, x.element_type) for n, x in enumerate(program.variables)}
        self.taken: Counter[str] = Counter()
        self.given: list[tuple[str, Array]] = []

    def take(self, stream: str) -> Array:
        """Return the next element: of predicates, true two times of three."""
        shape, kind = self.shapes[stream]
        draw = Random(f"{self.seed} {stream} {self.taken[stream]}")
        self.taken[stream] += 1
        count = int(np.prod(shape, dtype=np.int64))
        numbers = [draw.randint(-2, 9) for _ in range(count)]
        if kind == "pred":
            numbers = [n > 1 for n in numbers]
        return np.array(numbers, storage_dtype(kind)).reshape(shape)

    def give(self, stream: str, value: Array) -> None:
        """Keep a copy."""
        self.given.append((stream, value.copy()))


class NaiveRun:
    """Runs a program; `turns` counts the turns of all loops."""

    def __init__(self, program: Program, host: DrawnHost) -> None:
        self.program = program
        self.host = host
        self.held: dict[int, Array] = {
            variable: array for variable, (_, array) in program.constants.items()
        }
        self.turns = 0

    def run(self) -> list[tuple[str, Array]]:
        """Run once, and return what the host was given."""
        self.walk(self.program.body)
        return self.host.given

    def walk(self, step: Step) -> None:
        match step:
            case Sequence():
                for inner in step.steps:
                    self.walk(inner)
            case ComputeSet():
                sums = [sum(self.held[x.variable] for x in g.inputs) for g in step.groups]
                for group, found in zip(step.groups, sums, strict=True):
                    self.held[group.outputs[0].variable] = np.asarray(found).copy()
            case Exchange():
                self.exchange(step)
            case StreamIn():
                self.held[step.variable] = self.host.take(step.stream)
            case StreamOut():
                self.host.give(step.stream, self.held[step.variable])
            case Parallel():
                for branch in step.branches:
                    self.walk(branch)
            case Repeat():
                for _ in range(step.count):
                    self.turns += 1
                    self.walk(step.body)
            case RepeatWhile():
                self.walk(step.condition)
                while self.held[step.predicate]:
                    self.turns += 1
                    self.walk(step.body)
                    self.walk(step.condition)
            case If():
                self.walk(step.then if self.held[step.predicate] else step.otherwise)
            case Switch():
                index = int(self.held[step.index])
                in_range = 0 <= index < len(step.branches)
                self.walk(step.branches[index if in_range else -1])
            case Call():
                self.walk(self.program.functions[step.function])
            case _:
                pass

    def exchange(self, step: Exchange) -> None:
        new: dict[int, Array] = {}
        for transfer in step.transfers:
            x = self.program.variables[transfer.destination]
            if transfer.destination not in new:
                under = self.held.get(transfer.destination)
                blank = np.zeros(x.shape, storage_dtype(x.element_type))
                new[transfer.destination] = blank if under is None else under.copy()
            source = self.held[transfer.source].reshape(transfer.view)
            to = tuple(slice(low, high) for low, high in transfer.box)
            origin = tuple(
                slice(low + k, high + k)
                for (low, high), k in zip(transfer.box, transfer.shift, strict=True)
            )
            new[transfer.destination][to] = source[origin]
        self.held.update(new)
