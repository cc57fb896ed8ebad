"""The kinds of mutants: what is changed in a program's descriptors, its logical form untouched.

Each kind draws one place and one change there; None where the program has no such place.
"""

import random

from hloipu_runtime.program.collective import Collective, RemoteCopy
from hloipu_runtime.program.program import Program, Role
from hloipu_runtime.program.steps import StreamIn, StreamOut, Sync
from tools.prove_exchanges.channel_kinds import (
    channel_dropped,
    channel_moved,
    channels_swapped,
    end_moved,
    first_moved,
    on_channel,
    on_pipeline,
    page_moved,
    place_dropped,
    place_moved,
    places_turned,
    slots_changed,
    stage_moved,
)
from tools.prove_exchanges.order_kinds import exchange_moved, steps_swapped
from tools.prove_exchanges.places import Subject, Tamper
from tools.prove_exchanges.record_kinds import (
    partials_narrowed,
    role_changed,
    sync_lowered,
    sync_moved,
    type_narrowed,
)
from tools.prove_exchanges.remote_kinds import (
    branch_step_moved,
    carried_moved,
    collective_moved,
    copy_moved,
    dropped,
    state_moved,
    stream_moved,
)
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

PLAIN_KINDS: dict[str, Tamper] = {
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
    "sync dropped": dropped(Sync),
    "sync moved": sync_moved,
    "type narrowed": type_narrowed,
    "partials narrowed": partials_narrowed,
    "loaded for another role": role_changed(Role.CONSTANT),
    "streamed for another role": role_changed(Role.PARAMETER, Role.BUFFER),
    "made for another role": role_changed(Role.TEMPORARY),
}
"""Of any program that has transfers."""

CUT_KINDS: dict[str, Tamper] = {
    "channel dropped": on_pipeline(channel_dropped),
    "channel's end moved": on_channel(end_moved),
    "channel moved": on_channel(channel_moved),
    "channels swapped": on_pipeline(channels_swapped),
    "place moved": on_channel(place_moved),
    "place dropped": on_channel(place_dropped),
    "places turned": on_channel(places_turned),
    "slots changed": on_pipeline(slots_changed),
    "stage moved": on_pipeline(stage_moved),
    "copied once a group": on_pipeline(first_moved),
    "page moved": on_pipeline(page_moved),
    "branch's step moved": branch_step_moved,
    "remote copy dropped": dropped(RemoteCopy),
    "remote copy moved": copy_moved,
    "collective dropped": dropped(Collective),
    "collective moved": collective_moved,
    "stream dropped": dropped(StreamIn, StreamOut),
    "stream moved": stream_moved,
    "state moved": state_moved,
    "carried moved": carried_moved,
    "sync lowered": sync_lowered,
    "kept for another role": role_changed(Role.STATE, Role.REMOTE),
}
"""Of steps that are cut over IPUs and replicas, or keep state."""

KINDS = PLAIN_KINDS | CUT_KINDS
"""The published list; mutants are drawn uniformly over it."""


def mutant(subject: Subject, kind: str, rng: random.Random) -> Program | None:
    """Return a tampered program of one kind, or None where the draw finds no place for it."""
    changed = KINDS[kind](subject, rng)
    return None if changed == subject.program else changed
