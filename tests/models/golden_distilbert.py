"""Sizes and head classes of the tiny DistilBERTs, and where their golden arrays lie; ``golden_heads`` has the rest."""

from pathlib import Path

from tests.models import golden_heads

GOLDEN = Path(__file__).with_name("golden_distilbert.npz")
KINDS = tuple(kind for kind in golden_heads.KINDS if kind != "encoder")
STORED = ("masked_lm", "classification")  # the kinds with arrays in the file; their encoders are the same
