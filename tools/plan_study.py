"""Whether Optuna finds a better cut than `--plan auto`, by compiling each trial.

    python -m tools.plan_study [--trials 200] [--ipus 4] [--tiles 64] [--workers 2] [STEP ...]

For each training step: the samples a second of what `--plan auto` chooses, and of the best of so
many trials of a sweep over stages, micro-batches, schedules, recomputation and offloading
that fit. Needs `hloipu[sweep]`.
"""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import hloipu
from hloipu.cli.table import table

_SAMPLES = Path(__file__).parents[1] / "hlo_samples"
STEPS = ("mnist_adam_step", "convnet_train_step", "scanned_blocks_train_step")
RATE = "samples_per_second"
_LOOP = 100
"""Updates of a run: what a run takes beside them counts little."""


def axes(ipus: int) -> Mapping[str, Sequence[Any]]:
    """Return what may be chosen on a number of IPUs, which replicas fill, as for `--plan auto`."""
    return {
        "stages": list(range(1, ipus + 1)),
        "micro_batches": [1, 2, 4, 8, 16, 32, 64],
        "schedule": ["grouped", "interleaved", "sequential"],
        "recompute": ["none", "cheap", "full"],
        "offload": ["on", "off"],
        "shard_optimizer": [True, False],
    }


def rate_of(rows: Any) -> tuple[float, str]:
    """Return the best rate of rows that fit, and the command that repeats it."""
    fitting = [row for row in rows if row.figures.get("fits") and row.figures.get(RATE)]
    best = max(fitting, key=lambda row: float(row.figures[RATE]), default=None)
    return (0.0, "nothing fits") if best is None else (float(best.figures[RATE]), best.command)


def main() -> None:
    """Print a row for each step, then the commands of both."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("steps", nargs="*", default=STEPS, metavar="STEP")
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--ipus", type=int, default=4)
    parser.add_argument("--tiles", type=int, default=64, help="of an IPU")
    parser.add_argument("--workers", type=int, default=2)
    asked = parser.parse_args()
    rows, commands = [], []
    given: Any = {"loop": _LOOP, "ipus": asked.ipus, "set": {"tiles_per_ipu": asked.tiles}}
    for step in asked.steps:
        path = Path(step) if step.endswith(".hlo") else _SAMPLES / f"{step}.hlo"
        auto, by_auto = rate_of(hloipu.sweep(path, {"plan": ["auto"]}, workers=0, **given))
        with TemporaryDirectory() as folder:
            trials = hloipu.sweep(
                path, axes(asked.ipus), points=asked.trials, goals=[RATE],
                workers=asked.workers, path=Path(folder) / "trials.db", **given,
            )  # fmt: skip
            best, by_trials = rate_of(trials)
        failed = sum(bool(row.code) for row in trials)
        ratio = f"{best / auto:.3f}" if auto else "-"
        rows.append((path.stem, f"{auto:,.0f}", f"{best:,.0f}", ratio, str(failed)))
        commands += [f"{path.stem}, --plan auto: {by_auto}", f"{path.stem}, trials: {by_trials}"]
    header = ("step", "samples/s, --plan auto", "best trial", "ratio", "trials refused")
    print("\n".join((table(header, rows), *commands)))


if __name__ == "__main__":
    main()
