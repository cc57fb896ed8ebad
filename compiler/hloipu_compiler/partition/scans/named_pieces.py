"""Programs of steps in pieces, what users are shown of them by the users' numbers."""

import re
from collections.abc import Sequence
from dataclasses import replace

from hloipu_compiler.partition.scans.pieces_numbers import piece_names
from hloipu_runtime.program.program import Program
from hloipu_runtime.program.stacks import PARAMETER, Numbering, Stack

_NUMBERED = re.compile(r"parameter\.(\d+)(?!\d)")


def with_stacks(program: Program, stacks: Sequence[Stack]) -> Program:
    """Return a program that says which of its arrays are pieces of one.

    Where its variables and values are named after a parameter's number, they have that of the
    user's array, and the rows: `parameter.3[0:4]`.
    """
    if not stacks:
        return program
    numbering = Numbering(stacks, PARAMETER)
    rows = {
        number: f"parameter.{numbering.users(number)}{name.removeprefix(stack.name)}"
        for stack in numbering.stacks
        for number, name in zip(stack.numbers, piece_names(stack), strict=True)
    }

    def shown(origin: str) -> str:
        found = _NUMBERED.match(origin)
        if found is None:
            return origin
        number = int(found[1])
        name = rows.get(number, f"parameter.{numbering.users(number)}")
        return name + origin[found.end() :]

    variables = tuple(
        replace(x, name=shown(x.name), origin=shown(x.origin))
        if x.origin.startswith("parameter.")
        else x
        for x in program.variables
    )
    values = tuple(
        replace(x, origin=shown(x.origin)) if x.origin.startswith("parameter.") else x
        for x in program.values
    )
    return replace(program, variables=variables, values=values, stacks=tuple(stacks))
