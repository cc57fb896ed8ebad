"""Compile XLA HLO text for a modelled Graphcore IPU and run it; the public face.

The names resolve on first use (PEP 562): an eager face would cost every start the import of numpy,
lark and networkx.
"""

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from hloipu import hosts as hosts
    from hloipu import jax as jax
    from hloipu import keras as keras
    from hloipu import passes as passes
    from hloipu import streams as streams
    from hloipu.api import compile
    from hloipu.modules import evaluate, parse, verify
    from hloipu.options.resolve import OptionWarning
    from hloipu.report.page import write_report
    from hloipu.report.reading import Report, open_report, profile_schema, report_of
    from hloipu.report.trace import write_trace
    from hloipu.sweeping.study import sweep
    from hloipu.training.record import Callback, History
    from hloipu.training.trainer import Trainer
    from hloipu_compiler.errors import Fault, GraphError, InvalidHloError, ParseError, VerifyError
    from hloipu_compiler.hlo.syntax.limits import Limits
    from hloipu_compiler.interpret.ops.custom_calls import register_custom_call
    from hloipu_compiler.ir.graph import Computation, Instruction, Module
    from hloipu_runtime.compiled import CompiledProgram, load
    from hloipu_runtime.costs.estimate import Estimate
    from hloipu_runtime.errors import (
        HloipuError,
        HostError,
        LimitError,
        MachineError,
        MismatchError,
        StreamError,
        UnsupportedError,
        UsageError,
    )
    from hloipu_runtime.memory.does_not_fit import DoesNotFit
    from hloipu_runtime.report.profile import Profile
    from hloipu_runtime.session.device import Device, EngineSwapWarning
    from hloipu_runtime.session.run_result import RunResult, SessionRun
    from hloipu_runtime.session.session import Session

_HOMES = {
    "compile": "hloipu.api",
    "CompiledProgram": "hloipu_runtime.compiled",
    "RunResult": "hloipu_runtime.session.run_result",
    "load": "hloipu_runtime.compiled",
    "Device": "hloipu_runtime.session.device",
    "EngineSwapWarning": "hloipu_runtime.session.device",
    "OptionWarning": "hloipu.options.resolve",
    "DoesNotFit": "hloipu_runtime.memory.does_not_fit",
    "Callback": "hloipu.training.record",
    "History": "hloipu.training.record",
    "Trainer": "hloipu.training.trainer",
    "evaluate": "hloipu.modules",
    "register_custom_call": "hloipu_compiler.interpret.ops.custom_calls",
    "parse": "hloipu.modules",
    "verify": "hloipu.modules",
    "Report": "hloipu.report.reading",
    "open_report": "hloipu.report.reading",
    "profile_schema": "hloipu.report.reading",
    "report_of": "hloipu.report.reading",
    "sweep": "hloipu.sweeping.study",
    "write_report": "hloipu.report.page",
    "write_trace": "hloipu.report.trace",
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
    "HostError": "hloipu_runtime.errors",
    "LimitError": "hloipu_runtime.errors",
    "Session": "hloipu_runtime.session.session",
    "SessionRun": "hloipu_runtime.session.run_result",
    "Profile": "hloipu_runtime.report.profile",
    "Estimate": "hloipu_runtime.costs.estimate",
    "UsageError": "hloipu_runtime.errors",
    "StreamError": "hloipu_runtime.errors",
    "MachineError": "hloipu_runtime.errors",
    "MismatchError": "hloipu_runtime.errors",
    "UnsupportedError": "hloipu_runtime.errors",
}

_MODULES = ("hosts", "jax", "keras", "passes", "streams")

__all__ = [
    "Callback",
    "CompiledProgram",
    "Computation",
    "Device",
    "DoesNotFit",
    "EngineSwapWarning",
    "Estimate",
    "Fault",
    "GraphError",
    "History",
    "HloipuError",
    "HostError",
    "Instruction",
    "InvalidHloError",
    "LimitError",
    "Limits",
    "MachineError",
    "MismatchError",
    "Module",
    "OptionWarning",
    "ParseError",
    "Profile",
    "Report",
    "RunResult",
    "Session",
    "SessionRun",
    "StreamError",
    "Trainer",
    "UnsupportedError",
    "UsageError",
    "VerifyError",
    "__version__",
    "compile",
    "evaluate",
    "load",
    "open_report",
    "parse",
    "profile_schema",
    "register_custom_call",
    "report_of",
    "sweep",
    "verify",
    "write_report",
    "write_trace",
]


def __getattr__(name: str) -> object:
    if name in _MODULES:  # of ours, which bind themselves when they are imported
        return import_module(f"hloipu.{name}")
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'hloipu' has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
