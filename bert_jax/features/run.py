"""Runs ``bert-jax features``: reads a file of texts and writes a file of their vectors."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal

from bert_jax.errors import UserError
from bert_jax.features.extract import Encoder, Extractor, ReadCounts, TextFeatures, load_encoder
from bert_jax.features.inputs import Input, check, items, listed
from bert_jax.features.layers import check_layers
from bert_jax.features.writing import check_output, writer

Note = Callable[[str], None]
NOTE_SECONDS = 30.0


@dataclasses.dataclass(frozen=True)
class FeatureRequest:
    """The flags of ``bert-jax features``. See ``Extractor`` for the flags that are its arguments."""

    source: Input
    output: str
    layers: tuple[str, ...] = ("last",)
    workdir: str | None = None
    init: str | None = None
    step: int | None = None
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
    """Write the vectors of every text, in order. The memory needed does not grow with the number of texts.

    Raises:
      UserError: something about the texts, the model or the output is wrong. This is raised before the first batch.
    """
    found = check(request.source)
    if found.num_bad:
        note(f"left out: {listed(found)}")
    encoder = load_encoder(request.workdir, request.init, request.step)
    extractor = Extractor(
        encoder, request.layers, request.max_length, request.batch_size, request.dtype, request.weights
    )
    started = time.monotonic()
    with writer(request.output, extractor.shapes, request.dtype, request.part_mb << 20) as target:
        for features in with_progress(extractor.run(items(request.source)), extractor.counts, found.num_texts, note):
            target.add(features)
        target.finish(facts(request, encoder, extractor))
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


def facts(request: FeatureRequest, encoder: Encoder, extractor: Extractor) -> dict[str, Any]:
    """Return the metadata of the output file."""
    counts = extractor.counts
    return {
        "format": "bert_jax features",
        "layers": ",".join(request.layers),
        "hidden_size": encoder.config.hidden_size,
        "num_layers": encoder.config.num_layers,
        "vocabulary_sha256": encoder.tokenizer.sha256,
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
    line += f", padding {1 - counts.tokens / max(counts.positions, 1):.1%}"
    if counts.cut_texts:
        line += f"; {counts.cut_texts:,} texts cut at {extractor.max_length} tokens, {counts.cut_tokens:,} left out"
    return line
