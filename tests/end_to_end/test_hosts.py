"""Training on several hosts, against one process of JAX with the batches of all together."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import hloipu
from hloipu.hosts import open_session
from hloipu_runtime.compiled import CompiledProgram
from hloipu_runtime.streams.per_host import PerHost
from tests.support.pipeline_reference import EVERY_STEP
from tests.support.replica_trials import Copies, compiled
from tests.support.sharded_steps import BATCHES, training

UPDATES = 2


def trained(copies: Copies, hosts: int, **options: Any) -> tuple[list[Any], np.ndarray[Any, Any]]:
    """Return the state and the losses after two updates on data of each host's own."""
    step, replicas = EVERY_STEP[copies.step], copies.replicas
    program = compiled(copies, hosts=hosts, **options)
    own = replicas // hosts
    data = PerHost(
        lambda host: [
            step.batch(update * replicas + host * own + replica)
            for update in range(UPDATES)
            for replica in range(own)
        ]
    )
    state = [np.asarray(x) for x in jax.tree.leaves(step.state())]
    with program.session(state=state, infeeds={"data": data}) as session:
        session.run(UPDATES)
        losses = np.array([np.asarray(x.element) for x in session.arrived("loss")])
        found = [list(session.state(replica).values()) for replica in range(replicas)]
        for others in found[1:]:
            for mine, theirs in zip(found[0], others, strict=True):
                np.testing.assert_array_equal(mine, theirs)
        assert session.profile().hosts == hosts
        return found[0], losses


@pytest.mark.parametrize(
    "copies",
    [
        Copies("mlp_sgd", 4),
        pytest.param(Copies("mlp_momentum", 16), marks=pytest.mark.large),
        pytest.param(Copies("transformer_adamw_clipped", 16), marks=pytest.mark.large),
    ],
    ids=str,
)
def test_hosts_train_as_one_process_with_all_batches(copies: Copies) -> None:
    found, losses = trained(copies, 2)
    step = EVERY_STEP[copies.step]
    state: Any = step.state()
    for update in range(UPDATES):
        seeds = range(update * copies.replicas, (update + 1) * copies.replicas)
        state, loss = step.whole(state, *step.joined(seeds))
        np.testing.assert_allclose(losses[update].mean(), loss, rtol=1e-5)
    for mine, theirs in zip(found, jax.tree.leaves(state), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=2e-4, atol=2e-6)
    alone, losses_alone = trained(copies, 1)
    np.testing.assert_array_equal(losses, losses_alone)
    for mine, theirs in zip(found, alone, strict=True):
        np.testing.assert_array_equal(mine, theirs)


def _replicas(name: str) -> tuple[CompiledProgram, dict[str, Any]]:
    """Return a program of 16 replicas on two hosts, and what its sessions are given."""
    step = EVERY_STEP[name]
    data = PerHost([[step.batch(host * 16 + n) for n in range(16)] for host in range(2)])
    given = {"state": jax.tree.leaves(step.state()), "infeeds": {"data": data}}
    return compiled(Copies(name, 16), hosts=2), given


def _divided(replicas: int, hosts: int = 0) -> tuple[CompiledProgram, dict[str, Any]]:
    """Return a program of some replicas of eight devices each."""
    step = training()
    program = hloipu.compile(
        step.text, loop=UPDATES, feed={"data": (10, 11)}, outfeed=("loss",), replicas=replicas,
        hosts=hosts or None,
    )  # fmt: skip
    data: Any = tuple(np.concatenate([rows, rows[::-1]]) for rows in BATCHES)
    if hosts:
        data = PerHost([BATCHES, tuple(rows[::-1] for rows in BATCHES)])
    return program, {"state": step.leaves[:10], "infeeds": {"data": data}}


def _in_parts(hosts: int | None) -> tuple[CompiledProgram, dict[str, Any]]:
    """Return a program of four replicas, each of which keeps a part of the optimizer's state."""
    step = EVERY_STEP["transformer_adam"]
    program = compiled(Copies("transformer_adam", 4), hosts=hosts, shard_optimizer=True)
    assert any(port.whole for port in program.program.state)
    data = [step.batch(n) for n in range(4 * UPDATES)]
    return program, {"state": jax.tree.leaves(step.state()), "infeeds": {"data": data}}


APART: dict[str, tuple[Callable[[], tuple[CompiledProgram, dict[str, Any]]], int | None]] = {
    "state in parts, two hosts": (partial(_in_parts, 2), None),
    "state in parts, four processes": (partial(_in_parts, None), 4),
    "halves of a replica": (partial(_divided, 1), 2),
    "halves of two replicas": (partial(_divided, 2), 4),
}


@pytest.mark.parametrize(
    "name", [pytest.param(x, marks=[pytest.mark.large][: n != 2]) for n, x in enumerate(APART)]
)
def test_processes_train_what_none_of_them_has_whole(name: str, tmp_path: Path) -> None:
    make, processes = APART[name]
    program, given = make()
    kept: list[Any] = []
    with (
        program.session(**given) as one,
        open_session(program, processes=processes, **given) as two,
    ):
        for where, session in (("one", one), ("two", two)):
            place = tmp_path / where
            place.mkdir()
            session.run(UPDATES)
            session.save_state(place / "c")
            files = {x.name: x.read_bytes() for x in place.iterdir()}
            states = [session.state(n) for n in range(program.program.replicas)]
            losses = [x.element for x in session.arrived("loss")]
            kept.append((session.cycles, files, states, losses))
        two.give_state({key: np.zeros_like(array) for key, array in states[0].items()})
        two.load_state(tmp_path / "one" / "c")
        for key, array in two.state().items():
            np.testing.assert_array_equal(states[0][key], array)
    (cycles, files, states, losses), (cycles_2, files_2, states_2, losses_2) = kept
    assert (cycles, files) == (cycles_2, files_2)
    for mine, theirs in zip(states, states_2, strict=True):
        for key, array in mine.items():
            np.testing.assert_array_equal(array, theirs[key])
    np.testing.assert_array_equal(losses, losses_2)


SIXTEEN: dict[str, Callable[[], tuple[CompiledProgram, dict[str, Any]]]] = {
    "mlp_momentum": partial(_replicas, "mlp_momentum"),
    "transformer_adamw_clipped": partial(_replicas, "transformer_adamw_clipped"),
    "two replicas of eight devices": partial(_divided, 2, 2),
}


@pytest.mark.large
@pytest.mark.parametrize("name", SIXTEEN)
def test_two_processes_train_sixteen_participants_as_one(name: str, tmp_path: Path) -> None:
    program, given = SIXTEEN[name]()
    assert program.program.participants == 16
    with program.session(**given) as one, open_session(program, **given) as two:
        for where, session in (("one", one), ("two", two)):
            session.run(UPDATES)
            session.save_state(tmp_path / where)
        for replica in range(program.program.replicas):
            others = two.state(replica)
            for key, array in one.state(replica).items():
                np.testing.assert_array_equal(array, others[key])
        assert one.cycles == two.cycles
    for host in range(2):
        mine, theirs = (
            next(tmp_path.glob(f"{where}.{UPDATES}.host-{host}-of-2.*")) for where in ("one", "two")
        )
        assert mine.read_bytes() == theirs.read_bytes()


def test_gateways_between_hosts_are_told_apart() -> None:
    copies = Copies("mlp_momentum", 8)
    near = compiled(copies, hosts=2).profile()
    far = compiled(copies, hosts=2, set={"ipus_per_link_domain": 4}).profile()
    assert near.links["gateway_links"] == 0 < near.links["ipu_links"]
    assert far.links["gateway_links"] > 0 < far.links["ipu_links"]
    assert sum(far.links.values()) <= far.by_bucket["exchange"]
