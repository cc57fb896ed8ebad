"""Timeline of a program: order of steps with loops and pipelines folded, as traces unfold it.

A program that runs for a million steps has few blocks. Whoever draws it unfolds only what can be
seen, so that a timeline is as small as the program, however long the program runs.
"""

from collections.abc import Sequence
from typing import Any

from hloipu_runtime.costs.costs import (
    BlockCost,
    Called,
    Choice,
    Costs,
    DataLoop,
    Inner,
    Loop,
    Pipelined,
    Together,
    blocks_inside,
)
from hloipu_runtime.costs.counting import BlockCounts, cycles_of_blocks

_BEFORE_ALL = ("call", "fetched")
"""What a block does before its numbered steps, by the first part of its path; the rest is after."""
_SLOT_ENDS = ("slots", "stored")

Place = tuple[int, ...]


def full_timeline(costs: Costs, counts: BlockCounts) -> dict[str, Any]:
    """Return `timeline_record`, and of each step its cycles, name, kind, IPUs and tiles."""
    return timeline_record(costs, counts) | {
        "step_cycles": [step.spent.total.cycles for step in costs.steps],
        "step_names": [step.shares[0][0] if step.shares else "" for step in costs.steps],
        "step_kinds": [step.kind for step in costs.steps],
        "step_ipus": [list(step.ipus) for step in costs.steps],
        "step_tiles": [step.tiles for step in costs.steps],
    }


def timeline_record(costs: Costs, counts: BlockCounts) -> dict[str, Any]:
    """Return the blocks of a program and what is inside them as JSON data.

    `blocks`: each with `path`, `ipus`, `cycles` of one execution (0: it never runs), and `entries`
    in the order of the program: numbers of steps, or `~number` of what is inside. `inner`: `kind`
    (repeat, while, choice, together, pipeline, call), `name`, `blocks`, and `times`: how often each
    runs in one execution, a mean where data decides. A pipeline has besides `micro_batches`,
    `interval`, `group`, the `ipus` of each position, and `slot_end_cycles` of all its slots.
    `root` is the block of the program's body, `runs` how often it ran.
    """
    totals = cycles_of_blocks(costs, counts)
    inner_records: list[dict[str, Any]] = []
    blocks: list[dict[str, Any]] = []
    for number, block in enumerate(costs.blocks):
        numbers = range(len(inner_records), len(inner_records) + len(block.inner))
        inner_records += [
            _inner_record(costs, counts, block, number, inner) for inner in block.inner
        ]
        blocks.append(
            {
                "path": block.path,
                "ipus": sorted(block.ipus),
                "cycles": totals[number] / max(1, counts.counts[number]),
                "entries": _entries(costs, block, numbers),
            }
        )
    runs = counts.counts[costs.root]
    return {"root": costs.root, "runs": runs, "blocks": blocks, "inner": inner_records}


def _entries(costs: Costs, block: BlockCost, numbers: Sequence[int]) -> list[int]:
    """Return the steps and the inner records of a block, in the order of the program."""
    ends = {
        f"{pipeline.path}/{e}"
        for pipeline in block.inner
        if isinstance(pipeline, Pipelined)
        for e in _SLOT_ENDS
    }
    steps = [n for n in block.steps if costs.steps[n].path not in ends]
    placed = [(_place(block, costs.steps[n].path), n) for n in steps]
    calls = iter([place for place, n in placed if costs.steps[n].kind == "call"])
    for inner, record in zip(block.inner, numbers, strict=True):
        place = next(calls, ()) if isinstance(inner, Called) else _place(block, inner.path)
        placed.append((place, ~record))
    return [entry for _, entry in sorted(placed, key=lambda pipeline: pipeline[0])]


def _place(block: BlockCost, path: str) -> Place:
    """Return what orders the things of a block: the numbers that their path goes on with."""
    parts = path[len(block.path) + 1 :].split("/")
    numbers: list[int] = []
    for part in parts:
        if not part.isdecimal():
            break
        numbers.append(int(part))
    if numbers:
        return tuple(numbers)
    return (-1,) if parts[0] in _BEFORE_ALL else (1 << 62,)


def _inner_record(
    costs: Costs, counts: BlockCounts, block: BlockCost, number: int, inner: Inner
) -> dict[str, Any]:
    blocks = list(blocks_inside(inner))
    around = max(1, counts.counts[number])
    record: dict[str, Any] = {"name": getattr(inner, "name", ""), "blocks": blocks}
    match inner:
        case Loop():
            return record | {"kind": "repeat", "times": [inner.iterations]}
        case Called():
            return record | {"kind": "call", "times": [1]}
        case Together():
            return record | {"kind": "together", "times": [1] * len(blocks)}
        case DataLoop() | Choice():
            kind = "while" if isinstance(inner, DataLoop) else "choice"
            return record | {"kind": kind, "times": [counts.counts[b] / around for b in blocks]}
        case Pipelined():
            ends = [
                costs.steps[n].spent.total.cycles
                for n in block.steps
                if costs.steps[n].path in [f"{inner.path}/{end}" for end in _SLOT_ENDS]
            ]
            ipus_apart = [
                sorted(costs.blocks[transfer_block.block].ipus) for transfer_block in inner.apart
            ]
            return record | {
                "kind": "pipeline",
                "times": [inner.iterations] * len(blocks),
                "micro_batches": inner.iterations,
                "interval": inner.step.interval,
                "group": inner.step.group,
                "names": [stage.name for stage in inner.step.stages],
                "ipus": [list(ipus) for ipus in inner.ipus],
                "beside": [
                    {
                        "position": transfer_block.position,
                        "chassis": transfer_block.chassis,
                        "ipus": ipus,
                    }
                    for transfer_block, ipus in zip(inner.apart, ipus_apart, strict=True)
                ],
                "slot_end_cycles": sum(ends),
            }
