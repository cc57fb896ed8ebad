"""Errors of queues."""

from collections.abc import Iterable

from hloipu_runtime.errors import StreamEndedError, StreamError, StreamInterruptedError
from hloipu_runtime.plain_text import plain_message


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


def stuck(queue: str, step: int, timeout: float) -> StreamError:
    """Return the error of a source that gives nothing in time."""
    return StreamError(
        "E2021",
        f"infeed {queue!r}: its source gave no element {step} within {timeout:g} s",
        queue=queue,
        step=step,
        expected=f"an element within {timeout:g} s",
        found="none",
        hint="look where the source waits, or give the queue a longer timeout",
    )


def source_failed(queue: str, step: int, cause: BaseException) -> StreamError:
    """Return the error of a source that raised."""
    return StreamError(
        "E2022",
        f"infeed {queue!r}: its source raised {plain_message(cause)} making element {step}",
        queue=queue,
        step=step,
        expected="an element",
        found=type(cause).__name__,
        hint="the source's own error is shown above",
    )


def thread_died(queue: str, step: int) -> StreamError:
    """Return the error of a queue whose thread is no more."""
    return StreamError(
        "E2024",
        f"stream {queue!r}: its thread ended without a word before element {step}",
        queue=queue,
        step=step,
        expected="a running thread",
        found="none",
        hint="was the process forked? open queues in the process that uses them",
    )


def reentrant(queue: str, step: int, what: str) -> StreamError:
    """Return the error of user code that calls back into what waits for it."""
    return StreamError(
        "E2025",
        f"stream {queue!r}: {what}, which waits for that very code: it would never end",
        queue=queue,
        step=step,
        expected="code that only makes or takes elements",
        found=what,
        hint="call from outside of sources and sinks, or use a session of its own",
    )


def closed(queue: str, step: int) -> StreamError:
    """Return the error of using a queue that was closed."""
    return StreamError(
        "E2026",
        f"stream {queue!r} is closed; element {step} cannot go through it",
        queue=queue,
        step=step,
        expected="an open queue",
        found="a closed one",
        hint="make a new queue; its start= goes on where this one was left",
    )


def interrupted(queue: str, step: int) -> StreamError:
    """Return the error of an interrupt from the keyboard during a wait."""
    return StreamInterruptedError(
        "E2027",
        f"stream {queue!r}: interrupted while the program waited at element {step}",
        queue=queue,
        step=step,
        expected="an element",
        found="an interrupt",
    )


def full(queue: str, step: int, capacity: int, timeout: float) -> StreamError:
    """Return the error of a bounded outfeed that nobody drains."""
    return StreamError(
        "E2028",
        f"outfeed {queue!r} is full: none of its {capacity} elements was taken within "
        f"{timeout:g} s, element {step} has no place",
        queue=queue,
        step=step,
        expected=f"a place within {timeout:g} s",
        found=f"{capacity} elements that wait",
        hint="drain it from another thread while the program runs, or leave out its capacity",
    )


def sink_failed(queue: str, step: int, cause: BaseException) -> StreamError:
    """Return the error of a sink that raised."""
    return StreamError(
        "E2029",
        f"outfeed {queue!r}: its sink raised {plain_message(cause)} taking element {step}",
        queue=queue,
        step=step,
        expected="a sink that returns",
        found=type(cause).__name__,
        hint="the sink's own error is shown above",
    )


def reader_gone(queue: str, step: int) -> StreamError:
    """Return the error of a bounded outfeed whose reader went away before the end."""
    return StreamError(
        "E2033",
        f"outfeed {queue!r} is full and who read it has gone; element {step} has no place",
        queue=queue,
        step=step,
        expected="a reader until the end",
        found="none",
        hint="read all elements, or leave out the capacity",
    )


def run_failed(queue: str, step: int, cause: BaseException) -> StreamError:
    """Return what a reader on another thread sees when the program fails."""
    return StreamError(
        "E2034",
        f"outfeed {queue!r}: the program that fills it failed after {step} elements",
        queue=queue,
        step=step,
        expected="a run that ends",
        found=type(cause).__name__,
        hint="the program's own error is shown above",
    )


def too_far_ahead(queue: str, step: int, replica: int) -> StreamError:
    """Return the error of one replica that goes on while others do not."""
    return StreamError(
        "E2035",
        f"stream {queue!r}: replica {replica} is too far ahead of the others at element {step}",
        queue=queue,
        step=step,
        expected="replicas that go on together",
        found=f"replica {replica} alone",
        hint="run the replicas together, or give each a queue of its own",
    )


def sink_stuck(queue: str, step: int, timeout: float) -> StreamError:
    """Return the error of a sink that does not come to an end."""
    return StreamError(
        "E2036",
        f"outfeed {queue!r}: its sink was not done with element {step} within {timeout:g} s",
        queue=queue,
        step=step,
        expected=f"a sink that returns within {timeout:g} s",
        found="one that does not",
        hint="look where the sink waits, or give the queue a longer timeout",
    )


def nothing_came(queue: str, step: int, timeout: float) -> StreamError:
    """Return the error of a reader that waited for an element in vain."""
    return StreamError(
        "E2037",
        f"outfeed {queue!r}: the program gave no element {step} within {timeout:g} s",
        queue=queue,
        step=step,
        expected=f"an element within {timeout:g} s",
        found="none",
        hint="leave out the timeout to wait as long as the queue is open",
    )


def unbound(queue: str) -> StreamError:
    """Return the error of an outfeed of which nobody said what goes through it."""
    return StreamError(
        "E2031",
        f"outfeed {queue!r} is not bound to a program and has no specification of its own",
        queue=queue,
        expected="a specification",
        found="none",
        hint="pass spec=, or give the queue to a session first",
    )


def unread_leaf(queue: str, step: int, leaf: int) -> StreamError:
    """Return the error of a program that uses some leaves of a queue far more than others."""
    return StreamError(
        "E2035",
        f"stream {queue!r}: leaf {leaf} piles up, as the program goes on with other leaves",
        queue=queue,
        step=step,
        expected="all leaves of an element in one step",
        found=f"leaf {leaf} left behind",
        hint="give leaves that are used at different rates a queue each",
    )


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
