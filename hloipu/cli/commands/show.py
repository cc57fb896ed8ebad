"""`hloipu show FILE`: what is in a module."""

import json

import click

from hloipu.cli.inputs import HLO_FILE, limit_option, read_input
from hloipu.cli.options import option_of_table
from hloipu.cli.saying import say
from hloipu.cli.table import (
    counted,
    readable_bytes,
    readable_count,
    readable_runs,
    shortened,
    table,
)
from hloipu.encoded import may_be_followed
from hloipu_compiler.analysis.module_notes import module_notes
from hloipu_compiler.analysis.op_cost import OpCost
from hloipu_compiler.analysis.summary import Summary, summarise
from hloipu_compiler.analysis.tally import Tally
from hloipu_compiler.hlo.parse import parse
from hloipu_compiler.hlo.syntax.limits import Limits
from hloipu_compiler.ir.shapes import without_layouts
from hloipu_compiler.verify.verifier import verify
from hloipu_runtime.plain_text import printable


@click.command("show")
@click.argument("file", type=HLO_FILE)
@click.option(
    "--most", type=click.IntRange(0), default=10, show_default=True, help="Length of each list."
)
@click.option(
    "--assume-trips", type=click.IntRange(0), help="Trips of loops whose count data decides."
)
@click.option("--tree", is_flag=True,
              help="Compile FILE, or read an executable; print its steps as a tree.")  # fmt: skip
@option_of_table("target")
@limit_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(
    file: str,
    most: int,
    assume_trips: int | None,
    tree: bool,
    target: str | None,
    as_json: bool,
    limits: Limits,
) -> None:
    """Describe the contents of FILE (- for standard input).

    Ops by kind, parameters and state, FLOPs and bytes with loop trip counts multiplied through,
    largest tensors, costliest source lines. A ≥ marks a lower bound: data decides how often.
    """
    if tree:
        if as_json:
            raise click.UsageError("--tree is for people; hloipu estimate --json has all steps")
        show_tree(file, most, assume_trips, target, limits)
        return
    if target is not None:
        raise click.UsageError("--target says how to compile: it needs --tree")
    module = parse(read_input(file, limits), limits=limits)
    verify(module)
    summary = summarise(module, most=most, assume_trips=assume_trips)
    if as_json:
        say(json.dumps(summary_record(summary), ensure_ascii=False))
    else:
        say("\n\n".join(section for section in sections(summary, most) if section))


def show_tree(
    file: str, most: int, assume_trips: int | None, target: str | None, limits: Limits
) -> None:
    """Print the steps of the program of a file, each body's dearest, with what they cost."""
    from hloipu.cli.compiling import program_of
    from hloipu.cli.drawn import say_drawn
    from hloipu.cli.drawn import tree as drawn_tree
    from hloipu.cli.options import Asked
    from hloipu.showing import Phases

    stated_options = {"target": target, "assume_trips": assume_trips}
    asked = Asked("estimate", {k: v for k, v in stated_options.items() if v is not None}, None)
    program = program_of(file, limits, asked, Phases())
    say_drawn([drawn_tree(program, program.estimate().counts, most)])


def sections(summary: Summary, most: int) -> list[str]:
    """Return the parts of the text, the headline first."""
    return [
        headline(summary),
        parameters_section(summary, most),
        opcodes_section(summary),
        loops_section(summary, most),
        tensors_section(summary),
        sources_section(summary),
    ]


def headline(summary: Summary) -> str:
    """Return the first lines: size of the module and its whole work."""
    module, work = summary.module, summary.tally
    facts = "".join(f", {key}={value}" for key, value in summary.attributes.items())
    bound = "" if work.exact else "≥"
    unknown = unknown_parts(work)
    parameters = sum(row.bytes for row in summary.parameters)
    state = sum(row.bytes for row in summary.parameters if row.role)
    return "\n".join(
        [
            f"{printable(module.name)}: {counted(module.instruction_count, 'instruction')} in "
            f"{counted(len(module.computations), 'computation')}{facts}",
            f"  parameters  {len(summary.parameters)}, {readable_bytes(parameters)}"
            + (f", of which state {readable_bytes(state)}" if state else ""),
            f"  results     {readable_bytes(summary.output_bytes)}",
            f"  work        {bound}{readable_count(work.total.flops)} FLOP, "
            f"{bound}{readable_count(work.total.transcendentals)} transcendentals, "
            f"{bound}{readable_bytes(work.total.bytes_read + work.total.bytes_written)} "
            "read and written",
            *([f"  unknown     {', '.join(unknown)}"] if unknown else []),
            *(
                f"  note        {line}"
                for line in module_notes(module, is_divided=may_be_followed(module))
            ),
        ]
    )


def unknown_parts(work: Tally) -> list[str]:
    """Return what makes the numbers lower bounds."""
    parts = []
    if work.unknown_loops:
        parts.append(f"trips of {counted(len(work.unknown_loops), 'loop')}")
    if work.data_decided_branches:
        parts.append(f"which branch of {counted(work.data_decided_branches, 'conditional')}")
    if work.opaque_calls:
        targets = sorted(work.opaque_calls)
        shown = ", ".join(printable(shortened(target, 40)) for target in targets[:3])
        more = f" and {len(targets) - 3} more" if len(targets) > 3 else ""
        parts.append(f"FLOPs of custom calls ({shown}{more})")
    return parts


def parameters_section(summary: Summary, most: int) -> str:
    """Return the largest parameters with their roles."""
    rows = sorted(summary.parameters, key=lambda row: (-row.bytes, row.number))[:most]
    if not rows:
        return ""
    left = len(summary.parameters) - len(rows)
    lines = table(
        ("parameter", "shape", "path", "role", "bytes"),
        [
            (
                f"{row.number} {printable(row.name)}",
                shortened(str(without_layouts(row.shape)), 40),
                shortened(printable(row.path), 40),
                row.role,
                readable_bytes(row.bytes),
            )
            for row in rows
        ],
        left=4,
    )
    return lines + (f"\n… and {left} smaller ones" if left else "")


def opcodes_section(summary: Summary) -> str:
    """Return ops by kind with how often they run and what they cost."""
    rows = summary.tally.opcodes
    return table(
        ("op", "in text", "runs", "FLOP", "transc.", "bytes"),
        [
            (
                row.opcode,
                str(row.instructions),
                ("" if row.runs.exact else "≥") + readable_runs(row.runs.count),
                *cost_cells(row.cost, row.exact),
            )
            for row in rows
        ],
    )


def cost_cells(cost: OpCost, exact: bool) -> tuple[str, str, str]:
    """Return FLOPs, transcendentals and bytes, marked where they are lower bounds."""
    bound = "" if exact else "≥"
    moved = cost.bytes_read + cost.bytes_written
    return (
        bound + readable_count(cost.flops),
        bound + readable_count(cost.transcendentals),
        bound + readable_bytes(moved),
    )


def loops_section(summary: Summary, most: int) -> str:
    """Return the loops whose trip count the text does not tell, the costliest trips first."""
    unknown = summary.tally.unknown_loops
    loops = sorted(unknown, key=lambda loop: (-loop.cost_per_trip.flops, loop.instruction.name))[
        :most
    ]
    if not loops:
        return ""
    rows = [
        (
            printable(loop.instruction.name),
            printable(loop.computation.name),
            *cost_cells(loop.cost_per_trip, True),
        )
        for loop in loops
    ]
    head = ("loop of unknown trip count", "in", "FLOP a trip", "transc.", "bytes")
    more = f"… and {len(unknown) - len(loops)} more\n" if len(loops) < len(unknown) else ""
    return (
        table(head, rows, left=2) + f"\n{more}not in the totals; --assume-trips N multiplies by N"
    )


def tensors_section(summary: Summary) -> str:
    """Return the largest tensors."""
    rows = [
        (
            printable(row.name),
            row.opcode,
            shortened(str(without_layouts(row.shape)), 40),
            printable(row.source),
            readable_bytes(row.bytes),
        )
        for row in summary.largest
    ]
    return (
        table(("largest tensors", "op", "shape", "source", "bytes"), rows, left=4) if rows else ""
    )


def sources_section(summary: Summary) -> str:
    """Return the source lines that ask for most work."""
    rows = [
        (printable(row.source), str(row.instructions), *cost_cells(row.cost, row.exact))
        for row in summary.source_lines
    ]
    return table(("source line", "ops", "FLOP", "transc.", "bytes"), rows) if rows else ""


def summary_record(summary: Summary) -> dict[str, object]:
    """Return the summary as JSON data of schema `hloipu.show/1`.

    Numbers that data decides are null beside their bound.
    """
    work = summary.tally
    return {
        "schema": "hloipu.show/1",
        "module": summary.module.name,
        "instructions": summary.module.instruction_count,
        "computations": len(summary.module.computations),
        "parameters": [
            {
                "number": row.number,
                "name": row.name,
                "path": row.path,
                "shape": str(row.shape),
                "bytes": row.bytes,
                "role": row.role or None,
            }
            for row in summary.parameters
        ],
        "output_bytes": summary.output_bytes,
        "total": work.total._asdict() if work.exact else None,
        "lower_bound": work.total._asdict(),
        "ops": [
            {
                "opcode": row.opcode,
                "instructions": row.instructions,
                "runs": row.runs.count if row.runs.exact else None,
                "runs_at_least": row.runs.count,
                "exact": row.exact,
                "work_at_least": row.cost._asdict(),
            }
            for row in work.opcodes
        ],
        "unknown_loops": [
            {
                "name": loop.instruction.name,
                "computation": loop.computation.name,
                "work_per_trip": loop.cost_per_trip._asdict(),
            }
            for loop in work.unknown_loops
        ],
        "data_decided_branches": work.data_decided_branches,
        "opaque_custom_calls": dict(work.opaque_calls),
        "largest_tensors": [
            {
                "name": row.name,
                "computation": row.computation,
                "opcode": row.opcode,
                "shape": str(row.shape),
                "bytes": row.bytes,
                "source": row.source or None,
            }
            for row in summary.largest
        ],
        "source_lines": [
            {
                "source": row.source,
                "instructions": row.instructions,
                "exact": row.exact,
                "work_at_least": row.cost._asdict(),
            }
            for row in summary.source_lines
        ],
    }
