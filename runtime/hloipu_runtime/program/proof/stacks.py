"""Rules of arrays in pieces: all pieces exist and belong."""

from collections.abc import Iterator, Sequence

from hloipu_runtime.program.program import Port, Program, StatePort
from hloipu_runtime.program.stacks import KINDS, PARAMETER, RESULT, Numbering, Stack, Whole
from hloipu_runtime.program.state_parts import user_shape

Tensor = tuple[str, tuple[int, ...]]


def stack_faults(program: Program) -> Iterator[tuple[str, str]]:
    """Yield places and faults of a program's stacks."""
    if not program.stacks:
        return
    faults = [fault for stack in program.stacks for fault in _form_faults(stack)]
    if faults:
        yield from faults
        return
    overlapping = list(_overlaps(program.stacks))
    if overlapping:
        yield from overlapping
        return
    parameter_numbering = Numbering(program.stacks, PARAMETER)
    result_numbering = Numbering(program.stacks, RESULT)
    met: set[Stack] = set()
    yield from _row_faults(
        "the parameters", _numbered(program.parameters), parameter_numbering, met
    )
    loaded = program.parameters[: len(program.loaded)]
    yield from _row_faults("the loaded parameters", _numbered(loaded), parameter_numbering, met)
    yield from _row_faults("the results", _numbered(program.results), result_numbering, met)
    state_tensors = [(port.parameter, _port_tensor(program, port)) for port in program.state]
    yield from _row_faults("the state", state_tensors, parameter_numbering, met)
    next_state_tensors = [(port.result, _port_tensor(program, port)) for port in program.state]
    yield from _row_faults("the state's results", next_state_tensors, result_numbering, met)
    yield from _state_faults(program.state, parameter_numbering, result_numbering)
    for queue in program.queues:
        tensors = [(port.element_type, port.shape) for port in queue.streams]
        row = list(zip(queue.places, tensors, strict=False))
        yield from _row_faults(
            f"queue {queue.name!r}",
            row,
            parameter_numbering if queue.to_device else result_numbering,
            met,
        )
    for stack in program.stacks:
        if stack not in met:
            yield _place(stack), "no port or queue has its pieces"


def _form_faults(stack: Stack) -> Iterator[tuple[str, str]]:
    place = _place(stack)
    if not stack.name:
        yield place, "it has no name"
    if stack.kind not in KINDS or stack.first < 0:
        yield place, f"its pieces cannot be {stack.kind[:40]} {stack.first}"
    if not 0 <= stack.axis < len(stack.shape):
        yield place, f"an array {list(stack.shape)} has no axis {stack.axis}"
    elif min(stack.sizes, default=0) < 1 or sum(stack.sizes) != stack.shape[stack.axis]:
        yield place, f"pieces of {list(stack.sizes)[:20]} are not {list(stack.shape)}"
    if len(stack.sizes) < 2:
        yield place, "it has no two pieces"


def _overlaps(stacks: Sequence[Stack]) -> Iterator[tuple[str, str]]:
    """Yield stacks that have a piece or a name in common with another one."""
    end = dict.fromkeys(KINDS, 0)
    names: set[tuple[str, str]] = set()
    for stack in stacks:
        if stack.first < end[stack.kind]:
            yield _place(stack), f"{stack.kind} {stack.first} is a piece of the one before it"
        if (stack.kind, stack.name) in names:
            yield _place(stack), "another one has its name"
        end[stack.kind] = stack.first + len(stack.sizes)
        names.add((stack.kind, stack.name))


def _row_faults(
    place: str, row: Sequence[tuple[int, Tensor]], numbering: Numbering, met: set[Stack]
) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with the pieces in a row of ports."""
    try:
        wholes = list(numbering.wholes([number for number, _ in row]))
    except ValueError as error:
        yield place, str(error)
        return
    numbers: set[int] = set()
    for array in wholes:
        if array.number >= 0 and array.number in numbers:
            yield place, f"number {array.number} is there twice"
        numbers.add(array.number)
        if array.stack is None:
            continue
        met.add(array.stack)
        kind = row[array.places[0]][1][0]
        for n, at in enumerate(array.places):
            wanted = (kind, array.stack.piece_shape(n))
            if row[at][1] != wanted:
                yield place, f"{_place(array.stack)}: its piece {n} is another tensor"


def _state_faults(
    state: Sequence[StatePort], parameter_numbering: Numbering, result_numbering: Numbering
) -> Iterator[tuple[str, str]]:
    """Yield state whose next value is in other pieces, and state of one name."""
    names: list[str] = []
    for array in _quietly(parameter_numbering, [port.parameter for port in state]):
        port = state[array.places[0]]
        names.append(port.name if array.stack is None else array.stack.name)
        if array.stack is None:
            continue
        results = [state[place].result for place in array.places]
        result_stack = result_numbering.stack_of(results[0])
        if set(results) == {-1}:
            continue
        if result_stack is None or results != list(result_stack.numbers):
            yield _place(array.stack), "its next value is not in pieces"
        elif (result_stack.axis, result_stack.sizes, result_stack.shape) != (
            array.stack.axis, array.stack.sizes, array.stack.shape,
        ):  # fmt: skip
            yield _place(array.stack), "its next value is in other pieces"
    if len(frozenset(names)) != len(names):
        yield "the state", "two arrays have one name"


def _quietly(numbering: Numbering, numbers: Sequence[int]) -> list[Whole]:
    try:
        return list(numbering.wholes(numbers))
    except ValueError:  # told of already
        return []


def _numbered(ports: Sequence[Port]) -> list[tuple[int, Tensor]]:
    """Return ports with the numbers in their streams; -2 where there is none."""
    numbered = []
    for port in ports:
        number_text = port.stream.rpartition(".")[2]
        number = (
            int(number_text)
            if number_text.isdecimal() and number_text.isascii() and len(number_text) < 16
            else -2
        )
        numbered.append((number, (port.element_type, port.shape)))
    return numbered


def _port_tensor(program: Program, port: StatePort) -> Tensor:
    return program.variables[port.variable].element_type, user_shape(program, port)


def _place(stack: Stack) -> str:
    return f"stack {stack.name[:80]!r}"
