"""The programs on which two commits are compared: samples, dumps and single ops, cut or not."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.conformance.workers import chosen_cases

SAMPLES = Path(__file__).parents[2] / "hlo_samples"
MACHINES = ("tiny", "gc200")
RANDOM = ("--random", "0")

SAMPLE_CUTS: dict[str, tuple[str, ...]] = {
    "loop": ("--loop", "3"),
    "accumulation": ("--micro-batches", "4"),
    "accumulation, offloaded": (
        "--micro-batches", "4", "--offload", "on", "--offload-accumulators",
    ),
    "stages": ("--stages", "2", "--micro-batches", "4"),
    "stages, recomputed": (
        "--stages", "2", "--micro-batches", "4", "--recompute", "full", "--schedule", "interleaved",
    ),
    "replicas": ("--replicas", "2"),
    "replicas, sharded optimizer": (
        "--replicas", "2", "--micro-batches", "2", "--shard-optimizer", "--offload", "on",
    ),
    "shards": ("--shards", "2"),
    "I/O tiles": ("--loop", "2", "--io-tiles", "2"),
    "searched": ("--plan", "auto", "--ipus", "4"),
}  # fmt: skip
DUMP_CUTS: dict[str, tuple[str, ...]] = {
    "plain": (),
    "accumulation": ("--micro-batches", "4"),
    "replicas": ("--replicas", "2"),
    "stages": ("--stages", "4", "--micro-batches", "8"),
}


@dataclass(frozen=True, slots=True)
class Case:
    """A file of HLO text and the options under which it is compiled."""

    name: str
    file: str
    flags: tuple[str, ...]
    run_flags: tuple[str, ...] | None = None
    """Options of the run; None: it is not run."""


def sample_cases() -> list[Case]:
    """Return each sample plain on every machine, run as well, and cut in every way on one."""
    cases = []
    for path in sorted(SAMPLES.glob("*.hlo")):
        for machine in MACHINES:
            flags = ("--target", machine, "--over-memory", "allow")
            cases.append(Case(f"{path.stem}: plain on {machine}", str(path), flags, RANDOM))
        flags = ("--target", "gc200", "--over-memory", "allow")
        cases += [
            Case(f"{path.stem}: {cut}", str(path), (*flags, *more))
            for cut, more in SAMPLE_CUTS.items()
        ]
    return cases


def dump_cases(places: Sequence[Path]) -> list[Case]:
    """Return dumps, or those of folders, cut in some ways."""
    files: list[Path] = []
    for place in places:
        files += sorted(place.glob("*.hlo")) if place.is_dir() else [place]
    flags = ("--over-memory", "allow", "--assume-trips", "10")
    return [
        Case(f"{path.stem}: {cut}", str(path.resolve()), (*flags, *more))
        for path in files
        for cut, more in DUMP_CUTS.items()
    ]


def op_cases(count: int, folder: Path) -> list[Case]:
    """Return modules of one op on every machine, run as well; their texts are put in `folder`."""
    cases = []
    for number, known in enumerate(chosen_cases(count)):
        path = folder / f"op_{number}.hlo"
        path.write_text(known.text, encoding="utf-8")
        cases += [
            Case(f"{known.name} on {machine}", str(path), ("--target", machine), RANDOM)
            for machine in MACHINES
        ]
    return cases
