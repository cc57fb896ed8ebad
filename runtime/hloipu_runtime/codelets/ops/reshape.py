"""Bit casts."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from hloipu_runtime.codelets.core.codelet import (
    ALL,
    Array,
    Block,
    Codelet,
    Index,
    Indexing,
    Sizes,
    Tensor,
    codelet,
)
from hloipu_runtime.codelets.core.placing import delivered
from hloipu_runtime.codelets.costs.moving import copy_work
from hloipu_runtime.codelets.ops.move import every_dimension
from hloipu_runtime.kernels.elementwise.convert import bitcast_convert
from hloipu_runtime.machine.costs import TileWork
from hloipu_runtime.machine.model import Machine


def _piece(label: int, size: int) -> Index:
    return Index(label, size, 0, size)


def _first_dimensions(before: Sizes, after: Sizes) -> list[tuple[int, int]]:
    """Return the first dimensions, sizes 1 apart, of the least groups with equal products."""
    if 0 in before:
        return []
    source = [d for d, size in enumerate(before) if size > 1]
    target = [d for d, size in enumerate(after) if size > 1]
    firsts = []
    i = j = 0
    while i < len(source) and j < len(target):
        firsts.append((source[i], target[j]))
        left, right = before[source[i]], after[target[j]]
        while left != right:
            if left < right:
                i += 1
                left *= before[source[i]]
            else:
                j += 1
                right *= after[target[j]]
        i, j = i + 1, j + 1
    return firsts


@codelet
@dataclass(frozen=True)
class BitcastConvert(Codelet):
    """Reads bits as another type; of another width, it takes up or appends a last dimension."""

    name: ClassVar[str] = "bitcast-convert"
    source_type: str
    target_type: str

    def indexing(self, operands: Sequence[Tensor], results: Sequence[Tensor]) -> Indexing:
        """Split the dimensions that both shapes have."""
        rank = min(len(operands[0].shape), len(results[0].shape))
        shape = results[0].shape[:rank]
        source, target = (
            every_dimension(rank) + (ALL,) * (len(tensor.shape) - rank)
            for tensor in (operands[0], results[0])
        )
        return Indexing(shape, (source,), (target,))

    def run(self, operands: Sequence[Block], results: Sequence[Block]) -> list[Array]:
        """Convert all parts at once: the last dimension is whole in each."""
        converted = bitcast_convert(operands[0].data, self.source_type, self.target_type)
        return [delivered(converted, results[0])]

    def work(
        self, machine: Machine, operands: Sequence[Tensor], results: Sequence[Tensor]
    ) -> TileWork:
        """Charge a contiguous copy: in a tile's memory the bits are the same."""
        return copy_work(machine, results[0])
