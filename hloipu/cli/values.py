"""Options by which subcommands take values, from files or drawn at random; values in print."""

import sys
from collections.abc import Callable
from typing import Any, TypeVar

import click
import numpy as np

from hloipu.cli.inputs import limit_names, with_limits
from hloipu.inputs import flat, load_arguments
from hloipu_compiler.hlo.syntax.limits import DEFAULT_LIMITS, Limits
from hloipu_compiler.interpret.evaluator import EvaluationLimits, check_sizes
from hloipu_compiler.interpret.random_inputs import fill_elided, random_arguments
from hloipu_compiler.ir.graph import Module
from hloipu_runtime.errors import UsageError
from hloipu_runtime.frozen import dataclass

Array = np.ndarray[Any, Any]
SEED = click.IntRange(0, 2**64 - 1)
F = TypeVar("F", bound=Callable[..., Any])


def input_options(command: F) -> F:
    """Add --inputs, --random, --fill-elided and --limit to a command."""
    for option in (
        click.option("--limit", "limits", multiple=True, metavar="NAME=N", callback=_limits,
                     help="Raise or lower a limit: "
                     f"{limit_names(DEFAULT_LIMITS, EvaluationLimits())}."),
        click.option("--fill-elided", "fill", type=SEED, metavar="SEED",
                     help="Put random values where constants were elided."),
        click.option("--random", type=SEED, metavar="SEED",
                     help="Draw arguments that make sense; the same on every machine."),
        click.option("--inputs", type=click.Path(), help="Arguments from an .npz file."),
    ):  # fmt: skip
        command = option(command)
    return command


@dataclass(frozen=True, slots=True)
class ValueLimits:
    """Limits on the text and on what is computed from it."""

    text: Limits
    values: EvaluationLimits


def _limits(
    _context: click.Context, _option: click.Parameter, texts: tuple[str, ...]
) -> ValueLimits:
    return ValueLimits(*with_limits(texts, DEFAULT_LIMITS, EvaluationLimits()))


def given_arguments(
    module: Module,
    inputs: str | None,
    random: int | None,
    fill: int | None,
    limits: EvaluationLimits,
) -> tuple[Module, list[Array]]:
    """Return the module, its elided constants filled if asked, and the leaves of its arguments.

    Raises UsageError where the module takes arguments and none were given, LimitError where its
    values are too large.
    """
    check_sizes(module, limits)  # drawing what is too large would take the memory
    if fill is not None:
        module = fill_elided(module, fill)
    if inputs is not None and random is not None:
        raise UsageError(
            "E3112", "--inputs and --random exclude each other", hint="give one of them"
        )
    if inputs is not None:
        return module, load_arguments(inputs, module)
    if random is None and module.entry.parameters:
        raise UsageError(
            "E3110",
            f"{module.name!r} takes {len(module.entry.parameters)} arguments, none were given",
            hint="give --inputs FILE.npz or --random SEED; hloipu show lists the parameters",
        )
    return module, flat(random_arguments(module, random or 0))


def shown(value: Array) -> str:
    """Return an array as numpy prints it, summarised when large."""
    width = 100 if not sys.stdout.isatty() else 80
    return np.array2string(value, threshold=20, edgeitems=3, max_line_width=width, separator=", ")
