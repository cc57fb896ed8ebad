"""The codelets of a program from a file: their parameters fit the tensors that they work on."""

from hloipu_runtime.codelets.codelet import Codelet, Tensor
from hloipu_runtime.codelets.expression import Expression, plan_of
from hloipu_runtime.errors import HloipuError
from hloipu_runtime.program.program import Program
from hloipu_runtime.program.steps import VertexGroup
from hloipu_runtime.program_file.groups import groups_of
from hloipu_runtime.program_file.refusal import NONSENSE, Refuse

Operands = tuple[Tensor, ...]


class CodeletChecks:
    """Asks each codelet how its work splits, once for each choice of tensors."""

    def __init__(self, program: Program, refuse: Refuse) -> None:
        self.program = program
        self.refuse = refuse

    def check(self) -> None:
        """Check the codelets of all groups."""
        known: set[tuple[int, Operands, Operands]] = set()
        for place, group in groups_of(self.program):
            operands, results = self._tensors(group)
            key = (id(group.codelet), operands, results)
            if key not in known:
                known.add(key)
                self._codelet(group.codelet, operands, results, place)

    def _tensors(self, group: VertexGroup) -> tuple[Operands, Operands]:
        inputs, outputs = (
            tuple(
                Tensor(record.element_type, record.shape)
                for record in (self.program.variables[x.variable] for x in operands)
            )
            for operands in (group.inputs, group.outputs)
        )
        return inputs, outputs

    def _codelet(self, codelet: Codelet, operands: Operands, results: Operands, place: str) -> None:
        try:
            for expression in _expressions(codelet):
                plan_of(expression)
            indexing = codelet.indexing(operands, results)
        except (*NONSENSE, HloipuError) as error:
            self.refuse(place, f"{codelet.name}: its parameters cannot be: {str(error)[:200]}")
        for sides, tensors in ((indexing.operands, operands), (indexing.results, results)):
            if len(sides) != len(tensors):
                self.refuse(place, f"{codelet.name}: {len(tensors)} tensors for {len(sides)}")
            for indices, tensor in zip(sides, tensors, strict=True):
                if len(indices) != len(tensor.shape):
                    self.refuse(place, f"{codelet.name}: a tensor of another rank")
                if any(index.stride < 1 or index.window < 0 for index in indices):
                    self.refuse(place, f"{codelet.name}: a stride below 1")


def _expressions(codelet: Codelet) -> list[Expression]:
    return [x for x in vars(codelet).values() if isinstance(x, Expression)]
