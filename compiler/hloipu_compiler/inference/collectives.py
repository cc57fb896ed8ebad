"""Collectives: shapes against the sizes of their groups.

Sources: openxla/xla `xla/service/hlo_verifier.cc`, `xla/service/shape_inference.cc`,
`xla/service/collective_ops_utils.cc`. Whether the groups cover every participant is a question
about the module and asked by the verifier; here only group size and shape meet.
"""

from hloipu_compiler.inference import faults
from hloipu_compiler.inference.relations import dynamic_flags, make_array, same_form
from hloipu_compiler.inference.site import (
    RULES,
    Site,
    array_operand,
    array_operands,
    check_range,
    declared_shape,
    one_dimension,
)
from hloipu_compiler.ir.shapes import UNBOUNDED, ArrayShape, Shape, TupleShape, compatible
from hloipu_runtime.element_types import S32, U32


@RULES.register("all-reduce")
def all_reduce(site: Site) -> Shape:
    """Return the operands' shapes, as a tuple where there are several."""
    array_operands(site)
    return _one_or_tuple(site.operands)


def group_size(site: Site, has_global_ids: bool = True) -> int:
    """Return how many devices a group has; 1 where neither text nor header says.

    Without a channel groups hold replicas; with one, replicas of all partitions, or flattened
    device ids, or, for operations that have no `use_global_device_ids`, partitions.
    """
    written = site.attributes.replica_groups().group_size
    replicas, partitions = site.participants
    if "channel_id" not in site.attributes:
        return written or replicas
    if not has_global_ids:
        return written or partitions
    if not site.attributes.flag("use_global_device_ids"):
        return (written or replicas) * partitions
    if not written:
        raise faults.GROUP_SIZE(
            f"{site.opcode} with use_global_device_ids names no groups",
            expected="replica_groups={{…}}",
            attribute="use_global_device_ids",
        )
    return written


@RULES.register("all-gather")
def all_gather(site: Site) -> Shape:
    """Return the operands' shapes with one size multiplied by the number of shards."""
    return _one_or_tuple(tuple(gathered_shapes(site, declared_shape(site))))


def gathered_shapes(site: Site, result: Shape) -> list[Shape]:
    """Return the gathered shape of each operand, given the declared result."""
    operands = array_operands(site)
    along = one_dimension(site, operands[0].rank)
    gathered_size = _first_result(site, result, len(operands), along).dimensions[along]
    shard_size = operands[0].dimensions[along]
    shards = _shard_count(site, gathered_size, shard_size)
    shapes: list[Shape] = []
    for operand in operands:
        check_range(site, "dimensions", (along,), operand.rank)
        size = operand.dimensions[along]
        scaled = size if size == UNBOUNDED else size * shards
        shapes.append(_with_size(operand, along, scaled, size == UNBOUNDED))
    return shapes


@RULES.register("reduce-scatter")
def reduce_scatter(site: Site) -> Shape:
    """Return the operands' shapes with one size divided by the number of shards."""
    operands = array_operands(site)
    along = one_dimension(site, operands[0].rank)
    result = _first_result(site, declared_shape(site), len(operands), along)
    shards = _shard_count(site, operands[0].dimensions[along], result.dimensions[along])
    shapes: list[Shape] = []
    for number, operand in enumerate(operands):
        check_range(site, "dimensions", (along,), operand.rank)
        size = operand.dimensions[along]
        if size != UNBOUNDED and size % shards:
            raise faults.GROUP_SIZE(
                f"dimension {along} of {operand} is cut into {shards} shards",
                expected=f"a multiple of {shards}",
                operand=number,
            )
        dynamic = dynamic_flags(operand)[along]
        scaled = UNBOUNDED if dynamic else size // shards
        shapes.append(_with_size(operand, along, scaled, dynamic))
    return _one_or_tuple(tuple(shapes))


def _first_result(site: Site, result: Shape, count: int, along: int) -> ArrayShape:
    first: Shape | None = result
    if count > 1:
        fits = isinstance(result, TupleShape) and len(result.elements) == count
        first = result.elements[0] if fits and isinstance(result, TupleShape) else None
    if not isinstance(first, ArrayShape) or along >= first.rank:
        raise faults.DECLARED_STRUCTURE(
            f"{site.opcode} of {count} operands is declared as {result}",
            expected=f"a tuple of {count} arrays"
            if count > 1
            else f"an array with dimension {along}",
        )
    return first


def _shard_count(site: Site, gathered_size: int, shard_size: int) -> int:
    if UNBOUNDED in (gathered_size, shard_size):
        return max(group_size(site), 1)
    count = -(-gathered_size // shard_size) if shard_size else int(gathered_size == 0)
    known = group_size(site)
    if count < 1 or (known != 1 and shard_size and count != known):
        raise faults.GROUP_SIZE(
            f"{site.opcode} of groups of {known} between sizes {shard_size} and {gathered_size}",
            expected=f"{shard_size} times {known} is {shard_size * known}",
            attribute="replica_groups",
            hint="the sharded size times the group size is the whole size",
        )
    return count if shard_size else max(known, 1)


def _with_size(shape: ArrayShape, dimension: int, size: int, dynamic: bool) -> ArrayShape:
    sizes, flags = list(shape.dimensions), list(dynamic_flags(shape))
    sizes[dimension], flags[dimension] = size, dynamic
    return make_array(shape.element_type, sizes, flags)


@RULES.register("all-to-all")
def all_to_all(site: Site) -> Shape:
    """Return the operand's shape (array form), or the tuple of equal operands (tuple form)."""
    count = group_size(site, has_global_ids=False)
    if "dimensions" in site.attributes:
        return _array_all_to_all(site, count)
    if len(site.operands) != count:
        raise faults.GROUP_SIZE(
            f"all-to-all of {len(site.operands)} operands in groups of {count}",
            expected=f"{count} operands, or dimensions={{d}} with one operand",
            attribute="replica_groups" if "replica_groups" in site.attributes else None,
        )
    operands = array_operands(site)
    for number, operand in enumerate(operands):
        fits = operand.element_type is operands[0].element_type and same_form(operand, operands[0])
        if UNBOUNDED in operand.dimensions or not fits:
            raise faults.SIZE_MISMATCH(
                f"operand {number} of all-to-all is {operand}",
                expected=f"{site.operands[0]}, as the first",
                operand=number,
            )
    return TupleShape(site.operands)


def _array_all_to_all(site: Site, count: int) -> Shape:
    if len(site.operands) != 1:
        raise faults.OPERAND_NUMBER(
            f"all-to-all of {len(site.operands)} operands with dimensions",
            expected="one operand",
            attribute="dimensions",
        )
    operand = array_operand(site, 0)
    along = one_dimension(site, operand.rank)
    size = operand.dimensions[along]
    if size != UNBOUNDED and size % count:
        raise faults.GROUP_SIZE(
            f"dimension {along} of {operand} is split among {count}",
            expected=f"a multiple of {count}",
            operand=0,
        )
    if any(
        flag and n != UNBOUNDED
        for flag, n in zip(operand.dynamic or (), operand.dimensions, strict=False)
    ):
        raise faults.DYNAMIC_SIZE(f"all-to-all of {operand}", expected="static sizes", operand=0)
    return operand


@RULES.register("ragged-all-to-all")
def ragged_all_to_all(site: Site) -> Shape:
    """Return the shape of the second operand, the output; offsets and sizes are all alike."""
    output = array_operand(site, 1)
    first = array_operand(site, 2)
    for number in range(2, 6):
        operand = array_operand(site, number)
        fits = operand.element_type is first.element_type and same_form(first, operand)
        if operand.rank not in (1, 2) or not fits:
            raise faults.SIZE_MISMATCH(
                f"operand {number} of ragged-all-to-all is {operand}",
                expected=f"{first} of rank 1 or 2",
                operand=number,
            )
    return output


@RULES.register("collective-broadcast")
def collective_broadcast(site: Site) -> Shape:
    """Return the data's shape; with `has_dynamic_root` the last operand names the roots."""
    data = site.operands
    if site.attributes.flag("has_dynamic_root"):
        data, root = site.operands[:-1], site.operands[-1]
        if not data or not compatible(root, ArrayShape(S32, (len(data),))):
            raise faults.INDEX_OPERAND(
                f"the roots of collective-broadcast are {root}",
                expected=f"s32[{len(data)}], one root for each array",
                operand=len(data),
            )
        return _one_or_tuple(data)
    return array_operand(site, 0)


@RULES.register("collective-permute")
def collective_permute(site: Site) -> Shape:
    """Return the operands' shapes; in the in-place form the output buffer's shape."""
    if "slice_sizes" in site.attributes:
        check_in_place(site)
        return site.operands[1]
    array_operands(site)
    return _one_or_tuple(site.operands)


def check_in_place(site: Site) -> None:
    """Check (input, output, input offsets, output offsets) of a permute of slices."""
    if len(site.operands) != 4:
        raise faults.OPERAND_NUMBER(
            f"{site.opcode} of slices with {len(site.operands)} operands",
            expected="4: input, output, input offsets, output offsets",
            attribute="slice_sizes",
        )
    for buffer, offsets in ((0, 2), (1, 3)):
        if not _offsets_fit(site.operands[buffer], site.operands[offsets]):
            raise faults.INDEX_OPERAND(
                f"offsets {site.operands[offsets]} into {site.operands[buffer]}",
                expected="a tuple with one offset for each dimension, or a tuple of such tuples",
                operand=offsets,
            )
    source, target = site.operands[0], site.operands[1]
    if _leaf_count(source) != _leaf_count(target):
        raise faults.SIZE_MISMATCH(
            f"{site.opcode} from {source} to {target}",
            expected="as many buffers on one side as on the other",
            operand=1,
        )


def _leaf_count(shape: Shape) -> int:
    return len(shape.elements) if isinstance(shape, TupleShape) else 0


def _offsets_fit(buffer: Shape, offsets: Shape) -> bool:
    if not isinstance(offsets, TupleShape):
        return False
    if isinstance(buffer, TupleShape):
        return len(buffer.elements) == len(offsets.elements) and all(
            not isinstance(b, TupleShape) and _offsets_fit(b, o)
            for b, o in zip(buffer.elements, offsets.elements, strict=True)
        )
    rank = buffer.rank if isinstance(buffer, ArrayShape) else buffer.contents.rank
    lengths = [len(e.elements) if isinstance(e, TupleShape) else None for e in offsets.elements]
    if lengths and all(length is None for length in lengths):
        return len(lengths) == rank
    return all(length == rank for length in lengths)


@RULES.register("partition-id", "replica-id")
def device_number(site: Site) -> Shape:
    """Return u32[]."""
    return ArrayShape(U32)


def _one_or_tuple(shapes: tuple[Shape, ...]) -> Shape:
    return shapes[0] if len(shapes) == 1 else TupleShape(shapes)
