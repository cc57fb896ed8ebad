"""Writer of a computation: ops one after the other, with unique names and marks."""

from collections.abc import Sequence

from hloipu_compiler.graphcore.encoding.core import errors
from hloipu_compiler.graphcore.encoding.core.values import OUTSIDE, Context
from hloipu_compiler.hlo.attributes.frontend_attributes import (
    frontend_attributes_text,
    read_frontend_attributes,
)
from hloipu_compiler.ir.attributes import NO_ATTRIBUTES, Attributes, Raw, Value
from hloipu_compiler.ir.graph import Instruction
from hloipu_compiler.ir.literals import Literal
from hloipu_compiler.ir.shapes import ArrayShape, Shape, TupleShape
from hloipu_compiler.passes.framework.names import Names

_KEY = "frontend_attributes"
_SHARDING = "sharding"
_DROPPED = frozenset({_SHARDING, "control-predecessors"})
SHARDY = "xla.sdy."
"""How the words of Shardy's annotations begin."""
_CONFIGURES = ("CALL_CONFIG_TYPE", "PIPELINE_", "GradientAccumulation", "OFFLOAD_", "PARTITION_")
_NOTHING = Attributes({"dimensions": ()})


class Sheet:
    """Ops written so far; positions are those in `made`."""

    def __init__(self, *, places: bool = False) -> None:
        self.made: list[Instruction] = []
        self.names = Names(())
        self.places = places
        """Whether ops stay on the devices that their sharding names; stages have theirs."""

    def copied(self, op: Instruction, operands: Sequence[int], context: Context) -> int:
        """Append an op of the old module, marked."""
        attributes = self._marked(op, context)
        name = self.names.fresh(op.name)
        self.made.append(
            Instruction(
                name, op.opcode, op.shape, tuple(operands), attributes, op.metadata,
                op.backend_config, op.literal, -1, op.start, op.end,
            )
        )  # fmt: skip
        return len(self.made) - 1

    def _marked(self, op: Instruction, context: Context) -> Attributes:
        attributes = marked(op.attributes, context.marks)
        sharding = op.attributes.text(_SHARDING)
        if not sharding and context.device >= 0 and not isinstance(op.shape, TupleShape):
            sharding = f"{{maximal device={context.device}}}"
        if not self.places or not sharding:
            return attributes
        return Attributes({**attributes, _SHARDING: Raw(sharding)}, attributes.called)

    def add(
        self, name: str, opcode: str, shape: Shape, operands: Sequence[int] = (),
        context: Context = OUTSIDE, attributes: Attributes = NO_ATTRIBUTES,
    ) -> int:  # fmt: skip
        """Append an op of our own."""
        attributes = marked(attributes, context.marks)
        name = self.names.fresh(name)
        self.made.append(Instruction(name, opcode, shape, tuple(operands), attributes))
        return len(self.made) - 1

    def parameter(
        self, name: str, shape: Shape, number: int = 0, attributes: Attributes = NO_ATTRIBUTES
    ) -> int:
        """Append a parameter."""
        name = self.names.fresh(name)
        op = Instruction(name, "parameter", shape, (), attributes, parameter_number=number)
        self.made.append(op)
        return len(self.made) - 1

    def number(self, name: str, shape: ArrayShape, text: str) -> int:
        """Append a constant of no dimensions."""
        self.made.append(
            Instruction(self.names.fresh(name), "constant", shape, literal=Literal(text))
        )
        return len(self.made) - 1

    def spread(self, name: str, shape: ArrayShape, value: int, context: Context = OUTSIDE) -> int:
        """Write an array whose elements are all one number."""
        return self.add(name, "broadcast", shape, (value,), context, _NOTHING)

    def zeros(self, shape: ArrayShape, name: str, context: Context = OUTSIDE) -> int:
        """Write an array of zeros."""
        text = "false" if shape.element_type.name == "pred" else "0"
        zero = self.number(f"{name}.zero", ArrayShape(shape.element_type), text)
        return self.spread(f"{name}.zeros", shape, zero, context) if shape.dimensions else zero

    def part(self, position: int, index: int) -> int:
        """Write the element of a tuple that some op makes whole."""
        tuple_value = self.made[position]
        shape = tuple_value.shape
        if not isinstance(shape, TupleShape):
            raise TypeError(f"{tuple_value.name} is not a tuple")
        return self.add(
            f"{tuple_value.name}.{index}", "get-tuple-element", shape.elements[index], (position,),
            self.where(position), Attributes({"index": index}),
        )  # fmt: skip

    def where(self, position: int) -> Context:
        """Return what is to be said of a value's part, which is made where the whole is."""
        stated = read_frontend_attributes(self.made[position].attributes.text(_KEY))
        stage, branch = (int(stated.get(key, "-1")) for key in ("ipu_stage", "ipu_branch"))
        return Context(stated.get("ipu_phase", ""), stage, branch)

    def array(self, position: int) -> ArrayShape | None:
        """Return the shape of a value; None for what is no array of numbers."""
        shape = self.made[position].shape
        is_array = isinstance(shape, ArrayShape) and shape.element_type.is_array
        return shape if is_array and isinstance(shape, ArrayShape) else None

    def as_type(self, name: str, value: int, shape: ArrayShape) -> int:
        """Write a conversion, if a value has another type."""
        old = self.array(value)
        if old is not None and old.element_type is shape.element_type:
            return value
        return self.add(f"{name}.as", "convert", shape, (value,), OUTSIDE)

    def one_number(self, op: Instruction, value: int) -> int:
        """Return a factor without dimensions; PoplarError E0545 for one that is no number."""
        shape = self.array(value)
        if shape is None:
            own_shape = self.made[value].shape
            raise errors.ACCUMULATOR(
                f"{op.name!r} multiplies by {own_shape}, which is not a number"
            )
        if shape.element_count != 1:
            raise errors.ACCUMULATOR(
                f"{op.name!r} multiplies by {shape}, and not by one number",
                hint="give it a factor of no dimensions",
            )
        return self.scalar(value)

    def scalar(self, value: int) -> int:
        """Return a value of one element without dimensions."""
        op = self.made[value]
        if not isinstance(op.shape, ArrayShape) or not op.shape.dimensions:
            return value
        return self.add(f"{op.name}.one", "reshape", ArrayShape(op.shape.element_type), (value,))


def divides(sharding: str) -> bool:
    """Whether the text of a sharding divides arrays between devices, and names none for an op."""
    return "[" in sharding and "maximal" not in sharding


def division_of(op: Instruction) -> Attributes:
    """Return what a parameter says of its division, and nothing else."""
    frontend_attributes = read_frontend_attributes(op.attributes.text(_KEY))
    words = {key: text for key, text in frontend_attributes.items() if key.startswith(SHARDY)}
    stated: dict[str, Value] = {_KEY: frontend_attributes_text(words)} if words else {}
    if divides(op.attributes.text(_SHARDING)):
        stated[_SHARDING] = op.attributes[_SHARDING]
    return Attributes(stated) if stated else NO_ATTRIBUTES


def marked(
    attributes: Attributes, marks: dict[str, str], dropped: frozenset[str] = _DROPPED
) -> Attributes:
    """Return attributes with marks in place of what places ops in Graphcore's way."""
    remaining = {key: value for key, value in attributes.items() if key not in dropped}
    if divides(attributes.text(_SHARDING)):
        remaining[_SHARDING] = attributes[_SHARDING]
    frontend_attributes = read_frontend_attributes(attributes.text(_KEY))
    words = {
        key: text for key, text in frontend_attributes.items() if not key.startswith(_CONFIGURES)
    }
    words = marks | words
    remaining.pop(_KEY, None)
    if words:
        remaining[_KEY] = frontend_attributes_text(words)
    return Attributes(remaining, attributes.called)
