"""Asynchronous operations: `X-start`, `X-update`, `X-done` become `async-*` around a computation.

XLA's parser does the same: the start's attributes but the async ones belong to X, which becomes the
root of a computation of its own, with the start's operands as parameters.
"""

from typing import TYPE_CHECKING

from hloipu_compiler.hlo.reading.statements import (
    ASYNC_KEYS,
    Form,
    Prepared,
    Statement,
    is_sugar,
    wrapped_opcode,
)
from hloipu_compiler.ir.attributes import Attributes, Value
from hloipu_compiler.ir.graph import Computation, Instruction
from hloipu_compiler.ir.ops import OPS
from hloipu_compiler.ir.shapes import Shape, TupleShape, compatible

if TYPE_CHECKING:
    from hloipu_compiler.hlo.reading.build_computation import ComputationBuilder

FAILED = -1
_ANY = 1 << 62


def add_async(
    builder: "ComputationBuilder", statement: Statement, operands: tuple[int, ...]
) -> int:
    """Check and add an asynchronous start, update or done; return its position."""
    opcode, shape = statement.prepared.opcode, statement.shape
    if shape is None:
        return _refuse(builder, statement, f"{opcode} must say its shape")
    if opcode.endswith("-start"):
        return _add_start(builder, statement, operands, shape)
    operand = builder.instructions[operands[0]] if len(operands) == 1 else None
    if operand is None or operand.opcode not in ("async-start", "async-update"):
        return _refuse(builder, statement, f"{opcode} takes one operand, the async op before it")
    if opcode.endswith("-update") and not compatible(shape, operand.shape):
        return _refuse(builder, statement, f"an update keeps its operand's shape, {operand.shape}")
    start = operand
    while start.opcode == "async-update":
        start = builder.instructions[start.operands[0]]
    problem = _mismatch(builder, statement, start)
    if problem:
        return _refuse(builder, statement, problem)
    remaining = {k: v for k, v in statement.prepared.attributes.items() if k not in ASYNC_KEYS}
    modern = _prepared("async-update" if opcode.endswith("-update") else "async-done", remaining)
    return builder.add(statement, shape, operands, prepared=modern)


def _refuse(builder: "ComputationBuilder", statement: Statement, message: str) -> int:
    builder.module.report(builder.opcode_at(statement), "E0145", message)
    return FAILED


def _mismatch(builder: "ComputationBuilder", statement: Statement, start: Instruction) -> str:
    """Return in what an update or done contradicts its start, or ''."""
    attributes = statement.prepared.attributes
    opcode = statement.prepared.opcode
    called = start.attributes.called
    computation = builder.module.computations.get(called[0]) if called else None
    if is_sugar(opcode) and computation is not None and computation.root >= 0:
        wrapped = computation.instructions[computation.root].opcode
        if wrapped != wrapped_opcode(opcode):
            return f"{start.name} started {wrapped}, not {wrapped_opcode(opcode)}"
    thread = start.attributes.text("async_execution_thread", "main")
    if attributes.text("async_execution_thread", thread) != thread:
        return f"{start.name} runs on the thread {thread}"
    if attributes.called and attributes.called != called:
        return f"{start.name} calls {' '.join(called)}, not {attributes.called[0]}"
    return ""


def _add_start(
    builder: "ComputationBuilder", statement: Statement, operands: tuple[int, ...], shape: Shape
) -> int:
    if (
        not isinstance(shape, TupleShape)
        or len(shape.elements) < 2
        or not isinstance(shape.elements[0], TupleShape)
    ):
        return _refuse(
            builder, statement, f"a start has the shape ((operands…), result, state…), not {shape}"
        )
    if statement.prepared.opcode == "async-start":
        callee = statement.prepared.attributes.text("calls")
        if callee in builder.module.started:
            return _refuse(builder, statement, f"{callee} is started by another async op already")
        builder.module.started.add(callee)
        return builder.add(statement, shape, operands)
    wrapped = wrapped_opcode(statement.prepared.opcode)
    attributes = statement.prepared.attributes
    outer: dict[str, Value] = {k: v for k, v in attributes.items() if k in ASYNC_KEYS}
    op_attributes = Attributes(
        {k: v for k, v in statement.prepared.attributes.items() if k not in ASYNC_KEYS},
        statement.prepared.attributes.called,
    )
    thread = outer.get("async_execution_thread", "main")
    inner_shapes = [builder.instructions[i].shape for i in operands]
    op = OPS[wrapped]
    missing = sorted(op.required - op_attributes.keys())
    most = _ANY if op.most_operands is None else op.most_operands
    if missing or not op.fewest_operands <= len(operands) <= most:
        fault = f"needs {missing[0]}=" if missing else f"does not take {len(operands)} operands"
        return _refuse(builder, statement, f"{wrapped} {fault}")
    module = builder.module
    instructions = [
        Instruction(
            module.unique_name("async_param"), "parameter", inner, parameter_number=i,
            start=statement.start, end=statement.end,
        )
        for i, inner in enumerate(inner_shapes)
    ]  # fmt: skip
    instructions.append(
        Instruction(
            module.unique_name("async_op"), wrapped, shape.elements[1],
            tuple(range(len(operands))), op_attributes,
            statement.metadata, statement.backend_config,
            start=statement.start, end=statement.end,
        )
    )  # fmt: skip
    name = module.unique_name("async_wrapped")
    module.count(len(instructions), statement.start)
    module.add_computation(
        Computation(
            name, tuple(instructions), len(operands), str(thread), statement.start, statement.end
        )
    )
    outer = {"calls": name, **outer}
    return builder.add(
        statement, shape, operands, prepared=_prepared("async-start", outer, (name,))
    )


def _prepared(opcode: str, values: dict[str, Value], called: tuple[str, ...] = ()) -> Prepared:
    attributes = Attributes(values, called)
    return Prepared(opcode, attributes, Form.SPECIAL, 0, _ANY)
