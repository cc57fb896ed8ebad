"""Roles of a step's parameters: state, data from a queue, constants of a run.

What is state, `state_evidence` says; the rest is data or constant.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from hloipu_compiler.ir.graph import Module
from hloipu_compiler.plan.entry_arrays import (
    parameter_arrays,
    result_arrays,
)
from hloipu_compiler.plan.pipelining import PipelineRequest
from hloipu_compiler.plan.state_evidence import (
    ALIKE,
    STATE_ROLES,
    Step,
    is_inference,
    pairs_of,
    state_of,
)
from hloipu_compiler.plan.wrapping import (
    EntryArray,
    FeedBinding,
    StatePair,
    Wrapping,
    WrappingRequest,
    looped,
)
from hloipu_runtime.errors import UsageError
from hloipu_runtime.nearest import did_you_mean

CALL = "call"
"""Role of what the host gives with each call."""
_MOST_SHOWN = 6
"""Parameters that a line names."""


def wrapping_of(module: Module, request: WrappingRequest) -> Wrapping | None:
    """Return how a step is wrapped, or None where nothing is asked for."""
    return required_wrapping(module, request) if request.asks else None


def with_roles(
    module: Module, wrapping: WrappingRequest, request: PipelineRequest
) -> PipelineRequest:
    """Return how a step is to be cut, with what its parameters are said or seen to be.

    Raises UsageError E3150 and E3151 as `required_wrapping` does, E3151 where an accumulator's
    parameter is not there, or named twice with different types.
    """
    stated, recognised = carried_of(module, wrapping)
    return replace(
        request,
        carried=request.carried | stated | recognised,
        assumed_carried=recognised - request.carried,
        accumulators=_roles(request.accumulator_types, parameter_arrays(module)),
    )


def carried_of(module: Module, request: WrappingRequest) -> tuple[frozenset[int], frozenset[int]]:
    """Return the parameters that are said to go from micro-batch to micro-batch, and those seen to.

    Seen are caches, where nothing but caches and whole numbers changes. Raises UsageError E3150 and
    E3151 as `required_wrapping` does.
    """
    roles = _roles(request.roles, parameter_arrays(module))
    stated = frozenset(n for n, role in roles.items() if role in ("carry", "rng"))
    if not stated.issuperset(n for n, role in roles.items() if role in STATE_ROLES):
        return stated, frozenset()  # weights are spoken of
    state = required_wrapping(module, looped(request), feeds_rest=True).state
    from hloipu_compiler.plan.caches import caches_of

    return stated, caches_of(module, [(pair.parameter, pair.result) for pair in state], stated)


def kept_between_runs(module: Module, request: WrappingRequest) -> dict[str, Any]:
    """Return what of a plain step would stay on a device from run to run, as JSON data.

    `parameters` and `results` by number, and the `evidence`: aliases in the header, roles, or that
    a step without state has arguments of several arrays. Empty where nothing but equal types and
    shapes would say so.
    """
    parameters = parameter_arrays(module)
    pairs: list[tuple[int, int]] = []
    try:
        roles = _roles(request.roles, parameters)
        settled = frozenset(n for n, role in roles.items() if role not in STATE_ROLES)
        stay_on_device = {n for n, role in roles.items() if role != CALL}
        step = Step(module, parameters, result_arrays(module), roles, settled)
        if step.says_state:
            pairs, evidence = pairs_of(step, stays_alone=False)
        elif is_inference(step):
            evidence = "arguments of several arrays in a step without state"
            without_role = [
                array.number for array in parameters if array.shape and array.number not in roles
            ]
            sizes = Counter(array.group for array in parameters)
            single = frozenset(n for n in without_role if sizes[parameters[n].group] == 1)
            stay_on_device.update(frozenset(without_role) - single if single else ())
        else:
            return {}
    except UsageError:
        return {}
    stay_on_device.update(parameter for parameter, _ in pairs)
    if not stay_on_device:
        return {}
    return {
        "parameters": sorted(stay_on_device),
        "results": sorted(result for _, result in pairs),
        "evidence": evidence,
    }


def required_wrapping(
    module: Module, request: WrappingRequest, *, feeds_rest: bool = False
) -> Wrapping:
    """Return how a step is wrapped.

    With `feeds_rest`, arrays that are neither state nor have a role make up the feed `data`, where
    no feed is asked for; numbers stay constants, and so do weights that are frozen: see
    `frozen_weights`. A forward step has weights, too, and always such a feed: see `forward_data`.
    Where a feed is asked for, the rest of it is constant.

    Raises UsageError: E3150 where it is not clear which parameters are state, E3151 where the
    request names what is not there or contradicts itself, E3152 for two queues of one name.
    """
    if request.io_tiles and request.loop is None:
        raise UsageError(
            "E2045",
            f"{request.io_tiles} tiles are set apart for the queues of a loop, and there is none",
            hint="give --loop N, and --feed or --outfeed, or leave --io-tiles at 0",
        )
    parameters, results = parameter_arrays(module), result_arrays(module)
    roles = _roles(request.roles, parameters)
    from hloipu_compiler.plan.queue_bindings import feeds_of, named_feed, outfeeds_of

    feeds = feeds_of(request.feeds, parameters, roles)
    fed = {place for feed in feeds for place in feed.places}
    settled = frozenset(fed) | {n for n, role in roles.items() if role not in STATE_ROLES}
    step = Step(module, parameters, results, roles, settled)
    pairs, evidence, is_forward = state_of(step, feeds_rest=feeds_rest)
    state = tuple(StatePair(parameters[p].name, p, r) for p, r in pairs)
    state_numbers = {pair.parameter for pair in state}
    assumed = _taken_for_state([parameters[n] for n, _ in pairs]) if evidence == ALIKE else ""
    free = [
        array
        for array in parameters
        if array.number not in state_numbers and array.number not in roles
    ]
    if (feeds_rest or is_forward) and not feeds and free:
        data_numbers = tuple(array.number for array in free if array.shape)
        if is_forward or _has_caches(module, pairs):
            from hloipu_compiler.plan.forward_data import forward_data

            data = forward_data(module, parameters, free)
            if is_forward or data.is_certain:
                data_numbers = data.numbers
                assumed = _taken_for_data([parameters[n] for n in data_numbers], data.why)
        elif len({array.group for array in free}) > 1:
            from hloipu_compiler.plan.forward_data import frozen_weights

            frozen = frozen_weights(module, free)
            if frozen:
                data_numbers = tuple(n for n in data_numbers if n not in frozen)
                assumed = _taken_for_constants([parameters[n] for n in sorted(frozen)])
        feeds = (named_feed(FeedBinding("data", data_numbers), parameters),) if data_numbers else ()
        fed.update(data_numbers)
    inputs = tuple(n for n, role in sorted(roles.items()) if role == CALL)
    with_role = {*fed, *state_numbers, *inputs}
    constants = tuple(array.number for array in parameters if array.number not in with_role)
    outfeeds, data_numbers = outfeeds_of(request, results, {pair.result for pair in state}, feeds)
    return Wrapping(
        request.loop, state, feeds, constants, outfeeds, data_numbers, evidence, inputs,
        request.io_tiles, assumed,
    )  # fmt: skip


def _has_caches(module: Module, pairs: Sequence[tuple[int, int]]) -> bool:
    from hloipu_compiler.plan.caches import caches_of

    return bool(pairs) and bool(caches_of(module, pairs, frozenset()))


def _taken_for_data(arrays: Sequence[EntryArray], why: str) -> str:
    """Return a note on parameters assumed to be data, and how to say otherwise."""
    return (
        f"taken for data: {_listed(arrays)}, as {why}; to say otherwise: --feed NAME=N,… or "
        "--role PARAMETER=data"
    )


def _taken_for_constants(arrays: Sequence[EntryArray]) -> str:
    """Return a note on weights assumed to be frozen, and how to say otherwise."""
    return (
        f"taken for constants: {_listed(arrays)}, as arguments of several arrays without the "
        "batch, such as frozen weights; to say otherwise: --feed NAME=N,… with all that is fed"
    )


def _taken_for_state(arrays: Sequence[EntryArray]) -> str:
    """Return a note on state assumed from types alone, and how to say otherwise."""
    return (
        f"taken for state: {_listed(arrays)}; to say otherwise: --feed NAME=N,… or "
        "--role PARAMETER=data, const"
    )


def _listed(arrays: Sequence[EntryArray]) -> str:
    more = f" and {len(arrays) - _MOST_SHOWN} more" if len(arrays) > _MOST_SHOWN else ""
    return ", ".join(map(str, arrays[:_MOST_SHOWN])) + more


def _roles(asked: Mapping[str, str], parameters: Sequence[EntryArray]) -> dict[int, str]:
    """Return the role of each parameter that the user names by number, name or group."""
    by_number: dict[int, str] = {}
    for key, role in asked.items():
        numbers = _named(key, parameters)
        for number in numbers:
            if by_number.setdefault(number, role) != role:
                raise UsageError(
                    "E3151",
                    f"parameter {parameters[number]} is said to be {by_number[number]} and {role}",
                    hint="say one thing of each parameter",
                )
    return by_number


def _named(key: str, parameters: Sequence[EntryArray]) -> list[int]:
    if key.isdecimal() and int(key) < len(parameters):
        return [int(key)]
    numbers = [array.number for array in parameters if key == array.name]
    numbers = numbers or [
        array.number
        for array in parameters
        if array.group == key or array.name.startswith((f"{key}.", f"{key}[", f"{key}/"))
    ]
    if not numbers:
        names = list(
            dict.fromkeys(y for array in parameters for y in (array.name, array.group) if y)
        )
        raise UsageError(
            "E3151",
            f"there is no parameter {key!r} among {len(parameters)}",
            hint=did_you_mean(
                key, names, "name it by its number; `hloipu show` lists the parameters"
            ),
        )
    return numbers
