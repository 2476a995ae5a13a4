"""The peak rates with which a run's speed is compared."""

from types import SimpleNamespace

import jax
import pytest

from bert_jax.planning import peak_rates
from bert_jax.planning.chips import CHIPS, of_device


@pytest.mark.parametrize(
    ("device_kind", "name"),
    [
        ("TPU v5 lite", "v5e"),
        ("TPU v5p", "v5p"),
        ("TPU v5", "v5p"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA A10G", ""),
    ],
)
def test_a_chip_is_known_by_the_longest_of_its_names(device_kind: str, name: str) -> None:
    assert of_device(device_kind) is CHIPS.get(name)


def test_float32_has_a_peak_of_its_own() -> None:
    device = SimpleNamespace(device_kind="NVIDIA H100 80GB HBM3", platform="gpu")
    assert peak_rates.peak_flops(device, "bfloat16") == 2 * peak_rates.peak_flops(device, "float32") == 989e12


def test_devices_of_one_cpu_share_it_and_others_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    rates = {"float32": 8e12, "bfloat16": 16e12}
    monkeypatch.setattr(peak_rates, "matmul_rate", lambda device, dtype: rates[dtype])
    assert peak_rates.peak_flops(jax.devices()[0]) == 1e12  # of the eight of these tests
    assert peak_rates.peak_flops(jax.devices()[0], "bfloat16") == 2e12
    another = SimpleNamespace(device_kind="another", platform="gpu")
    assert [peak_rates.peak_flops(another, dtype) for dtype in ("bfloat16", "float64")] == [16e12, 8e12]


@pytest.mark.parametrize(("narrow", "dtype", "said"), [(1e9, "bfloat16", 1), (9e9, "bfloat16", 0), (1e9, "float32", 0)])
def test_a_cpu_without_fast_bfloat16_is_said(
    narrow: float, dtype: str, said: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peak_rates, "matmul_rate", lambda device, name: narrow if name == "bfloat16" else 2e9)
    lines: list[str] = []
    assert peak_rates.peak_of_all_devices(dtype, lines.append) == (narrow if dtype == "bfloat16" else 2e9)
    assert len(lines) == said
    assert all("(1 GFLOP/s, in float32 2): config.model.dtype=float32" in line for line in lines)


def test_elementwise_rates_are_measured() -> None:
    operations, functions = peak_rates.elementwise_rates(jax.devices()[0], size=2**16)
    assert operations > 0 < functions
