"""Values of a lowering: tensors on tiles, and constants and broadcasts not yet written out."""

from hloipu_runtime.frozen import dataclass
from hloipu_runtime.program.mapping import Sizes
from hloipu_runtime.program.steps import ValueId, VariableId


@dataclass(frozen=True, slots=True)
class TileTensor:
    """A value that lies in a variable."""

    value: ValueId
    variable: VariableId
    element_type: str
    shape: Sizes


@dataclass(frozen=True, slots=True)
class Scalar:
    """A constant number, given by an exact text; it takes no memory until somebody needs it."""

    element_type: str
    text: str
    shape: Sizes = ()


@dataclass(frozen=True, slots=True)
class Spread:
    """A broadcast that has not been written out: the source's dimensions within a larger shape."""

    source: TileTensor | Scalar
    dimensions: tuple[int, ...]
    """For each dimension of the source, the one of the result that it becomes."""
    shape: Sizes

    @property
    def element_type(self) -> str:
        """Element type of source and result."""
        return self.source.element_type


@dataclass(frozen=True, slots=True)
class Token:
    """Nothing, but something to hand on."""

    element_type: str = "token"
    shape: Sizes = ()


Value = TileTensor | Scalar | Spread | Token
