"""Errors of queues."""

from collections.abc import Iterable
from typing import NamedTuple

from hloipu_runtime.errors import StreamEndedError, StreamError, StreamInterruptedError
from hloipu_runtime.plain_text import plain_message


class _Fault(NamedTuple):
    """An error of a queue; its texts name what is filled in."""

    code: str
    message: str
    expected: str
    found: str
    hint: str = ""
    kind: type[StreamError] = StreamError

    def __call__(
        self, queue: str, step: int = -1, cause: BaseException | None = None, **values: str | float
    ) -> StreamError:
        """Return the error at an element; `values` are what the texts name beside these."""
        values |= {"queue": queue, "step": step}
        if cause is not None:
            values |= {"cause": plain_message(cause), "cause_type": type(cause).__name__}
        message, expected, found = (text.format_map(values) for text in self[1:4])
        return self.kind(
            self.code, message, queue=queue, step=step, expected=expected, found=found,
            hint=self.hint,
        )  # fmt: skip


def ended(queue: str, step: int, total: int | None) -> StreamError:
    """Return the error of a source that has no more elements; `total`: those that are needed."""
    of = f" of {total}" if total is not None else ""
    return StreamEndedError(
        "E2020",
        f"infeed {queue!r} ended at element {step}{of}: its source has {step} elements",
        queue=queue,
        step=step,
        expected="one more element" if total is None else f"{total} elements",
        found="the end" if total is None else f"{step} elements",
        hint="repeat the source (.wrap() or .repeat(n), on the command line --repeat), or run "
        "fewer steps"
        if step
        else "the source is empty: give it elements",
    )


stuck = _Fault(
    "E2021",
    "infeed {queue!r}: its source gave no element {step} within {timeout:g} s",
    "an element within {timeout:g} s",
    "none",
    "look where the source waits, or give the queue a longer timeout",
)
"""Of a source that gives nothing in time."""

source_failed = _Fault(
    "E2022",
    "infeed {queue!r}: its source raised {cause} making element {step}",
    "an element",
    "{cause_type}",
    "the source's own error is shown above",
)
"""Of a source that raised."""

thread_died = _Fault(
    "E2024",
    "stream {queue!r}: its thread ended without a word before element {step}",
    "a running thread",
    "none",
    "was the process forked? open queues in the process that uses them",
)
"""Of a queue whose thread is no more."""

reentrant = _Fault(
    "E2025",
    "stream {queue!r}: {what}, which waits for that very code: it would never end",
    "code that only makes or takes elements",
    "{what}",
    "call from outside of sources and sinks, or use a session of its own",
)
"""Of user code that calls back into what waits for it."""

closed = _Fault(
    "E2026",
    "stream {queue!r} is closed; element {step} cannot go through it",
    "an open queue",
    "a closed one",
    "make a new queue; its start= goes on where this one was left",
)
"""Of using a queue that was closed."""

interrupted = _Fault(
    "E2027",
    "stream {queue!r}: interrupted while the program waited at element {step}",
    "an element",
    "an interrupt",
    kind=StreamInterruptedError,
)
"""Of an interrupt from the keyboard during a wait."""

full = _Fault(
    "E2028",
    "outfeed {queue!r} is full: none of its {capacity} elements was taken within {timeout:g} s, "
    "element {step} has no place",
    "a place within {timeout:g} s",
    "{capacity} elements that wait",
    "drain it from another thread while the program runs, or leave out its capacity",
)
"""Of a bounded outfeed that nobody drains."""

sink_failed = _Fault(
    "E2029",
    "outfeed {queue!r}: its sink raised {cause} taking element {step}",
    "a sink that returns",
    "{cause_type}",
    "the sink's own error is shown above",
)
"""Of a sink that raised."""

reader_gone = _Fault(
    "E2033",
    "outfeed {queue!r} is full and who read it has gone; element {step} has no place",
    "a reader until the end",
    "none",
    "read all elements, or leave out the capacity",
)
"""Of a bounded outfeed whose reader went away before the end."""

run_failed = _Fault(
    "E2034",
    "outfeed {queue!r}: the program that fills it failed after {step} elements",
    "a run that ends",
    "{cause_type}",
    "the program's own error is shown above",
)
"""Of a program that failed, for a reader on another thread."""

too_far_ahead = _Fault(
    "E2035",
    "stream {queue!r}: replica {replica} is too far ahead of the others at element {step}",
    "replicas that go on together",
    "replica {replica} alone",
    "run the replicas together, or give each a queue of its own",
)
"""Of one replica that goes on while others do not."""

sink_stuck = _Fault(
    "E2036",
    "outfeed {queue!r}: its sink was not done with element {step} within {timeout:g} s",
    "a sink that returns within {timeout:g} s",
    "one that does not",
    "look where the sink waits, or give the queue a longer timeout",
)
"""Of a sink that does not come to an end."""

nothing_came = _Fault(
    "E2037",
    "outfeed {queue!r}: the program gave no element {step} within {timeout:g} s",
    "an element within {timeout:g} s",
    "none",
    "leave out the timeout to wait as long as the queue is open",
)
"""Of a reader that waited for an element in vain."""

unbound = _Fault(
    "E2031",
    "outfeed {queue!r} is not bound to a program and has no specification of its own",
    "a specification",
    "none",
    "pass spec=, or give the queue to a session first",
)
"""Of an outfeed of which nobody said what goes through it."""

unread_leaf = _Fault(
    "E2035",
    "stream {queue!r}: leaf {leaf} piles up, as the program goes on with other leaves",
    "all leaves of an element in one step",
    "leaf {leaf} left behind",
    "give leaves that are used at different rates a queue each",
)
"""Of a program that uses some leaves of a queue far more than others."""


def no_stream(stream: str, known: Iterable[str]) -> StreamError:
    """Return the error of a stream of the program that nothing is bound to."""
    names = sorted(known)
    return StreamError(
        "E2030",
        f"no queue carries the program's stream {stream!r}",
        queue=stream,
        expected=stream,
        found=", ".join(names[:8]) or "no queue",
        hint="name the queue, or its streams=, as the program does",
    )


def again(said: StreamError) -> StreamError:
    """Return an error equal to one that was raised before, with that one as its cause."""
    fault = type(said)(
        said.code,
        said.message,
        queue=said.queue,
        step=said.step,
        expected=said.expected,
        found=said.found,
        hint=said.hint,
    )
    fault.__cause__ = said.__cause__ or said
    return fault
