"""Inline a text's entry in place of instructions."""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace

from hloipu_compiler.analysis.call_graph import callees_first
from hloipu_compiler.formulas.call import Array, FormulaError, arrays_of
from hloipu_compiler.hlo.parse import parse
from hloipu_compiler.ir.attributes import Attributes, Raw
from hloipu_compiler.ir.graph import Computation, Instruction, Module, element_of
from hloipu_compiler.ir.shapes import ArrayShape, TupleShape
from hloipu_compiler.passes.framework.attribute_edits import renamed, without
from hloipu_compiler.passes.framework.names import Names
from hloipu_compiler.passes.framework.rewriting import Rewriting
from hloipu_compiler.source import Source

_INHERITED = ("frontend_attributes", "sharding")
_MAXIMAL = re.compile(r"maximal\s+device=-?[0-9]+")

OperandArrays = tuple[tuple[Array, ...], ...]
"""The arrays of each operand, tuples flattened."""
Choose = Callable[[Instruction], str]
"""The target of an instruction to replace; empty: it stays."""
Write = Callable[[Instruction, str, OperandArrays], Source]
"""The text whose entry takes the arrays of an instruction's operands and gives its results."""


def inlined(module: Module, choose: Choose, write: Write) -> Module:
    """Return a module with some instructions replaced; the same, where there are none."""
    reached = {c.name for c in callees_first(module, only_reachable=True)}
    wanted = [
        c.name
        for c in module.computations
        if c.name in reached and any(choose(instruction) for instruction in c.instructions)
    ]
    if not wanted:
        return module
    writer = _Inlining(module, choose, write)
    replaced_by_name = {name: writer.replaced(module.computation[name]) for name in wanted}
    computations = [replaced_by_name.get(c.name, c) for c in module.computations]
    entry = module.entry.name
    all_computations = (*writer.callees, *computations)
    position = next(n for n, c in enumerate(all_computations) if c.name == entry)
    return replace(module, computations=all_computations, entry_position=position)


class _Inlining:
    """Puts ops in the place of instructions; equal texts are read once."""

    def __init__(self, module: Module, choose: Choose, write: Write) -> None:
        self.module, self.choose, self.write = module, choose, write
        self.names = Names(c.name for c in module.computations)
        self.callees: list[Computation] = []
        self.parsed: dict[str, Computation] = {}
        self.known: dict[tuple[object, ...], Computation] = {}

    def replaced(self, old: Computation) -> Computation:
        draft = Rewriting(old)
        for instruction in old.instructions:
            target = self.choose(instruction)
            if target:
                draft.place.append(self._replaced(instruction, target, draft))
            else:
                draft.keep(instruction)
        return draft.finish()

    def _replaced(self, instruction: Instruction, target: str, draft: Rewriting) -> int:
        """Append the ops of a custom call; return where its result is."""
        operands = draft.moved(instruction).operands
        arrays = tuple(arrays_of(draft.shape(at)) for at in operands)
        entry = self._formula(instruction, target, arrays)
        inherited = _inherited(instruction)
        leaves = self._leaves(instruction, operands, inherited, draft)
        place: dict[int, int] = {}
        results = entry.instructions[entry.root].operands
        last = (
            results[-1]
            if len(results) == 1 and not isinstance(instruction.shape, TupleShape)
            else -1
        )
        for at, inner in enumerate(entry.instructions):
            if inner.parameter_number >= 0:
                place[at] = leaves[inner.parameter_number]
            elif at != entry.root:
                inner_operands = tuple(place[i] for i in inner.operands)
                if at == last:
                    name, marks = instruction.name, _marks(instruction)
                else:
                    name = draft.fresh_name(f"{instruction.name}.{inner.opcode}")
                    marks = inherited
                adopted = _adopted(inner, name, instruction, inner_operands, marks)
                place[at] = draft.append(adopted)
        operands_of_tuple = tuple(place[i] for i in results)
        if not isinstance(instruction.shape, TupleShape):
            return operands_of_tuple[0]
        return draft.append(
            instruction._replace(
                opcode="tuple", operands=operands_of_tuple, attributes=_marks(instruction),
                backend_config="",
            )
        )  # fmt: skip

    def _leaves(
        self,
        instruction: Instruction,
        operands: Sequence[int],
        inherited: Attributes,
        draft: Rewriting,
    ) -> list[int]:
        """Return the arrays that are operands, tuples taken apart."""
        leaves: list[int] = []
        for at in operands:
            shape = draft.shape(at)
            if not isinstance(shape, TupleShape):
                leaves.append(at)
                continue
            for index, part in enumerate(shape.elements):
                if not isinstance(part, ArrayShape):
                    raise FormulaError(
                        "E0531", f"custom call {instruction.name!r} takes a tuple of tuples",
                        hint="give it arrays", module=self.module, instruction=instruction,
                    )  # fmt: skip
                name = draft.fresh_name(f"{instruction.name}.operand")
                attributes = Attributes({"index": index, **inherited})
                element = element_of(name, at, index, part, instruction.metadata)
                leaves.append(
                    draft.append(
                        element._replace(
                            attributes=attributes, start=instruction.start, end=instruction.end
                        )
                    )
                )
        return leaves

    def _formula(
        self, instruction: Instruction, target: str, operand_arrays: OperandArrays
    ) -> Computation:
        """Return the ops of an instruction, made once for all that are alike."""
        key = (
            target,
            operand_arrays,
            arrays_of(instruction.shape),
            instruction.attributes,
            instruction.backend_config,
        )
        entry = self.known.get(key)
        if entry is None:
            entry = self.known[key] = self._parsed(self.write(instruction, target, operand_arrays))
        return entry

    def _parsed(self, source: Source) -> Computation:
        """Return the entry of a text; what it calls is among the callees."""
        entry = self.parsed.get(source.text)
        if entry is None:
            module = parse(source).without_places()
            names = {
                c.name: self.names.fresh(c.name) for c in module.computations
                if c.name != module.entry.name
            }  # fmt: skip
            for computation in module.computations:
                computation = _renamed(computation, names)
                if computation.name == module.entry.name:
                    entry = computation
                else:
                    self.callees.append(replace(computation, name=names[computation.name]))
            if entry is None:
                raise TypeError("a text without entry")
            entry = self.parsed[source.text] = _with_tuple(entry)
        return entry


def _marks(instruction: Instruction) -> Attributes:
    """Return what the result in the place of a custom call takes over: marks, and its sharding."""
    attributes = instruction.attributes
    return Attributes({k: attributes[k] for k in _INHERITED if k in attributes})


def _inherited(instruction: Instruction) -> Attributes:
    """Return what all ops in the place of a custom call take over: marks, and its one device."""
    marks = _marks(instruction)
    devices = set(_MAXIMAL.findall(marks.text("sharding")))
    if len(devices) == 1:
        return marks.replaced(sharding=Raw(f"{{{devices.pop()}}}"))
    return without(marks, ("sharding",))


def _renamed(computation: Computation, names: dict[str, str]) -> Computation:
    instructions = tuple(
        op._replace(attributes=renamed(op.attributes, names)) if op.attributes.called else op
        for op in computation.instructions
    )
    return replace(computation, instructions=instructions)


def _adopted(
    inner: Instruction,
    name: str,
    instruction: Instruction,
    operands: tuple[int, ...],
    marks: Attributes,
) -> Instruction:
    """Return an op of a formula in the place of the custom call."""
    attributes = Attributes({**inner.attributes, **marks}, inner.attributes.called)
    return inner._replace(
        name=name, operands=operands, attributes=attributes, metadata=instruction.metadata,
        start=instruction.start, end=instruction.end,
    )  # fmt: skip


def _with_tuple(entry: Computation) -> Computation:
    root = entry.instructions[entry.root]
    if root.opcode == "tuple":
        return entry
    names = Names(instruction.name for instruction in entry.instructions)
    instructions = list(entry.instructions)
    results = [entry.root]
    if isinstance(root.shape, TupleShape):
        results = []
        for index, part in enumerate(root.shape.elements):
            results.append(len(instructions))
            name = names.fresh(f"{root.name}.result")
            instructions.append(element_of(name, entry.root, index, part))
    shape = TupleShape(tuple(instructions[at].shape for at in results))
    instructions.append(
        Instruction(names.fresh("results"), "tuple", shape, tuple(results), Attributes({}))
    )
    return replace(entry, instructions=tuple(instructions), root=len(instructions) - 1)
