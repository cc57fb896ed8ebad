"""Statements of older dialects that become more than one instruction.

Tokens came in June 2018, comparators of sort and reducers of all-reduce in 2018 and 2019,
tuple-select went in 2022. The modern instructions get the old one's place and, where users need it,
its name.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from hloipu_compiler.hlo.reading.statements import Form, Prepared, Statement
from hloipu_compiler.ir.attributes import NO_ATTRIBUTES, Attributes, ReplicaGroups, Value
from hloipu_compiler.ir.graph import Computation, Instruction
from hloipu_compiler.ir.shapes import ArrayShape, Shape, TupleShape
from hloipu_runtime.element_types import PRED, TOKEN, ElementType

if TYPE_CHECKING:
    from hloipu_compiler.hlo.reading.build_computation import ComputationBuilder

FAILED = -1
_TOKEN = ArrayShape(TOKEN)
_ANY = 1 << 62
Operands = tuple[int, ...]


def is_legacy(statement: Statement, shapes: tuple[Shape, ...]) -> bool:
    """Whether a statement of an opcode in REWRITES is of the old form."""
    opcode, attributes = statement.prepared.opcode, statement.prepared.attributes
    if opcode == "sort":
        return "to_apply" not in attributes or "dimensions" not in attributes
    if opcode in ("infeed", "recv"):
        return not shapes
    if opcode in ("outfeed", "send"):
        return len(shapes) == 1
    if opcode == "recv-done":
        return _ends_without_token(statement.shape)
    if opcode == "send-done":
        return statement.shape == TupleShape()
    return True


def _ends_without_token(shape: Shape | None) -> bool:
    if not isinstance(shape, TupleShape):
        return shape is not None
    return len(shape.elements) != 2 or shape.elements[1] != _TOKEN


def _form(opcode: str, values: dict[str, Value] | None = None, *called: str) -> Prepared:
    attributes = Attributes(values, called) if values else NO_ATTRIBUTES
    return Prepared(opcode, attributes, Form.PLAIN, 0, _ANY)


def _token(builder: "ComputationBuilder", statement: Statement) -> int:
    name = builder.module.unique_name(f"{statement.name}.token")
    return builder.add(statement, _TOKEN, (), prepared=_form("after-all"), name=name)


def _first_of(builder: "ComputationBuilder", statement: Statement, pair: int, data: Shape) -> int:
    """Add the get-tuple-element that takes the old instruction's name."""
    prepared = _form("get-tuple-element", {"index": 0})
    return builder.add(statement, data, (pair,), prepared=prepared)


def _infeed(builder: "ComputationBuilder", statement: Statement, _operands: Operands) -> int:
    if statement.shape is None:
        return FAILED
    return _recv_done(builder, statement, (_token(builder, statement),))


def _recv_done(builder: "ComputationBuilder", statement: Statement, operands: Operands) -> int:
    data = statement.shape
    if data is None:
        return FAILED
    name = builder.module.unique_name(f"{statement.name}.data")
    both = TupleShape((data, _TOKEN))
    return _first_of(builder, statement, builder.add(statement, both, operands, name=name), data)


def _with_token(builder: "ComputationBuilder", statement: Statement, operands: Operands) -> int:
    shape = statement.shape
    token = _token(builder, statement)
    if statement.prepared.opcode == "outfeed":
        shape = _TOKEN
    elif isinstance(shape, TupleShape) and len(shape.elements) == 2:
        shape = TupleShape((*shape.elements, _TOKEN))
    return FAILED if shape is None else builder.add(statement, shape, (*operands, token))


def _trace(builder: "ComputationBuilder", statement: Statement, _operands: Operands) -> int:
    return builder.add(statement, TupleShape(), (), prepared=_form("tuple"))


def _host_compute(builder: "ComputationBuilder", statement: Statement, operands: Operands) -> int:
    values: dict[str, Value] = {"custom_call_target": "host-compute"}
    prepared = _form("custom-call", values)
    if statement.shape is None:
        return FAILED
    return builder.add(statement, statement.shape, operands, prepared=prepared)


def _cross_replica_sum(
    builder: "ComputationBuilder", statement: Statement, operands: Operands
) -> int:
    old, shape = statement.prepared.attributes, statement.shape
    element_type = _element_type(builder.instructions[operands[0]].shape)
    if shape is None or element_type is None:
        return FAILED
    values = {k: v for k, v in old.items() if k != "replica_group_ids"}
    ids = old.integers("replica_group_ids")
    if ids:
        groups = tuple(
            tuple(i for i, group in enumerate(ids) if group == wanted)
            for wanted in sorted(set(ids))
        )
        values["replica_groups"] = ReplicaGroups(groups)
    reducer = old.text("to_apply") or scalar_computation(builder, "add", element_type)
    values["to_apply"] = reducer
    return builder.add(statement, shape, operands, prepared=_form("all-reduce", values, reducer))


def _sort(builder: "ComputationBuilder", statement: Statement, operands: Operands) -> int:
    shapes = tuple(builder.instructions[i].shape for i in operands)
    types = [_element_type(shape) for shape in shapes]
    first = shapes[0]
    if any(t is None for t in types) or not isinstance(first, ArrayShape):
        return FAILED
    values = dict(statement.prepared.attributes)
    values.setdefault("dimensions", (max(first.rank - 1, 0),))
    comparator = statement.prepared.attributes.text("to_apply")
    if not comparator:
        comparator = _ascending(builder, [t for t in types if t is not None])
    values["to_apply"] = comparator
    shape = statement.shape or (first if len(shapes) == 1 else TupleShape(shapes))
    return builder.add(statement, shape, operands, prepared=_form("sort", values, comparator))


def _tuple_select(builder: "ComputationBuilder", statement: Statement, operands: Operands) -> int:
    """Select element by element; nested tuples the same way, to the depth that shapes may have."""
    predicate, true, false = operands

    def chosen(a: int, b: int, name: str) -> int:
        shape = builder.instructions[a].shape
        if not isinstance(shape, TupleShape):
            prepared = _form("select")
            return builder.add(statement, shape, (predicate, a, b), prepared=prepared, name=name)
        parts = []
        for index, element in enumerate(shape.elements):
            gte = _form("get-tuple-element", {"index": index})
            pair = [
                builder.add(
                    statement, element, (side,), prepared=gte,
                    name=builder.module.unique_name(f"{statement.name}.element"),
                )
                for side in (a, b)
            ]  # fmt: skip
            parts.append(
                chosen(pair[0], pair[1], builder.module.unique_name(f"{statement.name}.part"))
            )
        return builder.add(statement, shape, tuple(parts), prepared=_form("tuple"), name=name)

    return chosen(true, false, statement.name)


def _element_type(shape: Shape) -> ElementType | None:
    return shape.element_type if isinstance(shape, ArrayShape) else None


def scalar_computation(
    builder: "ComputationBuilder", opcode: str, element_type: ElementType
) -> str:
    """Add a computation of two scalars to the module, and return its name."""
    module = builder.module
    scalar = ArrayShape(element_type)
    names = [module.unique_name(f"{opcode}.{which}") for which in ("lhs", "rhs", "result")]
    opcode = "or" if element_type is PRED and opcode == "add" else opcode
    instructions = (
        Instruction(names[0], "parameter", scalar, parameter_number=0),
        Instruction(names[1], "parameter", scalar, parameter_number=1),
        Instruction(names[2], opcode, scalar, (0, 1)),
    )
    name = module.unique_name(f"{opcode}.{element_type.name}")
    module.add_computation(Computation(name, instructions, 2))
    return name


def _ascending(builder: "ComputationBuilder", types: list[ElementType]) -> str:
    """Add a comparator that orders by the first operand."""
    module = builder.module
    instructions = [
        Instruction(
            module.unique_name(f"sorted.{i}"), "parameter", ArrayShape(types[i // 2]),
            parameter_number=i,
        )
        for i in range(2 * len(types))
    ]  # fmt: skip
    less = Instruction(
        module.unique_name("sorted.less"), "compare", ArrayShape(PRED), (0, 1),
        Attributes({"direction": "LT"}),
    )  # fmt: skip
    name = module.unique_name("ascending")
    module.add_computation(Computation(name, (*instructions, less), len(instructions)))
    return name


REWRITES: dict[str, Callable[["ComputationBuilder", Statement, Operands], int]] = {
    "infeed": _infeed,
    "recv": _with_token,
    "send": _with_token,
    "outfeed": _with_token,
    "recv-done": _recv_done,
    "send-done": lambda builder, statement, operands: builder.add(statement, _TOKEN, operands),
    "trace": _trace,
    "host-compute": _host_compute,
    "cross-replica-sum": _cross_replica_sum,
    "sort": _sort,
    "tuple-select": _tuple_select,
}
"""Opcodes that have an old form, and what makes the modern one of it."""
