"""Programs of a few lines."""

from bert_jax.planning import hlo


def program_of(root: str, *parameters: str, before: str = "") -> hlo.Computation:
    """Return a program of one instruction. ``parameters``: the shapes of %p0, %p1, ..."""
    lines = [f"  %p{number} = {shape} parameter({number})" for number, shape in enumerate(parameters)]
    return hlo.parse(
        "\n".join(["HloModule m", before, "ENTRY %e (p: f32[1]) -> f32[1] {", *lines, f"  ROOT {root}", "}"])
    )


def product_of_cublas(shape: str, left: str, right: str, target: str = "__cublas$lt$matmul") -> str:
    """Return a call as an H200 ran it, with 32 MiB to work in. ``left``, ``right``: the contracted dimension."""
    return (
        f'%c = ({shape}, s8[33554432]{{0}}) custom-call(%p0, %p1), custom_call_target="{target}", backend_config='
        '{"device_type":"DEVICE_TYPE_INVALID","gemm_backend_config":{"alpha_imag":0,"alpha_real":1,'
        '"autotune_workspace_size":"33554432","beta":0,"damax_output":false,"dot_dimension_numbers":'
        f'{{"lhs_batch_dimensions":[],"lhs_contracting_dimensions":["{left}"],"rhs_batch_dimensions":[],'
        f'"rhs_contracting_dimensions":["{right}"]}},"epilogue":"DEFAULT","selected_algorithm":"5"}}}}'
    )
