"""Module, computation, instruction: frozen records, instructions in topological order.

Operands are positions in the computation's tuple of instructions and always smaller than the
user's own position, so every walk is a loop over a tuple. The networkx view is built on request.
"""

from collections.abc import Iterator, Mapping
from dataclasses import field, replace
from functools import cached_property
from html import escape
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from hloipu_compiler.ir.attributes import NO_ATTRIBUTES, Attributes, ProgramShape
from hloipu_compiler.ir.literals import Literal
from hloipu_compiler.ir.shapes import Shape
from hloipu_compiler.source import Source, Span
from hloipu_runtime.collection import without_collection
from hloipu_runtime.frozen import dataclass

if TYPE_CHECKING:
    import networkx as nx


_LONGEST_NAME = 200
"""Characters of a name that are shown."""
_MOST_SHOWN = 20
"""Parameters that a notebook lists."""


class Instruction(NamedTuple):
    """One instruction: `name = shape opcode(operands), attributes`.

    A NamedTuple because hundreds of thousands are made; treat it as a record, not as a sequence.
    """

    name: str
    opcode: str
    shape: Shape
    operands: tuple[int, ...] = ()
    """Positions of the operands in the computation."""
    attributes: Attributes = NO_ATTRIBUTES
    """All attributes but metadata and backend_config, which differ on nearly every line."""
    metadata: str = ""
    """Text of `metadata=` with its braces, or empty; read by `hlo.metadata`."""
    backend_config: str = ""
    """Text of `backend_config=` with its quotes or braces, or empty."""
    literal: Literal | None = None
    """The value, of constants only."""
    parameter_number: int = -1
    """Of parameters only."""
    start: int = -1
    """Offset of the statement in the module's source text; -1 where a pass made it."""
    end: int = -1
    """Offset just after the statement."""


@dataclass(frozen=True)
class Computation:
    """A computation: instructions in topological order, one of them the root."""

    name: str
    instructions: tuple[Instruction, ...]
    root: int
    """Position of the root."""
    execution_thread: str = "main"
    start: int = -1
    end: int = -1

    @cached_property
    def position(self) -> Mapping[str, int]:
        """Position of each instruction by its name."""
        return {instruction.name: i for i, instruction in enumerate(self.instructions)}

    def __repr__(self) -> str:
        """Return name and size, not the instructions."""
        return f"<Computation {self.name[:_LONGEST_NAME]}: {len(self.instructions):,} instructions>"

    def parameter(self, name: str) -> Instruction:
        """Return the parameter of that name; raises KeyError that names those there are.

        module.entry.parameter("x").shape
        """
        known = [self.instructions[i] for i in self.parameters]
        for instruction in known:
            if instruction.name == name.removeprefix("%"):
                return instruction
        raise KeyError(
            f"no parameter {name!r}; there are "
            f"{', '.join(instruction.name for instruction in known[:20])}"
        )

    @cached_property
    def parameters(self) -> tuple[int, ...]:
        """Positions of the parameters, by parameter number."""
        numbered = [
            (op.parameter_number, i)
            for i, op in enumerate(self.instructions)
            if op.parameter_number >= 0
        ]
        return tuple(i for _, i in sorted(numbered))

    @cached_property
    def program_shape(self) -> ProgramShape:
        """Shapes of the parameters and of the root."""
        shapes = tuple(self.instructions[i].shape for i in self.parameters)
        return ProgramShape(shapes, self.instructions[self.root].shape)

    @cached_property
    def users(self) -> tuple[tuple[int, ...], ...]:
        """For each position, the positions of its users, each once, ascending."""
        lists: list[list[int]] = [[] for _ in self.instructions]
        for i, instruction in enumerate(self.instructions):
            for operand in instruction.operands:
                known = lists[operand]
                if not known or known[-1] != i:
                    known.append(i)
        return tuple(map(tuple, lists))

    @cached_property
    def called(self) -> tuple[str, ...]:
        """Names of the computations that instructions refer to, each once, in text order."""
        attributes = [op.attributes for op in self.instructions]
        return tuple(dict.fromkeys([name for each in attributes for name in each.called]))

    @cached_property
    def calls(self) -> Mapping[str, tuple[int, ...]]:
        """Positions of `call` instructions by what they call, ascending."""
        lists: dict[str, list[int]] = {}
        for i, instruction in enumerate(self.instructions):
            if instruction.opcode == "call":
                lists.setdefault(instruction.attributes.called[0], []).append(i)
        return {name: tuple(positions) for name, positions in lists.items()}

    def __getitem__(self, name: str) -> Instruction:
        """Return the instruction of that name; KeyError where there is none."""
        return self.instructions[self.position[name]]

    @cached_property
    def dataflow(self) -> "nx.DiGraph[int]":
        """The dataflow graph: nodes are positions, with `instruction`; edges go operand -> user.

        An edge's `operand_numbers` lists which operands of the user it feeds; control predecessors
        are edges with `control=True`. Built on the first request (about 5 us an instruction).
        """
        import networkx as nx  # slow to import, and most runs never ask

        graph: nx.DiGraph[int] = nx.DiGraph(name=self.name)
        numbers: dict[tuple[int, int], list[int]] = {}
        with without_collection():
            graph.add_nodes_from(
                (i, {"instruction": node}) for i, node in enumerate(self.instructions)
            )
            for i, instruction in enumerate(self.instructions):
                for number, operand in enumerate(instruction.operands):
                    numbers.setdefault((operand, i), []).append(number)
            graph.add_edges_from(
                (a, b, {"operand_numbers": tuple(n)}) for (a, b), n in numbers.items()
            )
            for i, instruction in enumerate(self.instructions):
                for name in control_predecessors(instruction):
                    graph.add_edge(self.position[name], i, control=True)
        return graph


def element_of(name: str, whole: int, index: int, shape: Shape, metadata: str = "") -> Instruction:
    """Return what reads one element of the tuple at a position."""
    attributes = Attributes({"index": index})
    return Instruction(name, "get-tuple-element", shape, (whole,), attributes, metadata)


def combiner(name: str, opcode: str, scalar: Shape) -> Computation:
    """Return the computation of two numbers that a reduction takes, such as their sum."""
    a, b = (Instruction(x, "parameter", scalar, parameter_number=n) for n, x in enumerate("ab"))
    return Computation(name, (a, b, Instruction("total", opcode, scalar, (0, 1))), 2)


def with_computation(module: "Module", new: Computation) -> "Module":
    """Return the module with one computation replaced by another of the same name."""
    computations = tuple(new if c.name == new.name else c for c in module.computations)
    return replace(module, computations=computations)


def control_predecessors(instruction: Instruction) -> tuple[str, ...]:
    """Return the names that `control-predecessors` lists."""
    names = instruction.attributes.get("control-predecessors", ())
    return names if isinstance(names, tuple) else ()  # type: ignore[return-value]


@dataclass(frozen=True)
class Module:
    """A whole HLO module; computations stand in text order."""

    name: str
    computations: tuple[Computation, ...]
    entry_position: int
    attributes: Attributes = NO_ATTRIBUTES
    """Header attributes: aliases, layouts, replica_count and so on."""
    stack_tables: str = ""
    """Text of the FileNames … StackFrames tables, or empty; read by `hlo.stack_tables`."""
    source: Source = field(default=Source(""), compare=False, repr=False)

    def __repr__(self) -> str:
        """Return name and size, not the text."""
        return f"<Module {self.name[:_LONGEST_NAME]}: {self.instruction_count:,} instructions>"

    def _repr_html_(self) -> str:
        """Return what notebooks show: name, size and the entry's parameters."""
        entry = self.entry
        shown_parameters = [entry.instructions[i] for i in entry.parameters[:_MOST_SHOWN]]
        rows = "".join(
            f"<tr><td>{escape(op.name)}</td><td>{op.shape}</td></tr>" for op in shown_parameters
        )
        left_out = len(entry.parameters) - len(shown_parameters)
        more = f"<tr><td>…</td><td>{left_out} more</td></tr>" if left_out else ""
        return f"<table><caption>{escape(repr(self))}</caption>{rows}{more}</table>"

    @property
    def entry(self) -> Computation:
        """The computation that runs."""
        return self.computations[self.entry_position]

    @cached_property
    def computation(self) -> Mapping[str, Computation]:
        """Each computation by its name."""
        return {c.name: c for c in self.computations}

    @property
    def instruction_count(self) -> int:
        """Number of instructions in all computations."""
        return sum(len(c.instructions) for c in self.computations)

    def called(self, instruction: Instruction) -> Iterator[Computation]:
        """Yield the computations that an instruction calls, in the order of its attributes."""
        for name in instruction.attributes.called:
            yield self.computation[name]

    # Both go through HLO text, whose rooms stand above this one: they are found by their names.

    def to_networkx(self) -> "nx.MultiDiGraph[str]":
        """Return the module as one graph that says all that its text says.

        Nodes are `computation/name`, one for each instruction, edges go from what is needed to who
        needs it; docs/networkx.md lists their attributes. `from_networkx` gives the module back.
        """
        graph: nx.MultiDiGraph[str] = import_module("hloipu_compiler.hlo.to_networkx").to_networkx(
            self
        )
        return graph

    @classmethod
    def from_networkx(
        cls, graph: "nx.DiGraph[Any]", *, limits: Any = None, verify: bool = True
    ) -> "Module":
        """Return the module that a graph describes: one of `to_networkx`, edited or not.

        `limits` are the `hloipu.Limits` of texts; with `verify` off the module is only parsed.
        Raises GraphError (E018x) where nodes and edges cannot be written as a text, ParseError and
        VerifyError where what they say is wrong, with the nodes; LimitError where it is too large.
        """
        build_module = import_module("hloipu_compiler.hlo.from_networkx").from_networkx
        module: Module = build_module(graph, limits=limits, verify=verify)
        return module

    def without_places(self) -> "Module":
        """Return the same module with no source text: what two texts that say the same share."""
        computations = tuple(
            replace(
                c,
                start=-1,
                end=-1,
                instructions=tuple(op._replace(start=-1, end=-1) for op in c.instructions),
            )
            for c in self.computations
        )
        return replace(self, computations=computations, source=Source(""))

    def span(self, record: Instruction | Computation) -> Span | None:
        """Return where in the source text a record stands; None where a pass made it."""
        if record.start < 0:
            return None
        return self.source.span(record.start, record.end)
