"""Literals: the value of a constant, as the text it was written in or as an array.

Text stays text until somebody wants numbers (`hlo/literals/values.py` reads it), because most tools
that look at a program never look at its constants.
"""

from typing import TYPE_CHECKING

from hloipu_runtime.frozen import dataclass

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class Literal:
    """A literal: its text without the enclosing parentheses, or the array that a pass computed."""

    text: str = ""
    array: "NDArray[np.generic] | None" = None
    """In storage form (`hloipu_runtime.kernels`); None while only the text is known."""

    @property
    def is_elided(self) -> bool:
        """Whether the values were left out when the text was printed (`{...}`)."""
        return self.array is None and "..." in self.text

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Literal):
            return False
        if self.array is None and other.array is None:
            return self.text == other.text
        return self.array is other.array

    def __hash__(self) -> int:
        return hash(self.text) if self.array is None else id(self.array)
