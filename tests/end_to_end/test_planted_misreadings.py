"""Faults planted in what reads a training step: the comparison with JAX tells, or a refusal does.

And calls that nobody sees through, planted in steps: never are values wrong without a word.
"""

import re
from collections.abc import Callable

import pytest

from hloipu_compiler.partition.training import (
    gradient_search,
    gradient_walk,
    op_phases,
    phases,
)
from hloipu_compiler.partition.training.reach import Mask
from hloipu_compiler.passes import remove_annotations
from tools.trainers.corpus import without_libraries
from tools.trainers.recipe import Recipe
from tools.trainers.ways import AGREES, FAILS, WAYS, judged

RECIPES = {x.name: x for x in without_libraries()}
BARE = WAYS[0]
Patch = pytest.MonkeyPatch


def _no_averages(patch: Patch) -> None:
    for module in (phases, op_phases):
        patch.setattr(module, "is_moving_average", lambda *_: False)


def _no_counters(patch: Patch) -> None:
    patch.setattr(phases._Finding, "_is_counter", lambda *_: False)
    patch.setattr(phases._Finding, "_count_with", lambda *_: False)


def _no_optimizer_state(patch: Patch) -> None:
    patch.setattr(phases, "optimizing", lambda entry, *_: Mask(len(entry.instructions)))


def _models_in_the_update(patch: Patch) -> None:
    patch.setattr(phases, "check_products", lambda *_: None)


def _gradients_end_at_masks(patch: Patch) -> None:
    less = gradient_walk.UPDATING - {"select", "divide"}
    for module in (gradient_walk, gradient_search):
        patch.setattr(module, "UPDATING", less)


FAULTS: dict[str, tuple[Callable[[Patch], None], str]] = {
    "averages are weights": (_no_averages, "vector_quantised"),
    "keys are the update's": (_no_counters, "vae"),
    "optimizer state is none": (_no_optimizer_state, "shampoo"),
    "models are a part of the update": (_models_in_the_update, "sac"),
    "clipped gradients are gradients": (_gradients_end_at_masks, "optax_decay_masked"),
}


@pytest.mark.thinned(3)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_step_read_wrongly_does_not_pass(fault: str, monkeypatch: Patch) -> None:
    plant, name = FAULTS[fault]
    plant(monkeypatch)
    assert judged(RECIPES[name], BARE).kind == FAILS


_ROOT = re.compile(r"(?s)(ENTRY .*ROOT [^=]*= \(.*?\) tuple\()(.*?)(\))")
OPAQUE = "Sharding"
"""A call that hands its operand on, where the pass that takes it out does not know it."""


def behind_calls(text: str, first: int, last: int) -> str:
    """Return a step some of whose results come out of calls that hand their operand on."""
    head, names, _ = _ROOT.search(text).groups()  # type: ignore[union-attr]
    listed = re.sub(r"/\*.*?\*/", "", names).replace(" ", "").split(",")
    calls = []
    for number in range(first, last):
        name = listed[number]
        shape = re.search(rf"(?m)^\s*{re.escape(name)} = (\S+)", text).group(1)  # type: ignore[union-attr]
        listed[number] = f"opaque.{number}"
        target = f'custom_call_target="{OPAQUE}"'
        calls.append(f"  opaque.{number} = {shape} custom-call({name}), {target}\n")
    at = text.rindex("  ROOT ", 0, len(head) + text.index(head))
    return text[:at] + "".join(calls) + text[at:].replace(names, ", ".join(listed), 1)


@pytest.mark.parametrize(
    ("name", "what", "code"),
    [
        ("optax_yogi", "all state", ""),
        ("optax_yogi", "loss", ""),
        ("plain_descent", "all state", "E0504"),
    ],
)
def test_a_call_that_nobody_sees_through_gives_no_wrong_values(
    name: str, what: str, code: str, monkeypatch: Patch
) -> None:
    """Where optimizer state goes into it, it is of the update; else it may be the gradient's."""
    recipe = RECIPES[name]
    loss = recipe.metric_numbers["loss"]
    first, last = (loss, loss + 1) if what == "loss" else (0, loss)
    text = behind_calls(recipe.text(named=False), first, last)
    assert text.count(OPAQUE) == last - first
    monkeypatch.setattr(Recipe, "text", lambda *_, **__: text)
    monkeypatch.setattr(remove_annotations, "_REMOVED", frozenset())
    verdict = judged(recipe, BARE)
    assert (verdict.kind == AGREES) == (not code), verdict.detail
    assert code in verdict.detail
