"""What the suite measures: one figure is one train step, whose sides do the same work."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

VOCABULARY = 30_522
OURS, STRONG, HUGGING_FACE = "ours", "PyTorch", "Hugging Face"


@dataclasses.dataclass(frozen=True)
class Side:
    """Who does the work of a figure, and in which dtype.

    ``STRONG`` is the fastest PyTorch that we can write (``peers.py``), ``HUGGING_FACE`` transformers as users run it.
    """

    who: Literal["ours", "PyTorch", "Hugging Face"]
    dtype: Literal["float32", "bfloat16"]

    @property
    def name(self) -> str:
        return f"{self.who}, {self.dtype}"

    @property
    def packages(self) -> tuple[str, ...]:
        """The packages that this side needs."""
        return {OURS: ("jax", "flax", "optax"), STRONG: ("torch",), HUGGING_FACE: ("torch", "transformers")}[self.who]


@dataclasses.dataclass(frozen=True)
class Figure:
    """A whole train step: forward, backward, dropout, clipping and AdamW.

    Attributes:
      task: "pretraining" of a BERT is masked LM with next sentences, of a ModernBERT masked LM; "fine-tuning" is the
        classification of a sequence by a BERT.
      masked: the predicted positions of a row in pretraining.
      sequences: packed sequences of a row. Hugging Face's classes cannot pack: they get rows of one sequence each.
    """

    name: str
    task: Literal["pretraining", "fine-tuning"]
    layers: int
    hidden: int
    heads: int
    rows: int
    length: int
    masked: int = 20
    sequences: int = 1
    model: Literal["bert", "modernbert"] = "bert"

    @property
    def mlp_dim(self) -> int:
        return 4 * self.hidden if self.model == "bert" else 3 * self.hidden // 2

    def described(self) -> str:
        packed = f", {self.sequences} sequences packed" if self.sequences > 1 else ""
        sizes = f"{self.layers} layers x {self.hidden}, {self.rows} rows of {self.length} positions"
        return f"{self.task} of {self.model}, {sizes}{packed}"

    def as_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


SMALL = Figure("small 32 x 128", "pretraining", 4, 512, 8, 32, 128)
BASE = Figure("base 8 x 128", "pretraining", 12, 768, 12, 8, 128)
SENTENCES = Figure("6 x 384, sentences of 64", "fine-tuning", 6, 384, 6, 32, 64)
LARGE_512 = Figure("large 16 x 512 packed", "pretraining", 24, 1024, 16, 16, 512, 80, 2)
BASE_128 = Figure("base 256 x 128", "pretraining", 12, 768, 12, 256, 128)
BASE_FINETUNING = Figure("base 64 x 128", "fine-tuning", 12, 768, 12, 64, 128)
MODERN_1024 = Figure("ModernBERT base 16 x 1,024", "pretraining", 22, 768, 12, 16, 1024, 307, model="modernbert")
MODERN_8192 = Figure("ModernBERT base 2 x 8,192", "pretraining", 22, 768, 12, 2, 8192, 2457, model="modernbert")
TINY = (
    Figure("tiny pretraining", "pretraining", 1, 32, 2, 4, 32, 4),
    Figure("tiny packed pretraining", "pretraining", 1, 32, 2, 4, 32, 4, 2),
    Figure("tiny fine-tuning", "fine-tuning", 1, 32, 2, 4, 32),
    Figure("tiny ModernBERT", "pretraining", 2, 32, 2, 4, 32, 4, model="modernbert"),
)

FLOAT, BF16 = "float32", "bfloat16"
# Device -> its figures, the most important first, since time may run out; and the sides of each.
FIGURES: dict[str, tuple[Figure, ...]] = {
    "cpu": (SMALL, BASE, SENTENCES),
    "gpu": (MODERN_1024, MODERN_8192, LARGE_512, BASE_128, BASE_FINETUNING),
    "tpu": (LARGE_512, BASE_128, MODERN_1024, MODERN_8192, BASE_FINETUNING),
}
SIDES: dict[str, tuple[Side, ...]] = {
    "cpu": (Side(OURS, FLOAT), Side(OURS, BF16), Side(STRONG, FLOAT), Side(STRONG, BF16), Side(HUGGING_FACE, BF16)),
    "gpu": (Side(OURS, BF16), Side(STRONG, BF16), Side(HUGGING_FACE, BF16)),
    "tpu": (Side(OURS, BF16), Side(OURS, FLOAT)),  # PyTorch does not reach a TPU in such an image
}
