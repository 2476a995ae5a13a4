"""A trained model out of a run's folder: what exports, fill-mask and new runs start from."""

from __future__ import annotations

import dataclasses
from typing import Any

from bert_jax import configuration, files
from bert_jax.errors import UserError
from bert_jax.models.config import ModelConfig
from bert_jax.models.layers import unstack_layers
from bert_jax.text.wordpiece import WordPiece
from bert_jax.training.checkpoints import read_params


@dataclasses.dataclass(frozen=True)
class TrainedModel:
    params: Any  # numpy tree, layers unrolled
    config: ModelConfig
    tokenizer: WordPiece
    facts: dict[str, Any]  # saved with the checkpoint: config, fingerprints, run id
    step: int


def load_trained(workdir: str, step: int | None = None) -> TrainedModel:
    """The newest checkpoint of ``workdir``, or that of ``step``.

    Raises:
      UserError: no checkpoint, or a vocabulary that is not the one it was trained with.
    """
    params, facts, step = read_params(workdir, step)
    tokenizer = WordPiece.load(files.as_path(workdir) / "vocab.txt", lowercase=facts["lowercase"])
    if tokenizer.sha256 != facts["vocabulary_sha256"]:
        raise UserError(f"{workdir}/vocab.txt is not the vocabulary that step {step} was trained with; put the old one back")
    config = configuration.build(ModelConfig, facts["model"], "model")
    if config.layers == "scanned":
        params, config = unstack_layers(params), dataclasses.replace(config, layers="unrolled")
    return TrainedModel(params, config, tokenizer, facts, step)
