"""`hloipu eval FILE`: the values of a module."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import click
import numpy as np

from hloipu.cli.inputs import HLO_FILE, OUTPUT_FILE, read_input
from hloipu.cli.options import option_of_table
from hloipu.cli.saying import say
from hloipu.cli.values import SEED, ValueLimits, given_arguments, input_options, shown
from hloipu.encoded import with_plain_loops
from hloipu.inputs import grouped, save_arrays
from hloipu_compiler.hlo.parse import parse
from hloipu_compiler.interpret.participants import evaluate_participants, participants_of
from hloipu_compiler.interpret.planning.site import Effects, array_leaves
from hloipu_compiler.ir.graph import Instruction, Module
from hloipu_compiler.verify.verifier import verify
from hloipu_runtime.errors import MismatchError, UsageError
from hloipu_runtime.nearest import did_you_mean
from hloipu_runtime.plain_text import printable

Array = np.ndarray[Any, Any]


@click.command("eval")
@click.argument("file", type=HLO_FILE)
@input_options
@click.option("-o", "--output", type=OUTPUT_FILE, help="Write out_0, out_1, … to this .npz file.")
@click.option("--watch", multiple=True, metavar="NAME", help="Print this instruction's values.")
@click.option("--stop-on-nan", is_flag=True, help="Stop at the first instruction that makes a NaN.")
@click.option(
    "--replicas", type=click.IntRange(1), help="Participants; default: what the module asks for."
)
@click.option("--partitions", type=click.IntRange(1), help="Partitions of each replica.")
@click.option(
    "--define", multiple=True, metavar="TARGET=FILE", help="HLO of a custom call; repeatable."
)
@option_of_table("max_iterations")
@click.option(
    "--seed", type=SEED, default=0, show_default=True, help="Seed of stateful random ops."
)
def command(
    file: str,
    inputs: str | None,
    random: int | None,
    fill: int | None,
    limits: ValueLimits,
    output: str | None,
    watch: tuple[str, ...],
    stop_on_nan: bool,
    replicas: int | None,
    partitions: int | None,
    define: tuple[str, ...],
    max_iterations: int | None,
    seed: int,
) -> None:
    """Compute FILE (- for standard input) op by op and print or store its results."""
    module = parse(read_input(file, limits.text), limits=limits.text)
    verify(module)
    module = with_plain_loops(module, {"define": define})
    check_names(module, watch)
    module, leaves = given_arguments(module, inputs, random, fill, limits.values)
    arguments = grouped(module, leaves)
    asked = participants_of(module)
    counts = (replicas or asked[0], partitions or asked[1])
    effects = Effects(seed=seed)
    watcher = Watcher(watch, stop_on_nan) if watch or stop_on_nan else None
    results = evaluate_participants(
        module,
        [arguments],
        replicas=counts[0],
        partitions=counts[1],
        effects=effects,
        limits=replace(limits.values, max_iterations=max_iterations),
        watch=watcher,
    )[0]
    if counts != (1, 1):
        say(f"results of the first of {counts[0] * counts[1]} participants:", err=True)
    if output:
        save_arrays(output, results)
        say(f"wrote {len(results)} arrays to {output}", err=True)
        return
    shapes = array_leaves(module.entry.program_shape.result)
    for number, (shape, value) in enumerate(zip(shapes, results, strict=True)):
        say(f"out_{number} {shape.without_layout()} = {shown(value)}")


def check_names(module: Module, watched: Sequence[str]) -> None:
    """Raise UsageError where an instruction to watch does not exist."""
    names = {op.name for computation in module.computations for op in computation.instructions}
    for name in watched:
        if name.lstrip("%") not in names:
            raise UsageError(
                "E3113",
                f"{module.name!r} has no instruction {name!r} to watch",
                hint=did_you_mean(name.lstrip("%"), names, "hloipu emit prints them all", most=3),
            )


class Watcher:
    """Prints watched instructions' values and stops at NaN."""

    def __init__(self, names: Sequence[str], stop_on_nan: bool) -> None:
        self.names: frozenset[str] = frozenset(name.lstrip("%") for name in names)
        self.stop_on_nan = stop_on_nan

    def __call__(self, instruction: Instruction, leaves: Sequence[Array]) -> None:
        """Observe one instruction's leaves, in storage form."""
        if instruction.name in self.names:
            for leaf in leaves:
                say(f"{printable(instruction.name)} = {shown(leaf)}")
        if self.stop_on_nan and any(
            array.dtype.kind in "fc" and np.isnan(array).any() for array in leaves
        ):
            raise MismatchError(
                "E6001",
                f"instruction {instruction.name!r} ({instruction.opcode}) made a NaN",
                hint="--watch its operands to see where it comes from",
            )
