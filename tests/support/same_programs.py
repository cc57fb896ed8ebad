"""Whether two programs are the same, constants bit for bit."""

from dataclasses import fields

from hloipu_runtime.program.program import Program


def assert_same(one: Program, other: Program) -> None:
    for field in fields(Program):
        if field.name != "constants":
            assert getattr(one, field.name) == getattr(other, field.name), field.name
    assert one.constants.keys() == other.constants.keys()
    for number, (value, array) in one.constants.items():
        other_value, other_array = other.constants[number]
        assert (value, array.dtype, array.shape) == (
            other_value, other_array.dtype, other_array.shape,
        )  # fmt: skip
        assert array.tobytes() == other_array.tobytes()
