"""JAX functions compiled for the modelled machine: called, looped over queues, estimated."""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Unpack

from hloipu.api import compile as compile_hlo
from hloipu.definitions import without_definitions
from hloipu.jax.lowering import Donated, LoweredFunction, Selector, lower
from hloipu.options.keywords import PlainOptions
from hloipu.options.resolve import resolve
from hloipu_compiler.analysis.tally import tally
from hloipu_runtime.arguments import checked
from hloipu_runtime.compiled import CompiledProgram
from hloipu_runtime.costs.estimate import Estimate
from hloipu_runtime.errors import UsageError
from hloipu_runtime.plain_text import plain_message
from hloipu_runtime.program.seen import number_of, seen_by_users
from hloipu_runtime.session.device import Compiled, SharedLoad
from hloipu_runtime.session.session import Session

import jax  # isort: skip  # its absence is told by hloipu.jax.result_paths


@dataclass(frozen=True)
class JaxProgram(Compiled):
    """A JAX function compiled for the modelled machine."""

    lowered: LoweredFunction
    program: CompiledProgram

    def __call__(self, *arguments: Any, **run: Any) -> Any:
        """Run once on nested arguments; return nested numpy arrays.

        `run` are the options of `CompiledProgram.run`, which says what is raised, and the arguments
        that the function was lowered with by name.
        """
        names = self.lowered.keywords.keys()
        named = {name: run.pop(name) for name in names & run.keys()}
        result = self.program.run(*self.lowered.flat(*arguments, **named), **run)
        return self.lowered.nested_results(result.outputs)

    @checked
    def session(self, *, infeeds: Mapping[str, Any] | None = None, **options: Any) -> Session:
        """Return a session that begins with the arguments of the call that compiled it.

        Donated ones are the state; others that no queue feeds are loaded once, as constants. See
        `CompiledProgram.session` for options and errors; `nested_state` has its state's form.
        """
        device = options.get("device")
        on_device = device.numbers_there if isinstance(device, SharedLoad) else frozenset[int]()
        if self.lowered.has_state:
            mine = {n: a for n, a in self.lowered.state.items() if n not in on_device}
            options.setdefault("state", mine)
        user_view = seen_by_users(self.program.program)
        loaded = {number_of(port) for port in user_view.parameters[: user_view.loaded]} - on_device
        if loaded & self.lowered.values.keys():
            known = {n: a for n, a in self.lowered.values.items() if n in loaded}
            options.setdefault("constants", known)
        return self.program.session(infeeds=infeeds, **options)

    @checked
    def nested_state(self, session: Session) -> tuple[Any, ...]:
        """Return the donated arguments as a session has them now."""
        return self.lowered.nested_state(session.state())

    def as_text(self) -> str:
        """Return the HLO text that was compiled."""
        return self.lowered.text

    def memory_analysis(self) -> dict[str, int]:
        """Return bytes by the keys of `jax.stages.Compiled.memory_analysis`.

        See `CompiledProgram.memory_analysis`.
        """
        return self.program.memory_analysis()

    def cost_analysis(self) -> dict[str, float]:
        """Return work by the keys of `jax.stages.Compiled.cost_analysis`, loops counted in full.

        Beside them `cycles` and `optimal_seconds` of one run, which are those of the modelled
        device without its host, at least. Where data decides how often a loop turns, its work
        counts once.
        """
        work, device_cycles = tally(self.lowered.module).total, self.program.profile().device_cycles
        clock_hz = self.program.machine.chip.clock_hz
        return {
            "flops": float(work.flops),
            "transcendentals": float(work.transcendentals),
            "bytes accessed": float(work.bytes_read + work.bytes_written),
            "cycles": float(device_cycles),
            "optimal_seconds": device_cycles / clock_hz,
        }


@checked
def compile(
    function: Any,
    *arguments: Any,
    donate: Donated = (),
    loop: int | None = None,
    feed: Mapping[str, Selector | Sequence[Selector]] | None = None,
    outfeed: Sequence[str] | Mapping[str, Selector | Sequence[Selector]] | None = None,
    role: Mapping[Any, str] | None = None,
    **options: Unpack[PlainOptions],
) -> JaxProgram:
    """Lower a JAX function for arguments like these and compile it.

    `function` is what `lower` takes: a function, a jitted one, or one that JAX has traced or
    lowered. With `loop` the donated arguments stay on the device, queues feed arguments (`feed`:
    name -> arguments' numbers or paths such as `params/dense`; by default all others come from
    `data`), and other results go to queues (`outfeed`: their names in order, or name -> results'
    numbers or paths, whose elements are dictionaries then). `role`: what arguments are, by number
    or path; a function that donates nothing has all that is not fed constant. `options` are those
    of `hloipu.compile`, which says what is raised; `accumulator` takes numbers and paths too.
    """
    lowered = lower(function, *arguments, donate=donate)
    cut: dict[str, Any] = {}
    if "accumulator" in options:
        options["accumulator"] = lowered.accumulators(options["accumulator"])
    if loop is not None or feed is not None or outfeed is not None:
        cut = {**lowered.wrapping(feed, outfeed, role), "loop": loop}
    elif role:
        cut["role"] = {str(n): kind for key, kind in role.items() for n in lowered.numbers(key)}
    all_options: dict[str, Any] = {**cut, **options}
    return JaxProgram(lowered, compile_hlo(lowered.text, **all_options))


@checked
def estimate(function: Any, *arguments: Any, **options: Unpack[PlainOptions]) -> Estimate:
    """Return the cycles of a function for arguments like these, or types and shapes of them.

    Nothing is computed, and what does not fit is estimated all the same. See `compile` for options.
    """
    all_options: Any = {"over_memory": "allow", **options}
    return compile(function, *arguments, **all_options).program.estimate()


class JaxFunction:
    """A function that runs on the modelled machine, compiled for each kind of arguments once."""

    def __init__(self, jitted: Any, static: Callable[..., Any], options: Mapping[str, Any]) -> None:
        self._jitted = jitted
        self._without_static = static
        self._options = dict(options)
        self._programs: dict[int, tuple[Any, JaxProgram]] = {}

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """Run once on nested arguments; return nested numpy arrays."""
        program = self.compiled(*arguments, **keywords)
        traced, named = self._without_static(arguments, keywords)
        result = program.program.run(*program.lowered.flat(*traced, **named))
        return program.lowered.nested_results(result.outputs)

    def compiled(self, *arguments: Any, **keywords: Any) -> JaxProgram:
        """Return the program for arguments like these, compiled if it is the first of its kind."""
        traced = self._jitted.trace(*arguments, **keywords)
        # JAX keeps what it has traced, types, weak types and static arguments taken into account.
        key = id(traced.jaxpr)
        if key not in self._programs:
            lowered = lower(traced)
            self._programs[key] = (
                traced.jaxpr,
                JaxProgram(lowered, compile_hlo(lowered.text, **self._options)),
            )
        return self._programs[key][1]

    def estimate(self, *arguments: Any, **keywords: Any) -> Estimate:
        """Return the cycles of one run for arguments like these, or types and shapes of them."""
        return self.compiled(*arguments, **keywords).program.estimate()


@checked
def jit(
    function: Callable[..., Any],
    *,
    donate_argnums: int | Sequence[int] = (),
    donate_argnames: str | Iterable[str] = (),
    static_argnums: int | Sequence[int] = (),
    static_argnames: str | Iterable[str] = (),
    **options: Unpack[PlainOptions],
) -> JaxFunction:
    """Return a function that runs on the modelled machine, as `jax.jit` does for the host.

    It is compiled once for each kind of arguments. `options` are those of `hloipu.compile`. Raises
    UsageError E2063 for arguments that the function does not have, and what options raise.

        layer = hloipu.jax.jit(lambda w, x: jax.nn.relu(x @ w), target="bow")
        y = layer(w, x)
    """
    resolve(
        "compile", without_definitions(options)
    )  # wrong ones are told now, not at the first call
    try:
        names = (static_argnames,) if isinstance(static_argnames, str) else tuple(static_argnames)
        numbers = (static_argnums,) if isinstance(static_argnums, int) else tuple(static_argnums)
        jitted = jax.jit(
            function,
            donate_argnums=donate_argnums,
            donate_argnames=donate_argnames or None,
            static_argnums=numbers or None,
            static_argnames=names or None,
            keep_unused=True,
        )
        by_position = [
            parameter.name
            for parameter in inspect.signature(function).parameters.values()
            if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
        ]
        static = {*names, *(by_position[number] for number in numbers)}
    except (TypeError, ValueError, IndexError) as error:
        raise UsageError(
            "E2063",
            f"the function has no such arguments: {plain_message(error)}",
            hint="static_argnums and donate_argnums are numbers of arguments, counted from 0",
        ) from error

    def without_static(
        arguments: tuple[Any, ...], keywords: Mapping[str, Any]
    ) -> tuple[list[Any], dict[str, Any]]:
        labels = [*by_position, *([""] * len(arguments))]
        traced = [
            argument
            for argument, name in zip(arguments, labels, strict=False)
            if name not in static
        ]
        return traced, {name: argument for name, argument in keywords.items() if name not in static}

    return JaxFunction(jitted, without_static, options)
