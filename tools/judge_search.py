"""How far the estimates of `--plan auto` are from what compiling gives, and how good its choice is.

    python -m tools.judge_search [--ways N] [--ipus N] [--only WORDS] [--json FILE] [DUMP ...]
    python -m tools.judge_search --shardings [--ways N] [--ipus N] [--only WORDS] [DUMP ...]

For each step, on a whole machine and on one with so few tiles that one IPU has no room for it, some
ways to cut it are drawn and compiled. Printed are estimates over the truth, of cycles of an update
and of bytes on the fullest tile: the median and the extremes; how well both agree on the order
(Spearman's rho); ways that fit and were not thought to (`missed`) and that were thought to and do
not (`false`); and the throughput of what the search chooses, over the best of those drawn that fit.
With `--shardings` the estimates of `--mesh auto` are judged, on samples and dumps that nothing
divides: the best sharding, and others drawn at random.
"""

import argparse
import json
import random
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

import hloipu
from hloipu.api import compile_once
from hloipu.choice_trials import Choice
from hloipu.choosing import chosen, priced
from hloipu.options.resolve import resolve
from hloipu.options.table import Options
from hloipu.sharding import system_of, with_sharding
from hloipu_compiler.ir.graph import Module
from hloipu_compiler.partition.search.candidate import OFFLOADABLE, Candidate, Estimate
from hloipu_compiler.partition.search.candidates import candidates_on
from hloipu_compiler.partition.search.estimates import Step
from hloipu_compiler.partition.sharding_search.searching import found_shardings, mesh_shapes
from hloipu_compiler.partition.sharding_search.space import Space
from hloipu_compiler.plan.schedule import SEQUENTIAL
from hloipu_runtime.errors import HloipuError

SAMPLES = Path(__file__).parents[1] / "hlo_samples"
STEPS = (
    "mnist_train_step", "mnist_adam_step", "convnet_train_step", "scanned_blocks_train_step",
)  # fmt: skip
UNDIVIDED = (
    "attention", "mnist_adam_step", "transformer_block_bf16", "convnet_train_step",
    "scanned_blocks_train_step",
)  # fmt: skip
LOOP = 100
"""Updates of a run: what a run takes beside them counts little."""
_TURNS = 4
"""Sizes that are looked at until a machine is small enough: code takes as much on each."""
_FULL = 0.7
"""Of what one IPU would need for the whole step, the memory of the smaller machine."""


@dataclass
class Verdict:
    """What was found for one step on one machine."""

    name: str
    tiles: int
    candidates: list[str] = field(default_factory=list)
    """Their flags."""
    cycles: list[float] = field(default_factory=list)
    """Estimate over truth, of each way."""
    memory: list[float] = field(default_factory=list)
    cycles_rho: float = 1.0
    memory_rho: float = 1.0
    missed: int = 0
    false: int = 0
    choice: float | None = None
    """Throughput of what was chosen over the best; None: nothing fits."""
    refused: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class _Truth:
    estimate: Estimate
    cycles: int
    tile_bytes: int
    fits: bool

    @property
    def per_second(self) -> float:
        """Micro-batches, up to a factor that all ways share."""
        candidate = self.estimate.candidate
        return candidate.replicas * candidate.micro_batches / self.cycles


def compiled(module: Module, options: Options, estimate: Estimate) -> _Truth:
    """Return what a way costs that is compiled; HloipuError where it cannot be."""
    choice = Choice(module, [estimate], estimate, 1)
    program = compile_once(choice.divided(), choice.options(options))
    plan = program.memory_plan
    most = max(int(ipu.needed_bytes.max()) for ipu in plan.ipus)
    return _Truth(estimate, program.estimate().lower_bound_cycles // LOOP, most, plan.fits)


def judged(name: str, module: Module, options: Options, count: int, seed: int) -> Verdict:
    """Return the verdict on a step."""
    step = priced(module, options)
    tiles = step.machine.chip.tiles_per_ipu
    verdict = Verdict(name, tiles)
    candidates = drawn(step, options.ipus, count, seed)
    truths: list[_Truth] = []
    for candidate in candidates:
        try:
            truths.append(compiled(module, options, step.estimate(candidate)))
        except HloipuError as error:
            verdict.refused.append(f"{candidate.flags()}: {error}")
    verdict.candidates = [x.estimate.candidate.flags() for x in truths]
    verdict.cycles = [x.estimate.update_cycles / x.cycles for x in truths]
    verdict.memory = [x.estimate.needed_bytes / tiles / x.tile_bytes for x in truths]
    verdict.cycles_rho = rank_agreement(
        [x.estimate.per_second for x in truths], [x.per_second for x in truths]
    )
    verdict.memory_rho = rank_agreement(
        [x.estimate.needed_bytes for x in truths], [x.tile_bytes for x in truths]
    )
    verdict.missed = sum(x.fits and not x.estimate.fits for x in truths)
    verdict.false = sum(x.estimate.fits and not x.fits for x in truths)
    choice = chosen(module, options, compile_once)
    best = max((x.per_second for x in truths if x.fits), default=0.0)
    if choice.is_tried:
        mine = compiled(module, options, choice.best)
        verdict.choice = mine.per_second / max(best, mine.per_second)
    elif best:
        verdict.choice = 0.0
    return verdict


def drawn(step: Step, ipus: int, count: int, seed: int) -> list[Candidate]:
    """Return so many ways to cut a step, of few micro-batches and of many.

    Every second one has something in remote memory, drawn too, where there is any.
    """
    candidates = [
        candidate
        for candidate in candidates_on(step, ipus)
        if candidate.micro_batches in (1, 4, 16)
    ]
    draw = random.Random(seed)
    draw.shuffle(candidates)
    kinds = [kind for kind in OFFLOADABLE if step.may_lie_beside(kind)]
    sample = candidates[:count]
    for number in range(1, len(sample), 2):
        if not kinds or sample[number].shard_optimizer:
            continue
        candidate = sample[number].offloading(draw.sample(kinds, draw.randint(1, len(kinds))))
        if candidate.schedule == SEQUENTIAL and candidate.stages > 1:
            candidate = replace(candidate, batch_serialization=draw.choice((1, 4)))
        sample[number] = candidate
    return sample


def rank_agreement(estimates: Sequence[float], truths: Sequence[float]) -> float:
    """Return Spearman's rho: 1 where both have one order."""
    if len(truths) < 2:
        return 1.0
    ranks = [np.argsort(np.argsort(np.array(x))) for x in (estimates, truths)]
    a, b = ranks
    n = len(truths)
    return float(1 - 6 * ((a - b) ** 2).sum() / (n * (n * n - 1)))


def options_of(ipus: int, target: str, tiles: int | None, more: Mapping[str, Any]) -> Options:
    """Return options that ask for a choice on a system."""
    given = {"target": target, "ipus": ipus, "plan": "auto", "loop": LOOP, "cache": False, **more}
    if tiles is not None:
        given["set"] = {"tiles_per_ipu": str(tiles)}
    return resolve("compile", given).options


def machines(module: Module, ipus: int, target: str, more: Mapping[str, Any]) -> Iterator[Options]:
    """Yield options for the whole machine, and for one that is too small for one IPU to do it."""
    options = options_of(ipus, target, None, more)
    yield options
    tiles = 0
    for _ in range(_TURNS):
        step = priced(module, options)
        alone = step.estimate(Candidate())
        full = alone.needed_bytes / alone.budget_bytes
        if tiles and full >= 1:
            break
        tiles = round(_FULL * full * step.machine.chip.tiles_per_ipu)
        if not 4 <= tiles < step.machine.chip.tiles_per_ipu:
            return
        options = options_of(ipus, target, tiles, more)
    yield options


def steps(dumps: Sequence[Path]) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """Yield names, texts and options: samples, models printed by JAX, dumps that were named."""
    for name in STEPS:
        yield name, (SAMPLES / f"{name}.hlo").read_text(encoding="utf-8"), {}
    try:
        from hloipu.jax import lower
        from tools.demo_pipeline import Model, Sizes
        from tools.scanned_steps import scanned_steps
    except ImportError:
        print("without jax: no transformer, no loops over layers", file=sys.stderr)
    else:
        model = Model(Sizes(4, 64))
        text = lower(model.step, model.state(), *model.batches(1)[0], donate=0).text
        yield "transformer", text, {}
        yield from scanned_steps()
    for path in dumps:
        yield path.stem, path.read_text(encoding="utf-8"), {}


def judged_shardings(name: str, module: Module, options: Options, count: int) -> Verdict:
    """Return the verdict on the best way to divide a module's arrays, and on others drawn."""
    system = system_of(module, options)
    space, draw = Space(module, system), random.Random(0)
    best = found_shardings(module, system).best
    meshes = mesh_shapes(system.ipus, ("data", "model"))
    candidates = {best.spent: best}
    for _ in range(_TURNS * count):
        mesh = draw.choice(meshes)
        specs = [draw.choice([*space.specs(n, mesh)]) for n in range(len(space.classes))]
        one = space.candidate(mesh, tuple(specs))
        if one.is_divided and len(candidates) < count:
            candidates.setdefault(one.spent, one)
    verdict = Verdict(name, system.machine.chip.tiles_per_ipu)
    truths = []
    for one in candidates.values():
        divided = with_sharding(module, one.sharding(module))
        program = compile_once(divided, replace(options, ipus=1, plan="none"))
        peak = max(int(ipu.needed_bytes.max()) for ipu in program.memory_plan.ipus)
        truths.append((program.estimate().device_cycles, peak))
    every = list(candidates.values())
    verdict.candidates = [x.sharding(module).flags() for x in every]
    verdict.cycles = [x.spent.cycles / cycles for x, (cycles, _) in zip(every, truths, strict=True)]
    verdict.memory = [
        x.needed_bytes / verdict.tiles / peak for x, (_, peak) in zip(every, truths, strict=True)
    ]
    verdict.cycles_rho = rank_agreement([x.spent.cycles for x in every], [x for x, _ in truths])
    verdict.memory_rho = rank_agreement([x.needed_bytes for x in every], [x for _, x in truths])
    verdict.choice = min(cycles for cycles, _ in truths) / truths[0][0]
    return verdict


def line(verdict: Verdict) -> str:
    """Return a row of the table."""

    def spread(values: Sequence[float]) -> str:
        if not values:
            return f"{'-':>18}"
        return f"{statistics.median(values):6.2f} {min(values):5.2f}-{max(values):5.2f}"

    chosen_one = "-" if verdict.choice is None else f"{verdict.choice:.2f}"
    return (
        f"{verdict.name:<28}{verdict.tiles:>6}{len(verdict.cycles):>5}  {spread(verdict.cycles)}"
        f"{verdict.cycles_rho:>6.2f}  {spread(verdict.memory)}{verdict.memory_rho:>6.2f}"
        f"{verdict.missed:>7}{verdict.false:>6}{chosen_one:>8}"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Judge, print the table, write the JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("dumps", nargs="*", type=Path)
    parser.add_argument("--ways", type=int, default=16, help="ways to compile for each step")
    parser.add_argument("--ipus", type=int, default=8)
    parser.add_argument("--target", default="gc200")
    parser.add_argument("--only", default="", help="words that a step's name must hold")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--shardings", action="store_true", help="judge those of --mesh auto")
    parser.add_argument("--list", action="store_true", help="print each way that was compiled")
    parser.add_argument("--json", type=Path, help="write the figures here as well")
    asked = parser.parse_args(arguments)
    print(
        f"{'step':<28}{'tiles':>6}{'candidates':>5}  {'cycles: est./truth':>18}{'rho':>6}"
        f"  {'bytes: est./truth':>18}{'rho':>6}{'missed':>7}{'false':>6}{'choice':>8}"
    )
    if asked.shardings:
        paths = [*(SAMPLES / f"{name}.hlo" for name in UNDIVIDED), *asked.dumps]
        for path in paths:
            if any(word in path.stem for word in asked.only.split(",")):
                module = hloipu.verify(path.read_text(encoding="utf-8"))
                options = options_of(asked.ipus, asked.target, None, {"loop": None})
                print(line(judged_shardings(path.stem, module, options, asked.ways)), flush=True)
        return 0
    verdicts = []
    for name, text, more in steps(asked.dumps):
        if not any(word in name for word in asked.only.split(",")):
            continue
        module = hloipu.verify(text)
        try:
            for options in machines(module, asked.ipus, asked.target, more):
                judgement = judged(name, module, options, asked.ways, asked.seed)
                print(line(judgement), flush=True)
                for row in zip(
                    judgement.cycles, judgement.memory, judgement.candidates, strict=True
                ):
                    if asked.list:
                        print("  cycles {:.2f}, bytes {:.2f}: {}".format(*row))
                for refused in judgement.refused:
                    print(f"  refused: {refused.splitlines()[0]}", file=sys.stderr)
                verdicts.append(judgement)
        except HloipuError as error:
            print(f"{name}: {error}", file=sys.stderr)
    if asked.json:
        figures = {
            "schema": "hloipu.judge-search/1",
            "rows": [asdict(verdict) for verdict in verdicts],
        }
        asked.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
