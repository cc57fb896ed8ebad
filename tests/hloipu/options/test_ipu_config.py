"""Keys of IPUConfig: those that mean something here, those that do not, those that do not exist."""

from pathlib import Path

import pytest

from hloipu.options.ipu_keys import KEYS
from hloipu.options.poplar_keys import POPLAR_FLAGS
from hloipu.options.resolve import Resolved, resolve
from hloipu.options.table import Options
from hloipu_runtime.errors import UsageError
from tests.support.cases import each


def resolved(folder: Path, text: str) -> Resolved:
    (folder / "hloipu.toml").write_text(text, encoding="utf-8")
    return resolve("run", environment={}, folder=folder)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("ipu_model.tiles_per_ipu = 1216", Options(set=(("tiles_per_ipu", "1216"),))),
        ("ipu_model.tiles_per_ipu = 0", Options()),
        ("ipu_model.compile_ipu_code = false", Options(code_memory=False)),
        ('ipu_model.version = "ipu1"', Options(target="gc2")),
        ('device_connection.version = "ipu2"', Options()),
        ('device_connection.version = ""', Options()),
        ("auto_select_ipus = 4", Options(ipus=4)),
        ("auto_select_ipus = [4]", Options(ipus=4)),
        ("auto_select_ipus = []", Options()),
        ("io_tiles.num_io_tiles = 0", Options()),
        ("allow_recompute = false", Options(recompute="none")),
        ("allow_recompute = true", Options(recompute="auto")),
        ('matmuls.poplar_options.availableMemoryProportion = "0.6"', Options()),
        ("convolutions.poplar_options.availableMemoryProportion = 0.6", Options()),
        ('matmuls.poplar_options = {partialsType = "float"}', Options()),
        ('matmuls.poplar_options.partialsType = "half"', Options(partials_type="f16")),
        (
            "matmuls.poplar_options.availableMemoryProportion = 0.2",
            Options(available_memory_proportion=0.2),
        ),
        ("slices.poplar_options = {}", Options()),
        ("select_ipus = 24", Options(ipu_ids=(24,))),
        (
            'compilation_poplar_options = {"debug.allowOutOfMemory" = "true"}',
            Options(over_memory="allow"),
        ),
        ('"ipu_model.tiles_per_ipu" = 8', Options(set=(("tiles_per_ipu", "8"),))),
    ],
)
def test_keys_with_a_meaning(tmp_path: Path, line: str, expected: Options) -> None:
    found = resolved(tmp_path, f"[ipu_config]\n{line}\n")
    assert found.options == expected
    assert found.warnings == ()


@pytest.mark.parametrize(
    "line",
    [
        "floating_point_behaviour.oflo = true",
        "io_tiles.available_memory_proportion = 0.5",
        "optimizations.maximum_cross_replica_sum_buffer_size = 1000",
        'matmuls.poplar_options.partialsElse = "half"',
    ],
)
def test_keys_without_one_are_accepted_with_a_warning(tmp_path: Path, line: str) -> None:
    found = resolved(tmp_path, f"[ipu_config]\n{line}\n")
    key = line.partition(" =")[0]
    (warning,) = found.warnings
    assert warning.startswith(f"hloipu.toml:2: '{key}' is accepted and has no effect here")
    assert found.options == Options()


def test_a_library_s_option_that_is_like_another_names_it(tmp_path: Path) -> None:
    line = 'matmuls.poplar_options.partialsTyp = "half"'
    (warning,) = resolved(tmp_path, f"[ipu_config]\n{line}\n").warnings
    assert warning.endswith("has no effect here: did you mean partialsType?")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("auto_select_ipus = [2, 4]", Options(ipus=2)),
        ("select_ipus = [24, 25]", Options(ipu_ids=(24,))),
    ],
)
def test_of_several_devices_a_program_takes_the_first(
    tmp_path: Path, line: str, expected: Options
) -> None:
    found = resolved(tmp_path, f"[ipu_config]\n{line}\n")
    assert found.options == expected
    (warning,) = found.warnings
    assert "lists 2 devices: the program is for the first, /device:IPU:0" in warning


@pytest.mark.parametrize(
    "line", ['selection_order = "AUTO"', "optimizations.math.dot_strength = true"]
)
def test_what_is_so_anyway_needs_no_warning(tmp_path: Path, line: str) -> None:
    assert resolved(tmp_path, f"[ipu_config]\n{line}\n").warnings == ()


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        ("ipu_model.tiles = 4", "E3010", "hloipu.toml:2: IPUConfig has no key 'ipu_model.tiles'"),
        ("ipu_model = 4", "E3010", "IPUConfig has no key 'ipu_model'"),
        ("ipu_model.version = 2", "E3011", "ipu_model.version is one of ipu1, ipu2, ipu21, not 2"),
        ('ipu_model.version = "ipu21"', "E3014", "ipu_model.version = ipu21 cannot be had here"),
        ("auto_select_ipus = 0", "E3011", "auto_select_ipus is an integer from 1"),
        ("io_tiles.num_io_tiles = 193", "E3011", "an integer from 0 to 192"),
        ('selection_order = "RANDOM"', "E3011", "selection_order is one of AUTO"),
        ("slices.poplar_options = 3", "E3011", "slices.poplar_options holds options by name"),
        ("a.b.c.d.e.f.g.h.i.j.k = 3", "E3010", "IPUConfig has no key"),
        ('matmuls.poplar_options.partialsType = "f16"', "E3011", "one of half, float"),
    ],
)
def test_refusals(tmp_path: Path, line: str, code: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        resolved(tmp_path, f"[ipu_config]\n{line}\n")
    assert caught.value.code == code
    assert said in caught.value.message


def test_the_nearest_key_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        resolved(tmp_path, "[ipu_config]\nipu_model.tiles_per_ipus = 4\n")
    assert caught.value.hint.startswith("did you mean ipu_model.tiles_per_ipu")


def test_a_key_and_an_option_may_agree_but_not_contradict(tmp_path: Path) -> None:
    text = 'target = "gc2"\n[ipu_config]\nipu_model.version = "{}"\n'
    assert resolved(tmp_path, text.format("ipu1")).options.target == "gc2"
    with pytest.raises(UsageError, match=r"target is set twice, first at hloipu\.toml:1") as caught:
        resolved(tmp_path, text.format("ipu2"))
    assert caught.value.code == "E3012"
    assert caught.value.message.startswith("hloipu.toml:3 (ipu_model.version): ")


@each("name", [*KEYS, *POPLAR_FLAGS])
def test_a_default_is_of_its_kind(name: str) -> None:
    key = {**KEYS, **POPLAR_FLAGS}[name]
    assert key.kind.check(key.default) == key.default
