"""Replaces instructions by the ops of a text's entry."""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace

from hloipu_compiler.analysis.call_graph import callees_first
from hloipu_compiler.formulas.call import Array, arrays_of
from hloipu_compiler.formulas.errors import FormulaError
from hloipu_compiler.hlo.parse import parse
from hloipu_compiler.ir.attributes import Attributes, Raw
from hloipu_compiler.ir.graph import Computation, Instruction, Module
from hloipu_compiler.ir.shapes import ArrayShape, TupleShape
from hloipu_compiler.passes.framework.attribute_edits import renamed
from hloipu_compiler.passes.framework.names import Names
from hloipu_compiler.source import Source

_INHERITED = ("frontend_attributes", "sharding")
_MAXIMAL = re.compile(r"maximal\s+device=-?[0-9]+")

Given = tuple[tuple[Array, ...], ...]
"""The arrays of each operand, tuples flattened."""
Choose = Callable[[Instruction], str]
"""The target of an instruction to replace; empty: it stays."""
Write = Callable[[Instruction, str, Given], Source]
"""The text whose entry takes the arrays of an instruction's operands and gives its results."""


def inlined(module: Module, choose: Choose, write: Write) -> Module:
    """Return a module with some instructions replaced; the same, where there are none."""
    reached = {c.name for c in callees_first(module, only_reachable=True)}
    wanted = [
        c.name
        for c in module.computations
        if c.name in reached and any(choose(x) for x in c.instructions)
    ]
    if not wanted:
        return module
    writer = _Inlining(module, choose, write)
    found = {name: writer.replaced(module.computation[name]) for name in wanted}
    computations = [found.get(c.name, c) for c in module.computations]
    entry = module.entry.name
    whole = (*writer.callees, *computations)
    position = next(n for n, c in enumerate(whole) if c.name == entry)
    return replace(module, computations=whole, entry_position=position)


class _Inlining:
    """Puts ops in the place of instructions; equal texts are read once."""

    def __init__(self, module: Module, choose: Choose, write: Write) -> None:
        self.module, self.choose, self.write = module, choose, write
        self.names = Names(c.name for c in module.computations)
        self.callees: list[Computation] = []
        self.parsed: dict[str, Computation] = {}
        self.known: dict[tuple[object, ...], Computation] = {}

    def replaced(self, old: Computation) -> Computation:
        """Return a computation without the instructions that are replaced."""
        names = Names(x.name for x in old.instructions)
        made: list[Instruction] = []
        place: list[int] = []
        for x in old.instructions:
            operands = tuple(place[i] for i in x.operands)
            target = self.choose(x)
            if target:
                place.append(self._replaced(x, target, made, operands, names))
            else:
                place.append(len(made))
                made.append(x._replace(operands=operands))
        return replace(old, instructions=tuple(made), root=place[old.root])

    def _replaced(
        self, x: Instruction, target: str, made: list[Instruction], operands: Sequence[int],
        names: Names,
    ) -> int:  # fmt: skip
        """Append the ops of a custom call; return where its result is."""
        entry = self._formula(x, target, tuple(arrays_of(made[at].shape) for at in operands))
        said = _inherited(x)
        leaves = self._leaves(x, made, operands, said, names)
        place: dict[int, int] = {}
        results = entry.instructions[entry.root].operands
        last = results[-1] if len(results) == 1 and not isinstance(x.shape, TupleShape) else -1
        for at, inner in enumerate(entry.instructions):
            if inner.parameter_number >= 0:
                place[at] = leaves[inner.parameter_number]
            elif at != entry.root:
                place[at] = len(made)
                name = x.name if at == last else names.fresh(f"{x.name}.{inner.opcode}")
                made.append(_taken(inner, name, x, tuple(place[i] for i in inner.operands), said))
        found = tuple(place[i] for i in results)
        if not isinstance(x.shape, TupleShape):
            return found[0]
        kept = Attributes({k: x.attributes[k] for k in _INHERITED if k in x.attributes})
        made.append(x._replace(opcode="tuple", operands=found, attributes=kept, backend_config=""))
        return len(made) - 1

    def _leaves(
        self, x: Instruction, made: list[Instruction], operands: Sequence[int], said: Attributes,
        names: Names,
    ) -> list[int]:  # fmt: skip
        """Return the arrays that are operands, tuples taken apart."""
        found: list[int] = []
        for at in operands:
            shape = made[at].shape
            if not isinstance(shape, TupleShape):
                found.append(at)
                continue
            for index, part in enumerate(shape.elements):
                if not isinstance(part, ArrayShape):
                    raise FormulaError(
                        "E0531", f"custom call {x.name!r} takes a tuple of tuples",
                        hint="give it arrays", module=self.module, x=x,
                    )  # fmt: skip
                name = names.fresh(f"{x.name}.operand")
                attributes = Attributes({"index": index, **said})
                made.append(
                    Instruction(name, "get-tuple-element", part, (at,), attributes, x.metadata,
                                start=x.start, end=x.end)
                )  # fmt: skip
                found.append(len(made) - 1)
        return found

    def _formula(self, x: Instruction, target: str, given: Given) -> Computation:
        """Return the ops of an instruction, made once for all that are alike."""
        key = (target, given, arrays_of(x.shape), x.attributes, x.backend_config)
        found = self.known.get(key)
        if found is None:
            found = self.known[key] = self._parsed(self.write(x, target, given))
        return found

    def _parsed(self, source: Source) -> Computation:
        """Return the entry of a text; what it calls is among the callees."""
        found = self.parsed.get(source.text)
        if found is None:
            module = parse(source).without_places()
            names = {
                c.name: self.names.fresh(c.name) for c in module.computations
                if c.name != module.entry.name
            }  # fmt: skip
            for computation in module.computations:
                computation = _renamed(computation, names)
                if computation.name == module.entry.name:
                    found = computation
                else:
                    self.callees.append(replace(computation, name=names[computation.name]))
            if found is None:
                raise TypeError("a text without entry")
            found = self.parsed[source.text] = _with_tuple(found)
        return found


def _inherited(x: Instruction) -> Attributes:
    """Return what the ops in the place of a custom call take over: marks, and its one device."""
    found = {k: x.attributes[k] for k in _INHERITED if k in x.attributes}
    text = x.attributes.text("sharding")
    if text.startswith("{{"):
        devices = set(_MAXIMAL.findall(text))
        found.pop("sharding")
        if len(devices) == 1:
            found["sharding"] = Raw(f"{{{devices.pop()}}}")
    return Attributes(found)


def _renamed(computation: Computation, names: dict[str, str]) -> Computation:
    instructions = tuple(
        x._replace(attributes=renamed(x.attributes, names)) if x.attributes.called else x
        for x in computation.instructions
    )
    return replace(computation, instructions=instructions)


def _taken(
    inner: Instruction, name: str, x: Instruction, operands: tuple[int, ...], said: Attributes
) -> Instruction:
    """Return an op of a formula in the place of the custom call."""
    attributes = Attributes({**inner.attributes, **said}, inner.attributes.called)
    return inner._replace(
        name=name, operands=operands, attributes=attributes, metadata=x.metadata,
        start=x.start, end=x.end,
    )  # fmt: skip


def _with_tuple(entry: Computation) -> Computation:
    """Return a computation whose root is a tuple of its results."""
    root = entry.instructions[entry.root]
    if root.opcode == "tuple":
        return entry
    names = Names(x.name for x in entry.instructions)
    made = list(entry.instructions)
    found = [entry.root]
    if isinstance(root.shape, TupleShape):
        found = []
        for index, part in enumerate(root.shape.elements):
            attributes = Attributes({"index": index})
            name = names.fresh(f"{root.name}.result")
            made.append(Instruction(name, "get-tuple-element", part, (entry.root,), attributes))
            found.append(len(made) - 1)
    shape = TupleShape(tuple(made[at].shape for at in found))
    made.append(Instruction(names.fresh("results"), "tuple", shape, tuple(found), Attributes({})))
    return replace(entry, instructions=tuple(made), root=len(made) - 1)
