"""Statements with special rules: checks across operands, rewrites.

What is checked is what XLA's parser checks beyond the number of operands; that shapes fit is the
verifier's concern. Source: openxla/xla `xla/hlo/parser/hlo_parser.cc` (CreateInstruction).
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from hloipu_compiler.hlo.reading import legacy_forms
from hloipu_compiler.hlo.reading.statements import Statement, is_sugar
from hloipu_compiler.ir.shapes import ArrayShape, Shape, TupleShape, compatible, leaves

if TYPE_CHECKING:
    from hloipu_compiler.hlo.reading.build_computation import ComputationBuilder

FAILED = -1
"""Position of a statement that could not be built; what uses it is not reported again."""

Operands = tuple[int, ...]


def add_special(builder: "ComputationBuilder", statement: Statement, operands: Operands) -> int:
    """Check and add a statement of an opcode with rules of its own; return its position."""
    opcode = statement.prepared.opcode
    before = len(builder.module.faults)
    shapes = tuple(builder.instructions[i].shape for i in operands)
    problem = _problem(builder, statement, shapes)
    if problem:
        builder.module.report(builder.opcode_at(statement), "E0131", problem)
    _check_control_predecessors(builder, statement)
    rewrite = legacy_forms.REWRITES.get(opcode)
    if opcode in ("send-done", "recv-done"):
        _check_channel(builder, statement, operands)
    if len(builder.module.faults) > before:
        return FAILED
    if rewrite is not None and legacy_forms.is_legacy(statement, shapes):
        return rewrite(builder, statement, operands)
    if opcode.startswith("async-") or is_sugar(opcode):
        from hloipu_compiler.hlo.reading import async_sugar

        return async_sugar.add_async(builder, statement, operands)
    shape = statement.shape or builder.infer(statement, statement.prepared, operands)
    if shape is None:
        return FAILED
    if not _replication_fits(builder, statement, shape):
        return FAILED
    literal, number = builder.inside(statement, shape)
    if len(builder.module.faults) > before:
        return FAILED
    return builder.add(statement, shape, operands, literal=literal, parameter_number=number)


def _replication_fits(builder: "ComputationBuilder", statement: Statement, shape: Shape) -> bool:
    replication = statement.prepared.attributes.get("parameter_replication")
    if not isinstance(replication, tuple):
        return True
    count = sum(1 for _ in leaves(shape))
    if statement.prepared.opcode != "parameter":
        message = f"only parameters have parameter_replication, not {statement.prepared.opcode}"
    elif len(replication) != count:
        message = f"parameter_replication has {len(replication)} values for {count} leaves"
    else:
        return True
    builder.report_attribute(statement, "parameter_replication", "E0146", message)
    return False


def _problem(builder: "ComputationBuilder", statement: Statement, shapes: tuple[Shape, ...]) -> str:
    """Return what is wrong with the operands of a statement, or ''."""
    prepared = statement.prepared
    if not prepared.fewest <= len(shapes) <= prepared.most:
        return f"{prepared.opcode} does not take {len(shapes)} operands"
    check = _PROBLEMS.get(prepared.opcode)
    return check(builder, statement, shapes) if check else ""


def _tuple(_b: "ComputationBuilder", statement: Statement, shapes: tuple[Shape, ...]) -> str:
    shape = statement.shape
    if shape is None:
        return ""
    if not isinstance(shape, TupleShape):
        return f"tuple makes a tuple, not {shape}"
    if len(shape.elements) != len(shapes):
        return f"the shape has {len(shape.elements)} elements, but there are {len(shapes)} operands"
    return ""


def _infeed(_b: "ComputationBuilder", statement: Statement, shapes: tuple[Shape, ...]) -> str:
    if shapes and statement.shape is not None and not isinstance(statement.shape, TupleShape):
        return f"{statement.prepared.opcode} gives a tuple of data and token, not {statement.shape}"
    return ""


def _even(_b: "ComputationBuilder", statement: Statement, shapes: tuple[Shape, ...]) -> str:
    if len(shapes) % 2:
        return (
            f"{statement.prepared.opcode} takes as many initial values as arrays, "
            f"but has {len(shapes)} operands"
        )
    return ""


def _odd(_b: "ComputationBuilder", _s: Statement, shapes: tuple[Shape, ...]) -> str:
    if len(shapes) % 2 == 0:
        return (
            "scatter takes arrays, indices and as many updates as arrays, "
            f"but has {len(shapes)} operands"
        )
    return ""


def _conditional(_b: "ComputationBuilder", statement: Statement, shapes: tuple[Shape, ...]) -> str:
    chosen = shapes[0]
    kind = chosen.element_type.name if isinstance(chosen, ArrayShape) else ""
    if kind not in ("pred", "s32") or not isinstance(chosen, ArrayShape) or chosen.dimensions:
        return f"conditional chooses by a scalar of pred or s32, not by {chosen}"
    attributes = statement.prepared.attributes
    pair = {"true_computation", "false_computation"}
    needed = pair if kind == "pred" else {"branch_computations"}
    stated = (pair | {"branch_computations"}) & set(attributes)
    if stated != needed:
        wanted = " and ".join(f"{key}=" for key in sorted(needed, reverse=True))
        return f"a conditional that chooses by {kind} needs {wanted} and no other branches"
    if len(attributes.called) != len(shapes) - 1:
        return (
            f"the conditional has {len(attributes.called)} branches, but operands for "
            f"{len(shapes) - 1}"
        )
    return ""


def _starts(arrays: int) -> Callable[..., str]:
    def check(_b: "ComputationBuilder", _s: Statement, shapes: tuple[Shape, ...]) -> str:
        rank = shapes[0].rank if isinstance(shapes[0], ArrayShape) else -1
        starts = shapes[arrays:]
        vector = len(starts) == 1 and isinstance(starts[0], ArrayShape) and starts[0].rank == 1
        if vector or len(starts) == rank:
            return ""
        return f"there must be one start index for each dimension of {shapes[0]}"

    return check


def _custom_call(_b: "ComputationBuilder", statement: Statement, shapes: tuple[Shape, ...]) -> str:
    constraints = statement.prepared.attributes.get("operand_layout_constraints")
    if not isinstance(constraints, tuple):
        return ""
    if len(constraints) != len(shapes):
        return f"{len(constraints)} operand layouts are constrained, of {len(shapes)} operands"
    for number, (wanted, shape) in enumerate(zip(constraints, shapes, strict=True)):
        if not compatible(wanted, shape):  # type: ignore[arg-type]
            return f"operand {number} is {shape}, but its layout constraint says {wanted}"
    return ""


def _scan(builder: "ComputationBuilder", statement: Statement, shapes: tuple[Shape, ...]) -> str:
    attributes = statement.prepared.attributes
    if not 0 <= attributes.integer("num_carries") <= len(shapes):
        return f"scan carries {attributes.integer('num_carries')} of {len(shapes)} operands"
    callee = builder.module.computations.get(attributes.text("to_apply"))
    if callee is not None and len(callee.parameters) != len(shapes):
        return f"scan has {len(shapes)} operands, its computation {len(callee.parameters)}"
    return ""


def _broadcast(_b: "ComputationBuilder", statement: Statement, shapes: tuple[Shape, ...]) -> str:
    scalar = isinstance(shapes[0], ArrayShape) and not shapes[0].dimensions
    if "dimensions" in statement.prepared.attributes or scalar:
        return ""
    return f"broadcast of {shapes[0]} needs dimensions=; only a scalar can go without"


def _sliced_permute(
    _b: "ComputationBuilder", statement: Statement, shapes: tuple[Shape, ...]
) -> str:
    if "slice_sizes" in statement.prepared.attributes and len(shapes) != 4:
        return f"with slice_sizes= there are 4 operands, not {len(shapes)}"
    return ""


_PROBLEMS: dict[str, Callable[["ComputationBuilder", Statement, tuple[Shape, ...]], str]] = {
    "tuple": _tuple,
    "broadcast": _broadcast,
    "infeed": _infeed,
    "recv": _infeed,
    "reduce": _even,
    "reduce-window": _even,
    "scatter": _odd,
    "conditional": _conditional,
    "custom-call": _custom_call,
    "dynamic-slice": _starts(1),
    "dynamic-update-slice": _starts(2),
    "scan": _scan,
    "collective-permute": _sliced_permute,
    "collective-permute-start": _sliced_permute,
}


def _check_channel(builder: "ComputationBuilder", statement: Statement, operands: Operands) -> None:
    """Report a done whose channel is not that of the send or recv before it."""
    if len(operands) != 1:
        return
    start = builder.instructions[operands[0]]
    if start.opcode not in ("send", "recv"):
        return
    mine = statement.prepared.attributes.get("channel_id")
    theirs = start.attributes.get("channel_id")
    if mine != theirs:
        message = f"channel_id is {mine}, but that of {start.name} is {theirs}"
        builder.report_attribute(statement, "channel_id", "E0144", message)


def _check_control_predecessors(builder: "ComputationBuilder", statement: Statement) -> None:
    names = statement.prepared.attributes.get("control-predecessors", ())
    for name in names if isinstance(names, tuple) else ():
        if builder.at.get(str(name), FAILED) == FAILED:
            message = f"{name} is not defined before {statement.name}"
            builder.report_attribute(statement, "control-predecessors", "E0129", message)
