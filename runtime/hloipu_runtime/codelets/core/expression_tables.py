"""Chains of ops on one number of 16 bits, by a table of all such numbers.

f16 and bf16 are kept as f32 whose last bits are zeros, and to round an op's results takes several
calls of numpy. What a chain of ops makes of one such value and of constants is looked up in the
time of a rounding, however long the chain is. The bits are the chain's own: it has filled the
table, from every number that there is.
"""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from hloipu_runtime.codelets.core.expression_form import Expression, Node
from hloipu_runtime.element_types import GRIDS
from hloipu_runtime.kernels.core.blocks import Array, blocks, like
from hloipu_runtime.kernels.core.storage import storage_dtype
from hloipu_runtime.reached import reached

LOOKED_UP = "looked-up"
"""The op of a node that is a chain; its parameter `chain` says which."""
TABLE_ELEMENTS = 1 << 12
"""Arrays of fewer are computed: the calls take as long as all else."""
_WORTH_LOOKING_UP = 2
"""Roundings and transcendental functions, of which each takes some 0.8 ns; looking up takes 0.9."""
_ELEMENTS_BEFORE = 1 << 18
"""Elements to be seen before a table is filled, in the time of some 2^16."""
_SMALLEST_NORMAL, _HALF = np.float32(2.0**-126), np.float32(0.5)
_MOST_ENDS = 4
"""Of the chains from one value; *assumed*."""


def with_tables(
    expression: Expression, work: Sequence[int]
) -> tuple[list[Node], tuple[Expression, ...]]:
    """Return nodes of which some are chains, and the chains.

    `work`: of each node, the roundings and transcendental functions. What chains leave unread is
    still there.
    """
    count, nodes, chains = len(expression.operand_types), [*expression.nodes], list[Expression]()
    origins = _origins(expression)
    ends: dict[int, list[int]] = {}
    for number in _read_elsewhere(expression, origins):
        ends.setdefault(origins[number], []).append(number)
    for origin, some in ends.items():
        for end in some if len(some) <= _MOST_ENDS else ():
            members = sorted(reached([end], lambda n: _arguments(expression, n, origin)))  # noqa: B023
            if sum(work[n - count] for n in members if n >= count and n != origin) < (
                _WORTH_LOOKING_UP
            ):
                continue
            kind = expression.type_of(end)
            nodes[end - count] = Node(LOOKED_UP, (origin,), kind, (("chain", len(chains)),))
            chains.append(_alone(expression, origin, members))
    return nodes, tuple(chains)


def _arguments(expression: Expression, number: int, origin: int) -> tuple[int, ...]:
    count = len(expression.operand_types)
    return () if number == origin or number < count else expression.nodes[number - count].arguments


def _origins(expression: Expression) -> list[int]:
    """Return, for each value, the one of 16 bits that it depends on alone, or itself.

    -1: it depends on constants only.
    """
    origins = [*range(len(expression.operand_types))]
    for number, node in enumerate(expression.nodes, len(origins)):
        behind = {origins[x] for x in node.arguments} - {-1}
        if not behind:
            origins.append(-1)
            continue
        (first, *others) = behind
        is_chain = not others and expression.type_of(first) in ("f16", "bf16")
        origins.append(first if is_chain else number)
    return origins


def _read_elsewhere(expression: Expression, origins: Sequence[int]) -> list[int]:
    """Return the nodes of chains that are results, or that nodes outside of their chain read."""
    count = len(expression.operand_types)
    read = {*expression.results}
    for number, node in enumerate(expression.nodes, count):
        read.update(x for x in node.arguments if origins[x] != origins[number])
    return sorted(x for x in read if x >= count and origins[x] not in (-1, x))


def _alone(expression: Expression, origin: int, members: Sequence[int]) -> Expression:
    """Return a chain as an expression of its origin; the last member is its result."""
    count = len(expression.operand_types)
    inside = [n for n in members if n != origin]
    new = {origin: 0, **{n: 1 + k for k, n in enumerate(inside)}}
    nodes = (expression.nodes[n - count] for n in inside)
    return Expression(
        (expression.type_of(origin),),
        tuple(x._replace(arguments=tuple(new[a] for a in x.arguments)) for x in nodes),
        (len(inside),),
    )


class LookedUp:
    """A step that is a chain: computed at first, looked up once it has seen many elements."""

    def __init__(self, chain: Expression) -> None:
        self._chain = chain
        self._shift = np.uint32(23 - GRIDS[chain.operand_types[0]].mantissa_bits)
        self._seen = 0

    def __call__(self, x: list[Array], out: Array | None) -> Array:
        """Look up, or compute."""
        (values,) = x
        self._seen += values.size
        if values.size < TABLE_ELEMENTS or self._seen < _ELEMENTS_BEFORE:
            return _computed(self._chain, values, out)
        table = _table(self._chain, flushes=not _SMALLEST_NORMAL * _HALF)
        made = like(values, table.dtype) if out is None else out
        for target, piece in blocks(made, values):
            index = np.right_shift(piece.view(np.uint32), self._shift)
            table.take(index, out=target, mode="wrap")
        return made


def _computed(chain: Expression, values: Array, out: Array | None) -> Array:
    from hloipu_runtime.codelets.core.expression_planning import planned  # which comes here

    return planned(chain).run([values], [out])[0]


@lru_cache(maxsize=64)
def _table(chain: Expression, *, flushes: bool) -> Array:
    """Return what a chain makes of every number, by the bits that f32 has of it.

    `flushes`: whether this thread's f32 arithmetic gives zero for a subnormal result.
    2 MB where there are f16, of which 340 KB are ever touched.
    """
    (kind,) = chain.operand_types
    bits = _numbers(kind).view(np.uint32)
    table = np.zeros(1 << (9 + GRIDS[kind].mantissa_bits), storage_dtype(chain.result_types[0]))
    table[bits >> (23 - GRIDS[kind].mantissa_bits)] = _computed(chain, bits.view(np.float32), None)
    table.flags.writeable = False
    return table


@lru_cache(maxsize=2)
def _numbers(kind: str) -> Array:
    """Return every number of 16 bits as f32."""
    patterns = np.arange(1 << 16, dtype=np.uint32)
    if kind == "bf16":
        return (patterns << 16).view(np.float32)
    with np.errstate(all="ignore"):
        return patterns.astype(np.uint16).view(np.float16).astype(np.float32)
