"""Small modules of collectives for several participants, and inputs whose sums are exact."""

import numpy as np

from hloipu_compiler.hlo.parse import parse
from hloipu_compiler.ir.graph import Module
from hloipu_compiler.verify.verifier import verify
from tests.support.arrays import Array

Counts = tuple[int, int]
"""Replicas and partitions."""

R8, P8, R2P4, R4P2 = (8, 1), (1, 8), (2, 4), (4, 2)

HEADERS = {
    R8: ", replica_count=8",
    P8: ", num_partitions=8",
    R2P4: ", replica_count=2, num_partitions=4",
    R4P2: ", replica_count=4, num_partitions=2",
}

ADD = "add { a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT r = f32[] add(a, b) }"

PAIRS = "replica_groups={{0,1},{2,3},{4,5},{6,7}}"
CROSSED = "replica_groups={{7,0,3,4},{2,1,6,5}}"
FLATTENED = "channel_id=1, use_global_device_ids=true"


def module_of(body: str, counts: Counts, *more: str) -> Module:
    """Return the verified module of statements, `; ` between them, on `p`, f32[8,4].

    `more` are computations; `add` is always there.
    """
    lines = "\n  ".join(body.split("; "))
    entry = f"ENTRY e {{\n  p = f32[8,4] parameter(0)\n  {lines}\n}}"
    module = parse("\n\n".join([f"HloModule m{HEADERS[counts]}", ADD, *more, entry, ""]))
    verify(module)
    return module


def inputs(count: int) -> list[list[Array]]:
    """Return one f32[8,4] of small whole numbers for each participant."""
    random = np.random.default_rng(count)
    return [[random.integers(-9, 10, (8, 4)).astype(np.float32)] for _ in range(count)]
