"""Writes vectors of texts as parquet.

The output appears only when it is complete, and its vectors need not fit into memory.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bert_jax.errors import UserError
from bert_jax.features.extract import SENTENCE, Extractor, TextFeatures
from bert_jax.features.inputs import Item
from bert_jax.reporting.progress import progress_notes
from bert_jax.storage import files

TOKENS = ("input_ids", "token_type_ids", "word_ids", "offsets")
NOTE_SECONDS = 30.0
GROUP_BYTES = 32 << 20  # about the size of the vectors that are written together


def write_vectors(output: str, extractor: Extractor, items: Sequence[Item], note: Callable[[str], None]) -> None:
    """Write the vectors of ``items``, in order, into ``output``, a file ``*.parquet``.

    ``note`` is called with lines about the progress and, at the end, about what was read and cut.

    Raises:
      UserError: ``output`` already exists, cannot be written, or has another ending.
    """
    check_output(output)
    started = time.monotonic()
    show = progress_notes(note, NOTE_SECONDS, "texts")

    def groups() -> Iterator[list[TextFeatures]]:
        done = 0
        for window in extractor.windows(items):
            num_bytes = sum(vectors.nbytes for one in window for vectors in one.vectors.values())
            size = max(1, len(window) * GROUP_BYTES // num_bytes)
            while window:  # what is written is not kept: the next window needs the memory
                done += len(window[:size])
                yield window[:size]
                del window[:size]
                show(done, len(items))

    with files.whole_file(output) as path:
        _write_parquet(path, groups(), extractor)
    seconds, (texts, tokens, cut_texts, cut_tokens) = time.monotonic() - started, extractor.counts.values()
    line = f"{texts:,} texts, {tokens:,} tokens in {seconds:.1f} s ({tokens / seconds:,.0f}/s)"
    if cut_texts:
        line += f"; {cut_texts:,} texts cut at {extractor.max_length} tokens, {cut_tokens:,} left out"
    note(f"{line}; wrote {output}")


def check_output(output: str) -> None:
    """Raise ``UserError`` if ``output`` does not end with ".parquet", or already exists."""
    if not output.endswith(".parquet"):
        raise UserError(f"--output={output} is no file that is called *.parquet; give such a name")
    files.check_new(output)


def _facts(extractor: Extractor) -> dict[str, str]:
    """Return the metadata of the whole output, known when all texts are read."""
    model = extractor.model
    facts = {
        "format": "bert_jax features",
        "layers": ",".join(extractor.layers),
        "hidden_size": model.config.hidden_size,
        "num_layers": model.config.num_layers,
        "vocabulary_sha256": model.tokenizer.sha256,
        "max_length": extractor.max_length,
        **extractor.counts,
    }
    return {name: str(value) for name, value in facts.items()}


def _columns(texts: Sequence[TextFeatures]) -> dict[str, np.ndarray]:
    """Return the columns of ``texts`` by name: arrays [tokens, ...], or [texts, D] for vectors of texts."""
    columns = {name: np.concatenate([getattr(one.tokens, name) for one in texts]) for name in TOKENS}
    for name in texts[0].vectors:
        join = np.stack if name in SENTENCE else np.concatenate
        columns[name] = join([one.vectors[name] for one in texts])
    return columns


def _write_parquet(path: Path, groups: Iterable[Sequence[TextFeatures]], extractor: Extractor) -> None:
    """Write a parquet file with one row for each text. A layer is a list of vectors of fixed size, or one vector."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with contextlib.ExitStack() as stack:
        writer: Any = None
        for texts in groups:
            starts = pa.array(np.cumsum([0, *(len(one.tokens.input_ids) for one in texts)]), pa.int32())
            table: dict[str, Any] = {
                name: pa.array([getattr(one.item, name) or "" for one in texts]) for name in ("id", "text", "pair")
            }
            for name, values in _columns(texts).items():
                flat = pa.array(values.reshape(-1))
                if values.ndim > 1:
                    flat = pa.FixedSizeListArray.from_arrays(flat, values[0].size)
                table[name] = flat if name in SENTENCE else pa.ListArray.from_arrays(starts, flat)
            rows = pa.table(table)
            if writer is None:
                how = {"compression": "zstd", "use_dictionary": False}
                writer = stack.enter_context(pq.ParquetWriter(path, rows.schema, **how))
            writer.write_table(rows)
        writer.add_key_value_metadata(_facts(extractor))
