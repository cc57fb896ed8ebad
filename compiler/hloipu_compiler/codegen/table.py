"""All lowerings, registered by importing their files."""

from hloipu_compiler.codegen import (  # noqa: F401  (each registers its lowerings)
    batch_norms,
    collectives,
    contractions,
    control,
    convolutions,
    custom_calls,
    elementwise,
    fusions,
    host_queues,
    indexing,
    linear_algebra,
    movement,
    randomness,
    reductions,
    reinterpreting,
    scans,
    sorting,
    special_dots,
    spectra,
    top_k,
    updating,
    windows,
)
from hloipu_compiler.codegen.site import LOWERINGS

__all__ = ["LOWERINGS"]
