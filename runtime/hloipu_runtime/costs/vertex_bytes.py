"""Bytes of vertices on a tile: code, shared by vertices of one kind, and the state of each."""

from collections.abc import Hashable, Iterator
from dataclasses import fields
from functools import lru_cache
from typing import NamedTuple

from hloipu_runtime.codelets.core.codelet import Codelet
from hloipu_runtime.codelets.core.expression_form import Expression, Node
from hloipu_runtime.codelets.core.tensors import Tensor
from hloipu_runtime.costs.computing import operand_part
from hloipu_runtime.element_types import ELEMENT_TYPES, Kind
from hloipu_runtime.machine.model import Machine
from hloipu_runtime.program.program import Program
from hloipu_runtime.program.steps import VertexGroup

_ZEROS = frozenset({"0", "0x0.0p+0", "0x0.0p+0,0x0.0p+0"})
"""What registers of a tile that read as zero hold: docs.graphcore.ai: Tile Vertex ISA, $azero."""


class Code(NamedTuple):
    """The code of vertices that are alike."""

    key: Hashable
    size: int
    """Bytes."""
    is_assumed: bool


class State(NamedTuple):
    """What a vertex has of a tile's memory beside its code and its parts of tensors, in bytes."""

    kept: int
    """For good: pointers, sizes, numbers and tables."""
    room: int
    """While it runs."""


def vertex_bytes(program: Program, group: VertexGroup, machine: Machine) -> tuple[Code, State]:
    """Return the code of a group's vertices, and the state of one with the largest parts."""
    operands = tuple(operand_part(program, x) for x in group.inputs)
    results = tuple(operand_part(program, x) for x in group.outputs)
    types = tuple(x.element_type for x in (*operands, *results))
    return code_of(group.codelet, types), state_of(group.codelet, machine, operands, results)


def vertex_call_bytes(machine: Machine) -> int:
    """Return the control code that runs a vertex: its state's address, a call, and a sync.

    Source: osmarks/ipu-stack: crates/ipu-target/src/emit.rs, `emit_compute`, for a vertex whose
    operands' addresses are in its state; the sync of workers: device/static_runtime.S.
    """
    return 3 * machine.memory.instruction_bytes


@lru_cache(1 << 12)
def code_of(codelet: Codelet, types: tuple[str, ...]) -> Code:
    """Return what tells one code from another, and its bytes.

    Code is compiled for its element types and for parameters such as names and expressions; numbers
    are part of a vertex's state, those in expressions too, if code of the same size does for all of
    them.
    """
    codelet, types = codelet.runs_code_of(types)
    values = (getattr(codelet, parameter.name) for parameter in fields(codelet))
    compiled = tuple(_without_numbers(value) for value in values if not _is_numbers(value))
    size = codelet.code_size(types)
    key = (codelet.name, types, compiled, size.size_bytes)
    return Code(key, size.size_bytes, size.is_assumed)


@lru_cache(1 << 14)
def state_of(
    codelet: Codelet, machine: Machine, operands: tuple[Tensor, ...], results: tuple[Tensor, ...]
) -> State:
    """Return the state of a vertex whose parts are these tensors, with its tables and numbers."""
    kept_bytes = codelet.state_bytes(machine, len(operands), len(results))
    kept_bytes += codelet.table_bytes(machine, operands, results) + _number_bytes(codelet)
    return State(kept_bytes, codelet.room_bytes(machine, operands, results))


def _number_bytes(codelet: Codelet) -> int:
    return sum(
        ELEMENT_TYPES[node.element_type].byte_width
        for parameter in fields(codelet)
        for expression in _expressions(getattr(codelet, parameter.name))
        for node in expression.nodes
        if _is_number(node)
    )


def _expressions(value: object) -> Iterator[Expression]:
    """Yield the expressions of a parameter: it is one, or has several."""
    if isinstance(value, Expression):
        yield value
    elif type(value) is tuple:
        for each in value:
            yield from _expressions(each)


def _without_numbers(value: object) -> Hashable:
    """Return a parameter with no numbers in its expressions, but for those that registers hold."""
    if isinstance(value, Expression):
        nodes = (node._replace(parameters=()) if _is_number(node) else node for node in value.nodes)
        return value._replace(nodes=tuple(nodes))
    return tuple(map(_without_numbers, value)) if type(value) is tuple else value


def _is_number(node: Node) -> bool:
    return (
        node.op == "constant"
        and ELEMENT_TYPES[node.element_type].kind is not Kind.PREDICATE
        and node.parameters[0][1] not in _ZEROS
    )


def _is_numbers(value: object) -> bool:
    if type(value) is tuple:
        return all(map(_is_numbers, value))
    return isinstance(value, (int, float))
