"""Cuts an expression's parts into stages: a compiled kernel, steps of numpy's, a kernel, and so on.

A part stands in the earliest stage that its arguments allow. What a later stage reads stands in a
buffer in between, or where a result is to be.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from hloipu_runtime.codelets.core.native_lowering import Constant, Lowered, NumpyStep
from hloipu_runtime.kernels.core.blocks import Array
from hloipu_runtime.kernels.native.instructions import Instruction
from hloipu_runtime.kernels.native.loop import Kernel, Operand


class KernelStage(NamedTuple):
    """Instructions of one kernel."""

    operands: tuple[int, ...]
    """Values that it reads: the expression's operands, constants, what stages before have made."""
    types: tuple[str, ...]
    """Their storage types."""
    literals: tuple[tuple[int, str, str], ...]
    instructions: tuple[tuple[int, Instruction], ...]
    results: tuple[int, ...]
    """Values that others read."""

    def kernel(
        self, shared: Sequence[bool], planed: tuple[int, ...] = (), *, boxed: bool = False
    ) -> Kernel:
        """Return what to compile, where it is known which operands a row shares.

        `planed` are places whose rows lie in planes, operands before results; for `boxed` see
        `Kernel`.
        """
        place = {number: k for k, number in enumerate(self.operands)}
        computed = [number for number, _ in self.instructions]
        known = [number for number, _, _ in self.literals]
        place |= {number: k for k, number in enumerate((*known, *computed), len(place))}
        return Kernel(
            tuple(Operand(*x) for x in zip(self.types, shared, strict=True)),
            tuple((place[number], kind, text) for number, kind, text in self.literals),
            tuple(
                (place[n], op._replace(arguments=tuple(place[a] for a in op.arguments)))
                for n, op in self.instructions
            ),
            tuple(place[number] for number in self.results),
            planed=planed,
            boxed=boxed,
        )


class NumpyStage(NamedTuple):
    """One step of numpy's, and the number of what it makes."""

    part: NumpyStep
    number: int

    @property
    def operands(self) -> tuple[int, ...]:
        """Values that it reads."""
        return self.part.arguments

    @property
    def results(self) -> tuple[int, ...]:
        """The value that it makes."""
        return (self.number,)


Stage = KernelStage | NumpyStage


class Staged(NamedTuple):
    """An expression's stages."""

    lowered: Lowered
    stages: tuple[Stage, ...]
    constants: dict[int, Array]
    """Floats that kernels, or anything that steps read as an operand without dimensions."""
    last_read: dict[int, int]
    """Of operands and made values: the last stage that reads them."""

    @property
    def viewed(self) -> frozenset[int]:
        """Numbers of operands, then results, that any step but one kernel reads or writes."""
        count, results = len(self.lowered.operand_types), self.lowered.results
        by_numpy = {x for s in self.stages if isinstance(s, NumpyStage) for x in s.operands}
        viewed = {k for k in range(count) if k in by_numpy or k in results}
        if len(self.stages) > 1 or len({*results} - {*range(count)}) < len(results):
            viewed.update(range(count, count + len(results)))
        return frozenset(viewed)

    @property
    def instructions(self) -> int:
        """How many instructions kernels do for each element."""
        return sum(len(x.instructions) for x in self.stages if isinstance(x, KernelStage))


def staged(lowered: Lowered) -> Staged:
    """Return the stages of an expression."""
    count = len(lowered.operand_types)
    parts = [
        (n, () if isinstance(part, Constant) else part.arguments, isinstance(part, NumpyStep))
        for n, part in enumerate(lowered.parts, count)
    ]
    level = levels(range(count), parts)
    constants = {
        n: part.value for n, part in enumerate(lowered.parts, count) if isinstance(part, Constant)
    }
    stages: list[Stage] = []
    read_after = _readers(lowered, level)
    for this in range(max(level.values(), default=0) + 1):
        here = [
            (number, part)
            for number, part in enumerate(lowered.parts, count)
            if level[number] == this
        ]
        instructions = tuple((n, part) for n, part in here if isinstance(part, Instruction))
        if instructions:
            stages.append(_kernel_stage(lowered, instructions, this, read_after, constants))
        stages += [NumpyStage(part, n) for n, part in here if isinstance(part, NumpyStep)]
    last_read: dict[int, int] = {}
    for position, stage in enumerate(stages):
        last_read |= dict.fromkeys(stage.operands, position)
    last_read |= dict.fromkeys(lowered.results, len(stages))
    return Staged(lowered, tuple(stages), constants, last_read)


def levels(
    given: Iterable[int], parts: Iterable[tuple[int, Sequence[int], bool]]
) -> dict[int, int]:
    """Return the stage of each value: `given` ones, and those of parts, in order.

    Of a part: its value, its arguments, and whether it is a step of numpy's, which stages of odd
    numbers have: behind a kernel the next one, behind a step the same.
    """
    level = dict.fromkeys(given, 0)
    by_numpy: set[int] = set()
    for number, arguments, is_numpys in parts:
        if is_numpys:
            level[number] = max((level[x] | 1 for x in arguments), default=1)
            by_numpy.add(number)
        else:
            level[number] = max((level[x] + (x in by_numpy) for x in arguments), default=0)
    return level


def integer_literals(
    reads: Iterable[int], constants: Mapping[int, Array], type_of: Callable[[int], str]
) -> tuple[tuple[int, str, str], ...]:
    """Return the integers among constants that a kernel reads, with their types, as literals."""
    return tuple(
        (number, type_of(number), _integer_literal(constants[number]))
        for number in reads
        if number in constants and constants[number].dtype.kind in "iub"
    )


def _readers(lowered: Lowered, level: Mapping[int, int]) -> dict[int, int]:
    """Return for each value the last level that reads it; results are read after all."""
    found: dict[int, int] = {}
    for number, part in enumerate(lowered.parts, len(lowered.operand_types)):
        if not isinstance(part, Constant):
            for x in part.arguments:
                found[x] = max(found.get(x, 0), level[number])
    end = max(level.values(), default=0) + 1
    return {**found, **dict.fromkeys(lowered.results, end)}


def _kernel_stage(
    lowered: Lowered,
    instructions: tuple[tuple[int, Instruction], ...],
    this: int,
    read_after: dict[int, int],
    constants: dict[int, Array],
) -> KernelStage:
    inside = {number for number, _ in instructions}
    reads = dict.fromkeys(
        number for _, part in instructions for number in part.arguments if number not in inside
    )
    literals = integer_literals(reads, constants, lowered.type_of)
    known = {x for x, _, _ in literals}
    operands = tuple(number for number in reads if number not in known)
    return KernelStage(
        operands,
        tuple(map(lowered.type_of, operands)),
        literals,
        instructions,
        tuple(n for n, _ in instructions if read_after.get(n, 0) > this),
    )


def _integer_literal(value: Array) -> str:
    """Return an integer as LLVM reads it. Floats are operands: it makes 1*x x, subnormal or not."""
    return str(bool(value)).lower() if value.dtype.kind == "b" else str(int(value))
