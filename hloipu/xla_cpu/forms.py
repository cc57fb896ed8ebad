"""Forms in which XLA:CPU takes modules: through StableHLO, and for several partitions.

Modules that a backend has optimised hold what StableHLO has no word for, or what the backend takes
only as it left it: fusions with their configurations, bitcasts between layouts.
"""

from collections.abc import Sequence
from dataclasses import replace

from hloipu_compiler.interpret.planning.site import array_leaves
from hloipu_compiler.ir.annotations import is_border, is_identity
from hloipu_compiler.ir.attributes import NO_ATTRIBUTES, Attributes, Raw, ReplicaGroups
from hloipu_compiler.ir.graph import Computation, Instruction, Module
from hloipu_compiler.ir.shapes import ArrayShape, TupleShape


def for_stablehlo(module: Module) -> Module:
    """Return the module with fusions as calls and bitcasts as the moves that they stand for.

    Groups of participants are written as lists: of their mesh form jaxlib's conversion drops the
    order of devices (`device_ids`), so that others would meet.
    """
    return replace(module, computations=tuple(map(_spelled_out, module.computations)))


def _spelled_out(computation: Computation) -> Computation:
    instructions: list[Instruction] = []
    places: list[int] = []
    for instruction in computation.instructions:
        moved = _with_listed_groups(
            instruction._replace(operands=tuple(places[i] for i in instruction.operands))
        )
        source = (
            computation.instructions[instruction.operands[0]].shape
            if instruction.operands
            else None
        )
        if instruction.opcode == "fusion":
            instructions.append(_as_call(moved))
        elif instruction.opcode == "bitcast" and isinstance(source, ArrayShape):
            instructions += _as_moves(moved, source, len(instructions))
        else:
            instructions.append(moved)
        places.append(len(instructions) - 1)
    return replace(computation, instructions=tuple(instructions), root=places[computation.root])


def _with_listed_groups(instruction: Instruction) -> Instruction:
    if "replica_groups" not in instruction.attributes:
        return instruction
    groups = instruction.attributes.replica_groups()
    if not groups.text:
        return instruction
    listed = ReplicaGroups(groups.groups)
    return instruction._replace(attributes=instruction.attributes.replaced(replica_groups=listed))


def _as_call(instruction: Instruction) -> Instruction:
    (name,) = instruction.attributes.called
    called = Attributes({"to_apply": name}, (name,))
    return instruction._replace(opcode="call", attributes=called, backend_config="")


def _as_moves(instruction: Instruction, source: ArrayShape, position: int) -> list[Instruction]:
    """Return what reads memory in the operand's layout as the result in the result's layout."""
    target = instruction.shape
    if not isinstance(target, ArrayShape) or target.element_type != source.element_type:
        return [instruction]
    stored, wanted = _major_to_minor(source), _major_to_minor(target)
    back = sorted(range(target.rank), key=wanted.__getitem__)
    element = source.element_type
    first = ArrayShape(element, tuple(source.dimensions[d] for d in stored))
    second = ArrayShape(element, tuple(target.dimensions[d] for d in wanted))
    return [
        _transpose(
            instruction, f"{instruction.name}.stored", first, instruction.operands[0], stored
        ),
        Instruction(f"{instruction.name}.memory", "reshape", second, (position,)),
        _transpose(instruction, instruction.name, target, position + 1, back),
    ]


def _transpose(
    instruction: Instruction, name: str, shape: ArrayShape, operand: int, order: Sequence[int]
) -> Instruction:
    attributes = Attributes({"dimensions": tuple(order)})
    return instruction._replace(
        name=name, opcode="transpose", shape=shape, operands=(operand,), attributes=attributes
    )


def _major_to_minor(shape: ArrayShape) -> list[int]:
    if shape.layout is None:
        return list(range(shape.rank))
    return list(reversed(shape.layout.minor_to_major))


def for_partitioner(module: Module) -> Module:
    """Return the module so that XLA's partitioner leaves its meaning alone.

    A module with manually sharded regions keeps its shardings, but for constraints in the middle:
    between regions of Shardy's they would make XLA turn to GSPMD, which does not know the regions.
    Any other module that meets is written per device already: all of it is marked manual.
    """
    everything = [instruction for c in module.computations for instruction in c.instructions]
    change = _plain if any(map(is_border, everything)) else _manual
    computations = tuple(
        replace(c, instructions=tuple(map(change, c.instructions))) for c in module.computations
    )
    return replace(module, computations=computations)


def _plain(instruction: Instruction) -> Instruction:
    if not is_identity(instruction) or not isinstance(instruction.shape, ArrayShape):
        return instruction
    if "xla.sdy" not in instruction.attributes.text("frontend_attributes"):
        return instruction
    return instruction._replace(opcode="reshape", attributes=NO_ATTRIBUTES)


def _manual(instruction: Instruction) -> Instruction:
    count = len(array_leaves(instruction.shape))
    alone = "{manual}"
    every = (
        f"{{{', '.join([alone] * count)}}}" if isinstance(instruction.shape, TupleShape) else alone
    )
    return instruction._replace(attributes=instruction.attributes.replaced(sharding=Raw(every)))
