"""Prices of ops that this process has found: an op by itself always takes the same.

Steps that are compiled again and again, as in a search for the best way to cut one, mostly have the
same ops in them.
"""

from collections.abc import Callable, Hashable, Mapping
from hashlib import blake2b
from typing import Generic, TypeVar

from hloipu_compiler.ir.attribute_kinds import COMPUTATION_KINDS, INSTRUCTION_KINDS
from hloipu_compiler.ir.graph import Instruction, Module
from hloipu_compiler.ir.literals import Literal

T = TypeVar("T")

MOST_KNOWN = 8192
"""Then the oldest ones are forgotten; an entry has a few kilobytes."""
_CALLING = frozenset(key for key, kind in INSTRUCTION_KINDS.items() if kind in COMPUTATION_KINDS)
_SHORT = 64
"""Characters of a literal that are kept; of longer ones a digest is."""


class KnownPrices(Generic[T]):
    """What was found for a key; the oldest entry goes when there are too many."""

    def __init__(self, most: int = MOST_KNOWN) -> None:
        self.most = most
        self.known: dict[Hashable, tuple[T]] = {}

    def of(self, key: Hashable, find: Callable[[], T]) -> T:
        """Return what is known for a key, or else what `find` returns, which is kept."""
        if (found := self.known.get(key)) is not None:
            return found[0]
        price = find()
        while len(self.known) >= self.most:
            self.known.pop(next(iter(self.known)), None)
        self.known[key] = (price,)
        return price


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
