"""Which parts of the mesh divide each factor of one op.

Of a few candidates the one that costs least (`choosing`). Along a factor that an op cannot work on
in blocks it is divided by nothing; such operands are made whole, which is always right, if slow:

    all factors   rng, rng-bit-generator, custom calls without a rule, scaled and sparse products,
                  batch norms that train (along all but the feature), dynamic dimensions
    some          sorted and transformed dimensions, matrices of cholesky and triangular-solve,
                  windows at indices that are neither whole nor of one element, rows of a scatter
                  whose computation is no sum, minimum, maximum, product, and, or

Where another dimension of such an op has room, the parts go there: an all-to-all, not a gather.
Source: openxla/shardy `shardy/dialect/sdy/transforms/export/explicit_reshards_util.cc`.
"""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from math import prod

import numpy as np

from hloipu_compiler.interpret.planning.regions import monoid_of
from hloipu_compiler.ir.dimension_rules import rule_in
from hloipu_compiler.ir.factors import DimensionRule, FactorKind
from hloipu_compiler.ir.graph import Computation, Instruction, Module
from hloipu_compiler.ir.ops import COLLECTIVES, ELEMENTWISE
from hloipu_compiler.ir.shapes import ArrayShape, TupleShape, leaves_of
from hloipu_compiler.partition.spmd.axes import DeviceAxes, factor_places, parts_along
from hloipu_compiler.partition.spmd.blocks import Along
from hloipu_compiler.partition.spmd.choosing import (
    ELEMENTS_PER_BYTE,
    PRODUCTS_PER_BYTE,
    Option,
    candidates,
    cheapest,
)
from hloipu_compiler.partition.spmd.reshard_steps import Axes, Paths, Split, State
from hloipu_compiler.passes.framework.attribute_edits import without
from hloipu_compiler.passes.framework.constant_values import scalar_constant
from hloipu_runtime.frozen import dataclass
from hloipu_runtime.kernels.core.monoids import identity
from hloipu_runtime.kernels.core.storage import storage_dtype

PASS_THROUGH, REDUCTION, PERMUTATION, INDEXED, WHOLE = FactorKind

LEAF_BY_LEAF = COLLECTIVES | frozenset("opt-barrier domain add-dependency".split())
"""Opcodes that do with each operand the same: their factors have nothing to do with each other."""
WINDOWED = frozenset("slice pad reverse reduce-window convolution select-and-scatter".split())
"""Opcodes that need rows of neighbours along some dimensions."""
SUMMED = frozenset("dot convolution ragged-dot".split())
"""Opcodes whose partial results are added up."""
OFTEN = frozenset("maximum minimum and or".split())
"""Reductions that may have the same value several times."""
ON_BLOCKS = (
    ELEMENTWISE
    | LEAF_BY_LEAF
    | WINDOWED
    | SUMMED
    | frozenset(
        "copy map custom-call broadcast transpose reshape reduce bitcast-convert sort topk "
        "concatenate iota cholesky triangular-solve fft dynamic-slice dynamic-update-slice gather "
        "scatter batch-norm-inference batch-norm-training batch-norm-grad".split()
    )
)
"""Opcodes that work on blocks, once the sizes that their attributes state are those of blocks."""
_COMBINING = frozenset("reduce reduce-window scatter".split())
"""Opcodes that combine elements as a computation says."""
_MOVED_ASIDE = frozenset("sort topk fft cholesky triangular-solve".split())
"""Opcodes that cost more on whole operands than an exchange of dimensions does."""
_MASKED_READS = frozenset("gather dynamic-slice".split())
"""Opcodes of which each device reads what it has; the others read zeros."""
_SAYS_NOTHING = ("sharding", "frontend_attributes")
"""Attributes that do not say what an op computes."""
_WHOLE_RESULTS = frozenset("dynamic-slice topk".split())
"""Opcodes whose result is whole along what only they have in blocks."""


@dataclass(frozen=True)
class Cut:
    """One op of the old program and the parts that divide each factor of its rule."""

    x: Instruction
    rule: DimensionRule
    parts: Mapping[int, Axes]
    shapes: tuple[ArrayShape, ...]
    """Of whole operands, leaf by leaf, then of whole results."""
    axes: DeviceAxes
    monoid: str | None
    """What a reduction or a scatter combines with, where that is an op."""
    whole: frozenset[int] = frozenset()
    """Operands of a concatenation of which each device has all rows that any block reads."""

    def of_op(self, x: Instruction) -> "Cut":
        """Return the cut of another op that looks alike, with what is known of this one."""
        other = object.__new__(Cut)
        vars(other).update(vars(self), x=x)
        return other

    @property
    def first_result(self) -> int:
        """Number of the first array that is a result."""
        return len(self.rule.operands)

    @property
    def updates(self) -> bool:
        """Whether the op changes its first operand at indices."""
        return "scatter_dims_to_operand_dims" in self.x.attributes

    @cached_property
    def splits(self) -> list[Split]:
        """The split of each operand and result, leaf by leaf."""
        opcode, splits = self.x.opcode, []
        for array, dimensions in enumerate((*self.rule.operands, *self.rule.results)):
            bare = opcode in _WHOLE_RESULTS and array >= self.first_result
            bare |= array in self.whole
            split = []
            for numbers in dimensions:
                kept = (f for f in numbers if not bare or self.rule.kind(f) is PASS_THROUGH)
                split.append(tuple(p for f in kept for p in self.parts.get(f, ())))
            splits.append(tuple(split))
        if opcode == "select-and-scatter":  # windows are divided as what they look at
            splits[1] = splits[0]
        return splits

    @property
    def work(self) -> float:
        """What one device computes, in bytes that a link carries in the same time."""
        if self.x.opcode in SUMMED:
            every = prod(factor.size for factor in self.rule.factors)
            blocks = self.axes.extent(p for parts in self.parts.values() for p in parts)
            return every / blocks / PRODUCTS_PER_BYTE
        largest = 0.0
        for shape, split in zip(self.shapes, self.splits, strict=True):
            blocks = self.axes.extent(p for parts in split for p in parts)
            largest = max(largest, prod(shape.dimensions) / blocks)
        return largest / ELEMENTS_PER_BYTE

    @cached_property
    def partial(self) -> Axes:
        """The parts along which devices hold partial results."""
        kinds = (REDUCTION, INDEXED) if self.x.opcode in _MASKED_READS else (REDUCTION,)
        parts = self.parts_of(*kinds)
        kept = {f for result in self.rule.results for numbers in result for f in numbers}
        for f, own in self.parts.items():
            if f not in kept and self.rule.kind(f) is PERMUTATION:
                parts += own  # ranges of a window
        return tuple(sorted(parts))

    @cached_property
    def kinds(self) -> frozenset[FactorKind]:
        """The kinds of factors that are divided."""
        return frozenset(map(self.rule.kind, self.parts))

    def has(self, kind: FactorKind) -> bool:
        """Whether a factor of a kind is divided."""
        return kind in self.kinds

    def parts_of(self, *kinds: FactorKind) -> tuple[int, ...]:
        """Return all parts along factors of some kinds."""
        return tuple(p for f, ps in self.parts.items() if self.rule.kind(f) in kinds for p in ps)

    def along(self, array: int, *kinds: FactorKind) -> list[Along]:
        """Return an array's dimensions that are divided along a factor of some kinds."""
        dimensions = (*self.rule.operands, *self.rule.results)[array]
        along = []
        for d, numbers in enumerate(dimensions):
            for f in numbers:
                if f in self.parts and self.rule.kind(f) in kinds:
                    parts = self.parts[f]
                    size = self.shapes[array].dimensions[d]
                    along.append(Along(d, size, parts, self.axes.extent(parts)))
        return along


@dataclass(frozen=True)
class Ends:
    """What an op reads and is to make, leaf by leaf."""

    states: tuple[State, ...]
    """Of operands as they are, then of results as they are to be."""
    made: tuple[tuple[int, Split], ...] = ()
    """Of operands, by their numbers, shardings that other readers have them brought to."""
    turns: tuple[tuple[int, int], ...] = ()
    """How often the op runs for each time that an operand moves, where that is not once."""


class Cuts:
    """How ops of a module are divided: once for those that look alike, and read and make the same.

    `like`: those of a module with the same ops, on the same mesh; what either finds both know.
    """

    def __init__(self, like: "Cuts | None" = None) -> None:
        self.known: dict[tuple[int, Ends], Cut] = like.known if like else {}
        self.numbers: dict[Hashable, int] = like.numbers if like else {}
        """Of what ops look like."""
        self.looks: dict[tuple[str, int], int] = {}

    def of(
        self, module: Module, computation: Computation, position: int, x: Instruction, ends: Ends,
        paths: Paths,
    ) -> Cut:  # fmt: skip
        """Return how the op at a position is divided; collectives may be written as `x` says."""
        if x.opcode in COLLECTIVES:
            return cut_of(module, computation, x, ends, paths)
        key = (computation.name, position)
        look = self.looks.get(key)
        if look is None:
            look = self.looks[key] = self._look(computation, position)
        cut = self.known.get((look, ends))
        if cut is None:
            cut = self.known[look, ends] = cut_of(module, computation, x, ends, paths)
        return cut if cut.x is x else cut.of_op(x)

    def _look(self, computation: Computation, position: int) -> int:
        """Return the number of what decides how an op may be divided, beside where arrays are."""
        x = computation.instructions[position]
        shapes = tuple([computation.instructions[i].shape for i in x.operands])
        own: Hashable = (x.opcode, without(x.attributes, _SAYS_NOTHING), x.shape, shapes)
        if x.attributes.called:  # what they call, and begin with, may differ
            own = (self, computation.name, position)
        return self.numbers.setdefault(own, len(self.numbers))


def cut_of(
    module: Module, computation: Computation, x: Instruction, ends: Ends, paths: Paths
) -> Cut:
    """Return how an op is to be divided."""
    cut = whole_cut(module, computation, x, paths.axes)
    if x.opcode not in ON_BLOCKS:
        return cut
    if x.opcode == "concatenate":
        (d,) = x.attributes.integers("dimensions")
        states = enumerate(ends.states[: cut.first_result])
        cut = replace(cut, whole=frozenset(i for i, state in states if not state.split[d]))
    return replace(cut, parts=_chosen(module, computation, cut, ends, paths))


def whole_cut(module: Module, computation: Computation, x: Instruction, axes: DeviceAxes) -> Cut:
    """Return an op that nothing divides."""
    rule = rule_in(computation, x)
    shapes = [s for i in x.operands for s in leaves_of(computation.instructions[i].shape)]
    shapes += leaves_of(x.shape)
    monoid = None
    if x.opcode in _COMBINING and not isinstance(x.shape, TupleShape):
        monoid = monoid_of(module, x.attributes.text("to_apply"))
    return Cut(x, rule, {}, tuple(shapes), axes, monoid)


def _chosen(
    module: Module, computation: Computation, cut: Cut, ends: Ends, paths: Paths
) -> Mapping[int, Axes]:
    """Return the parts along each factor, disjoint: of a few candidates the cheapest."""
    x, rule, axes = cut.x, cut.rule, cut.axes
    places = factor_places(rule)
    splits = [state.split for state in ends.states]
    usable: dict[int, bool] = {}
    weights: dict[Option, int] = {}
    own: list[list[Option]] = [[] for _ in splits]
    for (array, f), parts in parts_along(axes, rule, splits).items():
        if f not in usable:
            usable[f] = _works(module, computation, cut, f, places[f])
        if not usable[f]:
            options = list(_aside(cut, splits[array], parts)) if x.opcode in _MOVED_ASIDE else []
        elif array >= cut.first_result and _from_operands(x, rule, f):
            continue
        else:
            options = [(f, _fitting(cut, f, places[f], parts))]
        for option in options:
            if option[1]:
                weights[option] = weights.get(option, 0) + cut.shapes[array].byte_count
                own[array].append(option)
    order = sorted(weights, key=lambda e: (-weights[e], -axes.extent(e[1]), e[0]))

    def compatible(options: Sequence[Option]) -> dict[int, Axes]:
        chosen: dict[int, Axes] = {}
        taken: set[tuple[int, int]] = set()
        for f, parts in options:
            group = _leaf_of(cut, places[f]) if x.opcode in LEAF_BY_LEAF else 0
            used = {(group, p) for p in parts}
            if f not in chosen and not taken & used and not _shifts(rule, places[f], chosen):
                chosen[f] = parts
                taken |= used
        _without_strides(rule, axes, places, chosen)
        return chosen

    sources: list[list[State]] = [[state] for state in ends.states]
    for i, split in ends.made:
        pairs = zip(cut.shapes[i].dimensions, split, strict=True)
        if all(n % axes.extent(parts) == 0 for n, parts in pairs):
            sources[i].append(State(split))
    turns = dict(ends.turns)

    def priced(parts: Mapping[int, Axes]) -> tuple[float, float]:
        divided = replace(cut, parts=parts)
        work = divided.work
        sent = 0.0
        for i, (state, split) in enumerate(zip(ends.states, divided.splits, strict=True)):
            if i < cut.first_result:
                each = (paths.sent_bytes(cut.shapes[i], source, split) for source in sources[i])
                sent += min(each) / turns.get(i, 1)
            else:
                result = State(split, divided.partial)
                sent += paths.sent_bytes(cut.shapes[i], result, state.split)
        return sent, work

    reduced = {f for f in usable if rule.kind(f) in (REDUCTION, INDEXED)}
    return cheapest(candidates(order, own, reduced), compatible, priced)


def _leaf_of(cut: Cut, places: Sequence[tuple[int, int, int]]) -> int:
    array = places[0][0]
    return array if array < cut.first_result else array - cut.first_result


def _from_operands(x: Instruction, rule: DimensionRule, f: int) -> bool:
    """Whether a result in blocks is no reason to divide the operands along a factor."""
    whole = x.opcode in _WHOLE_RESULTS or x.opcode == "concatenate"
    return whole and rule.kind(f) is not PASS_THROUGH


def _shifts(
    rule: DimensionRule, places: Sequence[tuple[int, int, int]], chosen: Mapping[int, Axes]
) -> bool:
    """Whether a dimension of a factor moves along another one that is divided."""
    arrays = (*rule.operands, *rule.results)
    together = {f for array, d, _ in places for f in arrays[array][d]}
    moving = any(rule.kind(f) is PERMUTATION for f in together)
    return moving and not together.isdisjoint(chosen)


def _fitting(cut: Cut, f: int, places: Sequence[tuple[int, int, int]], parts: Axes) -> Axes:
    """Return as many of the parts as a factor can be divided by."""
    arrays = (*cut.rule.operands, *cut.rule.results)
    kind, size = cut.rule.kind(f), cut.rule.factors[f].size
    if not all(cut.shapes[array].dimensions[d] for array, d, _ in places):
        return ()
    if kind is PERMUTATION:
        has_result = any(array >= cut.first_result for array, _, _ in places)
        is_even = not has_result
    else:
        is_even = any(len(arrays[array][d]) > 1 for array, d, _ in places)
        is_even |= "k" in cut.x.attributes and kind is WHOLE
        is_even |= cut.updates and kind is REDUCTION
    if cut.x.opcode == "concatenate" and kind is WHOLE:
        size = cut.shapes[-1].dimensions[places[0][1]]
    return cut.axes.even(parts, size) if is_even else fitting(cut.axes, parts, size)


def fitting(axes: DeviceAxes, parts: Axes, size: int) -> Axes:
    """Return as many of the parts as make no more blocks than a size has elements."""
    kept = 0
    while kept < len(parts) and axes.extent(parts[: kept + 1]) <= size:
        kept += 1
    return parts[:kept]


def _works(
    module: Module,
    computation: Computation,
    cut: Cut,
    f: int,
    places: Sequence[tuple[int, int, int]],
) -> bool:
    """Whether an op works on blocks along a factor."""
    x, kind = cut.x, cut.rule.kind(f)
    if kind is PASS_THROUGH:
        return True
    if kind is REDUCTION:
        if x.opcode in SUMMED or cut.monoid is not None:
            return True
        return x.opcode in _COMBINING and not cut.updates and _begins_often(module, computation, x)
    if kind is PERMUTATION:
        if x.opcode == "reduce-window":
            window = x.attributes.window().dimensions[places[0][1]]
            is_inside = max(window.pad_low, window.pad_high) <= 0 and window.base_dilation == 1
            return is_inside or cut.monoid is not None or _begins_often(module, computation, x)
        return x.opcode in WINDOWED and (
            x.opcode != "select-and-scatter" or _is_pooling(module, cut)
        )
    array, d, _ = places[0]
    size = cut.shapes[array].dimensions[d]
    read = x.attributes.integers
    if kind is INDEXED:
        rank = len(cut.shapes[0].dimensions)
        if x.opcode == "dynamic-slice":
            return len(x.operands) == 1 + rank and 2 * cut.shapes[-1].dimensions[d] <= size
        if x.opcode == "dynamic-update-slice":
            return len(x.operands) == 2 + rank
        if x.opcode == "gather":
            return read("slice_sizes")[d] == 1 and d in read("start_index_map")
        return d in read("scatter_dims_to_operand_dims") and _is_one_row(x, d, cut)
    if x.opcode == "iota":
        return d == x.attributes.integer("iota_dimension")
    return x.opcode == "concatenate" or "k" in x.attributes


def _is_one_row(x: Instruction, d: int, cut: Cut) -> bool:
    """Whether a scatter updates one row of a dimension at each index."""
    inserted = x.attributes.integers("inserted_window_dims")
    if d in inserted:
        return True
    skipped = (*inserted, *x.attributes.integers("input_batching_dims"))
    kept = [i for i in range(len(cut.shapes[0].dimensions)) if i not in skipped]
    place = x.attributes.integers("update_window_dims")[kept.index(d)]
    return cut.shapes[cut.first_result - 1].dimensions[place] == 1


def _is_pooling(module: Module, cut: Cut) -> bool:
    """Whether sums go to the greatest or least floats, so that infinite ones outside get none."""
    attributes, kind = cut.x.attributes, cut.shapes[0].element_type
    adds = any(monoid_of(module, name) == "add" for name in attributes.called)
    chooser = module.computation[attributes.text("select")]
    root = chooser.instructions[chooser.root]
    return adds and root.opcode == "compare" and storage_dtype(kind.name).kind == "f"


def _begins_often(module: Module, computation: Computation, x: Instruction) -> bool:
    """Whether a reduction may begin with its initial values several times.

    So it is where they, combined with themselves, are themselves: a reduction is associative.
    """
    count = len(x.operands) // 2
    values = [scalar_constant(computation.instructions[i]) for i in x.operands[count:]]
    reducer = module.computation[x.attributes.text("to_apply")]
    calls = any(r.attributes.called for r in reducer.instructions)
    if calls or any(value is None for value in values):
        return False
    from hloipu_compiler.interpret.evaluator import Evaluator

    evaluate = Evaluator(replace(module, computations=(reducer,), entry_position=0))
    combined = evaluate.run_stored([v.copy() for v in (*values, *values) if v is not None])
    return all(
        np.array_equal(a, b, equal_nan=a.dtype.kind == "f")
        for a, b in zip(combined, values, strict=True)
        if b is not None
    )


def is_neutral(value: object, monoid: str, shape: ArrayShape) -> bool:
    """Whether a reduction by a monoid may begin with a value any number of times."""
    neutral = np.asarray(identity(monoid, storage_dtype(shape.element_type.name)))
    return monoid in OFTEN or (value is not None and bool(np.array_equal(value, neutral)))  # type: ignore[arg-type]


def _without_strides(
    rule: DimensionRule,
    axes: DeviceAxes,
    places: Sequence[Sequence[tuple[int, int, int]]],
    chosen: dict[int, Axes],
) -> None:
    """Drop what is minor to a factor of its dimension that is not divided to the end."""
    arrays = (*rule.operands, *rule.results)
    again = True
    while again:
        again = False
        for each in places:
            for array, d, k in each:
                numbers = arrays[array][d]
                if numbers[k] not in chosen or rule.kind(numbers[k]) is PERMUTATION:
                    continue
                if any(axes.extent(chosen.get(f, ())) != rule.factors[f].size for f in numbers[:k]):
                    del chosen[numbers[k]]
                    again = True


def _aside(cut: Cut, split: Split, parts: Axes) -> Iterator[Option]:
    """Yield dimensions with room for parts that divide what is needed whole, behind their own."""
    for d, numbers in enumerate(cut.rule.operands[0]):
        if len(numbers) == 1 and cut.rule.kind(numbers[0]) is PASS_THROUGH:
            for option in dict.fromkeys(((*split[d], *parts), parts)):
                if cut.rule.factors[numbers[0]].size % cut.axes.extent(option) == 0:
                    yield numbers[0], option
