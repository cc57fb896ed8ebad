"""User definitions of custom calls: HLO text, files of it, or JAX functions."""

from collections.abc import Mapping
from os import PathLike
from typing import TYPE_CHECKING, Any

from hloipu.options.resolve import resolve
from hloipu.text import read_source
from hloipu_compiler.ir.graph import Module
from hloipu_compiler.source import Source
from hloipu_runtime.errors import UsageError
from hloipu_runtime.kernels.core.storage import user_dtype

if TYPE_CHECKING:
    from hloipu_compiler.formulas.call import Array
    from hloipu_compiler.vendor.definitions import Definition

OPTION = "define"
"""The keyword, and the option of the table."""
OPAQUE_OPTION = "opaque"
"""The option of estimates: cycles of a target."""


def defined(
    module: Module, stated_options: Mapping[str, object], config: str | PathLike[str] | None = None
) -> Module:
    """Return a verified module with custom calls replaced by their definitions.

    `stated_options`: of one call, of which `define` maps targets to files, texts or functions;
    HLOIPU_FLAGS and the configuration file may define others. The same module, where none are.
    Raises UsageError E3011 for what is no definition, and what `with_definitions` raises.
    """
    values = _named(stated_options, config)
    definitions = {target: _definition(target, definition) for target, definition in values.items()}
    for target, cycles in _opaque_pairs(stated_options):
        if target in definitions:
            raise UsageError(
                "E3012", f"{target!r} is both defined and opaque", hint="leave one of them out"
            )
        definitions[target] = _opaque(cycles)
    if not definitions:
        return module
    from hloipu_compiler.vendor.definitions import with_definitions

    return with_definitions(module, definitions)


def _named(
    stated_options: Mapping[str, object], config: str | PathLike[str] | None
) -> Mapping[str, object]:
    """Return the definition given for each target; options of one call win over others."""
    definitions: dict[str, object] = dict(resolve("compile", {}, config=config).options.define)
    asked = stated_options.get(OPTION)
    if asked is not None:
        definitions |= asked if isinstance(asked, Mapping) else dict(_pairs(asked))
    return definitions


def key_text(
    module: Module, text: str, stated_options: Mapping[str, object],
    config: str | PathLike[str] | None = None,
) -> str:  # fmt: skip
    """Return the text that stands for a module among cached programs.

    Its own text, or what definitions have made of it.
    """
    if not _named(stated_options, config) and not _opaque_pairs(stated_options):
        return text
    from hloipu_compiler.hlo.printing.printer import print_module

    return print_module(module)


def without_definitions(stated_options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options that a table can hold."""
    return {name: value for name, value in stated_options.items() if name != OPTION}


def _opaque_pairs(stated_options: Mapping[str, object]) -> list[tuple[str, object]]:
    asked = stated_options.get(OPAQUE_OPTION)
    return [] if asked is None else _pairs(asked)


def _pairs(asked: object) -> list[tuple[str, object]]:
    pairs: list[tuple[str, object]] = []
    for item in asked if isinstance(asked, tuple | list) else [asked]:
        if isinstance(item, str):
            target, mark, path = item.partition("=")
            if not mark:
                raise _no_definition(item)
            pairs.append((target, path))
        elif isinstance(item, tuple) and len(item) == 2:
            pairs.append((str(item[0]), item[1]))
        else:
            raise _no_definition(item)
    return pairs


def _no_definition(value: object) -> UsageError:
    return UsageError(
        "E3011",
        f"define is {str(value)[:60]!r}, and is to be targets with HLO text, files or functions",
        hint='define={"target": "file.hlo"}, or --define target=file.hlo',
    )


def _definition(target: str, value: Any) -> "Definition":
    if callable(value) and not hasattr(value, "read"):
        return lambda operands, _: _lowered(target, value, operands)
    source = read_source(value)
    return lambda _, __: source


def _opaque(cycles: object) -> "Definition":
    from hloipu_compiler.vendor.definitions import opaque_call

    return lambda operands, results: opaque_call(int(str(cycles)), operands, results)


def _lowered(target: str, function: Any, arrays: tuple["Array", ...]) -> Source:
    """Return a JAX function of a call's operands as HLO text."""
    try:
        import jax
    except ImportError as error:
        raise UsageError(
            "E3174", "JAX is not installed", hint="pip install 'hloipu[jax]', or give HLO text"
        ) from error
    operand_types = [jax.ShapeDtypeStruct(dims, user_dtype(kind)) for kind, dims in arrays]
    text = jax.jit(function).lower(*operand_types).as_text("hlo")
    return Source(str(text), f"<{target}>")
