"""Classes of ops that networks are made of, each at a real size, with what they need at least."""

from collections.abc import Iterator

from tools.fidelity import op_elementwise, op_moving, op_products, op_rows
from tools.fidelity.op_class import OpClass

FAMILIES = (
    op_elementwise.arithmetic,
    op_elementwise.nonlinearities,
    op_elementwise.random_bits,
    op_elementwise.updates,
    op_rows.reductions,
    op_rows.softmaxes,
    op_rows.losses,
    op_rows.norms,
    op_moving.moves,
    op_moving.lookups,
    op_moving.orders,
    op_moving.pools,
    op_products.matmuls,
    op_products.convolutions,
)


def op_classes() -> Iterator[OpClass]:
    """Yield all classes."""
    for family in FAMILIES:
        yield from family()
