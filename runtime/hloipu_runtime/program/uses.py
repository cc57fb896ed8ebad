"""Variables that a step reads and writes, inner steps included."""

from collections.abc import Iterable, Iterator

from hloipu_runtime.program import steps as s
from hloipu_runtime.program.collective import Collective, RemoteCopy
from hloipu_runtime.program.program import Program
from hloipu_runtime.reached import reached


def written(step: s.Step, program: Program) -> frozenset[s.VariableId]:
    """Return the variables that a step may write."""
    if _is_plain(step):
        return written_by(step)
    return frozenset[s.VariableId]().union(*[uses.writes for uses in _uses(step, program)])


def used(step: s.Step, program: Program) -> frozenset[s.VariableId]:
    """Return the variables that a step reads or writes."""
    if _is_plain(step):
        return touched_by(step)
    return frozenset[s.VariableId]().union(*[uses.touched for uses in _uses(step, program)])


def _is_plain(step: s.Step) -> bool:
    """Whether there are no steps inside of a step."""
    return isinstance(step, s.ComputeSet | s.Exchange) or not (
        isinstance(step, s.Sequence | s.Call) or s.blocks_of(step)
    )


def uses_of(steps: Iterable[s.Step]) -> s.Uses:
    """Return what steps and those inside of them use; each sequence within keeps its own part."""
    touched, writes = set[s.VariableId](), set[s.VariableId]()
    called = set[str]()
    for step in steps:
        touched |= touched_by(step)
        writes |= written_by(step)
        if isinstance(step, s.Call):
            called.add(step.function)
        for inner in (step,) if isinstance(step, s.Sequence) else s.blocks_of(step):
            touched |= inner.uses.touched
            writes |= inner.uses.writes
            called |= inner.uses.called
    return s.Uses(frozenset(touched), frozenset(writes), frozenset(called))


def _uses(step: s.Step, program: Program) -> Iterator[s.Uses]:
    """Yield what a step uses, and each function that it calls, directly or not."""
    bodies, own = program.functions, uses_of((step,))
    yield own
    for name in reached(
        own.called, lambda name: bodies[name].uses.called if name in bodies else ()
    ):
        if name in bodies:
            yield bodies[name].uses


def read_first(step: s.Step, program: Program) -> frozenset[s.VariableId]:
    """Return the variables that a step may read before it writes them."""
    return frozenset(_First(program).of(step)[0])


class _First:
    """Variables that steps read before writing, and surely write; functions taken once."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.functions: dict[str, tuple[set[s.VariableId], set[s.VariableId]]] = {}

    def of(self, step: s.Step) -> tuple[set[s.VariableId], set[s.VariableId]]:
        """Return the variables that a step reads first, and those that it always writes."""
        if isinstance(step, s.Call) and step.function in self.program.functions:
            if step.function not in self.functions:
                self.functions[step.function] = (set(), set())  # of one that calls itself
                body = self.program.functions[step.function]
                self.functions[step.function] = self.of(body)
            return self.functions[step.function]
        reads, writes = set(_reads(step)), set(_writes(step))
        if isinstance(step, s.Exchange):
            # What is written in part keeps the rest, which is as if it were read.
            overwritten = {
                definition.variable for definition in step.definitions if definition.base is None
            }
            reads |= {transfer.destination for transfer in step.transfers} - overwritten
        if isinstance(step, s.Call | s.ComputeSet | s.Exchange | s.Sync):
            return reads, writes
        runs = isinstance(step, s.Sequence | s.Parallel) or (
            isinstance(step, s.Repeat) and step.count
        )
        for inner in s.inner_steps(step):
            first, surely = self.of(inner)
            reads |= first - writes
            writes |= surely if runs else set()
        return reads, writes


def touched_by(step: s.Step) -> frozenset[s.VariableId]:
    """Return the variables that a step itself reads or writes, what is inside it left out."""
    if isinstance(step, s.ComputeSet | s.Exchange):
        return step.touches
    return frozenset((*_writes(step), *_reads(step)))


def written_by(step: s.Step) -> frozenset[s.VariableId]:
    """Return the variables that a step itself writes, what is inside it left out."""
    if isinstance(step, s.ComputeSet | s.Exchange):
        return step.writes
    return frozenset(_writes(step))


def steps_within(step: s.Step, program: Program) -> Iterator[s.Step]:
    """Yield a step and all inside of it, those of the functions that it calls included."""
    called = set[str]()
    pending = [step]
    while pending:
        inner = pending.pop()
        yield inner
        if isinstance(inner, s.Call):
            if inner.function in program.functions and inner.function not in called:
                called.add(inner.function)
                pending.append(program.functions[inner.function])
        elif not isinstance(inner, s.ComputeSet | s.Exchange | s.Sync):
            pending += reversed(s.inner_steps(inner))


def _writes(step: s.Step) -> Iterable[s.VariableId]:
    match step:
        case s.ComputeSet() | s.Exchange():
            return step.writes
        case s.StreamIn():
            return (step.variable,)
        case Collective():
            return [moved.variable for moved in step.outputs]
        case RemoteCopy():
            return (step.destination,)
        case s.Pipeline():
            filled = [v for c in step.channels for v in (*c.places, c.destination)]
            return [*filled, *[v for stage in step.stages for page in stage.paged for v in page]]
        case _:
            return ()


def _reads(step: s.Step) -> Iterable[s.VariableId]:
    match step:
        case s.ComputeSet() | s.Exchange():
            return step.reads
        case s.StreamOut():
            return (step.variable,)
        case Collective():
            return [moved.variable for moved in step.inputs]
        case RemoteCopy():
            return (step.source,)
        case s.If():
            return (step.predicate, *[item.variable for item in step.merged])
        case s.Switch():
            return (step.index, *[item.variable for item in step.merged])
        case s.Repeat():
            return [item.variable for item in step.carried]
        case s.Pipeline():
            carried = [item.variable for item in step.carried]
            return [*carried, *[channel.source for channel in step.channels]]
        case s.RepeatWhile():
            return (step.predicate, *[item.variable for item in step.carried])
        case s.Call():
            return [item.variable for item in (*step.arguments, *step.results)]
        case _:
            return ()
