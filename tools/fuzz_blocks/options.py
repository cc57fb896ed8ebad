"""How a case is compiled: machine, memory of products, and how a step is cut."""

from typing import Any

from tools.fuzz_blocks.draws import Draw

MACHINES = ("gc200",) * 5 + ("bow", "bow", "gc2", "gc2", "tiny", "unit")


def options_drawn(draw: Draw) -> dict[str, Any]:
    """Return options for any module."""
    found: dict[str, Any] = {"target": draw.one(MACHINES), "over_memory": "allow"}
    if draw.maybe(0.35):
        found["available_memory_proportion"] = draw.one((0.02, 0.05, 0.1, 0.2, 0.3, 0.9, 1.0))
    if draw.maybe(0.1):
        found["partials_type"] = "f16"
    if draw.maybe(0.15):
        found["set"] = {"tiles_per_ipu": draw.one((3, 7, 64, 1000, 1216, 1400))}
    kind = draw.one(("", "", "", "", "", "", "passes", "none", "cheap"))
    if kind == "passes":
        # What fusion and absorption of views would have taken away stays.
        found["passes"] = "front"
    elif kind:
        found["recompute"] = kind
    return found


def cut_drawn(draw: Draw, state: int, inputs: int) -> dict[str, Any]:
    """Return how a step is cut, and in which loop it stands: parameters of state, then of data."""
    kind = draw.one(("loop", "replicas", "batches", "stages", "stages", "shards", "plain"))
    if kind == "plain" or not inputs:
        return {}
    if kind == "shards":
        return {"shards": 2, "ipus": 2}
    data = ",".join(str(state + i) for i in range(inputs))
    found: dict[str, Any] = {"feed": (f"data={data}",), "loop": draw.one((2, 10))}
    if kind == "replicas":
        found["replicas"] = found["ipus"] = draw.one((2, 4))
        found["shard_optimizer"] = draw.maybe(0.3)
    if kind == "loop" and draw.maybe(0.2):
        found["io_tiles"] = 1
    if kind in ("batches", "stages"):
        found["micro_batches"] = draw.one((2, 4, 8))
        found["offload"] = draw.one(("auto", "off"))
        found["reduction"] = draw.one(("mean", "sum", "running_mean"))
    if kind == "stages":
        found["stages"] = draw.one((2, 2, 3, 4))
        found["ipus"] = 4 if found["stages"] > 2 else 2
        found["schedule"] = draw.one(("grouped", "interleaved", "sequential"))
        found["recompute"] = draw.one(("auto", "none", "cheap", "full"))
        if draw.maybe(0.2):
            found["replicas"] = 2
            found["ipus"] *= 2
    return found
