"""Multiplies numbers of 8 bits and fewer as f16, which holds each exactly; complex ones by parts.

The matrix units know f16 and f32 alone. A product of others is a loop that multiplies integers one
by one, or that brings 8-bit floats to f16 on every tile that takes part, again in every piece:

    p = s32[9,7] dot(x, y)                         a = f16[9,64] convert(x)
                                                   b = f16[64,7] convert(y)
                                                   f = f32[9,7] dot(a, b)
                                                   p = s32[9,7] convert(f)

Floats of 8 bits and fewer are numbers of f16, and sums of them are kept in f32 either way. Sums of
integers are exact in f32, in any order, while none can pass 2^24: longer ones of a `dot` are cut
into pieces that cannot, which are added up as integers.

Products that XLA:CPU made of f16 and other small numbers convert both sides to f32 first: they are
taken from before that, as the products of such numbers are exact in f32, in which they are summed.

A product of complex numbers is a loop, too: of many, the products of their parts take less.

Where products add up over several dimensions one of them is cut into pieces for the tiles. Of few
results each is the work of many tiles, more than that dimension has elements: dimensions that stand
together in both operands become one before, as in the gradient of a gate on some qubits:

    g = f32[2,2] dot(x, y),                        a = f32[4096,2] reshape(x)
      lhs_contracting_dims={0,1,2,...},            b = f32[4096,2] reshape(y)
      rhs_contracting_dims={0,1,2,...}             g = f32[2,2] dot(a, b), ...={0}, ...={0}
"""

from math import prod
from typing import ClassVar

from hloipu_compiler.ir.attributes import Attributes, ConvolutionLabels, SliceRange
from hloipu_compiler.ir.graph import Instruction, Module
from hloipu_compiler.ir.ops import PRODUCTS
from hloipu_compiler.ir.shapes import ArrayShape
from hloipu_compiler.passes.algebra.movement import became, static
from hloipu_compiler.passes.framework.pass_base import NO_DEAD_CODE, Facts, Pass
from hloipu_compiler.passes.framework.registry import register
from hloipu_compiler.passes.framework.rewriting import (
    Draft,
    Rule,
    rewritten_in_place,
    with_operands,
)
from hloipu_compiler.plan.plan import Plan
from hloipu_runtime.element_types import (
    C64,
    ELEMENT_TYPES,
    F32,
    GRIDS,
    PRED,
    S32,
    ElementType,
    Kind,
)
from hloipu_runtime.frozen import dataclass

_F16 = ELEMENT_TYPES["f16"]
_EXACT_IN_F32 = 2**24
_SIDES = ("lhs", "rhs")
_LINE = 16
"""Pieces are multiples of this deep, which a position of the matrix units takes at once."""
_MOST_PIECES = 64
"""Of one sum; assumed: longer ones, of 65,536 terms and more, stay as they are."""
_MOVES = frozenset("broadcast copy reshape reverse slice transpose".split())
_MANY_PRODUCTS = 1 << 21
"""Of complex numbers: for fewer the steps of four products take more than their loop; assumed."""
_BLOCK = 16
"""Rows, and columns, of results that a tile makes of a piece: an AMP unit takes so many at once."""
_FEW_TIMES = 8
"""That the largest dimension is too short: for less than that, operands whose other readers want
them as they are would be moved for little (assumed, by steps of networks)."""
_MANY_PIECES = 1472
"""On so many tiles the pieces of all blocks may lie: those of a GC200 and a Bow."""


def _magnitude(kind: ElementType) -> int:
    """Return the largest magnitude of integers that f16 holds exactly; 0 of other types."""
    if kind is PRED:
        return 1
    if not kind.is_integer or kind.bits > 8:
        return 0
    return 1 << (kind.bits - 1) if _is_signed(kind) else (1 << kind.bits) - 1


def _is_signed(kind: ElementType) -> bool:
    return kind.kind is Kind.SIGNED


def _is_small_float(kind: ElementType) -> bool:
    """Whether a float's numbers are numbers of f16: all but those of f8e8m0fnu are."""
    grid = GRIDS.get(kind.name)
    return grid is not None and kind.bits <= 8 and grid.largest <= GRIDS["f16"].largest


def _before_widening(draft: Draft, at: int) -> int:
    """Return the small integers that a value is converted from, or the value."""
    x = draft.made[at]
    if x.opcode != "convert" or "sharding" in x.attributes:
        return at
    before, now = static(draft.shape(x.operands[0])), static(x.shape)
    if before is None or now is None or not now.element_type.is_integer:
        return at
    small, wide = before.element_type, now.element_type
    is_same_number = wide.bits > small.bits and (_is_signed(wide) or not _is_signed(small))
    return x.operands[0] if _magnitude(small) and is_same_number else at


def _product(draft: Draft, x: Instruction) -> Instruction | None:
    """Write one product of small numbers on f16."""
    shape = static(x.shape)
    if shape is None or len(x.operands) != 2 or "sharding" in x.attributes:
        return None
    if "algorithm" in x.attributes or "sparsity" in x.attributes:
        return None
    if shape.element_type is C64:
        return _complex_product(draft, x, shape)
    if shape.element_type is F32 and all(_holds_halves(draft, at) for at in x.operands):
        unconverted = tuple(_as_halves(draft, x, at) for at in x.operands)
        return with_operands(x, unconverted)._replace(start=-1, end=-1)
    sources = tuple(_before_widening(draft, at) for at in x.operands)
    left, right = (static(draft.shape(at)) for at in sources)
    if left is None or right is None or not shape.element_count:
        return None
    kinds = (left.element_type, right.element_type)
    if any(map(_is_small_float, kinds)) and all(_is_small_float(k) or k is _F16 for k in kinds):
        return with_operands(x, tuple(_half(draft, x, at) for at in sources))._replace(
            start=-1, end=-1
        )
    largest = _magnitude(kinds[0]) * _magnitude(kinds[1])
    if not largest or not shape.element_type.is_integer:
        return None
    pieces = _pieces(x, left, right, _EXACT_IN_F32 // largest)
    if not pieces:
        return None
    halves = [_half(draft, x, at) for at in sources]
    exact, whole = (ArrayShape(kind, shape.dimensions) for kind in (F32, S32))
    total = -1
    for piece in pieces:
        operands = tuple(
            _cut(draft, x, side, at, piece) for side, at in zip(_SIDES, halves, strict=True)
        )
        name = draft.fresh_name(x.name)
        last = draft.append(x._replace(name=name, shape=exact, operands=operands, start=-1, end=-1))
        if len(pieces) == 1 and _is_signed(shape.element_type) and shape.element_type.bits >= 32:
            return became(x, "convert", (last,))
        # A float beyond a type's bounds becomes the bound, where an integer wraps.
        number = draft.add(x, "convert", whole, (last,))
        total = number if total < 0 else draft.add(x, "add", whole, (total, number))
    if shape.element_type is S32:
        return became(x, "add", draft.made[total].operands)
    return became(x, "convert", (total,))


def _holds_halves(draft: Draft, at: int) -> bool:
    """Whether the numbers of an f32 array are numbers of f16, converted and maybe moved."""
    x = draft.made[at]
    shape = static(x.shape)
    source = static(draft.shape(x.operands[0])) if len(x.operands) == 1 else None
    if shape is None or source is None or "sharding" in x.attributes:
        return False
    if shape.element_type is not F32:
        return False
    if x.opcode in _MOVES:
        return _holds_halves(draft, x.operands[0])
    kind = source.element_type
    return x.opcode == "convert" and (kind is _F16 or _is_small_float(kind) or _magnitude(kind) > 0)


def _as_halves(draft: Draft, like: Instruction, at: int) -> int:
    """Return the f16 array that an array was converted from, moved as it was."""
    x = draft.made[at]
    if x.opcode == "convert":
        return _half(draft, like, x.operands[0])
    source, shape = _as_halves(draft, like, x.operands[0]), static(x.shape)
    assert shape is not None
    return draft.add(like, x.opcode, ArrayShape(_F16, shape.dimensions), (source,), x.attributes)


def _complex_product(draft: Draft, x: Instruction, shape: ArrayShape) -> Instruction | None:
    """Write a product of many complex numbers as four of their parts."""
    left, right = (static(draft.shape(at)) for at in x.operands)
    if left is None or right is None or not left.element_type is right.element_type is C64:
        return None
    if shape.element_count * _depth(x, left, right) < _MANY_PRODUCTS:
        return None
    sides = [
        [draft.add(x, part, ArrayShape(F32, of.dimensions), (at,)) for part in ("real", "imag")]
        for at, of in zip(x.operands, (left, right), strict=True)
    ]
    whole = ArrayShape(F32, shape.dimensions)

    def product(*parts: int) -> int:
        operands = tuple(side[part] for side, part in zip(sides, parts, strict=True))
        name = draft.fresh_name(x.name)
        return draft.append(x._replace(name=name, shape=whole, operands=operands, start=-1, end=-1))

    real = draft.add(x, "subtract", whole, (product(0, 0), product(1, 1)))
    imaginary = draft.add(x, "add", whole, (product(0, 1), product(1, 0)))
    return became(x, "complex", (real, imaginary))


def _depth(x: Instruction, left: ArrayShape, right: ArrayShape) -> int:
    """Return how many products a number of the result is the sum of."""
    labels = x.attributes.get("dim_labels")
    if isinstance(labels, ConvolutionLabels):
        return right.element_count // max(1, right.dimensions[labels.rhs.index("o")])
    return prod(left.dimensions[d] for d in x.attributes.integers("lhs_contracting_dims"))


def _half(draft: Draft, x: Instruction, at: int) -> int:
    shape = static(draft.shape(at))
    if shape is None or shape.element_type is _F16:
        return at
    return draft.add(x, "convert", ArrayShape(_F16, shape.dimensions), (at,))


def _pieces(
    x: Instruction, left: ArrayShape, right: ArrayShape, longest: int
) -> list[tuple[int, int]]:
    """Return the ranges of terms that are summed in f32 at once; none where they cannot be cut."""
    depth = _depth(x, left, right)
    if depth <= longest:
        return [(0, depth)]
    if isinstance(x.attributes.get("dim_labels"), ConvolutionLabels):
        return []
    contracting = x.attributes.integers("lhs_contracting_dims")
    each = longest // _LINE * _LINE
    if len(contracting) > 1 or depth > each * _MOST_PIECES:
        return []
    return [(start, min(start + each, depth)) for start in range(0, depth, each)]


def _cut(draft: Draft, x: Instruction, side: str, at: int, piece: tuple[int, int]) -> int:
    """Return the part of an operand that a piece of the sum reads."""
    shape = static(draft.shape(at))
    contracting = x.attributes.integers(f"{side}_contracting_dims")
    if shape is None or len(contracting) != 1:
        return at
    if piece == (0, shape.dimensions[contracting[0]]):
        return at
    ranges = [SliceRange(0, size) for size in shape.dimensions]
    ranges[contracting[0]] = SliceRange(*piece)
    part = ArrayShape(_F16, tuple(r.limit - r.start for r in ranges))
    return draft.add(x, "slice", part, (at,), Attributes({"slice": tuple(ranges)}))


def _merge_depth(draft: Draft, x: Instruction) -> Instruction | None:
    """Put contracted dimensions together where the largest alone is too short to share out."""
    shape = static(x.shape)
    sides = [static(draft.shape(at)) for at in x.operands]
    named = [x.attributes.integers(f"{side}_contracting_dims") for side in _SIDES]
    if shape is None or None in sides or len(named[0]) < 2:
        return None
    sizes = [side.dimensions for side in sides if side is not None]
    depth = [sizes[0][d] for d in named[0]]
    batch = [x.attributes.integers(f"{side}_batch_dims") for side in _SIDES]
    blocks = prod(sizes[0][d] for d in batch[0])
    for n, side_sizes in enumerate(sizes):
        free = (k for d, k in enumerate(side_sizes) if d not in named[n] and d not in batch[n])
        blocks *= -(-prod(free) // _BLOCK)
    wanted = min(prod(depth) // _LINE, _MANY_PIECES // max(1, blocks))
    if wanted < _FEW_TIMES * max(depth):
        return None
    runs = _runs(sorted(zip(*named, strict=True)))
    if len(runs) == len(depth):
        return None
    dropped = [{pair[n] for run in runs for pair in run[1:]} for n in range(2)]
    attributes, operands = dict(x.attributes.items()), []
    for n, side in enumerate(_SIDES):
        kept = [d for d in range(len(sizes[n])) if d not in dropped[n]]
        together = {run[0][n]: prod(sizes[n][pair[n]] for pair in run) for run in runs}
        whole = ArrayShape(
            draft.shape(x.operands[n]).element_type,  # type: ignore[union-attr]
            tuple(together.get(d, sizes[n][d]) for d in kept),
        )
        operands.append(draft.add(x, "reshape", whole, (x.operands[n],)))
        attributes[f"{side}_contracting_dims"] = tuple(kept.index(run[0][n]) for run in runs)
        if batch[n]:
            attributes[f"{side}_batch_dims"] = tuple(map(kept.index, batch[n]))
    return x._replace(operands=tuple(operands), attributes=Attributes(attributes), start=-1, end=-1)


def _runs(pairs: list[tuple[int, int]]) -> list[list[tuple[int, int]]]:
    """Return pairs of contracted dimensions, together what follows each other on both sides."""
    runs: list[list[tuple[int, int]]] = []
    for pair in pairs:
        if runs and (runs[-1][-1][0] + 1, runs[-1][-1][1] + 1) == pair:
            runs[-1].append(pair)
        else:
            runs.append([pair])
    return runs


@register
@dataclass(frozen=True, slots=True)
class MergeDepth(Pass):
    """Puts dimensions together that few products add up over, so that more tiles share them."""

    name: ClassVar[str] = "merge-depth"

    def run(self, module: Module, plan: Plan) -> tuple[Module, Plan]:
        """Return the module with such products rewritten, new ops on the IPUs of these."""
        return rewritten_in_place(module, plan, lambda _: {"dot": _merge_depth})


@register
@dataclass(frozen=True, slots=True)
class NarrowProducts(Pass):
    """Multiplies small numbers as f16, where that is exact, and many complex ones by parts."""

    name: ClassVar[str] = "narrow-products"
    breaks: ClassVar[Facts] = frozenset({NO_DEAD_CODE})

    def run(self, module: Module, plan: Plan) -> tuple[Module, Plan]:
        """Return the module with such products rewritten, new ops on the IPUs of these."""
        rules: dict[str, Rule] = dict.fromkeys(PRODUCTS, _product)
        return rewritten_in_place(module, plan, lambda _: rules)
