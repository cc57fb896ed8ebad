"""JAX functions on the simulated device; JAX is an extra, and nothing else of hloipu needs it.

Lowering goes through the public interface of `jax.stages`; texts keep source lines and constants.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import Any

import numpy as np

from hloipu.api import compile as compile_hlo
from hloipu.training.programs import DATA, named_metrics
from hloipu_compiler.hlo.parse import parse
from hloipu_compiler.ir.graph import Module
from hloipu_compiler.plan.entry_arrays import parameter_arrays, result_arrays
from hloipu_compiler.plan.roles import wrapping_of
from hloipu_compiler.plan.wrapping import WrappingRequest
from hloipu_compiler.source import Source
from hloipu_runtime.arguments import checked
from hloipu_runtime.compiled import CompiledProgram
from hloipu_runtime.errors import UsageError
from hloipu_runtime.plain_text import plain_message
from hloipu_runtime.session.session import Session

try:
    import jax
except ImportError as error:
    raise UsageError(
        "E3174", "JAX is not installed", hint="pip install 'hloipu[jax]'; HLO text needs no JAX"
    ) from error


@dataclass(frozen=True)
class LoweredFunction:
    """A function of nested arguments as HLO text of flat ones."""

    text: str = field(repr=False)
    arguments: tuple[Any, ...] = field(repr=False)
    """What the function was lowered for: nested arrays, or their types and shapes."""
    donated: tuple[int, ...]
    """Numbers of the arguments that results replace."""
    out_info: Any = field(repr=False)
    """Types and shapes of the results, nested as the function returns them."""

    @cached_property
    def parameters(self) -> tuple[tuple[int, ...], ...]:
        """The numbers of the flat parameters of each argument."""
        counts = [len(jax.tree.leaves(argument)) for argument in self.arguments]
        ends = list(accumulate(counts))
        return tuple(
            tuple(range(end - count, end)) for count, end in zip(counts, ends, strict=True)
        )

    @property
    def state(self) -> dict[int, Any]:
        """The arrays of the donated arguments by number of the parameter, as sessions take them.

        Raises UsageError E3154 where the function was lowered for types and shapes of them alone.
        """
        if not self.has_state:
            raise UsageError(
                "E3154",
                "the donated arguments are types and shapes without values",
                hint="give state=[array, …], or lower the function for arrays",
            )
        return {
            number: array
            for argument in self.donated
            for number, array in zip(
                self.parameters[argument], _arrays(self.arguments[argument]), strict=True
            )
        }

    @property
    def has_state(self) -> bool:
        """Whether the donated arguments are arrays, and not types and shapes alone."""
        leaves = jax.tree.leaves([self.arguments[number] for number in self.donated])
        return not any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in leaves)

    @checked
    def flat(self, *arguments: Any) -> list[Any]:
        """Return the flat arrays of nested arguments; UsageError E3175 for another structure."""
        wanted = jax.tree.structure(self.arguments)
        found = jax.tree.structure(arguments)
        if wanted != found:
            raise UsageError(
                "E3175",
                f"arguments are nested as {found}; the function was lowered for {wanted}",
                hint="give arguments nested as in the call that lowered it",
            )
        try:
            return _arrays(arguments)
        except (TypeError, ValueError, OverflowError) as error:
            raise UsageError(
                "E3175",
                f"arguments hold what JAX has no array for: {plain_message(error)}",
                hint="give arrays of the types that the function was lowered for",
            ) from error

    @checked
    def nested_results(self, leaves: Sequence[Any]) -> Any:
        """Return flat results nested as the function returns them; UsageError E3175: too few."""
        wanted = len(jax.tree.leaves(self.out_info))
        if len(leaves) != wanted:
            raise UsageError(
                "E3175", f"leaves are {len(leaves)} arrays, the function returns {wanted}"
            )
        return _nested(self.out_info, leaves)

    @checked
    def nested_state(self, state: Mapping[Any, Any]) -> tuple[Any, ...]:
        """Return the donated arguments of a session's or a trainer's state by name."""
        names = {x.number: x.name for x in parameter_arrays(self.module)}
        wanted = [names[k] for n in self.donated for k in self.parameters[n]]
        missing = [name for name in wanted if name not in state]
        if missing:
            raise UsageError(
                "E3154", f"state has no {missing[0]!r}", hint=f"give {', '.join(wanted)}"
            )
        return tuple(
            _nested(self.arguments[n], [state[names[k]] for k in self.parameters[n]])
            for n in self.donated
        )

    @cached_property
    def module(self) -> Module:
        """The module of the text."""
        return parse(Source(self.text))

    @checked
    def wrapping(
        self, feed: Mapping[str, int | Sequence[int]] | None, outfeed: Sequence[str] | None
    ) -> dict[str, Any]:
        """Return options that feed arguments by number and send results other than state out.

        By default one queue, `data`, feeds all arguments that are not donated; results are named
        as `named_metrics` does, or as keys of dictionaries that the function returns. Raises
        UsageError E2063 for a number that no argument has.
        """
        rest = [n for n in range(len(self.arguments)) if n not in self.donated]
        count = len(self.arguments)
        feeds = {
            name: tuple(k for n in _numbers(numbers, count) for k in self.parameters[n])
            for name, numbers in ({DATA: rest} if feed is None else feed).items()
        }
        found = wrapping_of(self.module, WrappingRequest(1, {}, feeds))
        kept = {pair.result for pair in found.state} if found else set()
        results = [x.number for x in result_arrays(self.module) if x.number not in kept]
        names = outfeed or _names(self.out_info, results)
        named = named_metrics(names, results)
        return {"feed": feeds, "outfeed": tuple(f"{n}={result}" for n, result in named.items())}


@dataclass(frozen=True)
class JaxProgram:
    """A JAX function compiled for the modelled machine."""

    lowered: LoweredFunction
    program: CompiledProgram

    def __call__(self, *arguments: Any, **run: Any) -> Any:
        """Run once on nested arguments; return nested numpy arrays.

        `run` are the options of `CompiledProgram.run`, which says what is raised.
        """
        found = self.program.run(*self.lowered.flat(*arguments), **run)
        return self.lowered.nested_results(found.outputs)

    @checked
    def session(self, *, infeeds: Mapping[str, Any] | None = None, **options: Any) -> Session:
        """Return a session that begins with the donated arguments of the call that compiled it.

        See `CompiledProgram.session` for options and errors; `nested_state` has its state's form.
        """
        if self.lowered.has_state:
            options.setdefault("state", self.lowered.state)
        return self.program.session(infeeds=infeeds, **options)

    @checked
    def nested_state(self, session: Session) -> tuple[Any, ...]:
        """Return the donated arguments as a session has them now."""
        return self.lowered.nested_state(session.state())


@checked
def lower(
    function: Callable[..., Any], *arguments: Any, donate: int | Sequence[int] = ()
) -> LoweredFunction:
    """Return a function's HLO text for arguments like these: arrays, or `jax.ShapeDtypeStruct`.

    `donate`: the arguments that results replace, which are a training's state. Raises UsageError
    E2063 for a number that no argument has.
    """
    donated = _numbers(donate, len(arguments))
    jitted = jax.jit(function, donate_argnums=donated, keep_unused=True)
    lowered = jitted.lower(*arguments)
    text = lowered.as_text("hlo", debug_info=True)
    return LoweredFunction(text, arguments, donated, lowered.out_info)


@checked
def compile(
    function: Callable[..., Any],
    *arguments: Any,
    donate: int | Sequence[int] = (),
    loop: int | None = None,
    feed: Mapping[str, int | Sequence[int]] | None = None,
    outfeed: Sequence[str] | None = None,
    **options: Any,
) -> JaxProgram:
    """Lower a JAX function for arguments like these and compile it.

    With `loop` the donated arguments stay on the device, queues feed arguments (`feed`: name ->
    argument numbers, by default all others from `data`), and other results go to queues
    (`outfeed`: their names in order). `options` are those of `hloipu.compile`, which says what is
    raised.
    """
    lowered = lower(function, *arguments, donate=donate)
    if loop is not None:
        options = {**lowered.wrapping(feed, outfeed), **options, "loop": loop}
    return JaxProgram(lowered, compile_hlo(lowered.text, **options))


def _numbers(given: int | Sequence[int], count: int) -> tuple[int, ...]:
    """Return numbers of arguments, those below 0 counted from the last."""
    numbers = (given,) if isinstance(given, int) else tuple(given)
    for number in numbers:
        if not -count <= number < count:
            raise UsageError(
                "E2063",
                f"there is no argument {number}",
                hint=f"the function is given {count} arguments, counted from 0",
            )
    return tuple(number % count for number in numbers)


def _arrays(nested: Any) -> list[Any]:
    """Return the leaves as arrays of the types that JAX gives them; keys become their bits."""
    return [np.asarray(_bits(leaf)) for leaf in jax.tree.leaves(nested)]


def _bits(leaf: Any) -> Any:
    if _is_key(leaf):
        return jax.random.key_data(leaf)
    # Types of eight bytes are halved unless JAX is told otherwise: that is left to JAX.
    is_jax_type = isinstance(leaf, np.ndarray) and leaf.dtype.itemsize < 8
    return leaf if is_jax_type else jax.numpy.asarray(leaf)


def _is_key(leaf: Any) -> bool:
    dtype = getattr(leaf, "dtype", None)
    return dtype is not None and bool(jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key))


def _nested(like: Any, leaves: Sequence[Any]) -> Any:
    shapes, structure = jax.tree.flatten(like)
    pairs = zip(shapes, leaves, strict=True)
    return jax.tree.unflatten(structure, [_as_key(array, shape) for shape, array in pairs])


def _as_key(array: Any, like: Any) -> Any:
    """Return an array, or the key that its bits are."""
    if not _is_key(like):
        return array
    example = jax.numpy.zeros((), like.dtype)  # of shapes alone no kind of key is told
    return jax.random.wrap_key_data(array, impl=jax.random.key_impl(example))


def _names(out_info: Any, results: Sequence[int]) -> list[str]:
    """Return the keys of results that lie in dictionaries; nothing unless all do and differ."""
    paths = [path for path, _ in jax.tree_util.tree_flatten_with_path(out_info)[0]]
    last = [paths[number][-1] if paths[number] else None for number in results]
    names = [str(key.key) for key in last if isinstance(key, jax.tree_util.DictKey)]
    return names if len(names) == len(results) == len(set(names)) else []
