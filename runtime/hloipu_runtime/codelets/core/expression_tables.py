"""Expressions of one number of 16 bits, by a table of all numbers there are.

f16 and bf16 are kept as f32 whose last bits are zeros, and rounding an op's results takes several
calls of numpy. Where a chain of ops depends on one such value and on constants alone, looking its
result up takes as long as one rounding, however long the chain is, and gives the very bits: the
table is what the chain makes of every number, NaN of all payloads included.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np

from hloipu_runtime.codelets.core.expression_form import Expression, Node
from hloipu_runtime.element_types import ELEMENT_TYPES, GRIDS
from hloipu_runtime.kernels.core.blocks import Array
from hloipu_runtime.kernels.core.rounding import flushes_subnormals

LOOKED_UP = "looked-up"
"""The op of a node in whose place is a table."""
TABLE_ELEMENTS = 1 << 12
"""Arrays of fewer are computed: calls take as long as what they do."""
_LOOKED_UP_TYPES = ("f16", "bf16")
_WORTH_A_TABLE = 2
"""Roundings and transcendental functions that take longer than looking up."""
_ELEMENTS_BEFORE = 1 << 17
"""Elements computed before a table is made, which takes as long as some 65,536 of them."""


def with_tables(
    expression: Expression, work: Sequence[int]
) -> tuple[Expression, Mapping[int, Expression]]:
    """Return an expression with chains as single nodes, and what each of these nodes does.

    `work`: of each node, how many roundings and transcendental functions it is. Nodes keep their
    places: those that nobody reads any more are left out by who reads the expression.
    """
    count = len(expression.operand_types)
    nodes = [*expression.nodes]
    chains: dict[int, Expression] = {}
    for source in range(count + len(nodes)):
        if expression.type_of(source) not in _LOOKED_UP_TYPES or source - count in chains:
            continue
        inside = _depending_on(expression, source, chains)
        for last in _ends(expression, inside):
            chain = _chain(expression, source, last, inside)
            if sum(work[x - count] for x in chain) >= _WORTH_A_TABLE:
                chains[last - count] = _alone(expression, source, chain)
                nodes[last - count] = Node(LOOKED_UP, (source,), expression.type_of(last))
    return expression._replace(nodes=tuple(nodes)), chains
