"""Checks of a file's codelets: parameters fit their tensors, as trying a vertex once shows."""

from collections.abc import Iterator, Sequence
from math import prod
from typing import NoReturn

import numpy as np

from hloipu_runtime.codelets.core.codelet import Codelet
from hloipu_runtime.codelets.core.expression import evaluate
from hloipu_runtime.codelets.core.expression_form import Expression
from hloipu_runtime.codelets.core.tensors import Block, Tensor
from hloipu_runtime.codelets.ops.elementwise import Elementwise
from hloipu_runtime.errors import HloipuError, UnsupportedError
from hloipu_runtime.kernels.core.storage import storage_dtype
from hloipu_runtime.machine.model import Machine
from hloipu_runtime.program.mapping import Box, Sizes
from hloipu_runtime.program.program import Program, Variable
from hloipu_runtime.program.steps import ComputeSet, Operand, Step, VertexGroup, inner_steps
from hloipu_runtime.program_io.file.span_checks import NONSENSE, Refuse


def groups_of(program: Program) -> Iterator[tuple[str, VertexGroup]]:
    """Yield every vertex group with the path of its step."""
    waiting: list[tuple[str, Step]] = [("body", program.body)]
    waiting += [(f"function {name[:80]!r}", body) for name, body in program.functions.items()]
    while waiting:
        place, step = waiting.pop()
        if isinstance(step, ComputeSet):
            yield from ((f"{place} {group.name[:80]}", group) for group in step.groups)
        waiting += [(f"{place}/{n}", inner) for n, inner in enumerate(inner_steps(step))]


Operands = tuple[Tensor, ...]
MOST_TRIED = 2**23
"""Elements of all vertices that are tried: loading is to stay quick."""
_COUNTS = {"elementwise": ("rank",), "scan": ("inputs", "outputs")}
"""Codelet -> parameters that say how long a list is to be made."""
_MOST_COUNTED = 65_536


class CodeletChecks:
    """Asks each codelet how its work splits, once for each choice of tensors."""

    def __init__(self, program: Program, machine: Machine, refuse: Refuse) -> None:
        self.program = program
        self.machine = machine
        self.refuse = refuse
        self._left = MOST_TRIED

    def check(self) -> None:
        """Check the codelets of all groups."""
        known: set[tuple[int, Operands, Operands]] = set()
        tried: set[tuple[object, ...]] = set()
        for place, group in groups_of(self.program):
            operands, results = self._tensors(group)
            key = (id(group.codelet), operands, results)
            if key not in known:
                known.add(key)
                self._codelet(group.codelet, operands, results, place)
            parts = tuple(operand.spans for operand in (*group.inputs, *group.outputs))
            if (key, parts) not in tried:
                tried.add((key, parts))
                self._try(group, place)

    def _try(self, group: VertexGroup, place: str) -> None:
        """Ask for the cost of a vertex, and run it if it is small, on zeros and on ones."""
        elements = sum(
            prod(span.size for span in operand.spans) for operand in (*group.inputs, *group.outputs)
        )
        is_run = elements <= min(MOST_ELEMENTS, self._left)
        try:
            vertex_work(group, self.program.variables, self.machine)
            for number in (0, 1) if is_run else ():
                self._left -= elements
                try_vertex(group, self.program.variables, number)
        except UnsupportedError:
            return  # right, but not here: without scipy, say; whoever runs it is told
        except (*NONSENSE, MemoryError, HloipuError) as error:
            self._nonsense(group.codelet, place, error)

    def _nonsense(self, codelet: Codelet, place: str, error: Exception) -> NoReturn:
        self.refuse(place, f"{codelet.name}: its parameters cannot be: {str(error)[:200]}")

    def _tensors(self, group: VertexGroup) -> tuple[Operands, Operands]:
        inputs, outputs = (
            tuple(
                Tensor(record.element_type, record.shape)
                for record in (self.program.variables[operand.variable] for operand in operands)
            )
            for operands in (group.inputs, group.outputs)
        )
        return inputs, outputs

    def _codelet(self, codelet: Codelet, operands: Operands, results: Operands, place: str) -> None:
        for name in _COUNTS.get(codelet.name, ()):
            if not 0 <= getattr(codelet, name) <= _MOST_COUNTED:
                self.refuse(place, f"{codelet.name}: {name} is {getattr(codelet, name)}")
        try:
            for expression in _expressions(codelet):
                try_expression(expression)
            indexing = codelet.indexing(operands, results)
        except (*NONSENSE, MemoryError, HloipuError) as error:
            self._nonsense(codelet, place, error)
        self._types(codelet, operands, results, place)
        for sides, tensors in ((indexing.operands, operands), (indexing.results, results)):
            if len(sides) != len(tensors):
                self.refuse(place, f"{codelet.name}: {len(tensors)} tensors for {len(sides)}")
            for indices, tensor in zip(sides, tensors, strict=True):
                if len(indices) != len(tensor.shape):
                    self.refuse(place, f"{codelet.name}: a tensor of another rank")
                if any(index.stride < 1 or index.window < 0 for index in indices):
                    self.refuse(place, f"{codelet.name}: a stride below 1")

    def _types(self, codelet: Codelet, operands: Operands, results: Operands, place: str) -> None:
        if not isinstance(codelet, Elementwise):
            return
        expression = codelet.expression
        for types, tensors in (
            (expression.operand_types, operands),
            (expression.result_types, results),
        ):
            if types != tuple(tensor.element_type for tensor in tensors):
                self.refuse(place, "an expression on values of other types")


def _expressions(codelet: Codelet) -> list[Expression]:
    return [value for value in vars(codelet).values() if isinstance(value, Expression)]


MOST_ELEMENTS = 2**17
"""Of all operands and results of a vertex that is tried."""


def try_expression(expression: Expression) -> None:
    """Compute an expression once on single elements; raises ValueError where its types are wrong.

    Ops are chosen by name and types together, and no table says which go together: they are tried.
    """
    with np.errstate(all="ignore"):
        results = evaluate(
            expression, [np.ones(1, storage_dtype(kind)) for kind in expression.operand_types]
        )
    for array, kind in zip(results, expression.result_types, strict=True):
        if array.dtype != storage_dtype(kind):
            raise ValueError(f"an expression gives {array.dtype} where it says {kind}")


def vertex_work(group: VertexGroup, variables: Sequence[Variable], machine: Machine) -> None:
    """Ask for the cost of the vertex on a group's first tile; what it raises comes through."""
    operands, results = (
        [
            Tensor(
                variables[operand.variable].element_type,
                _part(operand, variables[operand.variable]),
            )
            for operand in side
        ]
        for side in (group.inputs, group.outputs)
    )
    group.codelet.work(machine, operands, results)
    group.codelet.state_bytes(machine, len(operands), len(results))
    group.codelet.table_bytes(machine, operands, results)
    group.codelet.room_bytes(machine, operands, results)


def try_vertex(group: VertexGroup, variables: Sequence[Variable], number: int) -> None:
    """Run the vertex on a group's first tile, on one number; ValueError for a wrong result.

    Whatever its codelet raises for parameters that fit neither each other nor the operands comes
    through.
    """
    inputs = [_block(operand, variables[operand.variable], number) for operand in group.inputs]
    outputs = [_block(operand, variables[operand.variable], 0) for operand in group.outputs]
    if any(0 in block.part for block in outputs):
        return
    results = _run(group.codelet, inputs, outputs)
    if len(results) != len(outputs):
        raise ValueError(f"it gives {len(results)} results, not {len(outputs)}")
    for (shape, dtype), block in zip(results, outputs, strict=True):
        if shape != block.part or dtype != block.data.dtype:
            raise ValueError(f"a result is {dtype}{list(shape)}, its place {list(block.part)}")


def _run(
    codelet: Codelet, inputs: list[Block], outputs: list[Block]
) -> list[tuple[Sizes, "np.dtype[np.generic]"]]:
    with np.errstate(all="ignore"):
        return [(array.shape, array.dtype) for array in codelet.run(inputs, outputs)]


def _part(operand: Operand, variable: Variable) -> Sizes:
    return tuple(high - low for low, high in _ranges(operand, variable))


def _ranges(operand: Operand, variable: Variable) -> Box:
    """Return which elements of an operand the first tile of its grid has."""
    ranges = []
    for span, size in zip(operand.spans, variable.shape, strict=True):
        low = min(max(span.offset, 0), size)
        ranges.append((low, max(low, min(span.offset + span.size, size))))
    return tuple(ranges)


def _block(operand: Operand, variable: Variable, number: int) -> Block:
    part = _part(operand, variable)
    starts = tuple(low for low, _ in _ranges(operand, variable))
    array = np.full(part, number, storage_dtype(variable.element_type))
    return Block(array, (), part, starts, variable.shape)
