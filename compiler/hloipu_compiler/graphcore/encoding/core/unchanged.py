"""Whether an update leaves a value as it is where its gradients are zeros."""

from collections.abc import Collection, Sequence

from hloipu_compiler.ir.graph import Instruction

_LINEAR = frozenset(
    "broadcast reshape transpose convert copy negate slice reverse bitcast all-reduce abs".split()
)
"""Zeros of zeros."""


def sources(made: Sequence[Instruction], zeros: Collection[int]) -> list[int]:
    """Return, for each op, the op that it is equal to if all of `zeros` are zeros.

    For finite numbers; itself where nothing is known.
    """
    is_zero = bytearray(len(made))
    same = list(range(len(made)))
    for at, x in enumerate(made):
        if at in zeros:
            is_zero[at] = 1
            continue
        if not x.operands:
            continue
        first = x.operands[0]
        if x.opcode in _LINEAR:
            is_zero[at] = is_zero[first]
            if x.opcode == "copy":
                same[at] = same[first]
        elif x.opcode == "multiply":
            is_zero[at] = any(is_zero[i] for i in x.operands)
        elif x.opcode == "divide":
            is_zero[at] = is_zero[first]
        elif x.opcode in ("add", "subtract"):
            second = x.operands[1]
            if is_zero[first] and is_zero[second]:
                is_zero[at] = 1
            elif is_zero[second]:
                same[at] = same[first]
            elif is_zero[first] and x.opcode == "add":
                same[at] = same[second]
    return same
