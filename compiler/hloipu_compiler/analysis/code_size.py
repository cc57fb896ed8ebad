"""Estimate of the code that instructions make on a tile."""

from collections.abc import Iterable

from hloipu_compiler.analysis.live_bytes import FORWARDING
from hloipu_compiler.ir.graph import Instruction

_PLANNED = frozenset("convolution dot fusion reduce reduce-window gather scatter sort".split())
_PLANNED_CODE_BYTES, _CODE_BYTES = 1_200, 150
"""Code and state of vertices for an instruction that brings parts together from many tiles, and for
any other one. Assumed: about what networks of some hundred instructions take."""


def code_bytes(x: Instruction) -> int:
    """Return a guess at the code on a tile that an instruction takes, vertices' state included."""
    if x.opcode in FORWARDING or x.parameter_number >= 0:
        return 0
    return _PLANNED_CODE_BYTES if x.opcode in _PLANNED else _CODE_BYTES


def summed_code_bytes(instructions: Iterable[Instruction]) -> int:
    """Return a guess at the code on a tile that instructions take together."""
    return sum(map(code_bytes, instructions))
