"""Infer which parameters of a forward step are data.

By names, else by the graph: the batch is a dimension of data, of nearly all that is computed and of
results, and no side of a weight. Where it has size 1, whole numbers are data (words, places), or
what products of two parameters take as their input, or what is like a result; at last, the last
array.
"""

from collections import Counter
from collections.abc import Iterator, Sequence, Set
from typing import NamedTuple

from hloipu_compiler.analysis.scaling_dims import (
    WHOLE,
    Cell,
    Classes,
    arrays_of,
    looked_up,
    scaling_classes,
    weights,
)
from hloipu_compiler.ir.dimension_rules import rule_in
from hloipu_compiler.ir.factors import FactorKind
from hloipu_compiler.ir.graph import Computation, Module
from hloipu_compiler.ir.ops import Trait, with_trait
from hloipu_compiler.ir.shapes import ArrayShape
from hloipu_compiler.memo import Memo, Same
from hloipu_compiler.plan.entry_arrays import parameter_places, result_arrays, result_places
from hloipu_compiler.plan.training_signs import is_float
from hloipu_compiler.plan.wrapping import EntryArray
from hloipu_runtime.frozen import dataclass

_LEAST_SHARE = 0.5
"""Of the bytes that are computed from several parameters: what less has is a side of a weight."""
_APART = with_trait(Trait.ELEMENTWISE) | with_trait(Trait.APPLIER) | with_trait(Trait.CALLER)
"""Ops of two operands that are no products; asking for their rules would take longer."""
_MOVING = with_trait(Trait.DATA_MOVEMENT) | {"convert"}


@dataclass(frozen=True, slots=True)
class Batch:
    """The arrays that have a step's batch, by number; none where there is none or it has size 1."""

    parameters: frozenset[int] = frozenset()
    results: frozenset[int] = frozenset()


def batch_arrays(module: Module) -> Batch:
    """Return the parameters and results that have the batch of a forward step.

    Looked for among dimensions that lead in parameters and are nothing else there: one that results
    have, one that products keep and sum over (as gradients are), one that nearly all arrays have;
    then, as where the leading ones have size 1, among all that no product with a parameter sums
    over.
    """
    return _MEMO.of(Same(module), lambda: _batch_arrays(module))


_MEMO: Memo[Batch] = Memo(1)
"""The last answer: signs of training and data are both told by it."""


def _batch_arrays(module: Module) -> Batch:
    classes = scaling_classes(module)
    parameters_of = _arrays_with(module, classes, is_result=False)
    returned = _arrays_with(module, classes, is_result=True)
    shared = parameters_of.keys() & returned.keys()
    sizes, total_bytes = _computed_bytes(module, classes)
    leading, inner, lengths = _places(module, classes)
    pointed = looked_up(module, classes)
    alone = leading - inner - pointed - weights(module, classes)

    def largest(possible: Set[Cell]) -> Batch | None:
        """Join classes that are as long and at the same place of results: twins, never combined."""
        alike: dict[tuple[int, int], list[Cell]] = {}
        for cell in possible:
            outermost = min(returned.get(cell, {0: 0}).values())
            alike.setdefault((-outermost, lengths[cell]), []).append(cell)
        # Of several that all arrays have, as heads and rows of attention, the outermost.
        weighed = (
            (sum(sizes.get(member, 0) for member in cells), key) for key, cells in alike.items()
        )
        size, key = max(weighed, default=(0, (0, 0)))
        if not size or size < _LEAST_SHARE * total_bytes:
            return None
        members = alike[key]
        return Batch(
            frozenset(number for cell in members for number in parameters_of[cell]),
            frozenset(number for cell in members for number in returned.get(cell, ())),
        )

    if (batch := largest(alone & shared)) is not None:
        return batch
    kept_and_summed = _kept_and_summed(module, classes)
    numbers = [
        number for cell in alone & kept_and_summed - shared for number in parameters_of[cell]
    ]
    if numbers:
        return Batch(frozenset(numbers))
    if (batch := largest(alone - shared)) is not None:
        return batch
    possible = (leading | inner) & shared - pointed - _summed_with_parameters(module, classes)
    return largest(possible) or Batch()


def _places(module: Module, classes: Classes) -> tuple[Set[Cell], Set[Cell], dict[Cell, int]]:
    """Return the classes of parameters' leading dimensions, of their others, and their sizes."""
    leading, inner, entry = set[Cell](), set[Cell](), module.entry
    lengths: dict[Cell, int] = {}
    for position in entry.parameters:
        for element, array in arrays_of(entry.instructions[position].shape):
            for dimension, length in enumerate(array.dimensions):
                cell = classes.of_cell.get(Cell(entry.name, position, element, dimension))
                if cell is not None:
                    (inner if dimension else leading).add(cell)
                    lengths[cell] = length
    return leading, inner, lengths


class Data(NamedTuple):
    """Parameters that are data, by number."""

    numbers: tuple[int, ...]
    why: str
    """What says so, as in "taken for data, as …"."""
    is_certain: bool
    """Whether names or a batch say so."""


def forward_data(
    module: Module, parameters: Sequence[EntryArray], free: Sequence[EntryArray]
) -> Data:
    """Return which of some parameters of a step are data, the others being weights.

    Where arguments of several arrays hold weights, those that are one array are data; else the
    graph tells. Numbers are data only where there is nothing else. `free`: one or more parameters
    that may be data.
    """
    arrays = [array for array in free if array.shape] or list(free)
    if len(arrays) == 1:
        return Data((arrays[0].number,), "all that is left", True)
    sizes = Counter(array.group for array in parameters)
    single = tuple(array.number for array in arrays if array.group and sizes[array.group] == 1)
    if single and len(single) < len(arrays):
        return Data(single, "arguments of one array each", True)
    whole_numbers = {array.number for array in arrays if array.shape and not is_float(array)}
    carrying = batch_arrays(module).parameters & {array.number for array in arrays}
    if carrying:
        why = "having the batch" + (", or whole numbers" if whole_numbers - carrying else "")
        return Data(tuple(sorted(carrying | whole_numbers)), why, True)
    if whole_numbers:
        why = "whole numbers, the others being floats"
        return Data(tuple(sorted(whole_numbers)), why, False)
    inputs = _inputs_of_products(module)
    fed = tuple(array.number for array in arrays if array.number in inputs)
    if fed:
        return Data(fed, "what products of parameters take as input", False)
    kinds = {array.kind for array in result_arrays(module)}
    alike = tuple(array.number for array in arrays if array.shape and array.kind in kinds)
    return (
        Data(alike, "like results", False)
        if alike
        else Data((arrays[-1].number,), "the last array", False)
    )


def frozen_weights(module: Module, free: Sequence[EntryArray]) -> frozenset[int]:
    """Return which parameters of a training step are weights that it leaves alone, by number.

    They are arguments of several arrays, all of floats and none with the batch, beside others that
    have it: the base of low-rank adapters, a teacher, a reference policy. `free`: what is no state.
    """
    carrying = batch_arrays(module).parameters
    groups: dict[str, list[EntryArray]] = {}
    for array in free:
        groups.setdefault(array.group, []).append(array)
    if carrying.isdisjoint(parameter.number for parameter in free):
        return frozenset()
    return frozenset(
        member.number
        for name, arrays in groups.items()
        if name
        and len(arrays) > 1
        and all(is_float(a) and a.number not in carrying for a in arrays)
        and any(a.shape for a in arrays)
        for member in arrays
    )


def _arrays_with(
    module: Module, classes: Classes, *, is_result: bool
) -> dict[Cell, dict[int, int]]:
    """Return for each class of dimensions the parameters or results that have it, and which is it.

    The last is the outermost dimension of the array that is of the class.
    """
    entry = module.entry
    places_of_class: dict[Cell, dict[int, int]] = {}
    places = result_places(module) if is_result else parameter_places(module)
    arrays: dict[int, dict[int, ArrayShape]] = {}
    for number, place in enumerate(places):
        position = entry.root if is_result else entry.parameters[place[0]]
        path = place if is_result else place[1:]
        if len(path) > 1:
            continue  # classes know of no tuples in tuples
        element = path[0] if path else WHOLE
        if position not in arrays:
            arrays[position] = dict(arrays_of(entry.instructions[position].shape))
        if (array := arrays[position].get(element)) is not None:
            for dimension in range(array.rank):
                cell = classes.of_cell.get(Cell(entry.name, position, element, dimension))
                if cell is not None:
                    places_of_class.setdefault(cell, {}).setdefault(number, dimension)
    return places_of_class


def _computed_bytes(module: Module, classes: Classes) -> tuple[dict[Cell, int], int]:
    """Return the bytes of arrays that have a class, and of all, of those made of two parameters.

    Of a step with one parameter, of all that is made of it.
    """
    entry = module.entry
    least = _SEVERAL if len(entry.parameters) > 1 else 0
    sizes: dict[Cell, int] = {}
    total_bytes = 0
    for position, source in enumerate(_sources(entry)):
        if source != least or entry.instructions[position].opcode == "tuple":
            continue
        for element, array in arrays_of(entry.instructions[position].shape):
            total_bytes += array.byte_count
            cells = (Cell(entry.name, position, element, d) for d in range(array.rank))
            for cell in {classes.of_cell[cell] for cell in cells if cell in classes.of_cell}:
                sizes[cell] = sizes.get(cell, 0) + array.byte_count
    return sizes, total_bytes


_NOTHING, _SEVERAL = -1, -2


def _sources(computation: Computation) -> list[int]:
    """Return of each position the parameter that it is made of, `_NOTHING` or `_SEVERAL`."""
    sources_of: list[int] = []
    for instruction in computation.instructions:
        sources = {sources_of[i] for i in instruction.operands} - {_NOTHING}
        if instruction.parameter_number >= 0:
            sources_of.append(instruction.parameter_number)
        elif len(sources) > 1:
            sources_of.append(_SEVERAL)
        else:
            sources_of.append(sources.pop() if sources else _NOTHING)
    return sources_of


def _moved(computation: Computation) -> list[int]:
    """Return of each position the parameter that it is, moved or converted; `_NOTHING`: none."""
    moved: list[int] = []
    for instruction in computation.instructions:
        if instruction.parameter_number >= 0:
            moved.append(instruction.parameter_number)
        else:
            moved.append(
                moved[instruction.operands[0]] if instruction.opcode in _MOVING else _NOTHING
            )
    return moved


def _kept_and_summed(module: Module, classes: Classes) -> Set[Cell]:
    """Return the classes that one product keeps and another one sums over."""
    entry = module.entry
    uncontracted, contracted = set[Cell](), set[Cell]()
    for position, summed in _products(entry):
        instruction = entry.instructions[position]
        rank = instruction.shape.rank if isinstance(instruction.shape, ArrayShape) else 0
        for at, dimensions, into in (
            (position, range(rank), uncontracted),
            *((i, summed[side], contracted) for side, i in enumerate(instruction.operands)),
        ):
            cells = (Cell(entry.name, at, WHOLE, d) for d in dimensions)
            into.update(classes.of_cell[cell] for cell in cells if cell in classes.of_cell)
    return uncontracted & contracted


def _summed_with_parameters(module: Module, classes: Classes) -> Set[Cell]:
    """Return the classes that products sum over where one of their operands is a parameter."""
    entry = module.entry
    moved = _moved(entry)
    summed_over = set[Cell]()
    for position, summed in _products(entry):
        operands = entry.instructions[position].operands[:2]
        if any(moved[i] != _NOTHING for i in operands):
            cells = (
                Cell(entry.name, i, WHOLE, d)
                for i, dimensions in zip(operands, summed, strict=True)
                for d in dimensions
            )
            summed_over.update(classes.of_cell[cell] for cell in cells if cell in classes.of_cell)
    return summed_over


def _products(computation: Computation) -> Iterator[tuple[int, tuple[tuple[int, ...], ...]]]:
    for position, instruction in enumerate(computation.instructions):
        if len(instruction.operands) != 2 or instruction.opcode in _APART:
            continue
        rule = rule_in(computation, instruction)
        summed = tuple(rule.dimensions(side, FactorKind.REDUCTION) for side in (0, 1))
        if all(summed):
            yield position, summed


def _inputs_of_products(module: Module) -> Set[int]:
    """Return the parameters that products take as input, whose other operand is one as well.

    Of a convolution its left operand by meaning; of other products as frameworks write layers.
    """
    entry = module.entry
    moved, places = _moved(entry), parameter_places(module)
    first = {place[0]: number for number, place in reversed(list(enumerate(places)))}
    inputs = set[int]()
    for position, _ in _products(entry):
        operands = entry.instructions[position].operands
        if all(moved[i] != _NOTHING for i in operands):
            inputs.add(first[moved[operands[0]]])
    return inputs
