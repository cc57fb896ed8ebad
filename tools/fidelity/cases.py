"""How each measurement is compared: judged in a class, shown beside, or left out, and why."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import exp, log

from tools.fidelity import predictions as p
from tools.fidelity import runs
from tools.fidelity.measurements import Measurement


class Kind(StrEnum):
    """What becomes of a measurement."""

    JUDGED = "judged"
    BESIDE = "beside"
    """Times what the model knows too little of; no bound."""
    GIVEN = "given"
    """Is a number of the machine, or made it: no prediction."""
    LEFT_OUT = "left out"


@dataclass(frozen=True, slots=True)
class Class:
    """Measurements that one bound holds for."""

    name: str
    each: tuple[float, float]
    """Between which every predicted over measured time shall lie."""
    mean: tuple[float, float]
    """The same for their geometric mean."""


_QUARTER = (0.75, 1.25)
LARGE = Class("matmul, n >= 256", (0.90, 1.10), (0.95, 1.05))
SMALL = Class("matmul, n < 256", (1 / 1.4, 1.4), (0.85, 1.15))
CONVOLUTION = Class("convolution", _QUARTER, _QUARTER)
EXCHANGE = Class("exchange phase", _QUARTER, _QUARTER)
STREAM = Class("stream", _QUARTER, _QUARTER)
BARRIER = Class("barrier", _QUARTER, _QUARTER)
CAPACITY = Class("network, fullest tile", (0.0, 1.0), (0.0, 1.0))
"""Ratios are bytes over those that a tile has, of programs that are known to fit."""
RATE = Class("network, time", _QUARTER, _QUARTER)
CLASSES = (LARGE, SMALL, CONVOLUTION, EXCHANGE, STREAM, BARRIER, CAPACITY, RATE)


@dataclass(frozen=True, slots=True)
class Case:
    """How one measurement is compared."""

    kind: Kind
    predict: p.Predict | None = None
    of: Class | None = None
    why: str = ""
    """The effect that the model lacks, or the reason to leave it out."""


_CODELETS = "a user's own C++ codelet: no formula knows what a compiler made of it"
_IPUS = "several IPUs: programs are made for one"
_THIRD_PARTY = "third-party kernels, other than those whose formulas the model has"

_CASES: dict[str, Case] = {
    "gc2-sram-latency": Case(Kind.GIVEN, why="tile.load_use_cycles"),
    "gc2-sram-read-bw": Case(Kind.GIVEN, why="tile.interleaved_load_bytes_per_cycle"),
    "gc2-exchange-latency": Case(
        Kind.BESIDE, p.message, why="known when exchange.route_cycles of the gc2 was taken over"
    ),
    "gc2-congestion-onchip": Case(
        Kind.LEFT_OUT, why="exchanges are scheduled without conflicts; the model has no congestion"
    ),
    "gc2-stream-triad-fp32-asm": Case(Kind.JUDGED, p.stream_triad, STREAM),
    "gc2-lbm-commshare-1ipu": Case(Kind.LEFT_OUT, why=_CODELETS),
    "gc2-blur-phase-exch-half4-1ipu": Case(Kind.JUDGED, p.halo_exchange, EXCHANGE),
    "gc2-blur-phase-pre-half4-1ipu": Case(
        Kind.BESIDE,
        p.halo_rearranging,
        why="which copies Poplar makes before an exchange; ours leave border pixels in place",
    ),
    "gc2-blur-phase-gexch-half4-16ipu": Case(Kind.LEFT_OUT, why=_IPUS),
    "gc2-stencil-strong-16v1": Case(Kind.LEFT_OUT, why=_IPUS),
    "gc2-conv-cheese-half-mem0.1": Case(
        Kind.BESIDE,
        p.convolution,
        why="a planner's memory cliff: poplibs cuts the convolution into slices that it copies",
    ),
    "gc200-tut6-exchange": Case(Kind.JUDGED, p.matrix_vector_exchange, EXCHANGE),
    "gc200-tut6-compute": Case(Kind.LEFT_OUT, why=_CODELETS),
    "gc200-tut6-sync": Case(Kind.LEFT_OUT, why="waits for the host, not a barrier's own cycles"),
    "gc200-tut6-host": Case(Kind.LEFT_OUT, why="the host's rates are assumed numbers"),
    "gc200-tut6-total": Case(Kind.LEFT_OUT, why="waits for the host"),
    "gc200-m2000-resnet50-caraml": Case(
        Kind.LEFT_OUT, why="how its batch of 32 is spread over four IPUs is not said"
    ),
    "bow-pod16-bertl-ph1-packed": Case(
        Kind.LEFT_OUT, why="how many sequences its rows hold is not said"
    ),
    "c600-localcopy-call": Case(Kind.GIVEN, why="tile.copy_call_cycles"),
    "c600-copy8k-interleave": Case(
        Kind.BESIDE, p.copy_of_panel, why=f"{_THIRD_PARTY}; the call of a copy is given"
    ),
    "c600-gemm-4096-fp16": Case(Kind.BESIDE, p.large_product, why=_THIRD_PARTY),
    "c600-mlp-8x512x2048": Case(Kind.LEFT_OUT, why=_THIRD_PARTY),
    "c600-siglip-exch-colsfast": Case(
        Kind.LEFT_OUT, why="the plan of the exchange is not published"
    ),
    "c600-siglip-exch-rowsfast": Case(
        Kind.LEFT_OUT, why="the plan of the exchange is not published"
    ),
    "c600-attn-s1024-b1-h1152": Case(Kind.BESIDE, p.attention_of_heads, why=_THIRD_PARTY),
    "bow-capacity-gemm-fp32-4096": Case(Kind.BESIDE, p.fits, why="whether it fits, not a time"),
    "bow-capacity-gemm-fp32-8192x1024": Case(
        Kind.BESIDE, p.fits, why="whether it fits, not a time"
    ),
}


def case_of(x: Measurement) -> Case:
    """Return how a measurement is compared."""
    if x.id in _CASES:
        return _CASES[x.id]
    if x.unit == "tile":
        return Case(Kind.JUDGED, runs.share_of_tile, CAPACITY)
    if x.run:
        return Case(Kind.JUDGED, runs.rate, RATE)
    if x.dtype and x.n:
        return Case(Kind.JUDGED, p.product, LARGE if x.n >= 256 else SMALL)
    if "-spmm-" in x.id:
        return Case(Kind.LEFT_OUT, why="HLO has no sparse matrices")
    if "-stream-" in x.id:
        return Case(Kind.BESIDE, p.stream_triad, why=_CODELETS)
    if "-conv-" in x.id:
        return Case(Kind.JUDGED, p.convolution, CONVOLUTION)
    if "-phase-sync-" in x.id:
        return Case(Kind.JUDGED, p.barrier_of_ipus, BARRIER)
    if "-phase-compute-" in x.id:
        return Case(Kind.BESIDE, p.stencil_compute, why=_CODELETS)
    if "-blur-" in x.id:
        several = not x.id.endswith("-1ipu")
        return (
            Case(Kind.LEFT_OUT, why=_IPUS)
            if several
            else Case(Kind.BESIDE, p.stencil, why=_CODELETS)
        )
    if "-conformer-" in x.id:
        return Case(Kind.LEFT_OUT, why="tools/models has no such network")
    return Case(Kind.LEFT_OUT, why="nothing here computes it")


@dataclass(frozen=True, slots=True)
class Row:
    """A measurement, and what the model says of it."""

    measurement: Measurement
    case: Case
    prediction: p.Prediction | None = None

    @property
    def ratio(self) -> float:
        """Predicted over measured time; 1 where there is no prediction."""
        if self.prediction is None or not self.prediction.value:
            return 1.0
        ratio = self.prediction.value / self.measurement.value
        return 1 / ratio if is_rate(self.measurement) else ratio


@dataclass(frozen=True, slots=True)
class Judgement:
    """What came out for a class."""

    of: Class
    count: int
    mean_ratio: float
    """Geometric mean of predicted over measured time."""
    outside: int
    """How many ratios lie outside of the bound for each."""
    worst: Row

    @property
    def holds(self) -> bool:
        """Whether both bounds hold."""
        low, high = self.of.mean
        return not self.outside and low <= self.mean_ratio <= high


TAKES_LONG = "takes long: [fidelity-models.md](fidelity-models.md)"
"""Why a whole network is not among the quick comparisons."""


def compared(x: Measurement, *, quickly: bool = False) -> Row:
    """Return the row of a measurement, predicted where that can be; `quickly`: within a minute."""
    case = case_of(x)
    if quickly and x.run and not runs.is_quick(x):
        case = Case(Kind.LEFT_OUT, why=TAKES_LONG)
    return Row(x, case, case.predict(x) if case.predict else None)


def judged(rows: Sequence[Row]) -> list[Judgement]:
    """Return what came out for each class that has rows, held-out rows apart."""
    found = []
    for of in CLASSES:
        mine = [row for row in rows if row.case.of == of and not row.measurement.held_out]
        if mine:
            found.append(
                Judgement(
                    of,
                    len(mine),
                    exp(sum(log(row.ratio) for row in mine) / len(mine)),
                    sum(not of.each[0] <= row.ratio <= of.each[1] for row in mine),
                    max(mine, key=lambda row: beyond(row.ratio, of.each)),
                )
            )
    return found


def beyond(ratio: float, bound: tuple[float, float]) -> float:
    """Return by which factor a ratio is outside of a bound, or within it if less than 1."""
    low, high = bound
    return max(ratio / high, low / ratio)


def is_rate(x: Measurement) -> bool:
    """Whether more means less time."""
    return x.unit.endswith("/s") or x.unit == "columns"
