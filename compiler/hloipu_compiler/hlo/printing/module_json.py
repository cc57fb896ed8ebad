"""A module as plain data for JSON: schema `hloipu.hlo/1`, deterministic, one direction.

Operands are positions in the computation's list. Attribute values are the strings of the printed
text, so that no consumer needs our records; numbers, booleans and lists of integers stay what they
are.
"""

from collections.abc import Mapping
from math import isfinite

from hloipu_compiler.hlo.attributes.frontend_attributes import read_backend_config
from hloipu_compiler.hlo.attributes.metadata import read_metadata
from hloipu_compiler.hlo.attributes.stack_tables import NO_TABLES, StackTables, read_stack_tables
from hloipu_compiler.hlo.printing.attribute_text import value_text
from hloipu_compiler.ir.attribute_kinds import INSTRUCTION_KINDS, MODULE_KINDS, AttributeKind
from hloipu_compiler.ir.attributes import Attributes, Value
from hloipu_compiler.ir.graph import Computation, Instruction, Module

SCHEMA = "hloipu.hlo/1"
LONGEST_LITERAL = 4096

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]


def module_json(module: Module) -> dict[str, Json]:
    """Return the module as dicts, lists and scalars that `json.dumps` takes."""
    tables = read_stack_tables(module.stack_tables)
    return {
        "schema": SCHEMA,
        "name": module.name,
        "entry": module.entry.name,
        "attributes": _attributes(module.attributes, MODULE_KINDS),
        "computations": [computation_json(c, tables) for c in module.computations],
    }


def computation_json(computation: Computation, tables: StackTables = NO_TABLES) -> dict[str, Json]:
    """Return one computation; its instructions stand in topological order.

    `source` is the innermost frame of the stack, where metadata or `tables` say one.
    """
    return {
        "name": computation.name,
        "root": computation.root,
        "parameters": list(computation.parameters),
        "execution_thread": computation.execution_thread,
        "instructions": [_instruction(op, tables) for op in computation.instructions],
    }


def _instruction(instruction: Instruction, tables: StackTables) -> dict[str, Json]:
    fields: dict[str, Json] = {
        "name": instruction.name,
        "opcode": instruction.opcode,
        "shape": str(instruction.shape),
        "operands": list(instruction.operands),
    }
    if instruction.parameter_number >= 0:
        fields["parameter_number"] = instruction.parameter_number
    if instruction.literal is not None:
        text = instruction.literal.text
        fields["literal"] = text if 0 < len(text) <= LONGEST_LITERAL else None
    if instruction.attributes:
        fields["attributes"] = _attributes(instruction.attributes, INSTRUCTION_KINDS)
    if instruction.attributes.called:
        fields["calls"] = list(instruction.attributes.called)
    if instruction.metadata:
        metadata = read_metadata(instruction.metadata)
        fields["op_name"] = metadata.op_name
        frames = tables.frames(metadata.stack_frame_id)
        if frames:
            fields["source"] = f"{frames[0].file}:{frames[0].line}"
        elif metadata.source_file:
            fields["source"] = f"{metadata.source_file}:{metadata.source_line}"
    if instruction.backend_config:
        fields["backend_config"] = read_backend_config(instruction.backend_config)
    return fields


def _attributes(attributes: Attributes, kinds: Mapping[str, AttributeKind]) -> dict[str, Json]:
    return {key: _value(key, kinds.get(key), value) for key, value in attributes.items()}


def _value(key: str, kind: AttributeKind | None, value: Value) -> Json:
    if isinstance(value, float) and not isfinite(value):
        return str(value)
    if isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, tuple) and kind in (AttributeKind.INTEGERS, AttributeKind.BOOLEANS):
        return list(value)  # type: ignore[arg-type]
    return value_text(key, kind, value, str, str)
