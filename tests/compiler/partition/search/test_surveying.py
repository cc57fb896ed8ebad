"""Code of equal layers is there once, in a first layer that differs in a mask as well."""

import numpy as np

import hloipu
from hloipu_compiler.cost_survey.survey import Survey
from hloipu_compiler.ir.graph import Module
from hloipu_compiler.partition.search.surveying import outlined

ARRAY = "f32[64,64]"
CONTRACTED = "lhs_contracting_dims={1}, rhs_contracting_dims={0}"


def layers(count: int) -> Module:
    """Return layers of three products; before the first one's last product stands another op."""
    lines = [f"h = {ARRAY} parameter(0)", f"w = {ARRAY} parameter(1)"]
    previous = "h"
    for n in range(count):
        lines += [f"a{n} = {ARRAY} dot({previous}, w), {CONTRACTED}"]
        lines += [f"b{n} = {ARRAY} sine(a{n})", f"c{n} = {ARRAY} dot(b{n}, w), {CONTRACTED}"]
        lines += [f"m = {ARRAY} cosine(c0)"] if not n else []
        lines += [f"d{n} = {ARRAY} dot(c{n}, b{n}), {CONTRACTED}", f"e{n} = {ARRAY} tanh(d{n})"]
        previous = f"e{n}"
    lines += [f"ROOT r = {ARRAY} add(m, {previous})"]
    return hloipu.verify("HloModule m\n\nENTRY e {\n  " + "\n  ".join(lines) + "\n}\n")


def test_ops_like_those_of_layers_share_their_code() -> None:
    module = layers(4)
    ops = module.entry.instructions
    nothing = np.zeros(0, np.int64)
    survey = Survey(
        [0.0] * len(ops), 0.0, nothing, nothing, np.zeros(0, np.bool_), nothing, nothing,
        op_code=[float(op.opcode == "dot") * 100 + (op.name == "m") for op in ops],
    )  # fmt: skip
    found = outlined(survey, module)
    assert sum(found.op_code) == 1.0, "the op that no layer has"
    assert found.code_bytes.tolist() == [100.0] * 3, "three products of one layer"
    users = {ops[n].name for n in found.code_op}
    assert {"a0", "c0", "d0", "a3", "c3", "d3"} <= users
    by_code = [{ops[n].name[0] for n in found.code_op[found.code == code]} for code in range(3)]
    assert sorted(map(sorted, by_code)) == [["a"], ["c"], ["d"]]
