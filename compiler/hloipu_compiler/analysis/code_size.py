"""Estimate of the code that instructions make on a tile."""

from collections.abc import Iterable

from hloipu_compiler.analysis.call_graph import callees_first
from hloipu_compiler.analysis.live_bytes import FORWARDING
from hloipu_compiler.ir.graph import Instruction, Module

_PLANNED = frozenset("convolution dot fusion reduce reduce-window gather scatter sort".split())
_PLANNED_CODE_BYTES, _CODE_BYTES = 1_200, 150
"""Code and state of vertices for an instruction that brings parts together from many tiles, and for
any other one. Assumed: about what networks of some hundred instructions take."""


LEAST_OUTLINED_BYTES = 40_000
"""Code of a computation from which on equal blocks in it are looked for."""


def code_bytes(instruction: Instruction) -> int:
    """Return a guess at the code on a tile that an instruction takes, vertices' state included."""
    if instruction.opcode in FORWARDING or instruction.parameter_number >= 0:
        return 0
    return _PLANNED_CODE_BYTES if instruction.opcode in _PLANNED else _CODE_BYTES


def summed_code_bytes(instructions: Iterable[Instruction]) -> int:
    """Return a guess at the code on a tile that instructions take together."""
    return sum(map(code_bytes, instructions))


def inlined_code_bytes(module: Module) -> int:
    """Return a guess at the code of a module with its calls written out, loops once."""
    code_bytes: dict[str, int] = {}
    for computation in callees_first(module):
        called = [name for op in computation.instructions for name in op.attributes.called]
        inner = sum(code_bytes.get(name, 0) for name in called)
        code_bytes[computation.name] = inner + summed_code_bytes(computation.instructions)
    return code_bytes[module.entry.name]
