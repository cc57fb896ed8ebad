"""Checks of program files: numbers that name something, sizes that fit.

After these checks a program can be walked, proved and costed without leaving its own tables and
in time and memory of the order of its file. That it is right is for the proof to say.
"""

from math import prod
from typing import NoReturn

import numpy as np

from hloipu_runtime.element_types import ELEMENT_TYPES
from hloipu_runtime.errors import ArtefactError
from hloipu_runtime.kernels.core.rounding import is_narrow
from hloipu_runtime.kernels.core.storage import storage_dtype, to_storage
from hloipu_runtime.machine.model import Machine
from hloipu_runtime.program.descriptors import is_complete
from hloipu_runtime.program.program import Array, Program, Role
from hloipu_runtime.program_io.file.codelet_checks import CodeletChecks
from hloipu_runtime.program_io.file.port_checks import check_ports
from hloipu_runtime.program_io.file.refusal import Refuse
from hloipu_runtime.program_io.file.residency_checks import check_residency
from hloipu_runtime.program_io.file.span_checks import (
    MOST_ELEMENTS,
    check_spans,
    check_tensor,
    check_tiles,
)
from hloipu_runtime.program_io.file.step_checks import StepChecks

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
