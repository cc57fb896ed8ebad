"""HLOIPU_FLAGS: its words, and what is said of those that are none."""

import pytest

from hloipu.options.flags import read_flags
from hloipu.options.origin import Assignment
from hloipu.options.resolve import resolve
from hloipu_runtime.errors import UsageError


def made(text: str) -> list[tuple[str, object]]:
    items = list(read_flags(text))
    return [(x.option.name, x.value) for x in items if isinstance(x, Assignment)]


@pytest.mark.parametrize(
    ("text", "assignments"),
    [
        ("", []),
        ("  --target=bow\t--ipus=2 ", [("target", "bow"), ("ipus", 2)]),
        ("--over-memory=allow", [("over_memory", "allow")]),
        ("--over_memory=allow", [("over_memory", "allow")]),
        ("--no-cache", [("cache", False)]),
        ("--no_code_memory --poison", [("code_memory", False), ("poison", True)]),
        ("--cache=false", [("cache", False)]),
        ("--set=a=1 --set=b=2", [("set", (("a", "1"),)), ("set", (("b", "2"),))]),
        ("'--cache-dir=a b'", [("cache_dir", "a b")]),
        ("--passes=front{k=v},x", [("passes", "front{k=v},x")]),
        ("--ipu_model.tiles_per_ipu=64", [("set", (("tiles_per_ipu", "64"),))]),
        ("--ipu_model.compile_ipu_code=False", [("code_memory", False)]),
        ("--auto_select_ipus=[4]", [("ipus", 4)]),
        (
            "--executable_cache_path=/c --ipu_model_tiles=8",
            [
                ("cache_dir", "/c"),
                ("set", (("tiles_per_ipu", "8"),)),
            ],
        ),
        ("--use_ipu_model=false --max_infeed_threads=-1 --executable_cache_path=", []),
    ],
)
def test_words_are_assignments(text: str, assignments: list[tuple[str, object]]) -> None:
    assert made(text) == assignments


def test_graphcore_s_words_without_a_meaning_are_warned_of() -> None:
    said = list(read_flags("--use_ipu_model --norms.use_stable_statistics=true"))
    assert said == [
        f"HLOIPU_FLAGS: '{name}' is accepted and has no effect here"
        for name in ("use_ipu_model", "norms.use_stable_statistics")
    ]


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        ("target=bow", "E3017", "'target=bow' is not of the form --name=value"),
        ("--target bow", "E3017", "--target needs a value: --target=MACHINE"),
        ("--", "E3017", "is not of the form"),
        ("'--target=bow", "E3017", "No closing quotation"),
        ("--x" * 40_000, "E3017", "more than 65536 characters"),
        ("--tragte=bow", "E3010", "there is no option 'tragte'"),
        ("--no-target", "E3010", "there is no option 'no-target'"),
        ("--no-cache=true", "E3010", "there is no option 'no-cache'"),
        ("--ipus=", "E3011", "ipus is an integer"),
        ("--cache=maybe", "E3011", "cache is true or false, not 'maybe'"),
        ("--ipu-ids=one", "E3011", "ipu_ids is"),
        ("--ipu_model_tiles=few", "E3011", "ipu_model_tiles is an integer"),
    ],
)
def test_other_words_are_refused(text: str, code: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        made(text)
    assert caught.value.code == code
    assert caught.value.message.startswith("HLOIPU_FLAGS")
    assert said in caught.value.message


def test_variables_of_graphcores_stack_are_said_to_be_unread() -> None:
    environment = {"TF_POPLAR_FLAGS": "--use_synthetic_data", "POPLAR_ENGINE_OPTIONS": ""}
    (warning,) = resolve("compile", {}, environment=environment).warnings
    assert warning == "TF_POPLAR_FLAGS is set and is not read: give its words in HLOIPU_FLAGS"
