"""The mesh axes over which a program communicates, and the time that this takes."""

import numpy as np
import pytest

from bert_jax.planning import collectives
from bert_jax.planning.chips import CHIPS
from bert_jax.planning.collectives import Fabric
from tests.planning.programs import program_of

CHIP = CHIPS["v5e"]
MESH = Fabric(("data", "fsdp"), (2, 4), CHIP)


def members(attributes: str) -> list[int]:
    program = program_of(f"%c = f32[2]{{0}} all-reduce(%p0), {attributes}, to_apply=%s", "f32[2]{0}")
    return collectives.members(program.root, 8)


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
    [
        ([0, 4], ("data",)),
        ([0, 1, 2, 3], ("fsdp",)),
        ([*range(8)], ("data", "fsdp")),
        ([0, 1], ("part of fsdp",)),
        ([0, 5], ("part of data", "fsdp")),
        ([3], ()),
    ],
)
def test_axes(group, axes):
    assert MESH.axes(group) == axes


def test_links_of_a_torus():
    """A row of 16 on v5e is a ring, with both directions of its links. A shorter row is a line."""
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
    """jax-ml/scaling-book, gpus.md: 450 GB/s into a GPU from its node, 8 x 50 into a node from other nodes."""
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
    program = program_of("%c = f32[8,16] all-to-all(%p0), replica_groups=[2,4]<=[8], dimensions={0}", "f32[8,16]")
    assert collectives.collective_of(program.root, MESH).bytes == 4 * 4 * 8 * 16
