"""Select-and-scatter, tile by tile from the windows that reach its results."""

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from hloipu_runtime.codelets.core.codelet import ALL, Codelet, Index, Indexing, codelet
from hloipu_runtime.codelets.core.expression import region
from hloipu_runtime.codelets.core.expression_form import Expression
from hloipu_runtime.codelets.core.grids import distinct_scalars, one_by_one, share, spread
from hloipu_runtime.codelets.core.placing import first_start
from hloipu_runtime.codelets.core.tensors import Array, Block, Blocks, Tensors
from hloipu_runtime.codelets.costs.windows import pooling_work
from hloipu_runtime.codelets.ops.windows import Window, dimensions_of, part_window, pooled, reach
from hloipu_runtime.kernels.select_scatter import select_and_scatter
from hloipu_runtime.kernels.windows_geometry import WindowDimension
from hloipu_runtime.machine.costs import TileWork
from hloipu_runtime.machine.model import Machine


@codelet
class SelectAndScatter(Codelet):
    """Fills the operand's shape with init, then takes each source value in at its window's choice.

    Operands are the array that is chosen from, the source, and the init scalar. A label along a
    dimension with windows counts blocks of results, a stride long: neighbouring tiles choose anew
    in the windows that reach into both.
    """

    name: ClassVar[str] = "select_and_scatter"
    window: Window
    select: str
    """`ge`, `gt`, `le` or `lt`: chosen ones stay that compare so; "": see `select_body`."""
    select_body: Expression | None
    monoid: str
    """How source values at one place combine; "": see `body`."""
    body: Expression | None
    element_type: str

    def indexing(self, operands: Tensors, results: Tensors) -> Indexing:
        """Return a label for each dimension whose windows do not span the whole of it."""
        shape = operands[0].shape
        sizes: list[int] = []
        chosen_from: list[Index] = []
        source: list[Index] = []
        result: list[Index] = []
        for d, w in enumerate(dimensions_of(self.window)):
            label = len(sizes)
            if w.base_dilation > 1 or (w.size > 1 and reach(w) >= shape[d]):
                indices = ALL, ALL, ALL
            else:
                first, last = _reaching(w)
                span = (last - first) * w.stride + reach(w)
                indices = (
                    Index(label, w.stride, first * w.stride - w.pad_low, span),
                    Index(label, 1, first, last - first + 1),
                    Index(label, w.stride, 0, w.stride),
                )
                sizes.append(-(-shape[d] // w.stride))
            chosen_from.append(indices[0])
            source.append(indices[1])
            result.append(indices[2])
        return Indexing(tuple(sizes), (tuple(chosen_from), tuple(source), ()), (tuple(result),))

    def run(self, operands: Blocks, results: Blocks) -> list[Array]:
        """Choose in every window that reaches the results, and keep the results."""
        operand, source, init = operands
        result = results[0]
        shared = share([operand, source])
        inits = distinct_scalars([init])
        if inits is None:
            return one_by_one(self.run, operands, results, [operand.data.dtype])
        rank = len(shared.grid)
        dimensions = dimensions_of(self.window)
        window = [part_window(w, operand, source, d, d) for d, w in enumerate(dimensions)]
        trivial = [WindowDimension(1)] * rank
        choose: Any = self.select or _predicate(self.select_body)
        how: Any = self.monoid or _region(self.body)
        whole = ((*shared.grid, *operand.whole), (*trivial, *dimensions))
        made = select_and_scatter(
            shared.arrays[0],
            shared.arrays[1],
            inits[0],
            [*trivial, *window],
            choose,
            how,
            self.element_type,
            whole=whole,
        )
        return [spread(self._kept(made, operand, result, inits[0], rank), result.grid, shared.grid)]

    def _kept(self, made: Array, operand: Block, result: Block, init: Array, rank: int) -> Array:
        """Cut the results out of the operand's part; those that no window reaches are init."""
        if operand.part == result.part:
            return made
        out = np.full((*made.shape[:rank], *result.part), init, made.dtype)
        source: list[slice] = [slice(None)] * rank
        target: list[slice] = [slice(None)] * rank
        for d, size in enumerate(result.part):
            ahead = first_start(operand, d) - first_start(result, d)
            low, high = max(0, ahead), min(size, ahead + operand.part[d])
            target.append(slice(low, max(low, high)))
            source.append(slice(low - ahead, max(low, high) - ahead))
        out[tuple(target)] = made[tuple(source)]
        return out

    def work(self, machine: Machine, operands: Tensors, results: Tensors) -> TileWork:
        """Return the work of pooling backwards over the tile's source values."""
        window = dimensions_of(self.window)
        tensors = (*operands[:2], *results)
        there, sizes = pooled(operands[1].shape, window), [w.size for w in window]
        return pooling_work(machine, tensors, there, sizes, self.monoid, self.body, backward=True)


def _reaching(w: WindowDimension) -> tuple[int, int]:
    """Return the first and last window, counted from block 0, that reach the block's elements.

    Block j is [j * stride, (j + 1) * stride); window k begins at k * stride - pad_low.
    """
    return -((reach(w) - 1 - w.pad_low) // w.stride), (w.stride - 1 + w.pad_low) // w.stride


def _region(body: Expression | None) -> Callable[..., list[Array]]:
    assert body is not None
    return region(body)


def _predicate(body: Expression | None) -> Callable[[Array, Array], Array]:
    stays = _region(body)
    return lambda chosen, candidate: stays(chosen, candidate)[0]
