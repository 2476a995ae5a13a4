"""What the kernels of a GPU's program cost, in lines of programs that a GPU ran, and how long they take."""

from __future__ import annotations

import json

import pytest

from bert_jax.planning import costs, hlo
from bert_jax.planning.chips import CHIPS
from bert_jax.planning.collectives import Fabric
from bert_jax.planning.prediction import predict


def program_of(root: str, *parameters: str, before: str = "") -> hlo.Computation:
    """Return a program of one instruction. ``parameters``: the shapes of %p0, %p1, ..."""
    lines = [f"  %p{number} = {shape} parameter({number})" for number, shape in enumerate(parameters)]
    return hlo.parse(
        "\n".join(["HloModule m", before, "ENTRY %e (p: f32[1]) -> f32[1] {", *lines, f"  ROOT {root}", "}"])
    )


def cost(of: hlo.Computation) -> costs.Cost:
    return costs.cost(of.root)


def cublas(shape: str, left: str, right: str, target: str = "__cublas$lt$matmul") -> str:
    """Return a call as an H200 ran it, with 32 MiB to work in. ``left``, ``right``: the contracted dimension."""
    return (
        f'%c = ({shape}, s8[33554432]{{0}}) custom-call(%p0, %p1), custom_call_target="{target}", backend_config='
        '{"device_type":"DEVICE_TYPE_INVALID","gemm_backend_config":{"alpha_imag":0,"alpha_real":1,'
        '"autotune_workspace_size":"33554432","beta":0,"damax_output":false,"dot_dimension_numbers":'
        f'{{"lhs_batch_dimensions":[],"lhs_contracting_dimensions":["{left}"],"rhs_batch_dimensions":[],'
        f'"rhs_contracting_dimensions":["{right}"]}},"epilogue":"DEFAULT","selected_algorithm":"5"}}}}'
    )


GEMM = """
%gemm_fusion_dot.130_computation (q0: bf16[256,4,192], q1: bf16[4,192,768]) -> f32[4,256,768] {
  %q0 = bf16[256,4,192]{2,1,0} parameter(0)
  %q1 = bf16[4,192,768]{2,1,0} parameter(1)
  ROOT %dot.184 = f32[4,256,768]{2,1,0} dot(%q0, %q1), lhs_batch_dims={1}, lhs_contracting_dims={2}, \
rhs_batch_dims={0}, rhs_contracting_dims={1}
}
"""


@pytest.mark.parametrize("target", ["__cublas$lt$matmul", "__cublas$gemm"])
@pytest.mark.parametrize(
    ("shape", "left", "right", "contracted", "flops", "moved"),
    [
        ("bf16[32768,768]{1,0}", "bf16[32768,768]", "bf16[768,768]", "10", 2 * 32768 * 768**2, 101_842_944),
        ("bf16[1536,32768]{0,1}", "bf16[768,1536]", "bf16[32768,768]", "01", 2 * 32768 * 768 * 1536, 153_354_240),
    ],
)
def test_a_product_of_cublas(shape, left, right, contracted, flops, moved, target):
    found = cost(program_of(cublas(shape, *contracted, target), left, right))
    assert found.bf16 == flops
    assert found.bytes == moved  # without what it works in


def test_a_product_of_triton():
    fusion = (
        "%f = f32[4,256,768]{2,1,0} fusion(%p0, %p1), kind=kCustom, calls=%gemm_fusion_dot.130_computation, "
        'backend_config={"fusion_backend_config":{"kind":"__triton_nested_gemm_fusion"}}'
    )
    found = cost(program_of(fusion, "bf16[256,4,192]{2,1,0}", "bf16[4,192,768]{2,1,0}", before=GEMM))
    assert found.bf16 == 2 * 4 * 256 * 192 * 768


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
    assert found.bf16 == products * 2 * 8 * 4 * 256 * 256 * 64
    assert found.bytes == 4 * 2 * 8 * 256 * 4 * 64 + 4 * 8 * 4 * 256


def test_a_kernel_that_triton_compiles_costs_what_its_attributes_say():
    call = (
        '%k = bf16[8,128]{1,0} custom-call(%p0), custom_call_target="__gpu$xla.gpu.triton", '
        'frontend_attributes={kernel_elementwise="640",kernel_flops="4096"}, backend_config={ir = "ML(\\EFR"}'
    )
    found = cost(program_of(call, "bf16[8,128]"))
    assert (found.bf16, found.elementwise, found.bytes) == (4096.0, 640.0, 2 * 2 * 8 * 128)


REACHED = CHIPS["h200"].reached
PRODUCTS, MEMORY = REACHED.products * 989e12, REACHED.memory * 4.8e12
PRODUCT = program_of(cublas("bf16[32768,768]{1,0}", "1", "0"), "bf16[32768,768]", "bf16[768,768]")
COPY = program_of("%c = f32[32768,768]{1,0} copy(%p0)", "f32[32768,768]{1,0}")
KERNEL = program_of(
    "%k = bf16[256,128,12,64]{3,2,1,0} custom-call(%p0), "
    'frontend_attributes={kernel_elementwise="1000000000",kernel_flops="100000000000"}',
    "bf16[256,128,12,64]",
)


@pytest.mark.parametrize(
    ("program", "bound"),
    [
        (PRODUCT, {"products": 2 * 32768 * 768**2 / PRODUCTS, "memory": 101_842_944 / MEMORY}),
        (COPY, {"memory": 2 * 4 * 32768 * 768 / MEMORY}),
        (KERNEL, {"products": 1e11 / PRODUCTS, "memory": 2 * 2 * 32768 * 768 / MEMORY}),
        (program_of("%b = f32[768,32768]{1,0} bitcast(%p0)", "f32[32768,768]{1,0}"), None),  # no kernel
    ],
)
def test_a_kernel_of_a_gpu_takes_what_was_reached_and_time_to_start(program, bound):
    predicted = predict(program, Fabric(("data",), (1,), CHIPS["h200"]))
    assert predicted.bound == pytest.approx(bound | {"kernel starts": REACHED.kernel_seconds} if bound else {})
    assert predicted.seconds == pytest.approx(sum(predicted.bound.values()))


@pytest.mark.parametrize("kind", [kind for kind, chip in CHIPS.items() if chip.platform == "tpu"])
def test_the_rates_of_a_tpu_are_its_peaks(kind):
    chip = CHIPS[kind]
    predicted = predict(COPY, Fabric(("data",), (1,), chip))
    assert predicted.bound == {"memory": pytest.approx(2 * 4 * 32768 * 768 / chip.memory_bandwidth)}
