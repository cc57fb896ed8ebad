"""Lowering of infeed and outfeed: one stream for each array of a host queue's elements.

A queue's name stands in the op's configuration: a plain text, or the bytes of a feed configuration
as Graphcore's backend prints it (graphcore/tensorflow: tensorflow/compiler/plugin/poplar,
`PoplarFeedConfig`, whose field 2 is the name). Ops of one name share the queue.
"""

from collections.abc import Sequence

from hloipu_compiler.analysis.feed_config import queue_name
from hloipu_compiler.errors import CodegenError
from hloipu_compiler.lowering.core.builder import Builder
from hloipu_compiler.lowering.core.context import LoweringContext, lowers
from hloipu_compiler.lowering.core.lowering import streamed_in
from hloipu_compiler.lowering.core.values import Token, Value
from hloipu_runtime.program import steps as s
from hloipu_runtime.program.mapping import Sizes
from hloipu_runtime.program.program import Port, Queue


@lowers("infeed")
def _infeed(context: LoweringContext) -> Sequence[Value]:
    builder = context.builder
    kinds = [kind for kind in context.results if kind[0] != "token"]
    queue = _queue(context, "infeed", kinds)
    values: list[Value] = [
        streamed_in(builder, port.stream, port.element_type, port.shape) for port in queue.streams
    ]
    return [*values, Token()] if len(kinds) < len(context.results) else values


@lowers("outfeed")
def _outfeed(context: LoweringContext) -> Sequence[Value]:
    builder = context.builder
    leaves = [
        builder.tile_tensor(leaf) for leaf in context.operands[0] if not isinstance(leaf, Token)
    ]
    queue = _queue(context, "outfeed", [(leaf.element_type, leaf.shape) for leaf in leaves])
    for port, leaf in zip(queue.streams, leaves, strict=True):
        builder.emit(s.Sync())
        builder.emit(s.StreamOut(port.stream, leaf.variable, leaf.value))
    return [Token()] * len(context.results)


def _queue(context: LoweringContext, opcode: str, kinds: Sequence[tuple[str, Sizes]]) -> Queue:
    """Return the queue of an op; CodegenError E0472 where its ops take different arrays."""
    builder: Builder = context.builder
    to_device = opcode == "infeed"
    name = queue_name(context.instruction)
    known = builder.queues.get(name)
    if known is not None and known.to_device is not to_device:
        name = f"{name}.{opcode}"
        known = builder.queues.get(name)
    if known is None:
        ports = tuple(Port(f"{name}.{k}", *kind) for k, kind in enumerate(kinds))
        if not ports:
            raise CodegenError(
                "E0472", f"{opcode} {context.instruction.name!r} moves no array", hint="remove it"
            )
        known = builder.queues[name] = Queue(name, to_device, ports)
    elif [(port.element_type, port.shape) for port in known.streams] != list(kinds):
        raise CodegenError(
            "E0472",
            f"{opcode} {context.instruction.name!r} moves other arrays than another op of the "
            f"queue {name!r}",
            hint="give each its own name in the configuration",
        )
    return known
