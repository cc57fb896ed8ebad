"""On which IPU each op of the entry runs, from annotations of some of them.

An op says `sharding={maximal device=N}` or `frontend_attributes={ipu_shard="N"}`. Others take what
their users have, then what their operands have, and IPU 0 where neither knows
(graphcore/tensorflow: tensorflow/compiler/plugin/poplar/driver/passes/sharding_pass.cc). What an op
calls runs where it does. Where a module is partitioned, maximal shardings mean partitions and are
left alone.
"""

from collections.abc import Mapping

from hloipu_compiler.hlo.frontend_attributes import read_frontend_attributes
from hloipu_compiler.hlo.sharding import ShardingKind, read_sharding
from hloipu_compiler.ir.graph import Computation, Instruction, Module

Ipus = Mapping[tuple[str, str], int]
_MOST_ROUNDS = 16
"""Of taking from users and operands by turns; each goes through whole chains."""
_MOST_IPUS = 65_536


def shards_of(module: Module, known: Ipus, partitions: int = 1) -> dict[tuple[str, str], int]:
    """Return the IPU of every op of the entry; nothing where no op says one.

    `known` has those of ops found before, by name, of which passes may have made others.
    """
    entry = module.entry
    found: list[int | None] = []
    for x in entry.instructions:
        found.append(known.get((entry.name, x.name), _said(x, partitions)))
    if all(ipu is None for ipu in found):
        return {}
    for _ in range(_MOST_ROUNDS):
        before = found.count(None)
        _take_from_users(entry, found)
        _take_from_operands(entry, found)
        if found.count(None) in (0, before):
            break
    return {
        (entry.name, x.name): ipu or 0 for x, ipu in zip(entry.instructions, found, strict=True)
    }


def _said(x: Instruction, partitions: int) -> int | None:
    """Return the IPU that an op states of itself."""
    text = x.attributes.text("frontend_attributes")
    if "ipu_shard" in text:
        value = read_frontend_attributes(text).get("ipu_shard", "")
        if value.isdecimal() and len(value) < 6 and int(value) < _MOST_IPUS:
            return int(value)
    text = x.attributes.text("sharding")
    if partitions > 1 or "maximal" not in text:
        return None
    sharding = read_sharding(text)
    parts = sharding.elements or (sharding,)
    if any(part.kind is not ShardingKind.MAXIMAL for part in parts):
        return None
    devices = {device for part in parts for device in part.devices.listed}
    return devices.pop() if len(devices) == 1 and 0 <= min(devices) < _MOST_IPUS else None


def _take_from_users(entry: Computation, found: list[int | None]) -> None:
    for position in range(len(found) - 1, -1, -1):
        if found[position] is None:
            there = [ipu for user in entry.users[position] if (ipu := found[user]) is not None]
            if there:
                found[position] = min(set(there), key=lambda ipu: (-there.count(ipu), ipu))


def _take_from_operands(entry: Computation, found: list[int | None]) -> None:
    for position, x in enumerate(entry.instructions):
        if found[position] is None:
            found[position] = next((found[i] for i in x.operands if found[i] is not None), None)
