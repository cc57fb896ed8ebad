"""Texts that are not quite HLO: attributes of custom calls as Graphcore's plugin prints them."""

import pytest

from hloipu_compiler.errors import ParseError
from hloipu_compiler.hlo.parse import parse
from hloipu_compiler.hlo.reading.foreign_text import respelled
from hloipu_compiler.source import Source

_CALL = 'custom_call_target="'
LINES = {
    f'{_CALL}RemoteParameterLoad", replication_factors=4, 2, sharding={{maximal device=0}}': {
        "replication_factors": "4x02"
    },
    f'{_CALL}Dropout", scale=1.250000, noise_shape=2,1, backend_config="{{}}"': {
        "scale": "1.250000",
        "noise_shape": "2x1",
    },
    f'{_CALL}AllGather", replica_groups=consecutive(group_size=4), metadata={{op_type="x"}}': {
        "replica-groups": "{consecutive group_size4}"
    },
    f'{_CALL}GroupNormStatistics", epsilon=0.001, feature_index=3': {
        "Epsilon": "0.001",
        "Feature_index": "3",
    },
}


def _text(said: str) -> str:
    entry = f"  x = f32[2] parameter(0)\n  ROOT r = f32[2] custom-call(x), {said}\n"
    return f"HloModule m\n\nENTRY e {{\n{entry}}}\n"


@pytest.mark.parametrize("said", LINES)
def test_such_attributes_are_read_where_they_stand(said: str) -> None:
    text = _text(said)
    module = parse(Source(text, "m.hlo"))
    x = module.entry.instructions[1]
    found = {key: str(x.attributes[key]) for key in LINES[said]}
    assert found == LINES[said]
    assert module.source.text == text
    assert len(respelled(text)) == len(text)
    assert str(module.span(x)).startswith("m.hlo:5:")


def test_other_faults_are_told_as_they_are() -> None:
    text = _text('custom_call_target="Dropout", noise_shape=2,1, window={size=')
    with pytest.raises(ParseError) as caught:
        parse(Source(text))
    assert caught.value.span is not None
    plain = _text('custom_call_target="x", foo={1,2}, foo={3}')
    with pytest.raises(ParseError, match="twice"):
        parse(Source(plain))
