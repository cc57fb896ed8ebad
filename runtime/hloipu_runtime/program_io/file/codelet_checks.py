"""Checks of a file's codelets: parameters fit their tensors."""

from collections.abc import Iterator
from typing import NoReturn

from hloipu_runtime.codelets.core.codelet import Codelet, Tensor
from hloipu_runtime.codelets.core.expression_form import Expression
from hloipu_runtime.codelets.ops.elementwise import Elementwise
from hloipu_runtime.errors import HloipuError, UnsupportedError
from hloipu_runtime.machine.model import Machine
from hloipu_runtime.program.program import Program
from hloipu_runtime.program.steps import ComputeSet, Step, VertexGroup, inner_steps
from hloipu_runtime.program_io.file.span_checks import NONSENSE, Refuse
from hloipu_runtime.program_io.file.trying import (
    MOST_ELEMENTS,
    try_expression,
    try_vertex,
    vertex_elements,
    vertex_work,
)


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
        elements = vertex_elements(group)
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
