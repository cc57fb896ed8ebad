"""Builder's constants and exchanges."""

from collections.abc import Mapping as ByPlace
from collections.abc import Sequence
from dataclasses import replace
from math import prod

from hloipu_compiler.lowering.core.numbering import Numbering, Scope
from hloipu_compiler.lowering.core.values import Scalar, Spread, TileTensor, Value
from hloipu_compiler.planners.redistribution import redistribution, serves
from hloipu_compiler.planners.tuning import (
    Tuning,
    fast_tuning,
    free_percent,
    tuning_in_room,
    tuning_within,
)
from hloipu_runtime.codelets.core.constants import value_of
from hloipu_runtime.costs.exchange_price import CodePrice
from hloipu_runtime.machine.model import Machine
from hloipu_runtime.program import steps as s
from hloipu_runtime.program.descriptors import is_complete
from hloipu_runtime.program.mapping import Box, Mapping, Sizes, Tiles, whole_box
from hloipu_runtime.program.program import Array, Role

_ALWAYS = -1
"""Since when a copy is there that is used again however old it is."""
_LARGE_COPY_PERCENT = 1
"""Of a tile's memory, from which on a copy is made again, rather than kept while memory is tight.
Assumed: the code of an exchange takes less."""


class Exchanging(Numbering):
    """A program under construction whose values can be loaded, and copied from tiles to tiles."""

    def __init__(self, machine: Machine, tuning: Tuning) -> None:
        super().__init__(machine)
        self.tuning = tuning
        self.constants: dict[int, tuple[int, Array]] = {}
        """Of a variable, the value and the array in storage form."""
        self._scalars: dict[tuple[str, str, int], TileTensor] = {}
        self.is_resident = False
        """Whether the program stays on the device from run to run, so that constants do, too."""
        self.code_bytes = 0
        """Estimate of the code and of the state of vertices on a tile, of all of the program."""
        self.product_rooms: ByPlace[tuple[int, str], int] = {}
        """IPU and instruction -> bytes of a tile that a product may take, as far as known."""
        self.alive_bytes = 0
        """Of values that are alive while the instruction at hand runs, but for its result."""
        self.alive_at: Sequence[int] = ()
        """The same at each instruction of the computation at hand, without what callers have."""
        self.standing: frozenset[int] = frozenset()
        """Parameters of the computation that is lowered next which its caller counts as alive."""
        self.products_while_tight = 0
        """Products so far that were lowered where memory is tight: how old a large copy is."""
        self.may_fit = True
        """Whether code and values that are alive at once leave anything over."""

    def begin_product(self) -> None:
        """Count a product that has less memory left than a plan may take: copies get old by it."""
        code_bytes = self.code_bytes if self.tuning.code_memory else 0
        percent = free_percent(self.machine, self.alive_bytes, code_bytes)
        self.products_while_tight += percent < self.tuning.memory_percent

    @property
    def tuning_here(self) -> Tuning:
        """The tuning, with no more memory than is left at the instruction at hand.

        Of a program that cannot fit plans may all be fast.
        """
        if not self.may_fit:
            return fast_tuning(self.machine, self.tuning, self.code_bytes)
        tuning = tuning_within(self.machine, self.tuning, self.alive_bytes, self.code_bytes)
        room = self.product_rooms.get((self.ipu, self.origin))
        return tuning if room is None else tuning_in_room(self.machine, tuning, room)

    @property
    def products_with_rooms(self) -> int:
        """The products of the IPU that are planned in what is left, as the one at hand, or 1."""
        if (self.ipu, self.origin) not in self.product_rooms:
            return 1
        return sum(ipu == self.ipu for ipu, _ in self.product_rooms)

    @property
    def code_price(self) -> CodePrice:
        """What a byte of exchange code is worth."""
        return self.tuning_here.code_price

    def constant(self, array: Array, element_type: str) -> TileTensor:
        """Return a variable that the program is loaded with; `array` is in storage form."""
        shape = tuple(map(int, array.shape))
        value = self.value(element_type, shape)
        mapping = self.default_mapping(element_type, shape)
        variable = self.variable(element_type, shape, mapping, Role.CONSTANT)
        self.constants[variable] = (value, array)
        return TileTensor(value, variable, element_type, shape)

    def scalar(self, leaf: Scalar) -> TileTensor:
        """Return a variable that holds a constant number, the same one for equal numbers."""
        key = (leaf.element_type, leaf.text, self.ipu)
        if key not in self._scalars:
            self._scalars[key] = self.constant(
                value_of(leaf.text, leaf.element_type), leaf.element_type
            )
        return self._scalars[key]

    def copied(self, wanted: Sequence[tuple[TileTensor, Mapping]]) -> list[int]:
        """Return variables that hold these values in these mappings, moved there if need be."""
        values: list[int] = []
        gathering: dict[int, tuple[list[s.Transfer], list[s.Definition]]] = {}
        waiting: dict[int, tuple[list[s.Transfer], list[s.Definition]]] = {}
        for leaf, mapping in wanted:
            leaf = self.nearest(leaf, self.ipu)
            lying = self.variables[leaf.variable]
            if lying.ipu == self.ipu and serves(lying.mapping, mapping, leaf.shape):
                values.append(leaf.variable)
                continue
            known = self._copy_of(leaf.value, mapping)
            if known is None:
                depth = self._depth_to_copy(leaf)
                crosses = lying.ipu != self.ipu
                if (crosses or not depth) and self._is_loaded_where_wanted(leaf, mapping):
                    values.append(self._loaded_copy(leaf, mapping))
                    continue
                known = self.variable(leaf.element_type, leaf.shape, mapping, depth=depth)
                key = leaf.value, mapping, self.ipu, self._made_at(known, depth)
                self.scopes[depth].copies[key] = known
                if crosses:
                    self.scopes[depth].brought[(leaf.value, self.ipu)] = known
                near = self.gathered(leaf, mapping, depth)
                if near is not leaf:
                    self._add(gathering, depth, leaf, near.variable)
                self._add(waiting, depth, near, known)
            values.append(known)
        for steps in (gathering, waiting):
            for depth, (transfers, definitions) in steps.items():
                scope = self.scopes[depth]
                scope.steps += self.exchange_steps(transfers, definitions, scope)
        return values

    def brought_here(self, leaf: Value) -> Value:
        """Return a leaf on the IPU at hand, copied there once however often it is asked for."""
        if isinstance(leaf, Spread) and isinstance(leaf.source, TileTensor):
            source = self.brought_here(leaf.source)
            return replace(leaf, source=source) if isinstance(source, TileTensor) else leaf
        if not isinstance(leaf, TileTensor) or self.variables[leaf.variable].ipu == self.ipu:
            return leaf
        mapping = self.variables[leaf.variable].mapping
        return replace(leaf, variable=self.copied([(leaf, mapping)])[0])

    def nearest(self, leaf: TileTensor, ipu: int) -> TileTensor:
        """Return a leaf where it was brought to on an IPU, if it was, or else where it is."""
        if self.variables[leaf.variable].ipu != ipu:
            for scope in self.seen_scopes:
                known = scope.brought.get((leaf.value, ipu))
                if known is not None:
                    return replace(leaf, variable=known)
        return leaf

    def gathered(self, leaf: TileTensor, mapping: Mapping, depth: int) -> TileTensor:
        """Return where a value is best taken from: itself, or a few tiles to be sent to first."""
        lying = self.variables[leaf.variable]
        if lying.ipu != self.ipu:
            return leaf
        via = redistribution(
            self.machine, leaf.element_type, leaf.shape, lying.mapping, mapping, self.code_price
        ).via
        if via is None:
            return leaf
        tiles = via.tiles
        first = self.first_tile(tiles.count) % (self.tile_count - tiles.count + 1)
        there = Mapping(Tiles(tiles.extents, tiles.strides, first), via.spans)
        near = self.variable(leaf.element_type, leaf.shape, there, depth=depth)
        return TileTensor(leaf.value, near, leaf.element_type, leaf.shape)

    def _add(
        self,
        steps: dict[int, tuple[list[s.Transfer], list[s.Definition]]],
        depth: int,
        leaf: TileTensor,
        variable: int,
    ) -> None:
        transfer, definition = self.plain_copy(leaf, variable)
        transfers, definitions = steps.setdefault(depth, ([], []))
        transfers.append(transfer)
        definitions.append(definition)

    def _is_loaded_where_wanted(self, leaf: TileTensor, mapping: Mapping) -> bool:
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

    def _loaded_copy(self, leaf: TileTensor, mapping: Mapping) -> int:
        variable = self.variable(leaf.element_type, leaf.shape, mapping, Role.CONSTANT)
        self.constants[variable] = self.constants[leaf.variable]
        self.scopes[0].copies[(leaf.value, mapping, self.ipu, _ALWAYS)] = variable
        return variable

    def _depth_to_copy(self, leaf: TileTensor) -> int:
        """Return the block to copy a value in: before the loops in which it does not change."""
        depth = len(self.scopes) - 1
        constant = self.variables[leaf.variable].role is Role.CONSTANT
        depth_of_maker = 0 if constant else self._depth_of[leaf.value]
        while depth > depth_of_maker and self.scopes[depth].repeats:
            depth -= 1
        return depth

    def _made_at(self, variable: int, depth: int) -> int:
        """Return when a copy was made, if it is not to be kept as long as memory is tight."""
        size = self.variables[variable].bytes_per_tile
        is_large = 100 * size > self.machine.usable_bytes * _LARGE_COPY_PERCENT
        is_here = depth in (-1, len(self.scopes) - 1)
        return self.products_while_tight if is_large and is_here else _ALWAYS

    def _copy_of(self, value: int, mapping: Mapping) -> int | None:
        """Return where a value was brought to, unless it is large and was brought long ago."""
        now = self.products_while_tight
        keys = [(value, mapping, self.ipu, since) for since in (_ALWAYS, now, now - 1)]
        for scope in self.seen_scopes:
            for key in keys:
                if key in scope.copies:
                    return scope.copies[key]
        loaded = self.scopes[0].copies.get(keys[0])
        return loaded if loaded in self.constants else None

    def plain_copy(self, leaf: TileTensor, variable: int) -> tuple[s.Transfer, s.Definition]:
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
        self, leaf: TileTensor, variable: int, view: Sizes, box: Box, shift: Sizes
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
            self.variables[transfer.source].ipu != self.variables[transfer.destination].ipu
            for transfer in transfers
        )
        meeting = s.Sync(scope.ipus or self.ipus) if crosses else s.Sync()
        return [meeting, s.Exchange(tuple(transfers), tuple(definitions), self.origin)]

    def assembled(
        self,
        element_type: str,
        shape: Sizes,
        pieces: Sequence[tuple[TileTensor, Sizes, Box, Sizes]],
        base: TileTensor | None = None,
        mapping: Mapping | None = None,
    ) -> TileTensor:
        """Return a new value put together from (source, view, box, shift) by one exchange.

        `base`: what stays where no piece is put; its variable is written.
        """
        if base is None:
            variable = self.variable(
                element_type, shape, mapping or self.default_mapping(element_type, shape)
            )
        else:
            variable = base.variable
        value = self.value(element_type, shape)
        transfers = [
            self.transfer(leaf, variable, view, box, shift) for leaf, view, box, shift in pieces
        ]
        sources = tuple(s.Piece(leaf.value, view, box, shift) for leaf, view, box, shift in pieces)
        self.exchange(
            transfers,
            [s.Definition(variable, value, None if base is None else base.value, sources)],
        )
        return TileTensor(value, variable, element_type, shape)
