"""Invalid texts: written by hand, one for each kind of mistake, and made by mutating valid rows.

`UNPARSABLE` is meant to be refused by XLA's parser, `UNVERIFIABLE` by its HLO verifier. What is
expected of each comes from XLA when the texts are used, not from here.
"""

import re
from collections.abc import Iterator
from dataclasses import replace

from tests.support.texts_ops import all_rows
from tests.support.texts_rows import COMPUTATIONS, Row
from tests.support.texts_valid import sections


def _entry(*bodies: str) -> list[str]:
    return [f"HloModule m\n\nENTRY e {{\n  {body}\n}}\n" for body in bodies]


P = "p = f32[4] parameter(0)\n  "
Q = P + "q = f32[4] parameter(1)\n  "

UNPARSABLE = [
    "", " ", "\n", "HloModule", "HloModule m", "HloModule m,", "HloModule m\n\n", "garbage",
    "HloModule \"m\"\nENTRY e { ROOT p = f32[] parameter(0) }",
    "HloModule a/b\nENTRY e { ROOT p = f32[] parameter(0) }",
    "HloModule m ENTRY", "HloModule m ENTRY e", "HloModule m ENTRY e {", "HloModule m ENTRY e { }",
    "HloModule m ENTRY e { ROOT p = f32[] parameter(0)", "ENTRY { ROOT p = f32[] parameter(0) }",
    "HloModule m ENTRY e { ROOT p = f32[] parameter(0) } }",
    "HloModule m ENTRY e { ROOT p = f32[] parameter(0) } trailing",
    "HloModule m ENTRY e { ROOT p = f32[] parameter(0) } HloModule n",
    "HloModule m ENTRY e { ROOT p = f32[] parameter(0) } ENTRY g { ROOT p = f32[] parameter(0) }",
    "HloModule m f { ROOT p = f32[] parameter(0) } f { ROOT p = f32[] parameter(0) }",
    "\ufeffHloModule m ENTRY e { ROOT p = f32[] parameter(0) }",
    "HloModule m\x00 ENTRY e { ROOT p = f32[] parameter(0) }",
    "HloModule m ENTRY e { ROOT p = f32[] parameter(0) } /* open",
    "HloModule m ENTRY \u00e9 { ROOT p = f32[] parameter(0) }",
    "# HloModule m ENTRY e { ROOT p = f32[] parameter(0) }",
    "hlomodule m ENTRY e { ROOT p = f32[] parameter(0) }",
    "HloModule m ENTRY e (p : f32[]) -> f32[] { ROOT p = f32[] parameter(0) }",
    "HloModule m ENTRY e (p: f32[]) -> { ROOT p = f32[] parameter(0) }",
    "HloModule m ENTRY e (p: f32[]) { ROOT p = f32[] parameter(0) }",
    "HloModule m ENTRY e (p: f32[], ) -> f32[] { ROOT p = f32[] parameter(0) }",
    "HloModule m ENTRY e (p: f32[4]) -> f32[5] { ROOT p = f32[4] parameter(0) }",
    "HloModule m ENTRY e (p: f32[4]) -> s32[4] { ROOT p = f32[4] parameter(0) }",
    "HloModule m ENTRY e (p: f32[4]) -> (f32[4]) { ROOT p = f32[4] parameter(0) }",
    "HloModule m ENTRY e { ROOT p = f32[] parameter(0) }, execution_thread=main",
    "HloModule m ENTRY e { ROOT p = f32[] parameter(0) }, other=\"main\"",
    *(f"HloModule m, {attribute}\nENTRY e {{ p = f32[4] parameter(0) q = f32[4] parameter(1) ROOT n = f32[4] add(p, q) }}"
      for attribute in (
        "is_scheduled", "is_scheduled=", "is_scheduled=1", "is_scheduled=yes", "is_scheduled=true is_scheduled=true",
        "is_scheduled=true, is_scheduled=true", "replica_count=x", "replica_count=1.5", "foo=1", "foo",
        "num_partitions=", "alias_passthrough_params=2",
        "input_output_alias={", "input_output_alias={ {}: 0 }", "input_output_alias={ {0}: (0, {}) }",
        "input_output_alias={ {}: (0, {}, sometimes) }", "input_output_alias={ {}: (x, {}) }", "input_output_alias={ {} (0, {}) }",
        "input_output_alias={ {}: (0) }", "input_output_alias={ {}: (0, {}) , }",
        "buffer_donor={ 0 }", "buffer_donor={ (0) }", "buffer_donor={ (x, {}) }",
        "entry_computation_layout={}", "entry_computation_layout={(f32[4])}", "entry_computation_layout={f32[4]->f32[4]}",
        "entry_computation_layout={(f32[4]{0})->}", "entry_computation_layout={(f32[4]{1,0})->f32[4]}",
        "frontend_attributes={a}", "frontend_attributes={a=b}", "frontend_attributes={a=\"b\"", "frontend_attributes=\"x\"",
        "allow_spmd_sharding_propagation_to_output={yes}", "allow_spmd_sharding_propagation_to_output=1",
        "origin_recovery_table={ {\"a\"} }",
    )),
    *_entry(
        "ROOT p f32[] parameter(0)", "ROOT p = parameter(0)", "ROOT = f32[] parameter(0)", "p == f32[] parameter(0)",
        "ROOT p = f32[] parameter", "ROOT p = f32[] parameter(", "ROOT p = f32[] parameter()", "ROOT p = f32[] parameter(x)",
        "ROOT p = f32[] parameter(-1)", "ROOT p = f32[] parameter(1.5)", "ROOT p = f32[] parameter(0, 1)", "ROOT p = f32[] parameter(1)",
        "ROOT p = f32[] parameter(0),", "ROOT p = f32[] parameter(0);", "ROOT p = f32[] parameter(99999999999999999999)",
        "ROOT p= f32[] parameter(0)", "ROOT 1p = f32[] parameter(0)", "ROOT %f32 = f32[] parameter(0)", "ROOT %s1 = f32[] parameter(0)",
        "ROOT __p = f32[] parameter(0)", "ROOT f32 = f32[] parameter(0)", "ROOT true = f32[] parameter(0)", "ROOT p-\u00e9 = f32[] parameter(0)",
        "a = f32[] parameter(0)\n b = f32[] parameter(0)\n ROOT c = f32[] add(a, b)", "a = f32[] parameter(0)\n b = f32[] parameter(2)\n ROOT c = f32[] add(a, b)",
        "p = f32[] parameter(0)\n ROOT p = f32[] negate(p)", "ROOT p = f32[] parameter(0)\n ROOT q = f32[] negate(p)",
        "ROOT p = f33[] parameter(0)", "ROOT p = F32[] parameter(0)", "ROOT p = float[] parameter(0)", "ROOT p = f32 parameter(0)",
        "ROOT p = f32[ parameter(0)", "ROOT p = f32[4 parameter(0)", "ROOT p = f32[4,] parameter(0)", "ROOT p = f32[,4] parameter(0)",
        "ROOT p = f32[-1] parameter(0)", "ROOT p = f32[a] parameter(0)", "ROOT p = f32[1.5] parameter(0)", "ROOT p = f32[4x4] parameter(0)",
        "ROOT p = f32[>=4] parameter(0)", "ROOT p = f32[<4] parameter(0)", "ROOT p = f32[4]{1,0} parameter(0)", "ROOT p = f32[4,4]{0} parameter(0)",
        "ROOT p = f32[4]{x} parameter(0)", "ROOT p = f32[4]{0 parameter(0)", "ROOT p = f32[4]{} parameter(0)", "ROOT p = f32[4]{0:Q(1)} parameter(0)",
        "ROOT p = f32[4]{0:T} parameter(0)", "ROOT p = f32[4]{0:T(} parameter(0)", "ROOT p = f32[4]{0:S(x)} parameter(0)", "ROOT p = f32[4]{0:S(5)T(8)} parameter(0)",
        "ROOT p = f32[4]{0:T()} parameter(0)", "ROOT p = f32[4]{0:E(x)} parameter(0)", "ROOT p = f32[4]{0:#(q7)} parameter(0)",
        "ROOT p = (f32[4] parameter(0)", "ROOT p = (f32[4],) parameter(0)", "ROOT p = (,f32[4]) parameter(0)", "ROOT p = (f32[4] f32[4]) parameter(0)",
        "ROOT p = b(f32[4]) negate(", "ROOT p = b((f32[4])) parameter(0)", "ROOT p = tuple[] parameter(0)", "ROOT p = token[2] parameter(0)",
        "ROOT p = f32[99999999999999999999] parameter(0)", "ROOT p = f32[9223372036854775807,9223372036854775807] parameter(0)",
        P + "ROOT n = f32[4] negat(p)", P + "ROOT n = f32[4] NEGATE(p)", P + "ROOT n = f32[4] negate(q)", P + "ROOT n = f32[4] negate(%)",
        P + "ROOT n = f32[4] negate(p", P + "ROOT n = f32[4] negate p", P + "ROOT n = f32[4] negate()", P + "ROOT n = f32[4] negate(p, p)",
        P + "ROOT n = f32[4] negate(f32[5] p)", P + "ROOT n = f32[4] negate(s32[4] p)", P + "ROOT n = f32[4] negate(p p)", P + "ROOT n = f32[4] negate(n)",
        P + "ROOT n = f32[4] negate(later)\n later = f32[4] negate(p)", P + "ROOT n = f32[4] negate(p) foo=1", P + "ROOT n = f32[4] negate(p), foo=1",
        P + "ROOT n = f32[4] negate(p), dimensions={0}", P + "ROOT n = f32[4] negate(p), metadata", P + "ROOT n = f32[4] negate(p), metadata=", P + "ROOT n = f32[4] negate(p), metadata={op_name=x}",
        P + "ROOT n = f32[4] negate(p), metadata={op_nam=\"x\"}", P + "ROOT n = f32[4] negate(p), metadata={op_name=\"x\"", P + "ROOT n = f32[4] negate(p), metadata={source_line=\"3\"}", P + "ROOT n = f32[4] negate(p), metadata={op_name=\"x\" op_name=\"y\"}",
        P + "ROOT n = f32[4] negate(p), metadata={}, metadata={}", P + "ROOT n = f32[4] negate(p), metadata={op_name=\"\\q\"}", P + "ROOT n = f32[4] negate(p), metadata={op_name=\"open}",
        P + "ROOT n = f32[4] negate(p), sharding={}", P + "ROOT n = f32[4] negate(p), sharding={replicatd}", P + "ROOT n = f32[4] negate(p), sharding=replicated", P + "ROOT n = f32[4] negate(p), sharding={devices=[2]0}",
        P + "ROOT n = f32[4] negate(p), sharding={devices=[1]0}", P + "ROOT n = f32[4] negate(p), sharding={devices=[2]}", P + "ROOT n = f32[4] negate(p), sharding={devices=[2]<=[2]T}", P + "ROOT n = f32[4] negate(p), sharding={devices=2 0,1}",
        P + "ROOT n = f32[4] negate(p), sharding={maximal}", P + "ROOT n = f32[4] negate(p), sharding={maximal device=x}", P + "ROOT n = f32[4] negate(p), sharding={replicated, manual}", P + "ROOT n = f32[4] negate(p), sharding={devices=[2]<=[2] last_tile_dims={foo}}",
        P + "ROOT n = f32[4] negate(p), frontend_attributes={a}", P + "ROOT n = f32[4] negate(p), frontend_attributes={a=1}", P + "ROOT n = f32[4] negate(p), frontend_attributes={=\"a\"}", P + "ROOT n = f32[4] negate(p), frontend_attributes={a=\"1\" b=\"2\"}",
        P + "ROOT n = f32[4] negate(p), backend_config=3", P + "ROOT n = f32[4] negate(p), backend_config={", P + "ROOT n = f32[4] negate(p), backend_config=\"open", P + "ROOT n = f32[4] negate(p), backend_config={\"a\"",
        P + "ROOT n = f32[4] negate(p), control-predecessors={}", P + "ROOT n = f32[4] negate(p), control-predecessors={q}", P + "ROOT n = f32[4] negate(p), control-predecessors=p", P + "ROOT n = f32[4] negate(p), control-predecessors={n}",
        P + "ROOT n = f32[4] negate(p), statistics={a}", P + "ROOT n = f32[4] negate(p), statistics={visualizing_index=9,a=1}", P + "ROOT n = f32[4] negate(p), origin={a}", P + "ROOT n = f32[4] negate(p), parameter_replication={true}",
        P + "ROOT n = f32[4] negate(p), result_accuracy={mode=highest}", P + "ROOT n = f32[4] exponential(p), result_accuracy={mode=best}", P + "ROOT n = f32[4] exponential(p), result_accuracy={tolerance={atol=x}}",
        "ROOT p = f32[4] parameter(0), parameter_replication={true,false}", "ROOT p = f32[4] parameter(0), parameter_replication={1}",
        "ROOT c = f32[] constant()", "ROOT c = f32[] constant({1})", "ROOT c = f32[] constant(x)", "ROOT c = f32[] constant(Inf)", "ROOT c = f32[] constant(+1)", "ROOT c = f32[] constant(.5)", "ROOT c = f32[] constant(0x10)", "ROOT c = f32[] constant(1e)",
        "ROOT c = f32[] constant(1 2)", "ROOT c = f32[] constant(1, 2)", "ROOT c = f32[2] constant({1})", "ROOT c = f32[2] constant({1, 2, 3})", "ROOT c = f32[2] constant({{1, 2}})", "ROOT c = f32[2,2] constant({1, 2, 3, 4})", "ROOT c = f32[2,2] constant({{1, 2}, {3}})",
        "ROOT c = f32[2,2] constant({{1, 2}})", "ROOT c = f32[2] constant({1, 2)", "ROOT c = f32[2] constant({1, 2}", "ROOT c = s32[] constant(1.5)", "ROOT c = s32[] constant(true)", "ROOT c = s8[] constant(128)", "ROOT c = s8[] constant(-129)", "ROOT c = u8[] constant(256)", "ROOT c = u8[] constant(-1)",
        "ROOT c = s4[] constant(8)", "ROOT c = u4[] constant(16)", "ROOT c = s32[] constant(2147483648)", "ROOT c = s64[] constant(99999999999999999999)", "ROOT c = u64[] constant(18446744073709551616)", "ROOT c = f16[] constant(65520)", "ROOT c = bf16[] constant(3.4e38)", "ROOT c = f32[] constant(3.5e38)", "ROOT c = f32[] constant(1e999)",
        "ROOT c = f8e4m3fn[] constant(1000)", "ROOT c = f8e5m2[] constant(1e6)", "ROOT c = f4e2m1fn[] constant(7)", "ROOT c = pred[] constant(maybe)", "ROOT c = pred[] constant(1.5)", "ROOT c = c64[] constant(1)", "ROOT c = c64[] constant((1))", "ROOT c = c64[] constant((1, 2, 3))", "ROOT c = c64[] constant((1, 2)",
        "ROOT c = (f32[], s32[]) constant((1))", "ROOT c = (f32[], s32[]) constant({1, 2})", "ROOT c = (f32[2]) constant({...})", "ROOT c = f32[9] constant({1, ...})", "ROOT c = token[] constant(1)", "ROOT c = f32[2] constant({inf, infinity})", "ROOT c = f32[] constant(nan(0x))", "ROOT c = f32[] constant(nan(12))",
        "ROOT c = f32[] constant(1), value=2", "ROOT i = s32[4] iota()", "ROOT i = s32[4] iota(), iota_dimension=x", "ROOT i = iota(), iota_dimension=0", "ROOT i = s32[4] iota(), iota_dimension={0}",
        P + "ROOT r = reshape(p)", P + "ROOT c = convert(p)", P + "ROOT s = slice(p), slice={[0:2]}", P + "ROOT b = bitcast(p)", P + "ROOT b = bitcast-convert(p)",
        P + "ROOT s = f32[2] slice(p)", P + "ROOT s = f32[2] slice(p), slice={0:2}", P + "ROOT s = f32[2] slice(p), slice={[0]}", P + "ROOT s = f32[2] slice(p), slice={[0:2:1:1]}", P + "ROOT s = f32[2] slice(p), slice={[0:2}", P + "ROOT s = f32[2] slice(p), slice={[a:b]}",
        P + "ROOT s = f32[2] slice(p), slice={[0:2]}, slice={[0:2]}", P + "ROOT s = f32[2] slice(p), slice={[0:2], }",
        P + "ROOT b = f32[2,4] broadcast(p)", P + "ROOT b = f32[2,4] broadcast(p), dimensions=1", P + "ROOT b = f32[2,4] broadcast(p), dimensions={a}", P + "ROOT b = f32[2,4] broadcast(p), dimensions={1", P + "ROOT t = f32[4] transpose(p)", P + "ROOT t = f32[4] reverse(p)",
        Q + "ROOT c = f32[8] concatenate(p, q)", Q + "ROOT c = f32[8] concatenate(p, q), dimensions={0,1}", Q + "ROOT c = f32[8] concatenate(p, q), dimensions={}", Q + "ROOT c = pred[4] compare(p, q)", Q + "ROOT c = pred[4] compare(p, q), direction=lt", Q + "ROOT c = pred[4] compare(p, q), direction=XX",
        Q + "ROOT c = pred[4] compare(p, q), direction=LT, type=float", Q + "ROOT a = add(p, q), extra", Q + "ROOT a = (f32[4]) tuple(p, q)", Q + "ROOT a = (f32[4], f32[4], f32[4]) tuple(p, q)", Q + "t = (f32[4], f32[4]) tuple(p, q)\n ROOT g = get-tuple-element(t), index=2",
        Q + "t = (f32[4], f32[4]) tuple(p, q)\n ROOT g = f32[4] get-tuple-element(t)", Q + "ROOT g = get-tuple-element(p), index=0", Q + "ROOT d = f32[] dot(p, q), lhs_contracting_dims=0", Q + "ROOT d = f32[] dot(p, q), lhs_contracting_dims={0}, rhs_contracting_dims={0}, operand_precision={best}",
        Q + "ROOT d = f32[] dot(p, q), lhs_contracting_dims={0}, rhs_contracting_dims={0}, operand_precision=highest", Q + "ROOT d = f32[] dot(p, q), lhs_contracting_dims={0}, rhs_contracting_dims={0}, algorithm=dot_magic", Q + "ROOT d = f32[] dot(p, q), lhs_contracting_dims={0}, rhs_contracting_dims={0}, operand_precision={high,high,high}",
        P + "z = f32[] constant(0)\n ROOT d = f32[6] pad(p, z)", P + "z = f32[] constant(0)\n ROOT d = f32[6] pad(p, z), padding=1", P + "z = f32[] constant(0)\n ROOT d = f32[6] pad(p, z), padding=1_1_1_1", P + "z = f32[] constant(0)\n ROOT d = f32[6] pad(p, z), padding={1_1}", P + "z = f32[] constant(0)\n ROOT d = f32[6] pad(p, z), padding=1_a",
        P + "z = f32[] constant(0)\n ROOT d = f32[] reduce(p, z), dimensions={0}", P + "z = f32[] constant(0)\n ROOT d = f32[] reduce(p, z), dimensions={0}, to_apply=missing", P + "z = f32[] constant(0)\n ROOT d = f32[] reduce(p, z), dimensions={0}, to_apply={", P + "z = f32[] constant(0)\n ROOT d = f32[] reduce(p, z), dimensions={0}, to_apply=e",
        P + "ROOT c = f32[4] call(p)", P + "ROOT c = f32[4] call(p), to_apply=", P + "ROOT c = f32[4] call(p), to_apply={}", P + "ROOT c = f32[4] call(p), to_apply=\"e\"", P + "ROOT c = f32[4] call(p), calls=e", P + "ROOT f = f32[4] fusion(p), kind=kLoop", P + "ROOT f = f32[4] fusion(p), kind=kOther, calls={x = f32[4] parameter(0)}",
        P + "ROOT f = f32[4] fusion(p), calls={x = f32[4] parameter(0)}", P + "ROOT f = f32[4] fusion(p), kind=loop, calls={x = f32[4] parameter(0)}", P + "ROOT c = f32[4] custom-call(p)", P + "ROOT c = f32[4] custom-call(p), custom_call_target=foo", P + "ROOT c = f32[4] custom-call(p), custom_call_target=\"foo\", api_version=V9",
        P + "ROOT c = f32[4] custom-call(p), custom_call_target=\"foo\", schedule=LATE", P + "ROOT c = f32[4] custom-call(p), custom_call_target=\"foo\", operand_layout_constraints={}", P + "ROOT c = f32[4] custom-call(p), custom_call_target=\"foo\", operand_layout_constraints={f32[5]{0}}", P + "ROOT c = f32[4] custom-call(p), custom_call_target=\"foo\", operand_layout_constraints={f32[4]}",
        P + "ROOT c = f32[4] custom-call(p), custom_call_target=\"foo\", literal={1}", P + "ROOT c = f32[4] custom-call(p), custom_call_target=\"foo\", dim_labels=b01f", P + "ROOT c = f32[4] custom-call(p), custom_call_target=\"foo\", output_to_operand_aliasing={0: 1}", P + "ROOT c = f32[4] custom-call(p), custom_call_target=\"foo\", has_side_effect=true",
        P + "ROOT s = f32[4] sort(p), dimensions={0}", P + "ROOT s = f32[4] sort(p), to_apply=x", P + "ROOT t = (f32[2], s32[2]) topk(p)", P + "ROOT t = (f32[2], s32[2]) topk(p), k=2.5", P + "ROOT f = c64[4] fft(p), fft_type=fft, fft_length={4}", P + "ROOT f = c64[3] fft(p), fft_type=RFFT", P + "ROOT r = f32[4] reduce-precision(p), exponent_bits=5",
        "a = f32[] parameter(0)\n b = f32[] parameter(1)\n ROOT r = f32[4] rng(a, b)", "a = f32[] parameter(0)\n b = f32[] parameter(1)\n ROOT r = f32[4] rng(a, b), distribution=uniform", "a = u64[2] parameter(0)\n ROOT r = (u64[2], u32[4]) rng-bit-generator(a), algorithm=rng_other", "ROOT r = u64[2] rng-get-and-update-state()",
        "a = f32[4,4] parameter(0)\n ROOT r = f32[4,4] triangular-solve(a, a), transpose_a=MAYBE", "a = f32[4,4] parameter(0)\n ROOT r = f32[4,4] cholesky(a), lower=1", "i = u32[] partition-id(), x=1\n ROOT r = u32[] negate(i)",
        P + "ROOT a = f32[4] all-reduce(p), replica_groups={{0,1}}", P + "ROOT a = f32[8] all-gather(p), replica_groups={{0,1}}", P + "ROOT a = f32[8] all-gather(p), replica_groups={0,1}, dimensions={0}", P + "ROOT a = f32[8] all-gather(p), replica_groups=[2]<=[2], dimensions={0}", P + "ROOT a = f32[8] all-gather(p), replica_groups=[1,2]<=[3], dimensions={0}",
        P + "ROOT a = f32[8] all-gather(p), replica_groups={{0,1}}, dimensions={0}, use_global_device_ids=true", P + "ROOT a = f32[4] collective-permute(p)", P + "ROOT a = f32[4] collective-permute(p), source_target_pairs={{0}}", P + "ROOT a = f32[4] collective-permute(p), source_target_pairs={{0,1,2}}", P + "ROOT a = f32[4] collective-permute(p), source_target_pairs={0,1}",
        P + "ROOT a = f32[4] all-reduce-update(p)", P + "ROOT a = f32[4] negate-start(p)", P + "ROOT a = f32[4] negate-finish(p)", P + "ROOT a = f32[4] async-done(p)", P + "ROOT a = ((f32[4]), f32[4], s32[]) async-start(p)", P + "ROOT a = f32[4] copy-done(p), foo=1",
        P + "ROOT d = f32[4] domain(p)", P + "ROOT d = f32[4] domain(p), domain={kind=\"other\", entry={}, exit={}}", P + "ROOT d = f32[4] domain(p), domain={kind=\"sharding\", entry={replicated}}",
        "ROOT w = s32[] while(w), condition=c, body=b", "p = s32[] parameter(0)\n ROOT w = s32[] while(p)", "p = s32[] parameter(0)\n ROOT w = s32[] while(p), condition=c", "p = f32[4] parameter(0)\n ROOT w = f32[4] conditional(p, p, p), branch_computations={}",
        "p = s32[] parameter(0)\n ROOT w = s32[] conditional(p, p), branch_computations=x", "p = pred[] parameter(0)\n ROOT w = pred[] conditional(p, p, p), true_computation=a", "p = f32[1,4,4,3] parameter(0)\n q = f32[3,3,3,8] parameter(1)\n ROOT w = f32[1,2,2,8] convolution(p, q), window={size=3x3}",
        *(f"p = f32[1,4,4,3] parameter(0)\n q = f32[3,3,3,8] parameter(1)\n ROOT w = f32[1,2,2,8] convolution(p, q), {a}" for a in (
            "window={size=3x3}, dim_labels=b01f_01io", "window={size=3x3}, dim_labels=b01f_01io->b01", "window={size=3x3}, dim_labels=b01f_01oo->b01f", "window={size=3x3}, dim_labels=bb1f_01io->b01f", "window={size=3x3}, dim_labels=b02f_01io->b01f",
            "window={size=3x3, stride=1x1}, dim_labels=b01f_01io->b01f", "window={size=3x3 stride=1}, dim_labels=b01f_01io->b01f", "window={size=3x3 pad=1x1}, dim_labels=b01f_01io->b01f", "window={size=3x3 foo=1x1}, dim_labels=b01f_01io->b01f", "window={size=3x3 pad=0_0}, dim_labels=b01f_01io->b01f",
            "window={size=3xx3}, dim_labels=b01f_01io->b01f", "window=3x3, dim_labels=b01f_01io->b01f", "window={size=3x3}, dim_labels=b01f_01io->b01f, feature_group_count=x", "window={size=3x3}, dim_labels=b01f_01io->b01f, convolution_kind=FPROP", "window={stride=1x1}, dim_labels=b01f_01io->b01f",
            "window={size=3x3 size=3x3}, dim_labels=b01f_01io->b01f", "window={size=0x3}, dim_labels=b01f_01io->b01f")),
    ),
]  # fmt: skip
"""Refused by the parser, nearly all."""

UNVERIFIABLE = sections(r"""
HloModule entry_layout_count, entry_computation_layout={(f32[4]{0}, f32[4]{0})->f32[4]{0}}
ENTRY e { p = f32[4] parameter(0) ROOT n = f32[4] negate(p) }
-----
HloModule entry_layout_shape, entry_computation_layout={(f32[5]{0})->f32[4]{0}}
ENTRY e { p = f32[4] parameter(0) ROOT n = f32[4] negate(p) }
-----
HloModule entry_layout_type, entry_computation_layout={(s32[4]{0})->f32[4]{0}}
ENTRY e { p = f32[4] parameter(0) ROOT n = f32[4] negate(p) }
-----
HloModule entry_layout_result, entry_computation_layout={(f32[4]{0})->f32[5]{0}}
ENTRY e { p = f32[4] parameter(0) ROOT n = f32[4] negate(p) }
-----
HloModule alias_twice, input_output_alias={ {0}: (0, {}), {1}: (0, {}) }
ENTRY e { p = f32[4] parameter(0) n = f32[4] negate(p) ROOT t = (f32[4], f32[4]) tuple(n, n) }
-----
HloModule alias_sizes, input_output_alias={ {}: (0, {}, must-alias) }
ENTRY e { p = f32[5] parameter(0) ROOT n = f32[4] slice(p), slice={[0:4]} }
-----
HloModule alias_missing_parameter, input_output_alias={ {}: (3, {}) }
ENTRY e { p = f32[4] parameter(0) ROOT n = f32[4] negate(p) }
-----
HloModule alias_missing_index, input_output_alias={ {}: (0, {1}) }
ENTRY e { p = f32[4] parameter(0) ROOT n = f32[4] negate(p) }
-----
HloModule donor_missing, buffer_donor={ (2, {}) }
ENTRY e { p = f32[4] parameter(0) ROOT n = f32[4] negate(p) }
-----
HloModule donor_and_alias, input_output_alias={ {}: (0, {}) }, buffer_donor={ (0, {}) }
ENTRY e { p = f32[4] parameter(0) ROOT n = f32[4] negate(p) }
-----
HloModule shared_fused_computation
f { x = f32[4] parameter(0) ROOT y = f32[4] negate(x) }
ENTRY e { p = f32[4] parameter(0) a = f32[4] fusion(p), kind=kLoop, calls=f ROOT b = f32[4] fusion(a), kind=kLoop, calls=f }
-----
HloModule fused_and_called
f { x = f32[4] parameter(0) ROOT y = f32[4] negate(x) }
ENTRY e { p = f32[4] parameter(0) a = f32[4] fusion(p), kind=kLoop, calls=f ROOT b = f32[4] call(a), to_apply=f }
-----
HloModule dead_code_in_fusion
f { x = f32[4] parameter(0) d = f32[4] sine(x) ROOT y = f32[4] negate(x) }
ENTRY e { p = f32[4] parameter(0) ROOT a = f32[4] fusion(p), kind=kLoop, calls=f }
-----
HloModule root_used_in_fusion
f { x = f32[4] parameter(0) ROOT y = f32[4] negate(x) z = f32[4] sine(y) }
ENTRY e { p = f32[4] parameter(0) ROOT a = f32[4] fusion(p), kind=kLoop, calls=f }
-----
HloModule fusion_operand_count
f { x = f32[4] parameter(0) y = f32[4] parameter(1) ROOT z = f32[4] add(x, y) }
ENTRY e { p = f32[4] parameter(0) ROOT a = f32[4] fusion(p), kind=kLoop, calls=f }
-----
HloModule fusion_operand_shape
f { x = f32[5] parameter(0) ROOT z = f32[5] negate(x) }
ENTRY e { p = f32[4] parameter(0) ROOT a = f32[5] fusion(p), kind=kLoop, calls=f }
-----
HloModule fusion_result_shape
f { x = f32[4] parameter(0) ROOT z = f32[4] negate(x) }
ENTRY e { p = f32[4] parameter(0) ROOT a = f32[5] fusion(p), kind=kLoop, calls=f }
-----
HloModule fusion_unused_parameter
f { x = f32[4] parameter(0) y = f32[4] parameter(1) ROOT z = f32[4] negate(x) }
ENTRY e { p = f32[4] parameter(0) ROOT a = f32[4] fusion(p, p), kind=kLoop, calls=f }
-----
HloModule fusion_alias_index
f { x = f32[4] parameter(0) ROOT z = f32[4] negate(x) }
ENTRY e { p = f32[4] parameter(0) ROOT a = f32[4] fusion(p), kind=kLoop, calls=f, output_to_operand_aliasing={{}: (3, {})} }
-----
HloModule fusion_alias_shape
f { x = f32[4] parameter(0) y = f32[2] parameter(1) s = f32[2] slice(x), slice={[0:2]} ROOT z = f32[2] add(s, y) }
ENTRY e { p = f32[4] parameter(0) q = f32[2] parameter(1) ROOT a = f32[2] fusion(p, q), kind=kLoop, calls=f, output_to_operand_aliasing={{}: (0, {})} }
-----
HloModule while_condition_type
c { s = f32[] parameter(0) ROOT r = f32[] negate(s) }
b { s = f32[] parameter(0) ROOT r = f32[] negate(s) }
ENTRY e { p = f32[] parameter(0) ROOT w = f32[] while(p), condition=c, body=b }
-----
HloModule while_condition_vector
c { s = f32[2] parameter(0) ROOT r = pred[2] is-finite(s) }
b { s = f32[2] parameter(0) ROOT r = f32[2] negate(s) }
ENTRY e { p = f32[2] parameter(0) ROOT w = f32[2] while(p), condition=c, body=b }
-----
HloModule while_body_type
c { s = f32[] parameter(0) ROOT r = pred[] is-finite(s) }
b { s = f32[] parameter(0) ROOT r = s32[] convert(s) }
ENTRY e { p = f32[] parameter(0) ROOT w = f32[] while(p), condition=c, body=b }
-----
HloModule while_parameter_count
c { s = f32[] parameter(0) ROOT r = pred[] is-finite(s) }
b { s = f32[] parameter(0) t = f32[] parameter(1) ROOT r = f32[] add(s, t) }
ENTRY e { p = f32[] parameter(0) ROOT w = f32[] while(p), condition=c, body=b }
-----
HloModule while_state
c { s = f32[] parameter(0) ROOT r = pred[] is-finite(s) }
b { s = f32[] parameter(0) ROOT r = f32[] negate(s) }
ENTRY e { p = s32[] parameter(0) ROOT w = s32[] while(p), condition=c, body=b }
-----
HloModule conditional_branch_type
t { x = f32[4] parameter(0) ROOT y = f32[4] negate(x) }
f { x = f32[4] parameter(0) ROOT y = s32[4] convert(x) }
ENTRY e { c = pred[] parameter(0) p = f32[4] parameter(1) ROOT r = f32[4] conditional(c, p, p), true_computation=t, false_computation=f }
-----
HloModule conditional_branch_parameters
t { x = f32[4] parameter(0) ROOT y = f32[4] negate(x) }
f { x = f32[4] parameter(0) z = f32[4] parameter(1) ROOT y = f32[4] add(x, z) }
ENTRY e { c = pred[] parameter(0) p = f32[4] parameter(1) ROOT r = f32[4] conditional(c, p, p), true_computation=t, false_computation=f }
-----
HloModule conditional_operand
t { x = f32[4] parameter(0) ROOT y = f32[4] negate(x) }
f { x = f32[5] parameter(0) ROOT y = f32[4] slice(x), slice={[0:4]} }
ENTRY e { c = pred[] parameter(0) p = f32[4] parameter(1) ROOT r = f32[4] conditional(c, p, p), true_computation=t, false_computation=f }
-----
HloModule conditional_index_type
t { x = f32[4] parameter(0) ROOT y = f32[4] negate(x) }
ENTRY e { c = u32[] parameter(0) p = f32[4] parameter(1) ROOT r = f32[4] conditional(c, p), branch_computations={t} }
-----
HloModule call_result
f { x = f32[4] parameter(0) ROOT y = f32[4] negate(x) }
ENTRY e { p = f32[4] parameter(0) ROOT r = f32[5] call(p), to_apply=f }
-----
HloModule call_arguments
f { x = f32[4] parameter(0) ROOT y = f32[4] negate(x) }
ENTRY e { p = f32[4] parameter(0) ROOT r = f32[4] call(p, p), to_apply=f }
-----
HloModule call_argument_shape
f { x = f32[5] parameter(0) ROOT y = f32[5] negate(x) }
ENTRY e { p = f32[4] parameter(0) ROOT r = f32[5] call(p), to_apply=f }
-----
HloModule send_without_done
ENTRY e { t = token[] after-all() p = f32[4] parameter(0) ROOT s = (f32[4], u32[], token[]) send(p, t), channel_id=1, is_host_transfer=true }
-----
HloModule recv_without_done
ENTRY e { t = token[] after-all() ROOT s = (f32[4], u32[], token[]) recv(t), channel_id=1, is_host_transfer=true }
-----
HloModule done_of_nothing
ENTRY e { p = (f32[4], u32[], token[]) parameter(0) ROOT s = token[] send-done(p), channel_id=1 }
-----
HloModule channel_mismatch
ENTRY e { t = token[] after-all() p = f32[4] parameter(0) s = (f32[4], u32[], token[]) send(p, t), channel_id=1, is_host_transfer=true ROOT d = token[] send-done(s), channel_id=2, is_host_transfer=true }
-----
HloModule host_transfer_mismatch
ENTRY e { t = token[] after-all() p = f32[4] parameter(0) s = (f32[4], u32[], token[]) send(p, t), channel_id=1, is_host_transfer=true ROOT d = token[] send-done(s), channel_id=1 }
-----
HloModule two_dones
ENTRY e { p = f32[4] parameter(0) s = (f32[4], f32[4], u32[]) copy-start(p) d = f32[4] copy-done(s) ROOT x = f32[4] copy-done(s) }
-----
HloModule no_done
ENTRY e { p = f32[4] parameter(0) ROOT s = (f32[4], f32[4], u32[]) copy-start(p) }
-----
HloModule done_of_parameter
ENTRY e { p = (f32[4], f32[4], u32[]) parameter(0) ROOT d = f32[4] copy-done(p) }
-----
HloModule done_through_element
ENTRY e { p = f32[4] parameter(0) s = (f32[4], f32[4], u32[]) copy-start(p) g = f32[4] get-tuple-element(s), index=0 d = f32[4] copy-done(s) ROOT a = f32[4] add(g, d) }
-----
HloModule all_gather_pair_shape, replica_count=2
ENTRY e { p = f32[4] parameter(0) s = (f32[4], f32[9]) all-gather-start(p), replica_groups={{0,1}}, dimensions={0} ROOT d = f32[9] all-gather-done(s) }
-----
HloModule permute_pair_shape, replica_count=2
ENTRY e { p = f32[4] parameter(0) s = (f32[4], f32[5]) collective-permute-start(p), source_target_pairs={{0,1}} ROOT d = f32[5] collective-permute-done(s) }
-----
HloModule reduce_pair_shape, replica_count=2
add { a = f32[] parameter(0) b = f32[] parameter(1) ROOT s = f32[] add(a, b) }
ENTRY e { p = f32[4] parameter(0) s = f32[5] all-reduce-start(p), replica_groups={{0,1}}, to_apply=add ROOT d = f32[5] all-reduce-done(s) }
-----
HloModule async_result_shape
f { x = f32[4] parameter(0) ROOT y = f32[4] negate(x) }
ENTRY e { p = f32[4] parameter(0) s = ((f32[4]), f32[5], s32[]) async-start(p), calls=f ROOT d = f32[5] async-done(s) }
-----
HloModule async_operand_shape
f { x = f32[4] parameter(0) ROOT y = f32[4] negate(x) }
ENTRY e { p = f32[4] parameter(0) s = ((f32[5]), f32[4], s32[]) async-start(p), calls=f ROOT d = f32[4] async-done(s) }
-----
HloModule async_short_tuple
f { x = f32[4] parameter(0) ROOT y = f32[4] negate(x) }
ENTRY e { p = f32[4] parameter(0) s = ((f32[4])) async-start(p), calls=f ROOT d = f32[4] async-done(s) }
-----
HloModule async_thread
f { x = f32[4] parameter(0) ROOT y = f32[4] negate(x) }, execution_thread="other"
ENTRY e { p = f32[4] parameter(0) s = ((f32[4]), f32[4], s32[]) async-start(p), calls=f ROOT d = f32[4] async-done(s) }
-----
HloModule call_across_threads
f { x = f32[4] parameter(0) ROOT y = f32[4] negate(x) }, execution_thread="other"
ENTRY e { p = f32[4] parameter(0) ROOT d = f32[4] call(p), to_apply=f }
-----
HloModule async_two_dones
f { x = f32[4] parameter(0) ROOT y = f32[4] negate(x) }
ENTRY e { p = f32[4] parameter(0) s = ((f32[4]), f32[4], s32[]) async-start(p), calls=f d = f32[4] async-done(s) ROOT x = f32[4] async-done(s) }
-----
HloModule async_shared_computation
f { x = f32[4] parameter(0) ROOT y = f32[4] negate(x) }
ENTRY e { p = f32[4] parameter(0) s = ((f32[4]), f32[4], s32[]) async-start(p), calls=f d = f32[4] async-done(s) t = ((f32[4]), f32[4], s32[]) async-start(d), calls=f ROOT x = f32[4] async-done(t) }
-----
HloModule groups_overlap, replica_count=4
add { a = f32[] parameter(0) b = f32[] parameter(1) ROOT s = f32[] add(a, b) }
ENTRY e { p = f32[4] parameter(0) ROOT r = f32[4] all-reduce(p), replica_groups={{0,1},{1,2}}, to_apply=add }
-----
HloModule groups_incomplete, replica_count=4
add { a = f32[] parameter(0) b = f32[] parameter(1) ROOT s = f32[] add(a, b) }
ENTRY e { p = f32[4] parameter(0) ROOT r = f32[4] all-reduce(p), replica_groups={{0,1}}, to_apply=add }
-----
HloModule groups_out_of_range, replica_count=2
add { a = f32[] parameter(0) b = f32[] parameter(1) ROOT s = f32[] add(a, b) }
ENTRY e { p = f32[4] parameter(0) ROOT r = f32[4] all-reduce(p), replica_groups={{0,5}}, to_apply=add }
-----
HloModule groups_negative, replica_count=2
add { a = f32[] parameter(0) b = f32[] parameter(1) ROOT s = f32[] add(a, b) }
ENTRY e { p = f32[4] parameter(0) ROOT r = f32[4] all-reduce(p), replica_groups={{0,-1}}, to_apply=add }
-----
HloModule groups_unequal, replica_count=3
ENTRY e { p = f32[4] parameter(0) ROOT r = f32[8] all-gather(p), replica_groups={{0,1},{2}}, dimensions={0} }
-----
HloModule groups_empty_member, replica_count=2
ENTRY e { p = f32[4] parameter(0) ROOT r = f32[8] all-gather(p), replica_groups={{0,1},{}}, dimensions={0} }
-----
HloModule all_reduce_channel_zero, replica_count=2
add { a = f32[] parameter(0) b = f32[] parameter(1) ROOT s = f32[] add(a, b) }
ENTRY e { p = f32[4] parameter(0) ROOT r = f32[4] all-reduce(p), channel_id=0, replica_groups={{0,1}}, to_apply=add }
-----
HloModule all_reduce_channel_negative, replica_count=2
add { a = f32[] parameter(0) b = f32[] parameter(1) ROOT s = f32[] add(a, b) }
ENTRY e { p = f32[4] parameter(0) ROOT r = f32[4] all-reduce(p), channel_id=-3, replica_groups={{0,1}}, to_apply=add }
-----
HloModule all_reduce_reducer, replica_count=2
f { a = f32[] parameter(0) ROOT s = f32[] negate(a) }
ENTRY e { p = f32[4] parameter(0) ROOT r = f32[4] all-reduce(p), replica_groups={{0,1}}, to_apply=f }
-----
HloModule all_to_all_split, replica_count=2
ENTRY e { p = f32[5] parameter(0) ROOT r = f32[5] all-to-all(p), replica_groups={{0,1}}, dimensions={0} }
-----
HloModule all_to_all_count, replica_count=2
ENTRY e { p = f32[5] parameter(0) ROOT r = (f32[5], f32[5], f32[5]) all-to-all(p, p, p), replica_groups={{0,1}} }
-----
HloModule permute_duplicate_target, replica_count=3
ENTRY e { p = f32[4] parameter(0) ROOT r = f32[4] collective-permute(p), source_target_pairs={{0,1},{2,1}} }
-----
HloModule permute_duplicate_source, replica_count=3
ENTRY e { p = f32[4] parameter(0) ROOT r = f32[4] collective-permute(p), source_target_pairs={{0,1},{0,2}} }
-----
HloModule permute_out_of_range, replica_count=2
ENTRY e { p = f32[4] parameter(0) ROOT r = f32[4] collective-permute(p), source_target_pairs={{0,7}} }
-----
HloModule permute_negative, replica_count=2
ENTRY e { p = f32[4] parameter(0) ROOT r = f32[4] collective-permute(p), source_target_pairs={{0,-1}} }
-----
HloModule scatter_size, replica_count=2
add { a = f32[] parameter(0) b = f32[] parameter(1) ROOT s = f32[] add(a, b) }
ENTRY e { p = f32[5] parameter(0) ROOT r = f32[2] reduce-scatter(p), replica_groups={{0,1}}, dimensions={0}, to_apply=add }
-----
HloModule sharding_rank
ENTRY e { p = f32[4] parameter(0) ROOT n = f32[4] negate(p), sharding={devices=[2,2]0,1,2,3} }
-----
HloModule sharding_device, num_partitions=2
ENTRY e { p = f32[4] parameter(0) ROOT n = f32[4] negate(p), sharding={devices=[2]0,7} }
-----
HloModule sharding_maximal, num_partitions=2
ENTRY e { p = f32[4] parameter(0) ROOT n = f32[4] negate(p), sharding={maximal device=9} }
-----
HloModule sharding_product
ENTRY e { p = f32[4] parameter(0) ROOT n = f32[4] negate(p), sharding={devices=[4]0,1} }
-----
HloModule sharding_duplicates
ENTRY e { p = f32[4] parameter(0) ROOT n = f32[4] negate(p), sharding={devices=[2]1,1} }
-----
HloModule sharding_tuple_leaves
ENTRY e { p = (f32[4], s32[]) parameter(0) ROOT n = (f32[4], s32[]) opt-barrier(p), sharding={{replicated}} }
-----
HloModule sharding_tuple_on_array
ENTRY e { p = f32[4] parameter(0) ROOT n = f32[4] negate(p), sharding={{replicated}, {replicated}} }
-----
HloModule schedule_thread, is_scheduled=true
f { x = f32[4] parameter(0) ROOT y = f32[4] negate(x) }
ENTRY e { p = f32[4] parameter(0) b = f32[4] sine(p) ROOT r = f32[4] call(b), to_apply=f, control-predecessors={p} }
-----
HloModule fused_control
f { x = f32[4] parameter(0) a = f32[4] sine(x) ROOT y = f32[4] add(x, a), control-predecessors={a} }
ENTRY e { p = f32[4] parameter(0) ROOT r = f32[4] fusion(p), kind=kLoop, calls=f }
-----
HloModule implicit_broadcast
ENTRY e { p = f32[4] parameter(0) q = f32[] parameter(1) ROOT r = f32[4] add(p, q) }
-----
HloModule implicit_stretch
ENTRY e { p = f32[2,4] parameter(0) q = f32[1,4] parameter(1) ROOT r = f32[2,4] multiply(p, q) }
-----
HloModule mixed_precision
ENTRY e { p = f32[4] parameter(0) q = bf16[4] parameter(1) ROOT r = f32[4] add(p, q) }
-----
HloModule mixed_result
ENTRY e { p = bf16[4] parameter(0) ROOT r = f32[4] negate(p) }
-----
HloModule compare_signed_floats
ENTRY e { p = f32[4] parameter(0) ROOT r = pred[4] compare(p, p), direction=LT, type=SIGNED }
-----
HloModule compare_float_integers
ENTRY e { p = s32[4] parameter(0) ROOT r = pred[4] compare(p, p), direction=LT, type=FLOAT }
-----
HloModule compare_unsigned_signed
ENTRY e { p = s32[4] parameter(0) ROOT r = pred[4] compare(p, p), direction=LT, type=UNSIGNED }
-----
HloModule tuple_of_wrong_type
ENTRY e { p = f32[4] parameter(0) ROOT r = (s32[4]) tuple(p) }
-----
HloModule element_of_wrong_type
ENTRY e { p = (f32[4], s32[]) parameter(0) ROOT r = f32[4] get-tuple-element(p), index=1 }
-----
HloModule element_out_of_range
ENTRY e { p = (f32[4], s32[]) parameter(0) ROOT r = f32[4] get-tuple-element(p), index=2 }
-----
HloModule element_negative
ENTRY e { p = (f32[4], s32[]) parameter(0) ROOT r = f32[4] get-tuple-element(p), index=-1 }
-----
HloModule unordered_computation
ENTRY e { p = f32[3] parameter(0) ROOT r = f32[2,3] broadcast(p), dimensions={0} }
-----
HloModule negative_stride
ENTRY e { p = f32[4] parameter(0) ROOT r = f32[4] slice(p), slice={[0:4:-1]} }
-----
HloModule backwards_slice
ENTRY e { p = f32[4] parameter(0) ROOT r = f32[2] slice(p), slice={[3:1]} }
-----
HloModule add_dependency_token
ENTRY e { p = f32[4] parameter(0) ROOT r = f32[4] add-dependency(p, p) }
-----
HloModule after_all_of_array
ENTRY e { p = f32[4] parameter(0) ROOT r = token[] after-all(p) }
-----
HloModule token_arithmetic
ENTRY e { t = token[] after-all() ROOT r = token[] negate(t) }
-----
HloModule infeed_layout
ENTRY e { t = token[] after-all() ROOT r = f32[4] infeed(t) }
-----
HloModule outfeed_shape
ENTRY e { t = token[] after-all() p = f32[4] parameter(0) ROOT r = token[] outfeed(p, t), outfeed_shape=f32[5]{0} }
-----
HloModule wrong_known_trip_count
c { s = f32[] parameter(0) ROOT r = pred[] is-finite(s) }
b { s = f32[] parameter(0) ROOT r = f32[] negate(s) }
ENTRY e { p = f32[] parameter(0) ROOT w = f32[] while(p), condition=c, body=b, backend_config={"known_trip_count":{"n":"x"}} }
""")
"""Parsed, and refused by the verifier, nearly all."""


_INTEGER = re.compile(r"(?<![\w.])-?\d+(?![\w.])")
_SHAPE = re.compile(r"\b(pred|[subfc]\d+|bf16)\[([\d,]*)\]")


def _retyped(shape: str) -> str:
    """Return a shape with the first element type changed."""
    return _SHAPE.sub(lambda m: f"{'s32' if m[1] != 's32' else 'f32'}[{m[2]}]", shape, count=1)


def _resized(shape: str) -> str:
    """Return a shape with the last size of its first array changed, or a scalar made a vector."""
    return _SHAPE.sub(
        lambda m: f"{m[1]}[{','.join([*m[2].split(',')[:-1], '7'])}]" if m[2] else f"{m[1]}[7]",
        shape, count=1,
    )  # fmt: skip


def _ranked(shape: str) -> str:
    """Return a shape with one dimension more."""
    return _SHAPE.sub(lambda m: f"{m[1]}[{m[2] + ',' if m[2] else ''}2]", shape, count=1)


def _plain(shape: str) -> str:
    return re.sub(r"\{[^}]*\}", "", shape)


def mutations(row: Row) -> Iterator[tuple[str, str]]:
    """Yield (kind of mutation, text) of a row: shapes, operands, attributes, computations."""
    for kind, change in (("type", _retyped), ("size", _resized), ("rank", _ranked)):
        yield f"result {kind}", replace(row, shape=change(_plain(row.shape))).text()
        for at, operand in enumerate(row.operands):
            changed = (*row.operands[:at], change(_plain(operand)), *row.operands[at + 1 :])
            yield f"operand {kind}", replace(row, operands=changed).text()
    yield "result tuple", replace(row, shape=f"({row.shape})").text()
    if row.operands:
        yield "operand missing", replace(row, operands=row.operands[:-1]).text()
        yield "operand extra", replace(row, operands=(*row.operands, row.operands[-1])).text()
        tupled = (f"({row.operands[0]})", *row.operands[1:])
        yield "operand tuple", replace(row, operands=tupled).text()
    yield "attribute unknown", replace(row, attributes=(*row.attributes, "of_tomorrow=1")).text()
    for at, attribute in enumerate(row.attributes):
        before, after = row.attributes[:at], row.attributes[at + 1 :]
        yield "attribute missing", replace(row, attributes=(*before, *after)).text()
        yield "attribute twice", replace(row, attributes=(*row.attributes, attribute)).text()
        for changed in _changed_values(attribute):
            yield "attribute value", replace(row, attributes=(*before, changed, *after)).text()


def _changed_values(attribute: str) -> Iterator[str]:
    key, _, value = attribute.partition("=")
    if key in ("metadata", "backend_config", "frontend_attributes", "statistics", "origin"):
        return
    numbers = list(_INTEGER.finditer(value))
    for number in numbers[:6]:
        for other in ("-1", "99", "0", "1"):
            if other != number[0]:
                yield f"{key}={value[: number.start()]}{other}{value[number.end() :]}"
    if value.startswith("{") and numbers:
        yield f"{key}={{}}"
        yield f"{key}={value[:-1]},0}}"
    if value in COMPUTATIONS:
        for other in ("add_s32", "negate_f32", "pair_f32", "lt_f32", "sine_2x3", "no_parameters"):
            yield f"{key}={other}"
    if value in ("true", "false"):
        yield f"{key}={'false' if value == 'true' else 'true'}"


def invalid_texts() -> list[str]:
    """Return the hand-written invalid texts and every distinct mutation of every row."""
    mutated = dict.fromkeys(text for row in all_rows() for _, text in mutations(row))
    return UNPARSABLE + UNVERIFIABLE + list(mutated)
