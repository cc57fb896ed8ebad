"""Where parameters are born: as the most demanding dot product that reads them wants them."""

from math import prod

from hloipu_compiler.codegen.contractions import dot_codelet, dot_placement
from hloipu_compiler.codegen.placing import GRAIN_BYTES, row_major
from hloipu_compiler.codegen.site import array_shape
from hloipu_compiler.codegen.tuning import Tuning
from hloipu_compiler.ir.graph import Computation, Instruction
from hloipu_runtime.codelets.codelet import Tensor
from hloipu_runtime.codelets.dot import Dot
from hloipu_runtime.element_types import ELEMENT_TYPES
from hloipu_runtime.machine.model import Machine
from hloipu_runtime.program.mapping import Mapping, Sizes, Span, whole


def birthplaces(machine: Machine, tuning: Tuning, computation: Computation) -> dict[int, Mapping]:
    """Return mappings for positions of parameters that dots read; all others have none.

    Of several dots that read a parameter, the one with most multiplications decides.
    """
    found: dict[int, Mapping] = {}
    most: dict[int, int] = {}
    parameters = frozenset(computation.parameters)
    for x in computation.instructions:
        if x.opcode != "dot" or parameters.isdisjoint(x.operands):
            continue
        operands = [_tensor(computation.instructions[i]) for i in x.operands]
        codelet = dot_codelet(x)
        result = _tensor(x)
        work = result.elements * prod(operands[0].shape[d] for d in codelet.lhs_contracting)
        for number, position in enumerate(x.operands):
            if position in parameters and work > most.get(position, 0):
                most[position] = work
                mapping = _wanted(machine, tuning, codelet, operands, result, number)
                found[position] = spread_over_copies(
                    mapping, operands[number].shape, operands[number].element_type
                )
    return found


def spread_over_copies(wanted: Mapping, shape: Sizes, element_type: str) -> Mapping:
    """Return a partition of a tensor with which tiles get their wanted parts in few pieces.

    Tiles that want the same part share it out, the first dimensions first.
    """
    grid = wanted.tiles
    cut = [d for d, span in enumerate(wanted.spans) if span.axis >= 0]
    blocks = [min(span.size, size) for span, size in zip(wanted.spans, shape, strict=True)]
    copies = grid.count // max(1, prod(grid.extents[wanted.spans[d].axis] for d in cut))
    for d, whole_block in enumerate(blocks):
        if copies < 2 or whole_block < 2:
            continue
        block = -(-whole_block // copies)
        if d == len(shape) - 1:
            grain = max(1, GRAIN_BYTES * 8 // ELEMENT_TYPES[element_type].bits)
            block = -(-block // grain) * grain
        blocks[d] = min(block, whole_block)
        copies //= -(-whole_block // blocks[d])
    _fit(blocks, shape, grid.count)
    extents: list[int] = []
    spans: list[Span] = []
    for size, block in zip(shape, blocks, strict=True):
        count = -(-size // block) if block else 1
        if count < 2:
            spans.append(whole(size))
            continue
        spans.append(Span(len(extents), block, 0, block))
        extents.append(count)
    return Mapping(row_major(extents, grid.first), tuple(spans))


def _fit(blocks: list[int], shape: Sizes, tiles: int) -> None:
    """Enlarge blocks, the first ones first, until there are no more than tiles."""
    for d, size in enumerate(shape):
        others = prod(
            -(-n // b) for e, (n, b) in enumerate(zip(shape, blocks, strict=True)) if e != d
        )
        room = max(1, tiles // max(1, others))
        blocks[d] = max(blocks[d], -(-size // room))


def _wanted(
    machine: Machine,
    tuning: Tuning,
    codelet: Dot,
    operands: list[Tensor],
    result: Tensor,
    number: int,
) -> Mapping:
    """Return the parts that tiles work on of an operand; of all slices, as if they were one."""
    placed = dot_placement(machine, tuning, codelet, operands[0], operands[1], result)
    indexing = placed.codelet.indexing(operands, [placed.result])
    spans = placed.placement.spans(indexing.operands[number], operands[number].shape)
    return Mapping(placed.placement.tiles, spans)


def _tensor(x: Instruction) -> Tensor:
    shape = array_shape(x.shape)
    return Tensor(shape.element_type.name, shape.dimensions)
