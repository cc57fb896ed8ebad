"""Rows that cover every opcode with all its attributes; see `texts_rows`."""

from tests.support.texts_rows import Row, rows

FLOAT_UNARY = (
    "acos acosh asin asinh atanh cbrt cosine cosh erf exponential exponential-minus-one log "
    "log-plus-one logistic rsqrt sine sinh sqrt tan tanh ceil floor round-nearest-afz "
    "round-nearest-even abs negate sign"
).split()
INTEGER_UNARY = "abs negate not popcnt count-leading-zeros sign".split()
BINARY = "add subtract multiply divide remainder power maximum minimum".split()
BITWISE = "and or xor shift-left shift-right-arithmetic shift-right-logical".split()


def elementwise() -> list[Row]:
    """Return the elementwise opcodes over element types and ranks."""
    made = []
    for number, name in enumerate(FLOAT_UNARY):
        for place, element in enumerate(("f32", "bf16", "f64", "f16")):
            size = ("4", "2,3", "", "0,2")[(number + place) % 4]
            made.append(f"{element}[{size}] {name}({element}[{size}])")
    made += [f"{e}[3] {name}({e}[3])" for name in INTEGER_UNARY for e in ("s32", "s8", "s64")]
    made += [f"{e}[3] not({e}[3])" for e in ("pred", "u8", "u64")]
    made += [f"{e}[] is-finite({f}[])" for e, f in (("pred", "f32"), ("pred", "bf16"))]
    for name in BINARY:
        made += [f"{e}[2,2] {name}({e}[2,2], {e}[2,2])" for e in ("f32", "s32", "bf16", "u8")]
    made += [f"{e}[5] {name}({e}[5], {e}[5])" for name in BITWISE for e in ("s32", "u16")]
    made += [f"pred[5] {name}(pred[5], pred[5])" for name in BITWISE[:3]]
    made += [f"pred[2] add(pred[2], pred[2])", "c64[2] multiply(c64[2], c64[2])", "c128[2] power(c128[2], c128[2])"]
    for direction in ("EQ", "NE", "LT", "LE", "GT", "GE"):
        made += [f"pred[4] compare({e}[4], {e}[4]), direction={direction}" for e in ("f32", "u32")]
    return rows("\n".join(made) + ELEMENTWISE)


ELEMENTWISE = """
pred[4] compare(f32[4], f32[4]), direction=LT, type=TOTALORDER
pred[4] compare(f32[4], f32[4]), direction=LT, type=FLOAT
pred[4] compare(s32[4], s32[4]), direction=GE, type=SIGNED
pred[4] compare(u32[4], u32[4]), direction=GE, type=UNSIGNED
pred[4] compare(pred[4], pred[4]), direction=EQ
pred[4] compare(c64[4], c64[4]), direction=NE
f32[4] abs(c64[4])
f64[4] abs(c128[4])
f32[4] real(c64[4])
f32[4] imag(c64[4])
f64[] imag(c128[])
f32[4] real(f32[4])
c64[4] complex(f32[4], f32[4])
c128[4] complex(f64[4], f64[4])
f32[4] atan2(f32[4], f32[4])
u32[4] mulhi(u32[4], u32[4])
s32[4] mulhi(s32[4], s32[4])
f32[4] exponential(f32[4]), result_accuracy={mode=highest}
f32[4] tanh(f32[4]), result_accuracy={mode=default}
f32[4] log(f32[4]), result_accuracy={tolerance={atol=0.5, rtol=0.1, ulps=2}}
f32[2,3] select(pred[2,3], f32[2,3], f32[2,3])
f32[2,3] select(pred[], f32[2,3], f32[2,3])
s8[2,3] select(pred[2,3], s8[2,3], s8[2,3])
f32[4] clamp(f32[4], f32[4], f32[4])
f32[4] clamp(f32[], f32[4], f32[])
s32[4] clamp(s32[], s32[4], s32[])
f32[4] copy(f32[4])
f32[2,3]{0,1} copy(f32[2,3]{1,0})
bf16[4] convert(f32[4])
s32[4] convert(f32[4])
pred[4] convert(s32[4])
f8e4m3fn[4] convert(f32[4])
s4[4] convert(s32[4])
c64[4] convert(f32[4])
s32[4] bitcast-convert(f32[4])
u8[3,4] bitcast-convert(f32[3])
f32[3] bitcast-convert(u8[3,4])
bf16[2,2] bitcast-convert(u32[2])
f32[4,2] bitcast(f32[2,4])
f32[8] bitcast(f32[2,4]{1,0})
f32[4] reduce-precision(f32[4]), exponent_bits=5, mantissa_bits=10
bf16[4] reduce-precision(bf16[4]), exponent_bits=4, mantissa_bits=3
bf16[4] stochastic-convert(f32[4], u32[4])
s8[4] stochastic-convert(f32[4], u32[4])
f32[4] opt-barrier(f32[4])
(f32[4], s32[]) opt-barrier((f32[4], s32[]))
f32[4] domain(f32[4]), domain={kind="sharding", entry={maximal device=0}, exit={maximal device=1}}
"""

MOVEMENT = """
f32[4] constant({1, 2, 3, 4})
f32[] constant(-1.5e-3)
s32[2,2] constant({{1, 2}, {3, 4}})
s32[2,2] constant({ { 1, 2 }, { 3, 4 } })
f32[2,1,2] constant({ { /*i0=0*/ { 1, 2 } }, { { 3, 4 } } })
pred[] constant(true)
pred[3] constant({1, 0, true})
pred[3] constant({true, false, false})
f32[3] constant({inf, -inf, nan})
f32[2] constant({nan(0x7fffff), -nan})
bf16[2] constant({1.5, 3})
f16[2] constant({65504, -0})
f8e4m3fn[2] constant({448, -1})
f8e5m2[1] constant({57344})
f8e8m0fnu[1] constant({4})
f4e2m1fn[2] constant({6, -0.5})
f8e4m3b11fnuz[1] constant({1})
f8e3m4[1] constant({1})
f6e2m3fn[1] constant({1})
s4[3] constant({7, -8, 0})
u4[2] constant({15, 0})
s2[2] constant({1, -2})
u1[2] constant({1, 0})
s64[] constant(-9223372036854775808)
u64[] constant(18446744073709551615)
c64[] constant((1, -2.5))
c64[2] constant({(1, 2), (3, inf)})
c128[1] constant({(1e300, 0)})
f32[0] constant({})
f32[2,0] constant({ {}, {} })
f32[1000] constant({...})
f32[100,100] constant({ {...} })
f32[100,100] constant({...})
(f32[2], s32[]) constant(( {1, 2}, 3 ))
() constant(())
f32[3] constant({1 2 3})
s32[4] iota(), iota_dimension=0
f32[4,5] iota(), iota_dimension=1
c64[4] iota(), iota_dimension=0
u8[2,3,4] iota(), iota_dimension=2
f32[4] parameter(0)
(f32[4], (s32[], pred[2])) parameter(0)
f32[4] parameter(0), parameter_replication={true}
(f32[4], s32[]) parameter(0), parameter_replication={true,false}
f32[2,3] broadcast(f32[3]), dimensions={1}
f32[2,3] broadcast(f32[2]), dimensions={0}
f32[2,3] broadcast(f32[]), dimensions={}
f32[2,3] broadcast(f32[])
f32[2,3,4] broadcast(f32[2,4]), dimensions={0,2}
f32[3,2] broadcast(f32[2,3]), dimensions={1,0}
f32[1,3] broadcast(f32[1]), dimensions={0}
f32[6] reshape(f32[2,3])
f32[1,1] reshape(f32[])
f32[0,7] reshape(f32[0])
f32[<=6] reshape(f32[2,3]), inferred_dimension=0
f32[<=4,<=4] dynamic-reshape(f32[16], s32[], s32[])
f32[3,2] transpose(f32[2,3]), dimensions={1,0}
f32[4,2,3] transpose(f32[2,3,4]), dimensions={2,0,1}
f32[] transpose(f32[]), dimensions={}
f32[2,3] reverse(f32[2,3]), dimensions={0,1}
f32[2,3] reverse(f32[2,3]), dimensions={}
f32[2] slice(f32[4]), slice={[1:3]}
f32[2,2] slice(f32[4,6]), slice={[0:4:2], [1:6:3]}
f32[0] slice(f32[4]), slice={[2:2]}
f32[2,2] dynamic-slice(f32[4,4], s32[], s32[]), dynamic_slice_sizes={2,2}
f32[2,2] dynamic-slice(f32[4,4], u8[], u8[]), dynamic_slice_sizes={2,2}
f32[2,2] dynamic-slice(f32[4,4], s32[2]), dynamic_slice_sizes={2,2}
f32[4,4] dynamic-update-slice(f32[4,4], f32[2,2], s32[], s32[])
f32[4,4] dynamic-update-slice(f32[4,4], f32[2,2], s32[2])
f32[4,4] dynamic-update-slice(f32[4,4], f32[2,2], s64[], s64[])
f32[5] concatenate(f32[2], f32[3]), dimensions={0}
f32[2,7] concatenate(f32[2,3], f32[2,4]), dimensions={1}
f32[2] concatenate(f32[2]), dimensions={0}
f32[7] pad(f32[4], f32[]), padding=1_2
f32[8] pad(f32[4], f32[]), padding=1_0_1
f32[2,5] pad(f32[3,4], f32[]), padding=-1_0x0_1
f32[5,11] pad(f32[3,4], f32[]), padding=1_1_0x1_3_1
f32[] pad(f32[], f32[]), padding=
(f32[2], s32[]) tuple(f32[2], s32[])
() tuple()
((f32[2]), s32[]) tuple((f32[2]), s32[])
f32[2] get-tuple-element((f32[2], s32[])), index=0
(s32[]) get-tuple-element((f32[2], (s32[]))), index=1
s32[] get-dimension-size(f32[<=4]), dimensions={0}
s32[] get-dimension-size(f32[4,3]), dimensions={1}
f32[<=4] set-dimension-size(f32[4], s32[]), dimensions={0}
f32[2,<=4] set-dimension-size(f32[2,4], s32[]), dimensions={1}
f32[3,5] gather(f32[8,5], s32[3]), offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=1, slice_sizes={1,5}
f32[3,5] gather(f32[8,5], s32[3,1]), offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=1, slice_sizes={1,5}, indices_are_sorted=true
f32[10,9,8] gather(f32[50,49], s32[10,9,8,2]), offset_dims={}, collapsed_slice_dims={0,1}, start_index_map={0,1}, index_vector_dim=3, slice_sizes={1,1}
f32[2,3,4] gather(f32[2,8,4], s32[2,3,1]), offset_dims={2}, collapsed_slice_dims={1}, start_index_map={1}, operand_batching_dims={0}, start_indices_batching_dims={0}, index_vector_dim=2, slice_sizes={1,1,4}
f32[2,2] gather(f32[8,5], s64[2]), offset_dims={0,1}, collapsed_slice_dims={}, start_index_map={1,0}, index_vector_dim=0, slice_sizes={2,2}
f32[8,5] scatter(f32[8,5], s32[3], f32[3,5]), update_window_dims={1}, inserted_window_dims={0}, scatter_dims_to_operand_dims={0}, index_vector_dim=1, to_apply=add_f32
f32[8,5] scatter(f32[8,5], s32[3,1], f32[3,5]), update_window_dims={1}, inserted_window_dims={0}, scatter_dims_to_operand_dims={0}, index_vector_dim=1, indices_are_sorted=true, unique_indices=true, to_apply=maximum_f32
f32[2,8,4] scatter(f32[2,8,4], s32[2,3,1], f32[2,3,4]), update_window_dims={2}, inserted_window_dims={1}, scatter_dims_to_operand_dims={1}, input_batching_dims={0}, scatter_indices_batching_dims={0}, index_vector_dim=2, to_apply=add_f32
(f32[8], f32[8]) scatter(f32[8], f32[8], s32[3,1], f32[3], f32[3]), update_window_dims={}, inserted_window_dims={0}, scatter_dims_to_operand_dims={0}, index_vector_dim=1, to_apply=pair_f32
"""

REDUCTIONS = """
f32[2] reduce(f32[2,3], f32[]), dimensions={1}, to_apply=add_f32
f32[] reduce(f32[2,3], f32[]), dimensions={0,1}, to_apply=maximum_f32
f32[2,3] reduce(f32[2,3], f32[]), dimensions={}, to_apply=add_f32
bf16[3] reduce(bf16[2,3], bf16[]), dimensions={0}, to_apply=add_bf16
pred[3] reduce(pred[2,3], pred[]), dimensions={0}, to_apply=and_pred
(f32[2], s32[2]) reduce(f32[2,3], s32[2,3], f32[], s32[]), dimensions={1}, to_apply=pair_f32_s32
f32[2,2] reduce-window(f32[4,4], f32[]), window={size=2x2 stride=2x2}, to_apply=add_f32
f32[4] reduce-window(f32[4], f32[]), window={size=3 pad=1_1}, to_apply=maximum_f32
f32[4] reduce-window(f32[4], f32[]), window={size=4 pad=3_0}, to_apply=add_f32
f32[7,3] reduce-window(f32[4,4], f32[]), window={size=1x2 stride=1x2 pad=0_0x1_1 lhs_dilate=2x1 rhs_dilate=1x1}, to_apply=add_f32
f32[4,2] reduce-window(f32[4,4], f32[]), window={size=1x2 rhs_dilate=1x2}, to_apply=add_f32
f32[] reduce-window(f32[], f32[]), to_apply=add_f32
(f32[2,2], s32[2,2]) reduce-window(f32[4,4], s32[4,4], f32[], s32[]), window={size=2x2 stride=2x2}, to_apply=pair_f32_s32
f32[4,4] select-and-scatter(f32[4,4], f32[2,2], f32[]), window={size=2x2 stride=2x2}, select=ge_f32, scatter=add_f32
f32[4] select-and-scatter(f32[4], f32[4], f32[]), window={size=3 pad=1_1}, select=ge_f32, scatter=add_f32
f32[4] sort(f32[4]), dimensions={0}, to_apply=lt_f32
f32[2,4] sort(f32[2,4]), dimensions={1}, is_stable=true, to_apply=gt_f32
(f32[4], s32[4]) sort(f32[4], s32[4]), dimensions={0}, to_apply=lt_f32_s32
(f32[2,3], s32[2,3]) topk(f32[2,8]), k=3, largest=true
(f32[2,8], s32[2,8]) topk(f32[2,8]), k=8, largest=false
f32[4] map(f32[4]), dimensions={0}, to_apply=negate_f32
f32[2,3] map(f32[2,3], f32[2,3]), dimensions={0,1}, to_apply=add_f32
(f32[5,3], f32[3]) scan(f32[5,3], f32[3]), dimensions={0}, num_carries=1, to_apply=sum_scan
(f32[5,3], f32[3]) scan(f32[5,3], f32[3]), dimensions={0}, num_carries=1, is_reverse=true, is_associative=false, to_apply=sum_scan
"""

LINEAR_ALGEBRA = """
f32[2,4] dot(f32[2,3], f32[3,4]), lhs_contracting_dims={1}, rhs_contracting_dims={0}
f32[5,2,4] dot(f32[5,2,3], f32[5,3,4]), lhs_batch_dims={0}, lhs_contracting_dims={2}, rhs_batch_dims={0}, rhs_contracting_dims={1}
f32[] dot(f32[3], f32[3]), lhs_contracting_dims={0}, rhs_contracting_dims={0}
f32[2,3,3,4] dot(f32[2,3], f32[3,4])
f32[2,4] dot(bf16[2,3], bf16[3,4]), lhs_contracting_dims={1}, rhs_contracting_dims={0}
s32[2,4] dot(s8[2,3], s8[3,4]), lhs_contracting_dims={1}, rhs_contracting_dims={0}
f32[2,4] dot(f8e4m3fn[2,3], f8e5m2[3,4]), lhs_contracting_dims={1}, rhs_contracting_dims={0}
f32[2,4] dot(f32[2,3], f32[3,4]), lhs_contracting_dims={1}, rhs_contracting_dims={0}, operand_precision={highest,default}
f32[2,4] dot(f32[2,3], f32[3,4]), lhs_contracting_dims={1}, rhs_contracting_dims={0}, operand_precision={HIGH,high}
f32[2,4] dot(f32[2,3], f32[3,4]), lhs_contracting_dims={1}, rhs_contracting_dims={0}, algorithm=dot_bf16_bf16_f32_x3
f32[2,4] dot(f32[2,3], f32[3,4]), lhs_contracting_dims={1}, rhs_contracting_dims={0}, algorithm=dot_tf32_tf32_f32
f32[8,5] ragged-dot(f32[8,4], f32[3,4,5], s32[3]), lhs_contracting_dims={1}, rhs_contracting_dims={1}, lhs_ragged_dims={0}, rhs_group_dims={0}
f32[2,4] scaled-dot(f8e4m3fn[2,32], f8e4m3fn[32,4], f8e8m0fnu[2,1], f8e8m0fnu[1,4]), lhs_contracting_dims={1}, rhs_contracting_dims={0}
f32[1,4,4,8] convolution(f32[1,4,4,3], f32[3,3,3,8]), window={size=3x3 pad=1_1x1_1}, dim_labels=b01f_01io->b01f
f32[1,8,2,2] convolution(f32[1,3,4,4], f32[8,3,3,3]), window={size=3x3 stride=2x2 pad=1_1x1_1}, dim_labels=bf01_oi01->bf01
f32[1,4,4,6] convolution(f32[1,4,4,3], f32[3,3,1,6]), window={size=3x3 pad=1_1x1_1}, dim_labels=b01f_01io->b01f, feature_group_count=3
f32[2,4,4,4] convolution(f32[4,4,4,3], f32[3,3,3,4]), window={size=3x3 pad=1_1x1_1}, dim_labels=b01f_01io->b01f, batch_group_count=2
f32[1,7,7,8] convolution(f32[1,4,4,3], f32[1,1,3,8]), window={size=1x1 lhs_dilate=2x2}, dim_labels=b01f_01io->b01f
f32[1,2,2,8] convolution(f32[1,6,6,3], f32[3,3,3,8]), window={size=3x3 rhs_dilate=2x2 rhs_reversal=1x1}, dim_labels=b01f_01io->b01f
f32[1,5,8] convolution(f32[1,5,3], f32[3,3,8]), window={size=3 pad=1_1}, dim_labels=b0f_0io->b0f
f32[2,8] convolution(f32[2,3], f32[3,8]), dim_labels=bf_io->bf
f32[1,3,3,8] convolution(f32[1,4,4,3], f32[3,3,3,8]), window={size=3x3 pad=1_0x0_1}, dim_labels=b01f_01io->b01f, operand_precision={high,high}
f32[1,2,2,8] convolution(bf16[1,4,4,3], bf16[3,3,3,8]), window={size=3x3}, dim_labels=b01f_01io->b01f
f32[1,2,2,8] convolution(f32[1,4,4,3], f32[3,3,3,8]), window={size=3x3}, dim_labels=b01f_01io->b01f, convolution_kind=fprop
f32[4,1,8,3] convolution(f32[4,1,4,3], f32[1,3,3,3]), window={size=1x3 pad=0_0x3_3}, dim_labels=b01f_01io->b01f
c64[4] fft(c64[4]), fft_type=FFT, fft_length={4}
c64[2,4] fft(c64[2,4]), fft_type=IFFT, fft_length={4}
c64[2,3] fft(f32[2,4]), fft_type=RFFT, fft_length={4}
f32[2,4] fft(c64[2,3]), fft_type=IRFFT, fft_length={4}
c64[3,4,3] fft(f32[3,4,4]), fft_type=RFFT, fft_length={4,4}
c128[2,3,4] fft(c128[2,3,4]), fft_type=FFT, fft_length={2,3,4}
f32[3,4,4] cholesky(f32[3,4,4]), lower=true
f32[4,4] cholesky(f32[4,4])
c64[4,4] cholesky(c64[4,4]), lower=false
f32[4,2] triangular-solve(f32[4,4], f32[4,2]), left_side=true, lower=true, unit_diagonal=false, transpose_a=NO_TRANSPOSE
f32[2,4] triangular-solve(f32[4,4], f32[2,4]), left_side=false, lower=true, unit_diagonal=true, transpose_a=TRANSPOSE
c64[3,4,2] triangular-solve(c64[3,4,4], c64[3,4,2]), left_side=true, lower=false, transpose_a=ADJOINT
(f32[2,3,3,4], f32[4], f32[4]) batch-norm-training(f32[2,3,3,4], f32[4], f32[4]), epsilon=0.001, feature_index=3
f32[2,3,3,4] batch-norm-inference(f32[2,3,3,4], f32[4], f32[4], f32[4], f32[4]), epsilon=1e-05, feature_index=3
(f32[2,4,3], f32[4], f32[4]) batch-norm-grad(f32[2,4,3], f32[4], f32[4], f32[4], f32[2,4,3]), epsilon=1, feature_index=1
f32[4] rng(f32[], f32[]), distribution=rng_uniform
f32[4,3] rng(f32[], f32[]), distribution=rng_normal
s32[4] rng(s32[], s32[]), distribution=rng_uniform
(u64[2], u32[4]) rng-bit-generator(u64[2]), algorithm=rng_three_fry
(u64[3], u32[4]) rng-bit-generator(u64[3]), algorithm=rng_philox
(u64[2], u32[4]) rng-bit-generator(u64[2]), algorithm=rng_default
u64[2] rng-get-and-update-state(), delta=4096
"""

CALLS = """
f32[4] call(f32[4]), to_apply=sine_4
f32[4] call(f32[4], f32[4]), to_apply=sum_two
(f32[4], f32[4]) call(f32[4]), to_apply=two_results
f32[] call(), to_apply=no_parameters
f32[4] call(f32[4]), to_apply=sine_4, is_composite=true, frontend_attributes={composite.attributes={n = 1 : i32},composite.name="foo.bar",composite.version="1"}
(s32[], f32[4]) while((s32[], f32[4])), condition=small_count, body=next_count
f32[] while(f32[]), condition=below_f32, body=sine_scalar
f32[4] conditional(pred[], f32[4], f32[4]), true_computation=sine_4, false_computation=cosine_4
f32[4] conditional(s32[], f32[4], f32[4]), branch_computations={sine_4, cosine_4}
f32[4] conditional(s32[], f32[4]), branch_computations={%sine_4}
f32[4] conditional(pred[], f32[4], f32[4]), branch_computations={sine_4, cosine_4}
f32[4] fusion(f32[4]), kind=kLoop, calls=sine_4
f32[4] fusion(f32[4], f32[4]), kind=kInput, calls=sum_two
(f32[4], f32[4]) fusion(f32[4]), kind=kOutput, calls=two_results
f32[4] fusion(f32[4], f32[4]), kind=kCustom, calls=sum_two, output_to_operand_aliasing={{}: (1, {})}
f32[] fusion(), kind=kLoop, calls=no_parameters
f32[4] fusion(f32[4]), kind=kLoop, calls={ q = f32[4] parameter(0) ROOT t = f32[4] tanh(q) }
f32[2] custom-call(f32[4]), custom_call_target="foo"
(f32[2], token[]) custom-call(f32[4], token[]), custom_call_target="foo", custom_call_has_side_effect=true
f32[2] custom-call(f32[4], s32[]), custom_call_target="foo", api_version=API_VERSION_TYPED_FFI, backend_config={a = 1 : i64}
f32[2] custom-call(f32[4]), custom_call_target="foo", api_version=API_VERSION_STATUS_RETURNING, backend_config="x\\ny"
f32[2]{0} custom-call(f32[4]{0}), custom_call_target="foo", operand_layout_constraints={f32[4]{0}}
f32[2] custom-call(), custom_call_target="a\\"b", schedule=SCHEDULE_LATEST
f32[2] custom-call(f32[2]), custom_call_target="foo", output_to_operand_aliasing={{}: (0, {})}
f32[4] custom-call(f32[4]), custom_call_target="foo", to_apply=sine_4
f32[4] custom-call(f32[4]), custom_call_target="foo", called_computations={sine_4, cosine_4}
f32[1,2,2,8] custom-call(f32[1,4,4,3], f32[3,3,3,8]), custom_call_target="conv", window={size=3x3}, dim_labels=b01f_01io->b01f, feature_group_count=1, batch_group_count=1
f32[2] custom-call(f32[2]), custom_call_target="foo", padding_type=PADDING_SAME, operand_precision={high}
s32[2]{0} custom-call(), custom_call_target="foo", literal=s32[2]{0} {1, 2}
f32[4] custom-call(f32[4]), custom_call_target="Sharding", sharding={devices=[2]0,1}
f32[4] custom-call(f32[4]), custom_call_target="annotate_device_placement", frontend_attributes={_xla_buffer_placement="pinned_host"}
token[] after-all()
token[] after-all(token[], token[])
f32[4] add-dependency(f32[4], token[])
(f32[4], token[]) infeed(token[])
((f32[4], s32[]), token[]) infeed(token[]), infeed_config="cfg"
token[] outfeed(f32[4], token[])
token[] outfeed(f32[4]{0}, token[]), outfeed_shape=f32[4]{0}, outfeed_config="cfg"
u32[] partition-id()
u32[] replica-id()
"""

COLLECTIVES = """
f32[4] all-reduce(f32[4]), replica_groups={}, to_apply=add_f32
f32[4] all-reduce(f32[4]), replica_groups={{0,1},{2,3}}, to_apply=add_f32 @replica_count=4
f32[4] all-reduce(f32[4]), channel_id=1, replica_groups={{0,1,2,3}}, use_global_device_ids=true, to_apply=add_f32 @num_partitions=4
f32[4] all-reduce(f32[4]), replica_groups=[2,2]<=[4], to_apply=add_f32 @replica_count=4
f32[4] all-reduce(f32[4]), replica_groups=[2,4]<=[4,2]T(1,0), to_apply=add_f32 @replica_count=8
f32[4] all-reduce(f32[4]), channel_id=1, replica_groups=mesh['a'=2,'b'=4] {'a'}, use_global_device_ids=true, to_apply=add_f32 @num_partitions=8
(f32[4], f32[2]) all-reduce(f32[4], f32[2]), replica_groups={}, constrain_layout=true, to_apply=add_f32
f32[2] reduce-scatter(f32[4]), replica_groups={{0,1}}, dimensions={0}, to_apply=add_f32 @replica_count=2
f32[4,1] reduce-scatter(f32[4,4]), channel_id=2, replica_groups={{0,1,2,3}}, use_global_device_ids=true, dimensions={1}, to_apply=add_f32 @num_partitions=4
f32[8] all-gather(f32[4]), replica_groups={{0,1}}, dimensions={0} @replica_count=2
f32[4,8] all-gather(f32[4,2]), channel_id=1, replica_groups=[1,4]<=[4], dimensions={1}, use_global_device_ids=true @num_partitions=4
(f32[8], s32[2]) all-gather(f32[4], s32[1]), replica_groups={{0,1}}, dimensions={0} @replica_count=2
f32[4,2] all-to-all(f32[4,2]), replica_groups={{0,1}}, dimensions={0} @replica_count=2
(f32[4], f32[4]) all-to-all(f32[4], f32[4]), replica_groups={{0,1}} @replica_count=2
f32[16] ragged-all-to-all(f32[8], f32[16], s32[2], s32[2], s32[2], s32[2]), replica_groups={{0,1}} @replica_count=2
f32[4] collective-permute(f32[4]), source_target_pairs={{0,1},{1,0}} @replica_count=2
f32[4] collective-permute(f32[4]), channel_id=3, source_target_pairs={{0,1}} @num_partitions=2
f32[4] collective-permute(f32[4]), source_target_pairs={} @replica_count=2
f32[4] collective-broadcast(f32[4]), replica_groups={{1,0}} @replica_count=2
f32[4] all-reduce(f32[4]), replica_groups={}, to_apply=add_f32, sharding={replicated}
"""

COMMON = """
f32[4] negate(f32[4]), metadata={op_type="neg" op_name="jit(f)/neg" source_file="a.py" source_line=3}
f32[4] negate(f32[4]), metadata={op_name="p[\\'L\\']", source_line=3, source_end_line=4, source_column=1, source_end_column=9}
f32[4] negate(f32[4]), metadata={op_type="a" profile_type={1} deduplicated_name="d" scheduling_name="s" stack_frame_id=7}
f32[4] negate(f32[4]), metadata={}
f32[4] negate(f32[4]), sharding={replicated}
f32[4] negate(f32[4]), sharding={maximal device=0}
f32[4] negate(f32[4]), sharding={manual}
f32[4] negate(f32[4]), sharding={unknown}
f32[4] negate(f32[4]), sharding={devices=[2]0,1}
f32[4] negate(f32[4]), sharding={devices=[2,2]<=[4] last_tile_dim_replicate}
f32[4,4] negate(f32[4,4]), sharding={devices=[2,2]<=[2,2]T(1,0)}
f32[4,4] negate(f32[4,4]), sharding={devices=[2,1,2]0,1,2,3 last_tile_dims={replicated}}
f32[4,4] negate(f32[4,4]), sharding={devices=[2,1,2]<=[4] last_tile_dims={manual}}
f32[4] negate(f32[4]), sharding={replicated metadata={op_name="x"}}
f32[4] negate(f32[4]), sharding={devices=[2]0,1 metadata={{op_name="x"}, {op_name="y"}}}
f32[4] negate(f32[4]), sharding={replicated shard_as 1}
f32[4] negate(f32[4]), sharding={devices=[2]0,1 shard_like 2}
(f32[4], s32[]) opt-barrier((f32[4], s32[])), sharding={{devices=[2]0,1}, {replicated}}
f32[4,4] negate(f32[4,4]), sharding={mesh['a'=2,'b'=4], [{'a'}, {'b'}]}
f32[4] negate(f32[4]), frontend_attributes={a="b"}
f32[4] negate(f32[4]), frontend_attributes={xla.sdy.sharding={#sdy.sharding<@mesh, [{"a"}]>},b="c\\"d"}
f32[4] negate(f32[4]), backend_config="{\\"a\\":1}"
f32[4] negate(f32[4]), backend_config={"a":{"b":"}"}}
f32[4] negate(f32[4]), backend_config={mode = 65 : ui8}
f32[4] negate(f32[4]), backend_config=""
f32[4] negate(f32[4]), control-predecessors={p0}
f32[4] negate(f32[4]), statistics={visualizing_index=0,name=1.5}
f32[4] negate(f32[4]), origin={{"name" {1}}}
f32[4] negate(f32[4]), origin={({"a"}, {"b" {0}})}
f32[4] negate(f32[4]), origin={[synthetic_call]}
f32[2,<=4] negate(f32[2,<=4])
f32[?] negate(f32[?])
f32[2,4]{1,0:T(8,128)} negate(f32[2,4]{1,0:T(8,128)})
f32[2,4]{1,0:T(8,128)(2,1)S(5)} negate(f32[2,4]{1,0})
f32[]{:S(5)} negate(f32[])
f32[4]{0:SC(0:2)} negate(f32[4])
s4[4]{0:E(4)} negate(s4[4]{0:E(4)})
f32[4]{0:T(256)L(8)} negate(f32[4])
f32[4]{0:M(16)} negate(f32[4])
f32[4]{0:#(u32)*(u32)} negate(f32[4])
f32 [4] {0} negate(f32[ 4 ])
"""

TABLES = (MOVEMENT, REDUCTIONS, LINEAR_ALGEBRA, CALLS, COLLECTIVES, COMMON)


def all_rows() -> list[Row]:
    """Return every row."""
    return elementwise() + [r for table in TABLES for r in rows(table)]
