"""Gives gathers and scatters whose indices count along a batch batching dimensions instead.

What PyTorch's `gather` and `scatter` are lowered to, and `vmap` of older JAX, has indices
`concatenate(iota, ..., i)`: of row r of a batch, element i of row r. Each row needs its own row
alone, which dimension rules see where the dimension is a batching one. XLA's optimised texts have
all rows merged into one dimension, and windows of one element where the index is
(openxla/xla `xla/service/gather_simplifier.cc`, `scatter_simplifier.cc`): they are taken apart.
Source: openxla/xla `xla/hlo/utils/hlo_sharding_util.cc` (GetGatherScatterBatchParallelDims).
"""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import ClassVar, NamedTuple

from hloipu_compiler.ir.attributes import Attributes, Value
from hloipu_compiler.ir.graph import Computation, Instruction, Module
from hloipu_compiler.ir.shapes import ArrayShape
from hloipu_compiler.passes.algebra.expand_bitcasts import plain
from hloipu_compiler.passes.algebra.movement import became
from hloipu_compiler.passes.framework.pass_base import NO_DEAD_CODE, Facts, Pass
from hloipu_compiler.passes.framework.registry import register
from hloipu_compiler.passes.framework.rewriting import (
    Draft,
    rewritten,
    rewritten_in_place,
    with_each,
)
from hloipu_compiler.passes.loops.loop_state import without_dead
from hloipu_compiler.plan.plan import Plan
from hloipu_runtime.frozen import dataclass

_HANDED_ON = frozenset(("convert", "copy"))
_LOOKED_THROUGH = _HANDED_ON | frozenset("broadcast reshape".split())
_INDICES = _LOOKED_THROUGH | frozenset("concatenate iota".split())
_STATED = ("sharding", "frontend_attributes")
_LONGEST_CHAIN = 8
"""Ops between an iota and its use that are looked through."""


class _Names(NamedTuple):
    """Which attributes of an op say what."""

    dropped: str
    """Dimensions of the operand of which each index takes one row, and that the result lacks."""
    mapped: str
    """The operand's dimension of each component of an index."""
    batch: str
    """Batching dimensions of the operand."""
    rows: str
    """Those of the indices, in the same order."""
    windows: str
    """Dimensions of windows, in the result of a gather or the updates of a scatter."""


_GATHER = _Names(
    "collapsed_slice_dims", "start_index_map", "operand_batching_dims",
    "start_indices_batching_dims", "offset_dims",
)  # fmt: skip
_SCATTER = _Names(
    "inserted_window_dims", "scatter_dims_to_operand_dims", "input_batching_dims",
    "scatter_indices_batching_dims", "update_window_dims",
)  # fmt: skip


def with_batch_indices(module: Module) -> Module:
    """Return a verified module whose gathers and scatters say which indices only count."""

    def changed(computation: Computation) -> Computation:
        batched = rewritten(module, computation, _RULES)
        return batched if batched is computation else _swept(computation, batched)

    return with_each(module, changed)


def _swept(old: Computation, new: Computation) -> Computation:
    """Return a computation without the indices that were read before and are not any more."""
    read_before = {old.instructions[i].name for op in old.instructions for i in op.operands}
    uses = Counter(i for op in new.instructions for i in op.operands)
    live = [True] * len(new.instructions)
    for i in reversed(range(len(new.instructions))):
        op = new.instructions[i]
        if op.opcode in _INDICES and not uses[i] and i != new.root and op.name in read_before:
            live[i] = False
            uses.subtract(op.operands)
    return without_dead(new, live)


def _gather(draft: Draft, op: Instruction) -> Instruction | None:
    sizes = op.attributes.integers("slice_sizes")
    # A stated division is one of the rows as they are merged.
    apart = None if _is_divided(op) else _rows_apart(draft, op, _GATHER, 1, sizes)
    if apart is None:
        return _batched(draft, op, _GATHER, 1)
    rows, windows, attributes = apart
    assert isinstance(op.shape, ArrayShape)
    shape = plain(op.shape.element_type, (*rows, *windows))
    operands = (op.operands[0], draft.made[op.operands[1]].operands[0])
    merged = op._replace(shape=shape, operands=operands, attributes=attributes)
    batched = _batched(draft, merged, _GATHER, 1)
    if batched is None:
        return None
    at = draft.add(op, op.opcode, shape, batched.operands, batched.attributes)
    return became(op, "reshape", (at,))


def _scatter(draft: Draft, op: Instruction) -> Instruction | None:
    count = len(op.operands) // 2
    dropped = op.attributes.integers(_SCATTER.dropped)
    update = draft.made[op.operands[count + 1]]
    sizes = [1] * len(_sizes(draft.made[op.operands[0]]))
    kept = [d for d in range(len(sizes)) if d not in dropped]
    for d, place in zip(kept, op.attributes.integers(_SCATTER.windows), strict=False):
        sizes[d] = _sizes(update)[place]
    apart = _rows_apart(draft, op, _SCATTER, count, sizes)
    if apart is None:
        return _batched(draft, op, _SCATTER, count)
    rows, windows, attributes = apart
    joined = draft.made[op.operands[count]].operands[0]
    operands = (*op.operands[:count], joined, *op.operands[count + 1 :])
    batched = _batched(
        draft, op._replace(operands=operands, attributes=attributes), _SCATTER, count
    )
    if batched is None:
        return None
    updates = []
    for i in op.operands[count + 1 :]:
        shape = draft.made[i].shape
        assert isinstance(shape, ArrayShape)
        whole = plain(shape.element_type, (*rows, *windows))
        updates.append(draft.add(op, "reshape", whole, (i,)))
    return batched._replace(operands=(*batched.operands[: count + 1], *updates))


def _rows_apart(
    draft: Draft, op: Instruction, names: _Names, place: int, sizes: Sequence[int]
) -> tuple[tuple[int, ...], tuple[int, ...], Attributes] | None:
    """Return the rows that indices merge, windows without ones, and what an op on those has.

    `sizes`: of a window along each dimension of the operand. None where nothing that counts is
    merged.
    """
    made, read = draft.made, op.attributes.integers
    indices = made[op.operands[place]]
    joined = made[indices.operands[0]] if indices.opcode == "reshape" else indices
    if joined is indices or joined.opcode != "concatenate":
        return None
    *rows, components = _sizes(joined)
    vector = len(rows)
    is_merged = _sizes(indices) == (prod(rows), components) and len(rows) > 1
    is_last = joined.attributes.integers("dimensions") == (vector,)
    is_vector = op.attributes.integer("index_vector_dim") == 1
    windows = read(names.windows)
    if not (is_merged and is_last and is_vector) or read(names.batch):
        return None
    if windows != tuple(range(1, 1 + len(windows))):
        return None
    if all(_counts_along(made, i) in (-1, vector) for i in joined.operands):
        return None
    dropped = {*read(names.dropped), *(d for d in read(names.mapped) if sizes[d] == 1)}
    left = tuple(size for d, size in enumerate(sizes) if d not in dropped)
    attributes = op.attributes.replaced(
        **{names.dropped: tuple(sorted(dropped))},
        **{names.windows: tuple(range(vector, vector + len(left)))},
        index_vector_dim=vector,
    )
    return tuple(rows), left, attributes


def _batched(draft: Draft, op: Instruction, names: _Names, place: int) -> Instruction | None:
    instructions, attributes = draft.made, op.attributes
    joined, along = instructions[op.operands[place]], attributes.integer("index_vector_dim")
    if joined.opcode != "concatenate" or joined.attributes.integers("dimensions") != (along,):
        return None
    components = joined.operands
    if any(_sizes(instructions[i])[along] != 1 for i in components):
        return None
    whole, rows = _sizes(instructions[op.operands[0]]), _sizes(joined)
    dropped, mapped = attributes.integers(names.dropped), attributes.integers(names.mapped)
    pairs = dict(
        zip(attributes.integers(names.batch), attributes.integers(names.rows), strict=True)
    )
    counting: dict[int, int] = {}
    for component, d in zip(components, mapped, strict=True):
        row = _counts_along(instructions, component)
        counts = row >= 0 and row != along and rows[row] == whole[d]
        if counts and d in dropped and row not in (*pairs.values(), *counting.values()):
            counting[d] = row
    if len(counting) == len(components):
        del counting[min(counting, key=lambda d: whole[d])]  # An index has one component at least.
    if not counting:
        return None
    pairs |= counting
    kept = [(i, d) for i, d in zip(components, mapped, strict=True) if d not in counting]
    changed: dict[str, tuple[int, ...]] = {
        names.dropped: tuple(d for d in dropped if d not in pairs),
        names.mapped: tuple(d for _, d in kept),
        names.batch: tuple(sorted(pairs)),
        names.rows: tuple(pairs[d] for d in sorted(pairs)),
    }
    # All components of an index are divided alike along the rows.
    says = (joined, *(instructions[i] for i in components))
    stated = next((s for x in says if (s := _stated(x))), {})
    indices = _rejoined(draft, joined, [i for i, _ in kept], along, stated)
    operands = (*op.operands[:place], indices, *op.operands[place + 1 :])
    sorted_alone = {"indices_are_sorted": False} if "indices_are_sorted" in attributes else {}
    return op._replace(operands=operands, attributes=attributes.replaced(**changed, **sorted_alone))


def _stated(op: Instruction) -> dict[str, Value]:
    return {name: op.attributes[name] for name in _STATED if name in op.attributes}


def _is_divided(op: Instruction) -> bool:
    said = " ".join(map(op.attributes.text, _STATED))
    return any(word in said for word in ("devices=[", "mesh[", "xla.sdy.sharding"))


def _rejoined(
    draft: Draft, like: Instruction, components: Sequence[int], along: int,
    stated: dict[str, Value],
) -> int:  # fmt: skip
    """Return the components that are left as one array, divided as the text says."""
    if len(components) == 1 and not stated:
        return components[0]
    assert isinstance(like.shape, ArrayShape)
    sizes = list(like.shape.dimensions)
    sizes[along] = len(components)
    shape = plain(like.shape.element_type, tuple(sizes))
    attributes = Attributes({**stated, "dimensions": (along,)})
    return draft.add(like, "concatenate", shape, components, attributes)


def _sizes(op: Instruction) -> tuple[int, ...]:
    assert isinstance(op.shape, ArrayShape)
    return op.shape.dimensions


def _counts_along(instructions: Sequence[Instruction], at: int) -> int:
    """Return the dimension along which an array counts 0, 1, 2 and so on; -1 where it has none."""
    steps: list[Instruction] = []
    op = instructions[at]
    while op.opcode != "iota":
        if op.opcode not in _LOOKED_THROUGH or len(steps) == _LONGEST_CHAIN:
            return -1
        steps.append(op)
        op = instructions[op.operands[0]]
    d, sizes = op.attributes.integer("iota_dimension"), _sizes(op)
    count = sizes[d]
    if not _has_numbers(op, count):
        return -1
    for op in reversed(steps):
        if op.opcode == "reshape":
            d = _moved(sizes, _sizes(op), d)
        elif op.opcode not in _HANDED_ON:
            d = op.attributes.integers("dimensions")[d]
        sizes = _sizes(op)
        if d < 0 or sizes[d] != count or not _has_numbers(op, count):
            return -1
    return d


def _has_numbers(op: Instruction, count: int) -> bool:
    """Whether an op's element type has all numbers from 0 on."""
    assert isinstance(op.shape, ArrayShape)
    kind = op.shape.element_type
    return kind.is_integer and count <= 2 ** (kind.bits - 1)


def _moved(old: Sequence[int], new: Sequence[int], d: int) -> int:
    """Return the place of a dimension after a reshape that changes only ones; -1 for others."""
    before = [i for i, n in enumerate(old) if n != 1]
    after = [i for i, n in enumerate(new) if n != 1]
    if d not in before or [old[i] for i in before] != [new[i] for i in after]:
        return -1
    return after[before.index(d)]


_RULES = dict(zip("gather scatter".split(), (_gather, _scatter), strict=True))


@register
@dataclass(frozen=True, slots=True)
class BatchIndices(Pass):
    """Gives gathers and scatters whose indices count along a batch batching dimensions instead."""

    name: ClassVar[str] = "batch-indices"
    breaks: ClassVar[Facts] = frozenset({NO_DEAD_CODE})

    def run(self, module: Module, plan: Plan) -> tuple[Module, Plan]:
        """Return the module with such ops, new ones on the IPUs of these."""
        rules = {opcode: partial(_but_diagonals, rule) for opcode, rule in _RULES.items()}
        return rewritten_in_place(module, plan, lambda _: rules)


def _but_diagonals(
    rule: Callable[[Draft, Instruction], Instruction | None], draft: Draft, op: Instruction
) -> Instruction | None:
    joined = draft.made[op.operands[len(op.operands) // 2]]
    if joined.opcode == "reshape":
        joined = draft.made[joined.operands[0]]
    # Of a diagonal nothing is looked up in a row.
    all_count = joined.opcode == "concatenate" and all(
        _counts_along(draft.made, i) >= 0 for i in joined.operands
    )
    return None if all_count else rule(draft, op)
