"""Predicts tags from the vectors of a frozen encoder: the feature-based approach (Devlin et al. 2019, table 7).

Examples, rows and metrics are the same as in ``tagging``. The encoder must be named in ``config.frozen``. It then has
no optimizer state and is saved only once.
"""

from __future__ import annotations

import dataclasses

from bert_jax import configuration
from bert_jax.errors import UserError
from bert_jax.models.bilstm import BiLstm
from bert_jax.models.config import ModelConfig
from bert_jax.models.heads import NEEDED, LayerMix, Layers
from bert_jax.models.model import Model, Part
from bert_jax.tasks import tagging
from bert_jax.tasks.base import Setting


@dataclasses.dataclass(frozen=True)
class Config(tagging.Config):
    """The keys of ``config.task``, besides its name: all keys of ``tagging``, and the following.

    Attributes:
      layers: how the encoder's layers are combined. A weighted sum learns softmax weights and a scale.
      dropout_rate: the dropout rate on the input and the output of the BiLSTM. If None, the model's rate.
    """

    layers: Layers = "concat_last_four"
    lstm_size: int | None = None  # width of one direction of the BiLSTM; None: the model's width (768 in the paper)
    num_lstm_layers: int = 2  # layers of the BiLSTM

    def __post_init__(self) -> None:
        super().__post_init__()
        positive = ("lstm_size", "num_lstm_layers")
        least = "at least 1 is needed"
        configuration.check_fields(self, "config.task", least, *positive, sound=lambda n: n is None or n >= 1)


class Task(tagging.Task):
    """The feature-based tagging task. Its loss is the mean cross-entropy over words.

    Only the BiLSTM, the classifier and the weights of the layers are trained.
    """

    exported_as = None  # only its encoder has a class, which the run did not train
    packs = False  # the BiLSTM reads all vectors of a row
    config: Config

    def __init__(self, config: Config, setting: Setting):
        if setting.names("train") and "encoder" not in setting.frozen:
            raise UserError(
                "feature_tagging reads an encoder that is not trained; set config.frozen to ('encoder',), or take "
                "config.task.name='tagging' to train all of it"
            )
        needed, there = NEEDED.get(config.layers, 0), setting.model.num_layers
        if there < needed:
            raise UserError(
                f"config.task.layers is {config.layers!r}, which needs {needed} layers; the model has {there}"
            )
        super().__init__(config, setting)

    def module(self, model: ModelConfig) -> Model:
        """Return the whole model: frozen encoder, combination of its layers, BiLSTM and classifier."""
        config = self.config
        rate = model.dropout_rate if config.dropout_rate is None else config.dropout_rate
        size, layers = config.lstm_size or model.hidden_size, config.num_lstm_layers
        below = (
            Part.of("layer_mix", LayerMix, layers=config.layers, dropout_rate=rate),
            Part.of("bilstm", BiLstm, features=size, num_layers=layers, steps="word_ids"),
        )
        return Model(model, (*below, *self.head(rate)), trains_encoder=False)
