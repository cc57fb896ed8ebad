"""The kinds of mutants: what is changed in a program's descriptors, its logical form untouched.

Each kind draws one place and one change there; None where the program has no such place.
"""

import random

from hloipu_runtime.program.program import Program
from tools.prove_exchanges.order_kinds import exchange_moved, steps_swapped
from tools.prove_exchanges.places import Subject, Tamper
from tools.prove_exchanges.transfer_kinds import (
    on_transfer,
    receivers_cut,
    redirected,
    shifted,
    shortened,
    stale_source,
    transfer_dropped,
)
from tools.prove_exchanges.vertex_kinds import (
    on_group,
    operand_moved,
    stale_operand,
    vertices_moved,
)

KINDS: dict[str, Tamper] = {
    "transfer dropped": transfer_dropped,
    "transfer shortened": on_transfer(shortened),
    "transfer shifted": on_transfer(shifted),
    "transfer redirected": on_transfer(redirected),
    "multicast group cut": on_transfer(receivers_cut),
    "stale version sent": on_transfer(stale_source),
    "stale version read": on_group(stale_operand),
    "operand moved": on_group(operand_moved),
    "vertices moved": on_group(vertices_moved),
    "steps swapped": steps_swapped,
    "exchange moved": exchange_moved,
}
"""The published list; mutants are drawn uniformly over it."""


def mutant(subject: Subject, kind: str, rng: random.Random) -> Program | None:
    """Return a tampered program of one kind, or None where the draw finds no place for it."""
    made = KINDS[kind](subject, rng)
    return None if made == subject.program else made
