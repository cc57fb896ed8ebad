"""Ops whose best mapping is searched: what codelets do them, and how they can be cut."""

from dataclasses import replace

from hloipu_compiler.lowering.core.builder import Builder
from hloipu_compiler.lowering.core.values import Scalar, TileTensor
from hloipu_compiler.planners.placing import Placement
from hloipu_runtime.codelets.core.tensors import Tensor
from hloipu_runtime.codelets.dense.convolution import Convolution
from hloipu_runtime.codelets.dense.dot import Dot
from hloipu_runtime.codelets.ops.move import Transpose
from hloipu_runtime.codelets.ops.reduce import Reduce
from hloipu_runtime.machine.charges import over
from hloipu_runtime.machine.model import Machine
from hloipu_runtime.program.mapping import Sizes
from tools.bench.codegen.search import (
    Best,
    Found,
    best_of_codelet,
    born_for,
    grids,
    mapped,
    words_of,
)


def best_matmul(machine: Machine, kind: str, m: int, k: int, n: int) -> Found:
    """Return the best mapping of a product of m x k by k x n."""
    dot = Dot((), (), (1,), (0,), kind)
    lhs, rhs, made = Tensor(kind, (m, k)), Tensor(kind, (k, n)), Tensor(kind, (m, n))
    cuts = []
    for pieces in range(2, machine.chip.tiles_per_ipu + 1):
        part = over(over(k, pieces), 8) * 8
        count = -(-k // part)
        if count > 1:
            cuts.append((replace(dot, part=part, element_type="f32"), Tensor("f32", (count, m, n))))
    return best_of_codelet(machine, dot, [lhs, rhs], made, cuts)


def best_convolution(
    machine: Machine, codelet: Convolution, image: Tensor, kernel: Tensor, made: Tensor
) -> Found:
    """Return the best mapping of a convolution, input features cut or not."""
    cuts = []
    depth = kernel.shape[codelet.rhs[0]]
    for pieces in range(2, machine.chip.tiles_per_ipu + 1):
        part = over(over(depth, pieces), 8) * 8
        count = -(-depth // part)
        if count > 1:
            cut = replace(codelet, cuts=((0, part),), element_type="f32")
            cuts.append((cut, Tensor("f32", (count, *made.shape))))
    return best_of_codelet(machine, codelet, [image, kernel], made, cuts)


def best_transpose(machine: Machine, kind: str, shape: Sizes, permutation: Sizes) -> Found:
    """Return the best mapping of a transpose."""
    made = Tensor(kind, tuple(shape[d] for d in permutation))
    return best_of_codelet(
        machine, Transpose(permutation), [Tensor(kind, shape)], made, (), (1, 2, 4)
    )


def best_reduction(machine: Machine, kind: str, shape: Sizes, dimensions: Sizes) -> Found:
    """Return the best mapping of a sum: of what is kept alone, or of pieces as well."""
    tiles = machine.chip.tiles_per_ipu
    kept = tuple(n for d, n in enumerate(shape) if d not in dimensions)
    best = Best(machine)
    array, made = Tensor(kind, shape), Tensor(kind, kept)
    whole_sum = Reduce(dimensions, "add", None, (kind,))
    operands = [array, Tensor(kind, ())]
    for at in grids(whole_sum.indexing(operands, [made]).sizes, tiles):

        def once(builder: Builder, given: list[TileTensor], at: Placement = at) -> TileTensor:
            zero = builder.scalar(Scalar(kind, "-0x0.0p+0"))
            return builder.compute(whole_sum, [*given, zero], [(kind, kept)], placement=at)[0]

        wanted = mapped(whole_sum, operands, made, at)[0]
        for born in born_for(wanted, shape):
            best.look_at([(array, born)], once, words_of(at))
    add = Reduce((0,), "add", None, (kind,))
    after = list(grids(kept, tiles))
    for d in dimensions:
        others = tuple(x for x in dimensions if x != d)
        for count in range(2, min(2 * tiles, shape[d]) + 1):
            part = -(-shape[d] // count)
            pieces = Tensor("f32", (-(-shape[d] // part), *kept))
            cut = Reduce((d, *others), "add", None, ("f32",), (part,))
            for at in grids(cut.indexing([array], [pieces]).sizes, tiles):
                wanted = mapped(cut, [array], pieces, at)[0]
                for then in after:

                    def twice(
                        builder: Builder,
                        given: list[TileTensor],
                        at: Placement = at,
                        then: Placement = then,
                        cut: Reduce = cut,
                        pieces: Tensor = pieces,
                    ) -> TileTensor:
                        made = [(pieces.element_type, pieces.shape)]
                        (partials,) = builder.compute(cut, given, made, placement=at)
                        zero = builder.scalar(Scalar("f32", "-0x0.0p+0"))
                        return builder.compute(
                            add, [partials, zero], [(kind, kept)], placement=then
                        )[0]

                    words = f"{words_of(at)}, pieces added on {words_of(then)}"
                    best.look_at([(array, born_for(wanted, shape)[0])], twice, words)
    return best.found
