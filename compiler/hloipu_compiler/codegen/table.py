"""All lowerings, registered by importing their files."""

from hloipu_compiler.codegen import (
    contractions,
    control,
    custom_calls,
    elementwise,
    linear_algebra,
    movement,
    randomness,
    reductions,
    scans,
    sorting,
    spectra,
)
from hloipu_compiler.codegen.site import LOWERINGS

FAMILIES = (
    contractions,
    control,
    custom_calls,
    elementwise,
    linear_algebra,
    movement,
    randomness,
    reductions,
    scans,
    sorting,
    spectra,
)

__all__ = ["FAMILIES", "LOWERINGS"]
