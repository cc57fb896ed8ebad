"""Writing a callee's instructions out in its caller."""

from hloipu_compiler.ir.graph import Instruction, Module
from hloipu_compiler.reduce.rewriting import Draft, Key, with_computation

INLINED = frozenset({"call", "fusion"})


def inlinable(x: Instruction) -> bool:
    """Whether an instruction only stands for the computation that it calls."""
    return x.opcode in INLINED and len(x.attributes.called) == 1


def inlined(module: Module, key: Key) -> Module:
    """Replace a call or fusion by the instructions of what it calls."""
    draft = Draft(module.computation[key.computation])
    for i, x in enumerate(draft.old.instructions):
        if x.name == key.instruction and inlinable(x):
            operands = [draft.place[o] for o in x.operands]
            draft.place[i] = _written_out(module, draft, x.attributes.called[0], operands)
        else:
            draft.copy(i)
    return with_computation(module, draft.finish())


def _written_out(module: Module, draft: Draft, name: str, operands: list[int]) -> int:
    callee = module.computation[name]
    place: dict[int, int] = {}
    for i, x in enumerate(callee.instructions):
        if x.parameter_number >= 0:
            place[i] = operands[x.parameter_number]
        else:
            place[i] = draft.adopt(x, [place[o] for o in x.operands])
    return place[callee.root]
