"""Row regions taken apart: values in one common space of dimensions.

Values have an element for each element of the space, or for each row: those that reductions along
rows leave, and what follows from them. Broadcasts vanish: an operand names the dimensions of the
space that it follows, and a row's value goes with each element of the row.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

from hloipu_compiler.ir.graph import Computation, Instruction
from hloipu_compiler.ir.ops import OPS, Trait
from hloipu_compiler.ir.shapes import ArrayShape, array_shape
from hloipu_compiler.layout.demands import first_reduction
from hloipu_compiler.lowering.core.context import LoweringContext
from hloipu_compiler.lowering.core.expressions import node_parameters
from hloipu_compiler.lowering.core.scalars import scalar_text
from hloipu_compiler.lowering.core.values import Scalar, Spread, TileTensor, Value
from hloipu_runtime.codelets.core.expression_form import Node, monoid_of

MOST_OPS = 256
"""Of one region: its code lies on every tile that runs it."""


class Reduction(NamedTuple):
    """A value reduced along rows."""

    value: int
    monoid: str
    init: str


class Operand(NamedTuple):
    """What is read from outside: dimension d follows dimension `labels[d]` of the space."""

    held: TileTensor
    labels: tuple[int, ...]


class Op(NamedTuple):
    """A value: an operand, a constant, an elementwise op on values, or a reduction of one."""

    what: Operand | Scalar | Node | Reduction
    element_type: str
    is_full: bool
    """Whether it has an element for each element of the space, as far as ops go."""
    name: str = ""
    """Of the instruction, where it is one."""


@dataclass
class FlatRows:
    """The values of a region, each after those that it is computed from."""

    space: tuple[int, ...]
    dimensions: tuple[int, ...]
    """That reductions run along."""
    ops: list[Op] = field(default_factory=list)
    last_uses: dict[int, bool] = field(default_factory=dict)
    """Of operands: whether nobody reads them afterwards."""
    results: tuple[int, ...] = ()

    @property
    def kept(self) -> tuple[int, ...]:
        """Dimensions that tell one row from another."""
        return tuple(d for d in range(len(self.space)) if d not in self.dimensions)


class NotRows(Exception):
    """A fusion that is no region of rows."""


def flat_rows(context: LoweringContext) -> FlatRows | None:
    """Return the values of a fusion, or None where it is no region of rows."""
    computation = context.module.computation[context.attributes.called[0]]
    found = first_reduction(context.module, computation)
    if found is None:
        return None
    try:
        return _Reader(context, *found).read(computation)
    except NotRows:
        return None


class _Frame(NamedTuple):
    """A computation, what its ops' values are, and where its arguments come from."""

    computation: Computation
    known: dict[int, tuple[int, ...]]
    outer: "tuple[_Frame, Instruction] | None"


class _Reader:
    """Walks a fusion and the fusions in it."""

    def __init__(
        self, context: LoweringContext, space: tuple[int, ...], dimensions: tuple[int, ...]
    ) -> None:
        self.context = context
        self.rows = FlatRows(space, tuple(sorted(dimensions)))
        self.operands: dict[tuple[int, tuple[int, ...]], int] = {}
        """Value and labels -> number."""
        self.nodes: dict[Node, int] = {}
        """Readers may have come with copies of what they read."""
        self.constants: dict[Scalar, int] = {}

    def read(self, computation: Computation) -> FlatRows:
        self.rows.results = self._inside(_Frame(computation, {}, None))
        if any(not isinstance(self.rows.ops[n].what, Node | Reduction) for n in self.rows.results):
            raise NotRows
        return self.rows

    def _inside(self, frame: _Frame) -> tuple[int, ...]:
        """Read a computation and return the numbers of its results."""
        for position, x in enumerate(frame.computation.instructions):
            if x.opcode in ("parameter", "constant", "broadcast", "tuple", "get-tuple-element"):
                continue
            if x.opcode == "fusion":
                inner = self.context.module.computation[x.attributes.called[0]]
                frame.known[position] = self._inside(_Frame(inner, {}, (frame, x)))
            elif x.opcode == "reduce":
                frame.known[position] = (self._reduction(frame, x),)
            else:
                frame.known[position] = (self._node(frame, x),)
        root = frame.computation.instructions[frame.computation.root]
        positions = root.operands if root.opcode == "tuple" else (frame.computation.root,)
        return tuple(self._value(frame, p, self._level(frame, p)) for p in positions)

    def _level(self, frame: _Frame, position: int) -> tuple[int, ...]:
        """Return which dimensions of the space an op's result has: all, or those of rows."""
        shape = frame.computation.instructions[position].shape
        sizes = shape.dimensions if isinstance(shape, ArrayShape) else (-1,)
        rows = self.rows
        if sizes == rows.space:
            return tuple(range(len(sizes)))
        if sizes == tuple(rows.space[d] for d in rows.kept):
            return rows.kept
        raise NotRows

    def _value(self, frame: _Frame, position: int, labels: tuple[int, ...]) -> int:
        x = frame.computation.instructions[position]
        if x.opcode == "get-tuple-element":
            return frame.known[x.operands[0]][x.attributes.integer("index")]
        if x.opcode == "broadcast":
            inner = tuple(labels[d] for d in x.attributes.integers("dimensions"))
            source = array_shape(frame.computation.instructions[x.operands[0]].shape).dimensions
            if source != tuple(self.rows.space[d] for d in inner):
                raise NotRows
            return self._value(frame, x.operands[0], inner)
        if x.opcode == "constant":
            return self._constant(Scalar(array_shape(x.shape).element_type.name, scalar_text(x)))
        if x.parameter_number >= 0:
            if frame.outer is not None:
                around, fusion = frame.outer
                return self._value(around, fusion.operands[x.parameter_number], labels)
            return self._operand(x.parameter_number, labels)
        number = frame.known[position][0]
        if labels != self._level(frame, position):
            raise NotRows
        return number

    def _constant(self, scalar: Scalar) -> int:
        if scalar not in self.constants:
            self.constants[scalar] = self._add(Op(scalar, scalar.element_type, False))
        return self.constants[scalar]

    def _operand(self, number: int, labels: tuple[int, ...]) -> int:
        leaf: Value = self.context.leaf(number)
        dies = self.context.last_uses[number]
        if isinstance(leaf, Spread):
            inner = tuple(labels[d] for d in leaf.dimensions)
            if leaf.source.shape == tuple(self.rows.space[d] for d in inner):
                leaf, labels = leaf.source, inner
        if isinstance(leaf, Scalar):
            return self._constant(leaf)
        tensor = self.context.builder.tile_tensor(leaf)
        key = (tensor.value, labels)
        if key not in self.operands:
            full = any(d in self.rows.dimensions for d in labels)
            self.operands[key] = self._add(Op(Operand(tensor, labels), tensor.element_type, full))
            self.rows.last_uses[self.operands[key]] = dies
        at = self.operands[key]
        self.rows.last_uses[at] = self.rows.last_uses[at] and dies
        return at

    def _node(self, frame: _Frame, x: Instruction) -> int:
        op = OPS.get(x.opcode)
        if op is None or Trait.ELEMENTWISE not in op.traits:
            raise NotRows
        position = frame.computation.position[x.name]
        level = self._level(frame, position)
        arguments = tuple(self._value(frame, i, level) for i in x.operands)
        kind = array_shape(x.shape).element_type.name
        is_full = level != self.rows.kept
        node = Node(x.opcode, arguments, kind, node_parameters(x))
        if x.opcode == "convert":
            return self._add(Op(node, kind, is_full, x.name))
        if node not in self.nodes:
            self.nodes[node] = self._add(Op(node, kind, is_full, x.name))
        return self.nodes[node]

    def _reduction(self, frame: _Frame, x: Instruction) -> int:
        body = self.context.expression(x.attributes.called[0])
        monoid = monoid_of(body) if len(x.operands) == 2 else None
        dimensions = tuple(sorted(x.attributes.integers("dimensions")))
        if monoid is None or dimensions != self.rows.dimensions:
            raise NotRows
        level = self._level(frame, x.operands[0])
        init = frame.computation.instructions[x.operands[1]]
        if len(level) != len(self.rows.space) or init.opcode != "constant":
            raise NotRows
        kind = array_shape(x.shape).element_type.name
        value = self._value(frame, x.operands[0], level)
        return self._add(Op(Reduction(value, monoid, scalar_text(init)), kind, False, x.name))

    def _add(self, op: Op) -> int:
        if len(self.rows.ops) >= MOST_OPS:
            raise NotRows
        self.rows.ops.append(op)
        return len(self.rows.ops) - 1
