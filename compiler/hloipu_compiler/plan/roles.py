"""Roles of a step's parameters: state, data from a queue, constants of a run.

Order of evidence: what the user says; aliases in the header, as donated arguments leave them; else
the longest run of results that are like the first parameters, one by one. Where that does not
settle it, a step without any sign of training is read as a forward step, and said to be; of one
that may train nothing is guessed.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from hloipu_compiler.ir.graph import Module
from hloipu_compiler.plan.aliased_state import paired_state, runs_of_results
from hloipu_compiler.plan.entry_arrays import (
    aliased,
    donated_alone,
    parameter_arrays,
    parameter_places,
    result_arrays,
    result_places,
)
from hloipu_compiler.plan.pipelining import PipelineRequest
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

STATE_ROLES = frozenset({"weight", "opt_state", "rng", "carry"})
ALIKE = "from the results that are like the first parameters"
"""The weakest evidence of state."""
CALL = "call"
"""Role of what the host gives with each call."""
_MOST_METRICS = 16
"""Results that may stand before those that are state."""
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
    parameters, results = parameter_arrays(module), result_arrays(module)
    pairs: list[tuple[int, int]] = []
    try:
        roles = _roles(request.roles, parameters)
        settled = frozenset(n for n, role in roles.items() if role not in STATE_ROLES)
        stay_on_device = {n for n, role in roles.items() if role != CALL}
        if aliased(module) or not STATE_ROLES.isdisjoint(roles.values()):
            pairs, evidence = _pairs(module, parameters, results, roles, settled, stays_alone=False)
        elif _is_inference(module, parameters, results, roles, settled):
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
    pairs, evidence, is_forward = _state(
        module, parameters, results, roles, settled, feeds_rest=feeds_rest
    )
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


def _state(
    module: Module,
    parameters: Sequence[EntryArray],
    results: Sequence[EntryArray],
    roles: Mapping[int, str],
    settled: frozenset[int],
    *,
    feeds_rest: bool,
) -> tuple[list[tuple[int, int]], str, bool]:
    """Return (parameter, result) of all state, what says so, and whether nothing else is learned.

    The last is so of forward steps, which have caches for state or none. Raises UsageError E3150
    where that is not clear, and for what may train.
    """
    is_open = not aliased(module) and STATE_ROLES.isdisjoint(roles.values())
    sign = ""
    if feeds_rest and _is_inference(module, parameters, results, roles, settled):
        sign = _sign_of_training(module, parameters, results, settled)
        if not sign:
            return _forward_state(module, parameters, results, settled)
    try:
        pairs_and_evidence = _pairs(
            module, parameters, results, roles, settled, stays_alone=not feeds_rest
        )
    except UsageError as unclear:
        if not is_open or unclear.code != "E3150":
            raise
        sign = sign or _sign_of_training(module, parameters, results, settled)
        if sign:
            raise _unclear(f"{unclear.message.partition(': ')[2]}; it may train: {sign}") from None
        return _forward_state(module, parameters, results, settled)
    return (*pairs_and_evidence, False)


def _forward_state(
    module: Module,
    parameters: Sequence[EntryArray],
    results: Sequence[EntryArray],
    settled: frozenset[int],
) -> tuple[list[tuple[int, int]], str, bool]:
    """Return the caches of a forward step, and what it is taken for."""
    from hloipu_compiler.plan.caches import written_caches

    caches = written_caches(
        module, [array for array in parameters if array.number not in settled], results
    )
    if caches:
        return caches, "a forward step, whose results have them with parts written", True
    return [], "a forward step: no result is the next value of a parameter", True


def _sign_of_training(
    module: Module,
    parameters: Sequence[EntryArray],
    results: Sequence[EntryArray],
    settled: frozenset[int],
) -> str:
    from hloipu_compiler.plan.training_signs import sign_of_training

    return sign_of_training(
        module, [array for array in parameters if array.number not in settled], results
    )


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


def _is_inference(
    module: Module,
    parameters: Sequence[EntryArray],
    results: Sequence[EntryArray],
    roles: Mapping[int, str],
    settled: frozenset[int],
) -> bool:
    """Whether nothing marks a parameter as state, and the first one is not replaced.

    Where the first has another role, no parameter may be like a result.
    """
    if aliased(module) or not STATE_ROLES.isdisjoint(roles.values()) or not parameters:
        return False
    first = [parameters[0]]
    if parameters[0].number in settled:
        first = [array for array in parameters if array.number not in settled]
    new = results[:_MOST_METRICS]
    pairs = [(a.number, b.number) for a in first for b in new if a.kind == b.kind]
    from hloipu_compiler.plan.caches import is_forward_pass

    return not pairs or is_forward_pass(module, pairs, results)


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


def _pairs(
    module: Module,
    parameters: Sequence[EntryArray],
    results: Sequence[EntryArray],
    roles: Mapping[int, str],
    settled: frozenset[int],
    *,
    stays_alone: bool,
) -> tuple[list[tuple[int, int]], str]:
    """Return (parameter, result) of all state, and what says so.

    `stays_alone`: whether a step may have state alone, as one that a loop repeats.
    """
    aliases = aliased(module)
    named = [n for n, role in sorted(roles.items()) if role in STATE_ROLES]
    donated = paired_state(aliases, parameters, results, settled)
    if donated is None and {alias.parameter for alias in aliases} <= {*named, *settled}:
        donated = []  # the roles say which are state
    if donated is None:
        raise _unclear(
            f"{len(aliases)} parameters are donated, and their new values are no unique runs of "
            "results"
        )
    known = {p for p, _ in donated}
    if donated and known.issuperset(named):
        aliased_as_is = set(donated) <= {(alias.parameter, alias.result) for alias in aliases}
        how_matched = (
            "" if aliased_as_is else ", each group of arrays with the results that are alike"
        )
        return donated, f"from the aliases in the header{how_matched}"
    if named:
        paired_results = {r for _, r in donated}
        unpaired = [n for n in named if n not in known]
        pairs = donated + _matched([parameters[n] for n in unpaired], results, paired_results)
        return sorted(pairs), "from the roles given"
    if len(settled) == len(parameters):
        return [], "every parameter has another role"
    donors = donated_alone(module) - settled
    runs = runs_of_results([parameters[n] for n in sorted(donors)], results) if donors else None
    if runs is not None and not _all_computed(module, runs):
        runs = None  # alike, and perhaps in another order
    try:
        pairs, evidence = _inferred(module, parameters, results, settled, stays_alone=stays_alone)
    except UsageError:
        if runs is None:
            raise
        pairs = []
    if donors and donors != {parameter for parameter, _ in pairs}:
        if runs is not None:
            return sorted(runs), "from the donated parameters, with the only results that are alike"
        raise _unclear(
            f"{len(donors)} parameters are donated (buffer_donor), and the text does not say which "
            "results replace them, as texts of PyTorch/XLA do not; hloipu.torch_xla.lower does"
        )
    if donors:
        _require_own_results(module, parameters, pairs)
    return pairs, evidence


def _require_own_results(
    module: Module, parameters: Sequence[EntryArray], pairs: Sequence[tuple[int, int]]
) -> None:
    """Raise UsageError E3150 where results, made of state element by element, seem to be permuted.

    Copies of other state, as a target network's, have own results where they come from.
    """
    from hloipu_compiler.analysis.written_state import computed_from

    old, new = parameter_places(module), result_places(module)
    number_of = {tuple(old[p]): p for p, _ in pairs}
    sources_of: dict[int, set[int]] = {}
    for p, r in pairs:
        origins = computed_from(module, new[r])
        if origins is not None and tuple(old[p]) not in origins:
            sources_of[p] = {number_of[place] for place in origins if place in number_of}
    while ends := [p for p, sources in sources_of.items() if not sources & sources_of.keys()]:
        for p in ends:
            del sources_of[p]
    if sources_of:
        p = min(sources_of)
        raise _unclear(
            f"the result in the place of {parameters[p]} is made of "
            f"{parameters[min(sources_of[p] & sources_of.keys())]}, whose result is made of another"
        )


def _matched(
    wanted: Sequence[EntryArray], results: Sequence[EntryArray], used_results: set[int]
) -> list[tuple[int, int]]:
    """Return the results for parameters that are state: the first run of them that is alike."""
    free = [array for array in results if array.number not in used_results]
    for start in range(min(_MOST_METRICS, max(0, len(free) - len(wanted))) + 1):
        run = free[start : start + len(wanted)]
        if [array.kind for array in run] == [array.kind for array in wanted]:
            return [(a.number, b.number) for a, b in zip(wanted, run, strict=True)]
    raise UsageError(
        "E3150",
        f"no results are like the {len(wanted)} parameters that are to be state, from {wanted[0]}",
        hint="return the new state in the order of the parameters, or donate them, "
        "so that the dump says which result replaces which",
    )


def _inferred(
    module: Module,
    parameters: Sequence[EntryArray],
    results: Sequence[EntryArray],
    settled: frozenset[int],
    *,
    stays_alone: bool,
) -> tuple[list[tuple[int, int]], str]:
    """Return the longest run of results that are like the first parameters."""
    open_ones: list[EntryArray] = []
    for array in parameters:
        if array.number in settled:
            break
        open_ones.append(array)
    starts = range(min(_MOST_METRICS, len(results)))
    lengths = [_alike(open_ones, results[start:]) for start in starts]
    longest = max(lengths, default=0)
    if not longest:
        raise _unclear("no result is like the first parameter, so that nothing could be kept")
    if longest == 1 and [array.kind for array in open_ones].count(open_ones[0].kind) > 1:
        raise _unclear(f"one result is like {open_ones[0]}, and like other parameters")
    start = lengths.index(longest)
    if start and lengths.count(longest) > 1:
        raise _unclear(f"the first {longest} parameters are like several runs of results")
    after = parameters[longest] if longest < len(parameters) else None
    last = parameters[longest - 1]
    if (
        after is None
        and not settled
        and (len({array.group for array in parameters}) > 1 or not last.group)
    ):
        pairs = [(n, start + n) for n in range(longest)]
        if stays_alone and (longest == len(results) or _all_computed(module, pairs)):
            return pairs, "every parameter is like a result, so that the step is state alone"
        if len(parameters) > 1 or not stays_alone:
            raise _unclear("every parameter is like a result: none of them is seen to be data")
    elif after is not None and last.group and last.group == after.group:
        raise _unclear(
            f"only {longest} arrays are like results, which ends within {last.group!r}: "
            f"{last} has a result and {after} has none"
        )
    pairs = [(n, start + n) for n in range(longest)]
    return pairs, ALIKE


def _all_computed(module: Module, pairs: Sequence[tuple[int, int]]) -> bool:
    """Whether every result is made of its parameter by moving elements and element by element."""
    from hloipu_compiler.analysis.written_state import is_computed

    old, new = parameter_places(module), result_places(module)
    return all(is_computed(module, old[p], new[r]) for p, r in pairs)


def _alike(parameters: Sequence[EntryArray], results: Sequence[EntryArray]) -> int:
    """Return how many of the first are of the same types and shapes."""
    count = 0
    for a, b in zip(parameters, results, strict=False):
        if a.kind != b.kind:
            break
        count += 1
    return count


def _unclear(why: str) -> UsageError:
    return UsageError(
        "E3150",
        f"cannot tell which parameters are state: {why}",
        hint="say so: --role PARAMETER=weight (or opt_state, carry) and --feed NAME=N,…, "
        "by number, name or group, and =const of weights where nothing is trained; or donate the "
        "state",
    )
