"""Results of a step of micro-batches, handed over in the pipeline or after the update.

Outfeeds may be summed over the device's loop, of results the last array is kept. A sum begins at
zero before the loop, takes in each iteration's array, and is handed over once, after the last one;
a mean is divided by the number of iterations then. Floats narrower than f32 add up in f32, a mean
of integers as well.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from hloipu_compiler.errors import CodegenError
from hloipu_compiler.lowering.core.builder import Builder
from hloipu_compiler.lowering.core.io_tiles import IoTiles, brought_out
from hloipu_compiler.lowering.core.values import TileTensor, Value
from hloipu_compiler.lowering.pipelines.draft import Making
from hloipu_compiler.plan.wrapping import FeedBinding
from hloipu_runtime.codelets.core.constants import number_node
from hloipu_runtime.codelets.core.expression_form import Expression, Node
from hloipu_runtime.codelets.ops.elementwise import Elementwise
from hloipu_runtime.element_types import ELEMENT_TYPES
from hloipu_runtime.errors import UsageError
from hloipu_runtime.program import steps as s
from hloipu_runtime.program.mapping import Sizes
from hloipu_runtime.program.program import Port, Queue
from hloipu_runtime.program.steps import Carried, ValueId

LAST = "last"
"""Reduction of a result: its array of the last iteration."""


@dataclass(frozen=True)
class Kept:
    """One array of state: where it lies, and what it holds as a step begins."""

    name: str
    storage: TileTensor
    """With the value at the start of a run."""
    in_loop: TileTensor
    """With the value at the start of a step."""
    parameter: int
    result: int


@dataclass(frozen=True)
class Sum:
    """One array that is added up or kept: where it lies before the loop, and in each iteration."""

    outfeed: FeedBinding
    place: int
    """Number of the result."""
    storage: TileTensor
    in_loop: TileTensor


def carried_on(
    builder: Builder, arrays: Sequence[Kept | Sum], following: Sequence[ValueId]
) -> tuple[tuple[Carried, ...], list[ValueId]]:
    """Return what goes on to the next iteration, given its values then, and those at the end."""
    final = [builder.value(x.storage.element_type, x.storage.shape) for x in arrays]
    carried = tuple(
        Carried(x.storage.variable, x.storage.value, x.in_loop.value, after, last)
        for x, after, last in zip(arrays, following, final, strict=True)
    )
    return carried, final


def sum_type(element_type: str, reduction: str) -> str:
    """Return the type in which arrays of a type are added up."""
    known = ELEMENT_TYPES[element_type]
    if reduction == LAST:
        return element_type
    narrow_float = not known.is_integer and known.bits < 32
    return "f32" if narrow_float or (known.is_integer and reduction == "mean") else element_type


def begun(
    builder: Builder, outfeed: FeedBinding, place: int, element_type: str, shape: Sizes
) -> Sum:
    """Write the zeros that a sum begins with, before the loop."""
    kind = sum_type(element_type, outfeed.reduction)
    filled = Elementwise(Expression((), (number_node(0, kind),), (0,)), (), len(shape))
    (storage,) = builder.compute(filled, [], [(kind, shape)])
    return Sum(outfeed, place, storage, builder.loop_value(storage))


def added(builder: Builder, item: Sum, leaf: TileTensor) -> TileTensor:
    """Write an iteration's addition, or return the array that takes the place of the last one."""
    kind = item.storage.element_type
    if item.outfeed.reduction == LAST:
        return leaf
    if leaf.element_type == kind:
        nodes: tuple[Node, ...] = (Node("add", (0, 1), kind),)
    else:
        nodes = (Node("convert", (1,), kind), Node("add", (0, 2), kind))
    return _computed(builder, nodes, (item.in_loop, leaf), (True, False))


def finished(builder: Builder, item: Sum, total: TileTensor, iterations: int) -> TileTensor:
    """Write what is left to do after the loop."""
    if item.outfeed.reduction != "mean":
        return total
    kind = total.element_type
    count = number_node(iterations, kind)
    return _computed(builder, (count, Node("divide", (0, 1), kind)), (total,), (True,))


def _computed(
    builder: Builder,
    nodes: tuple[Node, ...],
    operands: tuple[TileTensor, ...],
    last_uses: tuple[bool, ...],
) -> TileTensor:
    shape, kind = operands[0].shape, nodes[-1].element_type
    kinds = tuple(tensor.element_type for tensor in operands)
    expression = Expression(kinds, nodes, (len(operands) + len(nodes) - 1,))
    labels = (tuple(range(len(shape))),) * len(operands)
    codelet = Elementwise(expression, labels, len(shape))
    return builder.compute(codelet, operands, [(kind, shape)], last_uses=last_uses)[0]


class Results:
    """The streams of outfeeds and results, written where what they carry is made."""

    def __init__(self, making: Making) -> None:
        """Raise UsageError E3151 where an outfeed takes arrays of which a step makes unlike many.

        Its elements would be put together of arrays from different micro-batches.
        """
        self.making = making
        if making.pipelining.micro_batches > 1:
            for outfeed in making.wrapping.outfeeds:
                self._require_one_rate(outfeed)
        self.streamed: dict[int, list[tuple[int, Port]]] = {}
        """Of each outfeed, by its number: which of its arrays, and the port."""

    def _require_one_rate(self, outfeed: FeedBinding) -> None:
        inner = [n for n in outfeed.places if self.making.maker_of(n) in self.making.in_pipeline]
        outer = [n for n in outfeed.places if n not in inner]
        if inner and outer and not outfeed.reduction:
            raise UsageError(
                "E3151",
                f"--outfeed {outfeed.name}: result {inner[0]} comes with each micro-batch, "
                f"result {outer[0]} once in an update",
                hint=f"give each a queue of its own: --outfeed {outfeed.name}="
                f"{','.join(map(str, inner))} --outfeed NAME={','.join(map(str, outer))}",
            )

    def of_call(self, call: str) -> None:
        """Write what goes out of one position of the pipeline."""
        self._outfeeds(self.making.result_leaf, frozenset((call,)))

    def after_update(self, leaves: Sequence[Value | None]) -> None:
        """Write what goes out once in each step."""
        outside = {self.making.maker_of(n) for n in range(len(leaves))} - self.making.in_pipeline
        self._outfeeds(leaves.__getitem__, frozenset(outside))
        for place in self.making.wrapping.results:
            self.making.results.append(self._streamed_out(f"result.{place}", leaves[place]))

    def sums(self, sums: Sequence[Sum], totals: Sequence[ValueId], iterations: int) -> None:
        """Write what becomes of the sums of outfeeds after the loop.

        `totals`: what each holds then; `iterations`: of the loop, in each of which a position of
        the pipeline adds for every micro-batch.
        """
        making, builder = self.making, self.making.builder
        for item, value in zip(sums, totals, strict=True):
            count = iterations
            if making.maker_of(item.place) in making.in_pipeline:
                count *= making.pipelining.micro_batches
            builder.ipu = builder.variables[item.storage.variable].ipu
            builder.origin = item.outfeed.name
            leaf = finished(builder, item, replace(item.storage, value=value), count)
            self._outfeed(making.wrapping.outfeeds.index(item.outfeed), item.place, leaf)

    def queues(self) -> tuple[Queue, ...]:
        """Return all queues of the step, when everything is written."""
        wrapping = self.making.wrapping
        queues = [self._feed(feed) for feed in wrapping.feeds]
        for number, outfeed in enumerate(wrapping.outfeeds):
            ports = tuple(port for _, port in sorted(self.streamed[number], key=lambda x: x[0]))
            queues.append(
                Queue(
                    outfeed.name,
                    False,
                    ports,
                    outfeed.places,
                    outfeed.reduction,
                    outfeed.mode,
                    outfeed.names,
                )
            )
        return tuple(queues)

    def _outfeeds(self, leaf_of: Callable[[int], Value | None], makers: frozenset[str]) -> None:
        for number, outfeed in enumerate(self.making.wrapping.outfeeds):
            for place in outfeed.places:
                if self.making.maker_of(place) in makers and not outfeed.reduction:
                    self._outfeed(number, place, leaf_of(place))

    def _outfeed(self, number: int, place: int, leaf: Value | None) -> None:
        outfeed = self.making.wrapping.outfeeds[number]
        k = outfeed.places.index(place)
        apart = None if outfeed.reduction else self.making.apart
        port = self._streamed_out(f"{outfeed.name}.{k}", leaf, apart)
        self.streamed.setdefault(number, []).append((k, port))

    def _feed(self, feed: FeedBinding) -> Queue:
        ports = tuple(
            Port(f"{feed.name}.{k}", *self.making.calls.arrays[number])
            for k, number in enumerate(feed.places)
        )
        return Queue(feed.name, True, ports, feed.places, names=feed.names)

    def _streamed_out(self, stream: str, leaf: Value | None, apart: IoTiles | None = None) -> Port:
        if leaf is None:
            raise CodegenError("E0470", f"{stream} is a token, or is made nowhere")
        builder = self.making.builder
        tensor = builder.tile_tensor(leaf)
        port = Port(stream, tensor.element_type, tensor.shape)
        if apart is not None:
            builder.ipu = builder.variables[tensor.variable].ipu
            tensor = brought_out(builder, apart, port, tensor)
        builder.emit(s.Sync())
        builder.emit(s.StreamOut(stream, tensor.variable, tensor.value))
        return port
