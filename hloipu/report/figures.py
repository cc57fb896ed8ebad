"""Figures for papers and notebooks, with matplotlib: memory, liveness, pipelines, roofline."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import numpy as np

from hloipu.report.trace import Unfolded
from hloipu_runtime.errors import UsageError
from hloipu_runtime.report.overview import PAINTS

Axes = Any
"""`matplotlib.axes.Axes`, a library that is not needed otherwise."""

_FORWARD, _BACKWARD, _LIMIT = "#2f6db3", "#c96a12", "#b3261e"


class Figures:
    """Draws a report; each figure goes into `axes`, or into a figure of its own, and is returned.

    Save one with `report.plot.memory().figure.savefig("memory.svg")`. Raise UsageError E3220 where
    matplotlib is not installed, E3221 where the report lacks what is to be drawn.
    """

    def __init__(self, record: Mapping[str, Any]) -> None:
        self.record = record

    def memory(self, ipu: int | None = None, axes: Axes | None = None) -> Axes:
        """Draw the bytes of each tile of an IPU (the fullest) by category, fullest tile first."""
        tiles = self._of_ipu("tiles", ipu)
        axes = axes or _axes()
        of_tile = np.repeat(*np.array(tiles["classes"]).T)
        order = of_tile[np.argsort(-np.array(tiles["needed_bytes"])[of_tile], kind="stable")]
        parts = {
            name: np.array(sizes)[order] for name, sizes in tiles["parts"].items() if any(sizes)
        }
        axes.stackplot(
            np.arange(len(order)), *parts.values(), labels=list(parts), step="mid",
            colors=[PAINTS.get(name, "#888888") for name in parts],
        )  # fmt: skip
        limit = self.record["profile"]["memory"]["available_bytes_per_tile"]
        if max(tiles["needed_bytes"]) > limit / 3:  # otherwise nothing else could be told apart
            axes.axhline(limit, color=_LIMIT, linestyle="--", label="limit")
        axes.set(xlabel="tiles, fullest first", ylabel="bytes", xlim=(0, len(order)))
        axes.legend(fontsize="small", ncols=3)
        return axes

    def liveness(self, ipu: int | None = None, axes: Axes | None = None) -> Axes:
        """Draw what is live on the fullest tile of an IPU (the fullest) at each step."""
        record = self._of_ipu("liveness", ipu)
        axes = axes or _axes()
        points, sizes = np.array([*record["curve"], [record["points"], record["curve"][-1][1]]]).T
        always, needed = record["always_live_bytes"], record["needed_bytes"]
        live = {"step": "post", "color": _BACKWARD, "label": "live"}
        axes.fill_between(points, 0, always, color=_FORWARD, label="always live")
        axes.fill_between(points, always, always + sizes, **live)
        axes.plot([record["peak_point"]], [needed - record["gap_bytes"]], "v", color=_LIMIT)
        axes.set(
            xlabel="step of the program (loops once)", ylabel=f"bytes on tile {record['tile']}"
        )
        axes.legend(fontsize="small")
        return axes

    def pipeline(self, number: int = 0, axes: Axes | None = None) -> Axes:
        """Draw which IPU works on which micro-batch when, forwards and backwards."""
        timeline = self._needed("timeline")
        numbers = [
            n
            for n, inner_block in enumerate(timeline["inner"])
            if inner_block["kind"] == "pipeline"
        ]
        if not 0 <= number < len(numbers):
            raise UsageError("E3221", f"the program has {len(numbers)} pipelines, no {number}",
                             hint="compile it with --stages")  # fmt: skip
        axes = axes or _axes()
        inner, unfolded = timeline["inner"][numbers[number]], Unfolded(timeline)
        microseconds = 1e6 / self.record["profile"]["machine"]["clock_hz"]
        for begin, end, position, batch in unfolded.positions(numbers[number]):
            name = inner["names"][position]
            paint = _BACKWARD if name.startswith("B") else _FORWARD
            for ipu in inner["ipus"][position]:
                axes.barh(ipu, (end - begin) * microseconds, left=begin * microseconds, color=paint,
                          edgecolor="white", height=0.9)  # fmt: skip
                axes.text((begin + end) / 2 * microseconds, ipu, str(batch), color="white",
                          ha="center", va="center", fontsize="x-small", clip_on=True)  # fmt: skip
        ipus = sorted({ipu for position_ipus in inner["ipus"] for ipu in position_ipus})
        axes.set(xlabel="microseconds", yticks=ipus, yticklabels=[f"IPU {ipu}" for ipu in ipus])
        axes.invert_yaxis()
        return axes

    def roofline(self, axes: Axes | None = None) -> Axes:
        """Draw what instructions reach against products, loads and exchanges of one IPU."""
        module, roofs = self._needed("module"), self.record["roofs"]
        axes = axes or _axes()
        profile, outer_runs = self.record["profile"], self.record["outer_runs"]
        origins, clock_hz = profile["origins"], profile["machine"]["clock_hz"]
        work: dict[str, tuple[float, float]] = {}
        for name, flops, size in zip(module["name"], module["flops"], module["bytes"], strict=True):
            work[name] = max(work.get(name, (0.0, 0.0)), (flops, size))
        device = np.array(origins["cycles"]) - np.array(origins["host_cycles"])
        rows = [
            (flops / size, flops * outer_runs.get(name, 1) * clock_hz / cycles, cycles)
            for name, cycles in zip(origins["name"], device.tolist(), strict=True)
            for flops, size in [work.get(name, (0.0, 0.0))]
            if flops and size and cycles
        ]
        if rows:
            intensity, rate, cycles = np.array(rows).T
            sizes = 20 + 400 * cycles / cycles.max()
            axes.scatter(intensity, rate, s=sizes, alpha=0.6, color=_FORWARD)
        at = np.geomspace(0.01, 10_000, 200)
        for name, peak in (("f16", roofs["f16_flops"]), ("f32", roofs["f32_flops"])):
            reached = np.minimum(peak, at * roofs["load_bytes"])
            axes.plot(at, reached, label=f"{name} products, loads")
        reached = np.minimum(roofs["f16_flops"], at * roofs["exchange_bytes"])
        axes.plot(at, reached, "--", label="exchanges")
        axes.set(xscale="log", yscale="log", xlabel="FLOPs for each byte", ylabel="FLOP/s")
        axes.legend(fontsize="small")
        return axes

    def _of_ipu(self, key: str, ipu: int | None) -> Any:
        """Return a part of the report for one IPU; by default the one with the fullest tile."""
        parts = self._needed(key)
        wanted = self.record["profile"]["memory"]["peak"]["ipu"] if ipu is None else ipu
        for part in parts:
            if part["ipu"] == wanted:
                return part
        hint = f"0 to {len(parts) - 1} are there"
        raise UsageError("E3221", f"the program has no IPU {ipu}", hint=hint)

    def _needed(self, key: str) -> Any:
        part = self.record.get(key)
        if not part:
            raise UsageError(
                "E3221",
                f"the report has no {key}",
                hint="make it from HLO text: hloipu report FILE.hlo",
            )
        return part


def _axes() -> Axes:
    """Return axes in a figure of their own, which no window shows."""
    try:
        figure = import_module("matplotlib.figure").Figure
    except ImportError as error:
        raise UsageError(
            "E3220", "matplotlib is not installed", hint="pip install 'hloipu[plot]'"
        ) from error
    axes: Axes = figure(figsize=(9, 4), layout="constrained").subplots()
    return axes
