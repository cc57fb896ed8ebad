"""A small writer of programs for tests: numbers variables and values, and appends steps."""

from collections.abc import Iterator
from collections.abc import Sequence as SequenceOf
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import prod

import numpy as np

from hloipu_runtime.codelets.core.expression import Expression, Node
from hloipu_runtime.codelets.core.tensors import Tensor
from hloipu_runtime.codelets.ops.elementwise import Elementwise
from hloipu_runtime.codelets.ops.move import Copy
from hloipu_runtime.kernels.core.storage import storage_dtype
from hloipu_runtime.program.law import required_spans
from hloipu_runtime.program.mapping import Box, Mapping, Sizes, Span, Tiles, whole, whole_box
from hloipu_runtime.program.program import Program, Role, Value, Variable
from hloipu_runtime.program.steps import (
    ComputeSet,
    Definition,
    Exchange,
    Operand,
    Piece,
    Sequence,
    Step,
    StreamIn,
    StreamOut,
    Transfer,
    VertexGroup,
)
from tests.support.barriers import with_barriers

Held = dict[int, int]
"""What each variable holds: variable -> value."""


def rows(parts: int, size: int, rank: int = 1, *, first: int = 0, copies: int = 1) -> Mapping:
    """Return a mapping that splits dimension 0 into blocks of rows, the rest whole.

    `size` is a block's; `copies` tiles next to each other hold each block.
    """
    axes = [(parts, copies)] * (parts > 1) + [(copies, 1)] * (copies > 1)
    tiles = Tiles(tuple(n for n, _ in axes), tuple(s for _, s in axes), first)
    span = Span(0, size, 0, size) if parts > 1 else whole(size)
    return Mapping(tiles, (span,) * (rank > 0))


def blocks(shape: Sizes, parts: Sizes, first: int = 0) -> Mapping:
    """Return a mapping that splits each dimension into so many parts; tiles in row-major order."""
    extents = tuple(n for n in parts if n > 1)
    strides = tuple(prod(extents[k + 1 :]) for k in range(len(extents)))
    spans, axis = [], 0
    for size, count in zip(shape, parts, strict=True):
        if count > 1:
            block = -(-size // count)
            spans.append(Span(axis, block, 0, block))
            axis += 1
        else:
            spans.append(whole(size))
    return Mapping(Tiles(extents, strides, first), tuple(spans))


@dataclass
class ProgramBuilder:
    """Numbers variables and values and appends steps; `held` follows what variables hold."""

    ipus: int = 1
    variables: list[Variable] = field(default_factory=list)
    values: list[Value] = field(default_factory=list)
    constants: dict[int, tuple[int, np.ndarray]] = field(default_factory=dict)
    functions: dict[str, Sequence] = field(default_factory=dict)
    held: Held = field(default_factory=dict)
    blocks: list[list[Step]] = field(default_factory=lambda: [[]])

    def variable(
        self,
        shape: Sizes,
        mapping: Mapping,
        *,
        kind: str = "f32",
        role: Role = Role.TEMPORARY,
        ipu: int = 0,
    ) -> int:
        number = len(self.variables)
        name = f"v{number}"
        self.variables.append(Variable(name, kind, shape, mapping, role, ipu, f"x{number}"))
        return number

    def value_like(self, variable: int) -> int:
        x = self.variables[variable]
        self.values.append(Value(x.element_type, x.shape))
        return len(self.values) - 1

    def constant(self, shape: Sizes, mapping: Mapping, ipu: int = 0) -> int:
        variable = self.variable(shape, mapping, role=Role.CONSTANT, ipu=ipu)
        value = self.value_like(variable)
        self.constants[variable] = (value, np.zeros(shape, storage_dtype("f32")))
        self.held[variable] = value
        return variable

    def emit(self, step: Step) -> None:
        self.blocks[-1].append(step)

    @contextmanager
    def block(self) -> Iterator[list[Step]]:
        """Collect the steps of an inner sequence."""
        self.blocks.append([])
        try:
            yield self.blocks[-1]
        finally:
            self.blocks.pop()

    def stream_in(self, variable: int) -> int:
        record = self.variables[variable]
        if record.role is Role.TEMPORARY:
            self.variables[variable] = replace(record, role=Role.PARAMETER)
        value = self.held[variable] = self.value_like(variable)
        self.emit(StreamIn(f"in{variable}", variable, value))
        return variable

    def stream_out(self, variable: int) -> None:
        self.emit(StreamOut(f"out{variable}", variable, self.held[variable]))

    def add(self, inputs: SequenceOf[int], target: int) -> int:
        """Compute the sum of variables of one shape and mapping, or a copy of one."""
        x = self.variables[target]
        kinds = tuple(self.variables[v].element_type for v in inputs)
        if len(inputs) == 1:
            codelet: Copy | Elementwise = Copy()
        else:
            node = Node("add", (0, 1), kinds[0])
            axes = tuple(range(len(x.shape)))
            codelet = Elementwise(Expression(kinds, (node,), (2,)), (axes, axes), len(axes))
        tensors = [Tensor(x.element_type, x.shape)] * len(inputs)
        result = Tensor(x.element_type, x.shape)
        needed = required_spans(
            codelet.indexing(tensors, [result]),
            [x.mapping.spans],
            [x.shape],
            [x.shape] * len(inputs),
        )
        assert not isinstance(needed, str), needed
        reads = tuple(self.held[v] for v in inputs)
        value = self.held[target] = self.value_like(target)
        group = VertexGroup(
            codelet,
            x.mapping.tiles,
            tuple(Operand(v, spans) for v, spans in zip(inputs, needed, strict=True)),
            (Operand(target, x.mapping.spans),),
            reads,
            (value,),
            f"add{value}",
        )
        self.emit(ComputeSet((group,)))
        return target

    def copy(self, source: int, target: int) -> int:
        """Bring a whole variable to another of its shape."""
        shape = self.variables[target].shape
        return self._move([(source, whole_box(shape))], target, None, self.held[source])

    def place(self, pieces: SequenceOf[tuple[int, Box]], target: int, *, keep: bool) -> int:
        """Copy boxes of other variables of the same shape; `keep` what the target has elsewhere."""
        base = self.held[target] if keep else None
        return self._move(pieces, target, base, self.value_like(target))

    def _move(
        self, pieces: SequenceOf[tuple[int, Box]], target: int, base: int | None, value: int
    ) -> int:
        x = self.variables[target]
        zeros = (0,) * len(x.shape)
        grid = x.mapping.tiles
        transfers = tuple(
            Transfer(
                source,
                target,
                grid,
                whole_box(grid.extents),
                x.mapping.spans,
                box,
                zeros,
                self.variables[source].shape,
                self.held[source],
            )
            for source, box in pieces
        )
        made = tuple(
            Piece(self.held[source], self.variables[source].shape, box, zeros)
            for source, box in pieces
        )
        self.emit(Exchange(transfers, (Definition(target, value, base, made),), f"move{value}"))
        self.held[target] = value
        return target

    def program(self, *, synced: bool = True) -> Program:
        """Return the program; `synced`: with the syncs that it needs, beside those written."""
        made = Program(
            "drawn",
            "tiny",
            self.ipus,
            tuple(self.variables),
            tuple(self.values),
            self.constants,
            Sequence(tuple(self.blocks[0])),
            self.functions,
        )
        return with_barriers(made) if synced else made
