"""What the verifier finds: where in the program, what is wrong, what was expected."""

from collections.abc import Sequence
from typing import NamedTuple

from hloipu_runtime.errors import HloipuError


class Fault(NamedTuple):
    """One thing that a program does not keep."""

    rule: str
    """Short name of the broken rule: resident, version, law, cover, transfer, grid, loop…"""
    place: str
    """Path of the step in the tree, and the instruction that it comes from."""
    message: str


class ProgramError(HloipuError):
    """A program whose descriptors do not do what its logical form says."""

    exit_code = 9

    def __init__(self, faults: Sequence[Fault]) -> None:
        first = faults[0]
        more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
        super().__init__(
            "E4050",
            f"program not proved: {first.place}: {first.message}{more}",
            hint="compile the module again; a program that fails its proof is not run",
        )
        self.faults = tuple(faults)
