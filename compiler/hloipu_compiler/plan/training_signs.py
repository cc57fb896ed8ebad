"""Signs that a step trains; a step without state and without signs is a forward step.

A new weight has its weight's type and shape, and nothing of the batch, which its gradient is summed
over. Where no such pair is, nothing is learned. Where one is, a step trains that has ops of a
backward pass, a loss among its results, or as many such results as weights.
"""

from collections import Counter
from collections.abc import Sequence

from hloipu_compiler.analysis.written_state import is_written, keeps_parts
from hloipu_compiler.ir.graph import Module
from hloipu_compiler.plan.entry_arrays import (
    donated_alone,
    parameter_arrays,
    parameter_places,
    result_places,
)
from hloipu_compiler.plan.wrapping import EntryArray

_BACKWARD_WORDS = ("transpose(", "gradient_tape/", "gradients/", "_backward")
"""What JAX, TensorFlow and PyTorch write into names of what they differentiate."""
_BACKWARD_OPCODES = frozenset({"batch-norm-grad", "select-and-scatter"})
"""Ops that are gradients: of a normalisation, of the maximum of windows."""
_MOST_PAIRS = 64
"""Pairs whose new values are looked into."""


def sign_of_training(
    module: Module, parameters: Sequence[EntryArray], results: Sequence[EntryArray]
) -> str:
    """Return what says that a step trains, in words; empty: nothing does.

    `parameters`: those that may be weights; `results`: those that may be their next values, or a
    loss.
    """
    donors = donated_alone(module)
    if donors:
        return f"{len(donors)} parameters are donated"
    weights = [array for array in parameters if _is_array_of_floats(array)]
    new = [array for array in results if _is_array_of_floats(array)]
    kinds = {array.kind for array in weights}
    if kinds.isdisjoint(array.kind for array in new):
        return ""
    backward = _backward_op(module)
    if backward:
        return f"{backward} is of a backward pass"
    from hloipu_compiler.plan.forward_data import batch_arrays

    batch = batch_arrays(module)
    weights = [array for array in weights if array.number not in batch.parameters]
    new = [array for array in new if array.number not in batch.results]
    pairs = [(a, b) for a in weights for b in new if a.kind == b.kind][:_MOST_PAIRS]
    if not pairs:
        return ""
    weight, new_value = pairs[0]
    alike = f"result {new_value.number} is like parameter {weight}"
    losses = [array.number for array in results if is_loss(array)]
    if losses:
        return f"{alike}, and result {losses[0]} may be a loss"
    old_places, places = parameter_places(module), result_places(module)
    for a, b in pairs:
        ends = old_places[a.number], places[b.number]
        if keeps_parts(module, *ends) and not is_written(module, *ends):
            return f"result {b.number} is parameter {a} with parts of it recomputed"
    wanted = Counter(array.kind for array in weights)
    learned = sum((wanted & Counter(array.kind for array in new)).values())
    # What trains has data beside its state.
    arrays = sum(bool(array.shape) for array in parameter_arrays(module))
    if learned < arrays and 2 * learned > len(weights):
        return f"{learned} of {len(weights)} arrays that may be weights have results alike"
    return ""


def has_backward_names(metadata: str) -> bool:
    """Whether what a dump says of an op names it as of a backward pass."""
    return any(word in metadata for word in _BACKWARD_WORDS)


def is_float(array: EntryArray) -> bool:
    """Whether an array has floats, or complex numbers made of them."""
    return array.element_type.startswith(("f", "bf", "c"))


def is_loss(array: EntryArray) -> bool:
    """Whether a result may be a loss: one real number."""
    return is_float(array) and not array.shape and not array.element_type.startswith("c")


def _is_array_of_floats(array: EntryArray) -> bool:
    return bool(array.shape) and is_float(array)


def _backward_op(module: Module) -> str:
    """Return the name of an op of a backward pass; empty: none is seen."""
    for computation in module.computations:
        for instruction in computation.instructions:
            if instruction.opcode in _BACKWARD_OPCODES or (
                instruction.operands
                and instruction.metadata
                and has_backward_names(instruction.metadata)
            ):
                return instruction.name
            if instruction.opcode == "custom-call":
                target = instruction.attributes.text("custom_call_target").lower()
                if target.endswith(("grad", "backward", "_bwd")):
                    return instruction.name
    return ""
