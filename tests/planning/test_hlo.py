"""The text of a program: what it costs, over which axes it talks, what hides behind what."""

import numpy as np
import pytest

from bert_jax.planning import collectives, costs, hlo
from bert_jax.planning.chips import CHIPS
from bert_jax.planning.collectives import Fabric
from bert_jax.planning.prediction import predict

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


def instruction(line: str) -> hlo.Instruction:
    text = f"HloModule m\n\nENTRY %e (p: f32[2]) -> f32[2] {{\n  %p = f32[2]{{0}} parameter(0)\n  {line}\n}}\n"
    return hlo.parse(text).instructions[-1]


def members(attributes: str) -> list[int]:
    return collectives.members(instruction(f"%c = f32[2]{{0}} all-reduce(%p), {attributes}, to_apply=%s"), 8)


def test_reads_names_shapes_and_the_root():
    program = hlo.parse(PROGRAM)
    assert program.name == "main"
    assert program.root.name == "all"
    first = program.instructions[0]
    assert (first.opcode, first.arrays[0].dims, first.arrays[0].bytes) == ("parameter", (8, 4), 64)
    loop, fusion = program.by_name["loop"], program.by_name["fusion.1"]
    assert loop.arrays[1] == hlo.Array("f32", (8, 16))
    assert {name: called.name for name, called in loop.calls.items()} == {"condition": "condition", "body": "body"}
    assert fusion.calls["calls"].name == "fused"
    assert [one.name for one in fusion.operands] == ["x0", "x1"]
    assert [one.name for one in first.users] == ["start", "fusion.1"]


def test_memory_space():
    there, here = instruction("%t = (bf16[3,5]{1,0:T(8,128)(2,1)S(1)}, pred[7]{0}) custom-call(%p)").arrays
    assert (there.space, there.bytes, here.space, here.bytes) == (1, 30, 0, 7)


def test_a_fusion_costs_its_work_and_the_traffic_at_its_border():
    program = hlo.parse(PROGRAM)
    cost = costs.cost(program.by_name["fusion.1"])
    assert (cost.bf16, cost.f32) == (2 * 8 * 16 * 4, 0)
    assert cost.elementwise == 8 * 16
    assert cost.bytes == 64 + 128 + 512  # two operands in bfloat16, the result in float32


def test_a_kernel_costs_what_it_says():
    """``costs`` reads the work from the kernel's own estimate, and the traffic from its operands and results."""
    told = '{"flops":"4096","transcendentals":"640","bytes_accessed":"99","remote_bytes_transferred":"0"}'
    kernel = "(bf16[8,128]{1,0}, f32[8]{0:S(1)}) custom-call(%p)"
    program = hlo.parse(
        "HloModule m\n\nENTRY %e (p: bf16[8,128]) -> (bf16[8,128], f32[8]) {\n"
        "  %p = bf16[8,128]{1,0} parameter(0)\n"
        f'  ROOT %k = {kernel}, custom_call_target="tpu_custom_call", backend_config={{"flag_configs":[],'
        f'"custom_call_config":{{"body":"TUzv","cost_estimate":{told},"serialization_format":"1"}}}}\n}}\n'
    )
    cost = costs.cost(program.root)
    assert (cost.bf16, cost.elementwise, cost.bytes) == (4096.0, 640.0, 2 * 2 * 8 * 128)


@pytest.mark.parametrize("batch", ["", "3,"])
@pytest.mark.parametrize("causal", [False, True])
def test_a_splash_kernel_that_says_nothing_is_counted(batch, causal):
    """Of a causal mask there is an operand more, the places of queries. Attributes are over several lines."""
    factor, of_queries, of_keys = f"bf16[{batch}12,64,512]", f"s32[{batch}512,128]", f"s32[{batch}8,512]"
    operands = ["s8[1,4,4]", "s8[1,4,4]", *[factor] * 3, of_queries, of_keys, *["s32[512,128]"] * causal]
    names = ", ".join(f"%p{number}" for number in range(len(operands)))
    lines = "".join(f"  %p{number} = {shape} parameter({number})\n" for number, shape in enumerate(operands))
    program = hlo.parse(
        f"HloModule m\n\nENTRY %e (p: f32[]) -> {factor} {{\n{lines}"
        f"  %splash_mha_fwd_segmented_residuals.1 = (f32[512,128], {factor}) custom-call({names}), "
        'custom_call_target="tpu_custom_call", frontend_attributes={kernel_metadata={\n"blocks":"{}"\n}}\n'
        f"  ROOT %out = {factor} get-tuple-element(%splash_mha_fwd_segmented_residuals.1), index=1\n}}\n"
    )
    cost = costs.cost(program.instructions[-2])
    pairs = (3 if batch else 1) * 12 * 512 * 512 // (2 if causal else 1)
    assert cost.bf16 == 2 * 2 * pairs * 128  # two products, in which heads are padded to 128 lanes
    assert cost.elementwise == 8 * pairs


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
    """Its steps compute beside it, and its end waits for what they have not hidden: with ``size`` 16384, nothing."""
    program = hlo.parse(STEPS.replace("f32[4096,4096]", f"f32[{size},4096]"))
    predicted = predict(program, MESH)
    [gather] = predicted.collectives
    assert (gather.kind, gather.axes, gather.count, gather.bytes) == ("all-gather", ("fsdp",), 1, 2 * 4096 * 4096)
    assert predicted.elementwise == size * 4096 + 9 * 2048
    read = 2 * 1024 * 4096 / CHIP.memory_bandwidth  # by the start, before the gather begins
    hidden = predicted.compute_seconds - read
    assert predicted.exposed_seconds == pytest.approx(max(gather.seconds - hidden, 0.0))
    assert (predicted.exposed_seconds > 0) == (size == 4096)


@pytest.mark.parametrize(
    ("attributes", "expected"),
    {
        "listed": ("replica_groups={{0,2},{1,3}}", [0, 2]),
        "counted": ("replica_groups=[2,4]<=[8]", [0, 1, 2, 3]),
        "transposed": ("replica_groups=[4,2]<=[2,4]T(1,0)", [0, 4]),
        "mesh": ("replica_groups=mesh['a'=2,'b'=4] {'a'}", [0, 4]),
        "mesh, all": ("replica_groups=mesh['a'=2,'b'=2] {'a','b'}", [0, 1, 2, 3]),
        "mesh, ordered": (
            "replica_groups=mesh['a'=2,'b'=2], device_ids=([2,2]T(1,0)) {'b'}, use_global_device_ids=true",
            [0, 2],
        ),
        "pairs": ("source_target_pairs={{0,1},{1,0}}", [0, 1]),
        "none": ("channel_id=1, replica_groups={}", [0, 1, 2, 3, 4, 5, 6, 7]),
    }.values(),
)
def test_members_of_the_first_group(attributes, expected):
    assert members(attributes) == expected


@pytest.mark.parametrize(
    ("group", "axes"),
    [([0, 4], ("data",)), ([0, 1, 2, 3], ("fsdp",)), ([*range(8)], ("data", "fsdp")), ([0, 1], ("?",)), ([3], ())],
)
def test_axes(group, axes):
    assert MESH.axes(group) == axes


def test_links_of_a_torus():
    """A row of 16 on v5e is a ring: both directions of its links. A shorter one is a line."""
    where = np.stack(np.unravel_index(np.arange(256), (16, 16)), axis=-1)
    places = np.concatenate([np.zeros((256, 1), int), where], axis=1)
    torus = Fabric(("data", "fsdp"), (16, 16), CHIP, places, (16, 16))
    assert torus.rates([*range(16)]) == (2 * CHIP.link_bandwidth, 8)
    assert torus.rates([*range(8)]) == (CHIP.link_bandwidth, 7)
    assert torus.rates([*range(256)]) == (4 * CHIP.link_bandwidth, 16)
    far = Fabric(("data",), (2,), CHIP, np.array([[0, 0, 0], [1, 0, 0]]), (1, 1))
    assert far.rates([0, 1])[0] == CHIP.network_bandwidth


@pytest.mark.parametrize(("shape", "closed"), [((4, 4, 4), True), ((2, 4, 4), False), ((2, 2, 4), False)])
def test_only_whole_cubes_close_their_axes(shape, closed):
    """jax-ml/scaling-book, tpus.md: "a 2x2x4 won't have any wraparounds"."""
    chip, count = CHIPS["v5p"], int(np.prod(shape))
    where = np.stack(np.unravel_index(np.arange(count), shape), axis=-1)
    slice_ = Fabric(("data",), (count,), chip, np.concatenate([np.zeros((count, 1), int), where], axis=1), shape)
    assert slice_.rates([*range(4)])[0] == (2 if closed else 1) * chip.link_bandwidth


def test_links_of_gpus():
    """gpus.md of the same: 450 GB/s into a GPU from its node, 8 x 50 into a node from the others."""
    chip = CHIPS["h100"]
    nodes = Fabric(("data",), (16,), chip, per_host=8)
    assert nodes.rates([*range(8)]) == (450e9, 1)
    assert nodes.rates([*range(16)]) == (400e9, 1)
    assert nodes.rates([0, 8]) == (50e9, 1)


@pytest.mark.parametrize(
    ("kind", "bandwidth", "members", "part", "seconds"),
    [
        ("all-gather", 9e10, 16, 0.25, 15 / 16 * 9e9 / 9e10),
        ("all-reduce", 9e10, 16, 0.25, 2 * 15 / 16 * 9e9 / 9e10),
        ("all-to-all", 9e10, 16, 0.25, 15 / 16 * 9e9 / 4 / 9e10),
        ("all-to-all", 4.5e11, 8, 1 / 8, 7 / 64 * 9e9 / 4.5e11),
        ("collective-permute", 4.5e10, 2, 0.25, 9e9 / 4.5e10),
        ("all-reduce", 9e10, 1, 0.25, 0.0),
    ],
)
def test_how_long_a_collective_takes(kind, bandwidth, members, part, seconds):
    assert collectives.duration(kind, int(9e9), bandwidth, 1, members, part) == pytest.approx(seconds)


def test_an_all_to_all_is_of_what_all_hold():
    text = "HloModule m\n\nENTRY %e (a: f32[8,16]) -> f32[8,16] {\n  %a = f32[8,16] parameter(0)\n"
    text += "  ROOT %c = f32[8,16] all-to-all(%a), replica_groups=[2,4]<=[8], dimensions={0}\n}\n"
    program = hlo.parse(text)
    assert collectives.collective_of(program.root, MESH).bytes == 4 * 4 * 8 * 16


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
    text = (
        f"HloModule m\n\nENTRY %e (a: f32[1]) -> f32[1] {{\n  %a = {left} parameter(0)\n  %b = {right} parameter(1)\n"
    )
    text += f"  ROOT %c = {out} convolution(%a, %b), {attributes}\n}}\n"
    program = hlo.parse(text)
    cost = costs.cost(program.root)
    assert (cost.products, cost.elementwise) == (expected, 0)


def test_a_slice_costs_what_it_cuts_out():
    text = """HloModule m

%cut (w: f32[24,100], i: s32[]) -> f32[1,100] {
  %w = f32[24,100]{1,0} parameter(0)
  %i = s32[] parameter(1)
  %c = s32[] constant(0)
  ROOT %s = f32[1,100]{1,0} dynamic-slice(%w, %i, %c), dynamic_slice_sizes={1,100}
}

ENTRY %e (w0: f32[24,100], i0: s32[]) -> f32[1,100] {
  %w0 = f32[24,100]{1,0} parameter(0)
  %i0 = s32[] parameter(1)
  ROOT %f = f32[1,100]{1,0} fusion(%w0, %i0), kind=kLoop, calls=%cut
}
"""
    program = hlo.parse(text)
    assert costs.cost(program.root).bytes == 400 + 400 + 4
    outer = """
%outer (w2: f32[24,100], i2: s32[]) -> f32[1,100] {
  %w2 = f32[24,100]{1,0} parameter(0)
  %i2 = s32[] parameter(1)
  ROOT %g = f32[1,100]{1,0} fusion(%w2, %i2), kind=kLoop, calls=%cut
}

ENTRY"""
    program = hlo.parse(
        text.replace("\nENTRY", outer).replace("(%w0, %i0), kind=kLoop, calls=%cut", "(%w0, %i0), calls=%outer")
    )
    assert costs.cost(program.root).bytes == 400 + 400 + 4
