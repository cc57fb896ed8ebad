"""All lowerings, registered by importing their files."""

from hloipu_compiler.codegen import (
    contractions,
    control,
    elementwise,
    movement,
    reductions,
)
from hloipu_compiler.codegen.site import LOWERINGS

FAMILIES = (contractions, control, elementwise, movement, reductions)

__all__ = ["FAMILIES", "LOWERINGS"]
