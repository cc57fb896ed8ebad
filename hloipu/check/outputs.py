"""Compare a whole module's result with a reference's, by the rules of docs/numerics.md.

The reference computes a module in f64 that rounds where the module's own types do: once exactly,
and several times with every op erring as far as its published budget allows. Our result must look
like one more of those.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, overload

import numpy as np

from hloipu.check.judging.deviations import judge, judge_without_samples
from hloipu.check.judging.perturb import perturbed
from hloipu_compiler.interpret.planning.plan import Array
from hloipu_compiler.interpret.planning.site import array_leaves
from hloipu_compiler.interpret.widen import widened_arguments
from hloipu_compiler.ir.graph import Module
from hloipu_compiler.ir.shapes import ArrayShape, TupleShape

SAMPLES = 8
"""A value so near the middle of two numbers that ours goes to the other one goes there in about
half of the samples: in none of them with a probability of 2^-8."""
SAMPLES_OF_DOUBT = 16
"""More of them, before a result is said to differ."""
SAMPLE_BYTES = 4 * 2**30
"""What samples may take in memory; large results have fewer of them, but two."""
_GOLDEN = 0.6180339887498949
"""Multiples of it, modulo 1, lie apart from each other however many are taken."""

Reference = Callable[[Sequence[tuple[Module, Sequence[Array]]]], list[list[Array] | str]]
"""Computes modules on leaves of arguments; for each the result's leaves, or why it could not."""


@dataclass(frozen=True, slots=True)
class OutputReport:
    """One leaf of the result, ours against the reference."""

    number: int
    shape: ArrayShape
    agrees: bool
    said: str
    is_judged: bool = True
    """False: no element is finite on either side, so that there was nothing to judge."""

    @property
    def mark(self) -> str:
        """The first word of its line: `ok`, `DIFF`, or `none` where there was nothing to judge."""
        return "DIFF" if not self.agrees else "ok" if self.is_judged else "none"


@dataclass(frozen=True, slots=True)
class Truth(Sequence[Array]):
    """A reference's results of a module, as leaves in f64, c128 and integers.

    As a sequence it is its `values`.
    """

    values: list[Array]
    """Without errors, but for the roundings to the module's own types."""
    samples: list[list[Array]]
    """With errors as large as budgets allow; a list of leaves each."""
    draw: Callable[[range], list[list[Array]]]
    """Draws the samples of some numbers."""

    @overload
    def __getitem__(self, index: int) -> Array: ...
    @overload
    def __getitem__(self, index: slice) -> list[Array]: ...
    def __getitem__(self, index: int | slice) -> Array | list[Array]:
        """Return one leaf, or several."""
        return self.values[index]

    def __len__(self) -> int:
        return len(self.values)

    def part(self, first: int, count: int) -> "Truth":
        """Return the same of some leaves."""
        leaves = slice(first, first + count)
        return Truth(
            self.values[leaves],
            [sample[leaves] for sample in self.samples],
            lambda numbers: [sample[leaves] for sample in self.draw(numbers)],
        )

    def extended(self) -> "Truth":
        """Return the same with more samples."""
        first = len(self.samples) + 1
        more = self.draw(range(first, first + SAMPLES_OF_DOUBT))
        return replace(self, samples=[*self.samples, *more])


def compare_outputs(
    module: Module, ours: Sequence[Array], theirs: Sequence[Array], truth: Sequence[Array] | None
) -> list[OutputReport]:
    """Judge every leaf of the result, in user dtypes.

    `theirs` is the reference's result in the module's own types, `truth` what it is in f64: a
    `Truth`, or leaves alone. Without samples the judge knows less, and reports say so.
    """
    reports = _reports(module, ours, theirs, truth)
    if isinstance(truth, Truth) and not all(report.agrees for report in reports):
        reports = _reports(module, ours, theirs, truth.extended())
    return reports


def _reports(
    module: Module, ours: Sequence[Array], theirs: Sequence[Array], truth: Sequence[Array] | None
) -> list[OutputReport]:
    reports = []
    leaves = array_leaves(module.entry.program_shape.result)
    for number, (shape, a, b) in enumerate(zip(leaves, ours, theirs, strict=True)):
        if not shape.element_type.is_array:
            continue
        exact = None if truth is None else truth[number]
        if isinstance(truth, Truth):
            finding = judge(
                shape, a, b, truth[number], [sample[number] for sample in truth.samples]
            )
        else:
            finding = judge_without_samples(shape, a, b, exact)
        reports.append(OutputReport(number, shape, finding.agrees, finding.said, finding.is_judged))
    return reports


def judge_leaf(
    shape: ArrayShape, ours: Array, theirs: Array, truth: Array | None
) -> tuple[bool, str]:
    """Judge a value, in its user dtype, by a reference's, and by that in f64 if it is known."""
    finding = judge_without_samples(shape, ours, theirs, truth)
    return finding.agrees, finding.said


def truth_of(reference: Reference, module: Module, arguments: Sequence[Array]) -> Truth | None:
    """Return what the reference says a module's results are; None where it cannot.

    Our own kernels must not stand in for XLA: a wrong one would be wrong in f64 as well, and excuse
    itself.
    """
    moving = perturbed(module)
    if moving is None:
        return None
    wide = widened_arguments(arguments)

    def draw(numbers: range) -> list[list[Array]]:
        answers = reference([(moving, [*wide, spread_of(number)]) for number in numbers])
        return [answer for answer in answers if not isinstance(answer, str)]

    leaves = array_leaves(module.entry.program_shape.result)
    sample_bytes = sum(8 * leaf.element_count for leaf in leaves if leaf.element_type.is_array)
    count = min(SAMPLES, max(2, SAMPLE_BYTES // max(1, sample_bytes)))
    drawn = draw(range(count + 1))
    return Truth(drawn[0], drawn[1:], draw) if len(drawn) == count + 1 else None


def spread_of(number: int) -> Array:
    """Return the last argument of a form that errs, for a sample; 0 stands for no errors."""
    return np.asarray(1 + number * _GOLDEN % 1 if number else 0.0, np.float64)


def nested(module: Module, leaves: Sequence[Array]) -> list[Any]:
    """Group leaves by entry parameter."""
    arguments: list[Any] = []
    at = 0
    for shape in module.entry.program_shape.parameters:
        count = shape.leaf_count if isinstance(shape, TupleShape) else 1
        mine = list(leaves[at : at + count])
        arguments.append(mine if isinstance(shape, TupleShape) else mine[0])
        at += count
    return arguments
