"""Training steps as people write them come to what JAX makes of them, or are refused for a reason.

`make trainers` runs all recipes in all ways; here are some, in one way each.
"""

import pytest

from tools.trainers.corpus import without_libraries
from tools.trainers.recipe import Recipe
from tools.trainers.ways import AGREES, REFUSED, WAYS, Way, judged, tells_apart, ways_of

RECIPES = {x.name: x for x in without_libraries()}
BY_NAME = {x.name: x for x in WAYS}
USUAL = {
    "measured": "K2R2",
    "bf16_masters": "K4",
    "lora": "K4",
    "sac": "K4",
    "byol": "S2K4",
    "vector_quantised": "K4",
    "many_tasks": "K4",
    "gan_in_turn": "K4",
}


@pytest.mark.parametrize(("name", "way"), USUAL.items(), ids=USUAL)
@pytest.mark.thinned(6)
def test_steps_as_people_write_them_agree_with_jax(name: str, way: str) -> None:
    recipe = RECIPES[name]
    verdict = judged(recipe, BY_NAME[way])
    assert verdict.kind == (REFUSED if recipe.refusals else AGREES), verdict.detail
    assert tells_apart(recipe)


CASES = [
    pytest.param(recipe, way, id=f"{recipe.name}-{way.name}")
    for recipe in reversed(RECIPES.values())
    for way in ways_of(recipe)
]


@pytest.mark.thinned(len(CASES))  # the loops over layers take longest, and come last
@pytest.mark.parametrize(("recipe", "way"), CASES)
def test_every_recipe_agrees_in_every_way(recipe: Recipe, way: Way) -> None:
    verdict = judged(recipe, way)
    assert verdict.kind in (AGREES, REFUSED), verdict.detail
