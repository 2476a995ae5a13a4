"""Writes the files that let sentence-transformers load an encoder and pool its outputs to one vector per text."""

from __future__ import annotations

from pathlib import Path

from bert_jax.interchange.json_files import write_json
from bert_jax.models.config import ModelConfig
from bert_jax.models.heads import Pooling

_MODES = {"mean": "pooling_mode_mean_tokens", "cls": "pooling_mode_cls_token"}


def write_pooling(folder: Path, config: ModelConfig, pooling: Pooling) -> None:
    """Write ``modules.json``, ``1_Pooling/config.json`` and ``sentence_bert_config.json``.

    Args:
      pooling: "mean": the mean of the last layer's vectors over all real tokens; "cls": the last layer's vector of
        ``[CLS]``, without the pooler.
    """
    modules = (("", "Transformer"), ("1_Pooling", "Pooling"))
    write_json(
        folder / "modules.json",
        [
            {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
            for i, (path, kind) in enumerate(modules)
        ],
    )
    (folder / "1_Pooling").mkdir()
    write_json(
        folder / "1_Pooling" / "config.json",
        {
            "word_embedding_dimension": config.hidden_size,
            **{mode: name == pooling for name, mode in _MODES.items()},
            "pooling_mode_max_tokens": False,
            "pooling_mode_mean_sqrt_len_tokens": False,
        },
    )
    # do_lower_case is False because the tokenizer itself lower-cases if the model needs it.
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": config.max_length, "do_lower_case": False})
