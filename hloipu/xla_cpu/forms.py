"""The form in which XLA:CPU takes a module that is written for several partitions."""

from dataclasses import replace

from hloipu_compiler.evaluate.custom_calls import is_identity
from hloipu_compiler.evaluate.manual_sharding import is_border
from hloipu_compiler.evaluate.site import array_leaves
from hloipu_compiler.ir.attributes import NO_ATTRIBUTES, Raw
from hloipu_compiler.ir.graph import Instruction, Module
from hloipu_compiler.ir.shapes import ArrayShape, TupleShape


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
