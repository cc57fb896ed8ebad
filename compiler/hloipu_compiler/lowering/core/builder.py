"""Program builder: what lowerings call to get constants, copies and results."""

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from hloipu_compiler.errors import CodegenError
from hloipu_compiler.layout.layout import NO_LAYOUT, Layout
from hloipu_compiler.lowering.core.exchanging import Exchanging
from hloipu_compiler.lowering.core.values import Function, Scalar, Spread, TileTensor, Value
from hloipu_compiler.plan.plan import Chosen, Plan
from hloipu_compiler.planners.op_grids import Demand, MovableOp, candidates, cheapest
from hloipu_compiler.planners.placing import Placement, default_placement, moved
from hloipu_compiler.planners.spreading import Spreading, finer, more_even
from hloipu_compiler.planners.tuning import DEFAULT_TUNING, Tuning
from hloipu_runtime.codelets.core.codelet import Codelet, Indexing
from hloipu_runtime.codelets.core.constants import text_node
from hloipu_runtime.codelets.core.expression_form import Expression
from hloipu_runtime.codelets.core.tensors import Tensor
from hloipu_runtime.codelets.ops.elementwise import Elementwise
from hloipu_runtime.element_types import ELEMENT_TYPES
from hloipu_runtime.machine.model import Machine
from hloipu_runtime.program import steps as s
from hloipu_runtime.program.mapping import Mapping, Sizes
from hloipu_runtime.program.program import Queue

Array = np.ndarray[Any, Any]


class Builder(Exchanging):
    """A program under construction: constants, exchanges and compute sets."""

    def __init__(self, machine: Machine, tuning: Tuning = DEFAULT_TUNING) -> None:
        super().__init__(machine, tuning)
        self.elided: list[str] = []
        self.functions: dict[str, Function] = {}
        """Computations that were lowered to be called, by name and IPU."""
        self.callers: dict[str, list[str]] | None = None
        """Computations that call others, by what they call; None: not looked for."""
        self.alive_in: dict[str, list[int]] = {}
        """Bytes alive at each instruction of computations that call what others call, too."""
        self.queues: dict[str, Queue] = {}
        """Of infeed and outfeed ops, by name."""
        self.random_state: TileTensor | None = None
        """What random ops without a state of their own draw from (`randomness.py`)."""
        self.layout: Layout = NO_LAYOUT
        self.preferences: tuple[Demand, ...] = ()
        """Of the users of the instruction that is being lowered, for its result."""
        self.region_preferences: tuple[Demand, ...] = ()
        """For the results of the fusion that is being written op by op."""
        self.chosen = Chosen()
        """Candidates that ops of this program took (`alternatives.py`), ..."""
        self.chosen_before = Chosen()
        """... and ops of other programs of its module, by the tuning besides."""
        self.iterations = 1
        """How often the block at hand runs, as far as that is known."""
        self.destination: int | None = None
        """Variable of a loop that its result is to end in."""
        self.destination_is_free = False
        """Whether nobody reads what is there, this instruction included."""
        self.effectful: frozenset[str] | None = None
        """Computations of the module that do more than compute; None: not looked for yet."""

    def go_by(self, plan: Plan) -> None:
        """Take what a plan knows from other programs of the module."""
        self.product_rooms = plan.product_rooms
        self.chosen_before = plan.chosen or self.chosen_before

    @property
    def function_bodies(self) -> dict[str, s.Sequence]:
        """The functions of the program."""
        return {name: function.body for name, function in self.functions.items()}

    def tile_tensor(self, leaf: Value) -> TileTensor:
        """Return a leaf on tiles: constants get a variable, broadcasts are written out."""
        match leaf:
            case TileTensor():
                return leaf
            case Scalar():
                return self.scalar(leaf)
            case Spread():
                return self._written_out(leaf)
            case _:
                raise CodegenError("E0470", f"{self.origin}: a token has no value on tiles")

    def _written_out(self, leaf: Spread) -> TileTensor:
        kind = leaf.element_type
        if isinstance(leaf.source, Scalar):
            node = text_node(leaf.source.text, kind)
            filled = Elementwise(Expression((), (node,), (0,)), (), len(leaf.shape))
            return self.compute(filled, [], [(kind, leaf.shape)])[0]
        same = Elementwise(Expression((kind,), (), (0,)), (leaf.dimensions,), len(leaf.shape))
        return self.compute(same, [leaf.source], [(kind, leaf.shape)])[0]

    def compute(
        self,
        codelet: Codelet,
        operands: Sequence[TileTensor],
        results: Sequence[tuple[str, Sizes]],
        *,
        last_uses: Sequence[bool] = (),
        placement: Placement | None = None,
    ) -> list[TileTensor]:
        """Append a vertex group, with the exchange that brings its operands to its tiles.

        `last_uses`: operands that nobody reads afterwards, so that a result may take their place.
        """
        operand_tensors = [x.tensor for x in operands]
        result_tensors = [Tensor(*x) for x in results]
        indexing = codelet.indexing(operand_tensors, result_tensors)
        if placement is None:
            placement = self._placement(codelet, indexing, operands, results)
        needed = [
            Mapping(placement.tiles, placement.spans(indices, leaf.shape))
            for indices, leaf in zip(indexing.operands, operands, strict=True)
        ]
        sources = self.copied(list(zip(operands, needed, strict=True)))
        mappings = [
            Mapping(placement.tiles, placement.spans(indices, shape))
            for indices, (_, shape) in zip(indexing.results, results, strict=True)
        ]
        reused = self._reused(codelet, operands, sources, last_uses, results[0], mappings[0])
        targets = [
            self.variable(*result, mapping) if number or reused is None else reused
            for number, (result, mapping) in enumerate(zip(results, mappings, strict=True))
        ]
        values = [self.value(*x) for x in results]
        group = s.VertexGroup(
            codelet,
            placement.tiles,
            tuple(s.Operand(v, m.spans) for v, m in zip(sources, needed, strict=True)),
            tuple(s.Operand(v, m.spans) for v, m in zip(targets, mappings, strict=True)),
            tuple(x.value for x in operands),
            tuple(values),
            self.origin,
        )
        self.emit(s.ComputeSet((group,)))
        return [
            TileTensor(value, target, *result)
            for value, target, result in zip(values, targets, results, strict=True)
        ]

    def _reused(
        self,
        codelet: Codelet,
        operands: Sequence[TileTensor],
        sources: Sequence[int],
        last_uses: Sequence[bool],
        result: tuple[str, Sizes],
        mapping: Mapping,
    ) -> int | None:
        """Return the variable of an operand at its last use that can take the first result.

        Rather the one of a loop that it is to end in.
        """
        if self._may_end(sources, result, mapping):
            return self.destination
        order = sorted(
            range(min(len(operands), len(last_uses))),
            key=lambda n: operands[n].variable != self.destination,
        )
        for number in order:
            leaf, variable = operands[number], sources[number]
            if (
                last_uses[number]
                and variable == leaf.variable
                and variable in self.scope.owned
                and sources.count(variable) == 1
                and (leaf.element_type, leaf.shape) == result
                and self.variables[variable].mapping == mapping
                and codelet.may_overwrite(number)
            ):
                return variable
        return None

    def _may_end(self, sources: Sequence[int], result: tuple[str, Sizes], mapping: Mapping) -> bool:
        """Whether a result can be written into its destination."""
        if self.destination is None or not self.destination_is_free:
            return False
        if self.destination in sources:
            return False
        there = self.variables[self.destination]
        return (
            self.destination in self.scope.owned
            and (there.element_type, there.shape) == result
            and there.mapping == mapping
        )

    def _placement(
        self,
        codelet: Codelet,
        indexing: Indexing,
        operands: Sequence[TileTensor],
        results: Sequence[tuple[str, Sizes]],
    ) -> Placement:
        """Go where an operand lies or the result is wished, or else make blocks of rows."""
        default = self._default(indexing, operands, results)
        lying = [self.variables[leaf.variable].mapping for leaf in operands]
        sizes = [prod(leaf.shape) for leaf in operands]
        least = -(-default.tiles.count // 2)
        places = candidates(indexing, lying, self.preferences, least, sizes)
        tensors = tuple(x.tensor for x in operands)
        result_tensors = tuple(Tensor(*x) for x in results)
        shown = _shown(indexing, results)
        first = places[0] if places else default
        work = Spreading(self.machine, codelet, tensors, result_tensors, shown)
        even = more_even(work, first)
        if even is not None:
            places = [*(places or [default]), even]
        if 2 * default.tiles.count <= self.tile_count:
            spread = finer(work, default)
            if spread:
                places = [*(places or [default]), *spread]
        if not places:
            return self._turned(default)
        if len(places) == 1:
            return places[0]
        placed = zip(operands, lying, strict=True)
        op = MovableOp(
            codelet,
            tuple((tensor, m) for tensor, (_, m) in zip(tensors, placed, strict=True)),
            result_tensors,
            tuple(self.preferences),
            self.iterations,
            self.code_price,
        )
        chosen = cheapest(self.machine, op, places)
        return self._turned(chosen) if chosen == default else chosen

    def _turned(self, placement: Placement) -> Placement:
        """Return a grid on few tiles from the next tiles on: not all are to lie on the first."""
        count = placement.tiles.count
        if 2 * count > self.tile_count:
            return placement
        return moved(placement, self.first_tile(count), self.tile_count)

    def _default(
        self,
        indexing: Indexing,
        operands: Sequence[TileTensor],
        results: Sequence[tuple[str, Sizes]],
    ) -> Placement:
        largest = max(range(len(results)), key=lambda n: prod(results[n][1]))
        element_type, shape = results[largest]
        bits = ELEMENT_TYPES[element_type].bits
        sizes = _shown(indexing, results)
        elements = max(prod(shape), *(prod(leaf.shape) for leaf in operands), 1)
        return default_placement(sizes, elements, bits, self.tile_count)


def _shown(indexing: Indexing, results: Sequence[tuple[str, Sizes]]) -> Sizes:
    """Return the labels' sizes, those that the largest result does not show as one."""
    largest = max(range(len(results)), key=lambda n: prod(results[n][1]))
    shown = {index.label for index in indexing.results[largest]}
    return tuple(n if label in shown else 1 for label, n in enumerate(indexing.sizes))
