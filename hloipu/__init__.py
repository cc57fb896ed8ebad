"""Compile XLA HLO text for a modelled Graphcore IPU and run it; the public face.

The names resolve on first use (PEP 562): an eager face would cost every start the import of numpy,
lark and networkx.
"""

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from hloipu.api import compile
    from hloipu.modules import evaluate, parse, verify
    from hloipu.training.callbacks import Callback
    from hloipu.training.record import History
    from hloipu.training.trainer import Trainer
    from hloipu_compiler.errors import Fault, GraphError, InvalidHloError, ParseError, VerifyError
    from hloipu_compiler.hlo.syntax.limits import Limits
    from hloipu_compiler.interpret.ops.custom_calls import register_custom_call
    from hloipu_compiler.ir.graph import Computation, Instruction, Module
    from hloipu_runtime.compiled import CompiledProgram, load
    from hloipu_runtime.errors import HloipuError, LimitError, UnsupportedError
    from hloipu_runtime.memory.does_not_fit import DoesNotFit
    from hloipu_runtime.session.device import Device, EngineSwapWarning
    from hloipu_runtime.session.run_result import RunResult

_HOMES = {
    "compile": "hloipu.api",
    "CompiledProgram": "hloipu_runtime.compiled",
    "RunResult": "hloipu_runtime.session.run_result",
    "load": "hloipu_runtime.compiled",
    "Device": "hloipu_runtime.session.device",
    "EngineSwapWarning": "hloipu_runtime.session.device",
    "DoesNotFit": "hloipu_runtime.memory.does_not_fit",
    "Callback": "hloipu.training.callbacks",
    "History": "hloipu.training.record",
    "Trainer": "hloipu.training.trainer",
    "evaluate": "hloipu.modules",
    "register_custom_call": "hloipu_compiler.interpret.ops.custom_calls",
    "parse": "hloipu.modules",
    "verify": "hloipu.modules",
    "Module": "hloipu_compiler.ir.graph",
    "Computation": "hloipu_compiler.ir.graph",
    "Instruction": "hloipu_compiler.ir.graph",
    "Fault": "hloipu_compiler.errors",
    "GraphError": "hloipu_compiler.errors",
    "InvalidHloError": "hloipu_compiler.errors",
    "ParseError": "hloipu_compiler.errors",
    "VerifyError": "hloipu_compiler.errors",
    "Limits": "hloipu_compiler.hlo.syntax.limits",
    "HloipuError": "hloipu_runtime.errors",
    "LimitError": "hloipu_runtime.errors",
    "UnsupportedError": "hloipu_runtime.errors",
}

__all__ = [
    "Callback",
    "CompiledProgram",
    "Computation",
    "Device",
    "DoesNotFit",
    "EngineSwapWarning",
    "Fault",
    "GraphError",
    "History",
    "HloipuError",
    "Instruction",
    "InvalidHloError",
    "LimitError",
    "Limits",
    "Module",
    "ParseError",
    "RunResult",
    "Trainer",
    "UnsupportedError",
    "VerifyError",
    "__version__",
    "compile",
    "evaluate",
    "load",
    "parse",
    "register_custom_call",
    "verify",
]


def __getattr__(name: str) -> object:
    if name == "jax":  # a module of ours, which binds itself when it is imported
        return import_module("hloipu.jax")
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'hloipu' has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
