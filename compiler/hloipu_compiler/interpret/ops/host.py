"""Evaluation of infeed, outfeed, send, recv and participants' ids."""

import numpy as np

from hloipu_compiler.interpret.planning.plan import TOKEN_VALUE, Action, Array
from hloipu_compiler.interpret.planning.site import Site, array_leaves, leaf_count, lowers
from hloipu_runtime.errors import UnsupportedError, UsageError
from hloipu_runtime.kernels.core.storage import to_storage


@lowers("partition-id")
def _partition_id(site: Site) -> Action:
    value = np.asarray(site.effects.partition, np.uint32)
    return lambda _: (value,)


@lowers("replica-id")
def _replica_id(site: Site) -> Action:
    value = np.asarray(site.effects.replica, np.uint32)
    return lambda _: (value,)


@lowers("infeed")
def _infeed(site: Site) -> Action:
    config = site.attributes.text("infeed_config")
    leaves = array_leaves(site.instruction.shape)[:-1]
    source, name = site.effects.infeed, site.instruction.name

    def run(_: list[Array]) -> list[Array]:
        if source is None:
            raise UsageError(
                "E2001",
                f"infeed {name!r} has no source of data",
                hint="pass infeed=, a function from the infeed's configuration to arrays",
            )
        arrays = list(source(config))
        if len(arrays) != len(leaves):
            raise UsageError(
                "E2002",
                f"infeed {name!r} takes {len(leaves)} arrays, its source gave {len(arrays)}",
            )
        return [
            *(
                to_storage(x, leaf.element_type.name)
                for x, leaf in zip(arrays, leaves, strict=True)
            ),
            TOKEN_VALUE,
        ]

    return run


@lowers("outfeed")
def _outfeed(site: Site) -> Action:
    config = site.attributes.text("outfeed_config")
    values = leaf_count(site.operand_shapes[0])
    sink = site.effects.outfeed

    def run(x: list[Array]) -> tuple[Array]:
        if sink is not None:
            sink(config, x[:values])
        return (TOKEN_VALUE,)

    return run


@lowers("send", "send-done", "recv", "recv-done")
def _channels(site: Site) -> Action:
    raise UnsupportedError(
        "E0455",
        f"{site.instruction.opcode} {site.instruction.name!r} talks to another program over "
        f"channel {site.attributes.integer('channel_id')}",
        hint="the evaluator runs one program; cut it at its send and recv ops",
    )


@lowers("set-dimension-size")
def _set_dimension_size(site: Site) -> Action:
    """Keep the value where the size set is the whole size; a shorter one is a dynamic shape."""
    (dimension,) = site.attributes.integers("dimensions")
    size, name = site.sizes(0)[dimension], site.instruction.name

    def run(x: list[Array]) -> tuple[Array]:
        if int(x[1]) != size:
            raise UnsupportedError(
                "E0401",
                f"{name!r} sets a dimension of {size} to {int(x[1])} while running",
                hint="pad to the bound and mask instead: shapes are static here",
            )
        return (x[0],)

    return run
