"""Accumulators of the older form: a sum every K-th iteration of a loop, and zeros between.

`StatefulGradientAccumulate(g…)` keeps the sum itself. `…WithMomentum(a…, g…, m)` adds to values a
that are given and given back, multiplied by m at the beginning of each window. `…AndAllReduce` and
`…AndAllReduceWithNorm` add up, or average, over the replicas what they give out
(graphcore/tensorflow:
tensorflow/compiler/plugin/poplar/driver/ops/custom_ops/poputil/stateful_gradient_accumulate.cc).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from hloipu_compiler.graphcore.encoding.core import errors
from hloipu_compiler.graphcore.encoding.core.custom_ops import (
    ACCUMULATE,
    ACCUMULATE_REDUCE,
    MOMENTUM_REDUCE,
    REPLICA,
    REPLICAS,
    integer_of,
)
from hloipu_compiler.graphcore.encoding.core.ops import Op
from hloipu_compiler.graphcore.encoding.core.values import (
    OUTSIDE,
    Context,
    Counter,
    TupleValue,
    Value,
)
from hloipu_compiler.graphcore.encoding.core.writing import Writer
from hloipu_compiler.graphcore.encoding.loops.loop_body import COUNTS, LoopBody
from hloipu_compiler.ir.attributes import Attributes, ReplicaGroups
from hloipu_compiler.ir.graph import Instruction
from hloipu_compiler.ir.shapes import ArrayShape
from hloipu_runtime.element_types import PRED, U32


def window_of(instruction: Instruction) -> int:
    """Return after how many turns an accumulator gives its sum out.

    Raises PoplarError E0541 where it does not say so.
    """
    micro_batches = integer_of(instruction, "num_mini_batches")
    if micro_batches is None or micro_batches < 1:
        raise errors.MICRO_BATCHES(
            f"{instruction.name!r} says nowhere after how many micro-batches it gives its sum out",
            hint='write backend_config="{\\"num_mini_batches\\":K}"',
        )
    return micro_batches


def accumulated_shape(writer: Writer, instruction: Instruction, *values: int) -> ArrayShape:
    """Return the shape that some values have in common; PoplarError E0545 if they have none."""
    shapes = [writer.made[at].shape for at in values]
    first = shapes[0]
    if not isinstance(first, ArrayShape) or not first.element_type.is_array:
        raise errors.ACCUMULATOR(f"{instruction.name!r} accumulates {first}, which is not an array")
    for shape in shapes[1:]:
        alike = isinstance(shape, ArrayShape) and shape.element_type is first.element_type
        if not (alike and isinstance(shape, ArrayShape) and shape.dimensions == first.dimensions):
            raise errors.ACCUMULATOR(f"{instruction.name!r} accumulates {shape} in {first}")
    return first


@dataclass(frozen=True, slots=True)
class Window:
    """One accumulator written turn by turn."""

    body: LoopBody
    op: Op
    reducer: str
    """Name of a computation that adds."""

    def written(self, operands: Sequence[int]) -> Value:
        """Write the sums that the accumulator returns, and carry its buffers."""
        count = window_of(self.op.instruction)
        iteration = self.body.counted(Counter(), OUTSIDE)
        window = self.body.number(f"{self.op.name}.window", COUNTS, str(count))
        index = self.body.add(f"{self.op.name}.turn", "remainder", COUNTS, (iteration, window))
        if self.op.target in (ACCUMULATE, ACCUMULATE_REDUCE):
            sums = [self._summed(at, index, count) for at in operands]
            return sums[0] if len(sums) == 1 else TupleValue(tuple(sums))
        half = len(operands) // 2
        if len(operands) % 2 == 0:
            raise errors.ACCUMULATOR(
                f"{self.op.name!r} has {len(operands)} operands",
                hint="give as many accumulators as gradients, and the momentum",
            )
        momentum = self.body.one_number(self.op.instruction, operands[-1])
        pairs = [
            self._with_momentum((operands[n], operands[half + n]), momentum, index, count)
            for n in range(half)
        ]
        return TupleValue((*(old for old, _ in pairs), *(out for _, out in pairs)))

    def _summed(self, value: int, index: int, count: int) -> int:
        body, name = self.body, self.op.name
        shape = accumulated_shape(body, self.op.instruction, value)
        extra = body.extra(shape, name)
        total = body.add(f"{name}.sum", "add", shape, (extra.start, value))
        last = self._is_iteration(index, count - 1, shape)
        nothing = body.zeros(shape, name)
        extra.next = body.add(f"{name}.kept", "select", shape, (last, nothing, total))
        if self.op.target == ACCUMULATE_REDUCE:
            total = reduced(body, name, total, self.reducer)
        return body.add(name, "select", shape, (last, total, nothing))

    def _with_momentum(
        self, old_and_value: tuple[int, int], momentum: int, index: int, count: int
    ) -> tuple[int, int]:
        body, name = self.body, self.op.name
        old, value = old_and_value
        shape = accumulated_shape(body, self.op.instruction, old, value)
        factor = body.spread(f"{name}.factor", shape, momentum)
        less = body.add(f"{name}.less", "multiply", shape, (old, factor))
        first = self._is_iteration(index, 0, shape)
        start = body.add(f"{name}.start", "select", shape, (first, less, old))
        total = body.add(f"{name}.sum", "add", shape, (start, value))
        last = self._is_iteration(index, count - 1, shape)
        if self.op.target == MOMENTUM_REDUCE:
            mean = averaged(body, name, total, self.reducer)
            total = body.add(f"{name}.all", "select", shape, (last, mean, total))
        nothing = body.zeros(shape, name)
        return total, body.add(name, "select", shape, (last, total, nothing))

    def _is_iteration(self, index: int, number: int, shape: ArrayShape) -> int:
        body, name = self.body, self.op.name
        wanted = body.number(f"{name}.number", COUNTS, str(number))
        same = body.add(f"{name}.is", "compare", ArrayShape(PRED), (index, wanted),
                        attributes=Attributes({"direction": "EQ"}))  # fmt: skip
        return body.spread(f"{name}.here", ArrayShape(PRED, shape.dimensions), same)


def reduced(writer: Writer, name: str, value: int, reducer: str, context: Context = OUTSIDE) -> int:
    """Write a sum over all replicas."""
    attributes = Attributes({"replica_groups": ReplicaGroups(), "to_apply": reducer}, (reducer,))
    shape = writer.made[value].shape
    return writer.add(f"{name}.replicas", "all-reduce", shape, (value,), context, attributes)


def of_replicas(writer: Writer, op: Op, values: Sequence[int], reducer: str) -> int:
    """Write a share of a value or of its sum over the replicas, their number, or this one's.

    An all-reduce adds up before it divides.
    """
    instruction, context = op.instruction, op.context
    if op.target == REPLICA:
        number = writer.add(f"{instruction.name}.id", "replica-id", ArrayShape(U32), (), context)
        return writer.add(instruction.name, "convert", instruction.shape, (number,), context)
    if op.target == REPLICAS:
        if not isinstance(instruction.shape, ArrayShape) or instruction.shape.dimensions:
            raise errors.ACCUMULATOR(
                f"{instruction.name!r} is {instruction.shape}, and counts replicas"
            )
        ones_scalar = writer.number(f"{instruction.name}.one", instruction.shape, "1")
        return reduced(writer, instruction.name, ones_scalar, reducer, context)
    if len(values) != 1:
        raise errors.ACCUMULATOR(
            f"{instruction.name!r} takes {len(values)} values, and divides one"
        )
    shape = accumulated_shape(writer, instruction, values[0])
    if instruction.opcode == "all-reduce":
        return averaged(writer, instruction.name, values[0], reducer, context)
    count = _counted(writer, instruction.name, shape, reducer, context)
    return writer.add(instruction.name, "divide", shape, (values[0], count), context)


def averaged(
    writer: Writer, name: str, value: int, reducer: str, context: Context = OUTSIDE
) -> int:
    """Write a mean over all replicas: the sum over the sum of ones."""
    total = reduced(writer, name, value, reducer, context)
    shape = writer.array(value)
    if shape is None:
        raise errors.ACCUMULATOR(f"{name!r} averages something that is not an array")
    count = _counted(writer, name, shape, reducer, context)
    return writer.add(f"{name}.mean", "divide", shape, (total, count), context)


def _counted(writer: Writer, name: str, shape: ArrayShape, reducer: str, context: Context) -> int:
    """Write the number of replicas, as an array."""
    ones_scalar = writer.number(f"{name}.one", ArrayShape(shape.element_type), "1")
    ones = (
        writer.spread(f"{name}.ones", shape, ones_scalar, context)
        if shape.dimensions
        else ones_scalar
    )
    return reduced(writer, f"{name}.count", ones, reducer, context)
