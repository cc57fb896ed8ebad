"""Writes a program step by step: what lowerings call to get constants, copies and results."""

from collections.abc import Hashable, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from hloipu_compiler.codegen.bringing import bringing, serves
from hloipu_compiler.codegen.choosing import candidates, cheapest
from hloipu_compiler.codegen.errors import CodegenError
from hloipu_compiler.codegen.layout import NO_LAYOUT, Demand, Layout
from hloipu_compiler.codegen.leaves import Held, Leaf, Scalar, Spread
from hloipu_compiler.codegen.numbering import Numbering, Scope
from hloipu_compiler.codegen.placing import (
    Placement,
    default_placement,
    moved,
)
from hloipu_compiler.codegen.spreading import finer
from hloipu_compiler.codegen.tuning import DEFAULT_TUNING, Tuning, tuning_within
from hloipu_runtime.codelets.codelet import Codelet, Indexing, Tensor
from hloipu_runtime.codelets.constants import value_of
from hloipu_runtime.codelets.elementwise import Elementwise
from hloipu_runtime.codelets.expression import Expression, Node
from hloipu_runtime.element_types import ELEMENT_TYPES
from hloipu_runtime.machine.model import Machine
from hloipu_runtime.program import steps as s
from hloipu_runtime.program.descriptors import is_complete
from hloipu_runtime.program.mapping import (
    Box,
    Mapping,
    Sizes,
    Tiles,
    whole_box,
)
from hloipu_runtime.program.program import Queue, Role

Array = np.ndarray[Any, Any]


class ChosenWays:
    """Which of several ways ops went, by what tells one op from another (`alternatives.py`)."""

    def __init__(self) -> None:
        self.by_key: dict[Hashable, int] = {}


class Builder(Numbering):
    """A program under construction: constants, exchanges and compute sets."""

    def __init__(self, machine: Machine, tuning: Tuning = DEFAULT_TUNING) -> None:
        super().__init__(machine)
        self.tuning = tuning
        self.constants: dict[int, tuple[int, Array]] = {}
        self.elided: list[str] = []
        self.queues: dict[str, Queue] = {}
        """Of infeed and outfeed ops, by name."""
        self._scalars: dict[tuple[str, str, int], Held] = {}
        self.random_state: Held | None = None
        """What random ops without a state of their own draw from (`randomness.py`)."""
        self.layout: Layout = NO_LAYOUT
        self.wishes: tuple[Demand, ...] = ()
        """Of the users of the instruction that is being lowered, for its result."""
        self.region_wishes: tuple[Demand, ...] = ()
        """For the results of the fusion that is being written op by op."""
        self.chosen_ways = ChosenWays()
        self.turns = 1
        """How often the block at hand runs, as far as that is known."""
        self.destination: int | None = None
        """Variable of a loop that its result is to end in."""
        self.destination_is_free = False
        """Whether nobody reads what is there, this instruction included."""
        self.alive_bytes = 0
        """Of values that are alive while the instruction at hand runs, but for its result."""
        self.may_fit = True
        """Whether code and values that are alive at once leave anything over."""
        self.effectful: frozenset[str] | None = None
        """Computations of the module that do more than compute; None: not looked for yet."""
        self.code_bytes = 0
        """Estimate of the code and of the state of vertices on a tile, of all of the program."""
        self.is_resident = False
        """Whether the program stays on the device from run to run, so that constants do, too."""

    @property
    def tuning_here(self) -> Tuning:
        """The tuning, with no more memory than is left at the instruction at hand.

        Of a program that cannot fit plans may all be fast.
        """
        if not self.may_fit:
            return self.tuning
        return tuning_within(self.machine, self.tuning, self.alive_bytes, self.code_bytes)

    # --- constants --------------------------------------------------------------------------------

    def constant(self, array: Array, element_type: str, mapping: Mapping | None = None) -> Held:
        """Return a variable that the program is loaded with; `array` is in storage form."""
        shape = tuple(map(int, array.shape))
        value = self.value(element_type, shape)
        mapping = mapping or self.home(element_type, shape)
        variable = self.variable(element_type, shape, mapping, Role.CONSTANT)
        self.constants[variable] = (value, array)
        return Held(value, variable, element_type, shape)

    def scalar(self, leaf: Scalar) -> Held:
        """Return a variable that holds a constant number, the same one for equal numbers."""
        key = (leaf.element_type, leaf.text, self.ipu)
        if key not in self._scalars:
            self._scalars[key] = self.constant(
                value_of(leaf.text, leaf.element_type), leaf.element_type
            )
        return self._scalars[key]

    def held(self, leaf: Leaf) -> Held:
        """Return a leaf on tiles: constants get a variable, broadcasts are written out."""
        match leaf:
            case Held():
                return leaf
            case Scalar():
                return self.scalar(leaf)
            case Spread():
                return self._written_out(leaf)
            case _:
                raise CodegenError("E0470", f"{self.origin}: a token has no value on tiles")

    def _written_out(self, leaf: Spread) -> Held:
        kind = leaf.element_type
        if isinstance(leaf.source, Scalar):
            node = Node("constant", (), kind, (("value", leaf.source.text),))
            filled = Elementwise(Expression((), (node,), (0,)), (), len(leaf.shape))
            return self.compute(filled, [], [(kind, leaf.shape)])[0]
        same = Elementwise(Expression((kind,), (), (0,)), (leaf.dimensions,), len(leaf.shape))
        return self.compute(same, [leaf.source], [(kind, leaf.shape)])[0]

    # --- exchanges --------------------------------------------------------------------------------

    def copied(self, wanted: Sequence[tuple[Held, Mapping]]) -> list[int]:
        """Return variables that hold these values in these mappings, moved there if need be."""
        found: list[int] = []
        gathering: dict[int, tuple[list[s.Transfer], list[s.Definition]]] = {}
        waiting: dict[int, tuple[list[s.Transfer], list[s.Definition]]] = {}
        for leaf, mapping in wanted:
            leaf = self.nearest(leaf, self.ipu)
            lying = self.variables[leaf.variable]
            if lying.ipu == self.ipu and serves(lying.mapping, mapping, leaf.shape):
                found.append(leaf.variable)
                continue
            known = self._copy_of(leaf.value, mapping)
            if known is None:
                depth = self._depth_to_copy(leaf)
                crosses = lying.ipu != self.ipu
                if (crosses or not depth) and self._is_loaded_where_wanted(leaf, mapping):
                    found.append(self._loaded_copy(leaf, mapping))
                    continue
                known = self.variable(leaf.element_type, leaf.shape, mapping, depth=depth)
                self.scopes[depth].copies[(leaf.value, mapping, self.ipu)] = known
                if crosses:
                    self.scopes[depth].brought[(leaf.value, self.ipu)] = known
                near = self._gathered(leaf, mapping, depth)
                if near is not leaf:
                    self._add(gathering, depth, leaf, near.variable)
                self._add(waiting, depth, near, known)
            found.append(known)
        for steps in (gathering, waiting):
            for depth, (transfers, definitions) in steps.items():
                scope = self.scopes[depth]
                scope.steps += self.exchange_steps(transfers, definitions, scope)
        return found

    def brought_here(self, leaf: Leaf) -> Leaf:
        """Return a leaf on the IPU at hand, copied there once however often it is asked for."""
        if isinstance(leaf, Spread) and isinstance(leaf.source, Held):
            source = self.brought_here(leaf.source)
            return replace(leaf, source=source) if isinstance(source, Held) else leaf
        if not isinstance(leaf, Held) or self.variables[leaf.variable].ipu == self.ipu:
            return leaf
        mapping = self.variables[leaf.variable].mapping
        return replace(leaf, variable=self.copied([(leaf, mapping)])[0])

    def nearest(self, leaf: Held, ipu: int) -> Held:
        """Return a leaf where it was brought to on an IPU, if it was, or else where it is."""
        if self.variables[leaf.variable].ipu != ipu:
            for scope in reversed(self.scopes):
                known = scope.brought.get((leaf.value, ipu))
                if known is not None:
                    return replace(leaf, variable=known)
        return leaf

    def _gathered(self, leaf: Held, mapping: Mapping, depth: int) -> Held:
        """Return where a value is best taken from: itself, or a few tiles to be sent to first."""
        lying = self.variables[leaf.variable]
        if lying.ipu != self.ipu:
            return leaf
        via = bringing(self.machine, leaf.element_type, leaf.shape, lying.mapping, mapping).via
        if via is None:
            return leaf
        tiles = via.tiles
        first = self.first_tile(tiles.count) % (self.tile_count - tiles.count + 1)
        there = Mapping(Tiles(tiles.extents, tiles.strides, first), via.spans)
        near = self.variable(leaf.element_type, leaf.shape, there, depth=depth)
        return Held(leaf.value, near, leaf.element_type, leaf.shape)

    def _add(
        self,
        steps: dict[int, tuple[list[s.Transfer], list[s.Definition]]],
        depth: int,
        leaf: Held,
        variable: int,
    ) -> None:
        """Add the copy of a value to the exchange at a depth."""
        transfer, definition = self.plain_copy(leaf, variable)
        transfers, definitions = steps.setdefault(depth, ([], []))
        transfers.append(transfer)
        definitions.append(definition)

    def _is_loaded_where_wanted(self, leaf: Held, mapping: Mapping) -> bool:
        """Whether a constant is loaded once more, in place of a copy in each run.

        A number takes less memory on a tile than the exchange code that would bring it. Another IPU
        has constants of its own.
        """
        if leaf.variable not in self.constants:
            return False
        crosses = self.variables[leaf.variable].ipu != self.ipu
        return prod(leaf.shape) < 2 or (
            (self.is_resident or crosses) and is_complete(mapping, leaf.shape)
        )

    def _loaded_copy(self, leaf: Held, mapping: Mapping) -> int:
        """Return another variable that a constant is loaded into, as every run would copy it."""
        variable = self.variable(leaf.element_type, leaf.shape, mapping, Role.CONSTANT)
        self.constants[variable] = self.constants[leaf.variable]
        self.scopes[0].copies[(leaf.value, mapping, self.ipu)] = variable
        return variable

    def _depth_to_copy(self, leaf: Held) -> int:
        """Return the block to copy a value in: before the loops in which it does not change."""
        depth = len(self.scopes) - 1
        constant = self.variables[leaf.variable].role is Role.CONSTANT
        made = 0 if constant else self._depth_of[leaf.value]
        while depth > made and self.scopes[depth].turns:
            depth -= 1
        return depth

    def _copy_of(self, value: int, mapping: Mapping) -> int | None:
        for scope in reversed(self.scopes):
            if (value, mapping, self.ipu) in scope.copies:
                return scope.copies[(value, mapping, self.ipu)]
        return None

    def plain_copy(self, leaf: Held, variable: int) -> tuple[s.Transfer, s.Definition]:
        """Return the transfer that brings a value, whole, to another variable."""
        zeros = (0,) * len(leaf.shape)
        box = whole_box(leaf.shape)
        return (
            self.transfer(leaf, variable, leaf.shape, box, zeros),
            s.Definition(
                variable, leaf.value, None, (s.Piece(leaf.value, leaf.shape, box, zeros),)
            ),
        )

    def transfer(
        self, leaf: Held, variable: int, view: Sizes, box: Box, shift: Sizes
    ) -> s.Transfer:
        """Return a transfer of a box to all tiles that hold the variable."""
        mapping = self.variables[variable].mapping
        return s.Transfer(
            leaf.variable,
            variable,
            mapping.tiles,
            whole_box(mapping.tiles.extents),
            mapping.spans,
            box,
            shift,
            view,
            leaf.value,
        )

    def exchange(
        self, transfers: Sequence[s.Transfer], definitions: Sequence[s.Definition]
    ) -> None:
        """Append a sync and an exchange to the innermost block."""
        self.scope.steps += self.exchange_steps(transfers, definitions, self.scope)

    def exchange_steps(
        self, transfers: Sequence[s.Transfer], definitions: Sequence[s.Definition], scope: Scope
    ) -> list[s.Step]:
        """Return a sync and an exchange; a block's IPUs meet where it leads from one to another."""
        crosses = any(
            self.variables[x.source].ipu != self.variables[x.destination].ipu for x in transfers
        )
        meeting = s.Sync(scope.ipus or self.ipus) if crosses else s.Sync()
        return [meeting, s.Exchange(tuple(transfers), tuple(definitions), self.origin)]

    def assembled(
        self,
        element_type: str,
        shape: Sizes,
        pieces: Sequence[tuple[Held, Sizes, Box, Sizes]],
        base: Held | None = None,
        mapping: Mapping | None = None,
    ) -> Held:
        """Return a new value put together from (source, view, box, shift) by one exchange.

        `base`: what stays where no piece is put; its variable is written.
        """
        if base is None:
            variable = self.variable(element_type, shape, mapping or self.home(element_type, shape))
        else:
            variable = base.variable
        value = self.value(element_type, shape)
        transfers = [
            self.transfer(leaf, variable, view, box, shift) for leaf, view, box, shift in pieces
        ]
        made = tuple(s.Piece(leaf.value, view, box, shift) for leaf, view, box, shift in pieces)
        self.exchange(
            transfers,
            [s.Definition(variable, value, None if base is None else base.value, made)],
        )
        return Held(value, variable, element_type, shape)

    # --- compute ----------------------------------------------------------------------------------

    def compute(
        self,
        codelet: Codelet,
        operands: Sequence[Held],
        results: Sequence[tuple[str, Sizes]],
        *,
        dying: Sequence[bool] = (),
        placement: Placement | None = None,
    ) -> list[Held]:
        """Append a vertex group, with the exchange that brings its operands to its tiles.

        `dying`: operands that nobody reads afterwards, so that a result may take their place.
        """
        operand_tensors = [Tensor(x.element_type, x.shape) for x in operands]
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
        reused = self._reused(codelet, operands, sources, dying, results[0], mappings[0])
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
            Held(value, target, *result)
            for value, target, result in zip(values, targets, results, strict=True)
        ]

    def _reused(
        self,
        codelet: Codelet,
        operands: Sequence[Held],
        sources: Sequence[int],
        dying: Sequence[bool],
        result: tuple[str, Sizes],
        mapping: Mapping,
    ) -> int | None:
        """Return the variable of a dying operand that the first result can be written into.

        Rather the one of a loop that it is to end in.
        """
        if self._may_end(sources, result, mapping):
            return self.destination
        order = sorted(
            range(min(len(operands), len(dying))),
            key=lambda n: operands[n].variable != self.destination,
        )
        for number in order:
            leaf, variable = operands[number], sources[number]
            if (
                dying[number]
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
        operands: Sequence[Held],
        results: Sequence[tuple[str, Sizes]],
    ) -> Placement:
        """Go where an operand lies or the result is wished, or else make blocks of rows."""
        default = self._default(indexing, operands, results)
        lying = [self.variables[leaf.variable].mapping for leaf in operands]
        sizes = [prod(leaf.shape) for leaf in operands]
        least = -(-default.tiles.count // 2)
        places = candidates(indexing, lying, self.wishes, least, sizes)
        if 2 * default.tiles.count <= self.tile_count:
            shown = _shown(indexing, results)
            tensors = tuple(Tensor(x.element_type, x.shape) for x in operands)
            made = tuple(Tensor(*x) for x in results)
            spread = finer(self.machine, codelet, tensors, made, shown, default)
            if spread:
                places = [*(places or [default]), *spread]
        if not places:
            return self._turned(default)
        if len(places) == 1:
            return places[0]
        chosen = cheapest(
            self.machine,
            codelet,
            [(Tensor(x.element_type, x.shape), m) for x, m in zip(operands, lying, strict=True)],
            [Tensor(*x) for x in results],
            self.wishes,
            places,
            turns=self.turns,
            code_cycles=self.tuning_here.code_cycles_per_byte,
        )
        return self._turned(chosen) if chosen == default else chosen

    def _turned(self, placement: Placement) -> Placement:
        """Return a grid on few tiles from the next tiles on: not all are to lie on the first."""
        count = placement.tiles.count
        if 2 * count > self.tile_count:
            return placement
        return moved(placement, self.first_tile(count), self.tile_count)

    def _default(
        self, indexing: Indexing, operands: Sequence[Held], results: Sequence[tuple[str, Sizes]]
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
