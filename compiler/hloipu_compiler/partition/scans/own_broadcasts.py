"""Numbers that are spread over arrays, spread anew for each op that reads them.

Rates and constants are spread once for all stacks that are of one size. Stacks that are cut in
different places have nothing in common then, while one array can be cut in one way only.
"""

from dataclasses import replace

from hloipu_compiler.ir.graph import Instruction, Module
from hloipu_compiler.ir.shapes import ArrayShape
from hloipu_compiler.passes.framework.names import Names
from hloipu_compiler.passes.framework.rewriting import with_operands


def with_own_broadcasts(module: Module) -> Module:
    """Return the module with a broadcast of a number in the entry for each op that reads it."""
    entry = module.entry
    shared = {
        position
        for position, x in enumerate(entry.instructions)
        if x.opcode == "broadcast"
        and len(entry.users[position]) > 1
        and _is_number(entry.instructions[x.operands[0]])
        and not _is_number(x)
    }
    if not shared:
        return module
    names = Names(x.name for x in entry.instructions)
    made: list[Instruction] = []
    place: list[int] = []
    for position, x in enumerate(entry.instructions):
        own: dict[int, int] = {}
        for i in x.operands:
            if i in shared and position != entry.users[i][0]:
                name = names.fresh(entry.instructions[i].name)
                own[i] = len(made)
                made.append(made[place[i]]._replace(name=name))
        place.append(len(made))
        made.append(with_operands(x, tuple([own.get(i, place[i]) for i in x.operands])))
    new = replace(entry, instructions=tuple(made), root=place[entry.root])
    computations = tuple(new if c is entry else c for c in module.computations)
    return replace(module, computations=computations)


def _is_number(x: Instruction) -> bool:
    return isinstance(x.shape, ArrayShape) and x.shape.element_count == 1
