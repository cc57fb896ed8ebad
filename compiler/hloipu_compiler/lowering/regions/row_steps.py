"""Compute sets of a row region: when each value is computed, kept or recomputed.

A value of all elements is computed in the step of its first reader. Where a later step reads it
too, it is kept in the place of a result that is written later; where there is no such place, it is
computed again from what there is.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from hloipu_compiler.lowering.core.values import Scalar, TileTensor
from hloipu_compiler.lowering.regions.flat_rows import FlatRows, Operand, Reduction
from hloipu_runtime.codelets.core.constants import text_node
from hloipu_runtime.codelets.core.expression_form import Expression, Node
from hloipu_runtime.codelets.ops.row_region import RowRegion
from hloipu_runtime.element_types import ELEMENT_TYPES
from hloipu_runtime.reached import reached

_MOST_ROUNDS = 8
"""Reductions that follow from each other; beyond that values are computed again too often."""

_DEAR = frozenset(
    "exponential log tanh logistic divide rsqrt sqrt power sine cosine erf cbrt atan2 tan "
    "exponential-minus-one log-plus-one remainder".split()
)


def row_region(rows: FlatRows) -> tuple[RowRegion, list[TileTensor], list[bool]] | None:
    """Return the codelet of a region, its operands and which of these die.

    None: it is too deep, a result repeats what is one number of a row, or no operand tells a size.
    """
    steps = Steps(rows, keeps_in_places=True)
    if steps.is_too_deep:
        return None
    written = steps.written()
    region = written[0]
    full = [rows.ops[n].is_full for n in rows.results]
    followed = {d for labels in region.labels for d in labels}
    if any(size > 1 and d not in followed for d, size in enumerate(rows.space)):
        return None
    return written if full == [region.is_full(n) for n in region.results] else None


@dataclass
class Step:
    """An expression in the making, in numbers of the region's ops."""

    order: list[int] = field(default_factory=list)
    """Ops that are computed, each after its arguments."""
    reads: dict[int, None] = field(default_factory=dict)
    """Ops that come from outside of the step."""
    results: dict[int, None] = field(default_factory=dict)


class Steps:
    """Ops by step: even ones compute numbers of rows, odd ones elements, and end in reductions.

    `keeps_in_places`: whether values wait for later steps in the places of results, too, where
    these are written later; else only results do.
    """

    def __init__(self, rows: FlatRows, *, keeps_in_places: bool) -> None:
        self.rows = rows
        self.ops = rows.ops
        self.depth = self._depths()
        self.step = self._when()
        self.last = max(self.step.values(), default=0)
        self.kept = self._kept(keeps_in_places)

    @property
    def is_too_deep(self) -> bool:
        """Whether values would be computed again too often."""
        return self.last > 2 * _MOST_ROUNDS

    def _arguments(self, number: int) -> tuple[int, ...]:
        what = self.ops[number].what
        if isinstance(what, Node):
            return what.arguments
        return (what.value,) if isinstance(what, Reduction) else ()

    def _depths(self) -> list[int]:
        """Return how many reductions, one after the other, each value follows from."""
        depth: list[int] = []
        for number, op in enumerate(self.ops):
            before = max((depth[x] for x in self._arguments(number)), default=0)
            depth.append(before + isinstance(op.what, Reduction))
        return depth

    def _when(self) -> dict[int, int]:
        """Return the step of each op that computes something."""
        moments: dict[int, int] = {}
        first_reader: dict[int, int] = {}
        for number in range(len(self.ops) - 1, -1, -1):
            op = self.ops[number]
            if isinstance(op.what, Reduction):
                step = 2 * self.depth[number] - 1
            elif isinstance(op.what, Node) and not op.is_full:
                step = 2 * self.depth[number]
            elif isinstance(op.what, Node):
                own = 2 * self.depth[number] + 1
                step = own if number in self.rows.results else first_reader.get(number, own)
            else:
                continue
            moments[number] = step
            for x in self._arguments(number):
                first_reader[x] = min(step, first_reader.get(x, step))
        return moments

    def _kept(self, keeps_in_places: bool) -> frozenset[int]:
        last: dict[int, int] = {}
        for number, step in self.step.items():
            for x in self._arguments(number):
                last[x] = max(step, last.get(x, step))
        crossing = [
            x
            for x, step in last.items()
            if x in self.step and self.ops[x].is_full and step > self.step[x]
        ]
        results = [n for n in dict.fromkeys(self.rows.results) if self.ops[n].is_full]
        kept = {x for x in crossing if x in results}
        free = [n for n in results if n not in kept] if keeps_in_places else []
        for x in sorted(crossing, key=lambda x: (-self._price(x), x)):
            if x in kept:
                continue
            bits = ELEMENT_TYPES[self.ops[x].element_type].bits
            place = next(
                (
                    n
                    for n in free
                    if self.step[n] >= last[x]
                    and ELEMENT_TYPES[self.ops[n].element_type].bits >= bits
                ),
                None,
            )
            if place is not None:
                free.remove(place)
                kept.add(x)
        return frozenset(kept)

    def _price(self, number: int) -> int:
        """Return about how many vector ops it takes to compute a value again."""

        def node(x: int) -> Node | None:
            what = self.ops[x].what
            return what if isinstance(what, Node) and self.ops[x].is_full else None

        within = reached([number], lambda x: n.arguments if (n := node(x)) else ())
        return sum(5 if n.op in _DEAR else 1 for n in map(node, within) if n)

    def filled(self) -> dict[int, Step]:
        """Return each step with what it computes, reads and leaves."""
        steps: dict[int, Step] = {}
        placed: dict[int, set[int]] = {}
        for number in range(len(self.ops)):
            if number in self.step:
                at = self.step[number]
                step = steps.setdefault(at, Step())
                done = placed.setdefault(at, set())
                what = self.ops[number].what
                if isinstance(what, Reduction):
                    self._bring(step, done, at, what.value)
                    step.results[what.value] = None
                else:
                    self._compute(step, done, at, number)
        for at, step in steps.items():
            for number in step.order:
                if self.step.get(number) == at and (
                    number in self.rows.results
                    or number in self.kept
                    or not self.ops[number].is_full
                ):
                    step.results[number] = None
        return steps

    def _compute(self, step: Step, done: set[int], at: int, number: int) -> None:
        """Put an op into a step, and before it what its arguments take."""
        stack = [number]
        while stack:
            top = stack[-1]
            if top in done:
                stack.pop()
                continue
            waiting = [
                number
                for number in self._arguments(top)
                if number not in done and not self._outside(step, at, number)
            ]
            if waiting:
                stack += waiting
                continue
            done.add(top)
            step.order.append(top)
            stack.pop()

    def _bring(self, step: Step, done: set[int], at: int, number: int) -> None:
        if number not in done and not self._outside(step, at, number):
            self._compute(step, done, at, number)

    def _outside(self, step: Step, at: int, number: int) -> bool:
        what = self.ops[number].what
        if isinstance(what, Scalar):
            return False
        earlier = number in self.step and self.step[number] < at
        same = number in self.step and self.step[number] == at
        if isinstance(what, Operand) or (
            (earlier or (same and isinstance(what, Reduction)))
            and (not self.ops[number].is_full or number in self.kept)
        ):
            step.reads[number] = None
            return True
        return False

    def written(self) -> tuple[RowRegion, list[TileTensor], list[bool]]:
        """Return the codelet, with values numbered as it numbers them."""
        rows = self.rows
        steps = self.filled()
        operands = [n for n, op in enumerate(self.ops) if isinstance(op.what, Operand)]
        value = {n: k for k, n in enumerate(operands)}
        count = len(operands)
        expressions, sources, reductions = [], [], []
        for place, at in enumerate(sorted(steps)):
            step = steps[at]
            expressions.append(self.expression(step, tuple(step.reads), tuple(step.results)))
            sources.append(tuple(value[n] for n in step.reads))
            value_by_result = {n: count + k for k, n in enumerate(step.results)}
            value.update({n: number for n, number in value_by_result.items() if n not in value})
            count += len(value_by_result)
            for number in sorted(n for n, s in self.step.items() if s == at):
                what = self.ops[number].what
                if isinstance(what, Reduction):
                    reductions.append((place, value_by_result[what.value], what.monoid, what.init))
                    value[number] = count
                    count += 1
        row_operands = [what for n in operands if isinstance(what := self.ops[n].what, Operand)]
        codelet = RowRegion(
            labels=tuple(operand.labels for operand in row_operands),
            rank=len(rows.space),
            dimensions=rows.dimensions,
            operand_types=tuple(operand.held.element_type for operand in row_operands),
            expressions=tuple(expressions),
            sources=tuple(sources),
            reductions=tuple(reductions),
            results=tuple(value[n] for n in rows.results),
        )
        return (
            codelet,
            [operand.held for operand in row_operands],
            [rows.last_uses[n] for n in operands],
        )

    def needed(self, step: Step, results: Iterable[int]) -> frozenset[int]:
        """Return the ops of a step, and of what it reads, that some of its results follow from."""
        needed = set(results)
        for number in reversed(step.order):
            if number in needed:
                needed.update(self._arguments(number))
        return frozenset(needed)

    def expression(
        self, step: Step, reads: tuple[int, ...], results: tuple[int, ...]
    ) -> Expression:
        """Return what some of a step's results are of what they need that it reads."""
        local = {n: k for k, n in enumerate(reads)}
        nodes: list[Node] = []
        needed = self.needed(step, results)
        for number in step.order:
            if number not in needed:
                continue
            what = self.ops[number].what
            if isinstance(what, Node):
                node = what._replace(arguments=tuple(local[number] for number in what.arguments))
            elif isinstance(what, Scalar):
                node = text_node(what.text, what.element_type)
            else:
                raise TypeError(f"op {number} is not computed in a step")
            local[number] = len(reads) + len(nodes)
            nodes.append(node)
        return Expression(
            tuple(self.ops[n].element_type for n in reads),
            tuple(nodes),
            tuple(local[n] for n in results),
        )
