"""All programs, part by part; their names are theirs alone."""

from tools.spmd_conformance import large, networks, operations, regions, transformed, varied
from tools.spmd_conformance.program import Program

PARTS: dict[str, tuple[Program, ...]] = {
    "networks": tuple(networks.programs()),
    "operations": tuple(operations.programs()),
    "regions": tuple(regions.programs()),
    "varied": tuple(varied.programs()),
    "transformed": tuple(transformed.programs()),
    "large": tuple(large.programs()),
}
