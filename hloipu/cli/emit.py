"""`hloipu emit FILE --stage=hlo`: a stage of a module as text, JSON or DOT."""

import json

import click

from hloipu.cli.inputs import HLO_FILE, read_input
from hloipu_compiler.hlo.dot_text import dot_text
from hloipu_compiler.hlo.module_json import module_json
from hloipu_compiler.hlo.parse import parse
from hloipu_compiler.hlo.printer import FORMS, PrintOptions, print_module
from hloipu_compiler.verify.verifier import verify


@click.command("emit")
@click.argument("file", type=HLO_FILE)
@click.option("--stage", type=click.Choice(["hlo"]), default="hlo", help="What to print.")
@click.option("--form", type=click.Choice(FORMS), default="full", help="How HLO text is laid out.")
@click.option(
    "--format", "output_format", type=click.Choice(["text", "json", "dot"]), default="text"
)
@click.option("--no-verify", is_flag=True, help="Print even what the verifier refuses.")
def command(file: str, stage: str, form: str, output_format: str, no_verify: bool) -> None:
    """Read FILE (- for standard input), check it and print it again."""
    module = parse(read_input(file))
    if not no_verify:
        verify(module)
    if output_format == "json":
        click.echo(json.dumps(module_json(module), ensure_ascii=False, indent=1))
    elif output_format == "dot":
        click.echo(dot_text(module), nl=False)
    else:
        click.echo(print_module(module, PrintOptions(form=form)), nl=False)
