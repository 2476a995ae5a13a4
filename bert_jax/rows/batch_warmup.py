"""A batch that grows in phases, for recipes: small batches learn more from a token while a model is young."""

from __future__ import annotations

from collections.abc import Sequence

from bert_jax.errors import UserError


def batch_warmup(
    sizes: Sequence[int], num_tokens: int, max_length: int, name: str = "phase1"
) -> dict[str, dict[str, int]]:
    """Return phases ``<name>_1``, ``<name>_2``, ... of ``sizes`` rows, which read about ``num_tokens`` positions.

    All these phases have the same number of steps, as in ModernBERT (``BatchSizeWarmupScheduler`` in its
    src/sequence_packer.py). So a size ends after the share (sum of the sizes up to it) / (sum of all sizes) of the
    tokens. The recipe itself has the phase of the full size that follows, such as ``phase2``. The schedule of the run
    goes on through all phases. Each phase compiles another step and deals the rows of the corpus anew.

    Raises ``UserError`` if a size or ``max_length`` is below 1, or ``num_tokens`` less than a step of each size.
    """
    if not sizes or min(*sizes, max_length) < 1:
        raise UserError(
            f"a warm-up of the batch has the sizes {list(sizes)} and max_length {max_length}; give sizes, and 1 or more"
        )
    steps = round(num_tokens / (max_length * sum(sizes)))
    if steps < 1:
        raise UserError(
            f"a warm-up of the batch over {num_tokens:,} tokens has no step of each of {', '.join(map(str, sizes))} "
            f"rows of {max_length}; at least {max_length * sum(sizes):,} are needed"
        )
    return {
        f"{name}_{i}": {"num_steps": steps, "batch_size": size, "max_length": max_length}
        for i, size in enumerate(sizes, start=1)
    }
