"""Which ways to cut a step are looked at, and what users say of them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import TypeVar

from hloipu_compiler.choosing.outlook import Step
from hloipu_compiler.choosing.way import AUTO, OFF, Way
from hloipu_compiler.plan.schedule import GROUPED, SCHEDULES, SEQUENTIAL
from hloipu_compiler.staging.errors import StagingError

T = TypeVar("T")

_MOST_WAYS = 10_000
_FEWEST_ROUNDS = 6
"""Micro-batches looked at are powers of two up to 2 to this, and at least four times the stages;
of many stages none that leave most of them idle, but for one."""
_MOST_DOUBLED = 32
"""Stages that are put two on each IPU, at most."""
_RECOMPUTE = ("none", "cheap", "full")
_OFFLOAD = (AUTO, OFF, "on")
_MAPS = ("straight", "folded", "looped")
"""Stages on IPUs of their own; two on each, there and back again; two on each, round twice."""


@dataclass(frozen=True)
class Given:
    """What is settled; None: to be looked for."""

    stages: int | None = None
    schedule: str | None = None
    micro_batches: int | None = None
    recompute: str | None = None
    offload: str | None = None
    replicas: int | None = None
    shard_optimizer: bool | None = None
    device_map: tuple[int, ...] | None = None


def ways_on(step: Step, ipus: int, given: Given | None = None) -> list[Way]:
    """Return the ways to look at on up to so many IPUs, with what is given as it is."""
    given = given or Given()
    trains = step.loads.trains
    found: list[Way] = []
    for count, on in _systems(step, ipus, given):
        used = max(on) + 1 if on else count
        copies = given.replicas or max(1, ipus // used)
        several = trains and count > 1
        shards = (False, True) if trains and copies > 1 else (False,)
        found += [
            Way(count, kind, k, again, copies, offload, shard, on)
            for kind, k, again, offload, shard in product(
                _one(given.schedule, (_schedules(trains) if count > 1 else (GROUPED,))),
                _one(given.micro_batches, _rounds(count)),
                _one(given.recompute, _RECOMPUTE if several else ("none",)),
                _one(given.offload, (AUTO, OFF) if trains and step.has_remote else (AUTO,)),
                _one(given.shard_optimizer, shards),
            )
        ]
    return found


def _one(given: T | None, others: Sequence[T]) -> Sequence[T]:
    return others if given is None else (given,)


def _schedules(trains: bool) -> Sequence[str]:
    return SCHEDULES if trains else (GROUPED, SEQUENTIAL)


def _rounds(stages: int) -> list[int]:
    top = max(_FEWEST_ROUNDS, (4 * stages - 1).bit_length())
    return [2**n for n in range(top + 1) if n == 0 or 2 ** (n + 1) >= stages]


def _systems(step: Step, ipus: int, given: Given) -> list[tuple[int, tuple[int, ...]]]:
    """Return counts of stages, with the IPU of each stage; none: one after the other."""
    if given.device_map:
        return [(len(given.device_map), given.device_map)]
    settled = step.stage_count or given.stages
    ahead = len(step.loads.ahead)
    most = min(ipus, ahead)
    powers = {2**n for n in range(1, most.bit_length())}
    counts = [settled] if settled else sorted({1, most} | powers)
    found: list[tuple[int, tuple[int, ...]]] = [(n, ()) for n in counts if n <= ipus]
    doubled = (
        [settled]
        if settled
        else [2 * n for n in counts if n > 1 and 2 * n <= min(ahead, _MOST_DOUBLED)]
    )
    for count in doubled:
        if count % 2 == 0 and 2 < count <= 2 * ipus:
            found += [(count, device_map(kind, count)) for kind in _MAPS[1:]]
    return found or [(counts[0], ())]


def device_map(kind: str, stages: int) -> tuple[int, ...]:
    """Return the IPU of each stage; empty where each has its own, one after the other."""
    if stages % 2 or kind == "straight":
        return ()
    half = tuple(range(stages // 2))
    return half + (half[::-1] if kind == "folded" else half)


# --- what users sweep over ------------------------------------------------------------------------


def _number(most: int) -> Callable[[str], object]:
    def read(text: str) -> object:
        is_number = text.isdecimal() and len(text) < 20
        return int(text) if is_number and 1 <= int(text) <= most else None

    return read


def _word(*words: str) -> Callable[[str], object]:
    return lambda text: text if text in words else None


def _flag(text: str) -> object:
    return {"on": True, "off": False}.get(text)


_MOST = 2**62
_READERS: Mapping[str, tuple[Callable[[str], object], str]] = {
    "stages": (_number(_MOST), ""),
    "schedule": (_word(*SCHEDULES), ", ".join(SCHEDULES)),
    "micro-batches": (_number(_MOST), f"a number from 1 to {_MOST:,}"),
    "recompute": (_word(*_RECOMPUTE), "none, cheap or full"),
    "replicas": (_number(_MOST), f"a number from 1 to {_MOST:,}"),
    "offload": (_word(*_OFFLOAD), "on, off or auto"),
    "shard-optimizer": (_flag, "on or off"),
    "device-map": (_word(*_MAPS), ", ".join(_MAPS)),
}
KEYS = tuple(_READERS)


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
    found: list[Way] = []
    for values in product(*lists.values()):
        named = dict(zip(lists, values, strict=True))
        kind = named.pop("device_map", None)
        way = replace(start, **named)  # type: ignore[arg-type]
        if kind is not None:
            way = replace(way, device_map=device_map(str(kind), way.stages))
        elif len(way.device_map) != way.stages:
            way = replace(way, device_map=())
        found.append(way)
    return list(dict.fromkeys(found))


def _value(key: str, text: str, step: Step) -> object:
    if key not in _READERS:
        raise StagingError("E0520", f"cannot sweep over {key!r}", hint=f"keys: {', '.join(KEYS)}")
    read, expected = _READERS[key]
    found = read(text)
    most = len(step.loads.ahead)
    if key == "stages" and isinstance(found, int) and found > most:
        found = None
    if found is None:
        raise StagingError(
            "E0520",
            f"{key}={text} cannot be swept over",
            hint=f"{key} takes {expected or f'a number from 1 to {most:,}'}",
        )
    return found
