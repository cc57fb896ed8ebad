"""What each pass does to cycles and memory: every program compiled with it and without it.

    python -m tools.bench passes [--dumps FOLDER] [--target NAME] [--json FILE] [FILE ...]

One row a pass. Cycles are estimates of one run and peaks are those of the fullest tile, both on one
IPU; ratios are with over without, so that below 1 is a gain. `need`: programs that do not compile
without the pass, or whose cycles only data would tell then. Passes of `lean` are counted for the
programs that do not fit otherwise, for which alone they run. Without files, the samples are
compiled, and what the folder holds. The exit code is 1 where a pass makes the sum of cycles worse
without making the sum of peaks better.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from math import exp, log
from pathlib import Path

from hloipu_compiler.compilation import CompileRequest
from hloipu_compiler.driver import compile_module
from hloipu_compiler.hlo.parse import parse
from hloipu_compiler.ir.graph import Module
from hloipu_compiler.passes.framework.pass_base import Pass
from hloipu_compiler.passes.pipeline import Group, Pipeline, Step
from hloipu_compiler.passes.pipelines import PIPELINES
from hloipu_compiler.verify.verifier import verify
from hloipu_runtime.compiled import CompiledProgram
from hloipu_runtime.errors import HloipuError
from hloipu_runtime.machine.load import load_machine
from hloipu_runtime.machine.model import Machine

SAMPLES = Path(__file__).parents[2] / "hlo_samples"
_SLACK = 1.0005
"""Less than this is the noise of plans that happen to tie."""


@dataclass(frozen=True, slots=True)
class Figures:
    """What one program costs."""

    cycles: int
    is_known: bool
    """Whether these are all cycles: data decides nothing."""
    peak_bytes: int
    fits: bool


@dataclass(slots=True)
class Row:
    """One pass over all programs."""

    name: str
    pipeline: str
    programs: int = 0
    changed: int = 0
    """Programs whose cycles or peak it changes."""
    needed: int = 0
    cycles_with: int = 0
    cycles_without: int = 0
    peak_with: int = 0
    peak_without: int = 0
    worst: str = ""
    """The program that it makes most slower, if any."""
    worst_ratio: float = 1.0
    logs: list[tuple[float, float]] = field(default_factory=list, repr=False)

    def add(self, program: str, with_it: Figures, without: Figures) -> None:
        """Count one program."""
        self.programs += 1
        self.changed += with_it != without
        self.cycles_with += with_it.cycles
        self.cycles_without += without.cycles
        self.peak_with += with_it.peak_bytes
        self.peak_without += without.peak_bytes
        ratio = with_it.cycles / max(1, without.cycles)
        self.logs.append((log(ratio), log(with_it.peak_bytes / max(1, without.peak_bytes))))
        if ratio > self.worst_ratio:
            self.worst, self.worst_ratio = program, ratio

    @property
    def is_worse(self) -> bool:
        """Whether it costs cycles in all and saves no memory for them, or the other way round.

        What only `lean` has is taken where a program fits with it alone: its row is what it trades.
        """
        if self.pipeline == "lean":
            return False
        slower = self.cycles_with > _SLACK * self.cycles_without
        larger = self.peak_with > _SLACK * self.peak_without
        return (slower and self.peak_with >= self.peak_without) or (
            larger and self.cycles_with >= self.cycles_without
        )

    def line(self) -> str:
        """Return the row as text."""
        cycles, peak = (
            exp(sum(item[n] for item in self.logs) / len(self.logs)) if self.logs else 1.0
            for n in (0, 1)
        )
        sums = (
            self.cycles_with / max(1, self.cycles_without),
            self.peak_with / max(1, self.peak_without),
        )
        worst = f"  {self.worst} {self.worst_ratio:.3f}" if self.worst_ratio > _SLACK else ""
        flag = "  WORSE" if self.is_worse else ""
        return (
            f"{self.name:<34}{self.pipeline:<9}{self.programs:>5}{self.changed:>5}{self.needed:>5}"
            f"{cycles:>9.4f}{sums[0]:>9.4f}{peak:>9.4f}{sums[1]:>9.4f}{worst}{flag}"
        )


HEAD = (
    f"{'pass':<34}{'of':<9}{'all':>5}{'chg':>5}{'need':>5}"
    f"{'cyc gm':>9}{'cyc sum':>9}{'peak gm':>9}{'peak sum':>9}  most slower"
)


def without(pipeline: Pipeline, name: str) -> Pipeline:
    """Return a pipeline without a pass, wherever it stands; what others require is not checked."""
    steps: list[Step] = []
    for step in pipeline.steps:
        if isinstance(step, Group):
            steps.append(Group(tuple(p for p in step.passes if p.name != name), step.most_rounds))
        elif step.name != name:
            steps.append(step)
    return Pipeline(tuple(steps), pipeline.establishes)


def rows_of() -> Iterator[tuple[str, str]]:
    """Yield every pass of the default pipeline, then those that only `lean` has; with its name."""
    seen: set[str] = set()
    for name in ("default", "lean"):
        one: Pass
        for one in PIPELINES[name].passes():
            if one.name not in seen:
                seen.add(one.name)
                yield name, one.name


def figures(module: Module, machine: Machine, pipeline: Pipeline) -> Figures | None:
    """Return what a module costs after a pipeline; None where it cannot be compiled then."""
    try:
        made = compile_module(module, CompileRequest(machine, pipeline))
        program = CompiledProgram(made.program, machine)
        found = program.estimate()
        return Figures(
            found.lower_bound_cycles,
            found.total_cycles is not None,
            program.memory.peak.total_bytes,
            program.fits,
        )
    except HloipuError:
        return None


def measured(paths: Sequence[Path], machine: Machine) -> list[Row]:
    """Return a row for each pass; says on stderr which programs cannot be compiled at all."""
    rows = [Row(name, pipeline) for pipeline, name in rows_of()]
    for path in paths:
        try:
            module = parse(path.read_text(encoding="utf-8"))
            verify(module)
        except HloipuError as error:
            print(f"{path.name}: {error.code}", file=sys.stderr)
            continue
        whole = {name: figures(module, machine, PIPELINES[name]) for name in ("default", "lean")}
        usual = whole["default"]
        if usual is None:
            print(f"{path.name}: no program for {machine.name}", file=sys.stderr)
            continue
        for row in rows:
            with_it = whole[row.pipeline]
            if with_it is None or (row.pipeline == "lean" and usual.fits):
                continue
            found = figures(module, machine, without(PIPELINES[row.pipeline], row.name))
            if found is None or found.is_known < with_it.is_known:
                row.needed += 1
            else:
                row.add(path.stem, with_it, found)
        print(f"{path.name}: done", file=sys.stderr)
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print the table, write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--dumps", type=Path, help="folder of further dumps")
    parser.add_argument("--target", default="gc200")
    parser.add_argument("--json", type=Path, help="write the figures here as well")
    options = parser.parse_args(arguments)
    paths = options.files or sorted(SAMPLES.glob("*.hlo"))
    if options.dumps:
        paths = [*paths, *sorted(options.dumps.glob("*.hlo"))]
    rows = measured(paths, load_machine(options.target))
    print(f"{options.target}: with the pass over without it, {len(paths)} programs")
    print(HEAD)
    for row in rows:
        print(row.line())
    if options.json:
        data = {
            "schema": "hloipu.bench-passes/1",
            "target": options.target,
            "rows": [{k: v for k, v in asdict(row).items() if k != "logs"} for row in rows],
        }
        options.json.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    return int(any(row.is_worse for row in rows))


if __name__ == "__main__":
    sys.exit(main())
