"""All programs; their names are theirs alone."""

from itertools import chain

from tools.spmd_conformance import networks, operations, regions
from tools.spmd_conformance.program import Program

PROGRAMS: tuple[Program, ...] = tuple(
    chain(networks.programs(), operations.programs(), regions.programs())
)
