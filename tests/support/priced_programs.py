"""Programs put together by hand, of vertices whose work is one cycle an element."""

from collections.abc import Sequence as Items
from dataclasses import dataclass
from typing import ClassVar

from hloipu_runtime.codelets.core.codelet import Codelet, Index, Indexing
from hloipu_runtime.codelets.core.tensors import Tensor
from hloipu_runtime.machine.costs import TileWork
from hloipu_runtime.machine.model import Machine
from hloipu_runtime.program.collective import Collective, RemoteCopy
from hloipu_runtime.program.mapping import Mapping, Sizes, Span, Tiles, whole, whole_box
from hloipu_runtime.program.program import Program, Value, Variable
from hloipu_runtime.program.steps import (
    Call,
    ComputeSet,
    Definition,
    Exchange,
    If,
    Operand,
    Parallel,
    Piece,
    Repeat,
    RepeatWhile,
    Sequence,
    Step,
    StreamIn,
    StreamOut,
    Switch,
    Transfer,
    VariableId,
    VertexGroup,
)


@dataclass(frozen=True)
class Toil(Codelet):
    """Takes a cycle for each element of its result, `assumed` of ten of them assumed."""

    name: ClassVar[str] = "toil"
    assumed: int = 0

    def indexing(self, operands: Items[Tensor], results: Items[Tensor]) -> Indexing:
        shape = results[0].shape
        every = tuple(Index(d) for d in range(len(shape)))
        return Indexing(shape, (every,) * len(operands), (every,))

    def work(self, machine: Machine, operands: Items[Tensor], results: Items[Tensor]) -> TileWork:
        return TileWork(results[0].elements, results[0].elements * self.assumed // 10)


def row(extent: int, first: int = 0, stride: int = 1) -> Tiles:
    """Return a row of tiles."""
    return Tiles((extent,), (stride,), first) if extent > 1 else Tiles((), (), first)


def rows(shape: Sizes, tiles: Tiles) -> Mapping:
    """Return the mapping of equal blocks of the first dimension."""
    spans = [whole(size) for size in shape]
    if tiles.count > 1:
        block = -(-shape[0] // tiles.count)
        spans[0] = Span(0, block, 0, block)
    return Mapping(tiles, tuple(spans))


def everywhere(shape: Sizes, tiles: Tiles) -> Mapping:
    """Return the mapping in which each tile has all."""
    return Mapping(tiles, tuple(whole(size) for size in shape))


class Maker:
    """Makes variables and steps, and a program of them."""

    def __init__(self, ipus: int = 1) -> None:
        self.ipus = ipus
        self.variables: list[Variable] = []
        self.functions: dict[str, Sequence] = {}

    def variable(
        self, shape: Sizes, mapping: Mapping, element_type: str = "f32", ipu: int = 0
    ) -> VariableId:
        number = len(self.variables)
        origin = f"v{number}"
        self.variables.append(
            Variable(origin, element_type, shape, mapping, ipu=ipu, origin=origin)
        )
        return number

    def group(
        self, reads: Items[VariableId], writes: VariableId, name: str = "", assumed: int = 0
    ) -> VertexGroup:
        target = self.variables[writes].mapping
        return VertexGroup(
            Toil(assumed),
            target.tiles,
            tuple(Operand(v, self.variables[v].mapping.spans) for v in reads),
            (Operand(writes, target.spans),),
            tuple(reads),
            (writes,),
            name,
        )

    def toil(self, variable: VariableId, name: str = "", assumed: int = 0) -> ComputeSet:
        """Return a compute set of one group that works on a variable."""
        return ComputeSet((self.group((), variable, name, assumed),))

    def transfer(self, source: VariableId, target: VariableId) -> Transfer:
        there = self.variables[target]
        shape = there.shape
        return Transfer(
            source,
            target,
            there.mapping.tiles,
            whole_box(there.mapping.tiles.extents),
            there.mapping.spans,
            whole_box(shape),
            (0,) * len(shape),
            shape,
            source,
        )

    def exchange(self, *ways: tuple[VariableId, VariableId], name: str = "") -> Exchange:
        transfers = tuple(self.transfer(*way) for way in ways)
        definitions = tuple(
            Definition(t.destination, t.value, None, (Piece(t.value, t.view, t.box, t.shift),))
            for t in transfers
        )
        return Exchange(transfers, definitions, name)

    def program(self, *steps: Step) -> Program:
        return Program(
            "by hand",
            "tiny",
            self.ipus,
            tuple(self.variables),
            tuple(Value(v.element_type, v.shape, v.origin) for v in self.variables),
            body=Sequence(steps),
            functions=self.functions,
        )


class Walked:
    """Walks a tree as an engine does, counting blocks by path; `decisions` come from a list."""

    def __init__(self, program: Program, decisions: Items[int] = ()) -> None:
        self.program = program
        self.decisions = list(decisions)
        self.runs: dict[str, int] = {}
        self.leaves: dict[str, int] = {}
        self.block(program.body, "body")

    def block(self, body: Sequence, path: str) -> None:
        self.runs[path] = self.runs.get(path, 0) + 1
        self.sequence(body, path)

    def sequence(self, body: Sequence, path: str) -> None:
        for number, step in enumerate(body.steps):
            self.step(step, f"{path}/{number}")

    def step(self, step: Step, path: str) -> None:
        match step:
            case Sequence():
                self.sequence(step, path)
            case Repeat():
                for _ in range(step.count):
                    self.block(step.body, f"{path}/repeat")
            case RepeatWhile():
                turns = self.decisions.pop(0)
                for _ in range(turns):
                    self.block(step.condition, f"{path}/condition")
                    self.block(step.body, f"{path}/while")
                self.block(step.condition, f"{path}/condition")
            case If() | Switch():
                number = self.decisions.pop(0)
                self.block(step.branches[number], f"{path}?{number}")
            case Parallel():
                for number, branch in enumerate(step.branches):
                    self.block(branch, f"{path}|{number}")
            case Call():
                self.block(self.program.functions[step.function], f"{step.function}()")
            case ComputeSet() | Exchange() | StreamIn() | StreamOut() | Collective() | RemoteCopy():
                self.leaves[path] = self.leaves.get(path, 0) + 1
            case _:
                pass
