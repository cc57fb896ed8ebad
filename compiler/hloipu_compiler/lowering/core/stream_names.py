"""Streams of a program go by their names: no two of one name."""

from collections.abc import Sequence

from hloipu_runtime.errors import UsageError
from hloipu_runtime.program.program import Port, Queue


def require_unique(ports: Sequence[Port], queues: Sequence[Queue]) -> None:
    """Raise UsageError E3152 where two queues, or a queue and a port, have one name or stream."""
    names: set[str] = set()
    streams = {port.stream for port in ports}
    for queue in queues:
        clash = [port.stream for port in queue.streams if port.stream in streams]
        if queue.name in names or clash:
            what = f"stream {clash[0]!r} of the queue" if clash else "queue"
            raise UsageError(
                "E3152",
                f"the {what} {queue.name!r} has the name of another",
                hint="give the feed, outfeed or infeed op another name",
            )
        names.add(queue.name)
        streams.update(port.stream for port in queue.streams)
