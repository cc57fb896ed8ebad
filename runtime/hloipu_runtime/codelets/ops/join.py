"""Padding."""

from collections.abc import Sequence
from functools import partial
from typing import ClassVar

import numpy as np

from hloipu_runtime.codelets.core.codelet import Codelet, Index, Indexing, codelet
from hloipu_runtime.codelets.core.placing import delivered, first_start
from hloipu_runtime.codelets.core.straight import Straight, one_call
from hloipu_runtime.codelets.core.tensors import Array, Block, Blocks, Tensors
from hloipu_runtime.codelets.costs.moving import repeats_work, runs_work
from hloipu_runtime.kernels.core import movement
from hloipu_runtime.machine.charges import over
from hloipu_runtime.machine.costs import TileWork
from hloipu_runtime.machine.model import Machine


@codelet
class Pad(Codelet):
    """Pads by (low, high, interior) per dimension; negative edges crop. Operands: data, value."""

    name: ClassVar[str] = "pad"
    is_compiled: ClassVar[bool] = True
    padding: tuple[tuple[int, int, int], ...]

    def indexing(self, operands: Tensors, results: Tensors) -> Indexing:
        """Split dimensions, between elements with their interior; parts may be edges alone."""
        shape = results[0].shape
        steps = [interior + 1 for _, _, interior in self.padding]
        target = tuple(Index(d, step, 0, step) for d, step in enumerate(steps))
        source = tuple(
            Index(d, 1, -(low // step))
            for d, (step, (low, _, _)) in enumerate(zip(steps, self.padding, strict=True))
        )
        sizes = tuple(over(size, step) for size, step in zip(shape, steps, strict=True))
        return Indexing(sizes, (source, ()), (target,))

    def run(self, operands: Blocks, results: Blocks) -> list[Array]:
        """Pad each part by what its tile has of the edges."""
        source, value = operands
        result = results[0]
        local = [(0, 0, 0)] * len(source.grid)
        for d, (low, _, interior) in enumerate(self.padding):
            size = source.part[d]
            before = low + first_start(source, d) * (interior + 1) - first_start(result, d)
            if size == 0:
                before = 0
            inner = size + max(size - 1, 0) * interior
            local.append((before, result.part[d] - before - inner, interior))
        if _is_one_value(value.data):
            out = result.array
            if out is not None and np.may_share_memory(out, source.data):
                out = None
            padded = movement.pad(source.data, value.data[(0,) * value.data.ndim], local, out)
            return [delivered(padded, result)]
        return [_padded_apart(source.data, value.data, local, result)]

    def straight(self, operands: Blocks, results: Blocks) -> Straight | None:
        """Return the padding of a whole tensor as one call."""
        return one_call(partial(movement.pad, padding=self.padding), 2, results[0].part)

    def work(self, machine: Machine, operands: Tensors, results: Tensors) -> TileWork:
        """Charge filling the result and moving the operand in."""
        source, result = operands[0], results[0]
        rows = repeats_work(machine, result.element_type, 1, result.elements)
        run = 1
        for size, edges in zip(reversed(source.shape), reversed(self.padding), strict=True):
            if edges[2]:
                break
            run *= size
            if any(edges):
                break
        return total([rows, runs_work(machine, source.element_type, source.elements, run)])


def _is_one_value(scalars: Array) -> bool:
    return scalars.size == 1 or all(
        step == 0 or n == 1 for n, step in zip(scalars.shape, scalars.strides, strict=True)
    )


def _padded_apart(
    x: Array, values: Array, padding: Sequence[tuple[int, int, int]], result: Block
) -> Array:
    """Pad where each tile has its own copy of the padding value."""
    inside = movement.pad(np.ones((1,) * values.ndim + x.shape[values.ndim :], bool),
                          np.asarray(False), padding)  # fmt: skip
    data = movement.pad(x, values[(0,) * values.ndim], padding)
    fill = values.reshape(*values.shape, *(1 for _ in result.part))
    out = np.empty(data.shape, data.dtype) if result.array is None else result.array
    np.copyto(out, fill)
    np.copyto(out, data, where=inside)
    return out


def total(works: Sequence[TileWork]) -> TileWork:
    """Return the work of vertices that run one after another."""
    return TileWork(sum(w.cycles for w in works), sum(w.assumed_cycles for w in works))
