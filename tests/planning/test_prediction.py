"""The time of a step: loops, operations that run beside others, the rates of chips, and steps that were measured."""

import pytest

from bert_jax.planning import hlo
from bert_jax.planning.chips import CHIPS, Chip
from bert_jax.planning.collectives import Fabric
from bert_jax.planning.costs import Cost
from bert_jax.planning.prediction import predict, seconds_of
from tests.planning.programs import product_of_cublas, program_of

CHIP = CHIPS["v5e"]
MESH = Fabric(("data", "fsdp"), (2, 4), CHIP)

PROGRAM = """HloModule toy, is_scheduled=true, entry_computation_layout={(f32[8,4]{1,0})->f32[8,16]{1,0}}

%sum (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %add.0 = f32[] add(%a, %b)
}

%fused (p0: bf16[8,4], p1: bf16[4,16]) -> f32[8,16] {
  %p0 = bf16[8,4]{1,0} parameter(0)
  %p1 = bf16[4,16]{1,0} parameter(1)
  %dot.1 = f32[8,16]{1,0} dot(%p0, %p1), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT %exp.1 = f32[8,16]{1,0} exponential(%dot.1)
}

%body (state: (s32[], f32[8,16])) -> (s32[], f32[8,16]) {
  %state = (s32[], f32[8,16]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%state), index=0
  %x = f32[8,16]{1,0} get-tuple-element(%state), index=1
  %twice = f32[8,16]{1,0} add(%x, %x)
  ROOT %next = (s32[], f32[8,16]{1,0}) tuple(%i, %twice)
}

%condition (state.1: (s32[], f32[8,16])) -> pred[] {
  %state.1 = (s32[], f32[8,16]{1,0}) parameter(0)
  %i.1 = s32[] get-tuple-element(%state.1), index=0
  %limit = s32[]{:T(128)} constant(12)
  ROOT %less = pred[] compare(%i.1, %limit), direction=LT
}

ENTRY %main (x0: bf16[8,4], x1: bf16[4,16]) -> f32[8,16] {
  %x0 = bf16[8,4]{1,0:T(8,128)(2,1)} parameter(0), metadata={op_name="a(b) c"}
  %x1 = bf16[4,16]{1,0} parameter(1)
  %start = f32[8,16]{1,0} all-gather-start(%x0), replica_groups={{0,1,2,3},{4,5,6,7}}, dimensions={0}
  %fusion.1 = f32[8,16]{1,0} fusion(%x0, %x1), kind=kOutput, calls=%fused
  %done = f32[8,16]{1,0} all-gather-done(%start)
  %zero = s32[] constant(0)
  %first = (s32[], f32[8,16]{1,0}) tuple(%zero, %fusion.1)
  %loop = (s32[], /*index=1*/f32[8,16]{1,0}) while(%first), condition=%condition, body=%body
  %out = f32[8,16]{1,0} get-tuple-element(%loop), index=1
  ROOT %all = f32[8,16]{1,0} all-reduce(%out), replica_groups=[4,2]<=[2,4]T(1,0), to_apply=%sum
}
"""


def test_a_loop_counts_as_often_as_it_runs():
    program = hlo.parse(PROGRAM)
    predicted = predict(program, MESH)
    assert predicted.products == 1024
    assert predicted.elementwise == 8 * 16 * 13  # the exponential once, the addition twelve times


def test_what_runs_beside_is_hidden_and_the_rest_waits():
    program = hlo.parse(PROGRAM)
    predicted = predict(program, MESH)
    gather, reduce = sorted(predicted.collectives, key=lambda row: row.kind)
    assert (gather.kind, gather.axes, gather.bytes) == ("all-gather", ("fsdp",), 4 * 64)
    assert (reduce.kind, reduce.axes, reduce.bytes) == ("all-reduce", ("data",), 512)
    fused = max(1024 / CHIP.matrix_flops["bf16"], 128 / CHIP.vector_ops, (64 + 128 + 512) / CHIP.memory_bandwidth)
    assert predicted.exposed_seconds == pytest.approx(gather.seconds - fused + reduce.seconds)
    assert predicted.seconds == pytest.approx(predicted.compute_seconds + predicted.exposed_seconds)


# Cut from bert_large on v5e:4x4 with fsdp=16: a gather whose steps are in a loop and in a fusion of the entry.
GATHER = "all-gather(%p0{}), replica_groups=mesh['data'=2,'fsdp'=4] {{'fsdp'}}, dimensions={{0}}"
STEPS = """HloModule jit_train_step, is_scheduled=true

%fused_computation.1066 (p0.1: bf16[1024,4096]) -> (bf16[1024,4096], bf16[4096,4096]) {
  %p0.1 = bf16[1024,4096]{1,0:T(8,128)(2,1)S(1)} parameter(0)
  %gather.1 = bf16[4096,4096]{1,0:T(8,128)(2,1)} GATHER.1
  ROOT %begun = (bf16[1024,4096]{1,0:S(1)}, bf16[4096,4096]{1,0:S(1)}) custom-call(%p0.1, %gather.1), custom_call_target="AsyncCollectiveStart"
}

%async_collective_fusion.901 (p0.2: bf16[1024,4096], p1.2: bf16[4096,4096], p2.2: f32[2048]) -> (f32[2048], bf16[1024,4096], bf16[4096,4096]) {
  %p0.2 = bf16[1024,4096]{1,0:T(8,128)(2,1)S(1)} parameter(0)
  %p1.2 = bf16[4096,4096]{1,0:T(8,128)(2,1)S(1)} parameter(1)
  %p2.2 = f32[2048]{0} parameter(2)
  %gather.2 = bf16[4096,4096]{1,0:T(8,128)(2,1)S(1)} GATHER.2
  %exp.2 = f32[2048]{0} exponential(%p2.2)
  ROOT %step.2 = (f32[2048]{0}, bf16[1024,4096]{1,0:S(1)}, bf16[4096,4096]{1,0:S(1)}) tuple(%exp.2, %p0.2, %gather.2)
}

%fused_computation.1069 (p0.3: bf16[1024,4096], p1.3: bf16[4096,4096]) -> bf16[4096,4096] {
  %p0.3 = bf16[1024,4096]{1,0:T(8,128)(2,1)S(1)} parameter(0)
  %p1.3 = bf16[4096,4096]{1,0:T(8,128)(2,1)S(1)} parameter(1)
  %gather.3 = bf16[4096,4096]{1,0:T(8,128)(2,1)} GATHER.3
  ROOT %done.3 = bf16[4096,4096]{1,0:S(1)} custom-call(%p0.3, %p1.3, %gather.3), custom_call_target="AsyncCollectiveDone"
}

%body (state: (bf16[1024,4096], bf16[4096,4096], f32[2048])) -> (bf16[1024,4096], bf16[4096,4096], f32[2048]) {
  %state = (bf16[1024,4096]{1,0:S(1)}, bf16[4096,4096]{1,0:S(1)}, f32[2048]{0}) parameter(0)
  %b0 = bf16[1024,4096]{1,0:S(1)} get-tuple-element(%state), index=0
  %b1 = bf16[4096,4096]{1,0:S(1)} get-tuple-element(%state), index=1
  %b2 = f32[2048]{0} get-tuple-element(%state), index=2
  %fusion.901 = (f32[2048]{0}, bf16[1024,4096]{1,0:S(1)}, bf16[4096,4096]{1,0:S(1)}) fusion(%b0, %b1, %b2), kind=kLoop, calls=%async_collective_fusion.901
  %c0 = bf16[1024,4096]{1,0:S(1)} get-tuple-element(%fusion.901), index=1
  %c1 = bf16[4096,4096]{1,0:S(1)} get-tuple-element(%fusion.901), index=2
  %c2 = f32[2048]{0} get-tuple-element(%fusion.901), index=0
  ROOT %next = (bf16[1024,4096]{1,0:S(1)}, bf16[4096,4096]{1,0:S(1)}, f32[2048]{0}) tuple(%c0, %c1, %c2)
}

%condition (state.1: (bf16[1024,4096], bf16[4096,4096], f32[2048])) -> pred[] {
  %state.1 = (bf16[1024,4096]{1,0:S(1)}, bf16[4096,4096]{1,0:S(1)}, f32[2048]{0}) parameter(0)
  ROOT %less = pred[] constant(false)
}

ENTRY %main (w: bf16[1024,4096], x: f32[2048], y: f32[4096,4096]) -> bf16[4096,4096] {
  %w = bf16[1024,4096]{1,0:T(8,128)(2,1)} parameter(0)
  %x = f32[2048]{0} parameter(1)
  %y = f32[4096,4096]{1,0} parameter(2)
  %async-collective-start = (bf16[1024,4096]{1,0:S(1)}, bf16[4096,4096]{1,0:S(1)}) fusion(%w), kind=kCustom, calls=%fused_computation.1066
  %g0 = bf16[1024,4096]{1,0:S(1)} get-tuple-element(%async-collective-start), index=0
  %g1 = bf16[4096,4096]{1,0:S(1)} get-tuple-element(%async-collective-start), index=1
  %exp.1 = f32[4096,4096]{1,0} exponential(%y)
  %init = (bf16[1024,4096]{1,0:S(1)}, bf16[4096,4096]{1,0:S(1)}, f32[2048]{0}) tuple(%g0, %g1, %x)
  %while.31 = (bf16[1024,4096]{1,0:S(1)}, bf16[4096,4096]{1,0:S(1)}, f32[2048]{0}) while(%init), condition=%condition, body=%body, backend_config={"known_trip_count":{"n":"8"}}
  %h0 = bf16[1024,4096]{1,0:S(1)} get-tuple-element(%while.31), index=0
  %h1 = bf16[4096,4096]{1,0:S(1)} get-tuple-element(%while.31), index=1
  %h2 = f32[2048]{0} get-tuple-element(%while.31), index=2
  %fusion.902 = (f32[2048]{0}, bf16[1024,4096]{1,0:S(1)}, bf16[4096,4096]{1,0:S(1)}) fusion(%h0, %h1, %h2), kind=kLoop, calls=%async_collective_fusion.901
  %k0 = bf16[1024,4096]{1,0:S(1)} get-tuple-element(%fusion.902), index=1
  %k1 = bf16[4096,4096]{1,0:S(1)} get-tuple-element(%fusion.902), index=2
  ROOT %async-collective-done = bf16[4096,4096]{1,0:S(1)} fusion(%k0, %k1), kind=kCustom, calls=%fused_computation.1069
}
"""  # noqa: E501
for step in "123":
    STEPS = STEPS.replace(f"GATHER.{step}", GATHER.format(f".{step}"))


@pytest.mark.parametrize("size", [4096, 16384])
def test_an_asynchronous_collective_is_counted_once(size):
    """Its steps compute beside it, and its end waits for the rest: with ``size`` 16384, there is no rest."""
    program = hlo.parse(STEPS.replace("f32[4096,4096]", f"f32[{size},4096]"))
    predicted = predict(program, MESH)
    [gather] = predicted.collectives
    assert (gather.kind, gather.axes, gather.count, gather.bytes) == ("all-gather", ("fsdp",), 1, 2 * 4096 * 4096)
    assert predicted.elementwise == size * 4096 + 9 * 2048
    read = 2 * 1024 * 4096 / CHIP.memory_bandwidth  # by the start, before the gather begins
    hidden = predicted.compute_seconds - read
    assert predicted.exposed_seconds == pytest.approx(max(gather.seconds - hidden, 0.0))
    assert (predicted.exposed_seconds > 0) == (size == 4096)


REACHED = CHIPS["h200"].reached
PRODUCTS, MEMORY = REACHED.products * 989e12, REACHED.memory * 4.8e12
PRODUCT = program_of(product_of_cublas("bf16[32768,768]{1,0}", "1", "0"), "bf16[32768,768]", "bf16[768,768]")
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


# FLOP, bytes and kernels of the steps that an H200 ran at commit a2c18cd, as a plan compiles them, and milliseconds.
MEASURED = {
    "BERT-base, 256 x 128": (18.134e12, 117.43e9, 1555, 54.8),
    "BERT-large, 16 x 512": (16.947e12, 81.48e9, 2565, 45.7),
    "ModernBERT-base, 16 x 1,024": (14.128e12, 80.31e9, 1412, 43.4),
    "ModernBERT 8 x 512, 256 x 128": (6.235e12, 50.97e9, 539, 21.6),
    "BERT 8 x 512, 256 x 128": (5.746e12, 56.49e9, 1068, 22.4),
}


@pytest.mark.parametrize("step", MEASURED)
def test_steps_that_an_h200_ran_are_predicted_within_a_tenth(step):
    flops, moved, kernels, measured = MEASURED[step]
    whole = seconds_of(Cost(bf16=flops, bytes=moved), CHIPS["h200"])
    whole["kernel starts"] *= kernels
    assert 1e3 * sum(whole.values()) == pytest.approx(measured, rel=0.1)


def test_a_cpu_computes_and_moves_in_turn():
    cpu = Chip("cpu", "cpu", {"bf16": 2.0, "f32": 4.0}, 10.0, 1.0, 8.0, 1.0, 1, 1.0, transcendentals=5.0)
    found = seconds_of(Cost(f32=8.0, elementwise=30.0, transcendentals=10.0, bytes=8.0), cpu)
    assert found == {"products": 2.0, "elementwise": 2.0 + 2.0, "memory": 1.0}
