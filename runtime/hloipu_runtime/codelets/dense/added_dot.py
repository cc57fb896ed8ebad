"""Added dot: a product that is added to the sums of the products before it, in their place."""

from dataclasses import replace
from typing import ClassVar

from hloipu_runtime.codelets.core.codelet import Array, Blocks, Codelet, Indexing, Tensors, codelet
from hloipu_runtime.codelets.dense.dot import Dot
from hloipu_runtime.element_types import ELEMENT_TYPES
from hloipu_runtime.kernels.contractions.dot import round_result
from hloipu_runtime.kernels.core.quiet import quietly
from hloipu_runtime.kernels.core.storage import storage_dtype
from hloipu_runtime.machine.costs import TileWork
from hloipu_runtime.machine.model import Machine


@codelet
class AddedDot(Codelet):
    """Contracts lhs and rhs and adds that to the third operand; floats are rounded once.

    The depth of a large product may so come to the tiles slice by slice.
    """

    name: ClassVar[str] = "added_dot"
    dot: Dot

    def indexing(self, operands: Tensors, results: Tensors) -> Indexing:
        """Return the indexing of the product; sums follow its results."""
        product = self.dot.indexing(operands[:2], results)
        return product._replace(operands=(*product.operands, product.results[0]))

    def run(self, operands: Blocks, results: Blocks) -> list[Array]:
        """Contract in f32 where the sums are narrower, and add."""
        kind = self.dot.element_type
        is_narrow = ELEMENT_TYPES[kind].is_float and ELEMENT_TYPES[kind].bits < 32
        wide = replace(self.dot, element_type="f32") if is_narrow else self.dot
        places = [block._replace(array=None) for block in results]
        (product,) = wide.run(operands[:2], places)
        with quietly():
            total = product + operands[2].data
        return [round_result(total, kind, storage_dtype(kind))]

    def work(self, machine: Machine, operands: Tensors, results: Tensors) -> TileWork:
        """Return the work of the product: the unit loads sums where it else begins with zeros.

        A pass over a position takes a slot more then, which no pass but the first spares.
        (graphcore/poplibs: lib/poplin/PerformanceEstimation.hpp,
        getConvPartial1x1InnerLoopCycleEstimate.)
        """
        return self.dot.work(machine, operands[:2], results)

    def may_overwrite(self, operand: int) -> bool:
        """Add sums up where they lie."""
        return operand == 2

    @property
    def code_kind(self) -> str:
        """That of the product."""
        return self.dot.code_kind

    def runs_code_of(self, types: tuple[str, ...]) -> tuple[Codelet, tuple[str, ...]]:
        """Return the product: poplin's vertices are told whether to begin with zeros."""
        return self.dot, (*types[:2], types[-1])

    def table_bytes(self, machine: Machine, operands: Tensors, results: Tensors) -> int:
        """Return the bytes of the tables of the product."""
        return self.dot.table_bytes(machine, operands[:2], results)
