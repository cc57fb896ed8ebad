"""Search for the best cut of a step over IPUs, as options allow."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from time import perf_counter
from typing import TYPE_CHECKING, Any

from hloipu.choice_trials import SLOWER, Choice, with_trials
from hloipu.compile_request import compile_request
from hloipu.options.table import Options
from hloipu.pipelining import pipeline_request
from hloipu.places import system_ipus
from hloipu.sharding import is_long, seconds_for, shardings_beside_cuts, with_sharding
from hloipu_compiler.distributing import participants
from hloipu_compiler.ir.graph import Module
from hloipu_compiler.memo import Memo, Same
from hloipu_compiler.partition.placement.handing_down import says_anything
from hloipu_compiler.partition.search.best import best_of, choice_of, may_fit
from hloipu_compiler.partition.search.candidate import OFFLOADABLE, Candidate, Estimate
from hloipu_compiler.partition.search.candidates import Given, candidates_on, swept
from hloipu_compiler.partition.search.estimates import Step, priced_step
from hloipu_compiler.partition.search.rounds import looked_at
from hloipu_compiler.partition.stages.branches import require_map
from hloipu_compiler.partition.stages.cutting import require_forward_ops
from hloipu_compiler.partition.training.errors import StagingError
from hloipu_compiler.plan.participants import meets_others, participants_for
from hloipu_compiler.plan.schedule import SEQUENTIAL
from hloipu_runtime.compiled import CompiledProgram
from hloipu_runtime.errors import HloipuError, UnsupportedError
from hloipu_runtime.machine.model import Machine
from hloipu_runtime.watching import current_search, doing, each

if TYPE_CHECKING:
    from hloipu_compiler.partition.sharding_search.candidate import Candidate as ShardedCandidate
    from hloipu_compiler.partition.spmd.parameter_rules import Sharding

STEP_MEMO: Memo[Step] = Memo(4)
"""Steps that were priced: a search may come back to one."""
SCHEMA = "hloipu.sweep/1"
MOST_ROWS = 12
"""Of a table for people."""
_NEARLY_ALL = 0.9
"""Of the rate of so many IPUs that never wait: shardings are not looked at where a way with whole
arrays is as fast. Assumed."""
_SHARE = 0.5
"""Of the time that is left, for whole arrays, and then for shardings apart from cuts. Assumed."""
_COMPILE = 1.5
"""Times what it takes to price a step and to look at it as one stage, which lowers it: what is set
aside for compiling what is chosen, of a time limit. Assumed; 1.4 for a step of GPT-2 small."""
_FEW, _MORE = 2, 3
"""Shardings that are looked at beside cuts, where something fits without, and where nothing does.
Assumed."""


def chosen(
    module: Module,
    options: Options,
    tried: Callable[[Module, Options], CompiledProgram] | None = None,
) -> Choice:
    """Return the best way to use `options.ipus` IPUs for a verified module's step, by estimate.

    Stages and where they are, schedules, micro-batches, recomputation, replicas, sharded optimizers
    and what lies in remote memory are looked at, but for what options settle; with `plan="auto"`
    also shardings, of a module that has none. With `tried`, which compiles, a way that does not fit
    after all tells how far estimates are off, and another takes its place, a few times. Where the
    current search ends early it is the best until then; of its time as much is left as compiling
    takes. Raises what finding the phases of a step raises, and UnsupportedError E0475 where what is
    given takes more IPUs, or others than devices that are named have.
    """
    search, divides = current_search(), _may_divide(module, options)
    if search.left() == inf and is_long(module):  # looking is bounded, not what it begins with
        _begun(module, options)
    with search.within(seconds_for(module)):
        return _chosen(module, options, tried, divides=divides)


def _chosen(
    module: Module,
    options: Options,
    tried: Callable[[Module, Options], CompiledProgram] | None,
    *,
    divides: bool,
) -> Choice:
    search = current_search()
    with search.part(_SHARE if divides else 1.0):
        is_thorough = not (divides and is_long(module))
        survey = _surveyed(module, options, is_thorough=is_thorough)
    estimates, notes = survey.estimates, tuple[str, ...]()
    # Of a long module a trial of what may fit takes as long as looking for shardings: it says more.
    tries_first = (
        tried is not None
        and not is_thorough
        and any(map(may_fit, estimates))
        and not any(estimate.fits for estimate in estimates)
    )
    if divides and not tries_first:
        with search.improving(), search.within(search.left() - survey.compile_seconds):
            more, notes = _with_shardings(module, options, survey)
            estimates = [*estimates, *more]
            if not is_thorough and not any(estimate.fits for estimate in estimates):
                estimates += _thorough(module, options, estimates)
    choice = Choice(module, best_of(estimates), choice_of(estimates), len(estimates), notes=notes)
    if tried is None:
        return choice
    machine = survey.step.machine
    with search.improving():
        choice = with_trials(choice, estimates, options, tried, machine)
        has_shardings = len(estimates) > len(survey.estimates)
        if not divides or has_shardings or (choice.is_tried and not tries_first):
            return choice
        return _divided(choice, replace(survey, estimates=estimates), options, tried)


def _divided(
    choice: Choice,
    survey: "_Survey",
    options: Options,
    tried: Callable[[Module, Options], CompiledProgram],
) -> Choice:
    """Return the best choice that divides arrays, or `choice` where that fits and is as fast.

    Trials have shown that nothing else of the survey fits, whatever estimates say.
    """
    module, search, rate = choice.module, current_search(), choice.per_second
    alone = choice.best.candidate if rate else None
    estimates = [
        replace(x, fits=True, per_second=rate) if x.candidate == alone else replace(x, fits=False)
        for x in survey.estimates
    ]
    with search.unhurried(), search.within(_SHARE * seconds_for(module)):
        more, notes = _with_shardings(module, options, replace(survey, estimates=estimates))
    notes = tuple(dict.fromkeys((*choice.notes, *notes)))
    if rate:
        more = [x for x in more if x.fits and x.per_second > rate * SLOWER]
    if not more:
        return replace(choice, notes=notes)
    rows, looked_at = best_of([*estimates, *more]), len(estimates) + len(more)
    divided = Choice(module, rows, choice_of(more), looked_at, notes=notes)
    divided = with_trials(divided, more, options, tried, survey.step.machine)
    return choice if divided.per_second < rate else divided


def _may_divide(module: Module, options: Options) -> bool:
    """Whether shardings are to be looked for: of a module that one participant has for itself."""
    is_asked = options.plan == "auto" and options.partition == "auto"
    return (
        is_asked
        and participants(module, compile_request(options))[1] == 1
        and not meets_others(module)
    )


@dataclass(frozen=True)
class _Survey:
    """Ways to cut one module's step."""

    step: Step
    ipus: int
    """That each partition may take."""
    estimates: list[Estimate]
    compile_seconds: float
    """That are set aside for compiling what is chosen."""


def _surveyed(module: Module, options: Options, *, is_thorough: bool) -> _Survey:
    """Return estimates of ways to cut a step, with arrays divided as the module says."""
    search, start = current_search(), perf_counter()
    step, ipus, candidates = _begun(module, options)
    aside = _COMPILE * (perf_counter() - start)
    with search.within(search.left() - aside):
        estimates = looked_at(
            step, ipus, candidates, _settled(module, options), search, is_thorough=is_thorough
        )
    return _Survey(step, ipus, estimates, aside)


def _begun(module: Module, options: Options) -> tuple[Step, int, list[Candidate]]:
    """Return a step that is priced and was looked at as one stage, if not before.

    And the IPUs that each partition may take, and candidates on these.
    """
    fixed = _settled(module, options)
    partitions = participants(module, compile_request(options))[1]
    step = STEP_MEMO.of((Same(module), repr(options)), lambda: priced(module, options))
    ipus = system_ipus(step.machine, options)
    if ipus < partitions:
        raise UnsupportedError(
            "E0475",
            f"{ipus} IPUs were asked for; {module.name!r} is written for {partitions} partitions, "
            "each an IPU or more",
            hint=f"ask for {partitions} IPUs or more (--ipus {partitions}), or print the module "
            "for one device",
        )
    ipus_per_partition = ipus // partitions
    candidates = candidates_on(step, ipus_per_partition, fixed)
    if ipus > 1:
        candidates = _within(
            candidates, ipus_per_partition, partitions, exactly=options.ipu_ids is not None
        )
    step.estimate(candidates[0])
    return step, ipus_per_partition, candidates


def _settled(module: Module, options: Options) -> Given:
    """Return what options settle, and the module.

    One that is written for several participants is not copied any further.
    """
    fixed = _given(options)
    replicas, partitions = participants(module, compile_request(options))
    if replicas * partitions > 1 and meets_others(module):
        fixed = replace(fixed, replicas=replicas)
    return fixed


def _thorough(module: Module, options: Options, estimates: list[Estimate]) -> list[Estimate]:
    """Return what is left to be looked at where nothing fits, of whole arrays, and of the leanest.

    Each step has been priced already.
    """
    leanest = min(estimates, key=lambda estimate: estimate.needed_bytes).candidate.sharding
    known = {estimate.candidate for estimate in estimates}
    more = []
    for sharding in dict.fromkeys((leanest, None)):
        divided = with_sharding(module, sharding)
        survey = current_search().tried(partial(_surveyed, divided, options, is_thorough=True))
        for estimate in survey.estimates if survey else ():
            candidate = replace(estimate.candidate, sharding=sharding)
            if candidate not in known:
                more.append(replace(estimate, candidate=candidate))
    return more


def _with_shardings(
    module: Module, options: Options, unsharded: _Survey
) -> tuple[list[Estimate], tuple[str, ...]]:
    """Return estimates of ways that divide arrays as well, and what was not looked at, for people.

    None where whole arrays use nearly all that the IPUs can do: no other way is much faster.
    """
    search, estimates = current_search(), list[Estimate]()
    most = max(estimate.candidate.micro_batches for estimate in unsharded.estimates)
    ideal = partial(unsharded.step.rate_of_copies, unsharded.ipus, most)
    rate = max(
        (estimate.per_second for estimate in unsharded.estimates if estimate.fits), default=0.0
    )
    if (
        unsharded.ipus <= (options.replicas or 1)
        or rate >= _NEARLY_ALL * ideal()
        or search.is_over()
    ):
        return estimates, ()
    stages, is_thorough = len(unsharded.step.loads.ahead), not is_long(module)
    try:
        with search.part(_SHARE):
            candidates = shardings_beside_cuts(module, options, stages, fits=rate > 0)
    except UnsupportedError as error:
        return estimates, (f"no shardings: {error}",)
    for sharded in candidates[: _FEW if rate else _MORE]:
        if ideal(sharded.efficiency) <= rate:
            continue
        sharding = sharded.sharding
        if sharded.alone is not None and not is_thorough and _given(options) == Given():
            # Nothing is left to be cut, and pricing a long module anew takes as long as compiling.
            estimates.append(_alone(sharded.alone, sharding, unsharded.step.machine))
            rate = max(rate, estimates[-1].per_second if estimates[-1].fits else 0.0)
            continue
        with doing(f"cuts beside {sharding.flags()}"):
            try:
                divided = with_sharding(module, sharding)
                survey = search.tried(partial(_surveyed, divided, options, is_thorough=is_thorough))
            except HloipuError:  # what does not go with shardings
                continue
        if survey is None:
            break
        for estimate in survey.estimates:
            estimates.append(
                replace(estimate, candidate=replace(estimate.candidate, sharding=sharding))
            )
            rate = max(rate, estimate.per_second if estimate.fits else 0.0)
    return estimates, ()


def _alone(candidate: "ShardedCandidate", sharding: "Sharding", machine: Machine) -> Estimate:
    """Return what a sharding over all IPUs costs, as the search for shardings estimates it."""
    cycles = candidate.spent.cycles
    return Estimate(
        Candidate(sharding=sharding),
        cycles,
        machine.chip.clock_hz / max(cycles, 1),
        candidate.needed_bytes,
        candidate.needed_bytes,
        candidate.budget_bytes,
        candidate.fits,
        0.0,
    )


def _within(
    candidates: list[Candidate], ipus: int, partitions: int, *, exactly: bool
) -> list[Candidate]:
    """Return the candidates that a system has room for, or that fill it.

    `ipus`: that each partition may take. Raises UnsupportedError E0475 where there are none.
    """
    used_ipus = [candidate.ipus * candidate.replicas for candidate in candidates]
    left = [
        candidate
        for candidate, count in zip(candidates, used_ipus, strict=True)
        if count == ipus or (count < ipus and not exactly)
    ]
    if left:
        return left
    if exactly:
        raise UnsupportedError(
            "E0475",
            f"the devices that --ipu-ids names have {ipus * partitions} IPUs; no way that is left "
            "by what is given takes as many",
            hint="name devices with as many IPUs as stages, or leave --ipu-ids out; "
            "`hloipu targets MACHINE` lists devices",
        )
    divided = f", with {partitions} partitions" if partitions > 1 else ""
    raise UnsupportedError(
        "E0475",
        f"{ipus * partitions} IPUs were asked for; what is given takes "
        f"{min(used_ipus) * partitions} or more{divided}",
        hint="ask for fewer stages or replicas, put several stages on an IPU (--device-map), "
        "or leave --ipus out",
    )


def sweep(module: Module, options: Options, asked: Mapping[str, Sequence[str]]) -> Choice:
    """Return the estimate of every combination of the values asked for, in their order.

    Raises StagingError E0520 for what cannot be swept over.
    """
    fixed = _given(options)
    step = priced(module, options)
    start = Candidate(
        options.stages or step.stage_count or 1, options.schedule, options.micro_batches,
        fixed.recompute or "none", options.replicas or 1, options.offload, options.shard_optimizer,
        fixed.device_map or (), batch_serialization=options.batch_serialization,
    ).offloading(fixed.offloading)  # fmt: skip
    candidates = list(swept(step, asked, start))
    estimates = [
        step.estimate(candidate) for candidate in each("cuts", candidates, len(candidates))
    ]
    return Choice(module, estimates, choice_of(estimates), len(estimates))


def priced(module: Module, options: Options) -> Step:
    """Return a verified module's step, priced on the machine that options ask for.

    Raises StagingError E0565 for a step whose ops are on several IPUs: as annotated, or in blocks,
    and for cuts that are given, E0506 where it has fewer forward ops than stages that are given.
    """
    annotated = says_anything(module, participants_for(module, options.replicas)[1])
    if options.shards is not None or annotated:
        raise StagingError(
            "E0565",
            "ways to cut a step are looked at with stages on one IPU each, and "
            + ("ops are annotated with IPUs" if annotated else "shards are asked for"),
            hint="leave --plan auto and --sweep out: --micro-batches K, --offload on, "
            "--shard-optimizer and --replicas R go with shards; or leave the shards out",
        )
    if options.cut_at:
        raise StagingError(
            "E0565",
            "where to cut a step is looked for, and --cut-at says where",
            hint="leave --plan auto and --sweep out, or --cut-at",
        )
    step = priced_step(module, compile_request(options))[0]
    require_forward_ops(len(step.loads.ahead), options.stages or len(_map_of(options)) or 1)
    return step


def _given(options: Options) -> Given:
    """Return what options settle; what they say by default is to be looked for."""
    usual = Options()
    return Given(
        options.stages,
        _schedule_given(options, usual),
        # What an update is made of is changed only for those who ask for a plan.
        None if options.micro_batches == 1 and options.plan == "auto" else options.micro_batches,
        None if options.recompute == usual.recompute else options.recompute,
        None if options.offload == usual.offload else options.offload,
        options.replicas,
        True if options.shard_optimizer else None,
        tuple(ipu for (ipu,) in _map_of(options)) or None,
        frozenset(name for name in OFFLOADABLE if getattr(options, name)),
        options.batch_serialization if options.batch_serialization > 1 else None,
    )


def _schedule_given(options: Options, usual: Options) -> str | None:
    """Return the schedule that options settle: micro-batches in groups go with one alone."""
    if options.batch_serialization > 1:
        return SEQUENTIAL
    return None if options.schedule == usual.schedule else options.schedule


def _map_of(options: Options) -> tuple[tuple[int, ...], ...]:
    """Return the IPUs of each stage.

    Raises StagingError E0507 for a map that does not fit the stages, E0565 for several IPUs of one
    stage.
    """
    asked = pipeline_request(options).without_gaps()
    if asked.numbers:
        raise StagingError(
            "E0507",
            f"the device map leaves out some of {max(asked.numbers) + 1} IPUs",
            hint="number IPUs without gaps where ways to cut a step are looked at; --ipu-ids takes "
            "those of your choice",
        )
    device_map = asked.device_map
    require_map(device_map, options.stages or len(device_map))
    if any(len(ipus) != 1 for ipus in device_map):
        raise StagingError(
            "E0565",
            "ways to cut a step are looked at with stages on one IPU each",
            hint="leave --plan auto and --sweep out where --device-map puts a stage on several",
        )
    return device_map


def choice_record(choice: Choice) -> dict[str, Any]:
    """Return a choice as JSON data."""
    return {
        "schema": SCHEMA,
        "looked_at": choice.looked_at,
        "best": choice.best.record(),
        "rows": [row.record() for row in choice.rows],
    }
