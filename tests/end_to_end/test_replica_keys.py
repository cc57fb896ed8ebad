"""Random numbers of replicas: each draws from a key of its own, as JAX folds its number in."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hloipu
from hloipu_runtime.compiled import CompiledProgram
from hloipu_runtime.errors import UsageError
from hloipu_runtime.kernels.replica_keys import folded
from tests.support.command_line import run
from tests.support.pipeline_trials import Cut, assert_equal_to_jax
from tests.support.pipeline_trials import compiled as compiled_cut

Array = np.ndarray[Any, Any]
KEY = np.array([3, 7], np.uint32)
WEIGHTS = np.array([1, 2, 3, 4], np.float32)
ROWS = np.random.default_rng(0).normal(size=(24, 2, 4)).astype(np.float32)
UPDATES = 2


def loss_of(w: Any, x: Any, mask: Any) -> Any:
    return jnp.sum((x * mask * w) ** 2)


def updated(w: Any, key: Any, x: Any) -> tuple[Any, Any]:
    """Return new weights and the loss of a step with dropout."""
    mask = jax.random.bernoulli(key, 0.5, x.shape)
    loss, slope = jax.value_and_grad(loss_of)(w, x, mask)
    return w - 0.125 * slope, loss


def splitting(w: Any, key: Any, x: Any) -> Any:
    key, drawn = jax.random.split(key)
    new, loss = updated(w, drawn, x)
    return new, key, loss


def counting(w: Any, key: Any, count: Any, x: Any) -> Any:
    new, loss = updated(w, jax.random.fold_in(key, count), x)
    return new, key, count + 1, loss


def constant(w: Any, key: Any, x: Any) -> Any:
    new, loss = updated(w, key, x)
    return new, key, loss


def seeding(w: Any, seed: Any, x: Any) -> Any:
    new, loss = updated(w, jax.random.key(seed), x)
    return new, seed + 1, loss


def comparing(w: Any, key: Any, x: Any) -> Any:
    """What is drawn from is looked at as a number, too."""
    following, drawn = jax.random.split(key)
    new, loss = updated(w, drawn, x)
    return new, following, loss * (key[0] > 3)


def jittering(w: Any, key: Any, x: Any) -> Any:
    """Noise on weights, which replicas keep alike."""
    following, drawn = jax.random.split(key)
    new, loss = updated(w, jax.random.PRNGKey(0), x)
    return new + 0.25 * jax.random.normal(drawn, w.shape), following, loss


def flipping(w: Any, flags: Any, x: Any) -> Any:
    """An array of u32 that no random number is drawn from."""
    loss, slope = jax.value_and_grad(loss_of)(w, x, 1.0)
    return w - 0.125 * slope, flags ^ np.uint32(7), loss


def scanning(w: Any, key: Any, x: Any) -> Any:
    """A key that a loop splits, trip by trip."""

    def turn(carried: Any, _: Any) -> Any:
        total, key = carried
        key, drawn = jax.random.split(key)
        return (total * jax.random.bernoulli(drawn, 0.5, total.shape), key), None

    (mask, following), _ = jax.lax.scan(turn, (jnp.ones(x.shape), key), None, length=2)
    loss, slope = jax.value_and_grad(loss_of)(w, x, mask)
    return w - 0.125 * slope, following, loss


def rbg(w: Any, key: Any, x: Any) -> Any:
    following, drawn = jax.random.split(jax.random.wrap_key_data(key, impl="rbg"))
    new, loss = updated(w, drawn, x)
    return new, jax.random.key_data(following), loss


@cache
def text_of(step: Callable[..., Any], *own: Any) -> str:
    given = {splitting: KEY, rbg: np.arange(4, dtype=np.uint32), seeding: np.int32(5)}
    state = [WEIGHTS, given.get(step, KEY), *own]
    lowered = jax.jit(step, donate_argnums=tuple(range(len(state))), keep_unused=True)
    return str(lowered.lower(*state, ROWS[0]).compiler_ir("hlo").as_hlo_text())


def compiled(text: str, **options: Any) -> CompiledProgram:
    last = text.count("parameter(3)") and "count" in text
    given = {"loop": UPDATES, "feed": {"data": (3 if last else 2,)}, **options}
    outfeed = given.pop("outfeed", [f"loss={3 if last else 2}"])
    return hloipu.compile(
        text, target="tiny", over_memory="allow", cache=False, outfeed=outfeed, **given
    )


def by_jax(keys: list[Any], micro_batches: int = 1) -> tuple[Array, Any]:
    """Return losses by micro-batch and replica, and the weights, of `splitting`."""
    w, keys, losses = jnp.asarray(WEIGHTS), [jnp.asarray(k) for k in keys], []
    rows = iter(ROWS)
    step = jax.jit(splitting)
    for _ in range(UPDATES):
        changes = []
        for _ in range(micro_batches):
            made = [step(w, key, next(rows)) for key in keys]
            changes += [new - w for new, _, _ in made]
            keys = [key for _, key, _ in made]
            losses.append([loss for _, _, loss in made])
        w = w + sum(changes) / len(changes)
    return np.array(losses), w


def trained(program: CompiledProgram, key: Any = KEY, **options: Any) -> tuple[Array, Any]:
    with program.session(state=[WEIGHTS, key], infeeds={"data": (ROWS,)}, **options) as session:
        session.run(UPDATES)
        losses = [x.element for x in session.stream("loss").drain()]
        kept = [next(iter(session.state(r).values())) for r in range(program.program.replicas)]
    for other in kept[1:]:
        np.testing.assert_array_equal(kept[0], other)
    return np.array(losses), kept[0]


def folded_by_jax(replica: int) -> Any:
    return jax.random.fold_in(KEY, np.uint32(replica * 0x9E3779B9 % 2**32)) if replica else KEY


@pytest.mark.parametrize(("replicas", "micro_batches"), [(2, 1), (3, 2)])
def test_each_replica_draws_from_the_key_that_jax_folds(replicas: int, micro_batches: int) -> None:
    program = compiled(text_of(splitting), replicas=replicas, micro_batches=micro_batches)
    assert program.program.keys == (1,)
    wanted, theirs = by_jax([folded_by_jax(r) for r in range(replicas)], micro_batches)
    for mode in ("functional", "exact"):
        losses, weights = trained(program, mode=mode)
        np.testing.assert_allclose(losses, wanted, 2e-5)
        np.testing.assert_allclose(weights, theirs, 2e-5)


def test_same_and_given_keys_are_taken_as_they_are() -> None:
    same = compiled(text_of(splitting), replicas=2, replica_keys="same")
    assert not same.program.keys
    np.testing.assert_allclose(trained(same)[0], by_jax([KEY, KEY])[0], 2e-5)
    own = np.array([[1, 2], [3, 4]], np.uint32)
    for program in (same, compiled(text_of(splitting), replicas=2)):
        np.testing.assert_allclose(trained(program, own)[0], by_jax(list(own))[0], 2e-5)


def test_a_key_loaded_once_differs_by_replica_too(tmp_path: Path) -> None:
    def step(w: Any, key: Any, x: Any) -> Any:
        return updated(w, key, x)

    lowered = jax.jit(step, donate_argnums=0).lower(WEIGHTS, KEY, ROWS[0])
    text = str(lowered.compiler_ir("hlo").as_hlo_text())
    program = compiled(text, replicas=2, outfeed=["loss=1"])
    with program.session(state=[WEIGHTS], constants={1: KEY}, infeeds={"data": (ROWS,)}) as session:
        session.run(UPDATES)
        first, _ = session.stream("loss").drain()
    wanted = [updated(WEIGHTS, folded_by_jax(r), ROWS[r])[1] for r in range(2)]
    np.testing.assert_allclose(first.element, wanted, 2e-5)
    (tmp_path / "step.hlo").write_text(text)
    outcome = run(
        "check", str(tmp_path / "step.hlo"), "--target", "tiny", "--over-memory", "allow",
        "--loop", "2", "--replicas", "2", "--feed", "data=2", "--no-cache",
    )  # fmt: skip
    assert outcome.code == 0, outcome.out + outcome.err


@pytest.mark.parametrize(
    ("step", "own", "keys", "said"),
    [
        (splitting, (), (1,), "folded into parameter 1"),
        (counting, (np.int32(0),), (1,), "folded into parameter 1"),
        (scanning, (), (1,), "folded into parameter 1"),
        (rbg, (), (1,), "folded into parameter 1"),
        (constant, (), (1,), "the same in every micro-batch from parameter 1"),
        (seeding, (), (), "the same on every replica from parameter 1"),
        (comparing, (), (), "the same on every replica from parameter 1"),
        (jittering, (), (), "which the update reads"),
        (flipping, (), (), ""),
    ],
)
def test_what_is_a_key_is_told_by_what_becomes_of_it(
    step: Callable[..., Any], own: tuple[Any, ...], keys: tuple[int, ...], said: str,
    tmp_path: Path,
) -> None:  # fmt: skip
    (tmp_path / "step.hlo").write_text(text_of(step, *own))
    data = 2 + len(own)
    options = ["--replicas", "2", "--micro-batches", "2", "--feed", f"data={data}", "--no-cache"]
    outcome = run(
        "compile", str(tmp_path / "step.hlo"), "--target", "tiny", "--over-memory", "allow",
        *options, "-o", str(tmp_path / "step.ipux"),
    )  # fmt: skip
    assert outcome.code == 0, outcome.err
    assert said in outcome.out + outcome.err
    assert ("random numbers" in outcome.out + outcome.err) == bool(said)
    assert hloipu.load(tmp_path / "step.ipux").program.keys == keys


@pytest.mark.parametrize(("step", "replicas"), [(flipping, "2"), (splitting, "1")])
def test_an_option_without_draws_on_replicas_is_said_to_have_no_effect(
    step: Callable[..., Any], replicas: str, tmp_path: Path
) -> None:
    (tmp_path / "step.hlo").write_text(text_of(step))
    outcome = run(
        "compile", str(tmp_path / "step.hlo"), "--target", "tiny", "--over-memory", "allow",
        "--loop", "2", "--replicas", replicas, "--feed", "data=2", "--no-cache",
        "--replica-keys", "same",
    )  # fmt: skip
    assert "--replica-keys same without effect" in outcome.out + outcome.err


def test_checkpoints_keep_the_key_of_each_replica(tmp_path: Path) -> None:
    program = compiled(text_of(splitting), replicas=2)
    given: dict[str, Any] = {"infeeds": {"data": (ROWS,)}}
    with program.session(state=[WEIGHTS, KEY], **given) as session:
        session.run(UPDATES)
        session.save_state(tmp_path / "at.ckpt")
        session.run(UPDATES)
        ends = [session.state(r) for r in range(2)]
    with program.session(**given) as resumed:
        resumed.load_state(tmp_path / "at.ckpt")
        resumed.run(UPDATES)
        for replica, end in enumerate(ends):
            for name, array in resumed.state(replica).items():
                np.testing.assert_array_equal(array, end[name])
    keys = [list(end.values())[1] for end in ends]
    assert (keys[0] != keys[1]).any()


def test_one_replica_stands_for_no_other_that_draws_other_numbers() -> None:
    with pytest.raises(UsageError) as refusal:
        compiled(text_of(splitting), replicas=2).session(state=[WEIGHTS, KEY], identical=True)
    assert refusal.value.code == "E2071"


def test_keys_are_folded_as_jax_does() -> None:
    for replica in (1, 2, 77):
        number = np.uint32(replica * 0x9E3779B9 % 2**32)
        np.testing.assert_array_equal(folded(KEY, replica), jax.random.fold_in(KEY, number))
        wide = jax.random.key(5, impl="rbg")
        wanted = jax.random.key_data(jax.random.fold_in(wide, number))
        np.testing.assert_array_equal(
            folded(np.asarray(jax.random.key_data(wide)), replica), wanted
        )
        seed = folded(np.array(9, np.int32), replica)
        second = np.asarray(jax.random.fold_in(jnp.array([0, 9], np.uint32), number))[1]
        assert seed.view(np.uint32) == second
        words = np.array([3 | 7 << 32], np.uint64)  # one pair, its lower half first
        np.testing.assert_array_equal(folded(words, replica).view(np.uint32), folded(KEY, replica))


def test_a_key_is_known_where_stages_read_its_words_apart() -> None:
    cut = Cut("dropout_momentum", 2, "grouped", 1, recompute="full", replicas=2, map="shared")
    program = compiled_cut(cut)
    assert any(stack.name.startswith("state_2___key__") for stack in program.program.stacks)
    assert_equal_to_jax(cut, program)
