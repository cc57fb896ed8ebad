"""Mesh and sharding options, and the search for `--mesh auto`."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import inf
from os import PathLike
from typing import TYPE_CHECKING, Any

from hloipu.options.resolve import resolve
from hloipu.options.table import OPTIONS, Options
from hloipu.places import system_ipus
from hloipu.wrapping import wrapping_request
from hloipu_compiler.hlo.attributes.frontend_attributes import read_frontend_attributes
from hloipu_compiler.ir.graph import Module
from hloipu_compiler.memo import Memo, Same
from hloipu_compiler.partition.spmd.annotating import Annotated, annotated, require_undivided
from hloipu_compiler.partition.spmd.parameter_rules import Sharding
from hloipu_runtime.compiled import CompiledProgram
from hloipu_runtime.errors import HloipuError, UsageError
from hloipu_runtime.machine.links import check_system
from hloipu_runtime.machine.load import load_machine
from hloipu_runtime.watching import current_search, doing

if TYPE_CHECKING:
    from hloipu_compiler.partition.search.candidate import Estimate
    from hloipu_compiler.partition.sharding_search.beside_cuts import ShardingCandidate
    from hloipu_compiler.partition.sharding_search.candidate import Candidate
    from hloipu_compiler.partition.sharding_search.searching import Found

AUTO = "auto"
_MOST_SECONDS = 16.0
"""Of a processor, for looking for shardings or for a cut of a long module, where no time limit says
otherwise. The effort for others is bounded, so that they come out alike on every machine."""
_MOST_TRIED = 1_000
"""Instructions of all programs together that are compiled to see which sharding is best: of modules
so short that it takes a second or two. Assumed."""
_MOST_ROWS = 12
ANNOTATED_MEMO: Memo[Module] = Memo(4)
"""Modules annotated: estimates and trials of a search begin with the same ones."""
_HEAD = ("runs/s", "needed on an IPU", "links", "fits", "flags")


def with_shardings(
    module: Module, stated_options: Mapping[str, object], config: str | PathLike[str] | None = None
) -> Annotated:
    """Return a verified module with the mesh and the shardings that the options of a call ask for.

    With `mesh="auto"` those that are found to be best, by estimate. Raises what `annotated` raises;
    UsageError E0486 where nothing is left to be found, and with `partition="off"`; UnsupportedError
    E0479 for a module that cannot be divided, MachineError E3210 for more IPUs than a machine has.
    """
    attributes = read_frontend_attributes(module.attributes.text("frontend_attributes"))
    # Those of runs and checks say nothing of what is compiled.
    known = {
        name: value
        for name, value in stated_options.items()
        if name in OPTIONS and "compile" in OPTIONS[name].about.commands
    }
    options = resolve("compile", known, attributes=attributes, config=config).options
    if options.partition == "off":
        raise UsageError(
            "E0486",
            "--mesh and --shard divide arrays, which --partition off leaves whole",
            hint="leave the one or the other out",
        )
    if options.mesh != AUTO:
        assert not isinstance(options.mesh, str)
        return annotated(module, options.mesh or (), options.shard)
    return _searched(module, options)


def seconds_for(module: Module) -> float:
    """Return how long looking for shardings or for a cut may take in the current search."""
    left = current_search().left()
    return _MOST_SECONDS if left == inf and is_long(module) else left


def is_long(module: Module) -> bool:
    """Whether looking at everything would take too long."""
    from hloipu_compiler.partition.sharding_search.space import LONG

    return module.instruction_count > LONG


def _searched(module: Module, options: Options) -> Annotated:
    require_undivided(module)
    if options.shard or options.ipus < 2:
        raise UsageError(
            "E0486",
            "--mesh auto finds axes and shardings, and --shard states them"
            if options.shard
            else "--mesh auto takes the number of IPUs to divide arrays over",
            hint="name the axes: --mesh data=2,model=4" if options.shard else "add --ipus N",
        )
    from hloipu_compiler.partition.sharding_search.searching import found_shardings

    search = current_search()
    search.limit(options.time_limit)
    with search.within(seconds_for(module)), doing("looking for shardings"):
        search_result = found_shardings(module, system_of(module, options))
        best, verdict = _judged(module, options, search_result)
    divided = annotated(module, best.mesh, best.rules)
    lines = (*front_lines(module, search_result, best, verdict), *divided.lines)
    return Annotated(divided.module, lines)


def _judged(module: Module, options: Options, search_result: "Found") -> tuple[Sharding, str]:
    """Return the best sharding of the few that look best, as compiled, and whether it fits.

    Where few ops share the tiles, what they are done with decides, which estimates do not know. Of
    a module that is not short it is the best by estimate.
    """
    from hloipu.compile_request import compile_request, plugins
    from hloipu_compiler.driver import compile_module

    def program_of(sharding: Sharding) -> CompiledProgram:
        with plugins(plain):
            request = compile_request(plain)
            program = compile_module(with_sharding(module, sharding), request).program
        return CompiledProgram(program, request.machine, code_memory=plain.code_memory)

    few = list(dict.fromkeys(candidate.sharding(module) for candidate in search_result.good))
    few = few[: _MOST_TRIED // max(module.instruction_count, 1)]
    plain = replace(options, mesh=None, ipus=1, plan="none")
    search, ranks = current_search(), list[tuple[bool, int, int]]()
    for number, sharding in enumerate(few):
        try:
            with search.improving():
                program = search.tried(partial(program_of, sharding)) if len(few) > 1 else None
        except HloipuError:  # what does not go with it ends compiling what is chosen, too
            continue
        if program is not None:
            fits, memory = program.fits, program.memory
            worth = program.estimate().device_cycles if fits else memory.peak.total_bytes
            ranks.append((not fits, worth, number))
    if not ranks:
        return search_result.best.sharding(module), fitting_text(search_result.best)
    fails, _, number = min(ranks)
    return few[number], "compiled, none fits; this is nearest" if fails else "fits"


def with_sharding(module: Module, sharding: Sharding | None) -> Module:
    """Return a verified module with a mesh and rules written into it; None: as it is."""
    if sharding is None:
        return module
    mesh, rules = sharding.mesh, sharding.rules
    return ANNOTATED_MEMO.of(
        (Same(module), mesh, rules), lambda: annotated(module, mesh, rules).module
    )


def shardings_beside_cuts(
    module: Module, options: Options, most_stages: int, *, fits: bool
) -> "list[ShardingCandidate]":
    """Return shardings of a verified module to be looked at beside ways to cut it.

    `fits`: whether something fits without. Raises UnsupportedError E0479 for a module that cannot
    be divided.
    """
    from hloipu_compiler.partition.sharding_search.beside_cuts import shardings_beside

    return shardings_beside(module, system_of(module, options), most_stages, fits=fits)


def system_of(module: Module, options: Options) -> Any:
    """Return what a search is for: the machine, and what stays on the device."""
    from hloipu_compiler.partition.sharding_search.space import System
    from hloipu_compiler.plan.entry_arrays import aliased
    from hloipu_compiler.plan.roles import wrapping_of
    from hloipu_compiler.planners.tuning import Tuning

    machine = load_machine(options.target, dict(options.set))
    ipus = system_ipus(machine, options)
    check_system(machine, ipus)
    wrapping = wrapping_of(module, wrapping_request(options))
    pairs = {(x.parameter, x.result) for x in aliased(module)}
    pairs |= {(x.parameter, x.result) for x in (wrapping.state if wrapping else ())}
    share = round(100 * options.available_memory_proportion)
    return System(
        machine,
        ipus,
        tuple(sorted(pairs)),
        Tuning(options.partials_type, share),
        options.assume_trips if options.assume_trips is not None else 1,
    )


def front_lines(module: Module, search_result: "Found", best: Sharding, fits: str) -> list[str]:
    """Return the candidates that no other beats as a table, and the best one, for people.

    `fits`: whether it does.
    """
    rows = [_HEAD, *(_row(module, candidate) for candidate in search_result.front[:_MOST_ROWS])]
    widths = [max(len(row[n]) for row in rows) for n in range(len(_HEAD) - 1)]
    lines = ["  ".join([*map(str.rjust, row[:-1], widths), row[-1]]) for row in rows]
    if len(search_result.front) > _MOST_ROWS:
        lines.append(f"… and {len(search_result.front) - _MOST_ROWS} more")
    lines.append(f"best of {search_result.looked_at} ({fits}): {best.flags()}")
    if any(
        x.fits and not x.is_divided and x.score < search_result.best.score
        for x in search_result.front
    ):
        lines.append("  undivided, on one IPU, it is faster by estimate")
    return lines


def fitting_text(best: "Candidate | Estimate") -> str:
    """Return whether what was chosen fits by estimate; if not, how far it is from that."""
    if best.fits:
        return "fits by estimate"
    times = best.needed_bytes / max(best.budget_bytes, 1)
    return f"nothing fits by estimate; this is nearest, with {times:.2f} times the memory"


def _row(module: Module, candidate: "Candidate") -> Sequence[str]:
    return (
        f"{1 / candidate.seconds:,.1f}" if candidate.seconds else "-",
        f"{candidate.needed_bytes / 2**20:,.1f} MiB",
        f"{candidate.link_share:.0%}",
        "yes" if candidate.fits else "no",
        candidate.sharding(module).flags(),
    )
