"""Checks of a file's state and queues."""

import re

from hloipu_runtime.kernels.replica_keys import KEY_TYPES
from hloipu_runtime.program.program import Program, StatePort
from hloipu_runtime.program.proof.blocks import block_faults
from hloipu_runtime.program.proof.stacks import stack_faults
from hloipu_runtime.program.seen import number_of, seen_by_users
from hloipu_runtime.program.state_parts import part_size
from hloipu_runtime.program_io.file.refusal import Refuse
from hloipu_runtime.program_io.file.span_checks import check_tensor

_MODE = re.compile("all|last|first|every-[1-9][0-9]{0,8}")
MOST_STEPS = 2**62
LONGEST_NAME = 1024


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
        refuse("the program", f"parameters {program.keys} are no keys that it holds")


def _check_part(program: Program, port: StatePort, place: str, refuse: Refuse) -> None:
    variable = program.variables[port.variable]
    check_tensor(variable.element_type, port.whole, place, refuse)
    is_apart = program.partitions > 1 and program.partitioning is None
    if variable.shape != (part_size(port.whole, program.replicas),) or is_apart:
        refuse(place, f"it is no part of an array {list(port.whole)}")


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
