"""Writes one computation of a program for one device, op by op, on blocks."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import replace
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING

from hloipu_compiler.hlo.attributes.frontend_attributes import (
    frontend_attributes_text,
    read_frontend_attributes,
)
from hloipu_compiler.ir.annotations import PARTITIONED_TARGET, is_border, is_identity
from hloipu_compiler.ir.attributes import Attributes
from hloipu_compiler.ir.factors import FactorKind
from hloipu_compiler.ir.graph import Computation, Instruction
from hloipu_compiler.ir.ops import COLLECTIVES
from hloipu_compiler.ir.shapes import (
    ArrayShape,
    Shape,
    TupleShape,
    array_shape,
    leaf_range,
    leaves_of,
)
from hloipu_compiler.partition.spmd import indexing, windows
from hloipu_compiler.partition.spmd.blocks import Along, Block, Blocks
from hloipu_compiler.partition.spmd.cuts import Cut, Ends
from hloipu_compiler.partition.spmd.local_ops import (
    OF_WHOLES,
    STATED,
    Handler,
    local_op,
    with_leaves,
)
from hloipu_compiler.partition.spmd.manual import meeting_attributes
from hloipu_compiler.partition.spmd.partials import delayed, partial_results, prepared
from hloipu_compiler.partition.spmd.propagating import CALLING
from hloipu_compiler.partition.spmd.reading import Key
from hloipu_compiler.partition.spmd.reshard_steps import State
from hloipu_compiler.partition.spmd.resharding import Split, Splits
from hloipu_compiler.partition.spmd.rolls import Roll, rolled, rolls_of
from hloipu_compiler.passes.framework.attribute_edits import renamed, without
from hloipu_compiler.passes.framework.rewriting import Draft

if TYPE_CHECKING:
    from hloipu_compiler.partition.spmd.localizing import Localizing

_HANDLERS: Mapping[FactorKind, Mapping[str, Handler]] = {
    kind: {**windows.HANDLERS.get(kind, {}), **indexing.HANDLERS.get(kind, {})}
    for kind in FactorKind
}
_SAYS_NOTHING = ("Sharding", "InspectSharding", "ShardBarrier", "xla.sdy.")
"""How targets begin of calls that mean nothing in a program for one device."""


Origin = tuple[int, int]
"""The position of an instruction, and a leaf of its result."""
Demands = Mapping[Origin, dict[tuple[int, int], Split]]
"""Of values the shardings that readers have them brought to, by the readers and their operands."""
Version = tuple[Origin, Split]
"""A value in one sharding."""


def written(whole: "Localizing", old: Computation, given: Splits, results: Splits) -> Computation:
    """Return a computation on blocks, of parameters and results that are split so.

    Where readers bring one value to several shardings it is written again: whoever knows what
    others bring the value to may take that; then without those shardings that came to have several
    readers by it, each of which may have done better without. What sends least is returned.
    """
    first = Writer(whole, old, given)
    best, sent_bytes = first.written(results), first.sent_bytes
    barred: frozenset[Version] = frozenset()
    shared = first.shared
    for _ in range(2 if first.is_contended else 0):
        again = Writer(whole, old, given, first.demands, barred)
        on_blocks = again.written(results)
        if again.sent_bytes < sent_bytes:
            best, sent_bytes = on_blocks, again.sent_bytes
        barred = again.shared - shared
        if not barred:
            break
    return best


class Writer:
    """One computation in the making."""

    def __init__(
        self, whole: "Localizing", old: Computation, given: Splits,
        demands: Demands = MappingProxyType({}), barred: Set[Version] = frozenset(),
    ) -> None:  # fmt: skip
        self.whole, self.old, self.given = whole, old, given
        self.module, self.axes = whole.module, whole.known.axes
        self.parameters = TupleShape(tuple(old.instructions[i].shape for i in old.parameters))
        self.draft = Draft(self.module, old)
        self.on = Blocks(self.draft, whole.paths, whole.channels, whole.combiner)
        self.rolls = rolls_of(old)
        self.readers = Counter(i for x in old.instructions for i in x.operands)
        self.readers[old.root] += 1
        self.blocks: list[tuple[Block, ...]] = []
        """Of each instruction, leaf by leaf."""
        self.origins = self._leaves(through_calls=True)
        """Of the same leaves: what they are made of, where an instruction only hands them on."""
        self.demands = {origin: dict(own) for origin, own in demands.items()}
        self.ends: dict[Origin, Split] = {}
        self.barred = barred
        """What no reader is to take for made by others."""

    @property
    def sent_bytes(self) -> float:
        """What each device sends to bring values to other shardings."""
        return self.on.reshards.sent_bytes

    @property
    def is_contended(self) -> bool:
        """Whether readers bring a value to several shardings."""
        return any(len(set(own.values())) > 1 for own in self.demands.values())

    @property
    def shared(self) -> frozenset[Version]:
        """Values in shardings that several readers bring them to."""
        readers = Counter(
            (origin, split)
            for origin, own in self.demands.items()
            for (_, split) in {(reader, split) for (reader, _), split in own.items()}
        )
        return frozenset(version for version, count in readers.items() if count > 1)

    def written(self, results: Splits) -> Computation:
        """Return the computation, whose results are split so."""
        if self.old.name == self.module.entry.name:
            self.ends = self._ends(results)
        for position, x in enumerate(self.old.instructions):
            first = len(self.draft.made)
            self.blocks.append(self._written((self.old.name, position), x))
            self._mark(x, first)
        x = self.old.instructions[self.old.root]
        self._demand(len(self.old.instructions), (self.old.root,), results)
        leaves = self._moved(x, self.blocks[self.old.root], leaves_of(x.shape), results)
        root = self._packed(x, x.shape, iter(leaves))
        return replace(self.old, instructions=tuple(self.draft.made), root=root)

    def _ends(self, results: Splits) -> dict[Origin, Split]:
        """Return how what the program's results are made of is wanted: as these are divided.

        What loops, branches and calls hand out is as it is inside of them.
        """
        root, ops = self._leaves(through_calls=False)[self.old.root], self.old.instructions
        pairs = zip(root, results, strict=True)
        return {o: s for o, s in pairs if ops[o[0]].opcode not in CALLING}

    def _leaves(self, through_calls: bool) -> list[tuple[Origin, ...]]:
        """Return what the leaves of each result are made of; annotations hand on others' or not."""
        leaves: list[tuple[Origin, ...]] = []
        for position, x in enumerate(self.old.instructions):
            count = len(leaves_of(x.shape))
            given = tuple(origin for i in x.operands for origin in leaves[i])
            is_call = through_calls and is_identity(x) and _says_nothing(x)
            if x.opcode == "get-tuple-element":
                leaves.append(given[self._element_leaves(x)])
            elif (x.opcode == "tuple" or is_call) and len(given) >= count:
                leaves.append(given[:count])
            else:
                leaves.append(tuple((position, leaf) for leaf in range(count)))
        return leaves

    def _element_leaves(self, x: Instruction) -> slice:
        """Return which leaves of its operand a get-tuple-element takes."""
        shape = self.old.instructions[x.operands[0]].shape
        assert isinstance(shape, TupleShape)
        return leaf_range(shape, x.attributes.integer("index"))

    def _mark(self, x: Instruction, first: int) -> None:
        """Give all that was written for an op, from `first` on, what the op says of other things.

        Such as its stage: collectives that fetch its operands are part of that.
        """
        marks = _without_shardings(x.attributes.text("frontend_attributes"))
        if not marks:
            return
        for position in range(first, len(self.draft.made)):
            written = self.draft.made[position]
            attributes = written.attributes.replaced(frontend_attributes=marks)
            self.draft.made[position] = written._replace(attributes=attributes)

    def _moved(
        self, x: Instruction, blocks: Sequence[Block], wholes: Sequence[ArrayShape], splits: Splits
    ) -> list[int]:
        each = zip(blocks, wholes, splits, strict=True)
        return [self.on.moved(x, block, whole, split) for block, whole, split in each]

    def _demand(self, reader: int, operands: Sequence[int], splits: Sequence[Split]) -> None:
        """Note to which shardings an instruction brings the leaves of its operands."""
        origins = (origin for i in operands for origin in self.origins[i])
        for leaf, (origin, split) in enumerate(zip(origins, splits, strict=False)):
            self.demands.setdefault(origin, {})[reader, leaf] = split

    def _others(self, reader: int, operands: Sequence[int]) -> Iterator[tuple[int, Split]]:
        """Yield what others than a reader bring the leaves of its operands to."""
        origins = (origin for i in operands for origin in self.origins[i])
        for leaf, origin in enumerate(origins):
            others = self.demands.get(origin, {}).items()
            for split in dict.fromkeys(own for (other, _), own in others if other != reader):
                if (origin, split) not in self.barred:
                    yield leaf, split

    def _operand_leaves(self, x: Instruction) -> list[ArrayShape]:
        return [s for i in x.operands for s in leaves_of(self.old.instructions[i].shape)]

    # ---- one op -----------------------------------------------------------------------------

    def _written(self, key: Key, x: Instruction) -> tuple[Block, ...]:
        roll = self._divided_roll(key[1])
        if roll is not None and x.opcode == "slice":
            return ()
        given = [block for i in x.operands for block in self.blocks[i]]
        stated = enumerate(self.whole.splits(*key))
        wanted = tuple(self.ends.get((key[1], n), split) for n, split in stated)
        if x.opcode == "parameter":
            results = self._parameter(x)
        elif x.opcode == "tuple":
            results = given
        elif x.opcode == "get-tuple-element":
            results = list(self.blocks[x.operands[0]][self._element_leaves(x)])
        elif roll is not None:
            results = [self._rolled(x, roll)]
        elif is_identity(x):
            results = self._annotation(x, given)
        elif is_border(x):
            results = self._border(key, x, given, wanted)
        elif x.opcode in CALLING or (
            x.attributes.called and x.attributes.text("custom_call_target") == PARTITIONED_TARGET
        ):
            results = self._calling(x, given, wanted)
        elif x.opcode == "infeed":
            results = self._fed(x, wanted)
        elif x.opcode == "outfeed":
            results = self._sent(x, given)
        else:
            results = self._computed(key, x, given, wanted)
        if not is_identity(x):
            return tuple(results)  # Moved when it is read, as each reader needs it.
        self._demand(key[1], x.operands, wanted)
        each = zip(results, leaves_of(x.shape), wanted, strict=True)
        return tuple(
            block if block.partial else Block(self.on.moved(x, block, shape, split), split)
            for block, shape, split in each
        )

    def _along(self, roll: Roll) -> Along:
        shape = array_shape(self.old.instructions[roll.source].shape)
        return self.on.along(shape, roll.d, self.blocks[roll.source][0].split[roll.d])

    def _divided_roll(self, position: int) -> Roll | None:
        """Return the roll that an op is of, where the dimension is divided and evenly so."""
        roll = self.rolls.get(position)
        if roll is None:
            return None
        along = self._along(roll)
        return roll if along.count > 1 and along.is_even else None

    def _rolled(self, x: Instruction, roll: Roll) -> Block:
        (block,), shape = self.blocks[roll.source], self.old.instructions[roll.source].shape
        (at,) = self._moved(x, [block], leaves_of(shape), (block.split,))
        return Block(rolled(self.on, x, at, self._along(roll), roll.shift), block.split)

    def _parameter(self, x: Instruction) -> list[Block]:
        wanted = self.given[leaf_range(self.parameters, x.parameter_number)]
        shape = self._local(x.shape, wanted)
        at = self.draft.append(x._replace(shape=shape, attributes=without(x.attributes, STATED)))
        positions = self._unpacked(x, at, shape)
        return [Block(i, split) for i, split in zip(positions, wanted, strict=True)]

    def _fed(self, x: Instruction, wanted: Splits) -> list[Block]:
        """Take blocks from a queue, of which the host sends each device its own."""
        sizes = tuple(leaf.dimensions for leaf in leaves_of(x.shape))
        splits = self.whole.queue_splits(x, sizes, wanted)
        shape = self._local(x.shape, splits)
        operands = tuple(self.blocks[i][0].at for i in x.operands)
        attributes = without(x.attributes, STATED)
        at = self.draft.append(x._replace(shape=shape, operands=operands, attributes=attributes))
        pairs = zip(self._unpacked(x, at, shape), splits, strict=True)
        return [Block(i, split) for i, split in pairs]

    def _sent(self, x: Instruction, given: Sequence[Block]) -> list[Block]:
        """Hand blocks to a queue, of which the host makes whole arrays."""
        wholes = self._operand_leaves(x)
        sizes = tuple(leaf.dimensions for leaf in wholes)
        splits = self.whole.queue_splits(x, sizes, tuple(block.split for block in given))
        leaves = iter(self._moved(x, given, wholes, splits))
        packed = [self._packed(x, self.old.instructions[i].shape, leaves) for i in x.operands]
        attributes = without(x.attributes, (*STATED, "outfeed_shape"))
        at = self.draft.append(x._replace(operands=tuple(packed), attributes=attributes))
        return [Block(at, ())]

    def _local(self, shape: Shape, splits: Splits) -> Shape:
        return with_leaves(shape, map(self.on.local, leaves_of(shape), splits))

    def _annotation(self, x: Instruction, given: Sequence[Block]) -> list[Block]:
        """Remove attributes that state shardings, keep all others."""
        count = len(leaves_of(x.shape))
        if _says_nothing(x) or count != 1 or len(given) != 1:
            return list(given[:count])
        attributes = without(x.attributes, OF_WHOLES)
        shape = self.draft.shape(given[0].at)
        at = self.draft.append(
            x._replace(shape=shape, operands=(given[0].at,), attributes=attributes)
        )
        return [replace(given[0], at=at)]

    def _border(
        self, key: Key, x: Instruction, given: Sequence[Block], wanted: Splits
    ) -> list[Block]:
        """Look at values as blocks along the manual axes, or the other way round."""
        region = self.whole.regions[key]
        inside = wanted if region.enters else tuple(block.split for block in given)
        arrays = leaves_of(x.shape) if region.enters else self._operand_leaves(x)
        inside = region.nested(inside, arrays, self.axes)
        outside = region.outside(inside)
        if outside is None:
            raise self.whole.refusal(
                x,
                f"{x.name}, whose manual axes are minor to others of a dimension,",
                "let the manual axes be the first ones of each dimension",
            )
        if region.enters:
            moved = self._moved(x, given, self._operand_leaves(x), outside)
            return [Block(at, split) for at, split in zip(moved, inside, strict=True)]
        moved = self._moved(x, given, self._operand_leaves(x), inside)
        return [Block(at, split) for at, split in zip(moved, outside, strict=True)]

    def _calling(self, x: Instruction, given: Sequence[Block], wanted: Splits) -> list[Block]:
        """Write a loop, a branch or a call of computations on blocks."""
        names = x.attributes.called
        whole = self.whole
        if x.opcode == "while":
            condition = x.attributes.text("condition")
            inside = [wanted]
            written = [
                whole.computation(name, wanted, ((),) if name == condition else wanted)
                for name in names
            ]
        else:
            inside = [whole.parameter_splits(name) for name in names]
            written = [
                whole.computation(name, splits, wanted)
                for name, splits in zip(names, inside, strict=True)
            ]
            if x.opcode == "conditional":
                inside.insert(0, ((),))
        splits = tuple(split for each in inside for split in each)
        self._demand(len(self.blocks), x.operands, splits)
        leaves = iter(self._moved(x, given, self._operand_leaves(x), splits))
        packed = [self._packed(x, self.old.instructions[i].shape, leaves) for i in x.operands]
        shape = self._local(x.shape, wanted)
        if x.opcode == "custom-call":
            called = written[0].name
            attributes = Attributes({"to_apply": called}, (called,))
            x = x._replace(opcode="call", backend_config="")
        else:
            new = dict(zip(names, (c.name for c in written), strict=True))
            attributes = renamed(without(x.attributes, STATED), new)
        at = self.draft.append(
            x._replace(shape=shape, operands=tuple(packed), attributes=attributes)
        )
        pairs = zip(self._unpacked(x, at, shape), wanted, strict=True)
        return [Block(i, split) for i, split in pairs]

    def _computed(
        self, key: Key, x: Instruction, given: Sequence[Block], wanted: Splits
    ) -> list[Block]:
        if x.opcode in COLLECTIVES:
            manual = self.whole.manual.get(key, 0)
            x = x._replace(attributes=meeting_attributes(self.on.reshards, x, manual))
        cut, waits = delayed(self.module, self.old, x, given, self.axes, self.readers)
        if cut is None:
            states = (*(block.state for block in given), *map(State, wanted))
            ends = Ends(states, tuple(self._others(key[1], x.operands)), tuple(self._turns(x)))
            cut = self.whole.cuts.of(self.module, self.old, key[1], x, ends, self.whole.paths)
        self._demand(key[1], x.operands, cut.splits)
        each = zip(given, self._operand_leaves(x), cut.splits, strict=False)
        operands = [
            block.at if waits and block.partial else self.on.moved(x, block, shape, split)
            for block, shape, split in each
        ]
        leaves = iter(prepared(self.on, self.old, cut, operands))
        packed = [self._packed(x, self.old.instructions[i].shape, leaves) for i in x.operands]
        at = _handler(cut)(self.on, cut, packed)
        if cut.partial or waits:
            blocks = partial_results(self.on, cut, at)
            return [replace(b, partial=tuple(sorted((*b.partial, *waits)))) for b in blocks]
        pairs = zip(self._unpacked(x, at, self.draft.shape(at)), cut.splits[len(given) :],
                    strict=True)  # fmt: skip
        return [Block(i, split) for i, split in pairs]

    def _turns(self, x: Instruction) -> Iterator[tuple[int, int]]:
        """Yield how often an op runs for each time that an operand moves, by leaves."""
        same, count = self.whole.turns.get(self.old.name, ((), 1))
        moved_once = [i in same for i in x.operands for _ in self.blocks[i]]
        yield from ((leaf, count) for leaf, once in enumerate(moved_once) if once and count > 1)

    # ---- tuples -----------------------------------------------------------------------------

    def _packed(self, x: Instruction, shape: Shape, leaves: Iterator[int]) -> int:
        if not isinstance(shape, TupleShape):
            return next(leaves)
        elements = [self._packed(x, e, leaves) for e in shape.elements]
        packed_shape = TupleShape(tuple(map(self.draft.shape, elements)))
        return self.draft.add(x, "tuple", packed_shape, elements)

    def _unpacked(self, x: Instruction, at: int, shape: Shape) -> list[int]:
        if not isinstance(shape, TupleShape):
            return [at]
        leaves: list[int] = []
        for index, element in enumerate(shape.elements):
            leaves += self._unpacked(x, self.draft.element(x, at, index), element)
        return leaves


@lru_cache(1 << 10)
def _without_shardings(said: str) -> str:
    """Return frontend attributes but for those of shardings; empty where there are no others."""
    words = {k: v for k, v in read_frontend_attributes(said).items() if k[:8] != "xla.sdy."}
    return frontend_attributes_text(words) if words else ""


def _says_nothing(x: Instruction) -> bool:
    return x.attributes.text("custom_call_target").startswith(_SAYS_NOTHING)


def _handler(cut: Cut) -> Handler:
    """Return what writes an op on blocks."""
    named = (_HANDLERS[kind].get(cut.x.opcode) for kind in _HANDLERS if kind in cut.kinds)
    return next((handler for handler in named if handler), local_op)
