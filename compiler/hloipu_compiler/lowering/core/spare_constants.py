"""Constants that are loaded where they are read need not lie anywhere else as well."""

from dataclasses import replace

from hloipu_runtime.program.program import Program, Role
from hloipu_runtime.program.uses import used


def without_spare_constants(program: Program) -> Program:
    """Return a program that loads no constant that nothing reads; its variable takes no memory.

    A parameter that is loaded keeps one variable, read or not.
    """
    read = used(program.body, program).union(
        *(used(x, program) for x in program.functions.values())
    )
    loaded = {value for number, (value, _) in program.constants.items() if number in read}
    constants = {}
    for number, (value, array) in program.constants.items():
        if number in read or (value in program.loaded and value not in loaded):
            constants[number] = (value, array)
            loaded.add(value)
    variables = list(program.variables)
    for number in program.constants.keys() - constants.keys():
        variables[number] = replace(variables[number], role=Role.TEMPORARY)
    return replace(program, constants=constants, variables=tuple(variables))
