"""Which ways to cut a step are looked at, and what users say of them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product

from hloipu_compiler.choosing.outlook import Step
from hloipu_compiler.choosing.way import Way
from hloipu_compiler.plan.schedule import GROUPED, SCHEDULES, SEQUENTIAL
from hloipu_compiler.staging.errors import StagingError

KEYS = ("stages", "schedule", "micro-batches", "recompute", "replicas")
_MOST_WAYS = 10_000
_FEWEST_ROUNDS = 6
"""Micro-batches looked at are powers of two up to 2 to this, and at least four times the stages."""


def ways_on(step: Step, ipus: int, micro_batches: int | None) -> list[Way]:
    """Return the ways to look at on up to so many IPUs; `micro_batches` where they are given."""
    most = min(ipus, len(step.loads.ahead))
    stages = sorted({1, most} | {2**n for n in range(1, most.bit_length())})
    trains = step.loads.trains
    schedules = SCHEDULES if trains else (GROUPED, SEQUENTIAL)
    found = []
    for count in stages:
        top = max(_FEWEST_ROUNDS, (4 * count - 1).bit_length())
        each = [micro_batches] if micro_batches else [2**n for n in range(top + 1)]
        kinds = schedules if count > 1 else (GROUPED,)
        again = ("none", "full") if trains and count > 1 else ("none",)
        copies = ipus // count
        found += [Way(count, kind, k, r, copies) for kind, k, r in product(kinds, each, again)]
    return found


def swept(step: Step, asked: Mapping[str, Sequence[str]], start: Way) -> list[Way]:
    """Return every combination of the values asked for; others are those of `start`.

    Raises StagingError E0520 for a key or value that is none, and for too many combinations.
    """
    lists: dict[str, list[object]] = {}
    count = 1
    for key, texts in asked.items():
        lists[key.replace("-", "_")] = [_value(key, text, step) for text in texts]
        count *= len(texts)
    if count > _MOST_WAYS:
        raise StagingError(
            "E0520",
            f"{count:,} combinations are more than the {_MOST_WAYS:,} that are looked at",
            hint="sweep over fewer values",
        )
    return [
        replace(start, **dict(zip(lists, values, strict=True)))  # type: ignore[arg-type]
        for values in product(*lists.values())
    ]


def _value(key: str, text: str, step: Step) -> object:
    if key in ("stages", "micro-batches", "replicas"):
        most = len(step.loads.ahead) if key == "stages" else 2**62
        if text.isdecimal() and 1 <= len(text) < 20 and 1 <= int(text) <= most:
            return int(text)
        raise _no(key, text, f"a number from 1 to {most:,}")
    if key == "schedule":
        if text in SCHEDULES:
            return text
        raise _no(key, text, ", ".join(SCHEDULES))
    if key == "recompute":
        if text in ("none", "full"):
            return text
        raise _no(key, text, "none or full")
    raise StagingError("E0520", f"cannot sweep over {key!r}", hint=f"keys: {', '.join(KEYS)}")


def _no(key: str, text: str, expected: str) -> StagingError:
    return StagingError(
        "E0520", f"{key}={text} cannot be swept over", hint=f"{key} takes {expected}"
    )
