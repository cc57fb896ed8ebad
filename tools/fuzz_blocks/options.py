"""How a case is compiled: machine, memory of products, and how a step is cut."""

from typing import Any

from tools.fuzz_blocks.draws import Draw

MACHINES = ("gc200",) * 5 + ("bow", "bow", "gc2", "gc2", "tiny", "unit")


def options_drawn(draw: Draw) -> dict[str, Any]:
    """Return options for any module."""
    options: dict[str, Any] = {"target": draw.one(MACHINES), "over_memory": "allow"}
    if draw.maybe(0.35):
        options["available_memory_proportion"] = draw.one((0.02, 0.05, 0.1, 0.2, 0.3, 0.9, 1.0))
    if draw.maybe(0.1):
        options["partials_type"] = "f16"
    if draw.maybe(0.15):
        options["set"] = {"tiles_per_ipu": draw.one((3, 7, 64, 1000, 1216, 1400))}
    kind = draw.one(("", "", "", "", "", "", "passes", "none", "cheap"))
    if kind == "passes":
        # What fusion and absorption of views would have taken away stays.
        options["passes"] = "front"
    elif kind:
        options["recompute"] = kind
    return options


def cut_drawn(draw: Draw, state: int, inputs: int) -> dict[str, Any]:
    """Return how a step is cut, and in which loop it stands: parameters of state, then of data."""
    kind = draw.one(("loop", "replicas", "batches", "stages", "stages", "shards", "plain"))
    if kind == "plain" or not inputs:
        return {}
    if kind == "shards":
        return {"shards": 2, "ipus": 2}
    data = ",".join(str(state + i) for i in range(inputs))
    options: dict[str, Any] = {"feed": (f"data={data}",), "loop": draw.one((2, 10))}
    if kind == "replicas":
        options["replicas"] = options["ipus"] = draw.one((2, 4))
        options["shard_optimizer"] = draw.maybe(0.3)
    if kind == "loop" and draw.maybe(0.2):
        options["io_tiles"] = 1
    if kind in ("batches", "stages"):
        options["micro_batches"] = draw.one((2, 4, 8))
        options["offload"] = draw.one(("auto", "off"))
        options["reduction"] = draw.one(("mean", "sum", "running_mean"))
    if kind == "stages":
        options["stages"] = draw.one((2, 2, 3, 4))
        options["ipus"] = 4 if options["stages"] > 2 else 2
        options["schedule"] = draw.one(("grouped", "interleaved", "sequential"))
        options["recompute"] = draw.one(("auto", "none", "cheap", "full"))
        if draw.maybe(0.2):
            options["replicas"] = 2
            options["ipus"] *= 2
    return options
