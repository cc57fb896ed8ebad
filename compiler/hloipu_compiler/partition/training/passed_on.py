"""Arrays of a feed that a step hands on as they are, to an outfeed say."""

from dataclasses import replace

from hloipu_compiler.ir.graph import Instruction, Module
from hloipu_compiler.partition.training.reach import result_positions
from hloipu_compiler.passes.framework.names import Names
from hloipu_compiler.passes.framework.rewriting import with_operands
from hloipu_compiler.plan.wrapping import Wrapping


def with_passed_copies(module: Module, wrapping: Wrapping) -> Module:
    """Return a flat module with a forward copy of each fed array that is a result.

    A call of a pipeline hands out what it makes, and each micro-batch has elements of its own.
    Results that are new state stay: they are the last element's.
    """
    entry = module.entry
    fed = {number for feed in wrapping.feeds for number in feed.places}
    state = {pair.result for pair in wrapping.state}
    results = result_positions(entry)
    passed = {
        number: position
        for number, position in enumerate(results)
        if position is not None
        and number not in state
        and entry.instructions[position].parameter_number in fed
    }
    if not passed:
        return module
    names = Names(x.name for x in entry.instructions)
    root = entry.instructions[entry.root]
    is_tuple = root.opcode == "tuple"
    at_end = entry.root == len(entry.instructions) - 1
    if is_tuple and not (at_end and len(root.operands) == len(results)):
        return module
    made = list(entry.instructions[:-1] if is_tuple else entry.instructions)
    copies: dict[int, int] = {}
    for position in dict.fromkeys(passed.values()):
        x = entry.instructions[position]
        copies[position] = len(made)
        made.append(Instruction(names.fresh(f"{x.name}.passed"), "copy", x.shape, (position,)))
    last = copies.get(entry.root, len(made))
    if is_tuple:
        handed = tuple(copies[at] if n in passed else at for n, at in enumerate(root.operands))
        made.append(with_operands(root, handed))
    new = replace(entry, instructions=tuple(made), root=last)
    computations = tuple(new if c.name == entry.name else c for c in module.computations)
    return replace(module, computations=computations)
