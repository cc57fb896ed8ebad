"""`hloipu emit FILE --stage=hlo`: a stage of a module as text, JSON or DOT."""

import json

import click

from hloipu.cli.inputs import HLO_FILE, limit_option, read_input
from hloipu_compiler.hlo.dot_text import MOST_NODES, dot_module
from hloipu_compiler.hlo.limits import Limits
from hloipu_compiler.hlo.module_json import module_json
from hloipu_compiler.hlo.parse import parse
from hloipu_compiler.hlo.printer import Form, Layouts, PrintOptions, print_module
from hloipu_compiler.verify.verifier import verify


@click.command("emit")
@click.argument("file", type=HLO_FILE)
@click.option("--stage", type=click.Choice(["hlo"]), default="hlo", help="What to print.")
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
    "--format", "output_format", type=click.Choice(["text", "json", "dot"]), default="text"
)
@limit_option
@click.option("--no-verify", is_flag=True, help="Print even what the verifier refuses.")
def command(
    file: str,
    stage: str,
    form: str,
    layouts: str | None,
    most_nodes: int,
    output_format: str,
    no_verify: bool,
    limits: Limits,
) -> None:
    """Read FILE (- for standard input), check it and print it again."""
    module = parse(read_input(file), limits=limits)
    if not no_verify:
        verify(module)
    options = PrintOptions(Form(form), Layouts(layouts) if layouts else None)
    if output_format == "json":
        click.echo(json.dumps(module_json(module), ensure_ascii=False, indent=1))
    elif output_format == "dot":
        click.echo(dot_module(module, most_nodes=most_nodes), nl=False)
    else:
        click.echo(print_module(module, options), nl=False)
