"""The dimension rule of every opcode; see `factors.py` for what a rule is.

An opcode without a rule here, and every dimension that a rule leaves out, is needed whole: always
right, if weak. `tests/compiler/ir/test_dimension_rules.py` lists those opcodes with the reasons,
and holds the rules against the interpreter: it cuts operands, computes, and joins or combines.

Source: openxla/shardy `dialect/sdy/transforms/propagation/op_sharding_rule_registry.cc`. Unlike
there, dimensions that indices point into are a kind of their own.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from math import gcd

from hloipu_compiler.ir.attributes import Attributes, ConvolutionLabels
from hloipu_compiler.ir.factors import DimensionRule, Factor, FactorKind
from hloipu_compiler.ir.graph import Computation, Instruction
from hloipu_compiler.ir.ops import OPS, Trait
from hloipu_compiler.ir.shapes import Shape, leaves_of
from hloipu_runtime.kernels.windows_geometry import WindowDimension

PASS_THROUGH, REDUCTION, PERMUTATION, INDEXED, WHOLE = FactorKind

Sizes = tuple[int, ...]
Place = tuple[int, int]
"""An array, operands before results, and one of its dimensions."""


def dimension_rule(instruction: Instruction, operands: Sequence[Shape]) -> DimensionRule:
    """Return the rule of a verified instruction, whose operands have these shapes.

    Its arrays are the leaves of all operands and of the result. Attributes that state sizes of what
    is cut (slices' ranges, groups of features) have to be cut with it.
    """
    return _rule(
        instruction.opcode,
        instruction.attributes,
        _leaf_sizes(operands),
        _leaf_sizes((instruction.shape,)),
    )


def _leaf_sizes(shapes: Sequence[Shape]) -> tuple[Sizes, ...]:
    return tuple([leaf.dimensions for shape in shapes for leaf in leaves_of(shape)])


def rule_in(computation: Computation, instruction: Instruction) -> DimensionRule:
    """Return the rule of an instruction of a computation."""
    shapes = [computation.instructions[i].shape for i in instruction.operands]
    return dimension_rule(instruction, shapes)


@lru_cache(1 << 12)
def _rule(
    opcode: str, attributes: Attributes, operands: tuple[Sizes, ...], results: tuple[Sizes, ...]
) -> DimensionRule:
    draft = _Draft(operands, results)
    rule = _RULES.get(opcode)
    if rule is not None:
        rule(draft, attributes)
    return draft.rule()


class _Draft:
    """The factors that a rule has named so far."""

    def __init__(self, operands: tuple[Sizes, ...], results: tuple[Sizes, ...]) -> None:
        self.sizes = (*operands, *results)
        self.first_result = len(operands)
        self.results = range(len(operands), len(self.sizes))
        self.everywhere = range(len(self.sizes))
        self.factors: list[Factor] = []
        self.numbers: list[list[list[int]]] = [[[] for _ in sizes] for sizes in self.sizes]

    def add(
        self, kind: FactorKind, places: Sequence[Place], size: int = -1, blocked: bool = False
    ) -> None:
        """Name a factor of some dimensions, minor to those that they have; of size 1 only alone."""
        arrays = [self.numbers[array][dimension] for array, dimension in places]
        size = size if size >= 0 else self.sizes[places[0][0]][places[0][1]]
        extended = [numbers for numbers in arrays if size != 1 or not numbers]
        for numbers in extended:
            numbers.append(len(self.factors))
        if extended:
            self.factors.append(Factor(size, kind, blocked))

    def alike(
        self,
        arrays: Sequence[int],
        kinds: Mapping[int, FactorKind] | None = None,
        blocked: bool = False,
    ) -> None:
        """Name a factor for each dimension of arrays of one rank; scalars have none.

        `kinds`: of dimensions that are not passed through; `blocked` is for these.
        """
        arrays = [a for a in arrays if self.sizes[a]]
        for d in range(len(self.sizes[arrays[0]]) if arrays else 0):
            kind = (kinds or {}).get(d, PASS_THROUGH)
            if kind is not PASS_THROUGH or len({self.sizes[a][d] for a in arrays}) == 1:
                places = [(a, d) for a in arrays]
                self.add(kind, places, blocked=blocked and kind is not PASS_THROUGH)

    def changed(self, other: int, kind: FactorKind) -> dict[int, FactorKind]:
        """Return a kind for the dimensions in which another array differs from the first."""
        pairs = zip(self.sizes[0], self.sizes[other], strict=True)
        return {d: kind for d, (m, n) in enumerate(pairs) if m != n}

    def rule(self) -> DimensionRule:
        """Return the rule, with a factor for each dimension that has none yet."""
        for array, dimensions in enumerate(self.numbers):
            for d, numbers in enumerate(dimensions):
                if not numbers:
                    self.add(WHOLE, [(array, d)])
        arrays = [tuple(map(tuple, dimensions)) for dimensions in self.numbers]
        first = self.first_result
        return DimensionRule(tuple(self.factors), tuple(arrays[:first]), tuple(arrays[first:]))


_Rule = Callable[[_Draft, Attributes], None]


def _elementwise(draft: _Draft, attributes: Attributes) -> None:
    draft.alike(draft.everywhere)


def _leaf_by_leaf(draft: _Draft, attributes: Attributes) -> None:
    """Pass each leaf on to the result of its number; collectives join or part `dimensions`."""
    kinds = dict.fromkeys(attributes.integers("dimensions"), WHOLE)
    if "slice_sizes" not in attributes:  # of a collective-permute in place
        for pair in zip(range(draft.first_result), draft.results, strict=False):
            draft.alike(pair, kinds)


def _along_whole(draft: _Draft, attributes: Attributes) -> None:
    """Need `dimensions` whole of arrays that are alike in all others."""
    draft.alike(draft.everywhere, dict.fromkeys(attributes.integers("dimensions"), WHOLE))


def _sort(draft: _Draft, attributes: Attributes) -> None:
    along = attributes.integers("dimensions")
    other_sizes = [n for d, n in enumerate(draft.sizes[0]) if d not in along and n > 1]
    draft.alike(draft.everywhere, dict.fromkeys(along, WHOLE), blocked=not other_sizes)


def _minor_whole(draft: _Draft, attributes: Attributes) -> None:
    """Work on the minor dimension, or on as many as `fft_length` has."""
    rank, count = len(draft.sizes[0]), len(attributes.integers("fft_length")) or 1
    minor = range(rank - count, rank)
    unequal = len(set(draft.sizes)) > 1
    draft.alike(draft.everywhere, dict.fromkeys(minor, WHOLE), blocked=unequal)


def _matrices(draft: _Draft, attributes: Attributes) -> None:
    """Need matrices whole; of a right side to solve for, each column (or row) is on its own."""
    *batch, rows, columns = range(len(draft.sizes[0]))
    for d in batch:
        draft.add(PASS_THROUGH, [(a, d) for a in draft.everywhere])
    right_sides = draft.everywhere[1:]
    solving = "left_side" in attributes
    row, free = (rows, columns) if attributes.flag("left_side", True) else (columns, rows)
    draft.add(WHOLE, [(0, rows), *((a, row) for a in right_sides)])
    freed = [(a, free) for a in right_sides]
    draft.add(PASS_THROUGH if solving else WHOLE, freed if solving else [(0, columns), *freed])


def _bitcast_convert(draft: _Draft, attributes: Attributes) -> None:
    """Keep all dimensions but the minor one that the narrower type has."""
    for d in range(min(map(len, draft.sizes))):
        draft.add(PASS_THROUGH, [(0, d), (1, d)])


def _broadcast(draft: _Draft, attributes: Attributes) -> None:
    before = {k: i for i, k in enumerate(attributes.integers("dimensions"))}
    for k, size in enumerate(draft.sizes[1]):
        is_copied = k in before and draft.sizes[0][before[k]] == size
        draft.add(PASS_THROUGH, [(1, k), (0, before[k])] if is_copied else [(1, k)])


def _iota(draft: _Draft, attributes: Attributes) -> None:
    for d in range(len(draft.sizes[0])):
        if d != attributes.integer("iota_dimension"):
            draft.add(PASS_THROUGH, [(0, d)])


def _transpose(draft: _Draft, attributes: Attributes) -> None:
    for k, i in enumerate(attributes.integers("dimensions")):
        draft.add(PASS_THROUGH, [(0, i), (1, k)])


def _reshape(draft: _Draft, attributes: Attributes) -> None:
    """Share a factor wherever both shapes have had as many elements; else none, until they have.

    6 x 4 to 4 x 6: 2 shared, then 3 and 4 of the one, 2 and 6 of the other.
    """
    if min((*draft.sizes[0], *draft.sizes[1], 1)) < 1:
        return
    left, right = ([(d, n) for d, n in enumerate(sizes) if n > 1] for sizes in draft.sizes)
    ahead = [1, 1]
    while left and right:
        (i, m), (k, n) = left[0], right[0]
        shared = gcd(m, n) if ahead[0] == ahead[1] else 1
        if shared > 1:
            draft.add(PASS_THROUGH, [(0, i), (1, k)], shared)
            size_by_side = shared, shared
        else:
            behind = 0 if ahead[0] <= ahead[1] else 1
            draft.add(WHOLE, [((0, i), (1, k))[behind]], (m, n)[behind])
            size_by_side = (m, 1) if behind == 0 else (1, n)
        for side, dimensions in enumerate((left, right)):
            d, remaining_size = dimensions[0]
            size = size_by_side[side]
            ahead[side] *= size
            dimensions[:1] = [(d, remaining_size // size)] if remaining_size > size else []


def _reverse(draft: _Draft, attributes: Attributes) -> None:
    draft.alike((0, 1), dict.fromkeys(attributes.integers("dimensions"), PERMUTATION))


def _slice(draft: _Draft, attributes: Attributes) -> None:
    draft.alike((0, 1), draft.changed(1, PERMUTATION))


def _pad(draft: _Draft, attributes: Attributes) -> None:
    changed = [d for d, row in enumerate(attributes.padding()) if any(row)]
    draft.alike((0, 2), dict.fromkeys(changed, PERMUTATION))


def _dynamic_slice(draft: _Draft, attributes: Attributes) -> None:
    """Dimensions that are taken whole begin at 0, whatever the index says."""
    result = draft.first_result
    draft.alike((0, result), draft.changed(result, INDEXED), blocked=True)


def _dynamic_update_slice(draft: _Draft, attributes: Attributes) -> None:
    partly = draft.changed(1, INDEXED)
    for d in range(len(draft.sizes[0])):
        places = [(0, d), (draft.first_result, d)]
        draft.add(partly.get(d, PASS_THROUGH), places if d in partly else [*places, (1, d)])


def _gather(draft: _Draft, attributes: Attributes) -> None:
    names = "offset_dims collapsed_slice_dims operand_batching_dims start_indices_batching_dims"
    _windows_at_indices(draft, attributes, names, ((0,), 1, (2,)), PASS_THROUGH)


def _scatter(draft: _Draft, attributes: Attributes) -> None:
    names = (
        "update_window_dims inserted_window_dims input_batching_dims scatter_indices_batching_dims"
    )
    count = draft.first_result // 2
    arrays = (*range(count), *draft.results), count, range(count + 1, draft.first_result)
    _windows_at_indices(draft, attributes, names, arrays, REDUCTION)


def _windows_at_indices(
    draft: _Draft,
    attributes: Attributes,
    names: str,
    arrays: tuple[Sequence[int], int, Sequence[int]],
    rows_kind: FactorKind,
) -> None:
    window_dims, collapsed, batching, index_batching = map(attributes.integers, names.split())
    data, indices, windows = arrays
    data_sizes, window_sizes = draft.sizes[data[0]], draft.sizes[windows[0]]
    for d in collapsed:
        draft.add(INDEXED, [(a, d) for a in data])
    window_operand_dims = [d for d in range(len(data_sizes)) if d not in (*collapsed, *batching)]
    for place, d in zip(window_dims, window_operand_dims, strict=True):
        places = [(a, d) for a in data]
        if window_sizes[place] == data_sizes[d]:
            draft.add(PASS_THROUGH, [*places, *((a, place) for a in windows)])
        else:
            draft.add(INDEXED, places, blocked=True)
    vector = attributes.integer("index_vector_dim")
    rows = [d for d in range(len(draft.sizes[indices])) if d != vector]
    places_of_rows = [place for place in range(len(window_sizes)) if place not in window_dims]
    batch = dict(zip(index_batching, batching, strict=True))
    for place, d in zip(places_of_rows, rows, strict=True):
        places = [(indices, d), *((a, place) for a in windows)]
        if d in batch:
            draft.add(PASS_THROUGH, [*((a, batch[d]) for a in data), *places])
        else:
            draft.add(rows_kind, places)


def _reduce(draft: _Draft, attributes: Attributes) -> None:
    arrays = range(draft.first_result // 2)
    reduced, k = attributes.integers("dimensions"), 0
    for d in range(len(draft.sizes[0])):
        places = [(a, d) for a in arrays]
        if d in reduced:
            draft.add(REDUCTION, places)
        else:
            draft.add(PASS_THROUGH, [*places, *((a, k) for a in draft.results)])
            k += 1


def _moves(window: WindowDimension) -> bool:
    """Whether a window takes in more, or other elements, than those at its own place."""
    return window != WindowDimension(
        1, window_dilation=window.window_dilation, reversal=window.reversal
    )


def _window_kinds(attributes: Attributes) -> dict[int, FactorKind]:
    windows = attributes.window().dimensions
    return {d: PERMUTATION for d, window in enumerate(windows) if _moves(window)}


def _reduce_window(draft: _Draft, attributes: Attributes) -> None:
    arrays = (*range(draft.first_result // 2), *draft.results)
    draft.alike(arrays, _window_kinds(attributes))


def _select_and_scatter(draft: _Draft, attributes: Attributes) -> None:
    kinds = _window_kinds(attributes)
    for d in range(len(draft.sizes[0])):
        places = [(0, d), (3, d)]
        draft.add(kinds.get(d, PASS_THROUGH), places if d in kinds else [*places, (1, d)])


def _product(
    draft: _Draft, attributes: Attributes, grouped: Sequence[int] = (), first: int = 0
) -> Iterator[tuple[FactorKind, list[Place]]]:
    """Yield kind and places of a product's factors; `grouped`: other dimensions of the right one.

    `first`: the number of the result's first dimension that is the product's.
    """
    names = "lhs_batch_dims rhs_batch_dims lhs_contracting_dims rhs_contracting_dims"
    left, right, left_summed, right_summed = map(attributes.integers, names.split())
    result, place = draft.first_result, first
    for i, k in zip(left, right, strict=True):
        yield PASS_THROUGH, [(0, i), (1, k), (result, place)]
        place += 1
    for i, k in zip(left_summed, right_summed, strict=True):
        yield REDUCTION, [(0, i), (1, k)]
    for side, used_dims in enumerate(((*left, *left_summed), (*right, *right_summed, *grouped))):
        for d in range(len(draft.sizes[side])):
            if d not in used_dims:
                yield PASS_THROUGH, [(side, d), (result, place)]
                place += 1


def _dot(draft: _Draft, attributes: Attributes) -> None:
    sparse = "sparsity" in attributes  # another operand says which elements there are
    for kind, places in _product(draft, attributes):
        draft.add(WHOLE if sparse else kind, places)


def _ragged_dot(draft: _Draft, attributes: Attributes) -> None:
    """Need the groups and the dimension they part whole; a ragged batch is as any other.

    Sizes of groups may differ along what is outside of them. Where the ragged dimension is
    contracted, the result's first dimension is the groups'.
    """
    ragged, *_ = attributes.integers("lhs_ragged_dims")
    grouped = attributes.integers("rhs_group_dims")
    stacked = ragged in attributes.integers("lhs_contracting_dims")
    *outer, groups = range(len(draft.sizes[2]))
    factors = list(_product(draft, attributes, grouped, 1 if stacked else 0))
    at = next(n for n, (_, places) in enumerate(factors) if (0, ragged) in places)
    ahead = [n for n in range(at) if stacked or factors[n][0] is not REDUCTION]
    for n, place in zip(ahead, outer, strict=False):
        factors[n][1].append((2, place))
    for n, (kind, places) in enumerate(factors):
        draft.add(WHOLE if n == at and (stacked or grouped) else kind, places)
    places = [(2, groups), *((1, d) for d in grouped)]
    draft.add(WHOLE, [*places, (draft.first_result, 0)] if stacked else places)


def _scaled_dot(draft: _Draft, attributes: Attributes) -> None:
    """Part each dimension into blocks that have one scale, and what is in a block."""
    for kind, places in _product(draft, attributes):
        scaled = [(a + 2, d) for a, d in places if a < 2 and draft.sizes[a + 2]]
        scaled = [(a, d) for a, d in scaled if draft.sizes[a][d] > 1]
        blocks = {draft.sizes[a][d] for a, d in scaled}
        size = draft.sizes[places[0][0]][places[0][1]]
        if len(blocks) > 1:
            draft.add(WHOLE, places)
            continue
        for count in blocks:
            draft.add(kind, [*places, *scaled], count)
            size //= count
        draft.add(kind, places, size)


def _convolution(draft: _Draft, attributes: Attributes) -> None:
    """Add factors of a product over features; along space, of windows and their overlap."""
    labels = attributes.get("dim_labels")
    if not isinstance(labels, ConvolutionLabels):
        return
    lhs, rhs, out = (
        {label: (array, d) for d, label in enumerate(text)}
        for array, text in enumerate((labels.lhs, labels.rhs, labels.out))
    )
    features = [rhs["o"], out["f"]]
    groups = 1
    for key, grouped in (("feature_group_count", lhs["f"]), ("batch_group_count", lhs["b"])):
        if (count := attributes.integer(key, 1)) > 1:
            draft.add(PASS_THROUGH, [grouped, *features], count)
            groups = count
    draft.add(PASS_THROUGH, [out["b"], lhs["b"]])
    draft.add(REDUCTION, [rhs["i"], lhs["f"]])
    draft.add(PASS_THROUGH, features, draft.sizes[1][rhs["o"][1]] // groups)
    for number, window in enumerate(attributes.window().dimensions):
        place, tap, fit = (side[str(number)] for side in (lhs, rhs, out))
        count, size = draft.sizes[2][fit[1]], draft.sizes[0][place[1]]
        if not _moves(window):
            draft.add(PASS_THROUGH, [place, fit])
        elif count == 1 and window == WindowDimension(size):
            draft.add(REDUCTION, [place, tap])
        else:
            factors = [([place, fit], count), ([place, tap], window.size)]
            for places, n in factors if count >= window.size else factors[::-1]:
                draft.add(PERMUTATION, places, n)


def _batch_norm(draft: _Draft, attributes: Attributes, other_kind: FactorKind) -> None:
    """Add factors of a kind along dimensions other than the feature, for statistics."""
    feature, rank = attributes.integer("feature_index"), len(draft.sizes[0])
    full = [a for a in draft.everywhere if len(draft.sizes[a]) == rank]
    for d in range(rank):
        if d != feature:
            draft.add(other_kind, [(a, d) for a in full])
    rows = [(a, 0) for a in draft.everywhere if a not in full]
    draft.add(PASS_THROUGH, [*((a, feature) for a in full), *rows])


def _ragged_all_to_all(draft: _Draft, attributes: Attributes) -> None:
    draft.alike((0, 1, draft.first_result), {0: WHOLE})


def _custom_call(draft: _Draft, attributes: Attributes) -> None:
    """Apply the rule that the text states for these arrays, if any."""
    from hloipu_compiler.ir.factors import batch_dimensions, stated_rule

    frontend_attributes = attributes.text("frontend_attributes")
    rule = stated_rule(frontend_attributes)
    if rule is None:
        for d in range(batch_dimensions(frontend_attributes, draft.sizes)):
            draft.add(PASS_THROUGH, [(array, d) for array in range(len(draft.sizes))])
        return
    if not rule.fits(draft.sizes) or rule.operand_count != draft.first_result:
        return
    places: dict[str, list[Place]] = {}
    for array, dimensions in enumerate(rule.arrays):
        for d, names in enumerate(dimensions):
            for name in names:
                places.setdefault(name, []).append((array, d))
    for name, factor_places in places.items():
        kind = PASS_THROUGH if name in rule.passed_through else WHOLE
        kind = REDUCTION if name in rule.reductions else kind
        draft.add(kind, factor_places, rule.sizes[name], blocked=name in rule.blocked)


_RULES: Mapping[str, _Rule] = {
    **{name: _elementwise for name, op in OPS.items() if Trait.ELEMENTWISE in op.traits},
    "map": _elementwise,
    **dict.fromkeys(
        "copy opt-barrier domain add-dependency all-reduce reduce-scatter all-gather "
        "collective-permute collective-broadcast".split(),
        _leaf_by_leaf,
    ),
    **dict.fromkeys("concatenate all-to-all".split(), _along_whole),
    "sort": _sort,
    **dict.fromkeys("fft topk".split(), _minor_whole),
    **dict.fromkeys("cholesky triangular-solve".split(), _matrices),
    "bitcast-convert": _bitcast_convert,
    "broadcast": _broadcast,
    "iota": _iota,
    "transpose": _transpose,
    "reshape": _reshape,
    "reverse": _reverse,
    "slice": _slice,
    "pad": _pad,
    "dynamic-slice": _dynamic_slice,
    "dynamic-update-slice": _dynamic_update_slice,
    "gather": _gather,
    "scatter": _scatter,
    "reduce": _reduce,
    "reduce-window": _reduce_window,
    "select-and-scatter": _select_and_scatter,
    "dot": _dot,
    "ragged-dot": _ragged_dot,
    "scaled-dot": _scaled_dot,
    "convolution": _convolution,
    "batch-norm-inference": partial(_batch_norm, other_kind=PASS_THROUGH),
    **dict.fromkeys(
        "batch-norm-training batch-norm-grad".split(), partial(_batch_norm, other_kind=WHOLE)
    ),
    "ragged-all-to-all": _ragged_all_to_all,
    "custom-call": _custom_call,
}
"""By opcode; each names the factors of the dimensions that need not be whole on their own."""
