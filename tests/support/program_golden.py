"""What a golden of a compiled program shows: plans, program, costs, memory and the estimate."""

import re
import shlex
from pathlib import Path

import click

from hloipu.cli.costs_text import costs_text
from hloipu.cli.inputs import HLO_FILE, read_input
from hloipu.cli.memory_text import memory_text
from hloipu.cli.options import Asked, option_group
from hloipu.encoded import plain_step
from hloipu.session import compile_verified, module_attributes, planned
from hloipu_compiler.codegen.planned import plans_text
from hloipu_compiler.hlo.limits import Limits
from hloipu_compiler.hlo.parse import parse
from hloipu_compiler.verify.verifier import verify
from hloipu_runtime.compiled import CompiledProgram
from hloipu_runtime.program_text.printer import print_program
from hloipu_runtime.report.profile import Profile
from hloipu_runtime.report.verdict import verdict

COMMAND = "$ hloipu emit "
"""How each golden begins; options and the name of a module beside it follow."""


def golden_text(golden: Path) -> str:
    """Return what a golden should hold: its first line, and what its module becomes by it."""
    first, arguments = _command(golden)
    arguments[-1] = str(golden.with_name(arguments[-1]))
    sections: str = _compiled.main(arguments, standalone_mode=False)
    return f"{first}\n{sections}"


def module_of(golden: Path) -> str:
    """Return the name of the module that a golden is made of."""
    return _command(golden)[1][-1]


def _command(golden: Path) -> tuple[str, list[str]]:
    first = golden.read_text().partition("\n")[0]
    if not first.startswith(COMMAND):
        raise ValueError(f"{golden}: the first line is not {COMMAND!r} with options and a module")
    return first, shlex.split(first.removeprefix(COMMAND))


@click.command()
@click.argument("file", type=HLO_FILE)
@option_group("emit")
def _compiled(file: str, asked: Asked) -> str:
    module = parse(read_input(file, Limits()))
    verify(module)
    module, _ = plain_step(module, asked.given, asked.config)
    options = asked.resolved(module_attributes(module)).options
    plans = plans_text(planned(module, options))
    program = compile_verified(module, options)
    profile = program.profile()
    sections = {
        "plans": plans,
        "program": _steps_text(program),
        "costs": _steps_but_syncs(profile),
        "memory": _parts_text(program),
        "estimate": _cycles_text(profile),
    }
    return "".join(f"=== {name}\n{text.strip()}\n" for name, text in sections.items())


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
    (first,) = (n for n, line in enumerate(lines) if line.startswith("cycles"))
    (last,) = (n for n, line in enumerate(lines) if line.startswith("tiles at work"))
    return "\n".join(lines[first : last + 1])
