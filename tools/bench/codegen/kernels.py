"""All kernels of the benchmark, with sizes of real jobs."""

from collections.abc import Iterator

from tools.bench.codegen.computing_kernels import convolutions, networks, products
from tools.bench.codegen.kernel import Kernel
from tools.bench.codegen.moving_kernels import lookups, movements, orders, sums, views


def kernels() -> Iterator[Kernel]:
    """Yield every kernel."""
    for family in (
        products,
        convolutions,
        networks,
        lookups,
        orders,
        views,
        movements,
        sums,
    ):
        yield from family()
