"""Scatters of one element to each row, as gradients of losses are, become comparisons.

The gradient of a loss that reads one logit of each row adds one number to each row of zeros. As a
scatter it needs whole rows on a tile, and an array for itself; as a choice by comparison it is
where its reader wants it, and fuses with that.
"""

from typing import ClassVar, NamedTuple

from hloipu_compiler.ir.attributes import Attributes
from hloipu_compiler.ir.graph import Instruction, Module
from hloipu_compiler.passes.algebra.expand_bitcasts import plain
from hloipu_compiler.passes.algebra.indexing import single_op
from hloipu_compiler.passes.algebra.movement import became, repeating, static
from hloipu_compiler.passes.framework.pass_base import NO_DEAD_CODE, Facts, Pass
from hloipu_compiler.passes.framework.registry import register
from hloipu_compiler.passes.framework.rewriting import Draft, rewritten_in_place
from hloipu_compiler.plan.plan import Plan
from hloipu_runtime.element_types import PRED, ElementType, Kind
from hloipu_runtime.frozen import dataclass


class _RowScatter(NamedTuple):
    """A scatter that changes at most one element of each row along one dimension."""

    along: int
    indices: tuple[int, ...]
    """Dimensions of the operand that those of the indices go along, but for those of size 1."""
    updates: tuple[int, ...]
    """The same, of the updates."""


def _row_scatter(draft: Draft, x: Instruction) -> _RowScatter | None:
    """Return how a scatter changes one element of each row; None for one that may change more."""
    read = x.attributes.integers
    along, batch = read("scatter_dims_to_operand_dims"), read("input_batching_dims")
    shapes = [static(draft.shape(at)) for at in x.operands]
    if len(along) != 1 or len(shapes) != 3 or "sharding" in x.attributes:
        return None
    whole, indices, updates = shapes
    if whole is None or indices is None or updates is None:
        return None
    batch_of = dict(zip(read("scatter_indices_batching_dims"), batch, strict=True))
    vector = x.attributes.integer("index_vector_dim")
    from_indices = [batch_of.get(d, along[0]) for d in range(indices.rank) if d != vector]
    gone = {*read("inserted_window_dims"), *batch}
    rest = iter([d for d in range(whole.rank) if d not in gone])
    places = iter(from_indices)
    windows = read("update_window_dims")
    from_updates = [next(rest if d in windows else places) for d in range(updates.rank)]
    found = []
    sizes = [size for d, size in enumerate(indices.dimensions) if d != vector]
    for dimensions, lengths in ((from_indices, sizes), (from_updates, updates.dimensions)):
        pairs = list(zip(dimensions, lengths, strict=True))
        kept = tuple(d for d, _ in pairs if d != along[0])
        wanted = [1 if d == along[0] else whole.dimensions[d] for d in dimensions]
        if list(lengths) != wanted or list(kept) != sorted(kept):
            return None
        found.append(kept)
    return _RowScatter(along[0], found[0], found[1])


def _scatter(draft: Draft, x: Instruction) -> Instruction | None:
    """Make a choice by comparison of a scatter of one element a row to what a scalar fills.

    Places outside are equal to no place, as a scatter leaves out what lies outside.
    """
    how = _row_scatter(draft, x)
    whole = static(x.shape)
    filled = repeating(draft, x.operands[0])
    if how is None or whole is None or filled is None or filled.attributes.integers("dimensions"):
        return None
    region = single_op(draft.module.computation[x.attributes.called[0]])
    index, update = static(draft.shape(x.operands[1])), static(draft.shape(x.operands[2]))
    if region is None or index is None or update is None:
        return None
    kind, values = index.element_type, whole.element_type
    bits = kind.bits - (kind.kind is Kind.SIGNED)
    if update.element_type is not values or (whole.dimensions[how.along] - 1) >> bits:
        return None

    def spread(at: int, kind: ElementType, dimensions: tuple[int, ...]) -> int:
        wanted = Attributes({"dimensions": dimensions})
        return draft.add(x, "broadcast", plain(kind, whole.dimensions), (at,), wanted)

    small = plain(values, tuple([whole.dimensions[d] for d in how.updates]))
    new = draft.add(x, "reshape", small, x.operands[2:])
    opcode, order = region
    if opcode:
        none = Attributes({"dimensions": ()})
        sides = draft.add(x, "broadcast", small, filled.operands, none), new
        new = draft.add(x, opcode, small, (sides[order[0]], sides[order[1]]))
    rows = plain(kind, tuple([whole.dimensions[d] for d in how.indices]))
    wanted = draft.add(x, "reshape", rows, (x.operands[1],))
    line = plain(kind, (whole.dimensions[how.along],))
    places = draft.add(x, "iota", line, (), Attributes({"iota_dimension": 0}))
    is_there = draft.add(
        x,
        "compare",
        plain(PRED, whole.dimensions),
        (spread(places, kind, (how.along,)), spread(wanted, kind, how.indices)),
        Attributes({"direction": "EQ"}),
    )
    return became(x, "select", (is_there, spread(new, values, how.updates), x.operands[0]))


@register
@dataclass(frozen=True, slots=True)
class CompareScattered(Pass):
    """Makes comparisons of scatters of one element a row to what a scalar fills.

    After steps are cut: what is gradient and what update is told by the ops of the text.
    """

    name: ClassVar[str] = "compare-scattered"
    breaks: ClassVar[Facts] = frozenset({NO_DEAD_CODE})

    def run(self, module: Module, plan: Plan) -> tuple[Module, Plan]:
        """Return the module without such scatters, new ops on the IPUs of these."""
        return rewritten_in_place(module, plan, lambda _: {"scatter": _scatter})
