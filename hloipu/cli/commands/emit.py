"""`hloipu emit FILE --stage=…`: a module or what became of it as text or a graph."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import click

from hloipu.api import compile_settled, module_attributes, planned, settled_options
from hloipu.cli.compiling import given_file, is_executable, loaded
from hloipu.cli.inputs import HLO_FILE, limit_option, read_input
from hloipu.cli.options import Asked, GroupedCommand, option_group
from hloipu.cli.result_text import memory_text
from hloipu.cli.saying import say
from hloipu.cli.table import shortened, table
from hloipu.compile_request import passed
from hloipu.encoded import plain_step, with_shardings_written
from hloipu.showing import Phases
from hloipu_compiler.hlo.parse import parse
from hloipu_compiler.hlo.printing.dot_text import MOST_NODES, dot_module
from hloipu_compiler.hlo.printing.module_json import module_json
from hloipu_compiler.hlo.printing.printer import Form, Layouts, PrintOptions, print_module
from hloipu_compiler.hlo.syntax.limits import Limits
from hloipu_compiler.ir.graph import Module
from hloipu_compiler.planners.planned import plans_record, plans_text
from hloipu_compiler.verify.verifier import verify
from hloipu_runtime.compiled import CompiledProgram
from hloipu_runtime.errors import UsageError
from hloipu_runtime.plain_text import plain_hlo
from hloipu_runtime.program_io.text.printer import print_program
from hloipu_runtime.report.profile import Profile, StepRow

_WIDEST = 40


def chosen_steps(profile: Profile, most: int) -> list[StepRow]:
    """Return the dearest steps, the dearest first; with 0 all, in the order of the program."""
    steps = list(profile.steps)
    if most:
        steps.sort(key=lambda step: -step.cycles)
        del steps[most:]
    return steps


def costs_text(profile: Profile, most: int) -> str:
    """Return a table of steps; cycles are over all executions."""
    chosen = chosen_steps(profile, most)
    rows = [
        (
            step.path,
            step.kind,
            shortened(step.name, _WIDEST),
            shortened(step.codelet, _WIDEST) or "-",
            f"{step.executions:,}",
            f"{step.cycles:,}",
            f"{step.tiles:,}",
            f"{step.moved_bytes:,}",
        )
        for step in chosen
    ]
    shown = sum(step.cycles for step in chosen)
    other_cycles = profile.lower_bound_cycles - shown
    if other_cycles:
        rows.append(("other steps", "", "", "", "", f"{other_cycles:,}", "", ""))
    unknown = " (at least: data decides)" if profile.total_cycles is None else ""
    rows.append((f"total{unknown}", "", "", "", "", f"{profile.lower_bound_cycles:,}", "", ""))
    head = ("step", "kind", "instruction", "codelet", "runs", "cycles", "tiles", "bytes moved")
    return table(head, rows, left=4)


def costs_record(profile: Profile, most: int) -> dict[str, Any]:
    """Return the steps as JSON data; `other_cycles` are those of the steps that are not shown."""
    chosen = chosen_steps(profile, most)
    return {
        "schema": "hloipu.costs/1",
        "program": profile.program,
        "machine": profile.machine,
        "total_cycles": profile.total_cycles,
        "lower_bound_cycles": profile.lower_bound_cycles,
        "other_cycles": profile.lower_bound_cycles - sum(step.cycles for step in chosen),
        "steps": [step._asdict() | {"ipus": list(step.ipus)} for step in chosen],
    }


STAGES = ("hlo", "step", "shardings", "partitioned", "front", "plans", "program", "memory", "costs")


@dataclass(frozen=True, slots=True)
class Asking:
    """In which form a stage is to be printed."""

    output_format: str
    hlo: PrintOptions
    most_nodes: int
    most_rows: int
    constants: bool


@click.command("emit", cls=GroupedCommand)
@click.argument("file", type=HLO_FILE, required=False)
@click.option(
    "--stage",
    type=click.Choice(STAGES),
    default="hlo",
    show_default=True,
    help="hlo: as read, with what --mesh and --shard say; "
    "step: one micro-batch and its update, of a module in Graphcore's encoding; "
    "shardings: with the sharding of every op, as annotations spread; "
    "partitioned: the program of one device, on blocks, with collectives; "
    "front: after the passes; plans: how ops are spread over tiles, and why; "
    "program: on tiles; memory and costs: of its tiles and steps.",
)
@click.option(
    "--form",
    type=click.Choice([form.value for form in Form]),
    default="full",
    help="full: as XLA dumps it; short: as JAX prints it; canonical: free of names and defaults.",
)
@click.option(
    "--layouts",
    type=click.Choice([kind.value for kind in Layouts]),
    help="Which layouts to write; the form decides if not given.",
)
@click.option(
    "--most-nodes", default=MOST_NODES, show_default=True, help="Largest graph drawn as DOT."
)
@click.option(
    "--most-rows", type=click.IntRange(0), default=0, metavar="N",
    help="Of the costs, the N dearest steps; 0: all, in the program's order.",
)  # fmt: skip
@click.option("--constants", is_flag=True, help="Print all constants of a program in full.")
@click.option(
    "--format",
    "output_format",
    type=click.Choice(["text", "json", "dot", "graphml", "node-link"]),
    default="text",
    help="graphml and node-link: files of networkx, which hloipu.Module.from_networkx takes back.",
)
@limit_option
@click.option("--no-verify", is_flag=True, help="Print even HLO that the verifier refuses.")
@option_group("emit")
def command(
    file: str | None,
    stage: str,
    form: str,
    layouts: str | None,
    most_nodes: int,
    most_rows: int,
    constants: bool,
    output_format: str,
    no_verify: bool,
    limits: Limits,
    asked: Asked,
) -> None:
    """Read FILE (- for standard input), check it and print it again, at any stage."""
    file = given_file(file)
    check_format(stage, output_format)
    hlo = PrintOptions(Form(form), Layouts(layouts) if layouts else None)
    asking = Asking(output_format, hlo, most_nodes, most_rows, constants)
    say(stage_text(file, stage, asking, asked, limits, verifies=not no_verify), nl=False)


def stage_text(
    file: str, stage: str, asking: Asking, asked: Asked, limits: Limits, *, verifies: bool
) -> str:
    """Return a stage of a file as text; an executable has no stages of HLO any more."""
    if stage in _PRINTERS and is_executable(file):
        return _PRINTERS[stage](loaded(file, asked, Phases())[0], asking)
    module = parse(read_input(file, limits), limits=limits)
    if verifies or stage != "hlo":
        verify(module)
    if stage in ("hlo", "shardings", "partitioned"):
        module, lines = with_shardings_written(module, asked.given, asked.config)
        for line in lines:
            say(line, err=True)
        return hlo_text(module if stage == "hlo" else _divided(module, stage), asking)
    module, _ = plain_step(module, asked.given, asked.config)
    if stage == "step":
        return hlo_text(module, asking)
    options = asked.resolved(module_attributes(module)).options
    if stage == "front":
        return hlo_text(passed(module, options), asking)
    if stage == "plans":
        settled = settled_options(module, None, options)
        records = planned(settled.module, settled.options)
        return (
            as_json(plans_record(records))
            if asking.output_format == "json"
            else plans_text(records)
        )
    return _PRINTERS[stage](compile_settled(module, options), asking)


def _divided(module: Module, stage: str) -> Module:
    """Return a module with all shardings, or the program of one device.

    Calls are inlined before: callers of one computation need not divide their values alike.
    """
    from hloipu_compiler.partition.spmd.deciding import shardings_of, with_shardings
    from hloipu_compiler.partition.spmd.partitioning import partitioned, ready_to_divide

    if stage == "partitioned":
        return partitioned(module).module
    module = ready_to_divide(module)
    return with_shardings(module, shardings_of(module))


def check_format(stage: str, output_format: str) -> None:
    """Raise UsageError E3145 for a format that a stage has not."""
    graphs = "text json dot graphml node-link"
    formats = {
        **dict.fromkeys("hlo step shardings partitioned front".split(), graphs),
        "program": "text",
    }
    allowed = formats.get(stage, "text json").split()
    if output_format not in allowed:
        raise UsageError(
            "E3145",
            f"--stage={stage} is not printed as {output_format}",
            hint=f"--format takes {' or '.join(allowed)} there",
        )


def hlo_text(module: Module, asking: Asking) -> str:
    """Return a module in the form that is asked for."""
    if asking.output_format == "json":
        return as_json(module_json(module))
    if asking.output_format == "dot":
        return dot_module(module, most_nodes=asking.most_nodes)
    if asking.output_format in ("graphml", "node-link"):
        return networkx_text(module, asking.output_format)
    return print_module(module, asking.hlo)


def networkx_text(module: Module, output_format: str) -> str:
    """Return a module's graph in one of networkx's own file formats."""
    from xml.etree import ElementTree

    import networkx as nx  # slow to import

    graph = module.to_networkx()
    if output_format == "node-link":
        return as_json(nx.node_link_data(graph, edges="edges"))
    xml = nx.GraphMLWriter(graph).xml  # `generate_graphml` would break strings at all line ends
    ElementTree.indent(xml)
    text = ElementTree.tostring(xml, encoding="unicode") + "\n"
    # XML has no control characters, and its readers change the plain form of this one.
    return plain_hlo(text.replace("\r", "&#13;"))


def as_json(record: object) -> str:
    """Return JSON data as text."""
    return json.dumps(record, ensure_ascii=False, indent=1) + "\n"


def _program(program: CompiledProgram, asking: Asking) -> str:
    return print_program(program.program, constants=asking.constants)


def _memory(program: CompiledProgram, asking: Asking) -> str:
    if asking.output_format == "json":
        return as_json(program.memory.to_json())
    return memory_text(program.memory) + "\n"


def _costs(program: CompiledProgram, asking: Asking) -> str:
    profile = program.profile()
    if asking.output_format == "json":
        return as_json(costs_record(profile, asking.most_rows))
    return costs_text(profile, asking.most_rows) + "\n"


_PRINTERS: dict[str, Callable[[CompiledProgram, Asking], str]] = {
    "program": _program,
    "memory": _memory,
    "costs": _costs,
}
