"""Several hosts training one Keras model, after Graphcore's IPUMultiWorkerStrategy.

    strategy = hloipu.keras.IPUMultiWorkerStrategy(hosts=2, replicas=16)
    with strategy.scope():
        model = make_model()
        model.compile(optimizer="adam", loss="mse")
    model.fit(strategy.distribute_datasets_from_function(batches_of_host), epochs=3)

Names are those of tensorflow/tensorflow: tensorflow/python/distribute/distribute_lib.py (Strategy,
InputContext), of which graphcore/tensorflow has a sub-class. Keras 3 computes the steps with JAX.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any, NamedTuple

from hloipu.keras.attaching import Attached, attach
from hloipu_runtime.errors import UsageError

import keras  # isort: skip  # its absence is told by hloipu.keras


class InputContext(NamedTuple):
    """The host that a dataset function is called for."""

    num_input_pipelines: int
    """Hosts."""
    input_pipeline_id: int
    """Number of the host, from 0."""
    num_replicas_in_sync: int
    """Replicas of all hosts."""

    def get_per_replica_batch_size(self, global_batch_size: int) -> int:
        """Return the samples of a replica's batch; UsageError E3178 where they do not divide."""
        if global_batch_size % self.num_replicas_in_sync:
            raise UsageError(
                "E3178",
                f"a batch of {global_batch_size} is not divided by {self.num_replicas_in_sync} "
                "replicas",
                hint="take a multiple of the replicas",
            )
        return global_batch_size // self.num_replicas_in_sync


class IPUMultiWorkerStrategy:
    """Replicas of a model on several hosts, each of which has data of its own.

    Gradients are averaged over all replicas. The modelled hosts are simulated in this process.
    """

    def __init__(
        self, hosts: int, replicas: int, *, micro_batches: int = 1, **options: Any
    ) -> None:
        """Take hosts, replicas of all of them together, and options of `hloipu.keras.attach`.

        Raises UsageError E3178 where the hosts do not divide the replicas.
        """
        if hosts < 1 or replicas < 1 or replicas % hosts:
            raise UsageError(
                "E3178",
                f"{hosts} hosts do not divide {replicas} replicas",
                hint="give as many replicas to each host",
            )
        self.hosts = hosts
        self.num_replicas_in_sync = replicas
        self.micro_batches = micro_batches
        self.options = options
        self.attached: Attached | None = None
        """The model that was compiled last in the scope."""

    @contextmanager
    def scope(self) -> Iterator["IPUMultiWorkerStrategy"]:
        """Attach what is compiled in the block to the modelled hosts."""
        strategy, before = self, keras.Model.compile

        def compile(model: Any, *arguments: Any, **keywords: Any) -> None:
            before(model, *arguments, **keywords)
            strategy.attach(model)

        keras.Model.compile = compile
        try:
            yield self
        finally:
            keras.Model.compile = before

    def attach(self, model: Any) -> Attached:
        """Attach a model that is compiled already."""
        self.attached = attach(
            model,
            replicas=self.num_replicas_in_sync,
            hosts=self.hosts,
            micro_batches=self.micro_batches if self.micro_batches > 1 else None,
            **self.options,
        )
        return self.attached

    def distribute_datasets_from_function(
        self, dataset_of: Callable[[InputContext], Iterable[Any]]
    ) -> Iterator[Any]:
        """Return the batches of all hosts in the order in which the replicas take them.

        `dataset_of` returns the batches of one host. A step takes as many of each host as it has
        replicas, times the micro-batches; they end with the first host whose batches end. Give
        `fit` as `steps_per_epoch` the batches of an epoch, those of all hosts counted.
        """
        replicas_per_host = self.num_replicas_in_sync // self.hosts
        contexts = (
            InputContext(self.hosts, host, self.num_replicas_in_sync) for host in range(self.hosts)
        )
        pipelines = [iter(dataset_of(context)) for context in contexts]
        while True:
            batches_by_host = [list(islice(pipeline, replicas_per_host)) for pipeline in pipelines]
            if any(len(batches) < replicas_per_host for batches in batches_by_host):
                return
            for batches in batches_by_host:
                yield from batches
