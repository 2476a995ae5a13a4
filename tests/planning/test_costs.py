"""The lines of a program as they are read, and the work of products, kernels, slices and calls of libraries."""

from __future__ import annotations

import json

import pytest

from bert_jax.planning import costs, hlo
from tests.planning.programs import product_of_cublas, program_of


def cost(program: hlo.Computation) -> costs.Cost:
    return costs.cost_of(program.root)


FUSED = """
%fused (q0: bf16[8,4], q1: bf16[4,16]) -> f32[8,16] {
  %q0 = bf16[8,4]{1,0} parameter(0)
  %q1 = bf16[4,16]{1,0} parameter(1)
  %dot.1 = f32[8,16]{1,0} dot(%q0, %q1), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT %exp.1 = f32[8,16]{1,0} exponential(%dot.1)
}
"""
FUSION = "%f = f32[8,16]{1,0} fusion(%p0, %p1), kind=kOutput, calls=%fused"


def test_an_instruction_knows_its_operands_users_and_computations():
    program = program_of(FUSION, "bf16[8,4]{1,0:T(8,128)(2,1)}", "bf16[4,16]{1,0}", before=FUSED)
    first, second = program.root.operands
    assert (first.opcode, first.arrays[0].dims, first.arrays[0].bytes) == ("parameter", (8, 4), 64)
    assert first.users == second.users == [program.root]
    assert [one.name for one in program.root.calls["calls"].parameters] == ["q0", "q1"]
    assert program.root.called is program.root.calls["calls"]
    assert program.root.called.root.name == "exp.1"


def test_memory_space():
    there, here = program_of("%t = (bf16[3,5]{1,0:T(8,128)(2,1)S(1)}, pred[7]{0}) custom-call()").root.arrays
    assert (there.space, there.bytes, here.space, here.bytes) == (1, 30, 0, 7)


def test_a_fusion_costs_its_work_and_the_traffic_at_its_border():
    found = cost(program_of(FUSION, "bf16[8,4]", "bf16[4,16]", before=FUSED))
    work = {"bf16": 2 * 8 * 16 * 4, "elementwise": 8 * 16, "transcendentals": 8 * 16}
    assert found == costs.Cost(**work, bytes=64 + 128 + 512)  # two operands in bfloat16, the result in float32


TOLD = '{"flops":"4096","transcendentals":"640","bytes_accessed":"99","remote_bytes_transferred":"0"}'


@pytest.mark.parametrize(
    "told",
    [
        f'custom_call_target="tpu_custom_call", backend_config={{"flag_configs":[],"custom_call_config":'
        f'{{"body":"TUzv","cost_estimate":{TOLD},"serialization_format":"1"}}}}',
        'custom_call_target="__gpu$xla.gpu.triton", frontend_attributes={kernel_elementwise="640",kernel_flops="4096"}'
        ', backend_config={ir = "ML(\\EFR"}',
    ],
    ids=["TPU", "Triton"],
)
def test_a_kernel_costs_what_it_says(told):
    """``costs`` reads the work from the kernel's own estimate, and the traffic from its operands and results."""
    found = cost(program_of(f"%k = (bf16[8,128]{{1,0}}, f32[8]{{0:S(1)}}) custom-call(%p0), {told}", "bf16[8,128]"))
    assert found == costs.Cost(bf16=4096.0, elementwise=640.0, bytes=2 * 2 * 8 * 128)


@pytest.mark.parametrize("batch", ["", "3,"])
@pytest.mark.parametrize("causal", [False, True])
def test_a_splash_kernel_that_says_nothing_is_counted(batch, causal):
    """A causal mask has one operand more, the places of queries. The attributes take several lines."""
    factor, of_queries, of_keys = f"bf16[{batch}12,64,512]", f"s32[{batch}512,128]", f"s32[{batch}8,512]"
    operands = ["s8[1,4,4]", "s8[1,4,4]", *[factor] * 3, of_queries, of_keys, *["s32[512,128]"] * causal]
    names = ", ".join(f"%p{number}" for number in range(len(operands)))
    call = (
        f"%splash_mha_fwd_segmented_residuals.1 = (f32[512,128], {factor}) custom-call({names}), "
        'custom_call_target="tpu_custom_call", frontend_attributes={kernel_metadata={\n"blocks":"{}"\n}}'
    )
    found = cost(program_of(call, *operands))
    pairs = (3 if batch else 1) * 12 * 512 * 512 // (2 if causal else 1)
    assert found.bf16 == 2 * 2 * pairs * 128  # two products, in which heads are padded to 128 lanes
    assert found.elementwise == 8 * pairs


@pytest.mark.parametrize("target", ["__cublas$lt$matmul", "__cublas$gemm"])
@pytest.mark.parametrize(
    ("shape", "left", "right", "contracted", "flops", "moved"),
    [
        ("bf16[32768,768]{1,0}", "bf16[32768,768]", "bf16[768,768]", "10", 2 * 32768 * 768**2, 101_842_944),
        ("bf16[1536,32768]{0,1}", "bf16[768,1536]", "bf16[32768,768]", "01", 2 * 32768 * 768 * 1536, 153_354_240),
    ],
)
def test_a_product_of_cublas(shape, left, right, contracted, flops, moved, target):
    found = cost(program_of(product_of_cublas(shape, *contracted, target), left, right))
    assert found == costs.Cost(bf16=flops, bytes=moved)  # without what it works in


@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": ")])
@pytest.mark.parametrize(("target", "products"), [("SoftmaxDropout", 2), ("ScaleBiasSoftmaxDropoutBackward", 5)])
def test_attention_of_cudnn(target, products, separators):
    """The configuration is in the form that jax._src.cudnn.fused_attention_stablehlo writes."""
    scores = {"element_type": "BF16", "dimensions": ["8", "4", "256", "256"], "layout": {"minor_to_major": ["3", "2"]}}
    config = {"cudnn_fmha_backend_config": {"fmha_scale": 0.125, "intermediate_tensor_shape": scores}}
    call = (
        "%c = (bf16[8,256,4,64]{3,1,2,0}, f32[8,4,256]{2,1,0}, u8[1048576]{0}) custom-call(%p0, %p0, %p0), "
        f'custom_call_target="__cudnn$fmha{target}", backend_config={json.dumps(config, separators=separators)}'
    )
    found = cost(program_of(call, "bf16[8,256,4,64]"))
    assert found.products == products * 2 * 8 * 4 * 256 * 256 * 64
    assert found.bytes == 4 * 2 * 8 * 256 * 4 * 64 + 4 * 8 * 4 * 256


CONVOLUTIONS = {  # TPU programs have their matrix products in this form
    "a product": ("f32[8,16]", "f32[8,4]", "f32[4,16]", "dim_labels=bf_io->bf", 2 * 8 * 16 * 4),
    "of batches": (
        "bf16[16,12,128,128]",
        "bf16[16,128,12,64]",
        "bf16[16,128,12,64]",
        "window={size=16x12 stride=15x11 lhs_dilate=16x12}, dim_labels=0b1f_0o1i->01bf",
        2 * 16 * 12 * 128 * 128 * 64,
    ),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_a_convolution_counts_what_it_multiplies(name):
    out, left, right, attributes, expected = CONVOLUTIONS[name]
    found = cost(program_of(f"%c = {out} convolution(%p0, %p1), {attributes}", left, right))
    assert (found.products, found.elementwise) == (expected, 0)


CUT = """
%cut (w: f32[24,100], i: s32[]) -> f32[1,100] {
  %w = f32[24,100]{1,0} parameter(0)
  %i = s32[] parameter(1)
  %c = s32[] constant(0)
  ROOT %s = f32[1,100]{1,0} dynamic-slice(%w, %i, %c), dynamic_slice_sizes={1,100}
}

%outer (w2: f32[24,100], i2: s32[]) -> f32[1,100] {
  %w2 = f32[24,100]{1,0} parameter(0)
  %i2 = s32[] parameter(1)
  ROOT %g = f32[1,100]{1,0} fusion(%w2, %i2), kind=kLoop, calls=%cut
}

%update (w3: f32[24,100], i3: s32[], u3: f32[1,100]) -> f32[24,100] {
  %w3 = f32[24,100]{1,0} parameter(0)
  %i3 = s32[] parameter(1)
  %u3 = f32[1,100]{1,0} parameter(2)
  %d = s32[] constant(0)
  ROOT %put = f32[24,100]{1,0} dynamic-update-slice(%w3, %u3, %i3, %d)
}
"""


@pytest.mark.parametrize("fusion", ["cut", "outer"])
def test_a_slice_costs_what_it_cuts_out(fusion):
    call = f"%f = f32[1,100]{{1,0}} fusion(%p0, %p1), kind=kLoop, calls=%{fusion}"
    assert cost(program_of(call, "f32[24,100]{1,0}", "s32[]", before=CUT)).bytes == 400 + 400 + 4


def test_an_update_in_place_costs_what_it_writes():
    call = "%f = f32[24,100]{1,0} fusion(%p0, %p1, %p2), kind=kLoop, calls=%update"
    assert cost(program_of(call, "f32[24,100]", "s32[]", "f32[1,100]", before=CUT)).bytes == 400 + 400 + 4
