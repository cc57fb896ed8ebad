"""Sinks reshapes below ops that do not depend on shape, until pairs cancel.

    s = f32[8] reduce(x, zero)                 s = f32[8] reduce(x, zero)
    k = f32[8,1] reshape(s)                    r = f32[8] divide(s, n)
    r = f32[8,1] divide(k, n')                 b = f32[8,64] broadcast(r)
    d = f32[8] reshape(r)
    b = f32[8,64] broadcast(d)

An elementwise op is done in the sizes that its operands have before they are reshaped, if all of
them have such: numbers are spread anew, broadcasts follow. What repeats is written out in the sizes
of the dimensions that are put together, as a number of a group of channels is for each of them:

    m = f16[9,8,4] broadcast(g), dimensions={1}       s = f16[8,4] broadcast(g), dimensions={0}
    d = f16[9,8,4] subtract(reshape(x), m)            m = f16[9,32] broadcast(f16[32] reshape(s))

Ops that reduce or repeat look through a reshape where its dimensions map to theirs. Where a reshape
splits a dimension into what is reduced and what stays, as the channels of a group norm, whole
dimensions are reduced before it, the rest of the small result after it, also where it puts them
together with a part, as PyTorch's group norm in `[batch * groups, channels * height * width]` does:
sums of floats are then added up in another order, those of narrow floats in f32.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import NamedTuple

from hloipu_compiler.ir.attributes import Attributes
from hloipu_compiler.ir.graph import Instruction
from hloipu_compiler.ir.literals import Literal
from hloipu_compiler.ir.ops import OPS, Trait
from hloipu_compiler.ir.shapes import ArrayShape, array_shape, sizes_of
from hloipu_compiler.passes.algebra.arithmetic import commutative_region, is_value, wide_addition
from hloipu_compiler.passes.algebra.movement import became, static
from hloipu_compiler.passes.framework.rewriting import Draft, Rule
from hloipu_runtime.element_types import F32, Kind
from hloipu_runtime.program.mapping import Sizes
from hloipu_runtime.program.relation import dimension_groups

_SAID_OF_RESULT = frozenset({"sharding", "control-predecessors"})


_FEWEST_TIMES = 4
"""That what is written out repeats: it is stored, and small beside what it goes with. Assumed."""


class _Operand(NamedTuple):
    """What an operand becomes in other sizes."""

    position: int
    opcode: str = ""
    """To make it with; empty: it is there."""
    dimensions: tuple[int, ...] = ()
    is_plain: bool = False
    """Whether a reshape is needed that was not needed before."""
    parts: "_Parts | None" = None
    """Of a broadcast: how its operand is written out before."""


class _Parts(NamedTuple):
    """A broadcast in the sizes of some dimensions alone, before these are put together."""

    sizes: Sizes
    places: tuple[int, ...]
    joined: Sizes


class CommonPart(NamedTuple):
    """Elements that a dimension of one shape and one of another both consist of, among others."""

    size: int
    new: int
    old: int


def common_parts(new: Sizes, old: Sizes) -> list[CommonPart]:
    """Return what the dimensions of two shapes of as many elements consist of, in order.

    `[9,32]` and `[36,8]` have the parts 9, 4 and 8. Where dimensions have no such parts, as those
    of `[6,4]` and `[8,3]`, each goes with all. Dimensions of one element have none.
    """
    parts: list[CommonPart] = []
    for new_ones, old_ones in dimension_groups(new, old):
        group: list[CommonPart] = []
        new_left, old_left = [new[d] for d in new_ones], [old[d] for d in old_ones]
        i = j = 0
        while i < len(new_ones):
            size = min(new_left[i], old_left[j])
            if new_left[i] % size or old_left[j] % size:
                group = [
                    CommonPart(old[b] if a == new_ones[0] else 1, a, b)
                    for b in old_ones
                    for a in new_ones
                ]
                break
            group.append(CommonPart(size, new_ones[i], old_ones[j]))
            new_left[i] //= size
            old_left[j] //= size
            i, j = i + (new_left[i] == 1), j + (old_left[j] == 1)
        parts += group
    return parts


def only_ones_differ(a: Sizes, b: Sizes) -> bool:
    """Whether two shapes differ in dimensions of one element only."""
    return [n for n in a if n != 1] == [n for n in b if n != 1]


def replaced_dimensions(
    dimensions: Sequence[int], source: Sizes, old: Sizes, new: Sizes
) -> tuple[int, ...] | None:
    """Return which new dimensions are some old ones; None where one of them is merged or split."""
    if not prod(old):
        return None
    alone = {o[0]: n[0] for n, o in dimension_groups(new, old) if len(o) == len(n) == 1}
    free = [d for d, size in enumerate(new) if size == 1]
    new_dimensions = []
    for d, size in zip(dimensions, source, strict=True):
        if old[d] == 1 and size == 1:
            if not free:
                return None
            new_dimensions.append(free.pop(0))
        elif d in alone:
            new_dimensions.append(alone[d])
        else:
            return None
    return tuple(new_dimensions)


def _elementwise(draft: Draft, op: Instruction) -> Instruction | None:
    """Do an op on what its operands were before they were reshaped, and reshape the result."""
    shape = static(op.shape)
    if shape is None or not shape.dimensions or not prod(shape.dimensions):
        return None
    if not _SAID_OF_RESULT.isdisjoint(op.attributes):
        return None
    sources = [
        None if _is_row_taken(draft, at) else _source(draft, at, shape.dimensions)
        for at in op.operands
    ]
    sizes = next((s.dimensions for s in sources if s is not None), None)
    if sizes is None:
        return None
    forms = [_in_sizes(draft, at, sizes, s) for at, s in zip(op.operands, sources, strict=True)]
    plain = sum(item.is_plain for item in forms)
    moved = sum(s is not None for s in sources)
    if plain and (plain >= moved or not only_ones_differ(sizes, shape.dimensions)):
        return None
    operands = [
        _resized(draft, at, sizes, item) for at, item in zip(op.operands, forms, strict=True)
    ]
    inner = draft.add(op, op.opcode, ArrayShape(shape.element_type, sizes), operands, op.attributes)
    return became(op, "reshape", (inner,))


def _in_sizes(draft: Draft, at: int, sizes: Sizes, source: ArrayShape | None) -> _Operand:
    """Return how an operand comes to have other sizes; `source`: its shape before a reshape."""
    op = draft.made[at]
    if not sizes_of(op.shape):
        return _Operand(at)
    if source is not None and source.dimensions == sizes:
        return _Operand(op.operands[0])
    if op.opcode == "broadcast" and static(draft.shape(op.operands[0])) is not None:
        places = op.attributes.integers("dimensions")
        inner = sizes_of(draft.made[op.operands[0]].shape)
        dimensions = replaced_dimensions(places, inner, sizes_of(op.shape), sizes)
        if dimensions is not None:
            return _Operand(op.operands[0], "broadcast", dimensions)
        found = _written_out(places, inner, sizes_of(op.shape), sizes)
        if found is not None:
            return _Operand(op.operands[0], "broadcast", found[0], parts=found[1])
    return _Operand(at, "reshape", (), True)


def _written_out(
    places: Sequence[int], inner: Sizes, old: Sizes, new: Sizes
) -> tuple[tuple[int, ...], _Parts] | None:
    """Return which new dimensions a broadcast follows, written out where these join old ones.

    None where that is as large as all of the result, or where its operand repeats within itself.
    """
    parts = common_parts(new, old)
    follows = sorted({part.new for part in parts if part.old in places})
    many = [1] * len(old)
    for part in parts:
        if part.new in follows:
            many[part.old] *= part.size
    if any(many[d] != size for d, size in zip(places, inner, strict=True)):
        return None
    here = [d for d, size in enumerate(many) if size != 1 or d in places]
    sizes, joined = tuple(many[d] for d in here), tuple(new[d] for d in follows)
    if prod(sizes) * _FEWEST_TIMES > prod(old):
        return None
    return tuple(follows), _Parts(sizes, tuple(map(here.index, places)), joined)


def _resized(draft: Draft, at: int, sizes: Sizes, item: _Operand) -> int:
    """Return the position of an operand in other sizes."""
    if not item.opcode:
        return item.position
    like = draft.made[at]
    shape = ArrayShape(like.shape.element_type, sizes)  # type: ignore[union-attr]
    if item.parts is not None:
        few = replace(shape, dimensions=item.parts.sizes)
        own = Attributes({"dimensions": item.parts.places})
        spread = draft.add(like, "broadcast", few, (item.position,), own)
        few = replace(shape, dimensions=item.parts.joined)
        joined = draft.add(like, "reshape", few, (spread,), Attributes({}))
        item = item._replace(position=joined)
    own = Attributes({"dimensions": item.dimensions} if item.opcode == "broadcast" else {})
    return draft.add(like, item.opcode, shape, (item.position,), own)


def _is_row_taken(draft: Draft, at: int) -> bool:
    """Whether a reshape leaves dimensions of one element of a slice: it is read without them."""
    op = draft.made[at]
    return (
        op.opcode == "reshape"
        and draft.made[op.operands[0]].opcode == "dynamic-slice"
        and len(sizes_of(op.shape)) < len(sizes_of(draft.shape(op.operands[0])))
        and only_ones_differ(sizes_of(op.shape), sizes_of(draft.shape(op.operands[0])))
    )


def _source(draft: Draft, at: int, sizes: Sizes) -> ArrayShape | None:
    """Return the shape before a reshape to these sizes; None where there is no reshape."""
    op = draft.made[at]
    if op.opcode != "reshape" or sizes_of(op.shape) != sizes or "sharding" in op.attributes:
        return None
    return static(draft.shape(op.operands[0]))


def _broadcast(draft: Draft, op: Instruction) -> Instruction | None:
    """Repeat what was only given dimensions of one element."""
    operand = draft.made[op.operands[0]]
    seen = sizes_of(operand.shape)
    inner = _source(draft, op.operands[0], seen)
    if static(op.shape) is None or inner is None or not prod(seen):
        return None
    if not only_ones_differ(inner.dimensions, seen):
        return None
    sizes, places = sizes_of(op.shape), op.attributes.integers("dimensions")
    ones = [places[d] for d, size in enumerate(seen) if size == 1 and sizes[places[d]] == 1]
    others = [places[d] for d, size in enumerate(seen) if size != 1]
    new_places = []
    for size in inner.dimensions:
        if size != 1:
            new_places.append(others.pop(0))
        elif ones:
            new_places.append(ones.pop(0))
        else:
            return None
    return became(op, "broadcast", operand.operands, dimensions=tuple(new_places))


def _reduce(draft: Draft, op: Instruction) -> Instruction | None:
    """Reduce before reshaping, where whole dimensions are reduced and the others stay."""
    shape = static(op.shape)
    if shape is None or len(op.operands) != 2 or not _SAID_OF_RESULT.isdisjoint(op.attributes):
        return None
    operand = draft.made[op.operands[0]]
    inner = _source(draft, op.operands[0], sizes_of(operand.shape))
    if inner is None or not prod(inner.dimensions):
        return None
    new = inner.dimensions
    seen = sizes_of(operand.shape)
    reduced = set(op.attributes.integers("dimensions"))
    parts = common_parts(new, seen)
    stays = {part.new for part in parts if part.old not in reduced}
    dimensions = sorted({part.new for part in parts} - stays)
    later = dict.fromkeys(reduced, 1)
    for part in parts:
        if part.new in stays and part.old in reduced:
            later[part.old] *= part.size
    kept = [d for d in range(len(seen)) if later.get(d, 0) != 1]
    rest = [n for n, d in enumerate(kept) if d in reduced]
    if rest and prod(new[d] for d in dimensions) == 1:
        return None
    if rest and not _reduces_twice(draft, op):
        return _reduced_wide(draft, op)
    left = tuple(size for d, size in enumerate(new) if d not in dimensions)
    attributes = op.attributes.replaced(dimensions=tuple(sorted(dimensions)))
    operands = (operand.operands[0], op.operands[1])
    if left == shape.dimensions:
        return op._replace(operands=operands, attributes=attributes, start=-1, end=-1)
    reduced_at = draft.add(op, "reduce", ArrayShape(shape.element_type, left), operands, attributes)
    if not rest:
        return became(op, "reshape", (reduced_at,))
    split = ArrayShape(shape.element_type, tuple(later.get(d, seen[d]) for d in kept))
    reduced_at = draft.add(op, "reshape", split, (reduced_at,))
    attributes = op.attributes.replaced(dimensions=tuple(rest))
    return op._replace(
        operands=(reduced_at, op.operands[1]), attributes=attributes, start=-1, end=-1
    )


def _reduced_wide(draft: Draft, op: Instruction) -> Instruction | None:
    """Return a sum of narrow floats as one of f32, which may be done in two, rounded at the end."""
    shape, operand = array_shape(op.shape), draft.made[op.operands[0]]
    kind, inner = shape.element_type, array_shape(draft.shape(operand.operands[0]))
    region = wide_addition(draft.module)
    is_sum = commutative_region(draft.module.computation[op.attributes.called[0]]) == "add"
    if kind.kind is not Kind.FLOAT or not region or not is_sum:
        return None
    if not is_value(draft, op.operands[1], 0):
        return None
    source = draft.add(op, "convert", ArrayShape(F32, inner.dimensions), operand.operands)
    seen = draft.add(op, "reshape", ArrayShape(F32, sizes_of(operand.shape)), (source,))
    zero = draft.add(op, "constant", ArrayShape(F32), literal=Literal("0"))
    dimensions = op.attributes.integers("dimensions")
    how = Attributes({"dimensions": dimensions, "to_apply": region}, (region,))
    few = ArrayShape(F32, shape.dimensions)
    wide = op._replace(operands=(seen, zero), attributes=how, shape=few)
    split = _reduce(draft, wide)
    if split is None:
        return None
    total = draft.add(op, split.opcode, few, split.operands, split.attributes)
    return became(op, "convert", (total,))


def _reduces_twice(draft: Draft, op: Instruction) -> bool:
    """Whether a reduction may be done in two, each from the same start.

    Sums of narrow floats may not: what is between the two would be rounded.
    """
    opcode = commutative_region(draft.module.computation[op.attributes.called[0]])
    if opcode in ("maximum", "minimum", "and", "or"):
        return True
    element_type = array_shape(op.shape).element_type
    if opcode not in ("add", "multiply") or (
        element_type.kind is Kind.FLOAT and element_type.bits < 32
    ):
        return False
    return is_value(draft, op.operands[1], 0 if opcode == "add" else 1)


RESHAPE_RULES: dict[str, Rule] = {
    **{
        name: _elementwise
        for name, op in OPS.items()
        if Trait.ELEMENTWISE in op.traits and not op.traits & (Trait.LEGACY | Trait.RANDOM)
    },
    "broadcast": _broadcast,
    "reduce": _reduce,
}
