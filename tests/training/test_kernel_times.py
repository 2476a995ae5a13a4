"""How a traced step on a GPU splits. Names of kernels are of a step that an H200 ran."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import pytest
from jax.profiler import ProfileData

from bert_jax.reporting.report import write_report
from bert_jax.reporting.report_speed import kernel_times
from bert_jax.training import profiling
from tests.training.test_profiling import trained

KERNELS = {
    "nvjet_sm90_tst_128x128_64x6_2x1_v_bz_TNT": "products",
    "nvjet_sm90_tst_192x192_64x3_1x2_h_bz_coopB_splitK_NTN": "products",
    "gemm_fusion_dot_78": "products",
    "gemm_fusion_dot_general_391": "products",
    "void cublasLt::splitKreduce_kernel<32, 16, int>(cublasLt::cublasSplitKParams<float>, float const*)": "products",
    "sm80_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x32": "products",
    "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_128x128_32x4_tn_align8>": "products",
    "flash_attention_forward": "attention",
    "flash_attention_of_keys": "attention",
    "flash_attention_of_queries__1": "attention",
    "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x128": "attention",
    "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)": "communication",
    "input_convert_transpose_fusion_23": "other kernels",
    "loop_add_fusion_47": "other kernels",
    "input_reduce_fusion_253": "other kernels",
    "input_scatter_fusion": "other kernels",
    "fusion_5657": "other kernels",
    "wrapped_concatenate_31": "other kernels",
    "Memset 0": "other kernels",
    "MemcpyD2D": "other kernels",
}


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_kernel_is_known_by_its_name(kernel: str) -> None:
    assert profiling.kind_of(kernel, "command_buffer_1") == KERNELS[kernel]


def test_a_collective_is_known_by_its_instruction() -> None:
    assert profiling.kind_of("one_shot_kernel", "all-reduce-start.3") == "communication"


def trace(*events: tuple[str, str, int, int], plane: str = "/device:GPU:0") -> ProfileData:
    """Return a trace of (stream, kernel, start and duration in microseconds)."""
    names = {name: number for number, name in enumerate(dict.fromkeys(event[1] for event in events), 1)}
    lines = [
        f'lines {{ id: {number} name: "{stream}" timestamp_ns: 5000 '
        + " ".join(
            f"events {{ metadata_id: {names[kernel]} offset_ps: {start * 10**6} duration_ps: {length * 10**6} "
            'stats { metadata_id: 1 str_value: "command_buffer_1" } }'
            for of, kernel, start, length in events
            if of == stream
        )
        + " }"
        for number, stream in enumerate(dict.fromkeys(event[0] for event in events))
    ]
    metadata = [f'event_metadata {{ key: {n} value {{ id: {n} name: "{name}" }} }}' for name, n in names.items()]
    stats = 'stat_metadata { key: 1 value { id: 1 name: "hlo_op" } }'
    return ProfileData.from_text_proto(f'planes {{ name: "{plane}" {" ".join([*lines, *metadata, stats])} }}')


COMPUTE, NETWORK = "Stream #13(Compute)", "Stream #21(Compute)"
STEPS = trace(
    (COMPUTE, "nvjet_sm90_tst", 0, 4000),
    (COMPUTE, "flash_attention_forward", 4000, 1000),
    (COMPUTE, "loop_add_fusion", 6000, 2000),
    (NETWORK, "ncclDevKernel_AllReduce", 7000, 1800),  # 1000 of it beside the addition
    (COMPUTE, "gemm_fusion_dot_1", 9000, 1000),
    ("XLA Modules", "jit_train_step", 0, 20_000),  # what a viewer derives from the kernels
)


def test_the_parts_of_a_step_add_up_and_what_is_hidden_counts_once() -> None:
    found = profiling.times_of_trace(STEPS, 2)
    parts = {"products": 2.5, "attention": 0.5, "other kernels": 1.0, "communication": 0.4, "idle": 0.6}
    assert found == pytest.approx(parts)
    assert list(found) == list(parts)


def test_without_communication_none_is_named() -> None:
    found = profiling.times_of_trace(trace((COMPUTE, "nvjet", 100, 300)), 1)
    assert found == pytest.approx({"products": 0.3, "attention": 0.0, "other kernels": 0.0, "idle": 0.0})


@pytest.mark.parametrize("plane", ["/host:CPU", "/device:TPU:0"])
def test_a_trace_without_a_gpu_has_no_split(plane: str) -> None:
    assert profiling.times_of_trace(trace((COMPUTE, "nvjet", 0, 1), plane=plane), 1) is None


def test_the_report_of_a_run_on_a_gpu_says_how_a_step_splits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trained(tmp_path / "cpu", 6, 7)
    assert not (tmp_path / "cpu" / "profile.json").exists()
    monkeypatch.setattr(jax.profiler, "ProfileData", type("Trace", (), {"from_file": staticmethod(lambda _: STEPS)}))
    trained(tmp_path / "gpu", 6, 7)
    said = "steps 6 to 7 on a GPU, each: 5 ms = products 2.5 (50%), attention 0.5 (10%), other kernels 1 (20%), "
    assert f"{said}communication 0.4 (8%), idle 0.6 (12%)" in capsys.readouterr().err
    titles = ["Where the time of a step on the GPU went" in report(tmp_path / name) for name in ("cpu", "gpu")]
    assert titles == [False, True]
    assert "A step of the traced steps 6 to 7, on the first GPU: 5 ms." in report(tmp_path / "gpu")


@pytest.mark.parametrize(
    "damaged", [{}, {"milliseconds": [1]}, {"milliseconds": {"idle": "x"}}, {"milliseconds": {"idle": 0}}, {"steps": 1}]
)
def test_a_damaged_split_is_left_out(damaged: Any) -> None:
    assert kernel_times(damaged) == ""


def report(workdir: Path) -> str:
    return Path(write_report(workdir)).read_text()
