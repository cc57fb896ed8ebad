"""Valid module texts: every syntactic form, header attribute and sugar; see `texts_ops` for ops.

`CURRENT` holds what XLA accepts now, `OLD_DIALECTS` what its parser accepted once. What is expected
of each comes from XLA when the texts are used, not from here.
"""

from tests.support.texts_ops import all_rows


def sections(text: str) -> list[str]:
    """Split a text at lines that hold only dashes."""
    return [part.strip("\n") + "\n" for part in text.split("\n-----\n") if part.strip()]


CURRENT = sections(r"""
HloModule m
ENTRY e { ROOT p = f32[] parameter(0) }
-----
HloModule m ENTRY e { p = f32[4] parameter(0) n = f32[4] negate(p) ROOT a = f32[4] add(n, p) }
-----
HloModule %m
ENTRY %e (p: f32[]) -> f32[] { ROOT %p = f32[] parameter(0) }
-----
HloModule m:
ENTRY e: { ROOT p: = f32[] parameter(0) }
-----
HloModule m.with-dashes_and.dots.3-
ENTRY main.4- { ROOT p.1-x = f32[] parameter(0) }
-----
// a comment first
HloModule m /* inside */ // to the end
/* several
   lines */
ENTRY e { // here
  ROOT p = f32[] /*shape before*/ parameter(/*number*/0)
} // e
-----
HloModule m

f { ROOT x = f32[] parameter(0) }

last_is_entry { p = f32[] parameter(0) ROOT c = f32[] call(p), to_apply=f }
-----
HloModule root_is_last
ENTRY e { p = f32[4] parameter(0)
  n = f32[4] negate(p) }
-----
HloModule root_in_the_middle
ENTRY e { p = f32[4] parameter(0)
  ROOT n = f32[4] negate(p)
  dead = f32[4] sine(n) }
-----
HloModule entry_first_is_refused_as_callee_is_unknown
ENTRY e { ROOT p = f32[] parameter(0) }
other { ROOT p = f32[] parameter(0) }
-----
ENTRY headerless { p = f32[4] parameter(0) ROOT n = f32[4] negate(p) }
-----
helper { ROOT x = f32[] parameter(0) }
ENTRY headerless { p = f32[] parameter(0) ROOT c = f32[] call(p), to_apply=helper }
-----
%single = f32[4] add(f32[4] %a, f32[4] %b)
-----
ROOT single = f32[2,3] transpose(f32[3,2] x), dimensions={1,0}
-----
f32[4] negate(f32[4] x)
-----
HloModule out_of_order
ENTRY e {
  b = f32[4] parameter(1)
  a = s32[] parameter(0)
  ROOT t = (s32[], f32[4]) tuple(a, b)
}
-----
HloModule operand_shapes
ENTRY %e (a: f32[2], b: f32[2]) -> f32[2] {
  %a = f32[2]{0} parameter(0)
  %b = f32[2]{0} parameter(1)
  ROOT %c = f32[2]{0} add(f32[2]{0} %a, f32[2]{0} %b)
}
-----
HloModule inferred_shapes
ENTRY e {
  p = f32[2,3] parameter(0)
  q = f32[3,4] parameter(1)
  d = dot(p, q), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  n = negate(d)
  t = transpose(n), dimensions={1,0}
  c = concatenate(t, t), dimensions={0}
  z = compare(c, c), direction=EQ
  s = select(z, c, c)
  ROOT r = tuple(s, d)
}
-----
HloModule nested_instructions
ENTRY e {
  p = f32[4] parameter(0)
  ROOT a = f32[4] add(f32[4] negate(p), f32[4] sine(f32[4] cosine(p)))
}
-----
HloModule nested_without_shapes
ENTRY e {
  p = f32[4] parameter(0)
  ROOT a = f32[4] add(negate(p), p)
}
-----
HloModule inline_computations
ENTRY e {
  p = f32[4] parameter(0)
  z = f32[] constant(0)
  ROOT r = f32[] reduce(p, z), dimensions={0}, to_apply={ a = f32[] parameter(0) b = f32[] parameter(1) ROOT s = f32[] add(a, b) }
}
-----
HloModule inline_branches
ENTRY e {
  i = s32[] parameter(0)
  p = f32[4] parameter(1)
  ROOT r = f32[4] conditional(i, p, p), branch_computations={{ a = f32[4] parameter(0) ROOT n = f32[4] negate(a) }, { b = f32[4] parameter(0) ROOT n = f32[4] sine(b) }}
}
-----
HloModule same_names_in_two_computations
f { p = f32[] parameter(0) ROOT r = f32[] negate(p) }
g { p = f32[] parameter(0) ROOT r = f32[] call(p), to_apply=f }
ENTRY e { p = f32[] parameter(0) ROOT r = f32[] call(p), to_apply=g }
-----
HloModule instruction_named_like_a_computation
f { f = f32[] parameter(0) ROOT e = f32[] negate(f) }
ENTRY e { e = f32[] parameter(0) ROOT f = f32[] call(e), to_apply=f }
-----
HloModule keyword_names
ENTRY e (unknown: f32[4], replicated: f32[4]) -> f32[4] {
  %add = f32[4] parameter(0)
  %tuple = f32[4] parameter(1)
  %slice = f32[4] add(%add, %tuple)
  %true = f32[4] negate(%slice)
  ROOT %ROOT = f32[4] negate(%true)
}
-----
HloModule opcode_names
ENTRY e {
  add = f32[4] parameter(0)
  tuple = f32[4] parameter(1)
  mesh = f32[4] add(add, tuple)
  b = f32[4] negate(mesh)
  buffer = f32[4] negate(b)
  ROOT dimensions = f32[4] negate(buffer)
}
-----
HloModule glued
ENTRY e{%p=f32[4]parameter(0)ROOT %n=f32[4]negate(%p)}
-----
HloModule blanks

ENTRY   e   (  p: f32 [ 4 , 2 ] { 1 , 0 }  )   ->   f32 [ 4 , 2 ]   {
	p   =   f32 [ 4 , 2 ] { 1 , 0 }   parameter  (  0  )
  ROOT   n   =   f32[4,2]
     reverse
   (
   p   )  ,   dimensions= { 1 , 0 }
}
-----
HloModule dump_comments
ENTRY e {
  p = (f32[], f32[], f32[], f32[], f32[], /*index=5*/f32[]) parameter(0)
  a = f32[] get-tuple-element(p), index=0
  ROOT t = (f32[], f32[], f32[], f32[], f32[], /*index=5*/f32[]) tuple(a, a, a, a, a, /*index=5*/a)
}
-----
HloModule sched, is_scheduled=true, entry_computation_layout={(f32[4]{0})->f32[4]{0}}
ENTRY %e (p: f32[4]) -> f32[4] {
  %p = f32[4]{0} parameter(0)
  ROOT %n = f32[4]{0} negate(%p)
}
-----
HloModule layouts, entry_computation_layout={(f32[2,3]{0,1}, (s32[], f32[4]{0}))->(f32[2,3]{1,0})}
ENTRY e {
  p = f32[2,3]{0,1} parameter(0)
  q = (s32[], f32[4]) parameter(1)
  c = f32[2,3]{1,0} copy(p)
  ROOT t = (f32[2,3]) tuple(c)
}
-----
HloModule alias, input_output_alias={ {0}: (0, {}, may-alias), {1}: (1, {}, must-alias) }
ENTRY e {
  p = f32[4] parameter(0)
  q = f32[2] parameter(1)
  ROOT t = (f32[4], f32[2]) tuple(p, q)
}
-----
HloModule alias_default_kind, input_output_alias={ {}: (0, {1}) }
ENTRY e {
  p = (f32[4], f32[2]) parameter(0)
  ROOT t = f32[2] get-tuple-element(p), index=1
}
-----
HloModule donor, buffer_donor={ (0, {}), (1, {0}) }
ENTRY e {
  p = f32[4] parameter(0)
  q = (f32[2], s32[]) parameter(1)
  ROOT n = f32[4] negate(p)
}
-----
HloModule counts, replica_count=2, num_partitions=4
ENTRY e { ROOT p = f32[] parameter(0) }
-----
HloModule spmd, allow_spmd_sharding_propagation_to_parameters={true,false}, allow_spmd_sharding_propagation_to_output={true}
ENTRY e { p = f32[] parameter(0) q = f32[] parameter(1) ROOT a = f32[] add(p, q) }
-----
HloModule spmd_bare, allow_spmd_sharding_propagation_to_output=true
ENTRY e { ROOT p = f32[] parameter(0) }
-----
HloModule passthrough, alias_passthrough_params=true
ENTRY e { ROOT p = f32[] parameter(0) }
-----
HloModule frontend, frontend_attributes={xla.sdy.meshes={mesh = #sdy.mesh<["a"=4, "b"=2]>},other="text"}
ENTRY e { ROOT p = f32[] parameter(0) }
-----
HloModule recovery, origin_recovery_table={ {"a"} : {"b"} }
ENTRY e { ROOT p = f32[] parameter(0) }
-----
HloModule broken_lines,
  is_scheduled=true,
  replica_count=1

ENTRY e { ROOT p = f32[] parameter(0) }
-----
HloModule tables

FileNames
1 "/path/to/a.py"
2 "b.py"

FunctionNames
1 "main"
2 "<lambda>"

FileLocations
1 {file_name_id=1 function_name_id=1 line=10 end_line=10 column=2 end_column=9}
2 {file_name_id=2 function_name_id=2 line=11 end_line=12 column=0 end_column=4}

StackFrames
1 {file_location_id=1 parent_frame_id=1}
2 {file_location_id=2 parent_frame_id=1}

ENTRY %e (p: f32[]) -> f32[] {
  %p = f32[] parameter(0), metadata={op_name="x"}
  ROOT %n = f32[] negate(%p), metadata={op_name="jit(f)/neg" stack_frame_id=2}
}
-----
HloModule threads
side { x = f32[4] parameter(0) ROOT y = f32[4] negate(x) }, execution_thread="side"
ENTRY e {
  p = f32[4] parameter(0)
  s = ((f32[4]), f32[4], s32[]) async-start(p), async_execution_thread="side", calls=side
  u = ((f32[4]), f32[4], s32[]) async-update(s)
  ROOT d = f32[4] async-done(u)
}
-----
HloModule async_sugar
ENTRY e {
  p = f32[4] parameter(0)
  s = ((f32[4]), f32[2], s32[]) slice-start(p), slice={[1:3]}
  u = ((f32[4]), f32[2], s32[]) slice-update(s)
  ROOT d = f32[2] slice-done(u)
}
-----
HloModule async_sugar_thread
ENTRY e {
  p = f32[4] parameter(0)
  s = ((f32[4]), f32[2], u32[]) custom-call-start(p), async_execution_thread="t", custom_call_target="foo"
  ROOT d = f32[2] custom-call-done(s)
}
-----
HloModule async_collective, replica_count=2
add { a = f32[] parameter(0) b = f32[] parameter(1) ROOT s = f32[] add(a, b) }
ENTRY e {
  p = f32[4] parameter(0)
  s = ((f32[4]), f32[2]) reduce-scatter-start(p), replica_groups={{0,1}}, dimensions={0}, to_apply=add
  ROOT d = f32[2] reduce-scatter-done(s)
}
-----
HloModule native_pairs, replica_count=2
add { a = f32[] parameter(0) b = f32[] parameter(1) ROOT s = f32[] add(a, b) }
ENTRY e {
  p = f32[4] parameter(0)
  rs = f32[4] all-reduce-start(p), replica_groups={{0,1}}, to_apply=add
  rd = f32[4] all-reduce-done(rs)
  gs = (f32[4], f32[8]) all-gather-start(rd), replica_groups={{0,1}}, dimensions={0}
  gd = f32[8] all-gather-done(gs)
  ps = (f32[8], f32[8]) collective-permute-start(gd), source_target_pairs={{0,1},{1,0}}
  pd = f32[8] collective-permute-done(ps)
  cs = (f32[8], f32[8], u32[]) copy-start(pd)
  cd = f32[8] copy-done(cs)
  fs = (f32[8], f32[8], u32[]) copy-start(cd), cross_program_prefetch_index=0
  ROOT fd = f32[8] copy-done(fs)
}
-----
HloModule channels
ENTRY e {
  t = token[] after-all()
  p = f32[4] parameter(0)
  s = (f32[4], u32[], token[]) send(p, t), channel_id=1, is_host_transfer=true
  sd = token[] send-done(s), channel_id=1, is_host_transfer=true
  r = (f32[4], u32[], token[]) recv(sd), channel_id=2, is_host_transfer=true
  rd = (f32[4], token[]) recv-done(r), channel_id=2, is_host_transfer=true
  ROOT g = f32[4] get-tuple-element(rd), index=0
}
-----
HloModule control
ENTRY e {
  p = f32[4] parameter(0)
  a = f32[4] negate(p)
  b = f32[4] sine(p), control-predecessors={a}
  ROOT c = f32[4] add(a, b), control-predecessors={%a, b}
}
-----
HloModule loop_with_count
cond { s = (s32[], f32[4]) parameter(0) i = s32[] get-tuple-element(s), index=0 n = s32[] constant(9) ROOT r = pred[] compare(i, n), direction=LT }
body {
  s = (s32[], f32[4]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  o = s32[] constant(1)
  j = s32[] add(i, o)
  x = f32[4] get-tuple-element(s), index=1
  ROOT r = (s32[], f32[4]) tuple(j, x)
}
ENTRY e {
  p = f32[4] parameter(0)
  z = s32[] constant(0)
  t = (s32[], f32[4]) tuple(z, p)
  ROOT w = (s32[], f32[4]) while(t), condition=cond, body=body, backend_config={"known_trip_count":{"n":"9"},"known_init_step":{"init":"0","step":"1"}}
}
-----
HloModule buffers
ENTRY e {
  ROOT p = b(f32[4]) parameter(0)
}
-----
HloModule strings
ENTRY e {
  ROOT c = f32[] custom-call(), custom_call_target='single "quoted"', backend_config="tab\t nl\n hex\x41 oct\101 quote\" back\\ apo\'"
}
-----
HloModule raw_newline
ENTRY e {
  ROOT c = f32[] custom-call(), custom_call_target="a
b"
}
-----
HloModule numbers
ENTRY e {
  a = f32[7] constant({1., -.5, 1e5, 1E-5, 1.5e+3, -0, 0.1})
  b = s64[2] constant({9223372036854775808, -1})
  c = u64[] constant(-1)
  d = f64[] constant(1e308)
  ROOT t = (f32[7], s64[2], u64[], f64[]) tuple(a, b, c, d)
}
-----
HloModule commas_in_literals
ENTRY e { ROOT a = f32[2,2] constant({{1,,2} {3 4}}) }
-----
HloModule scalar_for_rank_one
ENTRY e { ROOT a = f32[3] constant(1) }
-----
HloModule token_tuple
ENTRY e { t = token[] after-all() ROOT r = (token[], token[]) tuple(t, t) }
-----
HloModule signature_lies
ENTRY e (x: s32[9], y: f32[]) -> f32[4] { ROOT p = f32[4] parameter(0) }
-----
HloModule empty_signature
ENTRY e () -> f32[] { ROOT c = f32[] constant(1) }
-----
HloModule malformed_operand_is_dropped
ENTRY e { p = f32[4] parameter(0) ROOT n = f32[4] negate(p,) }
-----
HloModule deep_tuple
ENTRY e { ROOT p = ((((((((f32[])))))))) parameter(0) }
-----
HloModule dynamic_alias, entry_computation_layout={(f32[<=4]{0})->f32[<=4]{0}}
ENTRY e { ROOT p = f32[<=4] parameter(0) }
-----
HloModule names_like_types_after_percent
ENTRY e { %f32_ = f32[] parameter(0) ROOT %s32. = f32[] negate(%f32_) }
-----
HloModule xla_reserved
ENTRY e { %__xla_x = f32[] parameter(0) ROOT %n = f32[] negate(%__xla_x) }
-----
HloModule unused_computation
dead { ROOT x = f32[] parameter(0) }
ENTRY e { ROOT p = f32[] parameter(0) }
-----
HloModule callee_of_many
f { x = f32[4] parameter(0) ROOT n = f32[4] negate(x) }
ENTRY e {
  p = f32[4] parameter(0)
  a = f32[4] call(p), to_apply=%f
  ROOT b = f32[4] call(a), to_apply=f
}
-----
HloModule sharded_parameters, num_partitions=2
ENTRY e {
  p = f32[4] parameter(0), sharding={devices=[2]<=[2]}
  ROOT n = f32[4] negate(p), sharding={replicated}
}
-----
HloModule get_tuple_of_call
ENTRY e {
  p = (f32[2], (s32[], pred[])) parameter(0)
  a = (s32[], pred[]) get-tuple-element(p), index=1
  ROOT b = pred[] get-tuple-element(a), index=1
}
""")

OLD_DIALECTS = sections(r"""
HloModule compare_opcodes
ENTRY e { p = f32[4] parameter(0) q = f32[4] parameter(1) ROOT c = pred[4] less-than(p, q) }
-----
HloModule compare_opcodes_2
ENTRY e { p = s32[4] parameter(0) q = s32[4] parameter(1) ROOT c = pred[4] greater-than-or-equal-to(p, q) }
-----
HloModule compare_opcodes_3
ENTRY e { p = s32[4] parameter(0) ROOT c = pred[4] equal-to(p, p) }
-----
HloModule cross_replica_sum
ENTRY e { p = f32[4] parameter(0) ROOT c = f32[4] cross-replica-sum(p), replica_group_ids={} }
-----
HloModule cross_replica_sum_applied
add { a = f32[] parameter(0) b = f32[] parameter(1) ROOT s = f32[] add(a, b) }
ENTRY e { p = f32[4] parameter(0) ROOT c = f32[4] cross-replica-sum(p), replica_groups={{0}}, to_apply=add }
-----
HloModule all_reduce_id
add { a = f32[] parameter(0) b = f32[] parameter(1) ROOT s = f32[] add(a, b) }
ENTRY e { p = f32[4] parameter(0) ROOT c = f32[4] all-reduce(p), all_reduce_id=1, replica_groups={}, to_apply=add }
-----
HloModule all_reduce_scatter, replica_count=2
add { a = f32[] parameter(0) b = f32[] parameter(1) ROOT s = f32[] add(a, b) }
ENTRY e { p = f32[4] parameter(0) ROOT c = f32[2] all-reduce-scatter(p), replica_groups={{0,1}}, dimensions={0}, to_apply=add }
-----
HloModule old_gather
ENTRY e {
  p = f32[8,5] parameter(0)
  i = s32[3] parameter(1)
  ROOT g = f32[3,5] gather(p, i), output_window_dims={1}, elided_window_dims={0}, gather_dims_to_operand_dims={0}, index_vector_dim=1, window_bounds={1,5}
}
-----
HloModule typed_inner_literal
ENTRY e { ROOT c = f32[2,2] constant(f32[2,2] { { 1, 2 }, { 3, 4 } }) }
-----
HloModule typed_inner_tuple
ENTRY e { ROOT c = (f32[2], s32[]) constant((f32[2], s32[]) ( f32[2] {1, 2}, 3 )) }
-----
HloModule sort_without_comparator
ENTRY e { p = f32[4] parameter(0) ROOT s = f32[4] sort(p), dimensions={0} }
-----
HloModule sort_with_values
ENTRY e { p = f32[4] parameter(0) v = s32[4] parameter(1) ROOT s = (f32[4], s32[4]) sort(p, v), dimensions={0} }
-----
HloModule opaque_custom_call
ENTRY e { p = f32[4] parameter(0) ROOT c = f32[4] custom-call(p), custom_call_target="foo", opaque="config" }
-----
HloModule tuple_select
ENTRY e {
  c = pred[] parameter(0)
  t = (f32[4], s32[]) parameter(1)
  f = (f32[4], s32[]) parameter(2)
  ROOT s = (f32[4], s32[]) tuple-select(c, t, f)
}
-----
HloModule generate_token
ENTRY e { ROOT t = token[] generate-token() }
-----
HloModule tokenless_infeed
ENTRY e { ROOT i = f32[4] infeed() }
-----
HloModule tokenless_outfeed
ENTRY e { p = f32[4] parameter(0) ROOT o = () outfeed(p) }
-----
HloModule tokenless_channels
ENTRY e {
  p = f32[4] parameter(0)
  s = (f32[4], u32[]) send(p), channel_id=1
  sd = () send-done(s), channel_id=1
  r = (f32[4], u32[]) recv(), channel_id=2
  ROOT rd = f32[4] recv-done(r), channel_id=2
}
-----
HloModule names_that_became_types
ENTRY e {
  s4 = f32[] parameter(0)
  u1 = f32[] negate(s4)
  s2 = f32[] negate(u1)
  ROOT unknown = f32[] negate(s2)
}
-----
HloModule token_name
ENTRY e { token = token[] after-all() ROOT r = token[] after-all(token) }
-----
HloModule preserve_layout
ENTRY e { ROOT p = f32[4] parameter(0), metadata={op_name="x" preserve_layout=true} }
-----
HloModule outer_dimension_partitions
ENTRY e { p = f32[4] parameter(0) ROOT n = f32[4] negate(p), outer_dimension_partitions={0,2} }
-----
HloModule packed_nibble
ENTRY e {
  p = s8[2,3] parameter(0)
  q = s8[3,4] parameter(1)
  ROOT d = s32[2,4] dot(p, q), lhs_contracting_dims={1}, rhs_contracting_dims={0}, operand_precision={packed_nibble,default}
}
-----
HloModule early_alias_kinds, input_output_alias={ {}: (0, {}, USER) }
ENTRY e { p = f32[4] parameter(0) ROOT n = f32[4] negate(p) }
-----
HloModule empty_layouts
ENTRY e { p = f32[]{} parameter(0) ROOT n = f32[]{} negate(f32[]{} p) }
-----
HloModule unspecified_api
ENTRY e { p = f32[4] parameter(0) ROOT c = f32[4] custom-call(p), custom_call_target="foo", api_version=API_VERSION_UNSPECIFIED }
-----
HloModule is_cross_program_prefetch
ENTRY e {
  p = f32[4] parameter(0)
  s = (f32[4], f32[4], u32[]) copy-start(p), is_cross_program_prefetch=true
  ROOT d = f32[4] copy-done(s)
}
-----
HloModule async_group
f { x = f32[4] parameter(0) ROOT y = f32[4] negate(x) }
ENTRY e {
  p = f32[4] parameter(0)
  s = ((f32[4]), f32[4], s32[]) async-start(p), async_group_id=1, calls=f
  ROOT d = f32[4] async-done(s), async_group_id=1, calls=f
}
-----
HloModule unknown_attributes
ENTRY e { p = f32[4] parameter(0) ROOT n = f32[4] negate(p), of_tomorrow={a=1, b={2}} }
-----
HloModule unknown_header, of_tomorrow={1,2}
ENTRY e { ROOT p = f32[4] parameter(0) }
-----
HloModule tuple_operand_number
ENTRY e { p = (f32[4], s32[]) parameter(0) ROOT n = f32[4] negate(%p#0) }
-----
HloModule forward_reference_of_computations
ENTRY e { p = f32[] parameter(0) ROOT c = f32[] call(p), to_apply=later }
later { x = f32[] parameter(0) ROOT n = f32[] negate(x) }
-----
HloModule sparse_levels
ENTRY e { ROOT p = f32[4,4]{1,0:D(D,C)} parameter(0) }
-----
HloModule pred_digits
ENTRY e { ROOT c = pred[3] constant({101}) }
""")


def valid_texts() -> list[str]:
    """Return the texts that are written to be valid, old dialects left out."""
    return CURRENT + [row.text() for row in all_rows()]
