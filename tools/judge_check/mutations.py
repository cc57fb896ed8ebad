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
    places_by_kind: dict[str, list[tuple[str, int, list[Instruction]]]] = {}
    for computation in callees_first(module, only_reachable=True):
        live = _live(computation)
        reducer = _is_reducer(module, computation)
        for position in sorted(live):
            for kind, instead in _mutations(computation, computation.instructions[position]):
                if reducer and instead[-1].opcode not in _IN_ANY_ORDER:
                    continue
                places_by_kind.setdefault(kind, []).append((computation.name, position, instead))
    source = Random(seed)
    valid = []
    for kind in sorted(places_by_kind):
        places = places_by_kind[kind]
        source.shuffle(places)
        kept = 0
        for name, position, instead in places:
            mutant = _with(module, name, position, instead)
            if kept < most_of_a_kind and not faults_of(mutant):
                old = module.computation[name].instructions[position]
                valid.append(Mutant(kind, f"{name}/{old.name}", mutant))
                kept += 1
    return valid


def _live(computation: Computation) -> set[int]:
    live = {computation.root}
    for position in range(len(computation.instructions) - 1, -1, -1):
        if position in live:
            live |= {*computation.instructions[position].operands}
    return live


def _is_reducer(module: Module, computation: Computation) -> bool:
    applied = ("to_apply", "scatter", "select")
    return any(
        instruction.attributes.text(key) == computation.name
        and instruction.opcode not in ("call", "map")
        for c in module.computations
        for instruction in c.instructions
        for key in applied
    )


def _mutations(computation: Computation, instruction: Instruction) -> Made:
    shape = instruction.shape
    operands = [computation.instructions[i].shape for i in instruction.operands]
    kinds = [s.element_type for s in (shape, *operands) if isinstance(s, ArrayShape)]
    if not isinstance(shape, ArrayShape) or not any(k.is_float for k in kinds):
        return
    for other in _EXCHANGED.get(instruction.opcode, ()):
        yield f"{instruction.opcode} -> {other}", [instruction._replace(opcode=other)]
    if instruction.opcode in _ORDERED and len({*instruction.operands}) == 2 and _alike(*operands):
        yield (
            f"operands of {instruction.opcode} swapped",
            [instruction._replace(operands=instruction.operands[::-1])],
        )
    if instruction.opcode == "select" and _alike(operands[1], operands[2]):
        a, b, c = instruction.operands
        yield "branches of select swapped", [instruction._replace(operands=(a, c, b))]
    if instruction.opcode == "add":
        for number in (0, 1):
            if operands[number] == shape:
                yield "bias dropped", [_copy(instruction, instruction.operands[number])]
    if instruction.opcode == "negate":
        yield "sign dropped", [_copy(instruction, instruction.operands[0])]
    if instruction.opcode == "exponential":
        negated = Instruction(f"{instruction.name}.negated", "negate", shape, instruction.operands)
        yield "sign of exponent", [negated, instruction._replace(operands=(-1,))]
    if instruction.opcode == "compare":
        direction = _DIRECTIONS[instruction.attributes.text("direction")]
        yield (
            "comparison turned",
            [instruction._replace(attributes=instruction.attributes.replaced(direction=direction))],
        )
    yield from _of_values(instruction, shape)
    yield from _of_axes(instruction, shape, operands)


def _alike(a: object, b: object) -> bool:
    return (
        isinstance(a, ArrayShape)
        and isinstance(b, ArrayShape)
        and (a.dimensions == b.dimensions and a.element_type is b.element_type)
    )


def _copy(instruction: Instruction, operand: int) -> Instruction:
    return Instruction(instruction.name, "copy", instruction.shape, (operand,))


def _of_values(instruction: Instruction, shape: ArrayShape) -> Made:
    if instruction.opcode != "constant" or not shape.element_type.is_float:
        return
    if instruction.literal is not None and instruction.literal.is_elided:
        return
    value = np.asarray(constant_leaves(instruction)[0])
    if np.isfinite(value).all() and value.any():
        scaled = to_storage(value * np.asarray(SCALE, value.dtype), shape.element_type.name)
        yield f"constant x{SCALE}", [instruction._replace(literal=Literal(array=np.array(scaled)))]


def _of_axes(instruction: Instruction, shape: ArrayShape, operands: Sequence[object]) -> Made:
    source = operands[0] if operands else None
    if not isinstance(source, ArrayShape):
        return
    dimensions = instruction.attributes.integers("dimensions")
    if instruction.opcode in ("reduce", "broadcast", "transpose") and dimensions:
        rank = shape.rank if instruction.opcode == "broadcast" else source.rank
        kind = f"axis of {instruction.opcode}"
        for axes in _other_axes(dimensions, rank, instruction.opcode):
            yield (
                kind,
                [instruction._replace(attributes=instruction.attributes.replaced(dimensions=axes))],
            )
    if instruction.opcode == "iota" and shape.rank > 1:
        axis = (instruction.attributes.integer("iota_dimension") + 1) % shape.rank
        yield (
            "axis of iota",
            [instruction._replace(attributes=instruction.attributes.replaced(iota_dimension=axis))],
        )
    if instruction.opcode == "reverse":
        yield "reverse dropped", [_copy(instruction, instruction.operands[0])]
    if instruction.opcode == "dot":
        for key, operand in (("lhs_contracting_dims", 0), ("rhs_contracting_dims", 1)):
            rank = operands[operand].rank  # type: ignore[attr-defined]
            for axes in _other_axes(instruction.attributes.integers(key), rank, "reduce"):
                changed = instruction.attributes.replaced(**{key: axes})
                yield "axis of dot", [instruction._replace(attributes=changed)]
    if instruction.opcode == "slice":
        yield from _moved_slices(instruction, source.dimensions)


def _moved_slices(instruction: Instruction, sizes: tuple[int, ...]) -> Made:
    given = instruction.attributes["slice"]
    ranges = [y for y in given if isinstance(y, SliceRange)] if isinstance(given, tuple) else []
    for axis, part in enumerate(ranges):
        for by in (1, -1):
            if part.start + by >= 0 and part.limit + by <= sizes[axis]:
                moved = list(ranges)
                moved[axis] = SliceRange(part.start + by, part.limit + by, part.stride)
                changed = instruction.attributes.replaced(slice=tuple(moved))
                yield "slice off by one", [instruction._replace(attributes=changed)]


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
    instructions: list[Instruction] = []
    place: list[int] = []
    for at, instruction in enumerate(old.instructions):
        for inserted in instead if at == position else [instruction]:
            last = len(instructions) - 1
            instructions.append(
                inserted._replace(
                    operands=tuple(last if i < 0 else place[i] for i in inserted.operands)
                )
            )
        place.append(len(instructions) - 1)
    new = replace(old, instructions=tuple(instructions), root=place[old.root])
    computations = tuple(new if c.name == name else c for c in module.computations)
    return replace(module, computations=computations)
