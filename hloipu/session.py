"""Compiling from Python: text in, a program to run out; options are the command line's."""

from collections.abc import Mapping
from typing import Any

from hloipu.options.resolve import resolve
from hloipu.options.table import Options
from hloipu.text import HloInput, verify
from hloipu_compiler.driver import compile_module, source_lines
from hloipu_compiler.ir.graph import Module
from hloipu_runtime.compiled import CompiledProgram
from hloipu_runtime.errors import UnsupportedError
from hloipu_runtime.machine.load import load_machine
from hloipu_runtime.machine.model import Machine


def compile(given: HloInput, **options: Any) -> CompiledProgram:
    """Compile HLO text (a path, an open file, or the text itself) for one IPU.

    Options are those of `hloipu compile`, as keywords: `target="gc200"`, `set={…}`,
    `over_memory="allow"` and so on. A program that does not fit is returned all the same; see
    `fits`. Raises what `verify` raises, UsageError for options, UnsupportedError for what the
    machine or this version cannot run.
    """
    return compile_verified(verify(given), resolve("compile", options).options)


def compile_verified(module: Module, options: Options) -> CompiledProgram:
    """Compile a verified module as options say."""
    machine = machine_of(options)
    made = compile_module(module, machine, pipeline=options.passes or "front")
    return CompiledProgram(
        made.program,
        machine,
        code_memory=options.code_memory,
        over_memory="allow" if options.over_memory == "allow" else "refuse",
        sources=source_lines(module),
        options=shown_options(options),
    )


def machine_of(options: Options) -> Machine:
    """Return the machine that options ask for."""
    if options.ipus != 1:
        raise UnsupportedError(
            "E0475",
            f"{options.ipus} IPUs were asked for; programs are made for one",
            hint="leave --ipus at 1",
        )
    return load_machine(options.target, dict(options.set))


def shown_options(options: Options) -> Mapping[str, Any]:
    """Return the options that shape a program, as reports show them."""
    return {
        "target": options.target,
        "code_memory": options.code_memory,
        "over_memory": options.over_memory,
        "passes": options.passes or "front",
    }
