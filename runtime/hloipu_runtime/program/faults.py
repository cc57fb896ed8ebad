"""The verifier's faults: place in the program, what is wrong, what was expected."""

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


REPORT = (
    'the module is not at fault: please report this as README.md says under "Reporting a fault", '
    "with what `hloipu reduce FILE --error E4050 -o small.hlo` writes, given the same options"
)
"""What to do about a program of our own that is not proved."""


class ProgramError(HloipuError):
    """A program whose descriptors do not do what its logical form says.

    One that was just compiled is our own fault. `name`: the file that it was read from, which is
    damaged or forged then.
    """

    exit_code = 9

    def __init__(self, faults: Sequence[Fault], *, name: str | None = None) -> None:
        first = faults[0]
        more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
        summary = f"program not proved: {first.place}: {first.message}{more}"
        if name is None:
            super().__init__("E4050", f"internal error of hloipu: {summary}", hint=REPORT)
        else:
            super().__init__(
                "E4050",
                f"{name}: {summary}" if name else summary,
                hint="the file is damaged or forged: compile the module again; a program that "
                "fails its proof is not run",
            )
        self.faults = tuple(faults)
