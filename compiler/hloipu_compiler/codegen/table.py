"""All lowerings, registered by importing their files."""

from hloipu_compiler.codegen import (
    batch_norms,
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
    updating,
    windows,
)
from hloipu_compiler.codegen.site import LOWERINGS

FAMILIES = (
    batch_norms,
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
    updating,
    windows,
)

__all__ = ["FAMILIES", "LOWERINGS"]
