"""Builds a checked module from a networkx graph, as `to_networkx` gives it or edited.

The graph is written as HLO text and read as every text is, so that one set of rules holds for both;
what is wrong in a line of it is said of the line's node. What only a graph can get wrong is found
here: edges that do not number operands, cycles, attributes that edges contradict.
"""

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import replace
from numbers import Integral
from reprlib import repr as shown
from typing import TYPE_CHECKING, Any

from hloipu_compiler.errors import Fault, GraphError, InvalidHloError
from hloipu_compiler.hlo.parse import parse
from hloipu_compiler.hlo.printing.printer import computation_text, statement_text
from hloipu_compiler.hlo.reading.balance import COMMENTS, STRINGS
from hloipu_compiler.hlo.syntax.limits import DEFAULT_LIMITS, Limits
from hloipu_compiler.hlo.to_networkx import CALL, CALLING, CONTROL, CONTROL_KEY, OPERAND, SLOT
from hloipu_compiler.ir.attribute_kinds import INSTRUCTION_KINDS, AttributeKind
from hloipu_compiler.ir.graph import Module
from hloipu_compiler.source import Source
from hloipu_compiler.verify.verifier import verify as verify_module
from hloipu_runtime.collection import without_collection

if TYPE_CHECKING:
    import networkx as nx

_NEEDED = ("computation", "name", "opcode")
_TEXTS = (
    "shape", "literal", "attributes", "metadata", "backend_config", "execution_thread",
)  # fmt: skip
_KINDS = (OPERAND, CONTROL, CALL)
_NAME = re.compile(r"[A-Za-z_][\w.\-]*+", re.ASCII)
_TOKEN = re.compile(
    rf"({'|'.join(sorted({*CALLING, CONTROL_KEY}, reverse=True))})={re.escape(SLOT)}"
    rf"|[\w.\-]++|[{{(\[]|[}})\]]|{STRINGS}|{COMMENTS}",
    re.DOTALL,
)
_MOST_SHOWN = 12
"""Nodes of a cycle in its message."""


def from_networkx(
    graph: "nx.DiGraph[Any]", *, limits: Limits | None = None, verify: bool = True
) -> Module:
    """Return the module that a graph describes; its source is the text written on the way.

    Instructions stand by their `number`; where numbers are missing or contradict edges, in a
    topological order that stays close to them. With `verify` off the module is only parsed.
    Raises GraphError (E018x) where the graph describes no text, ParseError and VerifyError with the
    nodes at fault, LimitError where the text is larger than `limits`.
    """
    with without_collection():
        reader = _GraphReader(graph)
        text = reader.text()
    try:
        module = parse(Source(text, "<graph>"), limits=limits or DEFAULT_LIMITS)
        if verify:
            verify_module(module)
    except InvalidHloError as error:
        raise type(error)([reader.named(fault) for fault in error.faults]) from None
    return module


class _GraphReader:
    """Nodes by computation and edges by the node that they lead to."""

    def __init__(self, graph: "nx.DiGraph[Any]") -> None:
        import networkx as nx  # slow to import

        if not isinstance(graph, nx.DiGraph):
            raise GraphError([_fault(
                "E0180", f"a module cannot be made of {type(graph).__name__}",
                "a directed graph of networkx, best a MultiDiGraph",
            )])  # fmt: skip
        self.nodes: dict[Hashable, Mapping[str, Any]] = dict(graph.nodes(data=True))
        self.header: Mapping[str, Any] = graph.graph
        self.faults: list[Fault] = []
        self.computations: dict[str, list[Hashable]] = defaultdict(list)
        self.operands: dict[Hashable, list[tuple[int, Hashable]]] = defaultdict(list)
        self.control: dict[Hashable, list[tuple[int, Hashable]]] = defaultdict(list)
        self.calls: dict[Hashable, dict[str, list[tuple[int, str]]]] = {}
        self._starts: list[int] = []
        self._ends: list[int] = []
        self._written: list[Hashable] = []
        self._templates: dict[str, list[str]] = {}
        for node, data in self.nodes.items():
            self._add_node(node, data)
        self._check_header()
        self._give_up()
        for source, target, data in graph.edges(data=True):
            self._add_edge(source, target, data)
        for node, operands in self.operands.items():
            self._check_numbers(node, operands, "operand")
        self._give_up()

    def _report(self, node: Hashable, code: str, message: str, expected: str) -> None:
        self.faults.append(_fault(code, f"node {node!r}: {message}", expected))

    def _give_up(self) -> None:
        if self.faults:
            raise GraphError(self.faults)

    def _check_header(self) -> None:
        for key in ("name", "entry", "attributes", "stack_tables"):
            value = self.header.get(key, "")
            if not isinstance(value, str):
                message = f"the graph's {key!r} is {value!r}"
                self.faults.append(_fault("E0180", message, "a string"))
        if self.header.get("entry") not in self.computations:
            message = f"the graph's 'entry' is {self.header.get('entry')!r}"
            known = ", ".join(list(self.computations)[:_MOST_SHOWN])
            self.faults.append(_fault("E0180", message, f"a computation of its nodes: {known}"))

    def _add_node(self, node: Hashable, data: Mapping[str, Any]) -> None:
        before = len(self.faults)
        for key in _NEEDED:
            if not isinstance(data.get(key), str) or not _NAME.fullmatch(data[key]):
                message = (
                    f"{key!r} is {shown(data[key])}" if key in data else f"there is no {key!r}"
                )
                self._report(node, "E0181", message, "a name such as 'add.3'")
        for key in _TEXTS:
            if not isinstance(data.get(key, ""), str):
                self._report(node, "E0181", f"{key!r} is {shown(data[key])}", "a string")
            elif key in data and not _is_closed(data[key]):
                self._report(
                    node, "E0181", f"{key!r} is {shown(data[key])}", "brackets that close in it"
                )
        for key in ("number", "parameter_number"):
            if key in data and not _is_count(data[key]):
                self._report(
                    node, "E0181", f"{key!r} is {shown(data[key])}", "an integer from 0 on"
                )
        if not isinstance(data.get("root", False), bool):
            self._report(node, "E0181", f"'root' is {shown(data['root'])}", "True or False")
        if len(self.faults) == before:
            self.computations[data["computation"]].append(node)

    def _add_edge(self, source: Hashable, target: Hashable, data: Mapping[str, Any]) -> None:
        kind, number = (
            data.get("kind"),
            data.get("number", 0 if data.get("kind") != OPERAND else -1),
        )
        above, below = self.nodes[source]["computation"], self.nodes[target]["computation"]
        edge = f"the edge from {source!r}"
        if kind not in _KINDS:
            self._report(
                target, "E0182", f"{edge} has the kind {kind!r}", f"one of {', '.join(_KINDS)}"
            )
        elif not _is_count(number):
            message = f"{edge} has the number {data.get('number')!r}"
            self._report(target, "E0182", message, "an integer from 0 on")
        elif kind == CALL:
            attribute = data.get("attribute")
            if attribute not in CALLING:
                message = f"{edge} calls by the attribute {attribute!r}"
                self._report(target, "E0182", message, "a name such as 'to_apply' or 'body'")
                return
            calls = self.calls.setdefault(target, {})
            calls.setdefault(str(attribute), []).append((number, above))
        elif above != below:
            self._report(
                target, "E0182", f"{edge} of kind {kind!r} comes from computation {above!r}",
                f"a node of {below!r}: other computations' values come in as parameters",
            )  # fmt: skip
        else:
            (self.operands if kind == OPERAND else self.control)[target].append((number, source))

    def _check_numbers(
        self, node: Hashable, numbered: list[tuple[int, Any]], edge_kind: str
    ) -> None:
        """Sort what edges number; report where they do not say 0, 1, 2… each once."""
        numbered.sort(key=lambda edge: edge[0])
        numbers = [int(number) for number, _ in numbered]
        if numbers != list(range(len(numbered))):
            numbers_text = ", ".join(map(str, numbers[:_MOST_SHOWN]))
            wanted = "0" if len(numbered) == 1 else f"0 to {len(numbered) - 1}, each once"
            self._report(
                node,
                "E0182",
                f"its edges of kind {edge_kind!r} have the numbers {numbers_text}",
                wanted,
            )

    # ---- order ----------------------------------------------------------------------------------

    def _positions(self, computation: list[Hashable]) -> list[Hashable]:
        """Return the nodes in their order: by number, and each after what it needs."""
        numbers = {node: self.nodes[node].get("number", -1) for node in computation}
        needs = {
            node: [
                source for _, source in (*self.operands.get(node, ()), *self.control.get(node, ()))
            ]
            for node in computation
        }
        order = sorted(computation, key=numbers.__getitem__)
        place = {node: i for i, node in enumerate(order)}
        in_order = all(place[source] < place[node] for node in order for source in needs[node])
        if in_order and all(number >= 0 for number in numbers.values()):
            return order
        return self._topological(needs, numbers)

    def _topological(
        self, needs: Mapping[Hashable, list[Hashable]], numbers: dict[Hashable, int]
    ) -> list[Hashable]:
        """Return a topological order; what a number puts too early comes right after its needs."""
        import networkx as nx

        dataflow: nx.DiGraph[Hashable] = nx.DiGraph()
        dataflow.add_nodes_from(needs)
        dataflow.add_edges_from(
            (needed, node) for node, sources in needs.items() for needed in sources
        )
        try:
            order = list(nx.topological_sort(dataflow))
        except nx.NetworkXUnfeasible:
            path = [repr(source) for source, _ in nx.find_cycle(dataflow)]
            around = [*path[:_MOST_SHOWN], *(["…"] if len(path) > _MOST_SHOWN else []), path[0]]
            message = f"nodes need each other in a cycle: {' -> '.join(around)}"
            self.faults.append(
                _fault("E0183", message, "operands and control predecessors without a cycle")
            )
            return []
        for node in order:
            numbers[node] = max([numbers[node], *(numbers[needed] for needed in needs[node])])
        return sorted(order, key=numbers.__getitem__)

    # ---- text -----------------------------------------------------------------------------------

    def text(self) -> str:
        """Return the module's text; GraphError with everything that is wrong with the graph."""
        entry = self.header["entry"]
        comma = ", " if self.header.get("attributes") else ""
        name = self.header.get("name") or entry
        blocks = [f"HloModule {name}{comma}{self.header.get('attributes', '')}"]
        if self.header.get("stack_tables"):
            blocks.append(self.header["stack_tables"].strip())
        at = sum(len(block) + 2 for block in blocks)
        for computation in sorted(self.computations, key=self._first_number):
            blocks.append(self._computation(computation, is_entry=computation == entry, at=at))
            at += len(blocks[-1]) + 2
        self._give_up()
        return "\n\n".join(blocks) + "\n"

    def _first_number(self, computation: str) -> int:
        numbers: list[int] = [
            self.nodes[node].get("number", -1) for node in self.computations[computation]
        ]
        return min(numbers)

    def _computation(self, name: str, *, is_entry: bool, at: int) -> str:
        order = self._positions(self.computations[name])
        roots = [node for node in order if self.nodes[node].get("root")]
        if order and len(roots) != 1:
            shown = ", ".join(map(repr, roots[:_MOST_SHOWN])) or "none"
            message = f"computation {name!r} has as its roots: {shown}"
            self.faults.append(_fault("E0181", message, "one node with root=True"))
            return ""
        title = f"{'ENTRY ' if is_entry else ''}%{name} "
        at += len(title) + 2
        statements = []
        for node in order:
            statement = f"{'ROOT ' if node in roots else ''}{self._statement(node)}"
            statements.append(statement)
            self._starts.append(at)
            at += len(statement) + 3
            self._ends.append(at)
            self._written.append(node)
        thread = self.nodes[roots[0]].get("execution_thread", "main") if roots else "main"
        return computation_text(title, statements, thread)

    def _statement(self, node: Hashable) -> str:
        data = self.nodes[node]
        operands = ", ".join(
            f"%{self.nodes[source]['name']}" for _, source in self.operands.get(node, ())
        )
        insides = [
            text
            for text in (operands, data.get("literal"), data.get("parameter_number"))
            if text not in ("", None)
        ]
        if len(insides) > 1:
            self._report(
                node, "E0181", "it has more than one of operands, 'literal' and 'parameter_number'",
                "operands, of a constant its literal, of a parameter its number",
            )  # fmt: skip
        attributes = ", ".join(self._attributes(node, data.get("attributes", "")))
        return statement_text(
            f"%{data['name']}", data.get("shape", ""), data["opcode"],
            str(insides[0]) if insides else "", f", {attributes}" if attributes else "",
            data.get("metadata", ""), data.get("backend_config", ""),
        )  # fmt: skip

    def _attributes(self, node: Hashable, text: str) -> Iterator[str]:
        """Yield the attributes with the names that edges say in place of the slots."""
        if text not in self._templates:
            self._templates[text] = list(_at_slots(text))
        names = self._names(node)
        for part in self._templates[text]:
            key = part.removesuffix(f"={SLOT}")
            if key not in CALLING and key != CONTROL_KEY:
                yield part
            elif key in names:
                yield f"{key}={names.pop(key)}"
            elif INSTRUCTION_KINDS[key] is AttributeKind.COMPUTATION:
                self._report(
                    node, "E0184", f"no edge says what {part} calls",
                    f"an edge of kind 'call' with attribute={key!r} from a node of the computation",
                )  # fmt: skip
            elif key != CONTROL_KEY:  # an empty list of computations may be written
                yield part
        for key, callee in names.items():
            yield f"{key}={callee}"

    def _names(self, node: Hashable) -> dict[str, str]:
        """Return, by attribute, the text of the names that edges to a node say."""
        names_by_attribute: dict[str, str] = {}
        if node in self.control:
            edges = sorted(self.control[node], key=lambda edge: edge[0])
            names_by_attribute[CONTROL_KEY] = _listed(
                self.nodes[source]["name"] for _, source in edges
            )
        for key, calls in self.calls.get(node, {}).items():
            self._check_numbers(node, calls, f"{CALL} ({key})")
            if INSTRUCTION_KINDS[key] is AttributeKind.COMPUTATIONS:
                names_by_attribute[key] = _listed(name for _, name in calls)
            else:
                names_by_attribute[key] = f"%{calls[0][1]}"
                if len(calls) > 1:
                    message = f"{len(calls)} edges say what {key}= calls"
                    self._report(node, "E0184", message, "one")
        return names_by_attribute

    def named(self, fault: Fault) -> Fault:
        """Return a fault of the text with the node that it is about."""
        if fault.span is None:
            return fault
        place = bisect_right(self._starts, fault.span.start) - 1
        if place < 0 or fault.span.start >= self._ends[place]:
            return fault
        return replace(fault, message=f"node {self._written[place]!r}: {fault.message}")


def _fault(code: str, message: str, expected: str) -> Fault:
    return Fault(code, message, expected=expected)


def _is_count(value: object) -> bool:
    if type(value) is not int:  # asking for the base class takes long
        return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= 0
    return value >= 0


def _listed(names: Iterable[str]) -> str:
    return f"{{{', '.join(f'%{name}' for name in names)}}}"


def _is_closed(text: str) -> bool:
    """Whether the brackets of a text end in it: else it would go on in the next node's line."""
    if all(text.count(opening) == text.count(closing) for opening, closing in ("{}", "()", "[]")):
        return True
    tokens = [token[0] for token in _TOKEN.finditer(text)]
    return sum(map("{([".count, tokens)) == sum(map("})]".count, tokens))


def _at_slots(text: str) -> Iterator[str]:
    """Yield the parts of an attribute text: slots, and what stands between them."""
    depth = start = 0
    for token in _TOKEN.finditer(text):
        if token[0] in ("{", "(", "["):
            depth += 1
        elif token[0] in ("}", ")", "]"):
            depth -= 1
        elif token[1] and depth == 0:
            between = text[start : token.start()].strip(", ")
            if between:
                yield between
            yield token[0]
            start = token.end()
    remaining = text[start:].strip(", ")
    if remaining:
        yield remaining
