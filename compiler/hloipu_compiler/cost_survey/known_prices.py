"""What modules have in common that take the same: all but names and places in the source."""

from collections.abc import Hashable, Mapping
from hashlib import blake2b

from hloipu_compiler.ir.attribute_kinds import COMPUTATION_KINDS, INSTRUCTION_KINDS
from hloipu_compiler.ir.graph import Instruction, Module
from hloipu_compiler.ir.literals import Literal

_CALLING = frozenset(key for key, kind in INSTRUCTION_KINDS.items() if kind in COMPUTATION_KINDS)
_SHORT = 64
"""Characters of a literal that are kept; of longer ones a digest is."""


def form_of(module: Module) -> Hashable:
    """Return what modules have in common that differ in names and source locations only."""
    number = {c.name: n for n, c in enumerate(module.computations)}
    computations = tuple(
        (c.root, tuple(_form(x, number) for x in c.instructions)) for c in module.computations
    )
    return number[module.entry.name], computations


def _form(x: Instruction, number: Mapping[str, int]) -> Hashable:
    called = tuple(number[name] for name in x.attributes.called)
    own = tuple((key, None if key in _CALLING else value) for key, value in x.attributes.items())
    literal = None if x.literal is None else _literal(x.literal)
    return (
        x.opcode, x.shape, x.operands, own, called, x.backend_config, literal, x.parameter_number,
    )  # fmt: skip


def _literal(literal: Literal) -> Hashable:
    if literal.array is not None:
        array = literal.array
        return str(array.dtype), array.shape, blake2b(array.tobytes()).digest()
    text = literal.text
    return text if len(text) <= _SHORT else blake2b(text.encode()).digest()
