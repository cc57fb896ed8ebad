"""JAX functions as HLO text, and nested arguments as the flat arrays of its parameters."""

import inspect
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate
from typing import Any

import numpy as np

from hloipu.jax.result_paths import ResultPaths, selected_numbers
from hloipu.training.programs import DATA, named_metrics
from hloipu_compiler.hlo.parse import parse
from hloipu_compiler.ir.graph import Module
from hloipu_compiler.plan.entry_arrays import parameter_arrays, result_arrays
from hloipu_compiler.plan.roles import wrapping_of
from hloipu_compiler.plan.wrapping import WrappingRequest
from hloipu_compiler.source import Source
from hloipu_runtime.arguments import checked
from hloipu_runtime.errors import UsageError
from hloipu_runtime.nearest import did_you_mean
from hloipu_runtime.plain_text import plain_message

import jax  # isort: skip  # its absence is told by hloipu.jax.result_paths

Selector = int | str | range | slice
"""An argument's number, a range or slice of them, or a path such as `params` or `params/dense/w`.

Of results, numbers are those of the tuple that the function returns.
"""
Donated = int | str | Sequence[int | str]
"""Arguments' numbers or names."""


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
    keywords: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """The arguments that were given by name, in JAX's order: by their names."""
    kept: tuple[int, ...] | None = field(default=None, repr=False)
    """Numbers of the leaves that are parameters of the module; None: all of them."""

    @cached_property
    def parameters(self) -> tuple[tuple[int, ...], ...]:
        """The numbers of the flat parameters of each argument, those given by name last."""
        everything = [*self.arguments, *self.keywords.values()]
        counts = [len(jax.tree.leaves(argument)) for argument in everything]
        numbers = self._numbers_of_leaves(sum(counts))
        return tuple(
            tuple(numbers[leaf] for leaf in range(end - count, end) if leaf in numbers)
            for count, end in zip(counts, accumulate(counts), strict=True)
        )

    def _numbers_of_leaves(self, leaves: int) -> dict[int, int]:
        parameter_leaves = range(leaves) if self.kept is None else self.kept
        return {leaf: number for number, leaf in enumerate(parameter_leaves)}

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
        return {n: self.values[n] for k in self.donated for n in self.parameters[k]}

    @cached_property
    def values(self) -> dict[int, Any]:
        """The arrays of the arguments by number of the parameter, where there are values."""
        leaves = self._kept(_arrays([*self.arguments, *self.keywords.values()]))
        return {n: leaf for n, leaf in enumerate(leaves) if not _has_shapes(leaf)}

    @property
    def has_state(self) -> bool:
        """Whether the donated arguments are arrays, and not types and shapes alone."""
        return not _has_shapes([self.arguments[number] for number in self.donated])

    @checked
    def flat(self, *arguments: Any, **keywords: Any) -> list[Any]:
        """Return the parameters' arrays of nested arguments.

        Raises UsageError E3175 for another structure, and for types and shapes without values.
        """
        wanted = jax.tree.structure((self.arguments, dict(self.keywords)))
        actual = jax.tree.structure((arguments, keywords))
        if wanted != actual:
            raise UsageError(
                "E3175",
                f"arguments are nested as {actual}; the function was lowered for {wanted}",
                hint="give arguments nested as in the call that lowered it",
            )
        if _has_shapes((arguments, keywords)):
            raise UsageError(
                "E3175",
                "arguments are types and shapes without values",
                hint="give arrays; hloipu.jax.estimate needs types and shapes only",
            )
        try:
            return self._kept(_arrays((arguments, keywords)))
        except (TypeError, ValueError, OverflowError) as error:
            raise UsageError(
                "E3175",
                f"arguments hold what JAX has no array for: {plain_message(error)}",
                hint="give arrays of the types that the function was lowered for",
            ) from error

    def _kept(self, leaves: Sequence[Any]) -> list[Any]:
        return list(leaves) if self.kept is None else [leaves[leaf] for leaf in self.kept]

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
        """Return the donated arguments of a session's or a trainer's state by name.

        Leaves that the function does not use are as they were.
        """
        names = {array.number: array.name for array in parameter_arrays(self.module)}
        wanted = [names[k] for n in self.donated for k in self.parameters[n]]
        missing = [name for name in wanted if name not in state]
        if missing:
            raise UsageError(
                "E3154", f"state has no {missing[0]!r}", hint=f"give {', '.join(wanted)}"
            )
        arguments = [*self.arguments, *self.keywords.values()]
        leaves = jax.tree.leaves(arguments)
        for leaf, number in self._numbers_of_leaves(len(leaves)).items():
            leaves[leaf] = state.get(names[number], leaves[leaf])
        now = jax.tree.unflatten(jax.tree.structure(arguments), leaves)
        return tuple(_nested(self.arguments[n], jax.tree.leaves(now[n])) for n in self.donated)

    @cached_property
    def module(self) -> Module:
        """The module of the text."""
        return parse(Source(self.text))

    @cached_property
    def paths(self) -> dict[str, int]:
        """The parameters' numbers by path, such as `params/dense/w`: argument, keys, fields."""
        return {_path(array.name): array.number for array in parameter_arrays(self.module)}

    @checked
    def numbers(self, selectors: Selector | Sequence[Selector]) -> tuple[int, ...]:
        """Return the parameters that arguments' numbers or paths name; a path may name many.

        Raises UsageError E2063 for what no argument has.
        """
        is_single = isinstance(selectors, int | str | range | slice)
        wanted: Iterable[Any] = (selectors,) if is_single else selectors  # type: ignore[assignment]
        selected: dict[int, None] = {}
        for selector in wanted:
            if isinstance(selector, str):
                selected |= dict.fromkeys(self._below(selector))
            else:
                count = len(self.parameters)
                for n in selected_numbers((selector,), count):
                    selected |= dict.fromkeys(self.parameters[n])
        return tuple(selected)

    def _below(self, path: str) -> list[int]:
        plain = _path(path)
        numbers = [n for p, n in self.paths.items() if p == plain or p.startswith(plain + "/")]
        if not numbers:
            tops = dict.fromkeys(p.partition("/")[0] for p in self.paths)
            raise UsageError(
                "E2063",
                f"there is no argument {path!r}",
                hint=did_you_mean(plain, [*tops, *self.paths], f"there are {', '.join(tops)}"),
            )
        return numbers

    @checked
    def wrapping(
        self,
        feed: Mapping[str, Selector | Sequence[Selector]] | None,
        outfeed: Sequence[str] | Mapping[str, Selector | Sequence[Selector]] | None,
        role: Mapping[Any, str] | None = None,
    ) -> dict[str, Any]:
        """Return options that feed arguments and send results other than state out.

        By default one queue, `data`, feeds all arguments that are neither donated nor have a role;
        each result has a queue, named after its key or field. `outfeed` names them in order, or
        says which results, by number or path, a queue takes: elements of several are dictionaries
        of these names. Where nothing is donated and feeds are named, all else is constant. Raises
        UsageError E2063 for what no argument or result has.
        """
        roles = {n: kind for key, kind in (role or {}).items() for n in self.numbers(key)}
        everything = [n for numbers in self.parameters for n in numbers]
        if feed is None:
            state = {n for k in self.donated for n in self.parameters[k]}
            fed_parameters = tuple(n for n in everything if n not in state and n not in roles)
            feeds = {DATA: fed_parameters} if fed_parameters else {}
        else:
            feeds = {name: self.numbers(selectors) for name, selectors in feed.items()}
            if not self.donated:
                fed = {n for numbers in feeds.values() for n in numbers}
                roles = {n: "const" for n in everything if n not in fed} | roles
        by_number = {str(n): kind for n, kind in roles.items()}
        wrapping = wrapping_of(self.module, WrappingRequest(1, by_number, feeds))
        state_results = {pair.result for pair in wrapping.state} if wrapping else set()
        results = [
            array.number
            for array in result_arrays(self.module)
            if array.number not in state_results
        ]
        options: dict[str, Any] = {"feed": feeds, "outfeed": self._outfeeds(outfeed, results)}
        return options | ({"role": by_number} if by_number else {})

    @checked
    def accumulators(
        self, asked: Mapping[Any, str] | Sequence[str | tuple[Any, str]]
    ) -> dict[str, str]:
        """Return the types of accumulators by parameter, from those by number or path.

        `asked` is a dictionary, pairs, or texts `PATH=TYPE`. Raises UsageError E2063 for what no
        argument has.
        """
        pairs = asked.items() if isinstance(asked, Mapping) else asked
        type_by_number: dict[str, str] = {}
        for pair in pairs:
            key, kind = pair.rpartition("=")[::2] if isinstance(pair, str) else pair
            type_by_number |= {str(n): kind for n in self.numbers(key)}
        return type_by_number

    def _outfeeds(
        self,
        asked: Sequence[str] | Mapping[str, Selector | Sequence[Selector]] | None,
        results: Sequence[int],
    ) -> tuple[str, ...]:
        """Return the queues of results, as the option `outfeed` takes them."""
        if not isinstance(asked, Mapping):
            named = named_metrics(asked, results) if asked else self.outputs.named(results)
            return tuple(f"{name}={result}" for name, result in named.items())
        queues = []
        for name, selectors in asked.items():
            numbers = self.outputs.numbers(selectors)
            keys = {number: key for key, number in self.outputs.named(numbers).items()}
            plain = len(numbers) == 1
            parts = [str(n) if plain else f"{keys[n]}={n}" for n in numbers]
            queues.append(f"{name}={','.join(parts)}")
        return tuple(queues)

    @cached_property
    def outputs(self) -> ResultPaths:
        """The results' paths."""
        return ResultPaths.of(self.out_info)


@checked
def lower(function: Any, *arguments: Any, donate: Donated = ()) -> LoweredFunction:
    """Return a function's HLO text for arguments like these: arrays, or `jax.ShapeDtypeStruct`.

    `function` may be jitted: its static and donated arguments are as it says. A
    `jax.stages.Traced` or `jax.stages.Lowered` is taken without arguments. `donate`: the arguments
    that results replace, by number or name, which are a training's state. Raises UsageError E2063
    for a number or name that no argument has, and E3176 where it is not clear which arguments the
    text has as parameters.
    """
    if isinstance(function, jax.stages.Traced | jax.stages.Lowered):
        if arguments or donate != ():
            raise UsageError(
                "E3176",
                "a function that is traced or lowered already has its arguments",
                hint="give no arguments, and donate_argnums to jax.jit",
            )
        return _of_lowered(
            function.lower() if isinstance(function, jax.stages.Traced) else function
        )
    if donate == () and isinstance(function, jax.stages.Wrapped):
        step = _of_lowered(function.lower(*arguments))
        shaped = jax.tree.structure(arguments) == jax.tree.structure(step.arguments)
        # Static arguments are none of the lowered function's.
        return replace(step, arguments=arguments) if shaped else step
    if isinstance(function, jax.stages.Wrapped) and _static_ones(function, arguments):
        raise UsageError(
            "E3176",
            "a jitted function with static arguments says itself which arguments it donates",
            hint="give donate_argnums or donate_argnames to jax.jit, and no donate here",
        )
    donated = selected_numbers(_positions(function, donate), len(arguments))
    jitted = jax.jit(function, donate_argnums=donated, keep_unused=True)
    lowered = jitted.lower(*arguments)
    return LoweredFunction(hlo_text(lowered), arguments, donated, lowered.out_info)


def _static_ones(function: Any, arguments: tuple[Any, ...]) -> bool:
    """Whether a jitted function is traced for fewer arguments than these."""
    info, _ = function.trace(*arguments).args_info
    return len(jax.tree.leaves(info)) != len(jax.tree.leaves(arguments))


def _positions(function: Any, donate: Donated) -> tuple[int, ...]:
    """Return numbers of arguments, those that are named found in the function's signature."""
    selectors = (donate,) if isinstance(donate, int | str) else tuple(donate)
    if not any(isinstance(selector, str) for selector in selectors):
        return tuple(selector for selector in selectors if isinstance(selector, int))
    try:
        names = list(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        names = []
    unknown = [
        selector for selector in selectors if isinstance(selector, str) and selector not in names
    ]
    if unknown:
        raise UsageError(
            "E2063",
            f"there is no argument {unknown[0]!r}",
            hint=f"the function takes {', '.join(names)}" if names else "name it by its number",
        )
    return tuple(
        selector if isinstance(selector, int) else names.index(selector) for selector in selectors
    )


def hlo_text(lowered: Any) -> str:
    """Return the text of a `jax.stages.Lowered` with constants, op names and source lines."""
    return str(lowered.as_text("hlo", debug_info=True))


def _of_lowered(lowered: Any) -> LoweredFunction:
    """Return what JAX has lowered; of its arguments there are types and shapes alone."""
    info, named = lowered.args_info
    shapes = jax.tree.map(
        lambda array: jax.ShapeDtypeStruct(array.shape, array.dtype), (info, named)
    )
    flags = [
        [leaf.donated for leaf in jax.tree.leaves(argument)]
        for argument in (*info, *named.values())
    ]
    text = hlo_text(lowered)
    leaves = sum(map(len, flags))
    donated = tuple(n for n, leaf_flags in enumerate(flags) if leaf_flags and all(leaf_flags))
    step = LoweredFunction(text, shapes[0], donated, lowered.out_info, shapes[1])
    parameter_count = len(parameter_arrays(step.module))
    if parameter_count == leaves:
        return step
    return replace(step, kept=_kept_leaves(lowered, parameter_count))


def _kept_leaves(lowered: Any, count: int) -> tuple[int, ...]:
    """Return which leaves of the arguments are parameters, where JAX left unused ones out.

    JAX has no public name for it. Raises UsageError E3176 where the private one has moved.
    """
    try:
        leaf_numbers = tuple(sorted(lowered._lowering.compile_args["kept_var_idx"]))
    except (AttributeError, KeyError, TypeError):
        leaf_numbers = ()
    if len(leaf_numbers) != count:
        raise UsageError(
            "E3176",
            "the function has arguments that it does not use, and JAX left them out of its text",
            hint="give jax.jit keep_unused=True, or hloipu.jax the function itself",
        )
    return leaf_numbers


def _path(name: str) -> str:
    """Return JAX's `params['w'][0].b`, or a path, as `params/w/0/b`."""
    return re.sub(r"""\[['"]?(.*?)['"]?\]|\.""", lambda match: f"/{match[1] or ''}", name).strip(
        "/"
    )


def _has_shapes(nested: Any) -> bool:
    return any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in jax.tree.leaves(nested))


def _arrays(nested: Any) -> list[Any]:
    """Return the leaves as arrays of the types that JAX gives them; keys become their bits."""
    return [
        leaf if isinstance(leaf, jax.ShapeDtypeStruct) else np.asarray(_bits(leaf))
        for leaf in jax.tree.leaves(nested)
    ]


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
    if not _is_key(like) or _is_key(array):
        return array
    example = jax.numpy.zeros((), like.dtype)  # of shapes alone no kind of key is told
    return jax.random.wrap_key_data(array, impl=jax.random.key_impl(example))
