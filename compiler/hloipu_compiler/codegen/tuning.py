"""What users may choose of how programs are written."""

from dataclasses import dataclass

from hloipu_runtime.element_types import ELEMENT_TYPES


@dataclass(frozen=True, slots=True)
class Tuning:
    """Choices for products, which default to poplibs's own, and for the steps of all programs."""

    partials_type: str = "f32"
    """In which f16 products add up between tiles; `f16` takes half of the memory and exchange."""
    memory_percent: int = 60
    """Share of a tile's memory that one plan may take (`availableMemoryProportion`)."""
    merge_steps: bool = True
    """Whether vertices and transfers that do not wait for each other go into one step."""

    def partial_type(self, kind: str) -> str:
        """Return the type of partial sums of a result: f32 for narrower floats, but as chosen."""
        element = ELEMENT_TYPES[kind]
        if kind == "f16":
            return self.partials_type
        return "f32" if element.is_float and element.bits < 32 else kind


DEFAULT_TUNING = Tuning()
