"""Which parameters are state, and what says so.

The evidence in its order: roles that the user gives; aliases in the header, as donated arguments
leave them; else the longest run of results that are like the first parameters, one by one. Where
that does not settle it, a step without any sign of training is read as a forward step; of one that
may train nothing is guessed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile

from hloipu_compiler.ir.graph import Module
from hloipu_compiler.plan.aliased_state import paired_state, runs_of_results
from hloipu_compiler.plan.entry_arrays import (
    aliased,
    donated_alone,
    parameter_places,
    result_places,
)
from hloipu_compiler.plan.wrapping import EntryArray
from hloipu_runtime.errors import UsageError

STATE_ROLES = frozenset({"weight", "opt_state", "rng", "carry"})
ALIKE = "from the results that are like the first parameters"
"""The weakest evidence of state."""
_MOST_METRICS = 16
"""Results that may stand before those that are state."""


@dataclass(frozen=True)
class Step:
    """A step's arrays, and what is said of its parameters."""

    module: Module
    parameters: Sequence[EntryArray]
    results: Sequence[EntryArray]
    roles: Mapping[int, str]
    settled: frozenset[int]
    """Parameters that are something else than state."""

    @property
    def says_state(self) -> bool:
        """Whether aliases or roles say that parameters are state."""
        return bool(aliased(self.module)) or not STATE_ROLES.isdisjoint(self.roles.values())

    @property
    def open_parameters(self) -> list[EntryArray]:
        """Those that may be state."""
        return [array for array in self.parameters if array.number not in self.settled]


def state_of(step: Step, *, feeds_rest: bool) -> tuple[list[tuple[int, int]], str, bool]:
    """Return (parameter, result) of all state, what says so, and whether nothing else is learned.

    The last is so of forward steps, which have caches for state or none. Raises UsageError E3150
    where that is not clear, and for what may train.
    """
    sign = ""
    if feeds_rest and is_inference(step):
        sign = _sign_of_training(step)
        if not sign:
            return _forward_state(step)
    try:
        pairs_and_evidence = pairs_of(step, stays_alone=not feeds_rest)
    except UsageError as unclear:
        if step.says_state or unclear.code != "E3150":
            raise
        sign = sign or _sign_of_training(step)
        if sign:
            raise _unclear(f"{unclear.message.partition(': ')[2]}; it may train: {sign}") from None
        return _forward_state(step)
    return (*pairs_and_evidence, False)


def _forward_state(step: Step) -> tuple[list[tuple[int, int]], str, bool]:
    """Return the caches of a forward step, and what it is taken for."""
    from hloipu_compiler.plan.caches import written_caches

    caches = written_caches(step.module, step.open_parameters, step.results)
    if caches:
        return caches, "a forward step, whose results have them with parts written", True
    return [], "a forward step: no result is the next value of a parameter", True


def _sign_of_training(step: Step) -> str:
    from hloipu_compiler.plan.training_signs import sign_of_training

    return sign_of_training(step.module, step.open_parameters, step.results)


def is_inference(step: Step) -> bool:
    """Whether nothing marks a parameter as state, and the first one is not replaced.

    Where the first has another role, no parameter may be like a result.
    """
    if step.says_state or not step.parameters:
        return False
    first = [step.parameters[0]]
    if step.parameters[0].number in step.settled:
        first = step.open_parameters
    new = step.results[:_MOST_METRICS]
    pairs = [(a.number, b.number) for a in first for b in new if a.kind == b.kind]
    from hloipu_compiler.plan.caches import is_forward_pass

    return not pairs or is_forward_pass(step.module, pairs, step.results)


def pairs_of(step: Step, *, stays_alone: bool) -> tuple[list[tuple[int, int]], str]:
    """Return (parameter, result) of all state, and what says so.

    `stays_alone`: whether a step may have state alone, as one that a loop repeats.
    """
    module, parameters, results, settled = step.module, step.parameters, step.results, step.settled
    aliases = aliased(module)
    named = [n for n, role in sorted(step.roles.items()) if role in STATE_ROLES]
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
        pairs, evidence = _inferred(step, stays_alone=stays_alone)
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


def _inferred(step: Step, *, stays_alone: bool) -> tuple[list[tuple[int, int]], str]:
    """Return the longest run of results that are like the first parameters."""
    parameters, results, settled = step.parameters, step.results, step.settled
    open_ones = list(takewhile(lambda array: array.number not in settled, parameters))
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
        if stays_alone and (longest == len(results) or _all_computed(step.module, pairs)):
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
