"""Bytes of vertices on a tile: code, shared by vertices of one kind, and the state of each."""

from collections.abc import Hashable
from dataclasses import fields
from functools import lru_cache
from typing import NamedTuple

from hloipu_runtime.codelets.core.codelet import Codelet, Tensor
from hloipu_runtime.costs.computing import operand_part
from hloipu_runtime.machine.model import Machine
from hloipu_runtime.program.program import Program
from hloipu_runtime.program.steps import VertexGroup


class Code(NamedTuple):
    """The code of vertices that are alike."""

    key: Hashable
    size: int
    """Bytes."""
    is_assumed: bool


def vertex_bytes(program: Program, group: VertexGroup, machine: Machine) -> tuple[Code, int]:
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
    are part of a vertex's state, if code of the same size does for all of them.
    """
    codelet, types = codelet.runs_code_of(types)
    values = (getattr(codelet, parameter.name) for parameter in fields(codelet))
    compiled = tuple(value for value in values if not _is_numbers(value))
    size = codelet.code_size(types)
    key = (codelet.name, types, compiled, size.size_bytes)
    return Code(key, size.size_bytes, size.is_assumed)


@lru_cache(1 << 14)
def state_of(
    codelet: Codelet, machine: Machine, operands: tuple[Tensor, ...], results: tuple[Tensor, ...]
) -> int:
    """Return the state of a vertex whose parts are these tensors, and its tables."""
    state_bytes = codelet.state_bytes(machine, len(operands), len(results))
    return state_bytes + codelet.table_bytes(machine, operands, results)


def _is_numbers(value: object) -> bool:
    if type(value) is tuple:
        return all(map(_is_numbers, value))
    return isinstance(value, (int, float))
