"""What a golden of a compiled program shows: plans, program, costs, memory and the estimate."""

import re
import shlex
from pathlib import Path
from typing import NamedTuple

import click

from hloipu.api import compile_verified, module_attributes, planned
from hloipu.cli.commands.emit import costs_text
from hloipu.cli.options import Asked, option_group
from hloipu.cli.result_text import memory_text
from hloipu.encoded import plain_step
from hloipu_compiler.hlo.parse import parse
from hloipu_compiler.planners.planned import plans_text
from hloipu_compiler.verify.verifier import verify
from hloipu_runtime.compiled import CompiledProgram
from hloipu_runtime.program_io.text.printer import print_program
from hloipu_runtime.report.profile import Profile
from hloipu_runtime.report.verdict import verdict

COMMAND = "$ hloipu emit "
"""How a golden begins, and lines that say how the cases below them are compiled."""


class Compiled(NamedTuple):
    """What planners chose for a module, and its program."""

    plans: str
    program: CompiledProgram


def compiled_as_asked(text: str, options: str) -> Compiled:
    """Compile a module with options of `hloipu emit`, as they are written on a command line."""
    result: Compiled = _compiled.main(shlex.split(options), standalone_mode=False, obj=text)
    return result


def command_of(golden: Path) -> tuple[str, str]:
    """Return the options that a golden begins with, and the name of the module beside it."""
    first = golden.read_text().partition("\n")[0]
    options, _, module = first.removeprefix(COMMAND).rpartition(" ")
    if not (first.startswith(COMMAND) and module.endswith(".hlo")):
        raise ValueError(f"{golden}: the first line is not {COMMAND!r} with options and a module")
    return options, module


def golden_text(golden: Path) -> str:
    """Return what a golden should hold: its first line, and what its module becomes by it."""
    options, module = command_of(golden)
    plans, program = compiled_as_asked(golden.with_name(module).read_text(), options)
    profile = program.profile()
    sections = {
        "plans": plans,
        "program": _steps_text(program),
        "costs": _steps_but_syncs(profile),
        "memory": _parts_text(program),
        "estimate": _cycles_text(profile),
    }
    shown = "".join(f"=== {name}\n{text.strip()}\n" for name, text in sections.items())
    return f"{COMMAND}{options} {module}\n{shown}"


@click.command()
@option_group("emit")
@click.pass_obj
def _compiled(text: str, asked: Asked) -> Compiled:
    module = parse(text)
    verify(module)
    module, _ = plain_step(module, asked.given, asked.config)
    options = asked.resolved(module_attributes(module)).options
    plans = plans_text(planned(module, options))
    return Compiled(plans, compile_verified(module, options))


def _steps_text(program: CompiledProgram) -> str:
    """Return a program as `emit` prints it, without its ports, its values and empty blocks."""
    text = print_program(program.program)
    return re.sub(
        r"^((parameters|results|values) \{\n(  .*\n)*|\w+ \{\n)\}\n", "", text, flags=re.M
    )


def _steps_but_syncs(profile: Profile) -> str:
    """Return the cycles of each step but for barriers, which all cost the same."""
    rows = costs_text(profile, 0).splitlines()
    return "\n".join(row for row in rows if row.split()[1:2] != ["sync"])


def _parts_text(program: CompiledProgram) -> str:
    """Return the fullest tile of a memory report, and what its bytes are for."""
    fullest, *others = memory_text(program.memory).split("\n\n")
    remote = [text for text in others if text.startswith("beside IPU")]
    (parts,) = (text for text in others if text.startswith("bytes for"))
    used = [line for line in parts.splitlines() if line.split()[-2:] != ["0", "0"]]
    return "\n".join([fullest, *remote, *used])


def _cycles_text(profile: Profile) -> str:
    """Return what an estimate says of cycles, after what it says of memory."""
    lines = verdict(profile).splitlines()
    (first,) = (n for n, line in enumerate(lines) if line.startswith("device"))
    (last,) = (n for n, line in enumerate(lines) if line.startswith("tiles at work"))
    return "\n".join(lines[first : last + 1])
