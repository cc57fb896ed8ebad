"""What the commands that compile share: from FILE and options to a program, and its report."""

import json
from pathlib import Path
from typing import Any

import click

from hloipu.cli.inputs import read_input
from hloipu.cli.options import Asked, config_text
from hloipu.options.table import Options
from hloipu.session import compile_verified
from hloipu_compiler.hlo.frontend_attributes import read_frontend_attributes
from hloipu_compiler.hlo.limits import Limits
from hloipu_compiler.hlo.parse import parse
from hloipu_compiler.ir.graph import Module
from hloipu_compiler.verify.verifier import verify
from hloipu_runtime.atomic_file import replacing
from hloipu_runtime.compiled import CompiledProgram
from hloipu_runtime.report.profile import Profile
from hloipu_runtime.report.verdict import verdict


def read_verified(file: str, limits: Limits) -> Module:
    """Return the module of a file, verified."""
    module = parse(read_input(file), limits=limits)
    verify(module)
    return module


def options_for(asked: Asked, module: Module) -> Options:
    """Return the options, the module's own attributes considered."""
    text = module.attributes.get("frontend_attributes", "")
    return asked.resolved(read_frontend_attributes(str(text))).options


def shown_config(asked: Asked, as_json: bool) -> bool:
    """Print where options come from, if that was asked for in place of the work."""
    if asked.print_config:
        click.echo(config_text(asked.resolved(), as_json))
    return asked.print_config


def compiled(module: Module, options: Options) -> CompiledProgram:
    """Compile as options say."""
    return compile_verified(module, options)


def report(profile: Profile, path: str | None, as_json: bool) -> None:
    """Print the verdict, or the profile as JSON; write the profile to a file if asked."""
    record: dict[str, Any] = profile.record()
    if path:
        with replacing(Path(path)) as stream:
            stream.write((json.dumps(record, indent=1) + "\n").encode())
    click.echo(json.dumps(record, indent=1) if as_json else verdict(profile))
