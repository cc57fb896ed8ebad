"""The published measurements: numbers, how they were taken, and where they are published."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PATH = Path(__file__).with_name("measurements.json")


@dataclass(frozen=True, slots=True)
class Measurement:
    """One published number."""

    id: str
    device: str
    """As machines are named, or one that has no machine here."""
    workload: str
    metric: str
    value: float
    unit: str
    source: str
    """`owner/name: path` of a public repository, or a publication."""
    confidence: str
    m: int = 0
    k: int = 0
    n: int = 0
    dtype: str = ""
    tolerance_pct: float = 0.0
    """Of reading the number off a figure."""
    note: str = ""
    run: str = ""
    """The run of `runs.toml` that was measured."""
    micro_batches: int = 0
    """Of an update, where they are not the run's own."""
    replicas: int = 0
    samples: int = 0
    """Of an update, all replicas together."""
    held_out: bool = False
    """Kept away from whoever writes the model."""


def read_measurements(path: Path = PATH) -> list[Measurement]:
    """Return all measurements in the order of the file."""
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return [Measurement(**row) for row in content["measurements"]]
