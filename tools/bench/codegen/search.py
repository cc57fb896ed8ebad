"""The best mapping there is, found by trying all of them on a machine of few tiles.

It shares no code with the planners: every split of every index over the tiles, in every order of
the grid's axes, with every way to cut what is summed over and to bring the pieces together. Each is
written as a program of the same codelets, whose operands are born where they are needed, and priced
by the simulator.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations, product
from math import prod

from hloipu_compiler.lowering.core.builder import Builder
from hloipu_compiler.lowering.core.values import Scalar, TileTensor
from hloipu_compiler.planners.placing import Placement
from hloipu_runtime.codelets.core.codelet import Codelet
from hloipu_runtime.codelets.core.tensors import Tensor
from hloipu_runtime.codelets.ops.reduce import Reduce
from hloipu_runtime.compiled import CompiledProgram
from hloipu_runtime.machine.charges import over
from hloipu_runtime.machine.model import Machine
from hloipu_runtime.program import steps as s
from hloipu_runtime.program.mapping import Mapping, Sizes, Span, Tiles, whole
from hloipu_runtime.program.program import Port, Program, Role
from tools.bench.codegen.measuring import cycles_of

GRAINS = (1, 8, 16)
"""Multiples that blocks are rounded up to: AMP groups are of 8 and 16."""


@dataclass(frozen=True, slots=True)
class Found:
    """The best of all mappings."""

    cycles: int
    tried: int
    words: str


def grids(sizes: Sizes, tiles: int, grains: Sequence[int] = (1,)) -> Iterator[Placement]:
    """Yield every split of labels over at most so many tiles, in every order of the axes."""
    seen = set()
    for parts in product(*(range(1, min(tiles, n) + 1) for n in sizes)):
        if prod(parts) > tiles:
            continue
        split = [label for label, n in enumerate(parts) if n > 1]
        for grain in grains:
            blocks = {label: _block(sizes[label], parts[label], grain) for label in split}
            for order in permutations(split):
                placement = _placement(sizes, order, blocks)
                if placement not in seen:
                    seen.add(placement)
                    yield placement


def _block(size: int, parts: int, grain: int) -> int:
    return min(size, over(over(size, parts), grain) * grain)


def _placement(sizes: Sizes, order: Sequence[int], blocks: dict[int, int]) -> Placement:
    extents: list[int] = []
    labels: list[tuple[int, Span]] = []
    for label in order:
        block = blocks[label]
        count = -(-sizes[label] // block)
        if count > 1:
            labels.append((label, Span(len(extents), block, 0, block)))
            extents.append(count)
    strides = [prod(extents[n + 1 :]) for n in range(len(extents))]
    return Placement(Tiles(tuple(extents), tuple(strides), 0), tuple(sorted(labels)))


# --- programs -------------------------------------------------------------------------------------


def born_for(wanted: Mapping, shape: Sizes) -> list[Mapping]:
    """Return partitions that are, or are cut from, the parts that tiles want."""
    if not wanted.replicated_axes:
        return [wanted] if wanted.is_partition else [_halves(wanted.tiles, shape)]
    found = []
    grid = wanted.tiles
    for axis in wanted.replicated_axes:
        count = grid.extents[axis]
        for d, (span, size) in enumerate(zip(wanted.spans, shape, strict=True)):
            block = -(-min(span.size, size) // count)
            if span.axis >= 0 or block * (count - 1) >= size:
                continue
            spans = [*wanted.spans]
            spans[d] = Span(axis, block, 0, block)
            mapping = Mapping(grid, tuple(spans))
            if not mapping.replicated_axes and mapping.is_partition:
                found.append(mapping)
    return found or [Mapping(Tiles(), tuple(map(whole, shape)))]


def _halves(tiles: Tiles, shape: Sizes) -> Mapping:
    """Return rows over a line of tiles, for what tiles want overlapping parts of."""
    d = max(range(len(shape)), key=lambda k: shape[k])
    block = -(-shape[d] // tiles.count)
    count = -(-shape[d] // block)
    spans = tuple(Span(0, block, 0, block) if k == d else whole(n) for k, n in enumerate(shape))
    return Mapping(Tiles((count,), (1,), 0), spans) if count > 1 else Mapping(Tiles(), spans)


def mapped(
    codelet: Codelet, operands: Sequence[Tensor], made: Tensor, at: Placement
) -> list[Mapping]:
    """Return what the tiles of a grid want of each operand."""
    indexing = codelet.indexing(list(operands), [made])
    return [
        Mapping(at.tiles, at.spans(indices, x.shape))
        for x, indices in zip(operands, indexing.operands, strict=True)
    ]


def cycles_with(
    machine: Machine,
    operands: Sequence[tuple[Tensor, Mapping]],
    compute: Callable[[Builder, list[TileTensor]], TileTensor],
) -> int:
    """Return the cycles of a program whose operands lie so."""
    builder = Builder(machine)
    builder.origin = "candidate"
    given, ports = [], []
    builder.emit(s.Sync())
    for number, (tensor, mapping) in enumerate(operands):
        variable = builder.variable(tensor.element_type, tensor.shape, mapping, Role.PARAMETER)
        value = builder.value(tensor.element_type, tensor.shape)
        builder.emit(s.StreamIn(f"parameter.{number}", variable, value))
        ports.append(Port(f"parameter.{number}", tensor.element_type, tensor.shape))
        given.append(TileTensor(value, variable, tensor.element_type, tensor.shape))
    made = compute(builder, given)
    builder.emit(s.Sync())
    builder.emit(s.StreamOut("result.0", made.variable, made.value))
    program = Program(
        "candidate",
        machine.name,
        1,
        tuple(builder.variables),
        tuple(builder.values),
        builder.constants,
        s.Sequence(tuple(builder.scope.steps)),
        {},
        tuple(ports),
        (Port("result.0", made.element_type, made.shape),),
    )
    return cycles_of(CompiledProgram(program, machine, over_memory="allow")).total


class Best:
    """The cheapest candidate so far."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.cycles = 1 << 62
        self.words = ""
        self.tried = 0

    def look_at(
        self,
        operands: Sequence[tuple[Tensor, Mapping]],
        compute: Callable[[Builder, list[TileTensor]], TileTensor],
        words: str,
    ) -> None:
        """Price one candidate."""
        self.tried += 1
        cycles = cycles_with(self.machine, operands, compute)
        if cycles < self.cycles:
            self.cycles, self.words = cycles, words

    @property
    def found(self) -> Found:
        """What the search found."""
        return Found(self.cycles, self.tried, self.words)


def best_of_codelet(
    machine: Machine,
    codelet: Codelet,
    operands: Sequence[Tensor],
    result: Tensor,
    cuts: Sequence[tuple[Codelet, Tensor]] = (),
    grains: Sequence[int] = GRAINS,
) -> Found:
    """Return the best mapping of an op done by one codelet, or cut into pieces and added.

    `cuts` are the codelets that make pieces, with what they make: pieces first.
    """
    best = Best(machine)
    tiles = machine.chip.tiles_per_ipu
    for at in grids(codelet.indexing(list(operands), [result]).sizes, tiles, grains):
        wanted = mapped(codelet, operands, result, at)
        for born in product(*(born_for(m, x.shape) for m, x in zip(wanted, operands, strict=True))):

            def once(builder: Builder, given: list[TileTensor], at: Placement = at) -> TileTensor:
                made = [(result.element_type, result.shape)]
                return builder.compute(codelet, given, made, placement=at)[0]

            best.look_at(list(zip(operands, born, strict=True)), once, words_of(at))
    for cut, pieces in cuts:
        add = Reduce((0,), "add", None, (result.element_type,))
        after = list(grids(result.shape, tiles))
        for at in grids(cut.indexing(list(operands), [pieces]).sizes, tiles, grains):
            wanted = mapped(cut, operands, pieces, at)
            for then in after:
                first = [born_for(m, x.shape)[0] for m, x in zip(wanted, operands, strict=True)]

                def twice(
                    builder: Builder,
                    given: list[TileTensor],
                    at: Placement = at,
                    then: Placement = then,
                    cut: Codelet = cut,
                    pieces: Tensor = pieces,
                    add: Reduce = add,
                ) -> TileTensor:
                    made = [(pieces.element_type, pieces.shape)]
                    (partials,) = builder.compute(cut, given, made, placement=at)
                    zero = builder.scalar(Scalar(pieces.element_type, "-0x0.0p+0"))
                    made = [(result.element_type, result.shape)]
                    return builder.compute(add, [partials, zero], made, placement=then)[0]

                words = f"{words_of(at)}, pieces added on {words_of(then)}"
                best.look_at(list(zip(operands, first, strict=True)), twice, words)
    return best.found


def words_of(at: Placement) -> str:
    """Return a grid in words."""
    parts = (f"label {label} in {at.tiles.extents[span.axis]}" for label, span in at.labels)
    return ", ".join(parts) or "one tile"
