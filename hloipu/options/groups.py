"""Options by subject, for help texts and for `hloipu init`."""

from collections.abc import Mapping
from types import MappingProxyType

GROUPS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "Machine": ("target", "set", "ipus", "ipu_ids", "selection_order", "io_tiles"),
        "Many IPUs": tuple(
            "plan stages cut_at device_map schedule micro_batches batch_serialization reduction "
            "accumulator accumulator_dtype loss_output partition mesh shard shards replicas hosts "
            "replica_keys".split()
        ),
        "Memory": tuple(
            "over_memory code_memory recompute gather_weights offload offload_activations "
            "offload_weights offload_accumulators shard_optimizer outline hoist "
            "available_memory_proportion partials_type".split()
        ),
        "Loops and feeds": ("loop", "role", "feed", "outfeed", "assume_trips", "max_iterations"),
        "Values": ("mode", "poison", "seed", "synthetic_data", "random_bits", "fast"),
        "Compiler": (
            "passes", "plugin", "define", "opaque", "time_limit", "cache", "cache_dir",
            "cache_size_bytes",
        ),
    }
)  # fmt: skip
"""Heading -> options, in the order in which they are shown."""


def group_of(name: str) -> str:
    """Return the heading under which an option stands."""
    return next(heading for heading, names in GROUPS.items() if name in names)
