"""A user's passes from a plain Python file."""

import importlib.util
import sys
from pathlib import Path

from hloipu_compiler.passes.registry import passes
from hloipu_runtime.errors import UsageError


def load_plugin(path: str | Path) -> tuple[str, ...]:
    """Run a Python file that registers passes; return their names.

    The file is the user's own program: it may do whatever Python may do. Raises UsageError (E3136)
    where it cannot be read, is no Python, or registers nothing.
    """
    file = Path(path)
    before = {x.name for x in passes()}
    name = f"hloipu_plugin_{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise _unusable(file, "it is no .py file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up there
    try:
        spec.loader.exec_module(module)
    except (OSError, SyntaxError, ImportError, UnicodeError) as error:
        raise _unusable(file, str(error)) from error
    added = tuple(x.name for x in passes() if x.name not in before)
    if not added:
        raise _unusable(file, "it registers no pass")
    return added


def _unusable(file: Path, why: str) -> UsageError:
    return UsageError(
        "E3136",
        f"{str(file)!r} is no plugin: {why}",
        hint="a plugin is a Python file with a class under @register",
    )
