"""How a thread is set up while kernels run in it."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from hloipu_runtime.kernels.contractions.blas_threads import blas_threads_given_back
from hloipu_runtime.kernels.core.subnormals import flushing_subnormals


@contextmanager
def computing() -> Iterator[None]:
    """Let no operation warn, flush subnormals, and give BLAS its threads back at the end.

    Blocks may be nested, and open in several threads at once.
    """
    with np.errstate(all="ignore"), flushing_subnormals(), blas_threads_given_back():
        yield
