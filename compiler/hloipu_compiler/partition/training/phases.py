"""Phases of a training step: forward, backward and update, and what passes between them.

Micro-batches run forward and backward, then the update runs once, on their gradients combined.
State that the forward pass makes anew without a gradient (statistics of batch normalisation, keys
of random numbers) goes from micro-batch to micro-batch.
"""

from collections.abc import Iterable, Sequence, Set
from functools import cached_property

from hloipu_compiler.ir.graph import Computation
from hloipu_compiler.ir.shapes import ArrayShape, sizes_of
from hloipu_compiler.partition.training.carried_state import MovingState, has_slope, is_made_forward
from hloipu_compiler.partition.training.errors import StagingError
from hloipu_compiler.partition.training.gradient_ends import check_ends
from hloipu_compiler.partition.training.gradient_search import walk_on, walked
from hloipu_compiler.partition.training.gradient_walk import GradientWalk, is_number
from hloipu_compiler.partition.training.losses import losses_of, no_loss
from hloipu_compiler.partition.training.marks import made_by_each, marked_phases
from hloipu_compiler.partition.training.op_phases import (
    NonTrainableState,
    OpPhases,
    counts_by,
    is_moving_average,
)
from hloipu_compiler.partition.training.reach import (
    Mask,
    ancestors,
    dependants,
    optimizing,
    parameter_positions,
    result_positions,
)
from hloipu_compiler.partition.training.separation import (
    SwallowedModelError,
    check_bases,
    check_crossings,
    check_noise,
    check_order,
    check_products,
    check_statistics,
    check_update,
    no_gradient,
)
from hloipu_compiler.partition.training.step_phases import UPDATE, Gradient, Pair, Phases, Roles


def phases_of(entry: Computation, roles: Roles) -> Phases:
    """Return the phases of a step.

    Raises StagingError: E0501 where no loss is among the results, E0502 where the update reads what
    differs from micro-batch to micro-batch and is no gradient, E0503 where the update is not all
    after the gradients, E0504 where no gradient is found, E0505 where state goes from micro-batch
    to micro-batch and the update reads it.
    """
    first = best = None
    losses = losses_of(entry, roles.state, roles.data, roles.loss)
    for loss in losses:
        finding = _Finding(entry, roles, loss)
        first = first or finding
        if finding.doubtful:
            continue
        if best is None or finding.is_better_than(best):
            best = finding
        if not best.statistics and isinstance(best.outcome, Phases):
            break
    if first is None:
        raise no_loss(entry, [pair.result for pair in roles.state])
    outcome = (best or first).outcome
    if isinstance(outcome, SwallowedModelError):
        outcome = _together(entry, roles, losses) or outcome
    if isinstance(outcome, StagingError):
        raise outcome
    return outcome


def _together(entry: Computation, roles: Roles, losses: Sequence[int]) -> Phases | None:
    """Return what is found with several results as losses, each of a model of its own."""
    for count in range(2, len(losses) + 1):
        finding = _Finding(entry, roles, losses[0], losses[1:count])
        if not finding.doubtful and isinstance(finding.outcome, Phases):
            return finding.outcome
    return None


class _Finding:
    """The masks of one step, and what is worked out from them."""

    def __init__(
        self, entry: Computation, roles: Roles, loss: int, beside: Sequence[int] = ()
    ) -> None:
        """Look over a step whose loss is a result; `beside`: results that are losses as well."""
        self.entry = entry
        self.roles = roles
        self.loss = loss
        self.parameters = parameter_positions(entry)
        self.results = result_positions(entry)
        self.marks = marked_phases(entry)
        self.data = dependants(entry, self._at(roles.data))
        goal = [self._result(number) for number in (loss, *beside) if number >= 0]
        goal += [position for position, phase in self.marks.items() if phase == "fwd"]
        self.forward = ancestors(entry, goal)
        self.kept = [pair for pair in roles.state if self._is_kept(pair)]
        self.per_micro_batch = [pair for pair in roles.state if self._is_counter(pair)]
        self.varying = self._varying()
        self.kinds = MovingState(
            entry, self.varying, self.forward, self._at([pair.parameter for pair in roles.state])
        )
        self._hand_on()
        self.non_trainable = self._non_trainable(goal)
        walk = self._walk_of_weights()
        if self._count_with(walk.gradients):
            walk = self._walk_of_weights()
        count = len(self.per_micro_batch)
        self.doubtful = self._tell_statistics(walk)
        self._count_samples()
        self._count_with([self._result(pair.result) for pair in self.per_micro_batch])
        self._walk = walk if len(self.per_micro_batch) == count else None
        """From weights to their gradients, where all state is still taken for what it was then."""

    def phases(self) -> Phases:
        """Return what was found.

        Raises what `phases_of` raises, E0504 for state in doubt: what looks like a weight that the
        loss has no part in.
        """
        walk, self._walk = self._walk or self._walk_of_weights(), None
        said = {at for at in made_by_each(self.entry) if self.marks.get(at) == UPDATE}
        given = [at for at in self.results if at in said]
        ends = [*(self._result(pair.result) for pair in self.updated), *given]
        walk_on(walk, ends, self.kinds.sloped)
        check_order(self.entry, walk)
        if self.doubtful:
            raise StagingError(
                "E0504",
                f"the loss, result {self.loss}, has no gradient for the new value of parameter "
                f"{self.doubtful[0].parameter}, which depends on data and weights all the same",
                hint="name the loss of all weights with --loss-output N, or say of state that "
                "each micro-batch makes anew that its role is carry",
            )
        self._check(walk)
        return self._phases(walk)

    def is_made_of(self, other: "_Finding") -> bool:
        """Whether its loss is made of the other's.

        As the sum of losses is, each of which is weighed by a number that is learned: of the sum
        alone have these numbers a gradient, and are no statistics.
        """
        at = -1 if other.loss < 0 else self._result(other.loss)
        return at >= 0 and bool(self.forward[at])

    def is_better_than(self, other: "_Finding") -> bool:
        """Whether it finds phases where the other does not, or leaves less to statistics.

        The latter tells something of a loss that is made of the other's alone.
        """
        if not isinstance(self.outcome, Phases):
            return False
        if not isinstance(other.outcome, Phases):
            return True
        return self.is_made_of(other) and self.statistics < other.statistics

    @cached_property
    def outcome(self) -> Phases | StagingError:
        """What is found, or why nothing is."""
        try:
            return self.phases()
        except StagingError as error:
            return error

    def _varying(self) -> Mask:
        """Return what differs by micro-batch, with the state known so far that they hand on."""
        seeds = (*self.roles.data, *(pair.parameter for pair in self.per_micro_batch))
        return dependants(self.entry, [*self._at(seeds), *made_by_each(self.entry)])

    def _other_state(self) -> list[Pair]:
        known = {*self.kept, *self.per_micro_batch}
        return [pair for pair in self.roles.state if pair not in known]

    def _hand_on(self) -> None:
        """Take state for such of micro-batches that the forward pass reads and hands on."""
        self.per_micro_batch += [
            pair
            for pair in self._other_state()
            if self._is_read_forward(pair.parameter)
            and self.kinds.is_handed_on(self._result(pair.result))
            and not self._looks_updated(pair)
        ]
        self.varying = self.kinds.varying = self._varying()

    def _count_with(self, per_batch: Iterable[int]) -> bool:
        """Take whole numbers that are read to make what each micro-batch makes; return if any.

        Such as the key by which a second loss draws, which no result tells of, or the place in a
        queue that is written next.
        """
        behind = ancestors(self.entry, per_batch)
        counted = [
            pair
            for pair in self._other_state()
            if any(behind[i] for i in self.parameters[pair.parameter])
            and not self.data[self._result(pair.result)]
            and not has_slope(self.entry.instructions[self._result(pair.result)])
            and self.marks.get(self._result(pair.result)) != UPDATE
        ]
        self.per_micro_batch += counted
        self.updated = self._other_state()
        self.varying = self.kinds.varying = self._varying()
        return bool(counted)

    def _non_trainable(self, losses: Sequence[int]) -> set[Pair]:
        """Return the state that the forward pass reads and that is no weight of the losses."""
        rest = self._other_state()
        read = [pair for pair in rest if self._is_read_forward(pair.parameter)]
        others = [pair for pair in rest if pair not in set(read)]
        aside = [(self.parameters[pair.parameter], self._result(pair.result)) for pair in others]
        told = NonTrainableState(self.entry, self.kinds, self.marks, losses, aside)
        return {
            pair
            for pair in read
            if told.holds(self.parameters[pair.parameter], self._result(pair.result))
        }

    def _looks_updated(self, pair: Pair) -> bool:
        """Whether an array is what it was and a change, as weights that a second loss reads are."""
        own = frozenset(self.parameters[pair.parameter])
        position = self._result(pair.result)
        op = self.entry.instructions[position]
        if op.opcode not in ("add", "subtract") or is_number(op) or own.isdisjoint(op.operands):
            return False
        return not is_moving_average(self.entry, own, position)

    def _walk_of_weights(self) -> GradientWalk:
        rest = self._other_state()
        read = {pair for pair in rest if self._is_read_forward(pair.parameter)}
        weights = [pair for pair in rest if pair in read and pair not in self.non_trainable]
        aside = [self.parameters[pair.parameter] for pair in rest if pair not in read]
        learned = [self._result(pair.result) for pair in weights]
        optimized = optimizing(self.entry, aside, learned, self.varying, self.forward)
        ends = [i for i in learned if has_slope(self.entry.instructions[i])]
        sloped = self.kinds.sloped
        return walked(self.entry, self.varying, optimized, self.forward, self.marks, sloped, ends)

    def _tell_statistics(self, walk: GradientWalk) -> list[Pair]:
        """Take state apart that no gradient goes into; return what is in doubt.

        Known so far are the gradients of weights. A gradient that the loss itself is made of, as
        that of a product with data is, tells nothing.
        """
        after = dependants(self.entry, [i for i in walk.gradients if not self.forward[i]])
        doubtful = []
        known = len(self.per_micro_batch)
        shapes = {
            sizes_of(self.entry.instructions[self._result(pair.result)].shape)
            for pair in self._other_state()
            if self._is_read_forward(pair.parameter)
        }
        for pair in self._other_state():
            position = self._result(pair.result)
            if after[position] or not self.varying[position]:
                continue
            if position in walk.update or position in walk.gradients:
                continue
            if self.marks.get(position) == UPDATE:
                continue  # the dump itself says that the update makes it
            if self._is_made_by_each(pair, shapes):
                self.per_micro_batch.append(pair)
            else:
                doubtful.append(pair)
        self.statistics = len(self.per_micro_batch) - known
        self.updated = self._other_state()
        self.varying = self._varying()
        return doubtful

    def _count_samples(self) -> None:
        """Take counts that no state of the update reads, if they count micro-batches.

        Those do that such state reads as each of them makes anew, a mean, say. Of others, which at
        most results read, those do that go up by several samples at once, and floats beside sums of
        metrics, which will be divided by them. Whole numbers that go up by ones count updates.
        """
        steps = {pair: self._counts_by(pair) for pair in self.updated}
        others = [self._result(pair.result) for pair in self.updated if steps[pair] is None]
        for_update = ancestors(self.entry, others)
        for_each = ancestors(
            self.entry, [self._result(pair.result) for pair in self.per_micro_batch]
        )
        counting = []
        for pair, step in steps.items():
            position = self._result(pair.result)
            values = (*self.parameters[pair.parameter], position)
            if step is None or any(for_update[i] for i in values):
                continue
            is_beside = self.statistics > 0 and has_slope(self.entry.instructions[position])
            if any(for_each[i] for i in values) or abs(step) != 1 or is_beside:
                counting.append(pair)
        self.per_micro_batch += counting
        self.updated = self._other_state()
        self.varying = self.kinds.varying = self._varying()

    def _counts_by(self, pair: Pair) -> float | None:
        position = self._result(pair.result)
        if self.marks.get(position) == UPDATE:
            return None
        return counts_by(self.entry, frozenset(self.parameters[pair.parameter]), position)

    def _is_made_by_each(self, pair: Pair, weights: Set[tuple[int, ...]]) -> bool:
        position = self._result(pair.result)
        if self.kinds.is_statistic(position):
            return True
        own = frozenset(self.parameters[pair.parameter])
        if self.kinds.is_shifted(position, own):
            return True
        if pair in self.non_trainable:
            return is_moving_average(self.entry, own, position)
        return self._is_metric(pair, weights)

    def _is_metric(self, pair: Pair, weights: Set[tuple[int, ...]]) -> bool:
        """Whether state is a number, or of no weight's shape, that something is added to."""
        position = self._result(pair.result)
        op = self.entry.instructions[position]
        if sizes_of(op.shape) and sizes_of(op.shape) in weights:
            return False
        return self.kinds.is_added_to(self.parameters[pair.parameter], position)

    def _at(self, parameters: Sequence[int]) -> list[int]:
        return [position for number in parameters for position in self.parameters[number]]

    def _result(self, number: int) -> int:
        position = self.results[number]
        if position is None:
            raise StagingError(
                "E0500",
                f"result {number} is an element of a tuple that an op makes whole",
                hint="take it out with get-tuple-element",
            )
        return position

    def _is_read_forward(self, parameter: int) -> bool:
        return any(self.forward[position] for position in self.parameters[parameter])

    def _is_counter(self, pair: Pair) -> bool:
        """Whether it is state of random numbers or a count that the forward pass reads.

        Floats count where a constant is added, or where the forward pass makes them anew itself,
        without data, such as the vector of a power iteration.
        """
        if pair.parameter in self.roles.carried:
            return True
        position = self._result(pair.result)
        shape = self.entry.instructions[position].shape
        if self.marks.get(position) == UPDATE:
            return False
        if self.data[position] or not self._is_read_forward(pair.parameter) or self._is_kept(pair):
            return False
        if has_slope(self.entry.instructions[position]):
            made_forward = is_made_forward(self.entry, self.forward, position)
            return made_forward or self._counts_by(pair) is not None
        return isinstance(shape, ArrayShape)

    def _is_kept(self, pair: Pair) -> bool:
        return self._result(pair.result) in self.parameters[pair.parameter]

    def _check(self, walk: GradientWalk) -> None:
        carried = {i for pair in self.per_micro_batch for i in self.parameters[pair.parameter]}
        check_crossings(self.entry, walk, carried)
        keys = [i for i in sorted(carried) if not has_slope(self.entry.instructions[i])]
        check_noise(self.entry, walk, [*keys, *made_by_each(self.entry)], self.data)
        floats = [i for i in sorted(carried) if has_slope(self.entry.instructions[i])]
        check_statistics(self.entry, walk, floats)
        if not walk.gradients:
            new = [pair.result for pair in self.roles.state]
            raise no_gradient(self.entry, [pair.parameter for pair in self.updated], new)
        for pair in self.updated:
            if self._is_read_forward(pair.parameter):
                check_update(self.entry, walk, pair.parameter, self._result(pair.result))
        check_bases(self.entry, walk, self.kinds.sloped)
        check_products(self.entry, walk, self.kinds.sloped)
        check_ends(self.entry, walk, self.kinds.sloped)

    def _phases(self, walk: GradientWalk) -> Phases:
        ops = OpPhases(
            self.entry,
            self.results,
            {pair.result for pair in self.roles.state},
            [self._result(pair.result) for pair in self.per_micro_batch],
            walk,
            walk.late(),
            self.forward,
            self.varying,
            self.marks,
        )
        return Phases(
            ops.phases(),
            self._gradients(walk),
            tuple(self.updated),
            tuple(sorted(self.per_micro_batch)),
            tuple(self.kept),
            self.loss,
            tuple(ops.late_results()),
            tuple(ops.early_results()),
        )

    def _gradients(self, walk: GradientWalk) -> tuple[Gradient, ...]:
        weights: dict[int, list[int]] = {position: [] for position in sorted(walk.gradients)}
        walk.update, kept = set(), walk.update
        sources = walk.sources()
        walk.update = kept
        for pair in self.updated:
            if self._is_read_forward(pair.parameter):
                for position in sources[self._result(pair.result)]:
                    weights.get(position, []).append(pair.parameter)
        return tuple(
            Gradient(position, tuple(parameters)) for position, parameters in weights.items()
        )
