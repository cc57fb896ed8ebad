"""Owner of a variable: the innermost sequence around all steps that touch it."""

from hloipu_runtime.program.program import Program, Role
from hloipu_runtime.program.steps import Sequence, VariableId, blocks_of
from hloipu_runtime.program.uses import touched_by

_NOBODY = -1


def owners(program: Program) -> dict[int, frozenset[VariableId]]:
    """Return by `id` of each sequence the variables that nothing outside of it touches.

    Constants and state are owned by none: they are always there.
    """
    walk = _Walk()
    for body in (program.body, *program.functions.values()):
        walk.sequence(body, _NOBODY)
    variables_by_owner: dict[int, set[VariableId]] = {}
    for variable, owner in walk.owner.items():
        role = program.variables[variable].role
        if owner != _NOBODY and role not in (Role.CONSTANT, Role.STATE, Role.REMOTE):
            variables_by_owner.setdefault(walk.identities[owner], set()).add(variable)
    return {identity: frozenset(variables) for identity, variables in variables_by_owner.items()}


class _Walk:
    """Sequences numbered as they are entered, and the owners so far."""

    def __init__(self) -> None:
        self.identities: list[int] = []
        self.parents: list[int] = []
        self.owner: dict[VariableId, int] = {}

    def sequence(self, body: Sequence, parent: int) -> None:
        number = len(self.identities)
        self.identities.append(id(body))
        self.parents.append(parent)
        for step in body.steps:
            for variable in touched_by(step):
                known = self.owner.get(variable, number)
                self.owner[variable] = number if known == number else self.meeting(known, number)
            for inner in (step,) if isinstance(step, Sequence) else blocks_of(step):
                self.sequence(inner, number)

    def meeting(self, a: int, b: int) -> int:
        """Return the innermost sequence around two; parents have smaller numbers."""
        while a != b:
            if a == _NOBODY or b == _NOBODY:
                return _NOBODY
            if a > b:
                a = self.parents[a]
            else:
                b = self.parents[b]
        return a
