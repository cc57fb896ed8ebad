"""Findings on the host, remote memory, barriers and loops."""

from collections import defaultdict
from collections.abc import Iterator

from hloipu_runtime.findings.facts import Facts
from hloipu_runtime.program.program import Role
from hloipu_runtime.report.change import Finding, Setting

_HOST_SHARE = 0.5
_REMOTE_SHARE = 0.25
_IO_TILES = 32
"""To set apart of each IPU, or a quarter of those that it has. Assumed."""
_SYNC_SHARE = 0.15
_LEAST_STEPS = 4
_OF_HOST = frozenset({"stream in", "stream out"})
"""Steps that wait for the host."""


def host_bound(facts: Facts) -> Iterator[Finding]:
    """Find a program that waits for the host most of its time."""
    host = facts.profile.host
    waits, total = host.each_run_cycles, facts.device_cycles + host.each_run_cycles
    bytes_in, bytes_out = host.each_run_bytes
    if waits < _HOST_SHARE * total or not waits:
        return
    settings: tuple[Setting, ...] = ()
    if _may_overlap(facts):
        tiles = min(_IO_TILES, facts.machine.chip.tiles_per_ipu // 4)
        cure = (
            f"overlap its transfers with computing, on tiles set apart for them: --io-tiles {tiles}"
        )
        settings = (("io_tiles", tiles),)
    elif facts.program.is_resident:
        cure = "compute more for each byte that is fed: a larger batch, or inputs of narrower types"
    else:
        settings = (("loop", 100),)
        cure = (
            "keep state and weights on the device and feed the data alone: --loop N --feed "
            "NAME=PARAMETERS"
        )
    yield Finding(
        "host-bound",
        "",
        "",
        f"the host stops the device for {waits:,} of {total:,} cycles ({waits / total:.0%}): "
        f"{bytes_in:,} bytes in, {bytes_out:,} out",
        cure,
        waits,
        0,
        {"host_cycles": waits, "total_cycles": total, "bytes_in": bytes_in, "bytes_out": bytes_out},
        settings,
        is_of_host=True,
    )


def remote_bound(facts: Facts) -> Iterator[Finding]:
    """Find a program that spends most of its time on copies from and to remote memory."""
    remote, total = facts.profile.device["remote"], facts.device_cycles
    if remote < _REMOTE_SHARE * total or not remote:
        return
    rows = [r for r in facts.profile.steps if r.kind in ("remote in", "remote out")]
    size = sum(r.moved_bytes * r.executions for r in rows)
    yield Finding(
        "remote-bound",
        "",
        "",
        f"copies from and to remote memory take {remote:,} of {total:,} cycles "
        f"({remote / total:.0%}): {size:,} bytes",
        "keep on the tiles what has room there (--offload off), or update less often: more "
        "micro-batches",
        remote,
        0,
        {"remote_cycles": remote, "device_cycles": total, "bytes_moved": size},
        (("offload", "off"),),
    )


def _may_overlap(facts: Facts) -> bool:
    """Whether a loop has queues, all of which stop computing while they transfer."""
    program = facts.program
    return (
        program.steps_per_run > 1
        and bool(program.queues)
        and all(v.role is not Role.BUFFER for v in program.variables)
    )


def small_steps(facts: Facts) -> Iterator[Finding]:
    """Find programs of many steps that are each shorter than the barrier before them."""
    sync = facts.profile.by_bucket["sync"]
    if sync < _SYNC_SHARE * facts.device_cycles:
        return
    small: defaultdict[str, int] = defaultdict(int)
    steps = 0
    for row, _ in facts.computing:
        if row.executions and row.cycles < facts.sync_cycles * row.executions:
            small[row.name] += row.executions
            steps += row.executions
    if steps < _LEAST_STEPS:
        return
    gain = min(sync, steps * facts.sync_cycles)
    often = max(small, key=lambda name: small[name])
    yield Finding(
        "small-steps",
        often,
        facts.source_of.get(often, ""),
        f"{steps:,} compute sets, most of them of {often}, are shorter than the "
        f"{facts.sync_cycles} cycles of the barrier before each: barriers take {sync:,} cycles "
        f"({sync / facts.device_cycles:.0%} of the device's)",
        "give each step more work: a larger batch, stacked small operands, fewer loop iterations",
        gain,
        0,
        {"steps": steps, "sync_cycles": sync, "cycles_of_a_barrier": facts.sync_cycles},
    )


def small_turns(facts: Facts) -> Iterator[Finding]:
    """Find loops whose iterations spend more on barriers and on deciding than on computing."""
    spent = _by_loop(facts)
    for loop in facts.profile.loops:
        if loop.turns < _LEAST_STEPS:
            continue
        total, compute = spent[loop.path]
        if not total or 2 * compute >= total:
            continue
        per_iteration = total // loop.turns
        yield Finding(
            "small-turns",
            loop.name,
            facts.source_of.get(loop.name, ""),
            f"the loop {loop.name} takes {per_iteration:,} cycles an iteration, only "
            f"{compute // loop.turns:,} of them computing, in {loop.turns:,} iterations",
            "do more in an iteration: unroll it in the source (`unroll=` of a scan), or batch "
            "sequences",
            total - compute,
            0,
            {"turns": loop.turns, "cycles": total, "compute_cycles": compute},
        )


def _by_loop(facts: Facts) -> dict[str, list[int]]:
    """Return the device's cycles of each loop by its path, all and computing, with inner loops."""
    spent = {loop.path: [0, 0] for loop in facts.profile.loops}
    for row in facts.profile.steps:
        path = "" if row.kind in _OF_HOST else row.path
        while path:
            path = path.rpartition("/")[0]
            cycles = spent.get(path)
            if cycles is not None:
                cycles[0] += row.cycles
                cycles[1] += row.cycles * (row.kind == "compute")
    return spent


RULES = (host_bound, remote_bound, small_steps, small_turns)
