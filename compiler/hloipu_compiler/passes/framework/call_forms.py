"""Call kinds: which calls are inlined, and how much code that makes."""

from hloipu_compiler.analysis.call_graph import callees_first
from hloipu_compiler.ir.graph import Computation, Module
from hloipu_runtime.errors import LimitError

MOST_INSTRUCTIONS = 50_000
"""That writing calls out may make of a short text. The largest of 110 real dumps makes 4,000, and
each instruction takes 1 to 5 KB and 0.1 to 3 ms to compile: a quarter of a gigabyte, minutes."""
MOST_GROWTH = 4
"""As many times a text's own instructions may be made of a longer one; of real dumps it is 1.2."""

INLINED = frozenset({"call", "fusion"})
RUN_BY_OPERANDS = frozenset({"while", "conditional", "async-start"})
"""Ops whose computations are theirs alone afterwards; those that apply a computation share it."""
STARTS = "async-start"
FOLLOWS = frozenset({"async-update", "async-done"})


def check_inlined_size(module: Module, most: int) -> None:
    """Count what inlining makes, before anything is made; a call counts, however small.

    Raises LimitError (E5020) above `most`; where that is not lowered, long texts may make more.
    """
    if most >= MOST_INSTRUCTIONS:
        own = sum(len(computation.instructions) for computation in module.computations)
        most = max(most, MOST_GROWTH * own)
    size: dict[str, int] = {}
    applied: dict[str, None] = {}
    for computation in callees_first(module, only_reachable=True):
        total = len(computation.instructions)
        for op in computation.instructions:
            if op.attributes.called:
                if op.opcode in INLINED or op.opcode in RUN_BY_OPERANDS:
                    total += sum(size[name] for name in op.attributes.called)
                else:
                    applied.update(dict.fromkeys(op.attributes.called))
        size[computation.name] = min(total, most + 1)
    whole_size = size[module.entry.name] + sum(size[name] for name in applied)
    if whole_size > most:
        raise LimitError(
            "E5020",
            f"writing the calls in {module.name!r} out makes more than {most:,} instructions",
            limit="most_instructions",
            allowed=most,
            found=whole_size,
            hint="raise it with inline-calls{most-instructions=N} if the memory is there",
        )


def wrapper_positions(module: Module, computation: Computation) -> frozenset[int]:
    """Return the positions of asynchronous ops that do nothing but run a computation.

    A start whose operands come later, bound by updates, stays.
    """
    instructions = computation.instructions
    starts = [i for i, op in enumerate(instructions) if op.opcode == STARTS]
    if not starts:
        return frozenset()
    wrappers: set[int] = set()
    for start in starts:
        callee = module.computation[instructions[start].attributes.called[0]]
        chain, at = [start], start
        whole = len(callee.parameters) == len(instructions[start].operands)
        while whole and instructions[at].opcode != "async-done":
            users = computation.users[at]
            whole = len(users) == 1 and len(instructions[users[0]].operands) == 1
            if whole:
                at = users[0]
                whole = instructions[at].opcode in FOLLOWS
                chain.append(at)
        if whole:
            wrappers.update(chain)
    return frozenset(wrappers)
