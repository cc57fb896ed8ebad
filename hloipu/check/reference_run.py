"""Run a looped, cut or replicated step on a reference: one plain step at a time.

Where gradients are combined, each micro-batch of each replica is computed by itself and its
gradients are added up here, in numpy, as docs/many-ipus.md says; then comes one update.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from hloipu.check.formed_step import Parts, ReferenceStep
from hloipu.check.outputs import Reference
from hloipu.check.step_values import Begun, Elements, Numbered, StepValues, joined
from hloipu_compiler.interpret.planning.plan import Array
from hloipu_compiler.interpret.planning.site import array_leaves
from hloipu_compiler.ir.graph import Module
from hloipu_compiler.plan.pipelining import MEAN, RUNNING_MEAN
from hloipu_compiler.plan.wrapping import FeedBinding
from hloipu_runtime.errors import UnsupportedError
from hloipu_runtime.kernels.core.storage import user_dtype
from hloipu_runtime.plain_text import printable
from hloipu_runtime.streams.settings import parse_mode

Compute = Callable[[Module, Sequence[Sequence[Array]]], list[list[Array]]]
"""Computes a module on several lists of arguments."""


class GivenStep(NamedTuple):
    """A step as a reference runs it, and what it is run on."""

    step: ReferenceStep
    begun: Begun
    elements: Elements

    @property
    def first_arguments(self) -> list[Array]:
        """What the first replica begins with."""
        arguments: Numbered = {**self.begun.constants[0], **self.begun.states[0]}
        for feed in self.step.wrapping.feeds:
            arguments |= zip(feed.places, self.elements[feed.name][0], strict=True)
        return [arguments[n] for n in sorted(arguments)]


def values_of_reference(
    given: GivenStep,
    updates: int,
    reference: Reference,
    *,
    report_progress: Callable[[int, int], None] = lambda _done, _all: None,
) -> StepValues | str:
    """Return the values of `updates` steps, or why the reference cannot tell.

    `report_progress` is called after each update.
    """
    try:
        return _Run(given, _asking(reference)).values(updates, report_progress)
    except _UnknownError as error:
        return str(error)


def values_of_parts(given: GivenStep, reference: Reference) -> tuple[Numbered, Numbered] | str:
    """Return the results of one plain step, and those of its two parts on the same arguments."""
    step, begun, _ = given
    if step.parts is None:
        return {}, {}
    run = _Run(given, _asking(reference))
    try:
        plain = run.plain([0], begun.states[:1])[0]
        gradients, inside, new = run.micro_batch([0], begun.states[:1])
        late, state = run.update(gradients, [{**begun.states[0], **new[0]}], 0)
    except _UnknownError as error:
        return str(error)
    results = {**inside[0], **late[0]}
    results |= {pair.result: state[0][pair.parameter] for pair in step.wrapping.state}
    return plain, results


def values_of_plain_step(given: GivenStep, reference: Reference) -> Numbered | str:
    """Return the results of one plain step, or why the reference cannot tell."""
    try:
        run = _Run(given, _asking(reference))
        return run.plain([0], given.begun.states[:1])[0]
    except _UnknownError as error:
        return str(error)


class _UnknownError(Exception):
    """The reference could not compute something; it says why."""


def _asking(reference: Reference) -> Compute:
    def compute(module: Module, arguments: Sequence[Sequence[Array]]) -> list[list[Array]]:
        answers = []
        for answer in reference([(module, leaves) for leaves in arguments]):
            if isinstance(answer, str):
                raise _UnknownError(answer)
            answers.append(answer)
        return answers

    return compute


class _Run:
    """A run of steps by a reference."""

    def __init__(self, given: GivenStep, compute: Compute) -> None:
        self.step, begun, self.elements = given
        self.constants = begun.constants
        self.states = [dict(state) for state in begun.states]
        self.compute = compute
        self.given: dict[int, list[list[Array]]] = {}
        """By result, each time that it is given: the arrays of all replicas."""

    def values(self, updates: int, report_progress: Callable[[int, int], None]) -> StepValues:
        for number in range(updates):
            self._one_update(number)
            report_progress(number + 1, updates)
        wrapping = self.step.wrapping
        results = {n: self.given[n][-1][0] for n in wrapping.results if updates}
        outfed: dict[tuple[str, int], Array] = {}
        for outfeed in wrapping.outfeeds if updates else ():
            for k, column in enumerate(self._outfed(outfeed, updates // (wrapping.loop or 1))):
                outfed[outfeed.name, k] = column
        return StepValues(joined(self.states), results, outfed)

    # --- one update -------------------------------------------------------------------------------

    def _one_update(self, number: int) -> None:
        count, replicas = self.step.micro_batches, len(self.states)
        totals: list[list[Array]] = []
        for k in range(count):
            first = (number * count + k) * replicas
            places = range(first, first + replicas)
            if self.step.parts is None:
                results = self.plain(places, self.states)
                for state, new in zip(self.states, results, strict=True):
                    state.update(
                        {pair.parameter: new[pair.result] for pair in self.step.wrapping.state}
                    )
                state_results = {pair.result for pair in self.step.wrapping.state}
                self._give(results, [n for n in results[0] if n not in state_results])
                continue
            gradients, results, new_states = self.micro_batch(places, self.states)
            for state, new in zip(self.states, new_states, strict=True):
                state.update(new)
            self._give(results, self.step.parts.early)
            totals = [
                self._added(totals[r] if totals else [], mine, k)
                for r, mine in enumerate(gradients)
            ]
        if self.step.parts is not None:
            last = ((number + 1) * count - 1) * replicas
            late, states = self.update(self._combined(totals), self.states, last)
            self.states = states
            self._give(late, self.step.parts.late)

    def plain(self, places: Sequence[int], states: Sequence[Numbered]) -> list[Numbered]:
        """Run the plain step on elements and states; return all of its results by number."""
        arguments = [self._arguments(n, state) for n, state in zip(places, states, strict=True)]
        return [dict(enumerate(results)) for results in self.compute(self.step.module, arguments)]

    def micro_batch(
        self, places: Sequence[int], states: Sequence[Numbered]
    ) -> tuple[list[list[Array]], list[Numbered], list[Numbered]]:
        """Run micro-batches; return gradients, results, and state for the next one."""
        parts = self._parts
        arguments = [self._arguments(n, state) for n, state in zip(places, states, strict=True)]
        count, carried = len(parts.accumulations), len(parts.carried)
        gradients, states, results = [], [], []
        for values in self.compute(parts.micro_batch, arguments):
            gradients.append(values[:count])
            states.append(dict(zip(parts.carried, values[count : count + carried], strict=True)))
            results.append(dict(zip(parts.early, values[count + carried :], strict=True)))
        return gradients, results, states

    def update(
        self, gradients: Sequence[Sequence[Array]], states: Sequence[Numbered], last: int
    ) -> tuple[list[Numbered], list[Numbered]]:
        """Run the update of each replica; return its results, and the state after it.

        `last`: the place of the last elements, which stand for parameters that it does not read.
        """
        parts = self._parts
        arguments = [
            [*self._arguments(last + n, state), *mine]
            for n, (state, mine) in enumerate(zip(states, gradients, strict=True))
        ]
        late, after = [], []
        for state, values in zip(states, self.compute(parts.update, arguments), strict=True):
            new = dict(zip(parts.updated, values, strict=False))
            after.append({**state, **new})
            late.append(dict(zip(parts.late, values[len(parts.updated) :], strict=True)))
        return late, after

    @property
    def _parts(self) -> Parts:
        if self.step.parts is None:
            raise TypeError("the step has no parts")
        return self.step.parts

    def _arguments(self, place: int, state: Numbered) -> list[Array]:
        """Return the step's arguments, by number, with a state and the feeds' element there."""
        arguments = {**self.constants[place % len(self.states)], **state}
        for feed in self.step.wrapping.feeds:
            arguments |= zip(feed.places, self.elements[feed.name][place], strict=True)
        return [arguments[n] for n in sorted(arguments)]

    def _give(self, results: Sequence[Numbered], numbers: Sequence[int]) -> None:
        for n in numbers:
            self.given.setdefault(n, []).append([result[n] for result in results])

    # --- gradients --------------------------------------------------------------------------------

    def _added(self, totals: Sequence[Array], gradients: Sequence[Array], k: int) -> list[Array]:
        """Return accumulators with a micro-batch's gradients taken in; `k` micro-batches before it.

        As documented: scaled in the gradient's type, added up in the accumulator's.
        """
        accumulators = []
        for n, (gradient, into) in enumerate(
            zip(gradients, self._parts.accumulations, strict=True)
        ):
            own_type, kind = gradient.dtype.type, user_dtype(into.element_type).type
            total = totals[n] if totals else np.zeros(gradient.shape, kind)
            share = own_type(1.0)
            if self.step.reduction == MEAN:
                share = own_type(1 / self.step.micro_batches)
            elif self.step.reduction == RUNNING_MEAN:
                share = own_type(np.float32(1) / np.float32(k + 1))
                total = total * kind(np.float32(k) / np.float32(k + 1))
            accumulators.append(np.asarray(total + (gradient * share).astype(kind), kind))
        return accumulators

    def _combined(self, totals: Sequence[Sequence[Array]]) -> list[list[Array]]:
        """Return the gradients that each replica's update takes: their mean, in their own types."""
        types = [user_dtype(name) for name in self._parts.gradient_types]
        mean = []
        for column, own_type in zip(zip(*totals, strict=True), types, strict=True):
            total = column[0]
            for contribution in column[1:]:
                total = total + contribution
            if len(column) > 1:
                total = total * total.dtype.type(1 / len(column))
            mean.append(np.asarray(total).astype(own_type))
        return [mean] * len(totals)

    # --- queues -----------------------------------------------------------------------------------

    def _outfed(self, outfeed: FeedBinding, runs: int) -> list[Array]:
        """Return what an outfeed keeps: one array for each place of its elements."""
        columns = [self.given[n] for n in outfeed.places]
        if len({len(column) for column in columns}) > 1:
            raise UnsupportedError(
                "E0466",
                f"there is no reference for the outfeed {printable(outfeed.name)!r}: some of its "
                "results come from each micro-batch, others from each update",
                hint="give them outfeeds of their own",
            )
        if outfeed.reduction:
            return [_reduced(column, outfeed.reduction, runs) for column in columns]
        kept_columns = [_kept(column, outfeed.mode) for column in columns]
        return [np.stack([_row(arrays) for arrays in column]) for column in kept_columns if column]


def _row(arrays: Sequence[Array]) -> Array:
    return arrays[0] if len(arrays) == 1 else np.stack(arrays)


def _kept(column: list[list[Array]], mode: str) -> list[list[Array]]:
    """Return the elements of one run of a session that a mode keeps."""
    asked = parse_mode(mode or "all")
    match asked.kind:
        case "first":
            return column[:1]
        case "last":
            return column[-1:]
        case "every":
            return column[asked.every - 1 :: asked.every]
        case _:
            return column


def _reduced(column: Sequence[Sequence[Array]], reduction: str, runs: int) -> Array:
    """Return the sum or mean of each run of the program, in the type that the device adds up in."""
    rows_per_run = len(column) // runs
    reduced = []
    for run in range(runs):
        rows = [_row(arrays) for arrays in column[run * rows_per_run : (run + 1) * rows_per_run]]
        kind = _sum_dtype(rows[0], reduction)
        total = np.zeros(rows[0].shape, kind)
        for row in rows:
            total = total + row.astype(kind)
        reduced.append(total / kind.type(rows_per_run) if reduction == "mean" else total)
    return np.stack(reduced)


def _sum_dtype(array: Array, reduction: str) -> np.dtype[np.generic]:
    """Return f32 for narrower floats and means of whole numbers, else the array's own type."""
    is_float = array.dtype.kind in "fc" or "float" in array.dtype.name
    narrow = is_float and array.dtype.itemsize < 4
    return np.dtype(np.float32) if narrow or (not is_float and reduction == "mean") else array.dtype


def result_shapes(module: Module) -> list[tuple[str, tuple[int, ...]]]:
    """Return element type and shape of each result of a module, arrays counted."""
    return [
        (leaf.element_type.name, leaf.dimensions)
        for leaf in array_leaves(module.entry.program_shape.result)
    ]
