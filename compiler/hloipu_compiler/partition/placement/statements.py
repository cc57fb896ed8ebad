"""Reads an op's IPU from its annotations.

`sharding={maximal device=N}`, a tuple of these for each leaf, or
`frontend_attributes={ipu_shard="N"}`, which wins. Where a module is partitioned, maximal shardings
mean partitions and are left alone.
"""

from hloipu_compiler.hlo.attributes.frontend_attributes import (
    frontend_attributes_text,
    read_frontend_attributes,
)
from hloipu_compiler.hlo.attributes.sharding import ShardingKind, read_sharding
from hloipu_compiler.ir.attributes import Attributes
from hloipu_compiler.ir.graph import Instruction
from hloipu_compiler.ir.shapes import TupleShape, leaves
from hloipu_compiler.partition.training.errors import StagingError
from hloipu_compiler.partition.training.marks import stated_number

KEY = "ipu_shard"
_CARRIER = "frontend_attributes"
_MOST_IPUS = 65_536

Ipu = int | None
"""None: not known."""


def said(op: Instruction, partitions: int = 1) -> tuple[Ipu, ...]:
    """Return the IPU that an op states of each leaf of its result; empty where it states none.

    Raises StagingError E0519 for what is no number of an IPU.
    """
    number = stated_number(op, KEY)
    if number is not None:
        return (number,) * leaf_count(op)
    text = op.attributes.text("sharding")
    if partitions > 1 or "maximal" not in text:
        return ()
    sharding = read_sharding(text)
    parts = sharding.elements or (sharding,)
    _check_devices(op, max((part.device or 0 for part in parts), default=0))
    devices = tuple(
        part.device if part.kind is ShardingKind.MAXIMAL and _is_one(part.device) else None
        for part in parts
    )
    if len(devices) == 1:
        devices *= leaf_count(op)
    return devices if len(devices) == leaf_count(op) and set(devices) != {None} else ()


def said_by_all(op: Instruction, partitions: int = 1) -> Ipu:
    """Return the IPU that an op states of all that it makes."""
    ipus = set(said(op, partitions))
    return ipus.pop() if len(ipus) == 1 else None


def saying(op: Instruction, ipu: int) -> Instruction:
    """Return an op that states its IPU."""
    words = {**read_frontend_attributes(op.attributes.text(_CARRIER)), KEY: str(ipu)}
    values = {**op.attributes, _CARRIER: frontend_attributes_text(words)}
    return op._replace(attributes=Attributes(values, op.attributes.called))


def leaf_count(op: Instruction) -> int:
    """Return how many arrays and tokens an op makes."""
    if not isinstance(op.shape, TupleShape):
        return 1
    return sum(1 for _ in leaves(op.shape))


def _check_devices(op: Instruction, highest: int) -> None:
    """Refuse numbers that no IPU has, before as many IPUs are made room for."""
    if highest >= _MOST_IPUS:
        raise StagingError(
            "E0519",
            f"{op.name!r} is put on device {highest} by its sharding, but no IPU has such a number",
            hint="number IPUs from 0: sharding={maximal device=0}",
        )


def _is_one(device: int | None) -> bool:
    return device is not None and 0 <= device < _MOST_IPUS
