"""Accumulators of the older form: a sum every K-th turn of a loop, and zeros between.

`StatefulGradientAccumulate(g…)` keeps the sum itself. `…WithMomentum(a…, g…, m)` adds to values a
that are given and given back, multiplied by m at the beginning of each window. `…AndAllReduce` and
`…AndAllReduceWithNorm` add up, or average, over the replicas what they give out
(graphcore/tensorflow:
tensorflow/compiler/plugin/poplar/driver/ops/custom_ops/poputil/stateful_gradient_accumulate.cc).
"""

from collections.abc import Sequence

from hloipu_compiler.ir.attributes import Attributes, ReplicaGroups
from hloipu_compiler.ir.graph import Instruction
from hloipu_compiler.ir.shapes import ArrayShape
from hloipu_compiler.poplar.custom_ops import (
    ACCUMULATE,
    ACCUMULATE_REDUCE,
    MOMENTUM_REDUCE,
    REPLICA,
    REPLICAS,
    integer_of,
)
from hloipu_compiler.poplar.errors import PoplarError
from hloipu_compiler.poplar.loop_body import COUNTS, LoopBody
from hloipu_compiler.poplar.values import OUTSIDE, Context, Counter, Made, Value
from hloipu_compiler.poplar.writing import Writer
from hloipu_runtime.element_types import PRED, U32

_NOTHING = Attributes({"dimensions": ()})


def window_of(x: Instruction) -> int:
    """Return after how many turns an accumulator gives its sum out.

    Raises PoplarError E0541 where it does not say so.
    """
    found = integer_of(x, "num_mini_batches")
    if found is None or found < 1:
        raise PoplarError(
            "E0541",
            f"{x.name!r} says nowhere after how many micro-batches it gives its sum out",
            hint='write backend_config="{\\"num_mini_batches\\":K}"',
        )
    return found


def accumulated_shape(writer: Writer, x: Instruction, *values: int) -> ArrayShape:
    """Return the shape that some values have in common; PoplarError E0545 if they have none."""
    shapes = [writer.made[at].shape for at in values]
    first = shapes[0]
    if not isinstance(first, ArrayShape) or not first.element_type.is_array:
        raise PoplarError("E0545", f"{x.name!r} accumulates {first}, which is no array")
    for shape in shapes[1:]:
        alike = isinstance(shape, ArrayShape) and shape.element_type is first.element_type
        if not (alike and isinstance(shape, ArrayShape) and shape.dimensions == first.dimensions):
            raise PoplarError("E0545", f"{x.name!r} accumulates {shape} in {first}")
    return first


def windowed(
    body: LoopBody, x: Instruction, target: str, operands: Sequence[int], reducer: str
) -> Value:
    """Write such an accumulator; `reducer`: the name of a computation that adds."""
    count = window_of(x)
    turn = body.counted(Counter(), OUTSIDE, x)
    window = body.number(f"{x.name}.window", COUNTS, str(count))
    index = body.add(f"{x.name}.turn", "remainder", COUNTS, (turn, window))
    if target in (ACCUMULATE, ACCUMULATE_REDUCE):
        made = [_summed(body, x, at, index, count, target, reducer) for at in operands]
        return made[0] if len(made) == 1 else Made(tuple(made))
    half = len(operands) // 2
    if len(operands) % 2 == 0:
        raise PoplarError(
            "E0545",
            f"{x.name!r} has {len(operands)} operands",
            hint="give as many accumulators as gradients, and the momentum",
        )
    pairs = [
        _with_momentum(body, x, operands[n], operands[half + n], operands[-1], index, count,
                       target, reducer)
        for n in range(half)
    ]  # fmt: skip
    return Made((*(old for old, _ in pairs), *(out for _, out in pairs)))


def _summed(
    body: LoopBody,
    x: Instruction,
    value: int,
    index: int,
    count: int,
    target: str,
    reducer: str,
) -> int:
    shape = accumulated_shape(body, x, value)
    extra = body.extra(shape, x.name)
    total = body.add(f"{x.name}.sum", "add", shape, (extra.start, value))
    last = _is(body, x, index, count - 1, shape)
    nothing = body.zeros(shape, x.name, OUTSIDE)
    extra.next = body.add(f"{x.name}.kept", "select", shape, (last, nothing, total))
    if target == ACCUMULATE_REDUCE:
        total = reduced(body, x.name, total, shape, reducer)
    return body.add(x.name, "select", shape, (last, total, nothing))


def _with_momentum(
    body: LoopBody, x: Instruction, old: int, value: int, momentum: int, index: int, count: int,
    target: str, reducer: str,
) -> tuple[int, int]:  # fmt: skip
    shape = accumulated_shape(body, x, old, value)
    factor = body.spread(f"{x.name}.factor", shape, body.one_number(x, momentum))
    less = body.add(f"{x.name}.less", "multiply", shape, (old, factor))
    first = _is(body, x, index, 0, shape)
    start = body.add(f"{x.name}.start", "select", shape, (first, less, old))
    total = body.add(f"{x.name}.sum", "add", shape, (start, value))
    last = _is(body, x, index, count - 1, shape)
    if target == MOMENTUM_REDUCE:
        whole = averaged(body, x.name, total, shape, reducer)
        total = body.add(f"{x.name}.all", "select", shape, (last, whole, total))
    nothing = body.zeros(shape, x.name, OUTSIDE)
    return total, body.add(x.name, "select", shape, (last, total, nothing))


def _is(body: LoopBody, x: Instruction, index: int, number: int, shape: ArrayShape) -> int:
    """Write whether this is one turn of a window, for every element of a shape."""
    wanted = body.number(f"{x.name}.number", COUNTS, str(number))
    same = body.add(f"{x.name}.is", "compare", ArrayShape(PRED), (index, wanted),
                    attributes=Attributes({"direction": "EQ"}))  # fmt: skip
    whole = ArrayShape(PRED, shape.dimensions)
    return body.add(f"{x.name}.here", "broadcast", whole, (same,), attributes=_NOTHING)


def reduced(
    writer: Writer,
    name: str,
    value: int,
    shape: ArrayShape,
    reducer: str,
    here: Context = OUTSIDE,
) -> int:
    """Write a sum over all replicas."""
    said = Attributes({"replica_groups": ReplicaGroups(), "to_apply": reducer}, (reducer,))
    return writer.add(f"{name}.replicas", "all-reduce", shape, (value,), here, said)


def of_replicas(
    writer: Writer, x: Instruction, target: str, values: Sequence[int], reducer: str,
    here: Context, *, is_sum: bool,
) -> int:  # fmt: skip
    """Write a share of a value or of its sum over the replicas, their number, or this one's."""
    if target == REPLICA:
        number = writer.add(f"{x.name}.id", "replica-id", ArrayShape(U32), (), here)
        return writer.add(x.name, "convert", x.shape, (number,), here)
    if target == REPLICAS:
        if not isinstance(x.shape, ArrayShape) or x.shape.dimensions:
            raise PoplarError("E0545", f"{x.name!r} is {x.shape}, and counts replicas")
        one = writer.number(f"{x.name}.one", x.shape, "1")
        return reduced(writer, x.name, one, x.shape, reducer, here)
    if len(values) != 1:
        raise PoplarError("E0545", f"{x.name!r} takes {len(values)} values, and divides one")
    shape = accumulated_shape(writer, x, values[0])
    if is_sum:
        return averaged(writer, x.name, values[0], shape, reducer, here)
    one = writer.number(f"{x.name}.one", ArrayShape(shape.element_type), "1")
    ones = writer.spread(f"{x.name}.ones", shape, one, here) if shape.dimensions else one
    count = reduced(writer, f"{x.name}.count", ones, shape, reducer, here)
    return writer.add(x.name, "divide", shape, (values[0], count), here)


def averaged(
    writer: Writer,
    name: str,
    value: int,
    shape: ArrayShape,
    reducer: str,
    here: Context = OUTSIDE,
) -> int:
    """Write a mean over all replicas: the sum over the sum of ones."""
    total = reduced(writer, name, value, shape, reducer, here)
    one = writer.number(f"{name}.one", ArrayShape(shape.element_type), "1")
    ones = writer.spread(f"{name}.ones", shape, one, here) if shape.dimensions else one
    count = reduced(writer, f"{name}.count", ones, shape, reducer, here)
    return writer.add(f"{name}.mean", "divide", shape, (total, count), here)
