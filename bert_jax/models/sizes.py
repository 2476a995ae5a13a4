"""Named sizes: fields of ``ModelConfig`` that the papers fix."""

from __future__ import annotations


def _size(num_layers: int, hidden_size: int, num_heads: int) -> dict[str, int]:
    return {
        "num_layers": num_layers,
        "hidden_size": hidden_size,
        "num_heads": num_heads,
        "mlp_dim": 4 * hidden_size,
    }


# Devlin et al. 2019, section 3 and table 6 (ablation over model size).
PAPER = {
    "base": _size(12, 768, 12),
    "large": _size(24, 1024, 16),
    "table6_L3_H768_A12": _size(3, 768, 12),
    "table6_L6_H768_A3": _size(6, 768, 3),
    "table6_L6_H768_A12": _size(6, 768, 12),
    "table6_L12_H768_A12": _size(12, 768, 12),
    "table6_L12_H1024_A16": _size(12, 1024, 16),
    "table6_L24_H1024_A16": _size(24, 1024, 16),
}

# The 24 small models of google-research/bert (Turc et al. 2019, "Well-Read Students Learn Better"): heads of 64.
GRID = {f"L{n}_H{d}": _size(n, d, d // 64) for n in (2, 4, 6, 8, 10, 12) for d in (128, 256, 512, 768)}
SMALL = {"tiny": GRID["L2_H128"], "mini": GRID["L4_H256"], "small": GRID["L4_H512"], "medium": GRID["L8_H512"]}

SIZES: dict[str, dict[str, int]] = PAPER | SMALL | GRID
