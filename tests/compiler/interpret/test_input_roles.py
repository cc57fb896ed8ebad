"""What entry parameters are used for, followed through everything that keeps their values."""

import pytest

from hloipu_compiler.hlo.parse import parse
from hloipu_compiler.interpret.input_roles import InputRole, input_roles

GATHER = """offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=1,
    slice_sizes={1,4}"""
SCATTER = """update_window_dims={1}, inserted_window_dims={0}, scatter_dims_to_operand_dims={0},
    index_vector_dim=1, to_apply=sum"""
SUM = """sum {
  x = f32[] parameter(0)
  y = f32[] parameter(1)
  ROOT r = f32[] add(x, y)
}
"""


def role_of(entry: str, computations: str = "", number: int = 0) -> InputRole:
    """The role of the first leaf of an entry parameter."""
    module = parse(f"HloModule m\n{computations}ENTRY e {{\n{entry}}}\n")
    return input_roles(module)[number][0]


def test_an_index_of_a_gather_is_below_the_room() -> None:
    role = role_of(f"""  i = s32[5,1] parameter(0)
  t = f32[100,4] parameter(1)
  ROOT g = f32[5,4] gather(t, i), {GATHER}
""")
    assert role == InputRole(below=100)
    sorted_ = role_of(f"""  i = s32[5,1] parameter(0)
  t = f32[100,4] parameter(1)
  ROOT g = f32[5,4] gather(t, i), {GATHER}, indices_are_sorted=true
""")
    assert sorted_ == InputRole(below=100, ascending=True)


def test_windows_take_room() -> None:
    role = role_of("""  i = s32[5,1] parameter(0)
  t = f32[100,4] parameter(1)
  ROOT g = f32[5,11,4] gather(t, i), offset_dims={1,2}, collapsed_slice_dims={},
    start_index_map={0}, index_vector_dim=1, slice_sizes={11,4}
""")
    assert role == InputRole(below=90)


@pytest.mark.parametrize(
    ("flags", "role"),
    [
        ("", InputRole(below=100)),
        (", unique_indices=true", InputRole(below=100, distinct=True)),
        (", indices_are_sorted=true", InputRole(below=100, ascending=True)),
    ],
)
def test_an_index_of_a_scatter(flags: str, role: InputRole) -> None:
    entry = f"""  i = s32[5,1] parameter(0)
  t = f32[100,4] parameter(1)
  u = f32[5,4] parameter(2)
  ROOT g = f32[100,4] scatter(t, i, u), {SCATTER}{flags}
"""
    assert role_of(entry, SUM) == role
    assert role_of(entry, SUM, 1) == role_of(entry, SUM, 2) == InputRole()


def test_the_narrowest_of_several_uses_counts() -> None:
    role = role_of("""  i = s32[] parameter(0)
  a = f32[9,7] parameter(1)
  z = s32[] constant(0)
  b = f32[1,7] dynamic-slice(a, i, z), dynamic_slice_sizes={1,7}
  c = f32[9,1] dynamic-slice(a, z, i), dynamic_slice_sizes={9,1}
  d = f32[9,7] dynamic-update-slice(a, b, i, z)
  ROOT r = (f32[1,7], f32[9,1], f32[9,7]) tuple(b, c, d)
""")
    assert role == InputRole(below=7)


USES = {
    "log": ("f32[3,3]", "log(x)", InputRole(positive=True)),
    "rsqrt": ("f32[3,3]", "rsqrt(x)", InputRole(positive=True)),
    "cholesky": ("f32[3,3]", "cholesky(x), lower=true", InputRole(positive_definite=True)),
    "solve": (
        "f32[3,3]",
        "triangular-solve(x, y), left_side=true, lower=true, transpose_a=NO_TRANSPOSE",
        InputRole(triangular=True),
    ),
    "divisor": ("f32[3,3]", "divide(y, x)", InputRole(divisor=True)),
    "dividend": ("f32[3,3]", "divide(x, y)", InputRole()),
    "nothing special": ("f32[3,3]", "tanh(x)", InputRole()),
}


@pytest.mark.parametrize("name", USES)
def test_uses(name: str) -> None:
    shape, call, role = USES[name]
    entry = f"  x = {shape} parameter(0)\n  y = {shape} parameter(1)\n  ROOT r = {shape} {call}\n"
    assert role_of(entry) == role


def test_variance_is_positive() -> None:
    entry = """  x = f32[2,3] parameter(0)
  v = f32[3] parameter(1)
  ROOT r = f32[2,3] batch-norm-inference(x, v, v, v, v), epsilon=0.001, feature_index=1
"""
    assert role_of(entry, number=1) == InputRole(positive=True)


BRANCHES = """a {
  x = f32[] parameter(0)
  ROOT r = f32[] negate(x)
}
b {
  x = f32[] parameter(0)
  ROOT r = f32[] log(x)
}
c {
  x = f32[] parameter(0)
  ROOT r = f32[] sqrt(x)
}
"""


def test_branches() -> None:
    entry = """  i = s32[] parameter(0)
  x = f32[] parameter(1)
  y = f32[] parameter(2)
  z = f32[] parameter(3)
  ROOT r = f32[] conditional(i, x, y, z), branch_computations={a, b, c}
"""
    assert role_of(entry, BRANCHES) == InputRole(below=3)
    roles = [role_of(entry, BRANCHES, number) for number in (1, 2, 3)]
    assert [role.positive for role in roles] == [False, True, True]


PAIR = "  t = (s32[], f32[2,2]) tuple(n, a)\n"
FOLLOWED = {
    "reshape": "  b = f32[4] reshape(a)\n  ROOT r = f32[4] log(b)\n",
    "convert": "  b = f64[2,2] convert(a)\n  ROOT r = f64[2,2] log(b)\n",
    "tuple": PAIR
    + "  b = f32[2,2] get-tuple-element(t), index=1\n"
    + "  ROOT r = f32[2,2] log(b)\n",
    "call": "  ROOT r = f32[2,2] call(k, a), to_apply=f\n",
    "fusion": "  ROOT r = f32[2,2] fusion(k, a), kind=kLoop, calls=f\n",
    "loop": PAIR + "  ROOT w = (s32[], f32[2,2]) while(t), condition=once, body=body\n",
    "after a loop": PAIR
    + "  w = (s32[], f32[2,2]) while(t), condition=once, body=idle\n"
    + "  b = f32[2,2] get-tuple-element(w), index=1\n"
    + "  ROOT r = f32[2,2] log(b)\n",
}
AROUND = """f {
  k = f32[] parameter(0)
  x = f32[2,2] parameter(1)
  ROOT r = f32[2,2] log(x)
}
once {
  s = (s32[], f32[2,2]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  z = s32[] constant(1)
  ROOT r = pred[] compare(i, z), direction=LT
}
body {
  s = (s32[], f32[2,2]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  x = f32[2,2] get-tuple-element(s), index=1
  y = f32[2,2] log(x)
  one = s32[] constant(1)
  j = s32[] add(i, one)
  ROOT r = (s32[], f32[2,2]) tuple(j, y)
}
idle {
  s = (s32[], f32[2,2]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  x = f32[2,2] get-tuple-element(s), index=1
  one = s32[] constant(1)
  j = s32[] add(i, one)
  ROOT r = (s32[], f32[2,2]) tuple(j, x)
}
"""


@pytest.mark.parametrize("way", FOLLOWED)
def test_followed_to_a_logarithm(way: str) -> None:
    entry = """  a = f32[2,2] parameter(0)
  k = f32[] parameter(1)
  n = s32[] parameter(2)
"""
    entry += FOLLOWED[way]
    assert role_of(entry, AROUND) == InputRole(positive=True)
    assert role_of(entry, AROUND, 1) == InputRole()


def test_not_followed_through_ops_that_make_new_values() -> None:
    entry = "  a = f32[2] parameter(0)\n  b = f32[2] exponential(a)\n  ROOT r = f32[2] log(b)\n"
    assert role_of(entry) == InputRole()


def test_leaves_of_a_tuple_have_roles_of_their_own() -> None:
    module = parse("""HloModule m
ENTRY e {
  p = (f32[2], (f32[2], f32[2])) parameter(0)
  q = (f32[2], f32[2]) get-tuple-element(p), index=1
  a = f32[2] get-tuple-element(q), index=0
  ROOT r = f32[2] log(a)
}
""")
    assert [role.positive for role in input_roles(module)[0]] == [False, True, False]


def test_a_long_chain_ends_the_search_not_the_program() -> None:
    lines = "  x0 = f32[] parameter(0)\n" + "".join(
        f"  x{i} = f32[] copy(x{i - 1})\n" for i in range(1, 6000)
    )
    assert role_of(f"{lines}  ROOT r = f32[] log(x5999)\n") == InputRole()


WHERE = """where {
  c = pred[3] parameter(0)
  x = s32[3] parameter(1)
  y = s32[3] parameter(2)
  ROOT r = s32[3] select(c, x, y)
}
"""


def test_followed_out_of_what_is_called_to_the_caller_that_gave_it() -> None:
    """Two calls of one computation: the value comes back where it went in, and nowhere else."""
    entry = """  c = pred[3] parameter(0)
  a = s32[3] parameter(1)
  b = s32[3] parameter(2)
  f = f32[7,4] parameter(3)
  i = s32[3] call(c, a, a), to_apply=where
  j = s32[3] call(c, b, b), to_apply=where
  k = s32[3,1] reshape(i)
  g = f32[3,4] gather(f, k), offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0},
    index_vector_dim=1, slice_sizes={1,4}
  ROOT r = (s32[3], f32[3,4]) tuple(j, g)
"""
    assert role_of(entry, WHERE, 1) == InputRole(below=7)
    assert role_of(entry, WHERE, 2) == InputRole()


COMPARED = {
    "compare(a, nn), direction=LT": 10,
    "compare(a, nn), direction=GE": 10,
    "compare(a, nn), direction=LE": 11,
    "compare(nn, a), direction=GT": 10,
    "compare(nn, a), direction=GE": 11,
    "compare(a, zz), direction=LT": None,
    "compare(a, mm), direction=LT": None,
    "compare(a, nn), direction=EQ": None,
    "compare(a, ii), direction=EQ": 12,
}


@pytest.mark.parametrize("text", COMPARED)
def test_labels_are_below_what_they_are_compared_with(text: str) -> None:
    entry = """  a = s32[4,12] parameter(0)
  n = s32[] constant(10)
  nn = s32[4,12] broadcast(n), dimensions={}
  z = s32[] constant(0)
  zz = s32[4,12] broadcast(z), dimensions={}
  m = s32[] constant(2147483647)
  mm = s32[4,12] broadcast(m), dimensions={}
  i = s32[12] iota(), iota_dimension=0
  ii = s32[4,12] broadcast(i), dimensions={1}
"""
    assert role_of(f"{entry}  ROOT r = pred[4,12] {text}\n") == InputRole(below=COMPARED[text])


def test_counters_are_no_labels() -> None:
    entry = "  a = s32[] parameter(0)\n  n = s32[] constant(10)\n"
    assert role_of(f"{entry}  ROOT r = pred[] compare(a, n), direction=LT\n") == InputRole()


def test_weights_of_products_and_their_data() -> None:
    """The first product that reads a value tells: data of a forward pass are read by backward ones.

    A kernel of 3 x 3 on 5 features makes sums of 45 products.
    """
    entry = """  x = f32[8,20] parameter(0)
  w = f32[20,6] parameter(1)
  i = f32[2,9,9,5] parameter(2)
  k = f32[3,3,5,7] parameter(3)
  d = f32[8,6] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  b = f32[6,20] dot(d, x), lhs_contracting_dims={0}, rhs_contracting_dims={0}
  c = f32[2,9,9,7] convolution(i, k), window={size=3x3 pad=1_1x1_1}, dim_labels=b01f_01io->b01f
  ROOT r = (f32[6,20], f32[2,9,9,7]) tuple(b, c)
"""
    roles = [role_of(entry, number=n) for n in range(4)]
    assert [role.terms for role in roles] == [1, 20, 1, 45]


SIGN_KEPT = {
    "factor of a square": "  b = f32[2] multiply(k, k)\n  c = f32[2] multiply(b, a)\n",
    "added to a square": "  b = f32[2] multiply(k, k)\n  c = f32[2] add(b, a)\n",
    "annotated": '  c = f32[2] custom-call(a), custom_call_target="Sharding"\n',
}


@pytest.mark.parametrize("way", SIGN_KEPT)
def test_second_moments_are_positive(way: str) -> None:
    entry = "  a = f32[2] parameter(0)\n  k = f32[2] parameter(1)\n" + SIGN_KEPT[way]
    assert role_of(f"{entry}  ROOT r = f32[2] sqrt(c)\n") == InputRole(positive=True)


@pytest.mark.parametrize(("exponent", "positive"), [("2", False), ("0.5", True)])
def test_bases_of_broken_powers_are_positive(exponent: str, positive: bool) -> None:
    entry = f"  a = f32[] parameter(0)\n  e = f32[] constant({exponent})\n"
    assert role_of(f"{entry}  ROOT r = f32[] power(a, e)\n") == InputRole(positive=positive)
