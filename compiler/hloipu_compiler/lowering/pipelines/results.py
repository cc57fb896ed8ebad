"""Results of a step of micro-batches, handed over in the pipeline or after the update."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from hloipu_compiler.errors import CodegenError
from hloipu_compiler.lowering.core.io_tiles import IoTiles, brought_out
from hloipu_compiler.lowering.core.values import Value
from hloipu_compiler.lowering.pipelines.draft import Making
from hloipu_compiler.lowering.pipelines.outfeed_sums import Sum, finished
from hloipu_compiler.plan.wrapping import FeedBinding
from hloipu_runtime.errors import UsageError
from hloipu_runtime.program import steps as s
from hloipu_runtime.program.program import Port, Queue
from hloipu_runtime.program.steps import ValueId


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
