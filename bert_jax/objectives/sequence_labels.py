"""The base class of the tasks of ERNIE 2.0 that label whole sequences (Sun et al. 2020, section 4.2)."""

from __future__ import annotations

from bert_jax.errors import UserError
from bert_jax.models.heads import Classifier
from bert_jax.models.model import POOLER, Part
from bert_jax.objectives.base import Setting, Term, prediction
from bert_jax.objectives.task_ids import Config, WithTaskId


class SequenceLabels(WithTaskId):
    """Predicts the label of each sequence from the pooled vector of its ``[CLS]``, with a dense layer.

    The loss is the mean over the sequences of the global batch. ``arrangement`` is also the name of the term and the
    begin of the names of features: an arrangement of another name fits if it has the features NAME_labels and
    NAME_weights of the axis "sequence", and ``num_classes``.
    """

    def __init__(self, config: Config, setting: Setting):
        """See ``WithTaskId``. Raises ``UserError`` if two phases have unlike numbers of classes."""
        self.config, self.setting, name = config, setting, self.arrangement
        arrangers = [self._rows_of(kind).arranger for kind in setting.max_lengths]
        labelled: list = [one for one in arrangers if f"{name}_labels" in one.fields]  # no other will do
        classes = sorted({one.num_classes for one in labelled})
        if len(classes) > 1:
            raise UserError(
                f"phases of objective {self.name!r} have {classes[0]} and {classes[-1]} classes; give all phases the "
                f"same {setting.where}.arrangement_options"
            )
        head = Part.of(f"{name}_head", Classifier, num_outputs=max(classes, default=2), logits=f"{name}_logits")
        self.parts = (POOLER, head)
        super().__init__(config, setting)

    def terms(self, config: Config) -> dict[str, Term]:
        name = self.arrangement
        return {name: prediction(f"{name}_logits", f"{name}_labels", f"{name}_weights")}
