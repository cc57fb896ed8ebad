"""Costs of transfers between IPUs: routes, and the fullest link.

The model is the one that graphcore/poplibs gives Poplar's IPU model in
lib/poplibs_test/Util.cpp (addGlobalExchangeConstraints): a ladder with two IPUs a rung; traffic
first crosses its rung where it must, then follows a rail. All flows of a phase share the links
that they meet on, and the phase lasts as long as the fullest link. Added here are rings, gateways
and a delay for each hop.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import NamedTuple

from hloipu_runtime.errors import MachineError
from hloipu_runtime.machine.charges import NOTHING, Charge, charge_of
from hloipu_runtime.machine.model import Machine
from hloipu_runtime.machine.transfers import cycles_at_rate, cycles_of_nanoseconds


class Flow(NamedTuple):
    """Bytes that one IPU sends to another in a phase."""

    source: int
    target: int
    size_bytes: int


class Segment(NamedTuple):
    """A bundle of links that traffic leaves an IPU by, or a chassis where `kind` is a gateway's."""

    kind: str
    """`rung`, `crossing`, `up`, `down`, `gateway out` or `gateway in`."""
    place: int


class LinkLoads(NamedTuple):
    """Load of a phase of copies between IPUs on the links."""

    size_bytes: Counter[Segment]
    """That leave over each segment."""
    hops: int
    """Of the longest way."""
    gateways: int
    """That the longest way passes."""


def link_loads(machine: Machine, flows: Iterable[Flow], ipus: int) -> LinkLoads:
    """Return the bytes on each segment of a system of `ipus`, and the longest way.

    Raises MachineError E3210 where an IPU is not of the system, or the machine has not so many.
    """
    check_system(machine, ipus)
    load: Counter[Segment] = Counter()
    hops = gateways = 0
    for flow in flows:
        if flow.size_bytes <= 0 or flow.source == flow.target:
            continue
        path = _route(machine, flow.source, flow.target, ipus)
        for segment in path.segments:
            load[segment] += flow.size_bytes
        hops, gateways = max(hops, path.hops), max(gateways, path.gateways)
    return LinkLoads(load, hops, gateways)


class LinkCycles(NamedTuple):
    """Cycles of transfers by the kind of link that they wait for."""

    ipu_links: int = 0
    gateway_links: int = 0

    def plus(self, other: "LinkCycles", times: int = 1) -> "LinkCycles":
        """Return the sum with a multiple of another."""
        return LinkCycles(
            self.ipu_links + times * other.ipu_links,
            self.gateway_links + times * other.gateway_links,
        )


NO_LINK_CYCLES = LinkCycles()


def link_transfer(machine: Machine, flows: Iterable[Flow], ipus: int) -> Charge:
    """Return the charge of a phase of copies between the IPUs of a system of `ipus`.

    Longest way * hop + bytes on the fullest segment / its rate. The global sync is charged apart.
    Raises what `link_loads` raises.
    """
    return link_price(machine, flows, ipus)[0]


def link_price(machine: Machine, flows: Iterable[Flow], ipus: int) -> tuple[Charge, LinkCycles]:
    """Return the charge of `link_transfer`, and its cycles by the kind of link.

    Cycles of the data are those of the fullest segment, whichever kind it is of.
    """
    return _price(machine, link_loads(machine, flows, ipus))


class Bundle(NamedTuple):
    """Equal flows between several pairs of IPUs."""

    pairs: tuple[tuple[int, int], ...]
    size_bytes: int


def bundle_price(
    machine: Machine, bundles: Iterable[Bundle], ipus: int
) -> tuple[Charge, LinkCycles]:
    """Return what `link_price` does of the flows of several bundles.

    What each link carries of a bundle is worked out once for all sizes.
    """
    load: Counter[Segment] = Counter()
    hops = gateways = 0
    for bundle in bundles:
        if bundle.size_bytes > 0:
            loads_of_byte = _loads_of_one_byte(machine, bundle.pairs, ipus)
            for segment, count in loads_of_byte.size_bytes.items():
                load[segment] += count * bundle.size_bytes
            hops, gateways = max(hops, loads_of_byte.hops), max(gateways, loads_of_byte.gateways)
    return _price(machine, LinkLoads(load, hops, gateways))


@lru_cache(256)
def _loads_of_one_byte(
    machine: Machine, pairs: tuple[tuple[int, int], ...], ipus: int
) -> LinkLoads:
    return link_loads(machine, (Flow(source, target, 1) for source, target in pairs), ipus)


def _price(machine: Machine, loads: LinkLoads) -> tuple[Charge, LinkCycles]:
    load, hops, gateways = loads
    if not load:
        return NOTHING, NO_LINK_CYCLES
    links = machine.links
    data, keys, fullest = max(
        (
            cycles_at_rate(machine, size, segment_rate(machine, segment)),
            _rate_keys(segment),
            segment,
        )
        for segment, size in load.items()
    )
    hop_cycles = cycles_of_nanoseconds(machine, hops * links.hop_nanoseconds)
    gateway_cycles = cycles_of_nanoseconds(machine, gateways * links.gateway_nanoseconds)
    charge = charge_of(
        machine,
        (hop_cycles, "links.hop_nanoseconds", "chip.clock_hz"),
        (gateway_cycles, "links.gateway_nanoseconds", "chip.clock_hz"),
        (data, *keys),
    )
    if fullest.kind.startswith("gateway"):
        return charge, LinkCycles(hop_cycles, gateway_cycles + data)
    return charge, LinkCycles(hop_cycles + data, gateway_cycles)


class _Route(NamedTuple):
    """Route of traffic from one IPU to another."""

    segments: tuple[Segment, ...]
    """Each once."""
    hops: int
    gateways: int


@lru_cache(1 << 14)
def _route(machine: Machine, source: int, target: int, ipus: int) -> _Route:
    segments = tuple(route(machine, source, target, ipus))
    return _Route(
        tuple(dict.fromkeys(segments)),
        sum(not segment.kind.startswith("gateway") for segment in segments),
        sum(segment.kind == "gateway out" for segment in segments),
    )


def check_system(machine: Machine, ipus: int) -> None:
    """Raise MachineError E3210 where no system of that many IPUs exists."""
    if not 1 <= ipus <= machine.links.max_ipus:
        raise MachineError(
            "E3210",
            f"a system of {machine.name} has 1 to {machine.links.max_ipus} IPUs, not {ipus}",
            key="links.max_ipus",
            hint="take fewer IPUs, or another machine",
        )


def route(machine: Machine, source: int, target: int, ipus: int) -> Iterator[Segment]:
    """Yield the segments that traffic from one IPU to another takes, in order."""
    for ipu in (source, target):
        if not 0 <= ipu < ipus:
            raise MachineError(
                "E3210", f"IPU {ipu} is not one of the {ipus} of this system, 0 to {ipus - 1}"
            )
    links = machine.links
    if source // links.ipus_per_link_domain != target // links.ipus_per_link_domain:
        # A chassis has gateways of its own, so neither end uses its IPU links.
        yield Segment("gateway out", source // links.ipus_per_machine)
        yield Segment("gateway in", target // links.ipus_per_machine)
        return
    yield from _route_on_ladder(machine, source, target, ipus)


def _route_on_ladder(machine: Machine, source: int, target: int, ipus: int) -> Iterator[Segment]:
    """Yield the segments between two IPUs of one link domain."""
    links = machine.links
    first = source // links.ipus_per_link_domain * links.ipus_per_link_domain
    domain_ipus = min(ipus - first, links.ipus_per_link_domain)
    ipu, crosses = source, source % 2 != target % 2
    if source // 2 == target // 2:
        if crosses:
            yield Segment("rung", source)
        return
    if crosses and (source ^ 1) < ipus:
        yield Segment("crossing", source)
        ipu, crosses = source ^ 1, False
    rungs = (domain_ipus + 1) // 2
    distance = target // 2 - source // 2
    if 0 < links.torus_ipus <= domain_ipus and domain_ipus % 2 == 0:
        # The shorter way round; of two equal ones, up.
        distance = (distance + (rungs - 1) // 2) % rungs - (rungs - 1) // 2
    step = 2 if distance > 0 else -2
    for _ in range(abs(distance)):
        yield Segment("up" if step > 0 else "down", ipu)
        ipu = first + (ipu - first + step) % (2 * rungs)
    if crosses:  # the last IPU of an odd system has nobody on its own rung
        yield Segment("crossing", ipu)


def segment_end(machine: Machine, segment: Segment, ipus: int) -> int:
    """Return the IPU that a segment leads to; of a gateway's, the chassis that it belongs to."""
    links, place = machine.links, segment.place
    if segment.kind.startswith("gateway"):
        return place
    if segment.kind in ("rung", "crossing"):
        return place ^ 1
    first = place // links.ipus_per_link_domain * links.ipus_per_link_domain
    rungs = (min(ipus - first, links.ipus_per_link_domain) + 1) // 2
    step = 2 if segment.kind == "up" else -2
    return first + (place - first + step) % (2 * rungs)


def segment_rate(machine: Machine, segment: Segment) -> int:
    """Return the bytes per second that a segment carries in its direction."""
    links = machine.links
    if segment.kind.startswith("gateway"):
        return links.gateway_links_per_machine * links.gateway_link_bytes_per_second
    count = {
        "rung": links.rung_links,
        "crossing": links.crossing_links,
        "up": links.rail_links,
        "down": links.rail_links,
    }[segment.kind]
    # Never 0, whatever the user set: a rate divides.
    return max(count * links.link_bytes_per_second * links.link_efficiency_percent // 100, 1)


def _rate_keys(segment: Segment) -> tuple[str, ...]:
    if segment.kind.startswith("gateway"):
        return (
            "chip.clock_hz",
            "links.gateway_link_bytes_per_second",
            "links.gateway_links_per_machine",
        )
    count = {"rung": "rung", "crossing": "crossing", "up": "rail", "down": "rail"}[segment.kind]
    return (
        "chip.clock_hz",
        "links.link_bytes_per_second",
        "links.link_efficiency_percent",
        f"links.{count}_links",
    )
