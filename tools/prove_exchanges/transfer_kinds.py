"""Kinds of mutants in which one transfer is another."""

import random
from collections.abc import Callable
from dataclasses import replace

from hloipu_runtime.program.program import Program
from hloipu_runtime.program.steps import Exchange, Transfer
from tools.prove_exchanges.places import Subject, Tamper, drawn, looks, moved, put, step_replaced


def on_transfer(
    change: Callable[[Subject, Transfer, random.Random], Transfer | None],
) -> Tamper:
    """Return the kind that changes one transfer."""

    def tamper(subject: Subject, rng: random.Random) -> Program | None:
        place = drawn(subject.transfers, rng)
        if place is None:
            return None
        step = place.block.steps[place.step]
        assert isinstance(step, Exchange)
        changed = change(subject, step.transfers[place.transfer], rng)
        if changed is None:
            return None
        transfers = list(step.transfers)
        transfers[place.transfer] = changed
        new = replace(step, transfers=tuple(transfers))
        return step_replaced(subject, place.block.path, place.step, new)

    return tamper


def transfer_dropped(subject: Subject, rng: random.Random) -> Program | None:
    """Leave out one transfer of an exchange."""
    place = drawn(subject.transfers, rng)
    if place is None:
        return None
    step = place.block.steps[place.step]
    assert isinstance(step, Exchange)
    kept = step.transfers[: place.transfer] + step.transfers[place.transfer + 1 :]
    return step_replaced(subject, place.block.path, place.step, replace(step, transfers=kept))


def shortened(subject: Subject, transfer: Transfer, rng: random.Random) -> Transfer | None:
    """Cut some elements from an end of the box, or of every tile's part."""
    long = [d for d, (low, high) in enumerate(transfer.box) if high - low > 1]
    wide = [d for d, span in enumerate(transfer.spans) if span.size > 1]
    if long and (not wide or rng.random() < 0.5):
        d = rng.choice(long)
        low, high = transfer.box[d]
        cut = rng.choice((1, (high - low) // 2))
        kept = (low + cut, high) if rng.random() < 0.5 else (low, high - cut)
        return replace(transfer, box=put(transfer.box, d, kept))
    if not wide:
        return None
    d = rng.choice(wide)
    span = transfer.spans[d]
    cut = rng.choice((1, span.size // 2))
    return replace(transfer, spans=put(transfer.spans, d, span._replace(size=span.size - cut)))


def shifted(subject: Subject, transfer: Transfer, rng: random.Random) -> Transfer | None:
    """Take from one block, or one element, further on or further back."""
    if not transfer.box:
        return None
    d = rng.randrange(len(transfer.box))
    far = rng.choice((1, transfer.spans[d].size)) * rng.choice((1, -1))
    if rng.random() < 0.7:
        return replace(transfer, shift=put(transfer.shift, d, transfer.shift[d] + far))
    low, high = transfer.box[d]
    size = subject.variable(transfer.destination).shape[d]
    if low + far < 0 or high + far > size:
        return None
    return replace(transfer, box=put(transfer.box, d, (low + far, high + far)))


def redirected(subject: Subject, transfer: Transfer, rng: random.Random) -> Transfer | None:
    """Send to the tiles beside the right ones, or to another variable."""
    variable = subject.variable(transfer.destination)
    others = [v for v in subject.alike[looks(variable)] if v != transfer.destination]
    if others and rng.random() < 0.4:
        return replace(transfer, destination=rng.choice(others))
    tiles = moved(transfer.tiles, subject.tiles_per_ipu, rng)
    return None if tiles is None else replace(transfer, tiles=tiles)


def stale_source(subject: Subject, transfer: Transfer, rng: random.Random) -> Transfer | None:
    """Send what another variable of the same type and shape holds."""
    variable = subject.variable(transfer.source)
    others = [v for v in subject.alike[looks(variable)] if v != transfer.source]
    return replace(transfer, source=rng.choice(others)) if others else None


def receivers_cut(subject: Subject, transfer: Transfer, rng: random.Random) -> Transfer | None:
    """Leave the first or the last tiles along an axis of the grid out."""
    if not transfer.receivers:
        return None
    axis = rng.randrange(len(transfer.receivers))
    low, high = transfer.receivers[axis]
    kept = (low + 1, high) if rng.random() < 0.5 else (low, high - 1)
    return replace(transfer, receivers=put(transfer.receivers, axis, kept))
