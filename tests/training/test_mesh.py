"""Where devices lie on the mesh when a job spans several slices."""

from __future__ import annotations

import dataclasses

import pytest

from bert_jax.errors import UserError
from bert_jax.training.mesh import MeshConfig, _arrange, make_mesh


@dataclasses.dataclass(frozen=True)
class Device:
    """What is asked of a device."""

    id: int
    process_index: int
    platform: str = "cpu"
    device_kind: str = "cpu"


DEVICES = [Device(i, i // 4) for i in range(8)]


def test_only_the_data_axis_leaves_a_slice() -> None:
    found = _arrange(DEVICES, [4, 2, 1], 2)  # type: ignore[arg-type]
    for row in range(4):
        assert len({device.process_index for device in found[row].ravel()}) == 1
    assert [device.process_index for device in found[:, 0, 0]] == [0, 0, 1, 1]
    assert {device.id for device in found.ravel()} == set(range(8))


def test_overlap_is_for_tpus() -> None:
    with pytest.raises(UserError, match=r"config.mesh.overlap is True, which is for TPUs, and the devices are cpu"):
        make_mesh(MeshConfig(overlap=True), DEVICES)  # type: ignore[arg-type]
    tpus = [dataclasses.replace(device, platform="tpu") for device in DEVICES]
    with pytest.raises(UserError, match="does not divide the 8 devices"):  # the next check
        make_mesh(MeshConfig(data=3, overlap=True), tpus)  # type: ignore[arg-type]


def test_bad_slices() -> None:
    with pytest.raises(UserError, match=r"config.mesh.data is 2, which 4 slices do not divide"):
        _arrange(DEVICES, [2, 4, 1], 4)  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"config.mesh.slices is 4; the devices are in 2"):
        _arrange(DEVICES, [8, 1, 1], 4)  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"config.mesh.slices is 0; at least 1 is needed"):
        make_mesh(MeshConfig(slices=0))
