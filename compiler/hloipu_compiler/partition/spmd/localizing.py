"""The program of one device: every op on blocks, with collectives where blocks do not suffice.

For each op the axes along its factors are chosen as in propagation, the dearest to move first.
Operands come as the axes say, the op works on blocks, partial results are added up, and the result
goes to the sharding that propagation gave it. An op that cannot work on blocks works on whole
operands, on every device alike: always right, if slow. No dimension is divided unevenly.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import count

import numpy as np

from hloipu_compiler.ir.annotations import is_border, is_identity
from hloipu_compiler.ir.attributes import Attributes, SliceRange, Value
from hloipu_compiler.ir.dimension_rules import rule_in
from hloipu_compiler.ir.factors import DimensionRule, FactorKind
from hloipu_compiler.ir.graph import Computation, Instruction, Module
from hloipu_compiler.ir.ops import COLLECTIVES, ELEMENTWISE, OPS, Trait
from hloipu_compiler.ir.shapes import ArrayShape, Shape, TupleShape, leaves_of
from hloipu_compiler.partition.scans.pieces_following import combining
from hloipu_compiler.partition.spmd.axes import MOST_LISTED
from hloipu_compiler.partition.spmd.links import StatePairs, factor_places
from hloipu_compiler.partition.spmd.propagating import Propagated, parts_along
from hloipu_compiler.partition.spmd.resharding import Axes, Resharding, Split, Splits
from hloipu_compiler.passes.algebra.expand_bitcasts import plain
from hloipu_compiler.passes.framework.attribute_edits import renamed, without
from hloipu_compiler.passes.framework.constant_values import scalar_constant
from hloipu_compiler.passes.framework.names import Names
from hloipu_compiler.passes.framework.rewriting import Draft
from hloipu_runtime.errors import UnsupportedError
from hloipu_runtime.frozen import dataclass
from hloipu_runtime.kernels.core.monoids import identity
from hloipu_runtime.kernels.core.storage import storage_dtype

_ON_BLOCKS = ELEMENTWISE | frozenset(
    "copy broadcast transpose reshape dot reduce bitcast-convert sort concatenate reverse iota "
    "cholesky triangular-solve convolution pad slice dynamic-slice dynamic-update-slice gather "
    "scatter reduce-window".split()
)
"""Opcodes that work on blocks, once the sizes that their attributes state are those of blocks."""
_CALLING = frozenset("while conditional call".split())
_SUMMED = frozenset("dot convolution".split())
_AS_OFTEN = frozenset("maximum minimum and or".split())
"""Reductions that may begin with the same value several times."""
_STATED = ("sharding", "frontend_attributes")


@dataclass(frozen=True, slots=True)
class _Block:
    """One array of the new program."""

    at: int
    split: Split


def entry_splits(
    module: Module, known: Propagated, state: StatePairs = ()
) -> tuple[Splits, Splits]:
    """Return how the program of one device divides the entry's parameters and results.

    `state`: parameters, and the results that are their next values and are divided as they are.
    """
    localizing, name = _Localizing(module, known), module.entry.name
    given, results = localizing.parameter_splits(name), list(localizing.root_splits(name))
    for parameter, result in state:
        results[result] = given[parameter]
    return given, tuple(results)


def for_one_device(module: Module, known: Propagated, results: Splits | None = None) -> Module:
    """Return the program of one device of a verified module, whose parameters are blocks.

    `results`: how the entry's results are to be divided; None: as propagation says. Raises
    UnsupportedError E0479 for what has to be done once for all devices, or is written for each
    device already.
    """
    return _Localizing(module, known).module_made(results)


class _Localizing:
    """The module in the making."""

    def __init__(self, module: Module, known: Propagated) -> None:
        self.module, self.known = module, known
        self.made: dict[tuple[str, Splits, Splits], Computation] = {}
        """By the old name and the splits of parameters and results, callees before callers."""
        self.written: set[str] = set()
        """Old names that a new computation has."""
        self.adders: dict[str, Computation] = {}
        self.names = Names(module.computation)
        self.channels = count(1)

    def module_made(self, results: Splits | None = None) -> Module:
        """Return the program of one device."""
        if self.known.axes.device_count > MOST_LISTED:
            raise _refusal(f"a program for {self.known.axes.device_count:,} devices")
        for computation in self.module.computations:
            for position, x in enumerate(computation.instructions):
                self._check(x)
                found = self.known.result((computation.name, position))
                if any(sharding.unreduced for sharding in found):
                    raise _refusal(f"{x.name}, of which devices hold partial results,")
        entry = self.module.entry
        results = self.root_splits(entry.name) if results is None else results
        self.computation(entry.name, self.parameter_splits(entry.name), results)
        computations = (*self._kept(), *self.adders.values(), *self.made.values())
        header: dict[str, Value] = {"num_partitions": self.known.axes.device_count}
        if "replica_count" in self.module.attributes:
            header["replica_count"] = self.module.attributes.integer("replica_count")
        return replace(
            self.module,
            computations=computations,
            entry_position=len(computations) - 1,
            attributes=Attributes(header),
        )

    def _kept(self) -> list[Computation]:
        """Return the old computations that are still called: those of elements, and whole ones."""
        new = {*(c.name for c in self.adders.values()), *(c.name for c in self.made.values())}
        todo = list(self.made.values())
        called: dict[str, Computation] = {}
        for computation in todo:
            for x in computation.instructions:
                for name in x.attributes.called:
                    if name not in new and name not in called:
                        called[name] = self.module.computation[name]
                        todo.append(called[name])
        return list(called.values())

    def computation(self, name: str, given: Splits, results: Splits) -> Computation:
        """Return a computation on blocks; a second one of a name has a name of its own."""
        key = (name, given, results)
        if key not in self.made:
            made = _Writer(self, self.module.computation[name], given).written(results)
            is_first = name not in self.written
            self.written.add(name)
            self.made[key] = made if is_first else replace(made, name=self.names.fresh(name))
        return self.made[key]

    def splits(self, name: str, position: int) -> Splits:
        """Return the sharding that propagation gave each leaf, as far as it divides evenly."""
        arrays = leaves_of(self.module.computation[name].instructions[position].shape)
        found = self.known.result((name, position))
        return tuple(
            tuple(
                self.even(parts, n)
                for parts, n in zip(sharding.dimensions, shape.dimensions, strict=True)
            )
            for sharding, shape in zip(found, arrays, strict=True)
        )

    def parameter_splits(self, name: str) -> Splits:
        """Return the shardings of all parameters of a computation, leaf by leaf."""
        positions = self.module.computation[name].parameters
        return tuple(split for i in positions for split in self.splits(name, i))

    def root_splits(self, name: str) -> Splits:
        """Return the shardings of a computation's results, leaf by leaf."""
        return self.splits(name, self.module.computation[name].root)

    def even(self, parts: Axes, size: int) -> Axes:
        """Return as many of the parts as divide a size."""
        kept = 0
        while kept < len(parts) and size % self.known.axes.extent(parts[: kept + 1]) == 0:
            kept += 1
        return parts[:kept]

    def adder(self, shape: ArrayShape) -> str:
        """Return the name of a computation that adds two scalars."""
        kind = shape.element_type
        if kind.name not in self.adders:
            scalar = plain(kind, ())
            a = Instruction("a", "parameter", scalar, parameter_number=0)
            b = Instruction("b", "parameter", scalar, parameter_number=1)
            added = Instruction("sum", "add", scalar, (0, 1))
            name = self.names.fresh(f"add.{kind.name}")
            self.adders[kind.name] = Computation(name, (a, b, added), 2)
        return self.adders[kind.name].name

    def _check(self, x: Instruction) -> None:
        acts = Trait.SIDE_EFFECT in OPS[x.opcode].traits and x.opcode != "custom-call"
        acts = acts or x.attributes.flag("custom_call_has_side_effect")
        per_device = x.opcode in COLLECTIVES or x.opcode in ("partition-id", "replica-id", "rng")
        if is_identity(x) or not (acts or per_device or is_border(x)):
            return
        error = _refusal(f"{x.opcode} {x.name}")
        error.span = self.module.span(x)
        raise error


def _refusal(what: str) -> UnsupportedError:
    return UnsupportedError(
        "E0479",
        f"{what} cannot be written for each device",
        hint="partition only modules without effects, manual regions and collectives, for "
        f"{MOST_LISTED:,} devices at most",
    )


class _Writer:
    """One computation in the making."""

    def __init__(self, whole: _Localizing, old: Computation, given: Splits) -> None:
        self.whole, self.old, self.given = whole, old, given
        self.module, self.known = whole.module, whole.known
        self.draft = Draft(self.module, old)
        self.reshards = Resharding(self.draft, self.known.axes, whole.channels)
        self.blocks: list[tuple[_Block, ...]] = []
        """Of each instruction, leaf by leaf."""

    def written(self, results: Splits) -> Computation:
        """Return the computation, whose results are split so."""
        for position, x in enumerate(self.old.instructions):
            self.blocks.append(self._written(position, x))
        x = self.old.instructions[self.old.root]
        root = self._packed(x, x.shape, self._moved(x, self.blocks[self.old.root], results))
        return replace(self.old, instructions=tuple(self.draft.made), root=root)

    def _moved(self, x: Instruction, blocks: Sequence[_Block], splits: Splits) -> Iterator[int]:
        """Return blocks with other splits."""
        pairs = zip(blocks, splits, strict=True)
        return iter([self.reshards.resharded(x, b.at, b.split, split) for b, split in pairs])

    # ---- one op -----------------------------------------------------------------------------

    def _written(self, position: int, x: Instruction) -> tuple[_Block, ...]:
        given = [block for i in x.operands for block in self.blocks[i]]
        wanted = self.whole.splits(self.old.name, position)
        if x.opcode == "parameter":
            made = self._parameter(x)
        elif x.opcode == "tuple" or (is_identity(x) and len(given) == len(wanted)):
            made = given
        elif x.opcode == "get-tuple-element":
            made = self._element(x)
        elif x.opcode in _CALLING:
            made = self._calling(x, given, wanted)
        else:
            made = self._computed(x, given, wanted)
        moved = self._moved(x, made, wanted)
        return tuple(_Block(at, split) for at, split in zip(moved, wanted, strict=True))

    def _parameter(self, x: Instruction) -> list[_Block]:
        before = sum(
            len(leaves_of(self.old.instructions[i].shape))
            for i in self.old.parameters[: x.parameter_number]
        )
        wanted = self.given[before : before + len(leaves_of(x.shape))]
        shapes = iter(
            self.reshards.local(shape, split)
            for shape, split in zip(leaves_of(x.shape), wanted, strict=True)
        )
        shape = _with_leaves(x.shape, shapes)
        at = self.draft.append(x._replace(shape=shape, attributes=without(x.attributes, _STATED)))
        positions = self._unpacked(x, at, shape)
        return [_Block(i, split) for i, split in zip(positions, wanted, strict=True)]

    def _element(self, x: Instruction) -> list[_Block]:
        shape = self.old.instructions[x.operands[0]].shape
        assert isinstance(shape, TupleShape)
        index = x.attributes.integer("index")
        before = sum(len(leaves_of(e)) for e in shape.elements[:index])
        return list(self.blocks[x.operands[0]][before : before + len(leaves_of(x.shape))])

    def _calling(self, x: Instruction, given: Sequence[_Block], wanted: Splits) -> list[_Block]:
        """Write a loop, a branch or a call of computations on blocks."""
        names = x.attributes.called
        inside: list[Splits] = []
        if x.opcode == "while":
            condition = x.attributes.text("condition")
            made = [
                self.whole.computation(name, wanted, ((),) if name == condition else wanted)
                for name in names
            ]
            inside = [wanted]
        else:
            inside = [self.whole.parameter_splits(name) for name in names]
            made = [
                self.whole.computation(name, splits, wanted)
                for name, splits in zip(names, inside, strict=True)
            ]
            if x.opcode == "conditional":
                inside.insert(0, ((),))
        leaves = self._moved(x, given, tuple(split for splits in inside for split in splits))
        packed = [self._packed(x, self.old.instructions[i].shape, leaves) for i in x.operands]
        blocks = map(self.reshards.local, leaves_of(x.shape), wanted)
        shape = _with_leaves(x.shape, iter(list(blocks)))
        new = dict(zip(names, (c.name for c in made), strict=True))
        attributes = renamed(without(x.attributes, _STATED), new)
        at = self.draft.append(
            x._replace(shape=shape, operands=tuple(packed), attributes=attributes)
        )
        pairs = zip(self._unpacked(x, at, shape), wanted, strict=True)
        return [_Block(i, split) for i, split in pairs]

    def _computed(self, x: Instruction, given: Sequence[_Block], wanted: Splits) -> list[_Block]:
        rule = rule_in(self.old, x)
        chosen: dict[int, Axes] = {}
        everything = [*(b.split for b in given), *wanted]
        if self._works_on_blocks(x) and any(map(any, everything)):
            chosen = self._chosen(x, rule, everything)
        arrays = (*rule.operands, *rule.results)
        splits = [
            tuple(tuple(p for f in numbers for p in chosen.get(f, ())) for numbers in dimensions)
            for dimensions in arrays
        ]
        operands = [
            self.reshards.resharded(x, block.at, block.split, split)
            for block, split in zip(given, splits, strict=False)
        ]
        results = splits[len(given) :]
        partial = [
            p for f, parts in chosen.items() for p in parts
            if rule.factors[f].kind is FactorKind.REDUCTION
        ]  # fmt: skip
        leaves = iter(operands)
        packed = [self._packed(x, self.old.instructions[i].shape, leaves) for i in x.operands]
        at = self._op(x, packed, results, partial)
        if partial:
            return [self._combined(x, at, (results[0], wanted[0]), partial)]
        shape = self.draft.shape(at)
        pairs = zip(self._unpacked(x, at, shape), results, strict=True)
        return [_Block(i, split) for i, split in pairs]

    def _combined(
        self, x: Instruction, at: int, splits: tuple[Split, Split], partial: list[int]
    ) -> _Block:
        """Combine partial results, and leave each device its part where that is all it needs."""
        own, wanted = list(splits[0]), splits[1]
        shape = self.draft.shape(at)
        assert isinstance(shape, ArrayShape)
        is_reduction = combining(self.module, x) is not None
        reducer = x.attributes.text("to_apply") if is_reduction else self.whole.adder(shape)
        left = list(partial)
        for d, parts in enumerate(wanted):
            more = parts[len(own[d]) :]
            if more and parts == own[d] + more and set(more) <= set(left):
                at = self.reshards.scattered(x, at, d, more, reducer)
                own[d] = parts
                left = [p for p in left if p not in more]
        if left:
            at = self.reshards.reduced(x, at, left, reducer)
        return _Block(at, tuple(own))

    def _works_on_blocks(self, x: Instruction) -> bool:
        groups = ("feature_group_count", "batch_group_count")
        return x.opcode in _ON_BLOCKS and all(x.attributes.integer(g, 1) == 1 for g in groups)

    def _chosen(self, x: Instruction, rule: DimensionRule, splits: list[Split]) -> dict[int, Axes]:
        """Return the parts along each factor, disjoint, the dearest to move first."""
        axes = self.known.axes
        shapes = [*(s for i in x.operands for s in leaves_of(self.old.instructions[i].shape))]
        shapes += leaves_of(x.shape)
        kinds = {FactorKind.PASS_THROUGH}
        if x.opcode in _SUMMED or combining(self.module, x) is not None:
            kinds.add(FactorKind.REDUCTION)
        weights: dict[tuple[int, Axes], int] = {}
        for (array, factor), parts in parts_along(axes, rule, splits).items():
            known = rule.factors[factor]
            if known.kind in kinds:
                even = self.whole.even(parts, known.size)
                weights[factor, even] = weights.get((factor, even), 0) + shapes[array].byte_count
        order = sorted(weights, key=lambda e: (-weights[e], -axes.extent(e[1]), e[0]))
        chosen: dict[int, Axes] = {}
        taken: set[int] = set()
        for factor, parts in order:
            if parts and factor not in chosen and not taken.intersection(parts):
                chosen[factor] = parts
                taken.update(parts)
        self._without_strides(rule, chosen)
        return chosen

    def _without_strides(self, rule: DimensionRule, chosen: dict[int, Axes]) -> None:
        """Drop what is minor to a factor of its dimension that is not divided to the end."""
        axes = self.known.axes
        arrays = (*rule.operands, *rule.results)
        again = any(len(numbers) > 1 for dimensions in arrays for numbers in dimensions)
        while again:
            again = False
            for places in factor_places(rule):
                for array, d, k in places:
                    numbers = arrays[array][d]
                    full = all(
                        axes.extent(chosen.get(f, ())) == rule.factors[f].size for f in numbers[:k]
                    )
                    if not full and numbers[k] in chosen:
                        del chosen[numbers[k]]
                        again = True

    def _op(
        self, x: Instruction, operands: list[int], results: Sequence[Split], partial: list[int]
    ) -> int:
        """Write an op on blocks; its result may be partial."""
        shapes = [
            self.reshards.local(shape, split)
            for shape, split in zip(leaves_of(x.shape), results, strict=True)
        ]
        shape = _with_leaves(x.shape, iter(shapes))
        attributes = self._attributes(x, operands, shape)
        opcode = combining(self.module, x)
        if partial and opcode is not None:
            operands[1] = self._begun(x, opcode, operands[1], partial)
        made = x._replace(shape=shape, operands=tuple(operands), attributes=attributes)
        if partial:
            made = made._replace(name=self.draft.fresh_name(f"{x.name}.partial"))
        return self.draft.append(made)

    def _begun(self, x: Instruction, opcode: str, at: int, partial: Sequence[int]) -> int:
        """Return what partial reductions begin with, so that it counts once in all."""
        scalar = self.draft.shape(at)
        assert isinstance(scalar, ArrayShape)
        neutral = np.asarray(identity(opcode, storage_dtype(scalar.element_type.name)))
        stated = scalar_constant(self.old.instructions[x.operands[1]])
        if opcode in _AS_OFTEN or (stated is not None and np.array_equal(stated, neutral)):
            return at
        return self.reshards.once(x, at, neutral, partial)

    def _attributes(self, x: Instruction, operands: Sequence[int], shape: Shape) -> Attributes:
        """Return an op's attributes with the sizes of blocks."""
        attributes = without(x.attributes, _STATED)
        if not isinstance(shape, ArrayShape) or not x.operands:
            return attributes
        old = self.old.instructions[x.operands[0]].shape
        new = self.draft.shape(operands[0])
        if not isinstance(old, ArrayShape) or not isinstance(new, ArrayShape):
            return attributes
        if x.opcode == "slice":
            ranges = x.attributes["slice"]
            assert isinstance(ranges, tuple)
            cut = tuple(
                SliceRange(0, n) if n != m else r
                for r, m, n in zip(ranges, old.dimensions, new.dimensions, strict=True)
            )
            return attributes.replaced(slice=cut)  # type: ignore[arg-type]
        if "dynamic_slice_sizes" in attributes:
            return attributes.replaced(dynamic_slice_sizes=shape.dimensions)
        if "slice_sizes" in attributes:
            sizes = x.attributes.integers("slice_sizes")
            both = zip(sizes, old.dimensions, new.dimensions, strict=True)
            whole = tuple(n if s == m else s for s, m, n in both)
            return attributes.replaced(slice_sizes=whole)
        return attributes

    # ---- tuples -----------------------------------------------------------------------------

    def _packed(self, x: Instruction, shape: Shape, leaves: Iterator[int]) -> int:
        """Return one value of a shape from its leaves."""
        if not isinstance(shape, TupleShape):
            return next(leaves)
        elements = [self._packed(x, e, leaves) for e in shape.elements]
        made = TupleShape(tuple(map(self.draft.shape, elements)))
        return self.draft.add(x, "tuple", made, elements)

    def _unpacked(self, x: Instruction, at: int, shape: Shape) -> list[int]:
        """Return the leaves of one value."""
        if not isinstance(shape, TupleShape):
            return [at]
        found: list[int] = []
        for index, element in enumerate(shape.elements):
            part = self.draft.add(
                x, "get-tuple-element", element, (at,), Attributes({"index": index})
            )
            found += self._unpacked(x, part, element)
        return found


def _with_leaves(shape: Shape, leaves: Iterator[ArrayShape]) -> Shape:
    """Return a shape of the same structure with other arrays."""
    if isinstance(shape, TupleShape):
        return TupleShape(tuple(_with_leaves(e, leaves) for e in shape.elements))
    return next(leaves)
