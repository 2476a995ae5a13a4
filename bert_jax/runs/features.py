"""Runs ``bert-jax features``: reads a file of texts and writes a file of their vectors."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal

from bert_jax.errors import UserError
from bert_jax.features.extract import Extractor, ReadCounts, TextFeatures
from bert_jax.features.inputs import Input, read_texts
from bert_jax.features.layers import check_layers
from bert_jax.features.trained_model import TrainedModel
from bert_jax.features.writing import check_output, write
from bert_jax.interchange.loading import load

Note = Callable[[str], None]
NOTE_SECONDS = 30.0


@dataclasses.dataclass(frozen=True)
class FeatureRequest:
    """The flags of ``bert-jax features``. See ``Extractor`` for the flags that are its arguments."""

    source: Input
    output: str
    workdir: str  # or another source that ``load`` takes
    step: int | None = None
    layers: tuple[str, ...] = ("last",)
    max_length: int | None = None
    batch_size: int = 32
    dtype: Literal["float32", "float16"] = "float32"
    weights: tuple[float, ...] | None = None
    part_mb: int = 512  # size of each file in MiB, if the output is a folder

    def __post_init__(self) -> None:
        check_layers(self.layers)
        check_output(self.output)
        if self.part_mb < 1:
            raise UserError(f"--part_mb is {self.part_mb}; at least 1 is needed")


def write_features(request: FeatureRequest, note: Note) -> ReadCounts:
    """Write the vectors of every text, in order. The vectors need not fit into memory.

    Raises:
      UserError: something about the texts, the model or the output is wrong. This is raised before the first batch.
    """
    texts = read_texts(request.source, note)
    model = load(request.workdir, request.step)
    how = (request.max_length, request.batch_size, request.dtype, request.weights)
    extractor = Extractor(model, request.layers, *how)
    started = time.monotonic()
    features = with_progress(extractor.run(texts), extractor.counts, len(texts), note)
    write(request.output, features, lambda: facts(request, model, extractor), request.part_mb << 20)
    note(f"{summary(extractor, time.monotonic() - started)}; wrote {request.output}")
    return extractor.counts


def with_progress(
    features: Iterable[TextFeatures], counts: ReadCounts, num_texts: int, note: Note
) -> Iterator[TextFeatures]:
    """Yield ``features``, and call ``note`` with the progress from time to time."""
    last = time.monotonic()
    for number, one in enumerate(features, 1):
        yield one
        if time.monotonic() - last > NOTE_SECONDS:
            last = time.monotonic()
            note(f"{number:,} of {num_texts:,} texts, {counts.tokens:,} tokens read")


def facts(request: FeatureRequest, model: TrainedModel, extractor: Extractor) -> dict[str, Any]:
    """Return the metadata of the output file."""
    counts = extractor.counts
    return {
        "format": "bert_jax features",
        "layers": ",".join(request.layers),
        "hidden_size": model.config.hidden_size,
        "num_layers": model.config.num_layers,
        "vocabulary_sha256": model.tokenizer.sha256,
        "max_length": extractor.max_length,
        "texts": counts.texts,
        "tokens": counts.tokens,
        "cut_texts": counts.cut_texts,
        "cut_tokens": counts.cut_tokens,
    }


def summary(extractor: Extractor, seconds: float) -> str:
    """Return a line that says how much was read, cut and padded."""
    counts = extractor.counts
    line = f"{counts.texts:,} texts, {counts.tokens:,} tokens in {seconds:.1f} s ({counts.tokens / seconds:,.0f}/s)"
    line += f", padding {extractor.padding:.1%}"
    if counts.cut_texts:
        line += f"; {counts.cut_texts:,} texts cut at {extractor.max_length} tokens, {counts.cut_tokens:,} left out"
    return line
