"""Writes a module as one networkx graph: a node for each instruction, edges for its needs.

Every edge goes from what is needed to who needs it: from an operand to its user, from a control
predecessor to its successor, from the root of a called computation to its caller. Values are
strings, integers and booleans, so that GraphML and JSON hold them. docs/networkx.md has the tables.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from hloipu_compiler.hlo.printing.print_options import PrintOptions
from hloipu_compiler.hlo.printing.printer import Printer
from hloipu_compiler.ir.attribute_kinds import COMPUTATION_KINDS, INSTRUCTION_KINDS
from hloipu_compiler.ir.attributes import Attributes, Raw
from hloipu_compiler.ir.graph import Computation, Instruction, Module, control_predecessors
from hloipu_runtime.collection import without_collection

if TYPE_CHECKING:
    import networkx as nx

OPERAND, CONTROL, CALL = "operand", "control", "call"
CALLING = frozenset(key for key, kind in INSTRUCTION_KINDS.items() if kind in COMPUTATION_KINDS)
CONTROL_KEY = "control-predecessors"
SLOT = "{}"
"""Stands in an attribute text where the names are that edges say."""

Edge = tuple[str, str, dict[str, str | int]]


class _Text(NamedTuple):
    """Attributes of an instruction: text with slots, and the calls of the slots."""

    text: str
    calls: tuple[tuple[str, int, str], ...]
    """Attribute, number in its list, computation."""


def to_networkx(module: Module) -> "nx.MultiDiGraph[str]":
    """Return the module as a graph that says all that its text says.

    Takes about 15 us an instruction; `from_networkx` takes twice as long.
    """
    import networkx as nx  # slow to import

    with without_collection():
        graph: nx.MultiDiGraph[str] = nx.MultiDiGraph(name=module.name, entry=module.entry.name)
        _fill(graph, module)
    return graph


def _fill(graph: "nx.MultiDiGraph[str]", module: Module) -> None:
    printer = Printer(PrintOptions(index_comments=0))
    graph.graph["attributes"] = printer.header_attributes(module)[2:]
    graph.graph["stack_tables"] = module.stack_tables
    texts: dict[Attributes, _Text] = {}
    ids = {c.name: [f"{c.name}/{one.name}" for one in c.instructions] for c in module.computations}
    roots = {c.name: ids[c.name][c.root] for c in module.computations}
    number = 0
    for computation in module.computations:
        node_ids = ids[computation.name]
        for position, instruction in enumerate(computation.instructions):
            if instruction.attributes not in texts:
                texts[instruction.attributes] = _text(printer, instruction.attributes)
            text = texts[instruction.attributes].text
            graph.add_node(
                node_ids[position], **_node(printer, computation, instruction, number, text)
            )
            number += 1
        graph.nodes[node_ids[computation.root]].update(_root(computation))
    for computation in module.computations:
        graph.add_edges_from(_edges(computation, ids[computation.name], roots, texts))


def _text(printer: Printer, attributes: Attributes) -> _Text:
    calls: list[tuple[str, int, str]] = []
    values = dict(attributes)
    for key, value in attributes.items():
        if key in CALLING:
            names = value if isinstance(value, tuple) else (value,)
            calls += [(key, i, str(name)) for i, name in enumerate(names)]
            values[key] = Raw(SLOT)
        elif key == CONTROL_KEY:
            values[key] = Raw(SLOT)
    return _Text(printer.attribute_list(Attributes(values))[2:], tuple(calls))


def _node(
    printer: Printer, computation: Computation, instruction: Instruction, number: int, text: str
) -> dict[str, Any]:
    node: dict[str, Any] = {
        "computation": computation.name,
        "name": instruction.name,
        "number": number,
        "opcode": instruction.opcode,
        "shape": printer.shapes.text(instruction.shape),
    }
    if instruction.literal is not None:
        node["literal"] = printer.literal(instruction.literal, instruction.shape)
    elif instruction.parameter_number >= 0:
        node["parameter_number"] = instruction.parameter_number
    if text:
        node["attributes"] = text
    if instruction.metadata:
        node["metadata"] = instruction.metadata
    if instruction.backend_config:
        node["backend_config"] = instruction.backend_config
    return node


def _root(computation: Computation) -> dict[str, str | bool]:
    thread = computation.execution_thread
    return {"root": True} if thread == "main" else {"root": True, "execution_thread": thread}


def _edges(
    computation: Computation,
    node_ids: list[str],
    roots: dict[str, str],
    texts: dict[Attributes, _Text],
) -> Iterator[Edge]:
    for user, instruction in zip(node_ids, computation.instructions, strict=True):
        for number, operand in enumerate(instruction.operands):
            yield node_ids[operand], user, {"kind": OPERAND, "number": number}
        if not instruction.attributes:
            continue
        for number, name in enumerate(control_predecessors(instruction)):
            yield node_ids[computation.position[name]], user, {"kind": CONTROL, "number": number}
        for key, number, name in texts[instruction.attributes].calls:
            yield roots[name], user, {"kind": CALL, "attribute": key, "number": number}
