"""The public face of sources and queues."""

import json
from collections.abc import Iterator

import numpy as np
import pytest

import hloipu
from hloipu import streams


def test_a_benchmark_has_the_keys_of_graphcores() -> None:
    rows = {"x": np.arange(12, dtype=np.float32).reshape(6, 2), "y": np.arange(6, dtype=np.int32)}

    def generated() -> Iterator[np.ndarray]:
        for n in range(5):
            yield np.full(3, n, np.float32)

    for dataset, size_bytes in (
        (rows, 12), (streams.from_arrays(rows).shuffle(1).batch(2), 24),
        (streams.from_generator(generated), 12),
    ):  # fmt: skip
        (first, second) = json.loads(streams.dataset_benchmark(dataset, 2, 7))["epochs"]
        for epoch in (first, second):
            assert epoch["elements_processed"] == 7
            assert epoch["total_bytes_processed"] == 7 * size_bytes
            assert epoch["elements_per_second"] == pytest.approx(7 / epoch["time_elapsed"])
            assert epoch["bandwidth"] == pytest.approx(7 * size_bytes / epoch["time_elapsed"] / 1e9)


@pytest.mark.parametrize("wrong", [(iter(()), 1, 1), ([1.0], 0, 1), (np.ones(3), 1, 0), (3, 1, 1)])
def test_what_cannot_be_measured_is_refused(wrong: tuple[object, int, int]) -> None:
    with pytest.raises(hloipu.HloipuError):
        streams.dataset_benchmark(*wrong)
