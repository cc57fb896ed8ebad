"""Keras 3 models on the simulated device: `attach` and then `fit`, `evaluate`, `predict` as ever.

Keras's loops stay as they are, with callbacks, history and validation: they call functions that are
put in the model's place for them, which run its pure steps in loops on the modelled machine. Keras
must compute with JAX (`KERAS_BACKEND=jax`).
"""

from hloipu_runtime.errors import UsageError

try:
    import keras as _keras  # noqa: F401 - its absence is told here, once
except ImportError as _error:
    raise UsageError(
        "E3177", "Keras is not installed", hint="pip install keras, version 3.7 or later"
    ) from _error

from hloipu.keras.attaching import Attached, attach, detach
from hloipu.keras.functions import DroppedBatchesWarning
from hloipu.keras.strategy import InputContext, IPUMultiWorkerStrategy

__all__ = [
    "Attached",
    "DroppedBatchesWarning",
    "IPUMultiWorkerStrategy",
    "InputContext",
    "attach",
    "detach",
]
