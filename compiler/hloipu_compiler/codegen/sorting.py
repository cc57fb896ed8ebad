"""Lowering of sort and top-k: by keys where the comparator says so, else by the comparator."""

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from hloipu_compiler.codegen.builder import Builder
from hloipu_compiler.codegen.leaves import Held, Leaf
from hloipu_compiler.codegen.regions import expression_of
from hloipu_compiler.codegen.site import Site, array_shape, lowers
from hloipu_compiler.codegen.sorting_over_tiles import (
    MOST_GATHERED_BYTES,
    choose_parts,
    sort_over_tiles,
)
from hloipu_compiler.codegen.views import compute_spread, seen_as
from hloipu_compiler.evaluate.comparators import ComparatorKey, comparator_keys
from hloipu_compiler.ir.graph import Computation
from hloipu_runtime.codelets.codelet import Tensor
from hloipu_runtime.codelets.elementwise import Elementwise
from hloipu_runtime.codelets.expression import Expression, Node
from hloipu_runtime.codelets.generate import Iota
from hloipu_runtime.codelets.sort import Sort
from hloipu_runtime.codelets.topk import TopK, TopKMerge, TopKPieces
from hloipu_runtime.element_types import ELEMENT_TYPES
from hloipu_runtime.kernels.sorting import SortKey
from hloipu_runtime.machine.costs import TileTraffic, exchange, sync

_FAN = 8
"""Pieces whose candidates are merged at once."""


@lowers("sort")
def _sort(site: Site) -> Sequence[Leaf]:
    given = site.attributes.integers("dimensions")
    operands = [site.held(n) for n in range(len(site.operands))]
    dimension = given[0] if given else len(operands[0].shape) - 1
    if operands[0].shape[dimension] < 2 or 0 in operands[0].shape:
        return operands
    name = site.attributes.text("to_apply")
    if not name:  # dumps before 2019: ascending by the first operand
        return _sorted(site.builder, Sort(dimension, (SortKey(0, False, "ieee"),)), operands)
    keys = comparator_keys(site.module, name)
    if keys is None:
        sort = Sort(dimension, comparator=site.expression(name))
        return _sorted(site.builder, sort, operands, counting=_counting(site, dimension))
    derived = list(operands)
    sort_keys = []
    for key in keys:
        operand = key.operand
        if key.value is not None:
            operand = len(derived)
            derived.append(_derived(site, key, operands[key.operand]))
        sort_keys.append(SortKey(operand, key.descending, key.order))
    return _sorted(
        site.builder,
        Sort(dimension, tuple(sort_keys)),
        derived,
        len(operands),
        _counting(site, dimension),
    )


def _counting(site: Site, dimension: int) -> int:
    """Return an s32 operand that counts along the dimension, as argsort has one, or -1."""
    for number, position in enumerate(site.instruction.operands):
        if number and counts_along(site.computation, position, dimension):
            return number
    return -1


def counts_along(computation: Computation, position: int, dimension: int) -> bool:
    """Whether an instruction is an s32 iota along a dimension, maybe broadcast."""
    x = computation.instructions[position]
    if array_shape(x.shape).element_type.name != "s32":
        return False
    while x.opcode == "broadcast":
        mapped = x.attributes.integers("dimensions")
        if dimension not in mapped:
            return False
        dimension = mapped.index(dimension)
        x = computation.instructions[x.operands[0]]
    return x.opcode == "iota" and x.attributes.integer("iota_dimension") == dimension


def _derived(site: Site, key: ComparatorKey, operand: Held) -> Held:
    """Compute a key's value for every element."""
    comparator = site.module.computation[site.attributes.text("to_apply")]
    assert key.value is not None
    cut = replace(comparator, root=key.value, name=f"{comparator.name}@{key.value}")
    module = replace(site.module, computations=(*site.module.computations, cut))
    expression = _of_one_operand(expression_of(module, cut.name), 2 * key.operand)
    rank = len(operand.shape)
    codelet = Elementwise(expression, (tuple(range(rank)),), rank)
    return site.builder.compute(codelet, [operand], [(expression.result_types[0], operand.shape)])[
        0
    ]


def _of_one_operand(expression: Expression, kept: int) -> Expression:
    """Return an expression that needs one of its operands alone, as one of that operand alone."""
    count = len(expression.operand_types)
    needed = set(expression.results)
    for number in range(count + len(expression.nodes) - 1, count - 1, -1):
        if number in needed:
            needed.update(expression.nodes[number - count].arguments)
    numbers = {kept: 0}
    nodes: list[Node] = []
    for number, node in enumerate(expression.nodes, count):
        if number in needed:
            numbers[number] = 1 + len(nodes)
            nodes.append(node._replace(arguments=tuple(numbers[x] for x in node.arguments)))
    return Expression(
        (expression.operand_types[kept],),
        tuple(nodes),
        tuple(numbers[x] for x in expression.results),
    )


def _sorted(
    builder: Builder,
    sort: Sort,
    operands: Sequence[Held],
    wanted: int = -1,
    counting: int = -1,
) -> list[Held]:
    """Sort on tiles or over tiles, whichever takes fewer cycles; return the first operands."""
    wanted = len(operands) if wanted < 0 else wanted
    cut = choose_parts(builder, sort, operands)
    if cut.parts > 1:
        return sort_over_tiles(builder, sort, operands, cut, wanted, counting)
    return compute_spread(
        builder, sort, operands, [(x.element_type, x.shape) for x in operands[:wanted]]
    )


@lowers("topk")
def _topk(site: Site) -> Sequence[Leaf]:
    k, largest = site.attributes.integer("k"), site.attributes.flag("largest", True)
    return top_k(site.builder, site.held(0), k, largest=largest)


def top_k(builder: Builder, x: Held, k: int, *, largest: bool) -> list[Held]:
    """Return values and s32 places of the k best along the last dimension."""
    results = [(x.element_type, (*x.shape[:-1], k)), ("s32", (*x.shape[:-1], k))]
    if 0 in x.shape or k == 0:
        return compute_spread(builder, TopK(k, largest), [x], results)
    element = ELEMENT_TYPES[x.element_type].byte_width
    fits = x.shape[-1] * element <= MOST_GATHERED_BYTES
    if not fits and _FAN * k * (element + 4) > MOST_GATHERED_BYTES:
        return _top_of_sorted(builder, x, k, largest=largest)
    pieces = _choose_pieces(builder, x, k)
    if pieces == 1:
        return compute_spread(builder, TopK(k, largest), [x], results)
    block = -(-x.shape[-1] // pieces)
    pieces = -(-x.shape[-1] // block)
    shape = (*x.shape[:-1], pieces, k)
    made = [(x.element_type, shape), ("s32", shape)]
    candidates = compute_spread(builder, TopKPieces(k, block, largest), [x], made)
    while pieces > 1:
        fan = min(_FAN, pieces)
        pieces = -(-pieces // fan)
        shape = (*x.shape[:-1], pieces, k)
        made = [(x.element_type, shape), ("s32", shape)]
        candidates = compute_spread(builder, TopKMerge(k, fan, largest), candidates, made)
    return seen_as(builder, candidates, (*x.shape[:-1], k))


def _top_of_sorted(builder: Builder, x: Held, k: int, *, largest: bool) -> list[Held]:
    """Sort all and keep the first: for so many that merging would gather too much on a tile."""
    last = len(x.shape) - 1
    (places,) = builder.compute(Iota(last, "s32"), [], [("s32", x.shape)])
    sort = Sort(last, (SortKey(0, descending=largest),))
    made = _sorted(builder, sort, [x, places], counting=1)
    shape = (*x.shape[:-1], k)
    box = tuple((0, n) for n in shape)
    return seen_as(builder, made, shape, ((x.shape, box, (0,) * len(shape)),))


def _choose_pieces(builder: Builder, x: Held, k: int) -> int:
    """Return the number of pieces of each row with the fewest cycles, a power of two."""
    length, machine = x.shape[-1], builder.machine
    rows = max(1, prod(x.shape[:-1]))
    size = ELEMENT_TYPES[x.element_type].byte_width
    wait = 2 * sync(machine).cycles

    def cycles_of(pieces: int) -> int:
        share = -(-rows // builder.tile_count)
        block = -(-length // pieces)
        best = [Tensor(x.element_type, (share, k))]
        cycles = TopK(k).work(machine, [Tensor(x.element_type, (share, block))], best).cycles
        cycles += exchange(machine, [TileTraffic(received_bytes=share * block * size)]).cycles
        while pieces > 1:
            fan = min(_FAN, pieces)
            pieces = -(-pieces // fan)
            candidates = [Tensor(x.element_type, (1, fan * k))]
            traffic = TileTraffic(received_bytes=fan * k * (size + 4), received_fragments=fan)
            cycles += TopK(k).work(machine, candidates, best).cycles
            cycles += exchange(machine, [traffic]).cycles + wait
        return cycles

    options = [1]
    while rows * options[-1] * 2 <= builder.tile_count and length >= 2 * k * options[-1]:
        options.append(options[-1] * 2)
    if len(options) > 1 and length * size > MOST_GATHERED_BYTES:
        del options[0]
    return min(options, key=cycles_of)
