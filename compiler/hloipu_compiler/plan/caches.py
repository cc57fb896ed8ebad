"""Recognises forward passes: steps that update nothing but caches."""

from collections.abc import Iterable, Sequence, Set

from hloipu_compiler.analysis.written_state import is_computed, is_written, keeps_parts
from hloipu_compiler.ir.graph import Module
from hloipu_compiler.plan.entry_arrays import parameter_arrays, parameter_places, result_places
from hloipu_compiler.plan.wrapping import EntryArray

Pairs = Sequence[tuple[int, int]]
"""Parameters that are state, and the results that are their next values."""
_BACKWARD_WORDS = ("transpose(", "gradient", "backward")
"""What JAX, TensorFlow and PyTorch write into names of what they differentiate."""


def caches_of(module: Module, state: Pairs, others: Set[int]) -> frozenset[int]:
    """Return the parameters of all state that changes, if it is caches and whole numbers alone.

    Keys and values of a decoder, positions, keys of random numbers: each micro-batch makes them
    anew. `others`: state of which that is known already. Empty where any other float is state, for
    that may be a weight.
    """
    arrays = parameter_arrays(module)
    given, made = parameter_places(module), result_places(module)
    state = [(p, r) for p, r in state if not _is_handed_back(module, given[p], made[r])]
    found = {parameter for parameter, _ in state} - others
    floats = [pair for pair in state if pair[0] in found and _is_float(arrays[pair[0]])]
    if all(is_written(module, given[p], made[r]) for p, r in floats):
        return frozenset(found)
    return frozenset()


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
    given, made = parameter_places(module), result_places(module)
    if any(keeps_parts(module, given[p], made[r]) for p, r in alike):
        return False
    if not any(is_computed(module, given[p], made[r]) for p, r in alike):
        return True
    if not all(_is_float(parameter_arrays(module)[p]) for p, _ in alike):
        return False
    names = [x.metadata for x in module.entry.instructions if x.metadata and x.operands]
    if not names or any(word in name for name in names for word in _BACKWARD_WORDS):
        return False
    return not any(_is_float(x) and not x.shape for x in results)


def _is_float(x: EntryArray) -> bool:
    return x.element_type.startswith(("f", "bf"))
