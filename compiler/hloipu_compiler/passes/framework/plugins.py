"""A user's passes from a plain Python file."""

import importlib.util
import sys
from pathlib import Path

from hloipu_compiler.passes.framework.pass_base import Pass
from hloipu_compiler.passes.framework.registry import passes
from hloipu_runtime.errors import HloipuError, UsageError
from hloipu_runtime.plain_text import plain_message

_MODULES = "hloipu_plugin_"
"""Before the name of a plugin's file: what its module is called."""


def load_plugin(path: str | Path) -> tuple[str, ...]:
    """Run a Python file that registers passes; return their names.

    The file is the user's own program: it may do whatever Python may do. Raises UsageError (E3136)
    where it cannot be read, is no Python, raises, or registers nothing.
    """
    file = Path(path)
    before = {x.name for x in passes()}
    name = f"{_MODULES}{file.stem}"
    if file.exists() and not file.is_file():
        raise _unusable(file, "it is not a file")
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise _unusable(file, "it is no .py file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up there
    try:
        spec.loader.exec_module(module)
    except HloipuError:
        raise
    except Exception as error:  # whatever a user's file raises
        raise _unusable(file, f"it raises {plain_message(error)}{_line_of(error, file)}") from error
    added = tuple(x.name for x in passes() if x.name not in before)
    if not added:
        raise _unusable(file, "it registers no pass")
    return added


def plugin_fault(one: Pass, error: Exception) -> UsageError | None:
    """Return UsageError E3137 for a foreign exception of a plugin's pass; None for any other."""
    home = type(one).__module__
    if isinstance(error, HloipuError) or not home.startswith(_MODULES):
        return None
    file = Path(str(sys.modules[home].__file__))
    return UsageError(
        "E3137",
        f"the pass {one.name} of {str(file)!r} raises {plain_message(error)}"
        f"{_line_of(error, file)}",
        hint="correct the pass, or leave it out",
    )


def _line_of(error: BaseException, file: Path) -> str:
    """Return the innermost line of a file at which an exception was raised, as ` at line N`."""
    trace, line = error.__traceback__, 0
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == str(file):
            line = trace.tb_lineno
        trace = trace.tb_next
    return f" at line {line}" if line else ""


def _unusable(file: Path, why: str) -> UsageError:
    return UsageError(
        "E3136",
        f"{str(file)!r} is not a plugin: {why}",
        hint="a plugin is a Python file with a class under @register",
    )
