"""Enumeration of candidates, within what users ask for."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, product
from typing import TypeVar

from hloipu_compiler.partition.search.best import best_of
from hloipu_compiler.partition.search.candidate import AUTO, OFF, OFFLOADABLE, Candidate, Estimate
from hloipu_compiler.partition.search.estimates import Step
from hloipu_compiler.partition.stages.recomputing import BLOCKS, CHEAP, FULL, NONE
from hloipu_compiler.partition.training.errors import StagingError
from hloipu_compiler.plan.schedule import GROUPED, SCHEDULES, SEQUENTIAL
from hloipu_runtime.nearest import did_you_mean

T = TypeVar("T")

_MOST_WAYS = 10_000
_FEWEST_ROUNDS = 6
"""Micro-batches looked at are powers of two up to 2 to this, and at least four times the stages;
of many stages none that leave most of them idle, but for one."""
_MOST_DOUBLED = 32
"""Stages that are put two on each IPU, at most."""
_GROUPS = (4, 16, 64)
"""Micro-batches that a stage does before the next one, for which its weights come once."""
_IN_TURN = (2, 4, 8)
"""Stages of a step that one IPU trains, one after the other: each makes again what it reads."""
_STAGES_PER_IPU = (4, 8, 16)
"""Stages of each IPU, where nothing else fits."""
_MOST_STAGES = 128
"""Stages in all, then."""
_RECOMPUTE = (NONE, CHEAP, BLOCKS, FULL)
_ALONE = (NONE, BLOCKS)
"""Of a stage that has no backward part apart from the forward one."""
_OFFLOAD = (AUTO, OFF, "on")
_MAPS = ("straight", "folded", "looped", "returning")
"""Stages on IPUs of their own; two on each, there and back again; two on each, round twice; one on
each, and the last on the first IPU, where a weight may be that both read."""


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
    offloading: frozenset[str] = frozenset()
    """What lies in remote memory, of `OFFLOADABLE`; the rest is to be looked for."""
    batch_serialization: int | None = None


def candidates_on(step: Step, ipus: int, given: Given | None = None) -> list[Candidate]:
    """Return the candidates on up to `ipus` IPUs; settings that are given stay fixed."""
    given = given or Given()
    trains = step.loads.trains
    candidates: list[Candidate] = []
    for count, on in _systems(step, ipus, given):
        used = max(on) + 1 if on else count
        copies = given.replicas or max(1, ipus // used)
        several = trains and count > 1
        shards = (False, True) if trains and copies > 1 else (False,)
        group = given.batch_serialization or 1
        candidates += [
            replace(
                Candidate(count, kind, k, again, copies, offload, shard, on).offloading(
                    given.offloading
                ),
                batch_serialization=group if count > 1 and kind == SEQUENTIAL else 1,
            )
            for kind, k, again, offload, shard in product(
                _one(given.schedule, _schedules(trains, count, used)),
                _one(given.micro_batches, _rounds(1 if used == 1 else count)),
                _one(given.recompute, _RECOMPUTE if several else _ALONE if trains else (NONE,)),
                _one(given.offload, (AUTO, OFF) if trains and step.has_remote else (AUTO,)),
                _one(given.shard_optimizer, shards),
            )
        ]
    return candidates


def offloading_candidates(
    step: Step, estimates: Sequence[Estimate], given: Given | None = None
) -> list[Candidate]:
    """Return candidates with more in remote memory than those looked at, where that may be of use.

    Those that no other beats may need less so; if nothing fits, any may fit. Those with sharded
    optimizers are left out: estimates do not tell what each weight's own collectives take.
    """
    given = given or Given()
    kinds = [
        name for name in OFFLOADABLE if name not in given.offloading and step.may_lie_beside(name)
    ]
    usual = [
        estimate
        for estimate in estimates
        if estimate.candidate.offload != OFF and not estimate.candidate.shard_optimizer
    ]
    if not kinds or not usual or not step.can_fit:
        return []
    if any(estimate.fits for estimate in estimates):
        front = best_of(usual)
        return [
            candidate
            for estimate in front
            for candidate in _with_more(estimate.candidate, kinds, given)
        ]
    most: dict[Candidate, int] = {}
    for estimate in usual:
        plain = replace(estimate.candidate, micro_batches=0)
        most[plain] = max(most.get(plain, 0), estimate.candidate.micro_batches)
    candidates = []
    for plain, micro_batches in most.items():
        candidate = replace(plain, micro_batches=micro_batches)
        everything = candidate.offloading({*given.offloading, *kinds})
        several = (
            _with_more(candidate, kinds, given) if step.estimate(everything).fits else [everything]
        )
        candidates += several
    return candidates


def candidates_sharing_ipus(step: Step, ipus: int, given: Given | None = None) -> list[Candidate]:
    """Return candidates whose IPUs do many stages in turns, each with its weights while it runs.

    So weights need not fit all tiles together.
    """
    given = given or Given()
    settled = given.stages or given.device_map or given.offload == OFF or step.stage_count
    if settled or not step.has_remote or not step.can_fit:
        return []
    offloading = {name for name in OFFLOADABLE if step.may_lie_beside(name)}
    candidates = []
    for times in _STAGES_PER_IPU:
        count = times * ipus
        if count > min(len(step.loads.ahead), _MOST_STAGES):
            break
        on = tuple(n % ipus for n in range(count))
        most = max(_one(given.micro_batches, _rounds(count)))
        again = (NONE, BLOCKS, FULL) if step.loads.trains else (NONE,)
        for kind, recompute in product(
            _one(given.schedule, (GROUPED, SEQUENTIAL)), _one(given.recompute, again)
        ):
            candidate = Candidate(count, kind, most, recompute, device_map=on).offloading(
                offloading
            )
            candidates.append(candidate)
            if kind == SEQUENTIAL:
                groups = _one(given.batch_serialization, [n for n in _GROUPS if n <= most])
                candidates += [replace(candidate, batch_serialization=n) for n in groups]
    return candidates


def _with_more(candidate: Candidate, kinds: Sequence[str], given: Given) -> list[Candidate]:
    """Return a candidate with one kind in remote memory, with some, and with all."""
    candidates = []
    for count in range(1, len(kinds) + 1):
        candidates += [
            candidate.offloading({*given.offloading, *some}) for some in combinations(kinds, count)
        ]
    if (
        candidate.schedule == SEQUENTIAL
        and candidate.stages > 1
        and given.batch_serialization is None
    ):
        groups = [n for n in _GROUPS if n <= candidate.micro_batches]
        candidates += [
            replace(candidate, batch_serialization=n)
            for candidate in candidates
            if candidate.offload_weights
            for n in groups
        ]
    return candidates


def _one(given: T | None, others: Sequence[T]) -> Sequence[T]:
    return others if given is None else (given,)


def _schedules(trains: bool, stages: int, ipus: int) -> Sequence[str]:
    if stages == 1:
        return (GROUPED,)
    if ipus == 1:  # none waits for another
        return (SEQUENTIAL,)
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
    straight = [n for n in counts if n <= ipus] or counts[:1]
    systems: list[tuple[int, tuple[int, ...]]] = [(n, ()) for n in straight]
    returning = [settled] if settled else [n + 1 for n in counts if n > 1 and n < ahead]
    systems += [(n, device_map(_MAPS[3], n)) for n in returning if 2 < n <= ipus + 1]
    doubled = (
        [settled]
        if settled
        else [2 * n for n in counts if n > 1 and 2 * n <= min(ahead, _MOST_DOUBLED)]
    )
    for count in doubled:
        if count % 2 == 0 and 2 < count <= 2 * ipus:
            systems += [(count, device_map(kind, count)) for kind in _MAPS[1:3]]
    if step.loads.trains and given.schedule in (None, SEQUENTIAL):
        turning = [settled] if settled else [n for n in _IN_TURN if n <= ahead]
        systems += [(n, (0,) * n) for n in turning if n > 1]
    return systems


def device_map(kind: str, stages: int) -> tuple[int, ...]:
    """Return the IPU of each stage; empty where each has its own, one after the other."""
    if kind == "returning" and stages > 2:
        return (*range(stages - 1), 0)
    if stages % 2 or kind in ("straight", "returning"):
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
    "recompute": (_word(*_RECOMPUTE), "none, cheap, blocks or full"),
    "replicas": (_number(_MOST), f"a number from 1 to {_MOST:,}"),
    "offload": (_word(*_OFFLOAD), "on, off or auto"),
    "shard-optimizer": (_flag, "on or off"),
    **{name.replace("_", "-"): (_flag, "on or off") for name in OFFLOADABLE},
    "batch-serialization": (_number(_MOST), f"a number from 1 to {_MOST:,}"),
    "device-map": (_word(*_MAPS), ", ".join(_MAPS)),
}
KEYS = tuple(_READERS)


def swept(step: Step, asked: Mapping[str, Sequence[str]], start: Candidate) -> list[Candidate]:
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
    combinations = [
        _combined(start, dict(zip(lists, x, strict=True))) for x in product(*lists.values())
    ]
    candidates = [candidate for candidate in dict.fromkeys(combinations) if candidate is not None]
    if not candidates:
        raise StagingError(
            "E0520",
            "micro-batches go through stages in groups on the sequential schedule alone",
            hint="sweep over schedule=sequential, or leave schedule and batch-serialization out",
        )
    if any(candidate.is_offloading for candidate in candidates) and not step.has_remote:
        raise StagingError(
            "E0520",
            f"{step.machine.name} has no remote memory to keep anything in",
            hint="leave offload-weights and its kin out, or take another machine",
        )
    return candidates


def _combined(start: Candidate, named: dict[str, object]) -> Candidate | None:
    """Return a candidate with other values; None where they do not go together."""
    kind = named.pop("device_map", None)
    candidate = replace(start, **named)  # type: ignore[arg-type]
    if kind is not None:
        candidate = replace(candidate, device_map=device_map(str(kind), candidate.stages))
    elif len(candidate.device_map) != candidate.stages:
        candidate = replace(candidate, device_map=())
    if candidate.batch_serialization > 1:
        if candidate.stages == 1:
            return replace(candidate, batch_serialization=1)
        if candidate.schedule != SEQUENTIAL:
            return None if "schedule" in named else replace(candidate, schedule=SEQUENTIAL)
    return candidate


def _value(key: str, text: str, step: Step) -> object:
    if key not in _READERS:
        raise StagingError(
            "E0520",
            f"cannot sweep over {key!r}",
            hint=did_you_mean(key, KEYS, f"keys: {', '.join(KEYS)}"),
        )
    read, expected = _READERS[key]
    value = read(text)
    most = len(step.loads.ahead)
    if key == "stages" and isinstance(value, int) and value > most:
        value = None
    if value is None:
        raise StagingError(
            "E0520",
            f"{key}={text} cannot be swept over",
            hint=f"{key} takes {expected or f'a number from 1 to {most:,}'}",
        )
    return value
