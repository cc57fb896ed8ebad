import pytest

from hloipu_compiler.hlo.attributes.frontend_attributes import (
    config_text,
    frontend_attributes_text,
    read_backend_config,
    read_frontend_attributes,
)
from hloipu_compiler.hlo.syntax.text_fault import TextFault


def test_strings_and_raw_braces() -> None:
    text = '{xla.sdy.sharding="#sdy<[{\\"a\\"}]>",m={mode = 65 : ui8},k={"a":{"b":"}"}}}'
    found = read_frontend_attributes(text)
    assert found == {
        "xla.sdy.sharding": '#sdy<[{"a"}]>',
        "m": "{mode = 65 : ui8}",
        "k": '{"a":{"b":"}"}}',
    }
    assert read_frontend_attributes(frontend_attributes_text(found)) == found


def test_keys_are_printed_sorted() -> None:
    assert frontend_attributes_text({"b": "1", "a": "{}"}) == '{a={},b="1"}'


@pytest.mark.parametrize(
    "text", ["{a=1}", "{a}", '{a ="x"}', '{a="x",}', '{a="x" b="y"}', "{a={}", '{a={"}}', 'a="x"']
)
def test_refused(text: str) -> None:
    with pytest.raises(TextFault):
        read_frontend_attributes(text)


@pytest.mark.parametrize("value", ["", "x", '{"a":1}', "{ not json }", "{", '{"', "{}{}", "a\nb"])
def test_backend_configs_survive(value: str) -> None:
    assert read_backend_config(config_text(value)) == value


def test_braces_stay_raw() -> None:
    assert config_text('{"a":"}"}') == '{"a":"}"}'
    assert config_text("{}x") == '"{}x"'
