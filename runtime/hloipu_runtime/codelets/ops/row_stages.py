"""Cuts the steps of a row region into stages: kernels over rows, and steps of numpy's between.

A kernel takes whatever needs no step of numpy's that is still to come. In it, what depends on a
reduction stands in a later loop along the row. Values for each column that another loop or stage
reads stand in places: a result's, or buffers.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from hloipu_runtime.codelets.core.constants import value_of
from hloipu_runtime.codelets.core.expression_form import Expression
from hloipu_runtime.codelets.core.native_lowering import Constant, NumpyStep, lowered, storage_type
from hloipu_runtime.codelets.core.native_stages import NumpyStage, integer_literals, levels
from hloipu_runtime.codelets.ops.row_values import Reduction
from hloipu_runtime.kernels.core.blocks import Array
from hloipu_runtime.kernels.core.monoids import identity
from hloipu_runtime.kernels.core.rounding import is_narrow
from hloipu_runtime.kernels.core.storage import storage_dtype
from hloipu_runtime.kernels.native.instructions import Instruction
from hloipu_runtime.kernels.native.rows import RowKernel, RowLoop, RowPlace, RowReduction

Part = Instruction | NumpyStep | RowReduction
Numbered = tuple[int, Part]


class Parts(NamedTuple):
    """A region's steps taken apart. Values have numbers: operands come first."""

    parts: tuple[Numbered, ...]
    types: dict[int, str]
    """Storage types."""
    is_full: dict[int, bool]
    """Whether a value has an element for each column."""
    constants: dict[int, Array]
    results: tuple[int, ...]


class RowStages(NamedTuple):
    """What is done with some rows, in order."""

    parts: Parts
    stages: tuple[RowKernel | NumpyStage, ...]
    buffers: dict[int, bool]
    """Values that stand in buffers; whether these need only one row, that of one kernel."""
    direct: tuple[bool, ...]
    """Of each result: whether it is written to its place and not copied there."""
    late: tuple[bool, ...]
    """Of each result: whether no operand is read after it was written."""


def taken_apart(
    operand_types: Sequence[str],
    covers: Sequence[frozenset[int]],
    dimensions: tuple[frozenset[int], frozenset[int]],
    steps: Sequence[tuple[Expression, Sequence[int]]],
    reductions: Sequence[Reduction],
    results: Sequence[int],
    *,
    halves: bool,
) -> Parts | None:
    """Return a region's steps in parts; None where a reduction is not a kernel's.

    `covers`: along which dimensions operands have more than one element; `dimensions`: of rows, and
    along them; `halves`: whether the processor converts f32 to f16.
    """
    values = list(range(len(operand_types)))
    types = dict(enumerate(map(storage_type, operand_types)))
    elements = list(operand_types)
    covered = dict(enumerate(covers))
    along = dimensions[1]
    parts: list[Numbered] = []
    constants: dict[int, Array] = {}
    waiting = list(reductions)

    def new(kind: str, covers: frozenset[int] = frozenset()) -> int:
        number = len(types)
        types[number], covered[number] = kind, covers
        return number

    for step, (expression, sources) in enumerate(steps):
        lowered_step = lowered(expression, halves=halves)
        local = [values[number] for number in sources]
        for part in lowered_step.parts:
            if isinstance(part, Constant):
                local.append(new(part.type))
                constants[local[-1]] = part.value
                continue
            arguments = tuple(local[number] for number in part.arguments)
            local.append(
                new(part.type, frozenset().union(*(covered[number] for number in arguments)))
            )
            parts.append((local[-1], part._replace(arguments=arguments)))
        values += [local[number] for number in lowered_step.results]
        elements += expression.result_types
        while waiting and waiting[0].step == step:
            _, value, monoid, init = waiting.pop(0)
            source, element = values[value], elements[value]
            kind = types[source]
            # Numpy adds up what repeats from row to row, or along one, in another order.
            if kind not in ("f32", "f64") or covered[source] != dimensions[0] | along:
                return None
            start = np.asarray(value_of(init, element))
            reduced = new(kind, covered[source] - along)
            parts.append((reduced, RowReduction(reduced, source, monoid)))
            if monoid == "add":
                begin = new(kind)
                constants[begin] = start
                total = new(kind, covered[reduced])
                parts.append((total, Instruction("fadd", (begin, reduced), kind)))
                reduced = total
                if is_narrow(element):
                    how = ":half" if element == "f16" and halves else ""
                    reduced = new(kind, covered[total])
                    parts.append((reduced, Instruction(f"round:{element}{how}", (total,), kind)))
            elif monoid not in ("maximum", "minimum") or start != identity(
                monoid, storage_dtype(element)
            ):
                return None
            values.append(reduced)
            elements.append(element)
    full = {x: bool(covers & along) for x, covers in covered.items()}
    return Parts(tuple(parts), types, full, constants, tuple(values[number] for number in results))


def arguments_of(part: Part) -> tuple[int, ...]:
    """Return the values that a part reads."""
    return (part.source,) if isinstance(part, RowReduction) else part.arguments


def stages_of(parts: Parts, operands: int, full_results: Sequence[bool]) -> RowStages:
    """Return the stages of parts; `full_results`: which results have an element for each column."""
    groups = _grouped(parts, operands)
    when = _times(parts, groups, operands)
    read: dict[int, tuple[int, int]] = {}
    """Of each value: the last stage and loop that reads it."""
    places: set[int] = set()
    """Values that stand in memory: another loop or stage reads them, or a reduction."""
    for number, part in parts.parts:
        for x in arguments_of(part):
            at = when[number]
            if isinstance(part, RowReduction):  # runs when its loop has
                at = at[0], at[1] + 1
            read[x] = max(read.get(x, at), at)
            is_row_of_kernel = not parts.is_full[x] and when[x][0] == when[number][0]
            if isinstance(part, RowReduction) or not (is_row_of_kernel or when[x] == when[number]):
                places.add(x)
            if isinstance(part, NumpyStep):
                places.add(x)
    places |= {number for number, part in parts.parts if isinstance(part, NumpyStep)}
    places |= set(parts.results)
    last = max((read[x] for x in read if x < operands), default=(0, 0))
    computed = {number for number, _ in parts.parts}
    direct = tuple(
        number in computed and parts.is_full[number] == is_full and parts.results.index(number) == k
        for k, (number, is_full) in enumerate(zip(parts.results, full_results, strict=True))
    )
    late = tuple(number in computed and when[number] >= last for number in parts.results)
    stages: list[RowKernel | NumpyStage] = []
    for number, group in enumerate(groups):
        if isinstance(group[0][1], NumpyStep):
            stages += [NumpyStage(part, x) for x, part in group if isinstance(part, NumpyStep)]
        else:
            stages.append(_kernel(parts, group, when, places, number))
    own = {number for number, is_direct in zip(parts.results, direct, strict=True) if is_direct}
    buffers = {
        x: parts.is_full[x]
        and x not in parts.results
        and x in read
        and when[x][0] == read[x][0]
        and not isinstance(groups[when[x][0]][0][1], NumpyStep)
        for x in sorted(places & computed - own)
    }
    return RowStages(parts, tuple(stages), buffers, direct, late)


def _grouped(parts: Parts, operands: int) -> list[list[Numbered]]:
    """Return parts by stage: what needs no step of numpy's, such steps, and so on."""
    rows = ((n, arguments_of(part), isinstance(part, NumpyStep)) for n, part in parts.parts)
    level = levels((*range(operands), *parts.constants), rows)
    groups: dict[int, list[Numbered]] = {}
    for numbered in parts.parts:
        groups.setdefault(level[numbered[0]], []).append(numbered)
    return [groups[x] for x in sorted(groups)]


def _times(
    parts: Parts, groups: Sequence[Sequence[Numbered]], operands: int
) -> dict[int, tuple[int, int]]:
    """Return stage and loop of each value: one of the row is there after its loop, -1: before all.

    A reduction belongs to the loop that makes its source.
    """
    when = dict.fromkeys((*range(operands), *parts.constants), (-1, -1))
    for stage, group in enumerate(groups):
        for number, part in group:
            here = [number for number in arguments_of(part) if when[number][0] == stage]
            if not parts.is_full[number]:
                loop = max((when[x][1] for x in here), default=-1)
                loop = max(0, loop) if isinstance(part, RowReduction) else loop
            else:
                loop = max((when[x][1] + (0 if parts.is_full[x] else 1) for x in here), default=0)
            when[number] = stage, max(0, loop) if parts.is_full[number] else loop
    return when


def _kernel(
    parts: Parts,
    group: Sequence[Numbered],
    when: dict[int, tuple[int, int]],
    places: set[int],
    stage: int,
) -> RowKernel:
    inside = {number for number, _ in group}
    reads = dict.fromkeys(
        number for _, part in group for number in arguments_of(part) if number not in inside
    )
    literals = integer_literals(reads, parts.constants, parts.types.__getitem__)
    inputs = [number for number in reads if number not in {y for y, _, _ in literals}]
    stored = [x for x in inside if x in places]
    loops = []
    instructions = [(n, reduction) for n, reduction in group if isinstance(reduction, Instruction)]
    for loop in range(max(when[x][1] for x in inside) + 1):
        here = [(n, op) for n, op in instructions if when[n] == (stage, loop)]
        loops.append(
            RowLoop(
                tuple((n, op) for n, op in here if parts.is_full[n]),
                tuple(x for x in sorted(stored) if parts.is_full[x] and when[x][1] == loop),
                tuple(
                    reduction
                    for n, reduction in group
                    if isinstance(reduction, RowReduction) and when[n][1] == loop
                ),
                tuple((n, op) for n, op in here if not parts.is_full[n]),
            )
        )
    return RowKernel(
        tuple(
            RowPlace(x, parts.types[x], not parts.is_full[x]) for x in (*inputs, *sorted(stored))
        ),
        frozenset(inputs),
        frozenset(x for x in stored if not parts.is_full[x]),
        literals,
        tuple((n, op) for n, op in instructions if when[n][1] < 0),
        tuple(loops),
    )
