"""Bytes that each device sends in a program of one device, ours or XLA's, by rings.

    all-gather                  (g - 1) / g of its result's bytes
    reduce-scatter, all-to-all  (g - 1) / g of its operand's
    all-reduce                  twice that; once where everybody only cuts a part out of its result
    collective-permute          its operand's

A loop counts as often as it runs, once where that is unknown; of branches the dearest counts.
XLA:CPU adds bf16 up as f32 (its reducers are then named `*_promoted`): that counts as bf16.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from hloipu_compiler.analysis.participant_groups import groups_of, pairs_of
from hloipu_compiler.analysis.trip_count import trip_count
from hloipu_compiler.ir.graph import Computation, Instruction, Module
from hloipu_compiler.ir.ops import COLLECTIVES
from hloipu_compiler.ir.shapes import ArrayShape, leaves_of

_SEEN_THROUGH = frozenset("bitcast reshape copy transpose convert get-tuple-element".split())


@dataclass(frozen=True)
class Traffic:
    """What one device sends in one run of a program."""

    byte_count: float = 0.0
    meetings: int = 0
    """How often devices meet: collectives, each as often as it runs."""

    def __add__(self, other: "Traffic") -> "Traffic":
        """Return both after each other."""
        return Traffic(self.byte_count + other.byte_count, self.meetings + other.meetings)

    def times(self, count: int) -> "Traffic":
        """Return that so many times."""
        return Traffic(self.byte_count * count, self.meetings * count)


def traffic_of(module: Module, devices: int) -> Traffic:
    """Return what a device sends in a program for so many partitions."""
    return _Counting(module, devices).of(module.entry)


class _Counting:
    def __init__(self, module: Module, devices: int) -> None:
        self.module, self.devices = module, devices
        self.known: dict[str, Traffic] = {}

    def of(self, computation: Computation) -> Traffic:
        """Return what a device sends in one run of a computation."""
        if computation.name not in self.known:
            total = Traffic()
            for position, x in enumerate(computation.instructions):
                total += self._of_op(computation, position, x)
            self.known[computation.name] = total
        return self.known[computation.name]

    def _of_op(self, computation: Computation, position: int, x: Instruction) -> Traffic:
        if x.opcode in COLLECTIVES:
            return self._meeting(computation, position, x)
        called = [self.module.computation[name] for name in x.attributes.called]
        if x.opcode == "while":
            trips = trip_count(self.module, computation, x)
            count = 1 if trips is None else trips
            condition = self.module.computation[x.attributes.text("condition")]
            body = self.module.computation[x.attributes.text("body")]
            return self.of(body).times(count) + self.of(condition).times(count + 1)
        if x.opcode == "conditional":
            return max(map(self.of, called), key=lambda each: each.byte_count)
        if x.opcode in ("call", "fusion", "async-start"):
            return sum(map(self.of, called), Traffic())
        return Traffic()

    def _meeting(self, computation: Computation, position: int, x: Instruction) -> Traffic:
        kind = x.opcode.removesuffix("-start")
        if kind.endswith("-done"):
            return Traffic()
        operands = [
            leaf for i in x.operands for leaf in leaves_of(computation.instructions[i].shape)
        ]
        each = [float(leaf.byte_count) for leaf in operands]
        if kind == "collective-permute":
            pairs = pairs_of(x, 1, self.devices)
            moves = any(source != target for source, target in pairs)
            return Traffic(sum(each), 1) if moves else Traffic()
        size = max(map(len, groups_of(x, 1, self.devices)), default=self.devices)
        if size == 1:
            return Traffic()
        others = (size - 1) / size
        if kind == "all-gather":
            others = size - 1
        elif kind == "all-reduce":
            if "_promoted" in x.attributes.text("to_apply"):
                each = [count / 2 for count in each]
            for leaf in range(len(each)):
                if not self._is_scattered(computation, position, leaf, len(each), size):
                    each[leaf] *= 2
        return Traffic(sum(each) * others, 1)

    def _is_scattered(
        self, computation: Computation, position: int, leaf: int, leaves: int, size: int
    ) -> bool:
        """Whether all that use a sum cut a part of at most 1 / size out of it."""
        if leaves == 1:
            return self._only_cut(computation, position, size)
        users = _users(computation, position)
        index = [(i, computation.instructions[i].attributes.integer("index", -1)) for i in users]
        parts = [i for i, own in index if own == leaf]
        return bool(parts) and all(self._only_cut(computation, i, size) for i in parts)

    def _only_cut(self, computation: Computation, position: int, size: int) -> bool:
        users = list(_users(computation, position))
        if not users or position == computation.root:
            return False
        whole = _element_count(computation.instructions[position])
        for i in users:
            x = computation.instructions[i]
            if x.opcode in ("dynamic-slice", "slice"):
                if x.operands[0] != position or _element_count(x) * size > whole:
                    return False
            elif x.opcode in ("fusion", "call"):
                inside = self.module.computation[x.attributes.called[0]]
                for number, operand in enumerate(x.operands):
                    parameter = inside.parameters[number]
                    if operand == position and not self._only_cut(inside, parameter, size):
                        return False
            elif x.opcode not in _SEEN_THROUGH or not self._only_cut(computation, i, size):
                return False
        return True


def _users(computation: Computation, position: int) -> Iterator[int]:
    return (i for i, x in enumerate(computation.instructions) if position in x.operands)


def _element_count(x: Instruction) -> int:
    return prod(x.shape.dimensions) if isinstance(x.shape, ArrayShape) else 0
