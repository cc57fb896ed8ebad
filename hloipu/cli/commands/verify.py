"""`hloipu verify FILE…`: parse and check HLO text."""

import json
import sys

import click

from hloipu.cli.application import error_record
from hloipu.cli.inputs import HLO_FILE, limit_option, read_input
from hloipu.cli.saying import say, say_error
from hloipu.cli.table import counted
from hloipu_compiler.hlo.parse import parse
from hloipu_compiler.hlo.syntax.limits import Limits
from hloipu_compiler.verify.static import require_static
from hloipu_compiler.verify.verifier import verify
from hloipu_runtime.errors import HloipuError


@click.command("verify")
@click.argument("files", nargs=-1, required=True, type=HLO_FILE)
@click.option("--parse-only", is_flag=True, help="Check the text as XLA's parser does, no more.")
@click.option("--static", is_flag=True, help="Also refuse what a static machine cannot compile.")
@limit_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(
    files: tuple[str, ...], parse_only: bool, static: bool, as_json: bool, limits: Limits
) -> None:
    """Check HLO text files as XLA's parser and verifier do; show every fault where it is.

    FILE may be - for standard input. Exits 3 where a file is not valid HLO.
    """
    worst = 0
    records = []
    for name in files:
        try:
            module = parse(read_input(name, limits), limits=limits)
            if not parse_only:
                verify(module)
            if static:
                require_static(module)
        except HloipuError as error:
            worst = max(worst, error.exit_code)
            records.append({"file": name, "ok": False, "error": error_record(error)})
            if not as_json:
                say_error(str(error))
            continue
        counts = {
            "instructions": module.instruction_count,
            "computations": len(module.computations),
        }
        records.append({"file": name, "ok": True, "module": module.name, **counts})
        if not as_json:
            say(
                f"{name}: ok, {counted(module.instruction_count, 'instruction')} "
                f"in {counted(len(module.computations), 'computation')}"
            )
    if as_json:
        say(json.dumps({"schema": "hloipu.verify/1", "files": records}, ensure_ascii=False))
    if worst:
        sys.exit(worst)
