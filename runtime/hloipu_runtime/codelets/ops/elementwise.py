"""The elementwise codelet: an expression on operands that broadcast into the result."""

from collections.abc import Callable, Sequence
from functools import cached_property
from operator import itemgetter
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from hloipu_runtime.codelets.core.codelet import Codelet, Index, Indexing, codelet
from hloipu_runtime.codelets.core.expression_form import Expression
from hloipu_runtime.codelets.core.straight import Call, Straight
from hloipu_runtime.codelets.core.tensors import Array, Block, Blocks, Bound, Sizes, Tensors
from hloipu_runtime.codelets.costs.elementwise import elementwise_work
from hloipu_runtime.codelets.costs.expression_loops import expression_bytes, single_op
from hloipu_runtime.element_types import ELEMENT_TYPES
from hloipu_runtime.kernels.core.storage import storage_dtype
from hloipu_runtime.machine.costs import TileWork
from hloipu_runtime.machine.model import Machine

if TYPE_CHECKING:
    from hloipu_runtime.codelets.core.expression import Plan


class _Arrangement(NamedTuple):
    """How an operand's dimensions are put in the result's order, with 1 where it has none."""

    order: tuple[int, ...]
    places: tuple[bool, ...]
    """For each dimension of the result: whether the operand has it."""

    @property
    def is_simple(self) -> bool:
        """Whether the operand has the last dimensions of the result, in order."""
        count = len(self.order)
        return self.order == tuple(range(count)) and all(self.places[len(self.places) - count :])


@codelet
class Elementwise(Codelet):
    """Computes an expression for each element of the result.

    Dimension d of operand k follows dimension `labels[k][d]` of the results, which all have `rank`
    dimensions and one shape. An operand repeats along dimensions that it does not name.
    """

    name: ClassVar[str] = "elementwise"
    is_compiled: ClassVar[bool] = True
    whole_parts: ClassVar[bool] = True
    expression: Expression
    labels: tuple[tuple[int, ...], ...]
    rank: int

    @property
    def code_bytes(self) -> int:  # type: ignore[override]  # nobody writes it
        """Of code made of the expression; assumed."""
        return expression_bytes([self.expression], len(self.labels) + len(self.expression.results))

    @property
    def code_kind(self) -> str:
        """That of its op, where it is one."""
        return f"{self.name}-{single_op(self.expression)}"

    @property
    def repeats(self) -> Sizes | None:  # type: ignore[override]  # nobody writes it
        """The labels of the only operand, in order, where that is the only result."""
        expression = self.expression
        if len(self.labels) != 1 or expression.nodes or expression.results != (0,):
            return None
        (labels,) = self.labels
        return labels if labels == tuple(sorted({*labels})) else None

    def indexing(self, operands: Tensors, results: Tensors) -> Indexing:
        """Return one label for each dimension of the result."""
        place = tuple(Index(d) for d in range(self.rank))
        return Indexing(
            results[0].shape,
            tuple(tuple(Index(label) for label in labels) for labels in self.labels),
            (place,) * len(results),
        )

    def run(self, operands: Blocks, results: Blocks) -> list[Array]:
        """Compute the expression on all parts at once."""
        run = self.bound(operands, results)
        return list(run([block.data for block in operands], [block.array for block in results]))

    def bound(self, operands: Blocks, results: Blocks) -> Bound:
        """Return the expression's plan for these sizes, operands arranged before it."""
        target = results[0]
        shapes, moved = self._arranged(operands, target)
        compute = self._plan.bound(shapes, target.grid + target.part)
        if not moved:
            return compute

        def run(arrays: Sequence[Array], outs: Sequence[Array | None]) -> Sequence[Array]:
            arranged = list(arrays)
            for k, order, index in moved:
                arranged[k] = arrays[k].transpose(order)[index]
            return compute(arranged, outs)

        return run

    def straight(self, operands: Blocks, results: Blocks) -> Straight | None:
        """Return the arrangements and the expression's nodes, unless large arrays are walked."""
        shapes, moved = self._arranged(operands, results[0])
        straight = self._plan.straight(shapes, results[0].grid + results[0].part)
        if straight is None or not moved:
            return straight
        last = max(
            (*straight.constants, *straight.results, *(c.number for c in straight.calls)), default=0
        )
        arranged = {}
        calls = []
        for n, (k, order, index) in enumerate(moved, max(last, len(operands)) + 1):
            arranged[k] = n
            calls.append(
                Call(_arranging(order, index), (k,), n, shapes[k], None,
                     is_fresh=False, takes_out=False, in_place=False, is_view=True)
            )  # fmt: skip
        for call in straight.calls:
            calls.append(
                call._replace(
                    arguments=tuple(arranged.get(number, number) for number in call.arguments)
                )
            )
        results_of = tuple(arranged.get(number, number) for number in straight.results)
        return straight._replace(calls=tuple(calls), results=results_of)

    straight_on_grid = straight

    def _arranged(
        self, operands: Blocks, target: Block
    ) -> tuple[list[Sizes], list[tuple[int, Sizes, tuple[Any, ...]]]]:
        """Return the operands' shapes as the expression sees them, and how some get theirs."""
        axes = len(target.grid)
        shapes = [block.grid + block.part for block in operands]
        moved = []
        for k, arrangement in self._rearranged:
            ordered = iter([shapes[k][axes + d] for d in arrangement.order])
            if not axes and arrangement.is_simple:
                shapes[k] = tuple(ordered)  # behind new dimensions, which numpy adds by itself
                continue
            moved.append((k, *_arrangement_of(arrangement, axes)))
            shapes[k] = target.grid + tuple(next(ordered) if x else 1 for x in arrangement.places)
        return shapes, moved

    def work(self, machine: Machine, operands: Tensors, results: Tensors) -> TileWork:
        """Return the cycles of one tile, by the tables of popops."""
        return elementwise_work(
            machine,
            self.expression,
            self.labels,
            results[0].shape,
        )

    def may_overwrite(self, operand: int) -> bool:
        """Whether an operand has the result's dimensions, in order, and elements of its width.

        And it is not a result itself, which would be lost.
        """
        if operand in self.expression.results:
            return False
        before = self.expression.operand_types[operand]
        after = self.expression.result_types[0]
        return (
            self.labels[operand] == tuple(range(self.rank))
            and storage_dtype(before) == storage_dtype(after)
            and ELEMENT_TYPES[before].bits == ELEMENT_TYPES[after].bits
        )

    @cached_property
    def _plan(self) -> "Plan":
        from hloipu_runtime.codelets.core.expression import plan_of

        return plan_of(self.expression)

    @cached_property
    def _rearranged(self) -> tuple[tuple[int, _Arrangement], ...]:
        """Operands whose dimensions are not simply those of the result."""
        every = tuple(range(self.rank))
        rearranged = []
        for k, labels in enumerate(self.labels):
            if labels != every:
                order = tuple(sorted(range(len(labels)), key=labels.__getitem__))
                rearranged.append((k, _Arrangement(order, tuple(d in labels for d in every))))
        return tuple(rearranged)


def _arranging(order: Sizes, index: tuple[Any, ...]) -> Callable[[Array], Array]:
    """Return what transposes an array and gives it new axes."""
    if order == tuple(sorted(order)):
        return itemgetter(index)
    return lambda x: x.transpose(order)[index]


def _arrangement_of(arrangement: _Arrangement, axes: int) -> tuple[Sizes, tuple[Any, ...]]:
    """Return an arrangement behind `axes` grid axes as a transposition and an index."""
    order = (*range(axes), *(axes + d for d in arrangement.order))
    kept = (slice(None),) * axes
    return order, kept + tuple(slice(None) if has else None for has in arrangement.places)
