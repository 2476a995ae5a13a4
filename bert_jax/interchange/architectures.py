"""Which parts of our tree each class of transformers has, and what its ``config.json`` says of the head."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any, Literal

from bert_jax.configuration import choose
from bert_jax.errors import UserError
from bert_jax.models.model import Part

ProblemType = Literal["single_label_classification", "regression", "multi_label_classification"]

# A class and the parts of our tree that it has.
ARCHITECTURES: dict[str, tuple[str, ...]] = {
    "BertModel": ("encoder", "pooler"),
    "BertForPreTraining": ("encoder", "pooler", "mlm_head", "nsp_head"),
    "BertForMaskedLM": ("encoder", "mlm_head"),
    "BertForNextSentencePrediction": ("encoder", "pooler", "nsp_head"),
    "BertForSequenceClassification": ("encoder", "pooler", "classifier"),
    "BertForTokenClassification": ("encoder", "classifier"),
    "BertForQuestionAnswering": ("encoder", "qa_outputs"),
    "BertForMultipleChoice": ("encoder", "pooler", "classifier"),
}
# Read wherever a file has them whole: published files call themselves BertForMaskedLM and hold these too.
PRETRAINED_PARTS = ("pooler", "mlm_head", "nsp_head")
LABELLED = ("BertForSequenceClassification", "BertForTokenClassification")
# The class that our task of a name becomes, and its problem_type.
TASKS: dict[str, tuple[str, ProblemType | None]] = {
    "classification": ("BertForSequenceClassification", "single_label_classification"),
    "regression": ("BertForSequenceClassification", "regression"),
    "tagging": ("BertForTokenClassification", None),
    "span_qa": ("BertForQuestionAnswering", None),
    "multiple_choice": ("BertForMultipleChoice", None),
    "sentence_embeddings": ("BertModel", None),
    "feature_tagging": ("BertModel", None),  # what its probe stands on
}
NAMELESS = ("sentence_embeddings", "feature_tagging")  # no class of transformers says them
PIPELINES = {
    "BertModel": "feature-extraction",
    "BertForPreTraining": "fill-mask",
    "BertForMaskedLM": "fill-mask",
    "BertForSequenceClassification": "text-classification",
    "BertForTokenClassification": "token-classification",
    "BertForQuestionAnswering": "question-answering",
}


@dataclasses.dataclass(frozen=True)
class Head:
    """What stands on the encoder.

    Attributes:
      architecture: a class of ``ARCHITECTURES``.
      labels: names of the outputs of a classifier, in their order; empty for a number and for the other heads.
      classifier_dropout: None: as in the encoder.
    """

    architecture: str = "BertForPreTraining"
    labels: tuple[str, ...] = ()
    problem_type: ProblemType | None = None
    classifier_dropout: float | None = None

    @property
    def parts(self) -> tuple[str, ...]:
        return choose("architecture", self.architecture, ARCHITECTURES)

    @property
    def num_outputs(self) -> int:
        """K of the classifier."""
        return len(self.labels) if self.architecture in LABELLED and self.labels else 1

    @property
    def task(self) -> str | None:
        """The task of ours that trains and evaluates such a model."""
        kinds = {kind: task for task, kind in TASKS.items() if task not in NAMELESS}
        return kinds.get((self.architecture, self.problem_type))


def of_pretraining(causal: bool, parts: Collection[Part]) -> str:
    """Return the class of transformers that has the ``parts`` of a pretraining model."""
    if causal:
        return "BertLMHeadModel"
    return "BertForPreTraining" if "nsp_head" in {part.name for part in parts} else "BertForMaskedLM"


def of_facts(facts: Mapping[str, Any], parts: Collection[str] | None = None) -> Head:
    """The head of a checkpoint of ours, from the facts saved with it, and where they name no task from its parts.

    Raises:
      UserError: a task whose model transformers has no class for.
    """
    if facts.get("head"):  # an import as it was, or what a pretraining task says
        known = dict(facts["head"])
        return Head(**known | {"labels": tuple(known.get("labels", ()))})
    task = facts.get("task")
    if not task:
        return Head("BertForMaskedLM" if parts is not None and "nsp_head" not in parts else "BertForPreTraining")
    architecture, problem_type = choose("task", task["name"], TASKS)
    named = architecture in LABELLED and problem_type != "regression"
    dropout = task.get("dropout_rate") if "classifier" in ARCHITECTURES[architecture] else None
    return Head(architecture, tuple(map(str, facts.get("labels") or ())) if named else (), problem_type, dropout)


def of_config(theirs: Mapping[str, Any], tensors: Mapping[str, Any], where: str) -> Head:
    """The head that ``config.json`` describes; where it names no class, the one that the tensors make.

    Args:
      tensors: by their present names.

    Raises:
      UserError: a class of another family, a decoder, labels that do not fit the classifier.
    """
    named = [str(name) for name in theirs.get("architectures") or ()]
    foreign = [name for name in named if not name.startswith("Bert")]
    if foreign or theirs.get("is_decoder") or theirs.get("add_cross_attention"):
        found = foreign[0] if foreign else "a decoder"
        raise UserError(f"{where} is {found}; readable: {', '.join(ARCHITECTURES)}")
    architecture = next((name for name in named if name in ARCHITECTURES), None) or _of_tensors(tensors)
    weight = tensors.get("classifier.weight")
    labels = _labels(theirs, weight, architecture, where)
    problem_type = theirs.get("problem_type") if architecture == "BertForSequenceClassification" else None
    if problem_type is None and architecture == "BertForSequenceClassification":
        problem_type = "single_label_classification" if len(labels) > 1 else "regression"
    if problem_type not in (None, "single_label_classification", "regression", "multi_label_classification"):
        raise UserError(f"{where}/config.json has problem_type {problem_type!r}, which transformers does not know")
    is_number = problem_type == "regression" and len(labels) == 1
    dropout = theirs.get("classifier_dropout") if "classifier" in ARCHITECTURES[architecture] else None
    if dropout is not None and not (isinstance(dropout, int | float) and 0 <= dropout < 1):
        raise UserError(
            f"{where}/config.json has classifier_dropout {dropout!r}; a number from 0 to below 1 is allowed"
        )
    return Head(architecture, () if is_number else labels, problem_type, dropout)


def _of_tensors(tensors: Collection[str]) -> str:
    has = {part: any(name.startswith(f"{start}.") for name in tensors) for part, start in _STARTS.items()}
    if has["qa_outputs"]:
        return "BertForQuestionAnswering"
    if has["classifier"]:
        return "BertForSequenceClassification" if has["pooler"] else "BertForTokenClassification"
    if has["mlm_head"]:
        return "BertForPreTraining" if has["nsp_head"] else "BertForMaskedLM"
    return "BertForNextSentencePrediction" if has["nsp_head"] else "BertModel"


_STARTS = {
    "qa_outputs": "qa_outputs",
    "classifier": "classifier",
    "pooler": "bert.pooler",
    "mlm_head": "cls.predictions",
    "nsp_head": "cls.seq_relationship",
}


def _labels(theirs: Mapping[str, Any], weight: Any, architecture: str, where: str) -> tuple[str, ...]:
    """Names by their number; ``LABEL_0``, ... where the config has none."""
    if architecture not in LABELLED:
        return ()
    by_number = theirs.get("id2label") or {}
    if not by_number and isinstance(theirs.get("label2id"), Mapping):
        by_number = {number: name for name, number in theirs["label2id"].items()}
    try:
        labels = {int(number): str(name) for number, name in by_number.items()}
    except (AttributeError, TypeError, ValueError):
        raise UserError(f"{where}/config.json: id2label is no table of numbers and names; mend it") from None
    count = len(weight) if weight is not None else len(labels) or int(theirs.get("num_labels") or 2)
    labels = labels or {i: f"LABEL_{i}" for i in range(count)}
    if sorted(labels) != list(range(count)):
        raise UserError(
            f"{where} does not fit together: the classifier has {count} outputs, config.json names {len(labels)} labels"
            f" ({', '.join(f'{i} {name}' for i, name in sorted(labels.items())[:5])}); copy the whole folder again"
        )
    if len(set(labels.values())) < count:
        raise UserError(f"{where}/config.json gives two labels one name; give each its own in id2label")
    return tuple(labels[i] for i in range(count))


def config_fields(head: Head) -> dict[str, Any]:
    """What ``config.json`` says of a head."""
    fields: dict[str, Any] = {"architectures": [head.architecture]}
    if head.architecture in LABELLED:
        labels = head.labels or tuple(f"LABEL_{i}" for i in range(head.num_outputs))
        fields["id2label"] = {str(i): name for i, name in enumerate(labels)}
        fields["label2id"] = {name: i for i, name in enumerate(labels)}
    if head.problem_type:
        fields["problem_type"] = head.problem_type
    if "classifier" in head.parts:
        fields["classifier_dropout"] = head.classifier_dropout
    return fields
