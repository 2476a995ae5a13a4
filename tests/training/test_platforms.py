"""The CPU is chosen where libtpu alone is installed and no TPU is there, and nowhere else."""

import importlib.metadata
import os

import pytest

from bert_jax.training import platforms


@pytest.mark.parametrize(
    ("installed", "given", "device", "chosen"),
    [
        (["libtpu"], {}, "", True),
        (["libtpu"], {}, "accel0", False),
        (["libtpu"], {}, "vfio/0", False),
        (["libtpu"], {}, "vfio/vfio", True),  # the door to VFIO is there on every machine that has it
        (["libtpu"], {"TPU_WORKER_HOSTNAMES": "a"}, "", False),  # as GKE sets it
        (["libtpu"], {"JAX_PLATFORMS": "tpu"}, "", False),
        (["libtpu"], {"JAX_PLATFORMS": ""}, "", False),  # what the user set, even to nothing
        (["libtpu", "jax_plugins"], {}, "", False),  # of a GPU
        ([], {}, "", False),
    ],
)
def test_what_is_chosen(installed, given, device, chosen, tmp_path, monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", "")  # so that it is put back whatever happens
    for name in [name for name in os.environ if name.startswith(("JAX_PLATFORM", "TPU_", "COLAB_TPU", "MEGASCALE_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(platforms.importlib.util, "find_spec", lambda name: name in installed or None)
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: [])
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    if device:
        (tmp_path / device).parent.mkdir(exist_ok=True)
        (tmp_path / device).touch()
    before = os.environ.get("JAX_PLATFORMS")
    platforms.choose_cpu(tmp_path)
    after = os.environ.get("JAX_PLATFORMS")
    assert after == ("cpu" if chosen else before)
