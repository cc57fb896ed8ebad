"""Remote memory of each IPU by use, from the steps that use it."""

from collections import Counter
from enum import Enum

from hloipu_runtime.program.program import Program, Role
from hloipu_runtime.program.steps import Pipeline, VariableId
from hloipu_runtime.program.uses import steps_within, used


class RemoteCategory(Enum):
    """Kinds of what lies in remote memory."""

    STATE = "state"
    """That no micro-batch reads: an optimizer's."""
    WEIGHTS = "weights"
    ACTIVATIONS = "activations"
    """That wait between positions of a pipeline."""
    ACCUMULATORS = "accumulators"


RemoteParts = dict[RemoteCategory, int]


def remote_parts(program: Program) -> tuple[RemoteParts, ...]:
    """Return for each IPU the bytes of each kind in remote memory, of one participant."""
    bytes_by_ipu: list[Counter[RemoteCategory]] = [Counter() for _ in range(program.ipus)]
    remote = [n for n, v in enumerate(program.variables) if v.role is Role.REMOTE]
    if remote:
        categories = _categories(program)
        from hloipu_runtime.costs.collecting import bytes_of

        for number in remote:
            variable = program.variables[number]
            category = categories.get(number, RemoteCategory.STATE)
            bytes_by_ipu[variable.ipu][category] += bytes_of(variable)
    return tuple({c: sizes[c] for c in RemoteCategory if sizes[c]} for sizes in bytes_by_ipu)


def remote_bytes(program: Program) -> list[int]:
    """Return for each IPU the bytes in remote memory, of one participant: the sums of its parts."""
    bytes_by_ipu = [0] * program.ipus
    remote = [variable for variable in program.variables if variable.role is Role.REMOTE]
    if remote:
        from hloipu_runtime.costs.collecting import bytes_of

        for variable in remote:
            bytes_by_ipu[variable.ipu] += bytes_of(variable)
    return bytes_by_ipu


def _categories(program: Program) -> dict[VariableId, RemoteCategory]:
    """Return the kind of what pipelines use: what they add up, hand on, or only read."""
    state_variables = frozenset(port.variable for port in program.state)
    category_by_variable: dict[VariableId, RemoteCategory] = {}
    for body in (program.body, *program.functions.values()):
        for step in steps_within(body, program):
            if not isinstance(step, Pipeline):
                continue
            for block in (block for stage in step.stages for block in stage.blocks):
                for variable in used(block, program):
                    category_by_variable.setdefault(variable, RemoteCategory.WEIGHTS)
            for channel in step.channels:
                category_by_variable.update(
                    dict.fromkeys(channel.places, RemoteCategory.ACTIVATIONS)
                )
            carried = {item.variable for item in step.carried} - state_variables
            category_by_variable.update(dict.fromkeys(carried, RemoteCategory.ACCUMULATORS))
    return category_by_variable
