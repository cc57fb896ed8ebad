"""Every public function with every parameter given one wrong value after the other.

What is public is read off the packages, and parameters off signatures: a function that is new has
no base call in `CALLS` and is named by `missing()`.
"""

import inspect
import os
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from random import Random
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

import hloipu
import hloipu.jax
from hloipu.options.table import OPTIONS
from hloipu.training import record
from hloipu_runtime.arguments import ArgumentError, parameter_types
from hloipu_runtime.errors import HloipuError
from hloipu_runtime.session.device import Resident
from hloipu_runtime.session.session import Session
from hloipu_runtime.streams import arrays, made
from hloipu_runtime.streams.element import ElementSpec, LeafSpec
from hloipu_runtime.streams.infeed import InfeedQueue, InfeedState
from hloipu_runtime.streams.outfeed import OutfeedQueue
from hloipu_runtime.streams.source import Source
from tests.support.fitted_plane import GUESS, LOSS, START, STEP, X, Y

ADD = """HloModule add
ENTRY e {
  a = f32[] parameter(0)
  b = f32[2] parameter(1)
  c = f32[2] broadcast(a), dimensions={}
  ROOT r = f32[2] add(b, c)
}
"""
B = np.ones(2, np.float32)
STATE: Any = vars(hloipu.Trainer)["state"]
SPEC = ElementSpec((LeafSpec("f32", (2,)),))

CLASSES = (
    hloipu.CompiledProgram, hloipu.Trainer, hloipu.Device, hloipu.Limits, hloipu.Callback,
    record.ProgressBar, Session, InfeedQueue, OutfeedQueue, Source, ElementSpec, LeafSpec,
    hloipu.jax.JaxProgram, hloipu.jax.LoweredFunction,
)  # fmt: skip
MODULES = (hloipu, hloipu.jax, made, arrays)

NOT_CHECKED = {
    "Module Computation Instruction Fault RunResult History Report "
    "Estimate Profile SessionRun": "records that hloipu makes",
    "CompiledProgram": "made by compile and load",
    "HloipuError HostError LimitError MachineError MismatchError StreamError UsageError "
    "UnsupportedError InvalidHloError ParseError VerifyError GraphError "
    "DoesNotFit "
    "EngineSwapWarning": "errors that hloipu raises",
    "OptionWarning": "errors that hloipu raises",
    "Callback Source": "take nothing; for users to derive from",
    "profile_schema": "takes nothing",
    "Device.keep Device.running": "called by sessions",
    "Session JaxProgram JaxFunction LoweredFunction": "made by other functions alone",
    "InfeedQueue.take InfeedQueue.require_resumable OutfeedQueue.put "
    "OutfeedQueue.end_run": "called by engines for each element",
    "Session.save_part": "called by the process of a host",
    "Source.elements Source.batches Source.with_pass": "called by queues; for sources to override",
    "ElementSpec.to_user": "called by queues for each element",
    "Callback.on_epoch_begin Callback.on_execution_end Callback.on_live Callback.on_epoch_end "
    "ProgressBar.on_live ProgressBar.on_epoch_end": "called by the trainer",
}


@cache
def program() -> hloipu.CompiledProgram:
    return hloipu.compile(ADD, target="tiny", cache=False)


@cache
def step() -> hloipu.CompiledProgram:
    return hloipu.compile(
        STEP, target="tiny", cache=False, loop=2, feed={"x": (1,), "y": (2,)}, outfeed=("loss",)
    )


def infeeds() -> dict[str, Any]:
    return {"x": [np.ones((4, 2), np.float32)] * 9, "y": np.ones((9, 4), np.float32)}


def session() -> Session:
    return step().session(state=[START], infeeds=infeeds())


class Stop(hloipu.Callback):
    """Ends a training after its first epoch, however many are asked for."""

    def on_epoch_end(self, epoch: int, logs: Mapping[str, float]) -> None:
        trainer().stop_training = True


@cache
def trainer() -> hloipu.Trainer:
    return hloipu.Trainer(
        STEP, state=[START], evaluation=LOSS, prediction=GUESS, target="tiny", cache=False
    )


@cache
def jax_program() -> hloipu.jax.JaxProgram:
    return hloipu.jax.compile(lambda w, x: w + x, B, B, donate=0, loop=1, target="tiny")


def resident() -> Resident:
    return Resident("r", step().machine, {})


def source() -> Source:
    return made.source_of([B, B])


def queue() -> OutfeedQueue:
    found = OutfeedQueue("loss", spec=SPEC)
    found.close()
    return found


Call = Callable[[], tuple[Callable[..., Any], dict[str, Any]]]
CALLS: Mapping[str, Call] = {
    "compile": lambda: (hloipu.compile, {"given": ADD}),
    "sweep": lambda: (
        hloipu.sweep,
        {"step": ADD, "axes": {"target": ["tiny"]}, "workers": 0, "path": os.devnull},
    ),
    "write_report": lambda: (hloipu.write_report, {"program": program(), "path": os.devnull}),
    "open_report": lambda: (hloipu.open_report, {"path": "nowhere.json"}),
    "report_of": lambda: (hloipu.report_of, {"program": program()}),
    "write_trace": lambda: (hloipu.write_trace, {"program": program(), "path": os.devnull}),
    "parse": lambda: (hloipu.parse, {"given": ADD}),
    "verify": lambda: (hloipu.verify, {"given": ADD}),
    "evaluate": lambda: (_placed(hloipu.evaluate, ADD, np.float32(1), B), {}),
    "load": lambda: (hloipu.load, {"path": "p.ipux"}),
    "register_custom_call": lambda: (
        hloipu.register_custom_call, {"target": "wrong-arguments", "implementation": len},
    ),
    "Limits": lambda: (hloipu.Limits, {}),
    "Device": lambda: (hloipu.Device, {}),
    "Device.admit": lambda: (hloipu.Device().admit, {"resident": resident()}),
    "Device.load": lambda: (
        _closing(hloipu.Device().load),
        {"program": step(), "state": [START], "infeeds": infeeds()},
    ),
    "Device.bring": lambda: (hloipu.Device().bring, {"resident": resident()}),
    "ProgressBar": lambda: (record.ProgressBar, {}),
    "CompiledProgram.run": lambda: (_placed(program().run, np.float32(1), B), {}),
    "CompiledProgram.session": lambda: (
        _closing(step().session), {"state": [START], "infeeds": infeeds()},
    ),
    "CompiledProgram.estimate": lambda: (program().estimate, {}),
    "CompiledProgram.profile": lambda: (program().profile, {}),
    "CompiledProgram.findings": lambda: (program().findings, {}),
    "CompiledProgram.save": lambda: (program().save, {"path": "p.ipux"}),
    "Session.run": lambda: (session().run, {"steps": 2}),
    "Session.load_constants": lambda: (session().load_constants, {"constants": {}}),
    "Session.stream": lambda: (session().stream, {"name": "loss"}),
    "Session.arrived": lambda: (session().arrived, {"name": "loss"}),
    "Session.state": lambda: (session().state, {"replica": 0}),
    "Session.give_state": lambda: (session().give_state, {"state": [START]}),
    "Session.save_state": lambda: (session().save_state, {"path": "c"}),
    "Session.load_state": lambda: (session().load_state, {"path": "c"}),
    "Trainer": lambda: (hloipu.Trainer, {"step": STEP, "target": "tiny", "cache": False}),
    "Trainer.fit": lambda: (
        trainer().fit, {"dataset": (X, Y), "progress": False, "callbacks": [Stop()]},
    ),
    "Trainer.evaluate": lambda: (trainer().evaluate, {"dataset": (X, Y)}),
    "Trainer.predict": lambda: (trainer().predict, {"dataset": X}),
    "Trainer.save_state": lambda: (trainer().save_state, {"path": "t"}),
    "Trainer.load_state": lambda: (trainer().load_state, {"path": "t"}),
    "Trainer.state": lambda: (partial(STATE.__set__, trainer()), {}),
    "InfeedQueue": lambda: (InfeedQueue, {"name": "q", "spec": SPEC, "source": [B]}),
    "InfeedQueue.resume": lambda: (
        InfeedQueue("q", SPEC, [B]).resume, {"state": InfeedState("q", 0)},
    ),
    "OutfeedQueue": lambda: (OutfeedQueue, {"name": "q"}),
    "OutfeedQueue.bind": lambda: (OutfeedQueue("q").bind, {"spec": SPEC}),
    "OutfeedQueue.drain": lambda: (queue().drain, {"most": 1}),
    "OutfeedQueue.follow": lambda: (_drained(queue().follow), {}),
    "ElementSpec": lambda: (ElementSpec, {"leaves": SPEC.leaves}),
    "LeafSpec": lambda: (LeafSpec, {"element_type": "f32", "shape": (2,)}),
    "Source.repeat": lambda: (source().repeat, {"times": 2}),
    "Source.shuffle": lambda: (source().shuffle, {"seed": 2}),
    "Source.batch": lambda: (source().batch, {"size": 2}),
    "Source.map": lambda: (source().map, {"function": len}),
    "Source.take": lambda: (source().take, {"count": 2}),
    "from_iterable": lambda: (made.from_iterable, {"iterable": [B]}),
    "from_callable": lambda: (made.from_callable, {"function": len}),
    "from_arrays": lambda: (arrays.from_arrays, {"arrays": B}),
    "from_file": lambda: (arrays.from_file, {"path": "x.npy"}),
    "synthetic": lambda: (made.synthetic, {"spec": SPEC}),
    "null_feed": lambda: (made.null_feed, {"spec": SPEC}),
    "source_of": lambda: (made.source_of, {"data": [B]}),
    "jax.lower": lambda: (_placed(hloipu.jax.lower, jnp.sin, B), {}),
    "jax.compile": lambda: (
        _placed(hloipu.jax.compile, lambda w, x: w + x, B, B), {"loop": 1, "donate": 0},
    ),
    "jax.estimate": lambda: (_placed(hloipu.jax.estimate, jnp.sin, B), {"target": "tiny"}),
    "jax.jit": lambda: (_placed(hloipu.jax.jit, jnp.sin), {"target": "tiny"}),
    "JaxProgram.session": lambda: (_closing(jax_program().session), {"infeeds": {"data": [B]}}),
    "JaxProgram.nested_state": lambda: (
        jax_program().nested_state, {"session": jax_program().session(infeeds={"data": [B]})},
    ),
    "LoweredFunction.accumulators": lambda: (
        jax_program().lowered.accumulators, {"asked": {"w": "f32"}},
    ),
    "LoweredFunction.flat": lambda: (_placed(jax_program().lowered.flat, B, B), {}),
    "LoweredFunction.numbers": lambda: (jax_program().lowered.numbers, {"selectors": "w"}),
    "LoweredFunction.nested_results": lambda: (
        jax_program().lowered.nested_results, {"leaves": [B]},
    ),
    "LoweredFunction.nested_state": lambda: (
        jax_program().lowered.nested_state, {"state": {"w": B}},
    ),
    "LoweredFunction.wrapping": lambda: (
        jax_program().lowered.wrapping, {"feed": None, "outfeed": None},
    ),
}  # fmt: skip


def _placed(function: Callable[..., Any], *given: Any) -> Callable[..., Any]:
    """Return a function whose first arguments are these unless they are given by name."""
    taken = inspect.signature(function)
    names = [x.name for x in taken.parameters.values() if x.kind is x.POSITIONAL_OR_KEYWORD]

    def called(**named: Any) -> Any:
        first = [named.pop(name) if name in named else x for name, x in zip(names, given)]  # noqa: B905
        rest = named.pop("arguments", given[len(names) :])
        return function(*first, *rest, **named)

    called.__signature__ = taken  # type: ignore[attr-defined]
    called.__wrapped__ = function  # type: ignore[attr-defined]
    return called


def _closing(function: Callable[..., Any]) -> Callable[..., Any]:
    def called(**named: Any) -> None:
        function(**named).close()

    called.__wrapped__ = function  # type: ignore[attr-defined]
    return called


def _drained(function: Callable[..., Any]) -> Callable[..., Any]:
    def called(**named: Any) -> None:
        list(function(**named))

    called.__wrapped__ = function  # type: ignore[attr-defined]
    return called


def public() -> Iterator[str]:
    """Yield the names of all public functions, constructors and methods."""
    for module in MODULES:
        prefix = "jax." if module is hloipu.jax else ""
        faces = (hloipu, hloipu.jax)
        names = module.__all__ if module in faces else vars(module)
        for name in names:
            thing = getattr(module, name)
            own = module in faces or getattr(thing, "__module__", "") == module.__name__
            if (
                name.startswith("_")
                or not own
                or (isinstance(thing, type) and module is not hloipu)
            ):
                continue
            if callable(thing):
                yield prefix + name
    for cls in CLASSES:
        yield cls.__name__
        for name, thing in vars(cls).items():
            if not name.startswith("_") and inspect.isfunction(thing):
                if len(inspect.signature(thing).parameters) > 1:
                    yield f"{cls.__name__}.{name}"
            elif isinstance(thing, property) and thing.fset is not None:
                yield f"{cls.__name__}.{name}"


def missing() -> list[str]:
    """Return the public functions that have neither a base call nor a reason for none."""
    known = {*CALLS, *" ".join(NOT_CHECKED).split()}
    return sorted({*public()} - known)


_OF_JAX = frozenset({"function", "arguments"})
"""What JAX traces and is traced with: it has its own errors for these."""


class Opaque:
    """Is nothing that anything takes."""


def wrong_values() -> Iterator[Any]:
    """Yield values, each fresh; of every kind that Python programs mistake for another."""
    yield from (None, True, False, 5, 0, -1, 2**70, -(2**70), 1.5, 0.0, -1.5)
    yield from (
        float("nan"),
        float("inf"),
        -float("inf"),
        1e308,
        1j,
        "x",
        "",
        "\x1b[2J",
        "y" * 9999,
    )
    yield from (b"x", bytearray(b"x"), [], [5], ["x"], [None], (), (5,), ("x", "x"), {}, {"x": 5})
    yield from ({5: "x"}, {None: None}, {"data": object()}, set(), {"x"}, frozenset(), range(3))
    yield from (object(), Opaque(), Opaque, int, len, lambda: 0, ..., NotImplemented)
    yield (x for x in (1, 2))
    yield iter([1])
    yield from (np.int64(3), np.uint8(3), np.float32(1.5), np.float64("nan"), np.bool_(True))
    yield from (np.arange(3), np.zeros((2, 2)), np.array("x"), np.array(None), np.array([1, "x"]))
    yield from (ValueError("x"), np, memoryview(b"x"), [[]], [[1], [2, 3]], {"x": {"x": {}}})


def must_be_refused(value: Any, text: str) -> bool:
    """Whether a value is of no type that the text of an annotation names."""
    if isinstance(value, bool | np.bool_):
        return "bool" not in text
    if value is None:
        return "None" not in text
    if isinstance(value, int | np.integer):
        return "int" not in text and "float" not in text
    if isinstance(value, float | np.floating):
        return "float" not in text or not np.isfinite(value)
    if isinstance(value, str):
        return "str" not in text and "Iterable" not in text
    if isinstance(value, dict):
        return "Mapping" not in text and "Iterable" not in text
    if isinstance(value, list | tuple | range | np.ndarray):
        return not any(x in text for x in ("Sequence", "tuple", "list", "Iterable"))
    if "Iterable" in text and hasattr(value, "__iter__"):
        return False
    return "Callable" not in text or not callable(value)


class Case(NamedTuple):
    """One call."""

    name: str
    parameter: str
    number: int
    """Of the value."""


def parameters(name: str) -> dict[str, str]:
    """Return the parameters of a public function, with their annotations as text."""
    function, _ = CALLS[name]()
    own = inspect.unwrap(function.func if isinstance(function, partial) else function)
    if name == "Trainer.state":
        own = inspect.unwrap(STATE.fset)
    if isinstance(own, type):
        own = inspect.unwrap(vars(own)["__init__"])
    hints = parameter_types(own)
    return {
        x.name: str(hints.get(x.name, Any)).replace("typing.", "").replace("Optional", "None or ")
        for x in inspect.signature(own).parameters.values()
        if x.name != "self"
        and x.kind is not x.VAR_KEYWORD
        and not (name.startswith("jax.") and x.name in _OF_JAX)
    }


def drawn_values(what: str, one_in: int) -> Iterator[tuple[int, Any]]:
    """Yield one of so many wrong values with their numbers, drawn anew for each parameter."""
    values = list(enumerate(wrong_values()))
    yield from Random(what).sample(values, -(-len(values) // one_in))


def faults_of(name: str, one_in: int) -> Iterator[tuple[Case, str]]:
    """Call a function with one of so many wrong values; yield each case with its fault, if any."""
    for parameter, text in parameters(name).items():
        for number, value in drawn_values(f"{name} {parameter}", one_in):
            yield Case(name, parameter, number), _fault(name, parameter, text, value)
    if name != "Trainer.state":
        yield Case(name, "no_such_argument", 0), _fault(name, "no_such_argument", "", 5)


def _fault(name: str, parameter: str, text: str, value: Any) -> str:
    function, named = CALLS[name]()
    if parameter == "arguments":
        named |= {"arguments": (value, B)}
    elif name == "Trainer.state" and parameter == "state":
        function = partial(function, value)
    else:
        named |= {parameter: value}
    said = repr(value)[:60]
    refused = text != "Any" and parameter != "arguments" and must_be_refused(value, text)
    try:
        function(**named)
    except ArgumentError as error:
        if parameter not in error.argument or "\x1b" in str(error):
            return f"{said}: the error names {error.argument!r}"
        return "" if refused or not text or _fine(value, text) else f"{said} is refused: {error}"
    except HloipuError as error:
        takes_options = parameter == "no_such_argument" and parameter in str(error)
        return f"{said}: {error!r}" if refused and not takes_options else ""
    except BaseException as error:
        if callable(value) and "Callable" in text:
            return ""  # its own error
        return f"{said}: {type(error).__name__}: {error}"[:300]
    return f"{said} is taken as {text}" if refused else ""


def _fine(value: Any, text: str) -> bool:
    """Whether a value of a right type may be refused: for its bounds, or what it holds."""
    return "Any" not in (text, text.removesuffix(" | None"))


def faults_of_options(one_in: int) -> Iterator[tuple[Case, str]]:
    """Compile with every option of the table given one of so many wrong values."""
    for name in OPTIONS:
        for number, value in drawn_values(name, one_in):
            fault = ""
            try:
                hloipu.compile(ADD, **{"target": "tiny", "cache": False, name: value})
            except HloipuError:
                pass
            except BaseException as error:
                fault = f"{value!r}: {type(error).__name__}: {error}"[:300]
            yield Case("compile", name, number), fault
