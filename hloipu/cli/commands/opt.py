"""`hloipu opt FILE --passes a,b`: passes over a module, and what each of them did."""

import difflib
import json
from contextlib import nullcontext

import click

from hloipu.cli.inputs import HLO_FILE, OUTPUT_FILE, limit_option, read_input
from hloipu.cli.saying import say, say_hlo
from hloipu.cli.table import table
from hloipu_compiler.hlo.parse import parse
from hloipu_compiler.hlo.printing.printer import print_module
from hloipu_compiler.hlo.syntax.limits import Limits
from hloipu_compiler.ir.graph import Module
from hloipu_compiler.passes import PIPELINES, PassRun, Pipeline, passes, read_pipeline, run_passes
from hloipu_compiler.passes.framework.pass_base import Pass
from hloipu_compiler.passes.framework.plugins import load_plugin
from hloipu_compiler.passes.framework.registry import ALIASES, added_passes_forgotten, plain_name
from hloipu_compiler.passes.pipeline import option_texts
from hloipu_compiler.verify.verifier import verify
from hloipu_runtime.atomic_file import replacing
from hloipu_runtime.errors import UsageError
from hloipu_runtime.nearest import did_you_mean


@click.command("opt")
@click.argument("file", type=HLO_FILE, required=False)
@click.option(
    "--passes", "text", default="front", show_default=True, metavar="LIST",
    help="What to run: a,b{option=value},(c,d)*3, names of pipelines included.",
)  # fmt: skip
@click.option("--plugin", "plugins", multiple=True, metavar="FILE.py", help="Add your own passes.")
@click.option("--list-passes", "lists", is_flag=True, help="List the passes and exit.")
@click.option(
    "--dump-after", "dumps", multiple=True, metavar="PASS", help="Print the module after PASS."
)
@click.option(
    "--diff-after", "diffs", multiple=True, metavar="PASS", help="Print what PASS changed."
)
@click.option("--stop-after", default="", metavar="PASS", help="Stop after PASS.")
@click.option("--timing", is_flag=True, help="Print the time and effect of each run of a pass.")
@click.option("--verify-each/--no-verify-each", default=True, help="Verify after each pass.")
@click.option("--plan", "shows_plan", is_flag=True, help="Print the plan as JSON at the end.")
@click.option("-o", "--output", type=OUTPUT_FILE, help="Write the result here, not to stdout.")
@limit_option
def command(
    file: str | None,
    text: str,
    plugins: tuple[str, ...],
    lists: bool,
    dumps: tuple[str, ...],
    diffs: tuple[str, ...],
    stop_after: str,
    timing: bool,
    verify_each: bool,
    shows_plan: bool,
    output: str | None,
    limits: Limits,
) -> None:
    """Run passes over FILE (- for standard input) and print the module that comes out.

    Dumps, differences and times go to standard error.

    \b
      hloipu opt step.hlo --passes inline-calls,fold-constants{max-elements=64} --timing
      hloipu opt step.hlo --diff-after simplify-algebra -o front.hlo
    """
    with added_passes_forgotten() if plugins else nullcontext():
        for plugin in plugins:
            load_plugin(plugin)
        if lists:
            say(list_text())
            return
        if file is None:
            raise click.UsageError("Missing argument 'FILE'.")
        pipeline = read_pipeline(text, PIPELINES)
        dumps, diffs = tuple(map(plain_name, dumps)), tuple(map(plain_name, diffs))
        stop_after = plain_name(stop_after)
        check_named(pipeline, (*dumps, *diffs, *((stop_after,) if stop_after else ())))
        module = parse(read_input(file, limits), limits=limits)
        verify(module)
        watcher = Watcher(frozenset(dumps), frozenset(diffs))
        module, plan = run_passes(
            module, None, pipeline, verify_each=verify_each, stop_after=stop_after, watch=watcher
        )
    if timing:
        say(timing_text(watcher.runs), err=True)
    if shows_plan:
        say(json.dumps(plan.record(), ensure_ascii=False), err=output is None)
    hlo_text = print_module(module)
    if output is None:
        say_hlo(hlo_text)
        return
    with replacing(output) as stream:
        stream.write(hlo_text.encode("utf-8", errors="surrogateescape"))


def check_named(pipeline: Pipeline, names: tuple[str, ...]) -> None:
    """Raise UsageError (E3135) for a name that no pass of the pipeline has."""
    known = {one.name for one in pipeline.passes()}
    for name in names:
        if name not in known:
            raise UsageError(
                "E3135",
                f"the pipeline has no pass {name!r}",
                hint=did_you_mean(name, known, f"it has {', '.join(sorted(known))}"),
            )


class Watcher:
    """Keeps every run, and prints what was asked for right after it."""

    def __init__(self, dumps: frozenset[str], diffs: frozenset[str]) -> None:
        self.runs: list[PassRun] = []
        self._dumps = dumps
        self._diffs = diffs

    def __call__(self, run: PassRun) -> None:
        """Record one run of a pass."""
        place = f"{run.name} (round {run.round})" if run.round else run.name
        if run.name in self._diffs:
            say(f"// changed by {place}", err=True)
            say_hlo(difference(run.before, run.after), err=True)
        if run.name in self._dumps:
            say(f"// after {place}", err=True)
            say_hlo(print_module(run.after), err=True)
        self.runs.append(run)


def difference(before: Module, after: Module) -> str:
    """Return a unified diff of two modules' texts."""
    if after is before:
        return ""
    old, new = (print_module(m).splitlines(keepends=True) for m in (before, after))
    return "".join(difflib.unified_diff(old, new, "before", "after", n=2))


def timing_text(runs: list[PassRun]) -> str:
    """Return one line for each run: time, time of the verifier, instructions, computations."""
    rows = [
        (
            run.name,
            str(run.round) if run.round else "",
            f"{run.seconds * 1e3:.2f}",
            f"{run.verify_seconds * 1e3:.2f}",
            f"{run.before.instruction_count} -> {run.after.instruction_count}",
            f"{len(run.before.computations)} -> {len(run.after.computations)}",
        )
        for run in runs
    ]
    total = (
        "total", "",
        f"{sum(run.seconds for run in runs) * 1e3:.2f}",
        f"{sum(run.verify_seconds for run in runs) * 1e3:.2f}",
        f"{runs[0].before.instruction_count} -> {runs[-1].after.instruction_count}" if runs else "",
        f"{len(runs[0].before.computations)} -> {len(runs[-1].after.computations)}" if runs else "",
    )  # fmt: skip
    head = ("pass", "round", "ms", "verify ms", "instructions", "computations")
    return table(head, [*rows, total])


def list_text() -> str:
    """Return every pass with its help, options and facts, then the named pipelines."""
    parts = [pass_text(one) for one in passes()]
    parts += [f"{usual}: usual name of {name}" for usual, name in ALIASES.items()]
    parts += [f"{name}: pipeline\n    {pipeline}" for name, pipeline in PIPELINES.items()]
    return "\n".join(parts)


def pass_text(pass_type: type[Pass]) -> str:
    """Return what there is to know about one pass."""
    lines = [f"{pass_type.name}: {pass_type.help_text()}"]
    lines += [f"    {{{option}}}" for option in option_texts(pass_type)]
    for word, facts in (
        ("requires", pass_type.requires),
        ("establishes", pass_type.establishes),
        ("breaks", pass_type.breaks),
    ):
        if facts:
            lines.append(f"    {word} {', '.join(sorted(facts))}")
    return "\n".join(lines)
