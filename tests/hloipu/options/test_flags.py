"""HLOIPU_FLAGS: its words, and what is said of those that are none."""

import warnings
from dataclasses import replace
from typing import Any

import pytest

import hloipu
from hloipu.options.origin import Assignment
from hloipu.options.resolve import read_flags, resolve
from hloipu.options.table import Options
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
    said = list(
        read_flags("--use_ipu_model --norms.use_stable_statistics=true --opt.useAutoloader=1")
    )
    assert said == [
        "HLOIPU_FLAGS: 'norms.use_stable_statistics' is accepted and has no effect here",
        "HLOIPU_FLAGS: 'opt.useAutoloader' is accepted and has no effect here: "
        "no device is attached, the machine is a model",
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


@pytest.mark.parametrize(
    ("environment", "expected", "warned"),
    [
        ({"TF_POPLAR_FLAGS": "--use_ipu_model --ipu_model_tiles=8"},
         {"set": (("tiles_per_ipu", "8"),)}, []),
        ({"TF_POPLAR_FLAGS": " --executable_cache_path=/c", "HLOIPU_FLAGS": "--cache-dir=/d"},
         {"cache_dir": "/d"}, []),
        ({"TF_POPLAR_FLAGS": "--use_synthetic_data --synthetic_data_initializer=normal"},
         {"synthetic_data": True},
         ["'synthetic_data_initializer' is accepted and has no effect here: --synthetic-data"]),
        ({"TF_POPLAR_FLAGS": "--use_syntetic_data"}, {}, ["did you mean use_synthetic_data?"]),
        ({"POPLAR_ENGINE_OPTIONS": '{"debug.allowOutOfMemory": "true", "prng.seed": "0x10",'
          ' "target.workerStackSizeInBytes": 512, "debug.instrument": false}'},
         {"over_memory": "allow", "seed": 16, "set": (("stack_bytes", "3296"),)}, []),
        ({"POPLAR_ENGINE_OPTIONS": '{"autoReport.all": true, "debug.new": 1}'}, {},
         ["--profile FILE writes a profile", "'debug.new' has no effect"]),
        ({"POPLAR_LOG_LEVEL": "DEBUG"}, {}, ["POPLAR_LOG_LEVEL is set and is not read: --timing"]),
        ({"POPLAR_LOG_LEVEL": "", "POPLAR_ENGINE_OPTIONS": "{}", "TF_POPLAR_FLAGS": ""}, {}, []),
    ],
)  # fmt: skip
def test_variables_of_graphcores_stack(
    environment: dict[str, str], expected: dict[str, Any], warned: list[str]
) -> None:
    found = resolve("run", {}, environment=environment)
    assert found.options == replace(Options(), **expected)
    assert len(found.warnings) == len(warned)
    for said, part in zip(found.warnings, warned, strict=True):
        assert part in said
        assert said.startswith(tuple(environment))


@pytest.mark.parametrize(
    ("variable", "text", "code"),
    [
        ("TF_POPLAR_FLAGS", "use_ipu_model", "E3017"),
        ("TF_POPLAR_FLAGS", "'--use_ipu_model", "E3017"),
        ("TF_POPLAR_FLAGS", "--ipu_model_tiles=few", "E3011"),
        ("POPLAR_ENGINE_OPTIONS", "autoReport.all=true", "E3017"),
        ("POPLAR_ENGINE_OPTIONS", "[" * 60_000, "E3017"),
        ("POPLAR_ENGINE_OPTIONS", "[]", "E3017"),
        ("POPLAR_ENGINE_OPTIONS", '{"debug.allowOutOfMemory": "perhaps"}', "E3011"),
        ("POPLAR_ENGINE_OPTIONS", '{"target.workerStackSizeInBytes": "0xx"}', "E3011"),
    ],
)
def test_variables_that_cannot_be_read_are_refused(variable: str, text: str, code: str) -> None:
    with pytest.raises(UsageError) as caught:
        resolve("run", {}, environment={variable: text})
    assert caught.value.code == code
    assert caught.value.message.startswith(variable)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("device_mapping", "it is --device-map here"),
        ("gradient_accumulation_count", "it is --micro-batches here"),
        ("device", "it is --ipu-ids here"),
        ("auto_select_ipus", "it is --ipus here"),
        ("debug.allowOutOfMemory", "it is --over-memory here"),
        ("autoReport.all", "without a meaning here: --profile FILE"),
        ("availableMemoryProportion", "it is --available-memory-proportion here"),
        ("microBatches", "did you mean micro_batches?"),
        ("auto_select_ipu", "did you mean auto_select_ipus? it is --ipus here"),
        ("debug.allowOutOfMem", "did you mean debug.allowOutOfMemory? it is --over-memory here"),
    ],
)
def test_keywords_that_are_graphcores_names_are_told_what_they_are_here(
    name: str, hint: str
) -> None:
    with pytest.raises(UsageError) as caught:
        resolve("compile", {name: 1}, environment={})
    assert (caught.value.code, hint in caught.value.hint) == ("E3010", True), caught.value.hint


def test_python_warns_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TF_POPLAR_FLAGS", "--log_cycle_count=0")
    text = "HloModule m\nENTRY e {\n  ROOT a = f32[4] parameter(0)\n}\n"
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("default")
        for _ in range(2):
            hloipu.compile(text, target="tiny")
    (warning,) = told
    assert warning.category is hloipu.OptionWarning
    assert warning.filename == __file__
