"""Values of a row region: their types, and whether they have one element a row."""

from collections.abc import Sequence
from typing import NamedTuple

from hloipu_runtime.codelets.core.expression_form import Expression
from hloipu_runtime.errors import UsageError


class Reduction(NamedTuple):
    """What a step ends with: a value reduced along the row."""

    step: int
    value: int
    monoid: str
    init: str
    """Exact text of what it starts from."""


class RowValues(NamedTuple):
    """What is known of each value by number: operands, then what each step makes."""

    types: tuple[str, ...]
    is_full: tuple[bool, ...]
    """Whether it has an element for each element of all rows."""
    numbers_by_step: tuple[tuple[int, ...], ...]
    """Of each step: the values of its expression."""
    crossing: frozenset[int]
    """Full values that a later step than their own reads."""


def row_values(
    labels: Sequence[Sequence[int]],
    rank: int,
    dimensions: Sequence[int],
    operand_types: Sequence[str],
    steps: Sequence[tuple[Expression, Sequence[int]]],
    reductions: Sequence[Reduction],
) -> RowValues:
    """Return type and extent of each value of some steps, each an expression and its operands.

    Raises UsageError E3091 where a step or a reduction reads what is not there.
    """
    types = list(operand_types)
    reduced = set(dimensions)
    full = [len(numbers) == rank or (not reduced and bool(numbers)) for numbers in labels]
    long = [bool(reduced & set(numbers)) for numbers in labels]
    numbers_by_step: list[tuple[int, ...]] = []
    waiting = list(reversed(reductions))
    for step, (expression, sources) in enumerate(steps):
        begin = len(types)
        if any(not 0 <= number < begin for number in sources):
            raise refused(f"step {step} reads {tuple(sources)}")
        is_full = any(full[number] or long[number] for number in sources)
        count = len(expression.results)
        types += expression.result_types
        full += [is_full] * count
        long += [False] * count
        numbers_by_step.append(tuple(range(begin, len(types))))
        while waiting and waiting[-1].step == step:
            value = waiting.pop().value
            if not 0 <= value < len(types):
                raise refused(f"a reduction reads {value}")
            types.append(types[value])
            full.append(False)
            long.append(False)
    if waiting:
        raise refused(f"a reduction belongs to step {waiting[-1].step}")
    own = {value: step for step, values in enumerate(numbers_by_step) for value in values}
    crossing = frozenset(
        value
        for step, (_, sources) in enumerate(steps)
        for value in sources
        if full[value] and own.get(value, step) < step
    )
    return RowValues(tuple(types), tuple(full), tuple(numbers_by_step), crossing)


def refused(problem: str) -> UsageError:
    """Return the error of a region that reads, or gives, what is not there."""
    return UsageError(
        "E3091",
        f"a region of rows: {problem}",
        hint="steps, reductions and results name operands and what came before them",
    )
