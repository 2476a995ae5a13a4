"""The fine-tunings of an ablation: their recipes, and what can be checked before the first model is pretrained."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from typing import Any

from bert_jax.errors import UserError
from bert_jax.examples.load import load
from bert_jax.features.trained_model import TrainedModel
from bert_jax.models.config import ModelConfig
from bert_jax.runs import recipes
from bert_jax.runs.preparation import Splits, check_finetuning, check_splits
from bert_jax.runs.settings import FinetuningSettings
from bert_jax.text.tokenizer import Tokenizer


@dataclasses.dataclass(frozen=True)
class Tuning:
    """A recipe with which all pretrained models are fine-tuned.

    Attributes:
      name: the recipe's short name, which begins the names of its runs and metrics.
      given: what the user gave, such as ``glue:sst2 --epochs=1``.
      every: the splits, with all of train, whatever ``config.data.train_fraction`` is.
    """

    name: str
    given: str
    config: dict[str, Any]
    settings: FinetuningSettings
    every: Splits

    def check(self, tokenizer: Tokenizer, models: Sequence[ModelConfig], bilstm_layers: int) -> None:
        """Check all that a fine-tuning checks before its first step, but for the weights to start from.

        The examples are encoded for the first of the ``models`` alone; of the others only the lengths are checked.

        Raises:
          UserError: as ``finetuning.finetune``.
        """
        settings = dataclasses.replace(self.settings, bilstm_layers=bilstm_layers)
        try:
            first, *_ = [check_finetuning(settings, TrainedModel("", {}, model, tokenizer)) for model in models]
            first.with_examples(self.every)
        except UserError as error:
            raise UserError(f"{self.given}: {error}") from error


def read(every: Sequence[str], data: str) -> list[Tuning]:
    """Return the fine-tunings that are asked for, with the examples in the folder ``data``.

    Args:
      every: for each a recipe, and after it, if wanted, ``--config.key=value`` or short keys, separated by spaces.

    Raises:
      UserError: a recipe or its examples are wrong, or two recipes have one name.
    """
    found: dict[str, Tuning] = {}
    for given in every:
        recipe, *flags = re.split(r"\s+(?=--)", given.strip())
        overrides = [re.sub(r"^--(?!config\.)", "--config.", flag) for flag in flags]
        name = re.sub(r"\.py$|\.json$", "", re.split(r"[/:]", recipe)[-1])
        if name in found:
            raise UserError(
                f"--finetune has {found[name].given!r} and {given!r}, whose runs would have one name, {name!r}; leave "
                "one out, rename its file, or compare settings of one model with bert-jax sweep --init"
            )
        config = recipes.load(recipe, overrides).to_dict()
        try:
            settings = FinetuningSettings.of(config)
            task, _ = settings.find_task()
            splits = load(settings.data, data, task.roles, lambda _: None)
            check_splits(splits)
        except UserError as error:
            raise UserError(f"{given}: {error}") from error
        found[name] = Tuning(name, given, config, settings, splits)
    return list(found.values())
