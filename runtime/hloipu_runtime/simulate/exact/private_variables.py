"""Which replicated parts need memory of their own on every tile."""

from hloipu_runtime.program.mapping import whole_box
from hloipu_runtime.program.program import Program
from hloipu_runtime.program.steps import ComputeSet, Exchange, VariableId
from hloipu_runtime.program.uses import steps_within


def private_variables(program: Program) -> frozenset[VariableId]:
    """Return variables whose replicated parts need memory of their own on every tile.

    Those that vertices write, and those that not every receiver of a transfer takes: all others
    hold the same on all replicas, whatever the program does.
    """
    private: set[VariableId] = set()
    for step in steps_within(program.body, program):
        match step:
            case ComputeSet():
                private |= {x.variable for group in step.groups for x in group.outputs}
            case Exchange():
                for transfer in step.transfers:
                    mapping = program.variables[transfer.destination].mapping
                    if transfer.receivers != whole_box(mapping.tiles.extents):
                        private.add(transfer.destination)
            case _:
                pass
    return frozenset(private)
