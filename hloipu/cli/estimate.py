"""`hloipu estimate FILE`: cycles and bytes without values, for models of any size."""

import click

from hloipu.cli.compiling import compiled, options_for, read_verified, report, shown_config
from hloipu.cli.inputs import HLO_FILE, limit_option
from hloipu.cli.options import Asked, option_group
from hloipu_compiler.hlo.limits import Limits


@click.command("estimate")
@click.argument("file", type=HLO_FILE, required=False)
@click.option("--profile", type=click.Path(), help="Write the profile to this JSON file.")
@click.option("--json", "as_json", is_flag=True, help="Print the profile as JSON.")
@limit_option
@option_group("estimate")
def command(
    file: str | None, profile: str | None, as_json: bool, limits: Limits, asked: Asked
) -> None:
    """Estimate one run of FILE (- for standard input); a program that does not fit, too."""
    if shown_config(asked, as_json):
        return
    if file is None:
        raise click.UsageError("Missing argument 'FILE'.")
    module = read_verified(file, limits)
    options = options_for(asked, module)
    report(compiled(module, options).profile(options.assume_trips), profile, as_json)
