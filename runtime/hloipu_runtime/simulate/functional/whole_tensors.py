"""Nodes on whole tensors: codelet calls, and values joined from pieces."""

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from hloipu_runtime.codelets.core.codelet import Codelet
from hloipu_runtime.codelets.core.tensors import Block
from hloipu_runtime.kernels.core.movement import reshape
from hloipu_runtime.kernels.core.storage import storage_dtype
from hloipu_runtime.program.mapping import Sizes
from hloipu_runtime.program.program import Array, Value
from hloipu_runtime.program.steps import Definition, Piece
from hloipu_runtime.simulate.functional.nodes import Node
from hloipu_runtime.simulate.run.host import Counts, Host
from hloipu_runtime.simulate.run.owning import is_held_alone, references_here

Values = list[Any]
"""The array of each value that is there, None of the others."""
Run = Callable[[Values, Host, Counts], None]

REUSED_ELEMENTS = 1 << 14
"""From here on writing into a dead operand beats a fresh buffer, whose pages must be mapped."""


def computing(codelet: Codelet, node: Node, table: Sequence[Value]) -> Run:
    """Return a codelet's node as a function; values in `frees` are dropped by it."""
    reads, writes, frees = node.reads, node.writes, node.frees
    run = codelet.bound(
        [whole_block(table[v].shape) for v in reads], [whole_block(table[v].shape) for v in writes]
    )
    overwritten = overwritten_operands(codelet, node, table)
    nowhere = (None,) * len(writes)
    if overwritten or len(writes) != 1:

        def step(values: Values, host: Host, counts: Counts) -> None:
            operands = [values[v] for v in reads]
            for v in frees:
                values[v] = None
            outs: Sequence[Array | None] = nowhere
            for number in overwritten:
                if is_held_alone(operands[number], _OPERAND_REFERENCES):
                    outs = (operands[number], *nowhere[1:])
                    break
            for v, result in zip(writes, run(operands, outs), strict=True):
                values[v] = result

        return step

    written = writes[0]

    def small(values: Values, host: Host, counts: Counts) -> None:
        operands = [values[v] for v in reads]
        for v in frees:
            values[v] = None
        values[written] = run(operands, nowhere)[0]

    return small


def overwritten_operands(codelet: Codelet, node: Node, table: Sequence[Value]) -> list[int]:
    """Return the operands that the first result may be written into, if they are held alone."""
    first = table[node.writes[0]]
    elements = prod(first.shape)
    return [
        number
        for number, value in enumerate(node.reads)
        if value in node.frees
        and node.reads.count(value) == 1
        and codelet.may_overwrite(number)
        and table[value].shape == first.shape
        and storage_dtype(table[value].element_type) == storage_dtype(first.element_type)
        and (elements >= REUSED_ELEMENTS or codelet.overwrites_a_part)
    ]


def whole_block(shape: Sizes) -> Block:
    """Return the block of a whole tensor."""
    return Block(None, (), shape, (0,) * len(shape), shape)


def _operand_references() -> int:
    operands = [np.empty(1)]
    return references_here(operands[0])


_OPERAND_REFERENCES = _operand_references()
"""Of an array that only the list of operands holds."""


def assembling(definition: Definition, node: Node, value: Value) -> Run:
    """Return the function that puts pieces of values together."""
    dtype, shape, frees = storage_dtype(value.element_type), value.shape, node.frees
    assembled, base = definition.value, definition.base
    pieces = [(piece.value, piece.view, *cuts_of(piece)) for piece in definition.pieces]
    in_place = base in frees and all(piece.value != base for piece in definition.pieces)

    def begun(values: Values) -> Array:
        """Return the array to put pieces into, with what stays in it."""
        if base is None:
            return np.empty(shape, dtype)
        underneath: list[Array] = [values[base]]
        if in_place:
            values[base] = None
            if is_held_alone(underneath[0], _OPERAND_REFERENCES):
                return underneath[0]
        return np.array(underneath[0])

    def step(values: Values, host: Host, counts: Counts) -> None:
        array = begun(values)
        for read, view, origin, target in pieces:
            source = _viewed(values[read], view)
            array[target] = source[origin]
        for v in frees:
            values[v] = None
        values[assembled] = array

    return step


def _viewed(source: Array, view: Sizes) -> Array:
    return source if source.shape == view else reshape(source, view)


def cuts_of(piece: Piece) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
    """Return what a piece takes of its value, and where it goes."""
    origin = tuple(
        slice(low + shift, high + shift)
        for (low, high), shift in zip(piece.box, piece.shift, strict=True)
    )
    return origin, tuple(slice(low, high) for low, high in piece.box)
