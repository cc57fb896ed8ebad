"""Recognises forward passes: steps that update nothing but caches."""

from collections.abc import Iterable, Sequence, Set

from hloipu_compiler.analysis.written_state import is_computed, is_written, keeps_parts, parts_kept
from hloipu_compiler.ir.graph import Module
from hloipu_compiler.plan.entry_arrays import parameter_arrays, parameter_places, result_places
from hloipu_compiler.plan.training_signs import has_backward_names, is_float, is_loss
from hloipu_compiler.plan.wrapping import EntryArray

Pairs = Sequence[tuple[int, int]]
"""Parameters that are state, and the results that are their next values."""


def caches_of(module: Module, state: Pairs, known_caches: Set[int]) -> frozenset[int]:
    """Return the parameters of all state that changes, if it is caches and whole numbers alone.

    Keys and values of a decoder, positions, keys of random numbers: each micro-batch makes them
    anew. `known_caches`: state of which that is known. Empty where any other float is state,
    for that may be a weight.
    """
    arrays = parameter_arrays(module)
    parameter_indices, results = parameter_places(module), result_places(module)
    state = [
        (p, r) for p, r in state if not _is_handed_back(module, parameter_indices[p], results[r])
    ]
    caches = {parameter for parameter, _ in state} - known_caches
    floats = [pair for pair in state if pair[0] in caches and is_float(arrays[pair[0]])]
    if all(is_written(module, parameter_indices[p], results[r]) for p, r in floats):
        return frozenset(caches)
    return frozenset()


def written_caches(
    module: Module, parameters: Iterable[EntryArray], results: Iterable[EntryArray]
) -> list[tuple[int, int]]:
    """Return (parameter, result) of those where the result is the parameter with parts written.

    So a forward step hands on keys and values of earlier words, though nothing is donated.
    """
    old, new = parameter_places(module), result_places(module)
    numbers = {tuple(old[array.number]): array for array in parameters if array.shape}
    kinds = {array.kind for array in numbers.values()}
    written: list[tuple[int, int]] = []
    for result in results:
        if result.kind not in kinds:
            continue
        sources = [numbers.get(place) for place in parts_kept(module, new[result.number])]
        alike = [source for source in sources if source is not None and source.kind == result.kind]
        if len(alike) == 1 and is_written(module, old[alike[0].number], new[result.number]):
            written.append((alike[0].number, result.number))
            del numbers[old[alike[0].number]]
    return sorted(written)


def _is_handed_back(module: Module, parameter: Sequence[int], result: Sequence[int]) -> bool:
    """Whether a result is a parameter itself, which changes in no micro-batch."""
    root = module.entry.instructions[module.entry.root]
    if root.opcode != "tuple" or len(parameter) != 1 or len(result) != 1:
        return False
    returned = module.entry.instructions[root.operands[result[0]]]
    return returned.parameter_number == parameter[0]


def is_forward_pass(module: Module, alike: Pairs, results: Iterable[EntryArray]) -> bool:
    """Whether parameters and results that are alike have nothing else in common.

    So it is where no result has parts of its parameter, nor is computed from it as an update is.
    As a block with a skip computes its output that way too, it is so as well where the dump names
    its ops, none of them is of a backward pass, and no result could be a loss.
    """
    old, new = parameter_places(module), result_places(module)
    if any(keeps_parts(module, old[p], new[r]) for p, r in alike):
        return False
    if not any(is_computed(module, old[p], new[r]) for p, r in alike):
        return True
    if not all(is_float(parameter_arrays(module)[p]) for p, _ in alike):
        return False
    names = [op.metadata for op in module.entry.instructions if op.metadata and op.operands]
    if not names or any(map(has_backward_names, names)):
        return False
    return not any(is_loss(result) for result in results)
