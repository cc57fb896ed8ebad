"""Proof of exchanges: transfers bring exactly the pieces of the logical form."""

from collections.abc import Mapping as MappingType

from hloipu_runtime.program.faults import Fault
from hloipu_runtime.program.mapping import intersect, volume, whole_box
from hloipu_runtime.program.program import Program
from hloipu_runtime.program.steps import Definition, Exchange, Piece, Transfer, ValueId, VariableId


def exchange_faults(
    program: Program,
    step: Exchange,
    state: MappingType[VariableId, ValueId],
    defined: set[ValueId],
    place: str,
) -> list[Fault]:
    """Return what is wrong with an exchange; values that it makes are added to `defined`."""
    where = f"{place} {step.name}".rstrip()
    faults: list[Fault] = []
    incoming: dict[VariableId, list[Transfer]] = {}
    for transfer in step.transfers:
        incoming.setdefault(transfer.destination, []).append(transfer)
        if state.get(transfer.source) != transfer.value:
            name = program.variables[transfer.source].name
            message = (
                f"sends value %{transfer.value} of {name}, which holds {state.get(transfer.source)}"
            )
            faults.append(Fault("version", where, message))
    targets = {definition.variable for definition in step.definitions}
    for transfer in step.transfers:
        if transfer.source in targets:
            name = program.variables[transfer.source].name
            faults.append(Fault("race", where, f"{name} is sent and received at once"))
    for variable in incoming.keys() - targets:
        name = program.variables[variable].name
        faults.append(Fault("transfer", where, f"{name} receives what no definition names"))
    if len(targets) != len(step.definitions):
        faults.append(Fault("transfer", where, "one variable is defined twice"))
    for definition in step.definitions:
        messages = _definition_faults(program, definition, state, defined)
        faults += [Fault("transfer", where, message) for message in messages]
        messages = _arrival_faults(program, definition, incoming.get(definition.variable, []))
        faults += [Fault("transfer", where, message) for message in messages]
    return faults


def _definition_faults(
    program: Program,
    definition: Definition,
    state: MappingType[VariableId, ValueId],
    defined: set[ValueId],
) -> list[str]:
    """Check the logical form by itself: pieces lie in their values and make up the result."""
    variable = program.variables[definition.variable]
    value = program.values[definition.value]
    if (value.element_type, value.shape) != (variable.element_type, variable.shape):
        return [f"{variable.name} cannot hold value %{definition.value}"]
    faults = [
        f"a piece of value %{piece.value} lies outside of it or of {variable.name}"
        for piece in definition.pieces
        if not _piece_fits(program, piece, variable.shape, variable.element_type)
    ]
    if faults:
        return faults
    boxes = [piece.box for piece in definition.pieces]
    overlap = _any_overlap(boxes)
    if overlap:
        faults.append(f"two pieces overlap in {variable.name}")
    if definition.base is None:
        if sum(map(volume, boxes)) != volume(whole_box(variable.shape)):
            faults.append(f"the pieces do not make up all of {variable.name}")
    elif state.get(definition.variable) != definition.base:
        faults.append(f"{variable.name} does not hold value %{definition.base} underneath")
    if not is_plain_copy(definition, variable.shape):
        if definition.value in defined:
            faults.append(f"value %{definition.value} is made twice")
        defined.add(definition.value)
    return faults


def is_plain_copy(definition: Definition, shape: tuple[int, ...]) -> bool:
    """Whether a definition only brings a value, whole and unchanged, to another variable."""
    if definition.base is not None or len(definition.pieces) != 1:
        return False
    (piece,) = definition.pieces
    return (
        piece.value == definition.value
        and piece.view == shape
        and piece.box == whole_box(shape)
        and not any(piece.shift)
    )


def _piece_fits(program: Program, piece: Piece, shape: tuple[int, ...], element_type: str) -> bool:
    value = program.values[piece.value]
    if value.element_type != element_type or len(piece.view) != len(shape):
        return False
    if volume(whole_box(piece.view)) != volume(whole_box(value.shape)):
        return False
    return all(
        0 <= low <= high <= size and (low == high or (low + shift >= 0 and high + shift <= extent))
        for (low, high), size, shift, extent in zip(
            piece.box, shape, piece.shift, piece.view, strict=True
        )
    )


def _any_overlap(boxes: list[tuple[tuple[int, int], ...]]) -> bool:
    """Whether two of the boxes share an element; a sweep along the dimension that splits best."""
    boxes = [box for box in boxes if volume(box)]
    if len(boxes) < 2:
        return False
    rank = len(boxes[0])
    best = max(range(rank), key=lambda d: len({box[d] for box in boxes}), default=0)
    ordered = sorted(boxes, key=lambda box: box[best]) if rank else boxes
    active: list[tuple[tuple[int, int], ...]] = []
    for box in ordered:
        active = [other for other in active if other[best][1] > box[best][0]] if rank else active
        if any(volume(intersect(box, other)) for other in active):
            return True
        active.append(box)
    return False


def _arrival_faults(
    program: Program, definition: Definition, transfers: list[Transfer]
) -> list[str]:
    """Check that transfers are the pieces, each to all tiles that hold the variable."""
    variable = program.variables[definition.variable]
    mapping = variable.mapping
    faults = []
    for transfer in transfers:
        if transfer.tiles != mapping.tiles:
            faults.append(f"{variable.name} lies on other tiles than those that receive")
        if transfer.receivers != whole_box(mapping.tiles.extents):
            faults.append(f"not all tiles that hold {variable.name} receive")
        if transfer.spans != mapping.spans:
            faults.append(f"the parts of {variable.name} are not all received")
    arriving = sorted(Piece(t.value, t.view, t.box, t.shift) for t in transfers)
    if arriving != sorted(definition.pieces):
        faults.append(f"what {variable.name} receives is not what makes value %{definition.value}")
    return faults
