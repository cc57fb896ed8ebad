"""Widens a module to f64 and c128, for values before rounding."""

import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from hloipu_compiler.interpret.planning.constants import constant_leaves
from hloipu_compiler.interpret.planning.plan import Array
from hloipu_compiler.ir.annotations import is_border, is_identity
from hloipu_compiler.ir.attributes import NO_ATTRIBUTES, Attributes, Value
from hloipu_compiler.ir.graph import Computation, Instruction, Module
from hloipu_compiler.ir.literals import Literal
from hloipu_compiler.ir.shapes import ArrayShape, BufferShape, Shape, TupleShape
from hloipu_runtime.element_types import C128, F64, ElementType

_OWN_WIDTH = frozenset(
    {"bitcast-convert", "custom-call", "rng-bit-generator", "rng", "stochastic-convert"}
)
"""Ops that see the width of a float, or whose code is not ours to widen."""

_LAPACK = re.compile(r"lapack_([sc])(\w+_ffi)")
_DOUBLE_PRECISION = {"s": "d", "c": "z"}
_ENTRY_SHAPES = "entry_computation_layout"


def widened(module: Module) -> Module:
    """Return the module with every float f64 and every complex c128.

    Constants keep the values that their own type rounds them to. Ops that look at the bits of
    floats, and foreign code, keep their types, with conversions around them.
    """
    computations = tuple(map(_widened_computation, module.computations))
    return with_computations(module, computations, module.entry_position)


def with_computations(
    module: Module, computations: tuple[Computation, ...], entry_position: int
) -> Module:
    """Return a module of other computations, without the header's copy of the entry's shapes."""
    header = Attributes({k: v for k, v in module.attributes.items() if k != _ENTRY_SHAPES})
    return replace(
        module, computations=computations, attributes=header, entry_position=entry_position
    )


def widened_argument(array: Array) -> Array:
    """Return an argument of the module in the type its parameter has in the widened one."""
    if array.dtype.kind == "c":
        return array.astype(np.complex128)
    if array.dtype.kind in "biu" or "int" in array.dtype.name:
        return array
    return array.astype(np.float64)


def widened_arguments(arguments: Sequence[Array]) -> list[Array]:
    """Widen a flat list of arguments."""
    return [widened_argument(np.asarray(x)) for x in arguments]


def wide_shape(shape: Shape) -> Shape:
    """Return a shape with f64 for every float and c128 for every complex."""
    if isinstance(shape, TupleShape):
        return TupleShape(tuple(map(wide_shape, shape.elements)))
    if isinstance(shape, BufferShape):
        return shape
    return ArrayShape(_wide_type(shape.element_type), shape.dimensions, shape.layout, shape.dynamic)


def _wide_type(element: ElementType) -> ElementType:
    if element.is_float:
        return F64
    return C128 if element.is_complex else element


class WideWriter:
    """A computation in the making, in wide types."""

    def __init__(self, old: Computation) -> None:
        self.old = old
        self.made: list[Instruction] = []
        self._names = {instruction.name for instruction in old.instructions}

    def add(
        self,
        name: str,
        opcode: str,
        shape: Shape,
        operands: Sequence[int] = (),
        **attributes: Value,
    ) -> int:
        """Append an instruction of a name like `name`, in whose attributes `_` stands for `-`."""
        fresh, number = name, 0
        while fresh in self._names:
            number += 1
            fresh = f"{name}.w{number}"
        self._names.add(fresh)
        stored_attributes = Attributes(attributes) if attributes else NO_ATTRIBUTES
        self.made.append(Instruction(fresh, opcode, shape, tuple(operands), stored_attributes))
        return len(self.made) - 1

    def constant(self, name: str, value: float) -> int:
        """Append a scalar of f64."""
        at = self.add(name, "constant", ArrayShape(F64))
        self.made[at] = self.made[at]._replace(literal=Literal(array=np.array(value, np.float64)))
        return at

    def element(self, name: str, at: int, number: int) -> int:
        """Append what takes one element out of a tuple."""
        shape = self.made[at].shape
        if not isinstance(shape, TupleShape):
            raise TypeError(f"{name}: {shape} is not a tuple")
        return self.add(name, "get-tuple-element", shape.elements[number], (at,), index=number)

    def widen(self, instruction: Instruction, operands: Sequence[int]) -> int:
        """Append an instruction of the old computation in its wide form; return its position.

        `operands` are positions of the wide forms of what it reads.
        """
        shape = wide_shape(instruction.shape)
        wide = instruction._replace(shape=shape, operands=tuple(operands))
        before = [self.old.instructions[i].shape for i in instruction.operands]
        if shape == instruction.shape and all(wide_shape(s) == s for s in before):
            return self._append(wide)
        if instruction.opcode == "constant" and isinstance(shape, ArrayShape):
            (value,) = constant_leaves(instruction)
            storage = shape.element_type.storage
            return self._append(wide._replace(literal=Literal(array=value.astype(storage))))
        if instruction.opcode == "custom-call" and (
            double := _double_precision(instruction.attributes)
        ):
            return self._append(wide._replace(attributes=double))
        if not _keeps_types(instruction, before):
            return self._append(wide)
        narrow = [
            self._converted(instruction.name, at, s) for at, s in zip(operands, before, strict=True)
        ]
        at = self._append(instruction._replace(operands=tuple(narrow)))
        return self._converted(instruction.name, at, shape)

    def _append(self, instruction: Instruction) -> int:
        self.made.append(instruction)
        return len(self.made) - 1

    def _converted(self, name: str, at: int, wanted: Shape) -> int:
        """Append what converts a value, leaf by leaf, to the element types of another shape."""
        shape = self.made[at].shape
        if shape == wanted:
            return at
        if not isinstance(wanted, TupleShape):
            return self.add(name, "convert", wanted, (at,))
        parts = [
            self._converted(name, self.element(name, at, number), part)
            for number, part in enumerate(wanted.elements)
        ]
        return self.add(name, "tuple", wanted, parts)


def _keeps_types(instruction: Instruction, operand_shapes: Sequence[Shape]) -> bool:
    if instruction.opcode == "bitcast":  # a move, unless it changes the type
        source = operand_shapes[0]
        return (
            isinstance(instruction.shape, ArrayShape)
            and isinstance(source, ArrayShape)
            and source.element_type is not instruction.shape.element_type
        )
    return (
        instruction.opcode in _OWN_WIDTH
        and not is_identity(instruction)
        and not is_border(instruction)
    )


def _double_precision(attributes: Attributes) -> Attributes | None:
    """Return the attributes of the same LAPACK routine for doubles, if one is called."""
    single = _LAPACK.fullmatch(attributes.text("custom_call_target"))
    if single is None:
        return None
    changes: dict[str, Value] = {
        "custom_call_target": f"lapack_{_DOUBLE_PRECISION[single[1]]}{single[2]}"
    }
    layouts = attributes.get("operand_layout_constraints")
    if isinstance(layouts, tuple):
        changes["operand_layout_constraints"] = tuple(map(wide_shape, layouts))  # type: ignore[arg-type]
    return attributes.replaced(**changes)


def _widened_computation(old: Computation) -> Computation:
    writer = WideWriter(old)
    place: list[int] = []
    for instruction in old.instructions:
        place.append(writer.widen(instruction, [place[i] for i in instruction.operands]))
    return replace(old, instructions=tuple(writer.made), root=place[old.root])
