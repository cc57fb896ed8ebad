"""Writes candidate lowerings of an op, prices each, and keeps the cheapest."""

from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

from hloipu_compiler.lowering.core.builder import Builder
from hloipu_compiler.lowering.core.numbering import Scope
from hloipu_compiler.lowering.core.values import TileTensor, Value
from hloipu_compiler.planners.redistribution import redistribution
from hloipu_runtime.costs.costs import Costs
from hloipu_runtime.costs.estimate import estimate
from hloipu_runtime.costs.step_costs import step_charges
from hloipu_runtime.program import steps as s
from hloipu_runtime.program.mapping import Mapping
from hloipu_runtime.program.program import Program

Candidate = Callable[[], Sequence[Value] | None]
"""Writes steps and returns the results' leaves; None: it cannot be done so."""


def cheapest(
    builder: Builder, candidates: Sequence[Candidate], key: Hashable = None
) -> Sequence[Value]:
    """Write an op by the candidate that takes fewest cycles; of equal ones the last.

    Results that lie elsewhere than the first candidate leaves them are taken to have to come there:
    who reads them has been thought of where operands lie, which the first candidate follows. At
    least one of the candidates must do. Ops of one key, if it is not None, all take the first's
    choice, and the first what it took in another program of the module, by the same tuning.
    """
    chosen, before = builder.chosen.by_key, builder.chosen_before.by_key
    tuned = key, builder.tuning_here
    known = None if key is None else chosen.get(key, before.get(tuned))
    if known is not None:
        leaves = candidates[known]()
        if leaves is not None:
            chosen[key] = known
            return leaves
    best: tuple[int, int] | None = None
    wanted: dict[int, Mapping] = {}
    for number, candidate in enumerate(candidates):
        moment = _Moment.of(builder)
        leaves = candidate()
        if leaves is not None:
            cycles = moment.cycles_since(builder) + _redistribution_cycles(builder, leaves, wanted)
            if best is None or cycles <= best[0]:
                best = cycles, number
                if number == len(candidates) - 1:
                    chosen[key] = before[tuned] = number
                    return leaves
        moment.restore(builder)
    leaves = None if best is None else candidates[best[1]]()
    if best is None or leaves is None:
        raise ValueError("no candidate writes the op's steps")
    chosen[key] = before[tuned] = best[1]
    return leaves


def _redistribution_cycles(
    builder: Builder, leaves: Sequence[Value], wanted: dict[int, Mapping]
) -> int:
    """Return the cycles of redistributing results to the mappings of the first ones."""
    cycles = 0
    for number, leaf in enumerate(leaves):
        if isinstance(leaf, TileTensor):
            lies = builder.variables[leaf.variable].mapping
            there = wanted.setdefault(number, lies)
            kind, shape = leaf.element_type, leaf.shape
            cycles += redistribution(
                builder.machine, kind, shape, lies, there, builder.code_price
            ).cycles
    return cycles


class _Moment(NamedTuple):
    """How far a builder has come."""

    plain: dict[str, Any]
    """Numbers, texts and records by attribute."""
    lengths: dict[str, int]
    """Of lists and dictionaries, which only grow."""
    scopes: tuple[tuple[Scope, int, frozenset[int], int], ...]
    """Of each block: steps, variables that it may overwrite, copies."""

    @classmethod
    def of(cls, builder: Builder) -> "_Moment":
        """Return what tells this moment from later ones."""
        plain: dict[str, Any] = {}
        lengths: dict[str, int] = {}
        for name, value in vars(builder).items():
            if name == "scopes":
                continue
            if isinstance(value, list | dict):
                lengths[name] = len(value)
            else:
                plain[name] = value
        scopes = tuple(
            (scope, len(scope.steps), frozenset(scope.owned), len(scope.copies))
            for scope in builder.scopes
        )
        return cls(plain, lengths, scopes)

    def restore(self, builder: Builder) -> None:
        for name, value in self.plain.items():
            setattr(builder, name, value)
        for name, length in self.lengths.items():
            _shorten(getattr(builder, name), length)
        builder.scopes[:] = [scope for scope, _, _, _ in self.scopes]
        for scope, steps, owned, copies in self.scopes:
            _shorten(scope.steps, steps)
            _shorten(scope.copies, copies)
            scope.owned.clear()
            scope.owned.update(owned)

    def cycles_since(self, builder: Builder) -> int:
        """Return the cycles of the steps written since; steps before loops count like others."""
        steps = [step for scope, length, _, _ in self.scopes for step in scope.steps[length:]]
        program = Program(
            "",
            builder.machine.name,
            builder.ipus,
            builder.variables,  # type: ignore[arg-type]  # a list does, and is not copied
            (),
            body=s.Sequence(tuple(steps)),
        )
        costs: Costs = step_charges(program, builder.machine)
        return estimate(program, builder.machine, 1, costs).lower_bound_cycles


def _shorten(items: Any, length: int) -> None:
    """Take off what a list or dictionary has grown by."""
    if isinstance(items, list):
        del items[length:]
        return
    while len(items) > length:
        items.popitem()
