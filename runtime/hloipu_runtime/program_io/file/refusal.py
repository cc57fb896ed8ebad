"""How checks refuse a file, and which errors count as bad codelet parameters."""

from typing import NoReturn, Protocol

NONSENSE = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""What python and numpy raise where numbers do not fit together.

Codelets compute with their parameters and do not check them: a compiler's are right. Those of a
file may be anything, and whatever comes of them is the file's fault.
"""


class Refuse(Protocol):
    """Raises ArtefactError E4011 for a place in the program."""

    def __call__(self, place: str, fault: str) -> NoReturn:
        """Raise."""
        ...
