"""Edits that do away with branches, loops and calls."""

from hloipu_compiler.ir.graph import Module
from hloipu_compiler.reduce.inlining import inlinable
from hloipu_compiler.reduce.rewriting import Draft, Key, calling, with_computation
from hloipu_compiler.reduce.selecting import instructions_of


def branches(module: Module) -> list[Key]:
    """List the branches of conditionals, and the bodies of loops."""
    keys = []
    for computation in module.computations:
        for x in computation.instructions:
            if x.opcode == "conditional":
                count = len(x.attributes.called)
                keys += [Key(computation.name, x.name, n) for n in range(count)]
            elif x.opcode == "while":
                keys.append(Key(computation.name, x.name))
    return keys


def to_call(module: Module, key: Key) -> Module:
    """Replace a conditional by a call of one branch, a loop by a call of its body."""
    draft = Draft(module.computation[key.computation])
    for i, x in enumerate(draft.old.instructions):
        if x.name == key.instruction and x.opcode in ("conditional", "while"):
            operand = x.operands[0] if x.opcode == "while" else x.operands[1 + key.choice]
            name = (
                x.attributes.text("body")
                if x.opcode == "while"
                else x.attributes.called[key.choice]
            )
            draft.place[i] = draft.add(
                "call", "call", x.shape, [draft.place[operand]],
                attributes=calling({"to_apply": name}),
            )  # fmt: skip
        else:
            draft.copy(i)
    return with_computation(module, draft.finish())


def calls(module: Module) -> list[Key]:
    """List what can be written out in its caller."""
    return instructions_of(module, lambda c, i, x: inlinable(x))
