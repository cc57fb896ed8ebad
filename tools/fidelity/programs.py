"""Programs of single phases, written by hand: exchanges, copies within a tile, barriers."""

from hloipu_compiler.lowering.core.builder import Builder
from hloipu_compiler.lowering.core.values import TileTensor
from hloipu_compiler.planners.placing import row_major
from hloipu_runtime.costs.spent import FREE, Spent
from hloipu_runtime.costs.step_costs import step_charges
from hloipu_runtime.machine.model import Machine
from hloipu_runtime.program import steps as s
from hloipu_runtime.program.mapping import Mapping, Sizes, Span, Tiles, whole, whole_box
from hloipu_runtime.program.program import Program, Role

ONE_TILE = Tiles()


def blocks(shape: Sizes, parts: Sizes, *, halo: int = 0) -> Mapping:
    """Return a mapping of dimensions in so many parts, each with a halo of its neighbours'."""
    extents: list[int] = []
    spans: list[Span] = []
    for size, count in zip(shape, parts, strict=True):
        if count < 2:
            spans.append(whole(size))
            continue
        block = -(-size // count)
        spans.append(Span(len(extents), block, -halo, block + 2 * halo))
        extents.append(-(-size // block))
    return Mapping(row_major(extents, 0), tuple(spans))


def moved(
    machine: Machine,
    element_type: str,
    shape: Sizes,
    source: Mapping,
    destination: Mapping,
    view: Sizes | None = None,
) -> Spent:
    """Return what it costs to bring a tensor from one mapping to another, without the barrier.

    `view`: the shape in which the destination has the elements.
    """
    builder = Builder(machine)
    held = _resident(builder, element_type, shape, source)
    seen = view or shape
    target = builder.variable(element_type, seen, destination)
    zeros = (0,) * len(seen)
    transfer = builder.transfer(held, target, seen, whole_box(seen), zeros)
    value = builder.value(element_type, seen)
    piece = s.Piece(held.value, seen, whole_box(seen), zeros)
    exchange = s.Exchange((transfer,), (s.Definition(target, value, None, (piece,)),), "moved")
    return _spent(builder, exchange)


def barrier(machine: Machine, ipus: int) -> Spent:
    """Return what one barrier costs."""
    return _spent(Builder(machine), s.Sync(ipus))


def _resident(builder: Builder, element_type: str, shape: Sizes, mapping: Mapping) -> TileTensor:
    variable = builder.variable(element_type, shape, mapping, Role.PARAMETER)
    return TileTensor(builder.value(element_type, shape), variable, element_type, shape)


def _spent(builder: Builder, *steps: s.Step) -> Spent:
    program = Program(
        "phase",
        builder.machine.name,
        1,
        tuple(builder.variables),
        tuple(builder.values),
        {},
        s.Sequence(steps),
        {},
        (),
        (),
        (),
    )
    total = FREE
    for step in step_charges(program, builder.machine).steps:
        total = total.plus(step.spent)
    return total
