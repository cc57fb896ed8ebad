"""All programs, part by part; their names are theirs alone."""

from tools.spmd_conformance import large, networks, operations, regions
from tools.spmd_conformance.program import Program

PARTS: dict[str, tuple[Program, ...]] = {
    "networks": tuple(networks.programs()),
    "operations": tuple(operations.programs()),
    "regions": tuple(regions.programs()),
    "large": tuple(large.programs()),
}
