"""The verdict: a short summary of fit and cycles for terminals."""

from collections.abc import Iterator, Mapping
from typing import Any

from hloipu_runtime.report.change import CODE_CURE, Finding
from hloipu_runtime.report.feeds import feeds_line
from hloipu_runtime.report.profile import NO_ORIGIN, ONE_TILE_BYTES, OriginRow, Profile

DEAREST = 4
TOP_FINDINGS = 3


def verdict(profile: Profile) -> str:
    """Return the verdict on a profile: at most twelve lines, each for one question.

    Findings, where somebody looked for them, are the last lines; the others then take less room.
    """
    return "\n".join((_with_findings if profile.findings or profile.fitting else _lines)(profile))


def _lines(profile: Profile) -> Iterator[str]:
    yield _head(profile)
    yield _memory(profile)
    yield from _state_alone(profile)
    yield _device(profile)
    yield from _costs(profile)
    yield f"tiles at work: {profile.tile_use:.0%} (mean over compute and exchange cycles)"
    yield f"from assumed constants: {_assumed(profile)}"
    yield _gathers(profile)


def _with_findings(profile: Profile) -> Iterator[str]:
    """Yield nine lines, and up to three for what makes it fit and for findings."""
    yield _head(profile)
    yield f"{_memory(profile)}; tiles at work: {profile.tile_use:.0%}"
    fitting = profile.fitting.lines() if profile.fitting else _where_advice_is(profile)
    fitting = [*_state_alone(profile), *fitting]
    yield from fitting[:TOP_FINDINGS]
    yield f"{_device(profile)}; assumed: {_assumed(profile)}"
    yield from _costs(profile)
    left = max(0, TOP_FINDINGS - len(fitting))
    for number, finding in enumerate(profile.findings[:left], 1):
        yield finding_line(number, finding, profile)


def _where_advice_is(profile: Profile) -> list[str]:
    """Return where to learn what makes a program fit, unless that was tried."""
    if profile.memory.get("fits", True):
        return []
    return ["`hloipu advise` says how many IPUs it needs, and what else makes it fit"]


def _state_alone(profile: Profile) -> Iterator[str]:
    """Yield how many IPUs hold at least what stays on the device, where these do not."""
    memory, staying = profile.memory, profile.host.once_bytes_in
    if not memory or memory["fits"]:
        return
    on_tiles = staying - sum(use.get("remote_bytes", 0) for use in memory.get("ipus", ()))
    bytes_per_ipu = memory["available_bytes_per_tile"] * profile.tiles_per_ipu
    if on_tiles <= bytes_per_ipu * profile.ipus:
        return
    least, each = -(-on_tiles // bytes_per_ipu), ""
    if profile.partitions > 1:
        each = f" for each of {profile.partitions} partitions as arrays are divided"
    yield (
        f"no cut of so many IPUs fits: what stays on the device takes {on_tiles:,} bytes, and the "
        f"tiles of {profile.ipus} have {bytes_per_ipu * profile.ipus:,}; {least} IPUs or more hold "
        f"it{each}; else --offload on (remote buffers), or print state in smaller types"
    )


def finding_line(number: int, finding: Finding, profile: Profile) -> str:
    """Return a finding on one line: what was found, what would cure it, what that saves at most."""
    saved = saved_text(finding, profile)
    return f"{number}. {finding.placed_statement}: {finding.cure} (saves at most {saved})"


def saved_text(finding: Finding, profile: Profile) -> str:
    """Return what a cure saves at most: of the device's own cycles, or of what the host adds."""
    saved = []
    if finding.gain_cycles and finding.is_of_host:
        run_cycles = profile.device_cycles + profile.host.each_run_cycles
        saved.append(f"{_share(finding.gain_cycles, run_cycles)} of a run's time")
    elif finding.gain_cycles:
        saved.append(f"{_share(finding.gain_cycles, profile.device_cycles)} of the device's cycles")
    if finding.gain_bytes:
        saved.append(f"{finding.gain_bytes:,} bytes of the fullest tile")
    return " and ".join(saved) or "nothing"


def _head(profile: Profile) -> str:
    ipus = "1 IPU" if profile.ipus == 1 else f"{profile.ipus} IPUs"
    if profile.partitions > 1:
        ipus = f"{profile.partitions} partitions of {ipus}"
    if profile.replicas > 1:
        ipus = f"{profile.replicas} replicas of {ipus}"
    if profile.hosts:
        ipus = f"{profile.hosts} host{'s'[: profile.hosts > 1]} with {ipus}"
    return (
        f"{profile.program or 'program'} on {profile.machine}: {ipus} of "
        f"{profile.tiles_per_ipu:,} tiles at {profile.clock_hz / 1e9:g} GHz ({profile.mode})"
    )


def _assumed(profile: Profile) -> str:
    """Return the assumed share of the device's cycles and of the fullest tile's bytes."""
    cycles = f"{_share(profile.device_assumed_cycles, profile.device_cycles)} of the cycles"
    peak = profile.memory.get("peak", {})
    assumed = {name: size for name, size in peak.get("assumed", {}).items() if size}
    if not assumed:
        return cycles
    names = ", ".join(sorted(assumed, key=lambda name: -assumed[name]))
    return f"{cycles}, {_share(sum(assumed.values()), peak['total_bytes'])} of the bytes ({names})"


def _costs(profile: Profile) -> Iterator[str]:
    """Yield what the device spends its cycles on, what the host adds, the dearest instructions."""
    total = profile.device_cycles
    spent = profile.device.items()
    parts = [f"{name} {cycles:,} ({_share(cycles, total)})" for name, cycles in spent if cycles]
    yield f"  {', '.join(parts)}{_links(profile)}" if parts else "  nothing to do"
    yield _host(profile)
    if profile.feeds:
        yield feeds_line(profile.feeds)
    for row in _dearest(profile)[: DEAREST - bool(profile.feeds)]:
        source = f"  {row.source}" if row.source else ""
        cycles = row.cycles - row.host_cycles
        yield f"  {cycles:>14,} cycles {_share(cycles, total):>6}  {row.name}{source}"


def _links(profile: Profile) -> str:
    """Return how long IPUs send over which links, where hosts or gateways decide that."""
    if not profile.links or not (profile.hosts or profile.links["gateway_links"]):
        return ""
    total = profile.device_cycles
    names = (("IPU-Links", "ipu_links"), ("GW-Links", "gateway_links"))
    kinds = [(name, profile.links[key]) for name, key in names]
    link_texts = ", ".join(f"{name} {n:,} ({_share(n, total)})" for name, n in kinds if n)
    return f"; links {link_texts}"


def _host(profile: Profile) -> str:
    """Return how long the host stops the device, what overlaps, and what is loaded once."""
    host, clock_hz = profile.host, profile.clock_hz
    if not (host.stops_cycles or host.beside_cycles or host.once_cycles):
        return "host: takes no time"
    stops, runs = host.each_run_cycles, "" if profile.runs == 1 else f" in {profile.runs:,} runs"
    parts = [f"stops the device for {_cycles(stops, clock_hz)}{runs}"]
    if stops and not profile.unknown:
        run_cycles = profile.device_cycles + stops
        parts[0] += f", with it {run_cycles:,} ({_time(run_cycles / clock_hz)})"
    if host.beside_cycles:
        parts.append(f"{_cycles(host.beside_cycles, clock_hz)} overlap with computing")
    parts.append("{:,} bytes in, {:,} out".format(*host.each_run_bytes))
    if host.once_cycles:
        when = "before the first run"
        if host.once_bytes_out:
            when += " and after the last"
        why = f" ({host.evidence})" if host.evidence else ""
        size = host.once_bytes_in + host.once_bytes_out
        once = _time(host.once_cycles / clock_hz)
        parts.append(f"once, {when}: {once} for {size:,} bytes that stay on the device{why}")
    return f"host: {'; '.join(parts)}"


def _dearest(profile: Profile) -> list[OriginRow]:
    """Return the instructions that keep the tiles busy longest, transfers from the host apart."""
    rows = [r for r in profile.origins if r.cycles > r.host_cycles and r.name != NO_ORIGIN]
    return sorted(rows, key=lambda r: (r.host_cycles - r.cycles, r.name))[:DEAREST]


def _memory(profile: Profile) -> str:
    memory = profile.memory
    if not memory:
        return "memory: not planned"
    peak, available = memory["peak"]["total_bytes"], memory["available_bytes_per_tile"]
    full = (
        f"{peak:,} of {available:,} bytes ({_share(peak, available)}) on tile "
        f"{memory['peak']['tile']:,}"
    )
    if memory["fits"]:
        return f"fits: {full}"
    code = memory.get("code_peak", {"code_bytes": 0, "tile": 0})
    most = min(memory.get("executable_bytes_per_tile", available), available)
    if code["code_bytes"] <= most:
        return f"does NOT fit: {full}{_beside(memory)}"
    size = code["code_bytes"]
    lacking = (
        f"code takes {size:,} of the {most:,} bytes that code may take "
        f"({_share(size, most)}) on tile {code['tile']:,}"
    )
    if peak > available:
        return f"does NOT fit: {full}; {lacking}{_beside(memory)}"
    return f"does NOT fit: {lacking}{_beside(memory)}: {CODE_CURE}; in all {full}"


def _beside(memory: Mapping[str, Any]) -> str:
    """Return how full the fullest IPU's remote memory is, where that is not enough."""
    most = max((use.get("remote_bytes", 0) for use in memory.get("ipus", ())), default=0)
    available = memory.get("remote_available_bytes_per_ipu", most)
    return f"; remote buffers need {most:,} of {available:,}" if most > available else ""


def _device(profile: Profile) -> str:
    runs = "" if profile.runs == 1 else f" in {profile.runs:,} runs"
    cycles = _cycles(profile.device_cycles, profile.clock_hz)
    if profile.total_cycles is None:
        return (
            f"device: unknown, at least {cycles}{runs}: data decides in "
            f"{len(profile.unknown)} place(s){_stated(profile)}; --assume-trips takes a number of "
            "turns"
        )
    return f"device: {cycles}{runs}{_stated(profile)}"


def _cycles(cycles: int, clock_hz: int) -> str:
    return f"{cycles:,} cycles ({_time(cycles / clock_hz)})"


def _stated(profile: Profile) -> str:
    opaque = profile.options.get("opaque")
    if not opaque:
        return ""
    calls = ", ".join(f"{cycles:,} a call of {target}" for target, cycles in opaque.items())
    return f", with {calls} as stated"


def _gathers(profile: Profile) -> str:
    gathered = profile.gathered
    limit = f"{ONE_TILE_BYTES // 1024} KiB"
    if not gathered:
        return f"no step collects more than {limit} on one tile"
    worst = max(gathered, key=lambda row: row.one_tile_bytes)
    return (
        f"{len(gathered)} step(s) collect more than {limit} on one tile; "
        f"most: {worst.one_tile_bytes:,} bytes for {worst.name}"
    )


def _share(part: int, total: int) -> str:
    if not total:
        return "0 %"
    percent = 100 * part / total
    if 0 < percent < 0.1:
        return "<0.1 %"
    return f"{percent:.0f} %" if percent >= 10 or part == 0 else f"{percent:.1f} %"


def _time(seconds: float) -> str:
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"
