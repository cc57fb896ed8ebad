"""Single-op mutations of a module: what a wrong kernel, pass or planner would make of it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from random import Random

import numpy as np

from hloipu_compiler.analysis.call_graph import callees_first
from hloipu_compiler.interpret.planning.constants import constant_leaves
from hloipu_compiler.ir.attributes import SliceRange
from hloipu_compiler.ir.graph import Computation, Instruction, Module
from hloipu_compiler.ir.literals import Literal
from hloipu_compiler.ir.shapes import ArrayShape
from hloipu_compiler.verify.verifier import faults_of
from hloipu_runtime.kernels.core.storage import to_storage

Made = Iterator[tuple[str, list[Instruction]]]
"""Kind of mutation, and what stands in the op's place: the last one gives its value."""

_EXCHANGED = {
    "add": ("subtract",), "subtract": ("add",), "multiply": ("divide",), "divide": ("multiply",),
    "maximum": ("minimum",), "minimum": ("maximum",), "sine": ("cosine",), "cosine": ("sine",),
    "tanh": ("logistic",), "logistic": ("tanh",), "sqrt": ("rsqrt",), "rsqrt": ("sqrt",),
    "floor": ("ceil",), "ceil": ("floor",), "and": ("or",), "or": ("and",),
}  # fmt: skip
_ORDERED = frozenset("subtract divide power dot atan2 concatenate".split())
_DIRECTIONS = {"LT": "GT", "GT": "LT", "LE": "GE", "GE": "LE", "EQ": "NE", "NE": "EQ"}
_IN_ANY_ORDER = frozenset({"maximum", "minimum"})
"""What a reducer may become: HLO leaves the value of others open."""
SCALE = 1.35


@dataclass(frozen=True, slots=True)
class Mutant:
    """A module with one fault."""

    kind: str
    place: str
    module: Module


def mutants(module: Module, seed: int, most_of_a_kind: int) -> list[Mutant]:
    """Return valid mutants, the same for a seed; of each kind at most so many."""
    made: dict[str, list[tuple[str, int, list[Instruction]]]] = {}
    for computation in callees_first(module, only_reachable=True):
        live = _live(computation)
        reducer = _is_reducer(module, computation)
        for position in sorted(live):
            for kind, instead in _mutations(computation, computation.instructions[position]):
                if reducer and instead[-1].opcode not in _IN_ANY_ORDER:
                    continue
                made.setdefault(kind, []).append((computation.name, position, instead))
    source = Random(seed)
    found = []
    for kind in sorted(made):
        places = made[kind]
        source.shuffle(places)
        kept = 0
        for name, position, instead in places:
            mutant = _with(module, name, position, instead)
            if kept < most_of_a_kind and not faults_of(mutant):
                old = module.computation[name].instructions[position]
                found.append(Mutant(kind, f"{name}/{old.name}", mutant))
                kept += 1
    return found


def _live(computation: Computation) -> set[int]:
    live = {computation.root}
    for position in range(len(computation.instructions) - 1, -1, -1):
        if position in live:
            live |= {*computation.instructions[position].operands}
    return live


def _is_reducer(module: Module, computation: Computation) -> bool:
    applied = ("to_apply", "scatter", "select")
    return any(
        x.attributes.text(key) == computation.name and x.opcode not in ("call", "map")
        for c in module.computations
        for x in c.instructions
        for key in applied
    )


def _mutations(computation: Computation, x: Instruction) -> Made:
    shape = x.shape
    operands = [computation.instructions[i].shape for i in x.operands]
    kinds = [s.element_type for s in (shape, *operands) if isinstance(s, ArrayShape)]
    if not isinstance(shape, ArrayShape) or not any(k.is_float for k in kinds):
        return
    for other in _EXCHANGED.get(x.opcode, ()):
        yield f"{x.opcode} -> {other}", [x._replace(opcode=other)]
    if x.opcode in _ORDERED and len({*x.operands}) == 2 and _alike(*operands):
        yield f"operands of {x.opcode} swapped", [x._replace(operands=x.operands[::-1])]
    if x.opcode == "select" and _alike(operands[1], operands[2]):
        a, b, c = x.operands
        yield "branches of select swapped", [x._replace(operands=(a, c, b))]
    if x.opcode == "add":
        for number in (0, 1):
            if operands[number] == shape:
                yield "bias dropped", [_copy(x, x.operands[number])]
    if x.opcode == "negate":
        yield "sign dropped", [_copy(x, x.operands[0])]
    if x.opcode == "exponential":
        negated = Instruction(f"{x.name}.negated", "negate", shape, x.operands)
        yield "sign of exponent", [negated, x._replace(operands=(-1,))]
    if x.opcode == "compare":
        direction = _DIRECTIONS[x.attributes.text("direction")]
        yield (
            "comparison turned",
            [x._replace(attributes=x.attributes.replaced(direction=direction))],
        )
    yield from _of_values(x, shape)
    yield from _of_axes(x, shape, operands)


def _alike(a: object, b: object) -> bool:
    return (
        isinstance(a, ArrayShape)
        and isinstance(b, ArrayShape)
        and (a.dimensions == b.dimensions and a.element_type is b.element_type)
    )


def _copy(x: Instruction, operand: int) -> Instruction:
    return Instruction(x.name, "copy", x.shape, (operand,))


def _of_values(x: Instruction, shape: ArrayShape) -> Made:
    if x.opcode != "constant" or not shape.element_type.is_float:
        return
    if x.literal is not None and x.literal.is_elided:
        return
    value = np.asarray(constant_leaves(x)[0])
    if np.isfinite(value).all() and value.any():
        scaled = to_storage(value * np.asarray(SCALE, value.dtype), shape.element_type.name)
        yield f"constant x{SCALE}", [x._replace(literal=Literal(array=np.array(scaled)))]


def _of_axes(x: Instruction, shape: ArrayShape, operands: Sequence[object]) -> Made:
    source = operands[0] if operands else None
    if not isinstance(source, ArrayShape):
        return
    dimensions = x.attributes.integers("dimensions")
    if x.opcode in ("reduce", "broadcast", "transpose") and dimensions:
        rank = shape.rank if x.opcode == "broadcast" else source.rank
        kind = f"axis of {x.opcode}"
        for axes in _other_axes(dimensions, rank, x.opcode):
            yield kind, [x._replace(attributes=x.attributes.replaced(dimensions=axes))]
    if x.opcode == "iota" and shape.rank > 1:
        axis = (x.attributes.integer("iota_dimension") + 1) % shape.rank
        yield "axis of iota", [x._replace(attributes=x.attributes.replaced(iota_dimension=axis))]
    if x.opcode == "reverse":
        yield "reverse dropped", [_copy(x, x.operands[0])]
    if x.opcode == "dot":
        for key, operand in (("lhs_contracting_dims", 0), ("rhs_contracting_dims", 1)):
            rank = operands[operand].rank  # type: ignore[attr-defined]
            for axes in _other_axes(x.attributes.integers(key), rank, "reduce"):
                changed = x.attributes.replaced(**{key: axes})
                yield "axis of dot", [x._replace(attributes=changed)]
    if x.opcode == "slice":
        yield from _moved_slices(x, source.dimensions)


def _moved_slices(x: Instruction, sizes: tuple[int, ...]) -> Made:
    given = x.attributes["slice"]
    ranges = [y for y in given if isinstance(y, SliceRange)] if isinstance(given, tuple) else []
    for axis, part in enumerate(ranges):
        for by in (1, -1):
            if part.start + by >= 0 and part.limit + by <= sizes[axis]:
                moved = list(ranges)
                moved[axis] = SliceRange(part.start + by, part.limit + by, part.stride)
                changed = x.attributes.replaced(slice=tuple(moved))
                yield "slice off by one", [x._replace(attributes=changed)]


def _other_axes(axes: tuple[int, ...], rank: int, opcode: str) -> Iterator[tuple[int, ...]]:
    """Yield lists in which one axis is another, or in which two are exchanged."""
    if opcode == "transpose":
        for i in range(rank - 1):
            changed = list(axes)
            changed[i], changed[i + 1] = changed[i + 1], changed[i]
            yield tuple(changed)
        return
    for i in range(len(axes)):
        for other in range(rank):
            if other not in axes:
                changed = [*axes]
                changed[i] = other
                yield tuple(sorted(changed)) if opcode == "broadcast" else tuple(changed)


def _with(module: Module, name: str, position: int, instead: list[Instruction]) -> Module:
    """Return the module with an op replaced; in its place -1 stands for what is made before it."""
    old = module.computation[name]
    made: list[Instruction] = []
    place: list[int] = []
    for at, x in enumerate(old.instructions):
        for y in instead if at == position else [x]:
            last = len(made) - 1
            made.append(y._replace(operands=tuple(last if i < 0 else place[i] for i in y.operands)))
        place.append(len(made) - 1)
    new = replace(old, instructions=tuple(made), root=place[old.root])
    computations = tuple(new if c.name == name else c for c in module.computations)
    return replace(module, computations=computations)
