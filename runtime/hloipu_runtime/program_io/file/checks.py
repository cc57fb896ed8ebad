"""Checks of program files: numbers that name something, sizes that fit.

After these checks a program can be walked, proved and costed without leaving its own tables and
in time and memory of the order of its file. That it is right is for the proof to say.
"""

import re
from math import prod
from typing import NoReturn

import numpy as np

from hloipu_runtime.element_types import ELEMENT_TYPES
from hloipu_runtime.errors import ArtefactError
from hloipu_runtime.kernels.core.rounding import is_narrow
from hloipu_runtime.kernels.core.storage import storage_dtype, to_storage
from hloipu_runtime.kernels.replica_keys import KEY_TYPES
from hloipu_runtime.machine.model import Machine
from hloipu_runtime.program.descriptors import is_complete
from hloipu_runtime.program.program import Array, Program, Role, StatePort
from hloipu_runtime.program.proof.blocks import block_faults
from hloipu_runtime.program.proof.stacks import stack_faults
from hloipu_runtime.program.seen import number_of, seen_by_users
from hloipu_runtime.program.state_parts import part_size
from hloipu_runtime.program_io.file.codelet_checks import CodeletChecks
from hloipu_runtime.program_io.file.span_checks import (
    MOST_ELEMENTS,
    Refuse,
    check_ports,
    check_spans,
    check_tensor,
    check_tiles,
)
from hloipu_runtime.program_io.file.step_checks import StepChecks

_MODE = re.compile("all|last|first|every-[1-9][0-9]{0,8}")
MOST_STEPS = 2**62
LONGEST_NAME = 1024


MOST_IPUS = 65_536
MOST_PARTICIPANTS = 65_536
MOST_COORDINATES = 2**26
"""Tiles of all different mappings together: the proof looks at each."""


def refusing(name: str) -> Refuse:
    """Return what raises ArtefactError E4011 for a place and what is wrong there."""

    def refuse(place: str, fault: str) -> NoReturn:
        raise ArtefactError(
            "E4011", f"{place}: {fault}", name=name, hint="have this hloipu write it again"
        )

    return refuse


def check_program(program: Program, machine: Machine | None = None, *, name: str = "") -> None:
    """Raise ArtefactError E4011 where a program's numbers cannot be what they are for.

    With a `machine`, one vertex of each kind is also run, and asked what it costs there.
    """
    refuse = refusing(name)
    if not 1 <= program.ipus <= MOST_IPUS:
        refuse("the program", f"{program.ipus} IPUs")
    least = min(program.replicas, program.partitions)
    if least < 1 or program.participants > MOST_PARTICIPANTS:
        refuse("the program", f"{program.replicas} replicas of {program.partitions} partitions")
    if not program.has_places:
        refuse("the program", f"places {program.places} in a system of {program.system_ipus}")
    if not program.has_hosts:
        refuse("the program", f"{program.hosts} hosts of {program.replicas} replicas")
    _check_variables(program, refuse)
    for number, value in enumerate(program.values):
        check_tensor(value.element_type, value.shape, f"value %{number}", refuse)
    _check_constants(program, refuse)
    check_ports(program, refuse)
    check_residency(program, refuse)
    StepChecks(program, refuse).check()
    if machine:
        CodeletChecks(program, machine, refuse).check()


def _check_variables(program: Program, refuse: Refuse) -> None:
    proper: set[int] = set()
    coordinates = 0
    for number, variable in enumerate(program.variables):
        place = f"variable {number} {variable.name[:80]!r}"
        check_tensor(variable.element_type, variable.shape, place, refuse)
        if not 0 <= variable.ipu < program.ipus:
            refuse(place, f"lies on IPU {variable.ipu}")
        mapping = variable.mapping
        if id(mapping) not in proper:
            check_tiles(mapping.tiles, place, refuse)
            check_spans(mapping.spans, mapping.tiles, place, refuse)
            proper.add(id(mapping))
            coordinates += mapping.tiles.count
        if len(mapping.spans) != len(variable.shape):
            refuse(place, "its mapping has another rank")
        if mapping.tiles.count * prod(mapping.block) > MOST_ELEMENTS:
            refuse(place, "its parts are too large")
    if coordinates > MOST_COORDINATES:
        refuse("the variables", f"lie on {coordinates} tiles, each mapping's counted")


def _check_constants(program: Program, refuse: Refuse) -> None:
    for number, (value, array) in program.constants.items():
        place = f"constant {number}"
        if not 0 <= number < len(program.variables) or not 0 <= value < len(program.values):
            refuse(place, "there is no such variable or value")
        variable, meant = program.variables[number], program.values[value]
        if (variable.element_type, variable.shape) != (meant.element_type, meant.shape):
            refuse(place, f"variable and value %{value} differ in type or shape")
        dtype = storage_dtype(variable.element_type)
        if array.dtype != dtype or array.shape != variable.shape:
            refuse(place, f"an array {array.dtype}{list(array.shape)} is not what it holds")
        if not _is_stored(array, variable.element_type):
            refuse(place, f"it holds what is no {variable.element_type}")
        if not is_complete(variable.mapping, variable.shape):
            refuse(place, "some of its elements lie on no tile")
        if variable.role not in (Role.CONSTANT, Role.REMOTE):
            refuse(place, f"its variable is for another role: {variable.role.value}")


def _is_stored(array: Array, element_type: str) -> bool:
    """Whether every element is a value of the type, for types in a wider storage dtype."""
    if not is_narrow(element_type) and ELEMENT_TYPES[element_type].bits >= 8:
        return True
    with np.errstate(all="ignore"):
        proper = to_storage(array, element_type)
        return bool(np.array_equal(proper, array, equal_nan=array.dtype.kind == "f"))


def check_residency(program: Program, refuse: Refuse) -> None:
    """Refuse state that names missing things, and duplicate queues."""
    if not 1 <= program.steps_per_run <= MOST_STEPS:
        refuse("the program", f"{program.steps_per_run} steps in a run")
    _check_state(program, refuse)
    _check_loaded(program, refuse)
    _check_queues(program, refuse)
    for place, fault in (*stack_faults(program), *block_faults(program)):
        refuse(place, fault)
    _check_keys(program, refuse)


def _check_state(program: Program, refuse: Refuse) -> None:
    for number, port in enumerate(program.state):
        place = f"state {number}"
        if not 0 < len(port.name) <= LONGEST_NAME:
            refuse(place, "it has no name, or a long one")
        if not 0 <= port.variable < len(program.variables):
            refuse(place, f"there is no variable {port.variable}")
        if not all(0 <= value < len(program.values) for value in (port.initial, port.final)):
            refuse(place, "there is no such value")
        if port.parameter < -1 or port.result < -1:
            refuse(place, "its parameter or result cannot be")
        if port.whole:
            _check_part(program, port, place, refuse)
    if len({port.name for port in program.state}) != len(program.state):
        refuse("the state", "two variables have one name")


def _check_keys(program: Program, refuse: Refuse) -> None:
    if not program.keys:
        return
    user_view = seen_by_users(program)
    known = {state.parameter for state in user_view.state if state.element_type in KEY_TYPES}
    loaded = user_view.parameters[: user_view.loaded]
    known |= {number_of(port) for port in loaded if port.element_type in KEY_TYPES}
    if len(frozenset(program.keys)) != len(program.keys) or not known.issuperset(program.keys):
        refuse("the program", f"parameters {program.keys} are not keys that it holds")


def _check_part(program: Program, port: StatePort, place: str, refuse: Refuse) -> None:
    variable = program.variables[port.variable]
    check_tensor(variable.element_type, port.whole, place, refuse)
    is_apart = program.partitions > 1 and program.partitioning is None
    if variable.shape != (part_size(port.whole, program.replicas),) or is_apart:
        refuse(place, f"it is not a part of an array {list(port.whole)}")


def _check_loaded(program: Program, refuse: Refuse) -> None:
    if not program.loaded:
        return
    if len(program.loaded) > len(program.parameters) or not program.is_resident:
        refuse("the loaded parameters", "they are not those of a program that stays")
    if len(frozenset(program.loaded)) != len(program.loaded):
        refuse("the loaded parameters", "two have one value")
    constant_values = {value for value, _ in program.constants.values()}
    for value, port in zip(program.loaded, program.parameters, strict=False):
        if value not in constant_values:
            refuse(f"parameter {port.stream[:80]!r}", f"no constant holds its value %{value}")
        meant = program.values[value]
        if (meant.element_type, meant.shape) != (port.element_type, port.shape):
            refuse(f"parameter {port.stream[:80]!r}", f"it differs from its value %{value}")


def _check_queues(program: Program, refuse: Refuse) -> None:
    streams = [port.stream for port in (*program.parameters, *program.results)]
    for number, queue in enumerate(program.queues):
        place = f"queue {number}"
        if not 0 < len(queue.name) <= LONGEST_NAME:
            refuse(place, "it has no name, or a long one")
        if not queue.streams or len(queue.places) not in (0, len(queue.streams)):
            refuse(place, "its streams are not what it feeds")
        if len(queue.names) not in (0, len(queue.streams)):
            refuse(place, "it has not as many names as streams")
        if queue.reduction not in ("", "sum", "mean"):
            refuse(place, "its elements are made one in no way that there is")
        if queue.mode and not _MODE.fullmatch(queue.mode):
            refuse(place, "it keeps elements in no way that there is")
        streams += [port.stream for port in queue.streams]
    if len({queue.name for queue in program.queues}) != len(program.queues):
        refuse("the queues", "two have one name")
    if len(frozenset(streams)) != len(streams):
        refuse("the queues", "two have one stream")
