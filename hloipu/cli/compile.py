"""`hloipu compile FILE`: a program for a machine, whether it fits, and what it will cost."""

import click

from hloipu.cli.compiling import compiled, options_for, read_verified, report, shown_config
from hloipu.cli.inputs import HLO_FILE, limit_option
from hloipu.cli.options import Asked, option_group
from hloipu_compiler.hlo.limits import Limits
from hloipu_runtime.memory.does_not_fit import require_fit


@click.command("compile")
@click.argument("file", type=HLO_FILE, required=False)
@click.option("--profile", type=click.Path(), help="Write the profile to this JSON file.")
@click.option("--json", "as_json", is_flag=True, help="Print the profile as JSON.")
@limit_option
@option_group("compile")
def command(
    file: str | None, profile: str | None, as_json: bool, limits: Limits, asked: Asked
) -> None:
    """Compile FILE (- for standard input) and say whether it fits and where cycles go."""
    if shown_config(asked, as_json):
        return
    if file is None:
        raise click.UsageError("Missing argument 'FILE'.")
    module = read_verified(file, limits)
    options = options_for(asked, module)
    program = compiled(module, options)
    report(program.profile(options.assume_trips), profile, as_json)
    if options.over_memory == "refuse":
        require_fit(program.memory)
