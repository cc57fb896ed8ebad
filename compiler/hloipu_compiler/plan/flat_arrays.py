"""Rewrites an entry that takes or makes tuples to one of arrays.

TensorFlow and PyTorch/XLA print steps that take one tuple; what is cut takes arrays. Numbers of
flattened parameters and results (`entry_arrays`) stay what they are.
"""

from dataclasses import replace

from hloipu_compiler.ir.attributes import NO_ATTRIBUTES, Attributes, Donor, Value
from hloipu_compiler.ir.graph import Computation, Instruction, Module, element_of, with_computation
from hloipu_compiler.ir.shapes import Shape, TupleShape
from hloipu_compiler.plan.entry_arrays import all_leaves

_OF_SHAPES = ("allow_spmd_sharding_propagation_to_parameters",)
_TOKEN = "token"


def with_flat_parameters(module: Module) -> Module:
    """Return the module with an array in place of each leaf of tuples that its entry takes.

    The same one where it takes none, or one that has tokens in it. Elements that are taken out of
    what is put together again are left for `simplify-tuples`.
    """
    entry = module.entry
    parameters = [entry.instructions[position] for position in entry.parameters]
    if not any(isinstance(instruction.shape, TupleShape) for instruction in parameters):
        return module
    if any(
        leaf.element_type.name == _TOKEN for op in parameters for _, leaf in all_leaves(op.shape)
    ):
        return module
    first: list[int] = []
    count = 0
    for instruction in parameters:
        first.append(count)
        count += len(all_leaves(instruction.shape))
    flat_entry = _Flattening(entry, first).written()
    new = with_computation(module, flat_entry)
    return replace(
        new, attributes=_renumbered(new, [instruction.shape for instruction in parameters], first)
    )


def with_flat_results(module: Module) -> Module:
    """Return the module with a root that puts every array of the result together itself.

    The same one where it does. Loops and calls make tuples whole: their elements are taken out.
    """
    entry = module.entry
    names = {instruction.name for instruction in entry.instructions}
    instructions = list(entry.instructions)
    root = _apart(instructions, names, entry.root)
    if root == entry.root and len(instructions) == len(entry.instructions):
        return module
    new = replace(entry, instructions=tuple(instructions), root=root)
    return with_computation(module, new)


class _Flattening:
    """An entry in the making."""

    def __init__(self, entry: Computation, first: list[int]) -> None:
        self.entry = entry
        self.first = first
        self.names = {instruction.name for instruction in entry.instructions}
        self.made: list[Instruction] = []

    def written(self) -> Computation:
        """Return the entry with arrays as parameters, and tuples of these behind them."""
        place: list[int] = []
        for instruction in self.entry.instructions:
            if instruction.parameter_number < 0:
                at = self._add(
                    instruction._replace(operands=tuple(place[i] for i in instruction.operands))
                )
            else:
                number = self.first[instruction.parameter_number]
                at = self._parameters_for(instruction, instruction.shape, number, instruction.name)[
                    0
                ]
            place.append(at)
        return replace(self.entry, instructions=tuple(self.made), root=place[self.entry.root])

    def _add(self, instruction: Instruction) -> int:
        self.made.append(instruction)
        return len(self.made) - 1

    def _parameters_for(
        self, instruction: Instruction, shape: Shape, number: int, name: str
    ) -> tuple[int, int]:
        """Add the parameters that make up a shape; return where it is, and the next number."""
        if not isinstance(shape, TupleShape):
            attributes = instruction.attributes if shape is instruction.shape else NO_ATTRIBUTES
            new = instruction._replace(
                name=name, shape=shape, parameter_number=number, attributes=attributes
            )
            return self._add(new), number + 1
        parts = []
        for index, part in enumerate(shape.elements):
            inner = _fresh(self.names, f"{name}.{index}")
            at, number = self._parameters_for(instruction, part, number, inner)
            parts.append(at)
        tuple_op = Instruction(
            name, "tuple", shape, tuple(parts), NO_ATTRIBUTES, instruction.metadata
        )
        return self._add(tuple_op), number


def _apart(instructions: list[Instruction], names: set[str], position: int) -> int:
    """Return where a value is whose tuples are all put together by the entry's own ops."""
    instruction = instructions[position]
    if not isinstance(instruction.shape, TupleShape):
        return position
    if instruction.opcode == "tuple":
        parts = tuple(_apart(instructions, names, i) for i in instruction.operands)
        if parts == instruction.operands:
            return position
    else:
        parts = tuple(
            _apart(instructions, names, _element(instructions, names, position, index, shape))
            for index, shape in enumerate(instruction.shape.elements)
        )
    name = _fresh(names, instruction.name)
    instructions.append(
        Instruction(name, "tuple", instruction.shape, parts, NO_ATTRIBUTES, instruction.metadata)
    )
    return len(instructions) - 1


def _element(
    instructions: list[Instruction], names: set[str], position: int, index: int, shape: Shape
) -> int:
    source = instructions[position]
    name = _fresh(names, f"{source.name}.{index}")
    instructions.append(element_of(name, position, index, shape, source.metadata))
    return len(instructions) - 1


def _fresh(names: set[str], stem: str) -> str:
    name, number = stem, 0
    while name in names:
        number += 1
        name = f"{stem}.{number}"
    names.add(name)
    return name


def _renumbered(module: Module, shapes: list[Shape], first: list[int]) -> Attributes:
    """Return the header's attributes with places of parameters by their arrays' numbers."""
    numbers = {
        (parameter, index): first[parameter] + n
        for parameter, shape in enumerate(shapes)
        for n, (index, _) in enumerate(all_leaves(shape))
    }
    values: dict[str, Value] = {}
    for key, value in module.attributes.items():
        if key == "input_output_alias":
            value = tuple(
                alias._replace(
                    parameter=numbers[alias.parameter, alias.parameter_index], parameter_index=()
                )
                for alias in module.attributes.aliases()
                if (alias.parameter, alias.parameter_index) in numbers
            )
        elif key == "buffer_donor":
            value = tuple(
                Donor(numbers[donor.parameter, donor.parameter_index], ())
                for donor in module.attributes.donors()
                if (donor.parameter, donor.parameter_index) in numbers
            )
        elif key == "entry_computation_layout":
            value = module.entry.program_shape
        if key not in _OF_SHAPES and value != ():
            values[key] = value
    return Attributes(values, module.attributes.called)
