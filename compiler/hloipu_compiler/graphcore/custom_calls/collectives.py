"""Collectives over replicas, and arrays sharded over replicas.

The part of replica r of R is elements r ceil(n / R) to (r + 1) ceil(n / R) of all n, zeros after
the last (graphcore/tensorflow:
tensorflow/compiler/plugin/poplar/driver/passes/variables_offload_and_partition.cc).
"""

import math
import re
from collections.abc import Sequence

from hloipu_compiler.formulas.call import Call, formula
from hloipu_compiler.formulas.text import Value

_OPCODES = {
    "ADD": "add", "MEAN": "add", "SQUARE_ADD": "add", "MUL": "multiply", "MIN": "minimum",
    "MAX": "maximum", "LOGICAL_AND": "and", "LOGICAL_OR": "or",
}  # fmt: skip
_PREFIX = "COLLECTIVE_OP_"
LOCAL = "LOCAL"
_GROUP = re.compile(r"(\w+) group_size(\w+)")
_MOST_REPLICAS = 1 << 16


def _operation(call: Call) -> str:
    operation = str(call.attributes.get("op", "")).removeprefix(_PREFIX)
    call.need(
        operation in _OPCODES or operation == LOCAL, f"its attribute op is {operation[:40]!r}"
    )
    return operation


def _groups(call: Call, members: int) -> str:
    """Return the groups of replicas as HLO writes them; `members`: of each, as shapes say.

    One group has all replicas; of several with `members` each, the text does not say how many.
    """
    groups_text = str(call.attributes.get("replica_groups", ""))
    match = _GROUP.search(groups_text)
    size = match.group(2) if match else str(call.attributes.get("replica_group_size", "0"))
    total = call.module.attributes.get("replica_count")
    if size in ("all", "0", "1") or not size.isdecimal():
        return "{}"
    count = int(size)
    call.need(
        count == members or not members, f"its groups are of {count}, and its shape of {members}"
    )
    if not isinstance(total, int) or total == count:
        return "{}"
    call.need(total % count == 0, f"{total} replicas are not groups of {count}")
    step = total // count if match and match.group(1) == "orthogonal" else 1
    firsts = range(step) if step > 1 else range(0, total, count)
    groups = [[first + step * n for n in range(count)] for first in firsts]
    return "{" + ",".join("{" + ",".join(map(str, g)) + "}" for g in groups) + "}"


@formula("AllGather")
def _all_gather(call: Call) -> Sequence[Value]:
    """Return the members' arrays one after the other, along a new first dimension."""
    gathered = []
    for x, (_, dims) in zip(call.operands, call.results, strict=False):
        count = math.prod(dims) // max(math.prod(x.dims), 1)
        call.need(math.prod(x.dims) * count == math.prod(dims) and count > 0,
                  "its result is not a multiple of its operand")  # fmt: skip
        flat = x.reshaped((1, *x.dims))
        attributes = f"replica_groups={_groups(call, count)}, dimensions={{0}}"
        gathered_array = call.text.add(
            "all-gather", x.kind, (count, *x.dims), flat.name, attributes
        )
        gathered.append(gathered_array.reshaped(dims))
    return gathered


@formula("ReduceScatter")
def _reduce_scatter(call: Call) -> Sequence[Value]:
    """Each member's part of what all of them add up to, or, as LOCAL, of what it has itself."""
    operation = _operation(call)
    parts = []
    for x, (_, dims) in zip(call.operands, call.results, strict=False):
        size = math.prod(dims)
        call.need(x.rank == 1 and size > 0, "it takes arrays of one dimension")
        count = -(-x.dims[0] // size)
        padded = x.padded([0], [count * size - x.dims[0]], [0]) if count * size > x.dims[0] else x
        if operation == LOCAL:
            parts.append(own_part(padded, count, size).reshaped(dims))
            continue
        padded = padded * padded if operation == "SQUARE_ADD" else padded
        reducer = call.text.reducer(_OPCODES[operation], x.kind)
        attributes = f"replica_groups={_groups(call, count)}, dimensions={{0}}, to_apply={reducer}"
        part = call.text.add("reduce-scatter", x.kind, (size,), padded.name, attributes)
        parts.append((part / count if operation == "MEAN" else part).reshaped(dims))
    return parts


@formula("AllGatherWithinReplica", "AllReduceWithinReplica", "ReduceScatterWithinReplica")
def _within(call: Call) -> Sequence[Value]:
    """Return collectives over the IPUs of one replica: operand and result n are on the n-th."""
    operands, count = call.operands, len(call.operands)
    call.need(
        count > 0 and len({value.kind for value in operands}) == 1, "its operands differ in type"
    )
    if call.target.startswith("AllGather"):
        call.need(all(value.rank == 1 for value in operands), "it takes arrays of one dimension")
        return [operands[0].concatenated(operands[1:], 0)] * count
    call.alike(*operands)
    operation = _operation(call)
    scatters = call.target.startswith("ReduceScatter")
    if operation == LOCAL:
        reduced = list(operands)
    else:
        total = operands[0] * operands[0] if operation == "SQUARE_ADD" else operands[0]
        for x in operands[1:]:
            total = total.binary(_OPCODES[operation], x * x if operation == "SQUARE_ADD" else x)
        reduced = [total / count if operation == "MEAN" else total] * count
    if not scatters:
        return reduced
    call.need(operands[0].rank == 1, "it takes arrays of one dimension")
    size = -(-operands[0].dims[0] // count)
    padding = [count * size - operands[0].dims[0]]
    wholes = [value.padded([0], padding, [0]) if padding[0] else value for value in reduced]
    return [value.sliced(0, n * size, (n + 1) * size) for n, value in enumerate(wholes)]


def own_part(flat: Value, count: int, size: int) -> Value:
    """Return this replica's part of an array of `count` times `size` elements."""
    text = flat.text
    replica = text.add("replica-id", "u32", (), "").converted("s32")
    start = (replica % count) * size
    attributes = f"dynamic_slice_sizes={{{size}}}"
    return text.add("dynamic-slice", flat.kind, (size,), f"{flat.name}, {start.name}", attributes)


def _factors(call: Call, arrays: int) -> list[int]:
    """Return over how many replicas each of some remote arrays is spread."""
    if call.has("replication_factors"):
        factors = call.integers("replication_factors")
    else:
        factors = [call.integer("replication_factor", 1)] * arrays
    call.need(
        len(factors) == arrays, f"it has {arrays} arrays and {len(factors)} replication factors"
    )
    call.need(
        all(0 <= n <= _MOST_REPLICAS for n in factors), "a replication factor is no such number"
    )
    return factors


@formula("RemoteParameterLoad")
def _load(call: Call) -> Sequence[Value]:
    """Arrays of remote memory, or this replica's part of them."""
    parts = []
    for x, count in zip(call.operands, _factors(call, len(call.operands)), strict=True):
        parts.append(_part(x, count) if count > 1 else x)
    return parts


def _part(x: Value, count: int) -> Value:
    total = math.prod(x.dims)
    size = -(-total // count)
    flat = x.reshaped((total,))
    if size * count > total:
        flat = flat.padded([0], [size * count - total], [0])
    return own_part(flat, count, size)


@formula("RemoteParameterStore")
def _store(call: Call) -> Sequence[Value]:
    """Arrays of remote memory as they are afterwards, each replica's part stored by it."""
    half = len(call.operands) // 2
    call.need(len(call.operands) == 2 * half and half > 0, "it takes arrays, then their new values")
    stored = []
    pairs = zip(call.operands[:half], call.operands[half:], _factors(call, half), strict=True)
    for old, new, count in pairs:
        stored.append(_gathered(call, old, new, count) if count > 1 else new)
    return stored


def _gathered(call: Call, old: Value, part: Value, count: int) -> Value:
    total = math.prod(old.dims)
    size = -(-total // count)
    call.need(
        part.dims == (size,), f"a part of {total} elements over {count} replicas is {size} long"
    )
    attributes = "replica_groups={}, dimensions={0}"
    padded = call.text.add("all-gather", part.kind, (count * size,), part.name, attributes)
    return padded.sliced(0, 0, total).reshaped(old.dims)


@formula("CollectiveReorder", "UndoCollectiveReorder", "AssumeEqualAcrossReplicas")
def _same(call: Call) -> Sequence[Value]:
    """Layouts and promises that change no value."""
    return list(call.operands)


@formula("BufferLoadSlice")
def _load_slice(call: Call) -> Sequence[Value]:
    """Row `offset` of each buffer."""
    half = _halves(call, 2)
    rows = []
    for buffer, offset, (_, dims) in zip(
        call.operands[:half], call.operands[half:], call.results, strict=True
    ):
        row = _row(call, buffer, offset)
        rows.append(row.reshaped(dims) if math.prod(row.dims) == math.prod(dims) else row)
    return rows


def _row(call: Call, buffer: Value, offset: Value) -> Value:
    call.need(buffer.rank > 0, "its buffer has no rows")
    sizes = (1, *buffer.dims[1:])
    zero = call.text.number(offset.kind, 0)
    starts = ", ".join([offset.reshaped(()).name, *[zero.name] * (buffer.rank - 1)])
    attributes = f"dynamic_slice_sizes={{{','.join(map(str, sizes))}}}"
    return call.text.add(
        "dynamic-slice", buffer.kind, sizes, f"{buffer.name}, {starts}", attributes
    )


@formula("BufferStoreSlice")
def _store_slice(call: Call) -> Sequence[Value]:
    """Each buffer with row `offset` replaced."""
    half = _halves(call, 3)
    buffers = []
    for n in range(half):
        buffer, value, offset = (call.operands[n + k * half] for k in range(3))
        call.need(buffer.rank > 0 and math.prod(value.dims) == math.prod(buffer.dims[1:]),
                  "what it stores is not a row of its buffer")  # fmt: skip
        zero = call.text.number(offset.kind, 0)
        row = value.reshaped((1, *buffer.dims[1:]))
        starts = ", ".join([offset.reshaped(()).name, *[zero.name] * (buffer.rank - 1)])
        operands = f"{buffer.name}, {row.name}, {starts}"
        buffers.append(call.text.add("dynamic-update-slice", buffer.kind, buffer.dims, operands))
    return buffers


def _halves(call: Call, parts: int) -> int:
    """Return how many buffers there are; refuse those of which each replica has a part."""
    count = len(call.operands) // parts
    call.need(len(call.operands) == parts * count and count > 0, "its operands do not go together")
    if max(_factors(call, count)) > 1:
        raise call.unsupported(
            "its buffer is spread over replicas", "print the module before buffers are merged"
        )
    return count
