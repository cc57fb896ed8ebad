"""The forms in which XLA:CPU takes modules: through StableHLO, and for several partitions.

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
    made: list[Instruction] = []
    places: list[int] = []
    for x in computation.instructions:
        moved = _with_listed_groups(x._replace(operands=tuple(places[i] for i in x.operands)))
        source = computation.instructions[x.operands[0]].shape if x.operands else None
        if x.opcode == "fusion":
            made.append(_as_call(moved))
        elif x.opcode == "bitcast" and isinstance(source, ArrayShape):
            made += _as_moves(moved, source, len(made))
        else:
            made.append(moved)
        places.append(len(made) - 1)
    return replace(computation, instructions=tuple(made), root=places[computation.root])


def _with_listed_groups(x: Instruction) -> Instruction:
    if "replica_groups" not in x.attributes:
        return x
    groups = x.attributes.replica_groups()
    if not groups.text:
        return x
    listed = ReplicaGroups(groups.groups)
    return x._replace(attributes=x.attributes.replaced(replica_groups=listed))


def _as_call(x: Instruction) -> Instruction:
    (name,) = x.attributes.called
    called = Attributes({"to_apply": name}, (name,))
    return x._replace(opcode="call", attributes=called, backend_config="")


def _as_moves(x: Instruction, source: ArrayShape, position: int) -> list[Instruction]:
    """Return what reads memory in the operand's layout as the result in the result's layout."""
    target = x.shape
    if not isinstance(target, ArrayShape) or target.element_type != source.element_type:
        return [x]
    stored, wanted = _major_to_minor(source), _major_to_minor(target)
    back = sorted(range(target.rank), key=wanted.__getitem__)
    element = source.element_type
    first = ArrayShape(element, tuple(source.dimensions[d] for d in stored))
    second = ArrayShape(element, tuple(target.dimensions[d] for d in wanted))
    return [
        _transpose(x, f"{x.name}.stored", first, x.operands[0], stored),
        Instruction(f"{x.name}.memory", "reshape", second, (position,)),
        _transpose(x, x.name, target, position + 1, back),
    ]


def _transpose(
    x: Instruction, name: str, shape: ArrayShape, operand: int, order: Sequence[int]
) -> Instruction:
    attributes = Attributes({"dimensions": tuple(order)})
    return x._replace(
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
    everything = [x for c in module.computations for x in c.instructions]
    change = _plain if any(map(is_border, everything)) else _manual
    computations = tuple(
        replace(c, instructions=tuple(map(change, c.instructions))) for c in module.computations
    )
    return replace(module, computations=computations)


def _plain(x: Instruction) -> Instruction:
    if not is_identity(x) or not isinstance(x.shape, ArrayShape):
        return x
    if "xla.sdy" not in x.attributes.text("frontend_attributes"):
        return x
    return x._replace(opcode="reshape", attributes=NO_ATTRIBUTES)


def _manual(x: Instruction) -> Instruction:
    count = len(array_leaves(x.shape))
    alone = "{manual}"
    every = f"{{{', '.join([alone] * count)}}}" if isinstance(x.shape, TupleShape) else alone
    return x._replace(attributes=x.attributes.replaced(sharding=Raw(every)))
