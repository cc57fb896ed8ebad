"""The sources of values: their order, what each may say, and what is said of a mistake."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from hloipu.options.resolve import Resolved, resolve
from hloipu.options.table import Options
from hloipu_runtime.errors import UsageError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "inner").mkdir()
    return tmp_path


def write(folder: Path, text: str) -> None:
    (folder / "hloipu.toml").write_text(text, encoding="utf-8")


def resolved(
    folder: Path,
    given: Mapping[str, object] | None = None,
    *,
    flags: str = "",
    attributes: Mapping[str, str] | None = None,
    command: str = "run",
) -> Resolved:
    return resolve(
        command,
        given,
        attributes=attributes or {},
        environment={"HLOIPU_FLAGS": flags},
        folder=folder,
    )


def refused(folder: Path, given: Mapping[str, object] | None = None, **more: object) -> UsageError:
    with pytest.raises(UsageError) as caught:
        resolved(folder, given, **more)  # type: ignore[arg-type]
    assert caught.value.exit_code == 2
    return caught.value


def test_with_no_source_every_value_is_its_default(folder: Path) -> None:
    found = resolved(folder)
    assert found.options == Options()
    assert {str(origin) for origin in found.origins.values()} == {"default"}


def test_the_first_source_in_order_wins(folder: Path) -> None:
    write(folder, "\nipus = 3\n")
    sources: dict[str, object] = {"attributes": {"ipu_ipus": "2"}}
    write(folder / "inner", "")
    empty = folder / "inner"
    steps = [
        (resolved(empty), 1, "default"),
        (resolved(empty, **sources), 2, "module attribute ipu_ipus"),  # type: ignore[arg-type]
        (resolved(folder, **sources), 3, "hloipu.toml:2"),  # type: ignore[arg-type]
        (resolved(folder, flags="--ipus=4", **sources), 4, "HLOIPU_FLAGS"),  # type: ignore[arg-type]
        (resolved(folder, {"ipus": 5}, flags="--ipus=4", **sources), 5, "keyword"),  # type: ignore[arg-type]
    ]
    for found, ipus, origin in steps:
        assert found.options.ipus == ipus
        assert str(found.origins["ipus"]) == origin


def test_none_says_nothing(folder: Path) -> None:
    assert resolved(folder, {"ipus": None}, flags="--ipus=4").options.ipus == 4


def test_settings_are_put_together_key_by_key(folder: Path) -> None:
    write(folder, "[set]\ntiles_per_ipu = 64\nclock_hz = 5\n")
    found = resolved(folder, {"set": ["chip.tiles_per_ipu=32"]}, flags="--set=max_ipus=2")
    assert found.options.set == (
        ("chip.tiles_per_ipu", "32"),
        ("clock_hz", "5"),
        ("max_ipus", "2"),
    )
    rows = [(name, origin) for name, _, origin in found.rows() if name.startswith("set")]
    assert rows == [
        ("set.chip.tiles_per_ipu", "keyword"),
        ("set.clock_hz", "hloipu.toml:3"),
        ("set.max_ipus", "HLOIPU_FLAGS"),
    ]


@pytest.mark.parametrize(
    "text",
    [
        "[set]\ntiles_per_ipu = 1\n'chip.tiles_per_ipu' = 2\n",
        "[set]\ntiles_per_ipu = 1\n[ipu_config]\nipu_model.tiles_per_ipu = 1\n",
    ],
)
def test_a_number_is_set_once_in_a_source(folder: Path, text: str) -> None:
    write(folder, text)
    error = refused(folder)
    assert error.code == "E3012"
    assert "set is set twice, first at hloipu.toml:2" in error.message


def test_the_record_has_every_value_with_its_source(folder: Path) -> None:
    write(folder, 'target = "bow"\n[ipu_config]\nipu_model.compile_ipu_code = false\n')
    record = resolved(folder, {"set": {"tiles_per_ipu": 4}}).record()
    assert record["schema"] == "hloipu.config/1"
    options = record["options"]
    assert isinstance(options, dict)
    assert list(options) == list(Options.__dataclass_fields__)
    assert options["target"] == {"value": "bow", "source": "file", "place": "hloipu.toml:1"}
    assert options["code_memory"] == {
        "value": False,
        "source": "file",
        "place": "hloipu.toml:3",
        "key": "ipu_model.compile_ipu_code",
    }
    assert options["set"] == {
        "value": {"tiles_per_ipu": "4"},
        "source": "given",
        "place": "keyword",
        "places": {"tiles_per_ipu": "keyword"},
    }


@pytest.mark.parametrize(
    ("given", "code", "said"),
    [
        ({"ipuss": 4}, "E3010", "there is no option 'ipuss'"),
        ({"ipus": "4"}, "E3011", "keyword: ipus is an integer from 1 to 65536, not '4'"),
        ({"ipus": 0}, "E3011", "keyword: ipus is an integer from 1 to 65536, not 0"),
        ({"set": ["a=1", "b.a=1"]}, "E3011", "keyword: set is KEY=VALUE, no KEY twice"),
        ({"over_memory": []}, "E3011", "over_memory is one of refuse, allow, not a list"),
    ],
)
def test_wrong_keywords(folder: Path, given: dict[str, object], code: str, said: str) -> None:
    error = refused(folder, given)
    assert error.code == code
    assert said in error.message


def test_an_unknown_name_has_its_nearest_named(folder: Path) -> None:
    assert refused(folder, {"over_memroy": "allow"}).hint.startswith("did you mean over_memory")
    assert "cache" in refused(folder, {"no_cache": True}).hint


def test_a_command_refuses_the_options_of_others(folder: Path) -> None:
    error = refused(folder, {"poison": True}, command="compile")
    assert error.code == "E3014"
    assert error.message == "compile takes no option poison, run, check and reduce do"


@pytest.mark.parametrize(
    ("attributes", "code", "said"),
    [
        ({"ipu_trget": "bow"}, "E3010", "there is no option 'ipu_trget'"),
        ({"ipu_ipus": "four"}, "E3011", "module attribute ipu_ipus: ipus is an integer"),
        ({"ipu_target": "/etc/x.toml"}, "E3014", "a module may not name a file as its target"),
        ({"ipu_cache_dir": "/etc"}, "E3014", "a module may not state cache_dir"),
        ({"ipu_plugin": "x.py"}, "E3014", "a module may not state plugin"),
    ],
)
def test_wrong_attributes(folder: Path, attributes: dict[str, str], code: str, said: str) -> None:
    error = refused(folder, attributes=attributes)
    assert error.code == code
    assert said in error.message


def test_an_attribute_s_nearest_name_begins_as_it_does(folder: Path) -> None:
    error = refused(folder, attributes={"ipu_targt": "bow"})
    assert error.hint.startswith("did you mean ipu_target")


def test_other_attributes_are_nobody_s_business(folder: Path) -> None:
    assert resolved(folder, attributes={"fingerprint": "1", "xla.x": "2"}).options == Options()


def test_a_module_states_several_of_what_may_be_given_several_times(tmp_path: Path) -> None:
    """An attribute is there once: parts stand between semicolons."""
    found = resolved(
        tmp_path, attributes={"ipu_feed": "a=3,4;b=5", "ipu_outfeed": "loss=2;norm:last=3"}
    )
    assert found.options.feed == (("a", (3, 4)), ("b", (5,)))
    assert found.options.outfeed == ("loss=2", "norm:last=3")
