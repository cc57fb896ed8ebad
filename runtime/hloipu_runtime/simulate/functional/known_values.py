"""Values that no run can change: computed once, before the first run.

What is computed from constants alone, with small operands and results, stands ready in every run.
Nobody frees or overwrites it.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from math import prod

from hloipu_runtime.codelets.core.codelet import Codelet
from hloipu_runtime.program.program import Program
from hloipu_runtime.program.steps import Definition, ValueId
from hloipu_runtime.simulate.functional.nodes import Collapsed, Node
from hloipu_runtime.simulate.functional.whole_tensors import Values

MOST_ELEMENTS = 1 << 17
"""That a node may read and make to be computed before: half a MB, which takes long to come again
and soon to compute once. *Assumed*."""

Compute = Callable[[Node, Values], None]
"""Runs a node that frees nothing."""


def first_values(program: Program) -> Values:
    """Return the values that a run begins with: the array of each constant, None of the others."""
    values: Values = [None] * len(program.values)
    for value, array in program.constants.values():
        values[value] = array
    for port in program.state:
        values[port.initial] = None
    return values


def with_known_values(
    block: Collapsed, program: Program, values: Values, compute: Compute
) -> Collapsed:
    """Compute what only known values decide into `values`; return the block, which frees none."""
    nodes = []
    for node in block.nodes:
        if node.blocks:
            inner = (with_known_values(x, program, values, compute) for x in node.blocks)
            node = replace(
                node,
                blocks=tuple(inner),
                block_values=tuple(_unknown(x, values) for x in node.block_values),
            )
        node = replace(node, frees=_unknown(node.frees, values))
        if _is_decided(node, program, values):
            compute(node, values)
        nodes.append(node)
    return replace(block, nodes=tuple(nodes))


def is_known(node: Node, values: Values) -> bool:
    """Whether all that a node makes is known, so that it need not run."""
    return isinstance(node.what, Codelet | Definition) and all(
        values[v] is not None for v in node.writes
    )


def _is_decided(node: Node, program: Program, values: Values) -> bool:
    if not isinstance(node.what, Codelet | Definition) or is_known(node, values):
        return False
    if any(values[v] is None for v in node.reads):
        return False
    if any(port.final in node.writes for port in program.state):
        return False  # where it is there, a run has ended
    sizes = (prod(program.values[v].shape) for v in (*node.reads, *node.writes))
    return sum(sizes) <= MOST_ELEMENTS


def _unknown(values: Iterable[ValueId], known: Values) -> tuple[ValueId, ...]:
    return tuple(v for v in values if known[v] is None)
