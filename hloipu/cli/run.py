"""`hloipu run FILE`: a program's values on the simulated machine, and what they cost."""

import click

from hloipu.cli.compiling import compiled, options_for, report, shown_config
from hloipu.cli.eval import shown
from hloipu.cli.inputs import HLO_FILE, read_input
from hloipu.cli.options import Asked, option_group
from hloipu.cli.values import ValueLimits, given_arguments, input_options
from hloipu.inputs import save_arrays
from hloipu_compiler.hlo.parse import parse
from hloipu_compiler.verify.verifier import verify
from hloipu_runtime.compiled import Mode


@click.command("run")
@click.argument("file", type=HLO_FILE, required=False)
@click.option("-o", "--output", type=click.Path(), help="Write out_0, out_1, … to this .npz file.")
@click.option("--profile", type=click.Path(), help="Write the profile to this JSON file.")
@click.option("--json", "as_json", is_flag=True, help="Print the profile as JSON.")
@input_options
@option_group("run")
def command(
    file: str | None,
    output: str | None,
    profile: str | None,
    as_json: bool,
    inputs: str | None,
    random: int | None,
    fill: int | None,
    limits: ValueLimits,
    asked: Asked,
) -> None:
    """Compile FILE (- for standard input), run it once, print values and the verdict."""
    if shown_config(asked, as_json):
        return
    if file is None:
        raise click.UsageError("Missing argument 'FILE'.")
    module = parse(read_input(file), limits=limits.text)
    verify(module)
    options = options_for(asked, module)
    module, arguments = given_arguments(module, inputs, random, fill, limits.values)
    program = compiled(module, options)
    mode: Mode = "exact" if options.mode == "exact" else "functional"
    result = program.run(*arguments, mode=mode, poison=options.poison)
    report(result.profile, profile, as_json)
    if output:
        save_arrays(output, result.outputs)
        click.echo(f"wrote {len(result.outputs)} arrays to {output}", err=True)
        return
    if not as_json:
        for number, (port, value) in enumerate(
            zip(program.program.results, result.outputs, strict=True)
        ):
            sizes = ",".join(map(str, port.shape))
            click.echo(f"out_{number} {port.element_type}[{sizes}] = {shown(value)}")
