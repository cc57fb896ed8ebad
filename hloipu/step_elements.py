"""Options by which a step takes several elements of its feeds, and their number."""

from hloipu_runtime.program.step_elements import elements_per_step

__all__ = ["OF_CUTTING", "elements_per_step"]

OF_CUTTING = frozenset(
    "micro_batches schedule reduction accumulator_dtype accumulator recompute offload plan "
    "offload_activations offload_weights offload_accumulators batch_serialization "
    "cut_at replicas ipus".split()
)
"""Options that make an update of several elements, or go with that; a forward step has none."""
