"""`hloipu trace FILE`: when each step runs on each IPU, for Perfetto and Chrome."""

from pathlib import Path

import click

from hloipu.cli.compiling import given_file, program_of
from hloipu.cli.inputs import HLO_FILE, OUTPUT_FILE, limit_option
from hloipu.cli.options import Asked, GroupedCommand, option_group
from hloipu.cli.saying import say
from hloipu.report.trace import MOST_EVENTS, program_trace, trace_file
from hloipu.showing import Phases
from hloipu_compiler.hlo.syntax.limits import Limits
from hloipu_runtime.atomic_file import replacing


@click.command("trace", cls=GroupedCommand)
@click.argument("file", type=HLO_FILE, required=False)
@click.option("-o", "--output", type=OUTPUT_FILE, default="trace.json.gz", show_default=True,
              metavar="TRACE.json.gz", help="Where to write the trace.")  # fmt: skip
@click.option("--most-events", type=click.IntRange(100), default=MOST_EVENTS, show_default=True,
              metavar="N", help="Events at most; the shortest are joined.")  # fmt: skip
@limit_option
@option_group("estimate")
def command(file: str | None, output: str, most_events: int, limits: Limits, asked: Asked) -> None:
    """Write when each step of a program runs on each IPU, as a trace to open in ui.perfetto.dev.

    FILE is HLO text (- for standard input), which is compiled and estimated, or an executable.

    \b
      hloipu trace step.hlo --target bow -o step.json.gz
    """
    file = given_file(file)
    program = program_of(file, limits, asked, Phases())
    record = program_trace(program, most_events)
    data = trace_file(record)
    with replacing(Path(output)) as stream:
        stream.write(data)
    say(f"wrote {len(record['traceEvents']):,} events, {len(data):,} bytes, to {output}", err=True)
