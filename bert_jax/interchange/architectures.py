"""Describes the heads of models as transformers does: a class name, labels, and fields of ``config.json``."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any, get_args

from bert_jax.errors import UserError
from bert_jax.interchange.family import Family, families, family_of, family_with
from bert_jax.models.config import ModelConfig
from bert_jax.models.model import BERT, config_of
from bert_jax.parts import catalogue
from bert_jax.tasks.base import ProblemType

# Ends of class names. For the labels of these classes, config.json of transformers has keys.
_LABELLED = ("ForSequenceClassification", "ForTokenClassification")


@dataclasses.dataclass(frozen=True)
class HeadClass:
    """The head of a model, as transformers describes it.

    Attributes:
      architecture: the name of a transformers class that one of the families has.
      labels: the names of a classifier's outputs, in order; empty for a regression and for heads other than
        classifiers.
      problem_type: the kind of problem that a text classifier solves; None for all other heads.
      classifier_dropout: the dropout rate before the classifier, which the model has or is to get in fine-tuning. If
        None, it is the encoder's rate.
    """

    architecture: str = "BertForPreTraining"
    labels: tuple[str, ...] = ()
    problem_type: ProblemType | None = None
    classifier_dropout: float | None = None

    @property
    def parts(self) -> tuple[str, ...]:
        return self.family.architectures[self.architecture]

    @property
    def task_parts(self) -> tuple[str, ...]:
        """The parts that pretraining does not train. Their outputs stand for the labels of a task."""
        return tuple(part for part in self.parts if part not in ("encoder", *self.family.pretrained))

    @property
    def family(self) -> Family:
        """The family that the class belongs to."""
        return family_with(self.architecture)

    @property
    def ending(self) -> str:
        """The class name without the family's name, such as "ForMaskedLM"."""
        return self.family.ending_of(self.architecture)

    @property
    def num_outputs(self) -> int:
        """K, the number of outputs of the classifier."""
        return len(self.labels) if self.ending in _LABELLED and self.labels else 1

    @property
    def task(self) -> str | None:
        """The name of our task that trains and evaluates models with this head; None if there is none."""
        tasks = {name: catalogue.find("tasks", name).Task for name in catalogue.parts("tasks", having="Task")}
        own = (self.ending, self.problem_type)
        if not self.task_parts:  # a pretrained model, or an encoder alone
            return None
        return next((name for name, task in tasks.items() if task.exported_as == own), None)


def of_pretraining(config: ModelConfig, parts: Collection[str]) -> str:
    """Return the transformers class name of a model that was pretrained with these ``parts``."""
    family = family_of(config.encoder)
    return family.class_name(family.causal) if config.causal and family.causal else _pretraining_class(family, parts)


def has_pretraining_class(config: ModelConfig, parts: Collection[str]) -> bool:
    """Return whether transformers has a class for a model that was pretrained with these ``parts``."""
    if config.encoder not in families():
        return False
    needed = family_of(config.encoder).architectures.get(of_pretraining(config, parts), ("none",))
    return {*needed} <= {"encoder", "pooler", *parts}


def _pretraining_class(family: Family, parts: Collection[str]) -> str:
    """Return the class "...ForPreTraining" if ``parts`` include all heads that it needs, else "...ForMaskedLM"."""
    needed = set(family.classes.get("ForPreTraining", ("none",)))
    return family.class_name("ForPreTraining" if needed <= {"encoder", "pooler", *parts} else "ForMaskedLM")


def of_facts(facts: Mapping[str, Any], parts: Collection[str] | None = None) -> HeadClass:
    """Return the head of a model from one of our checkpoints.

    Args:
      facts: the metadata ("facts") saved with the checkpoint.
      parts: the parts of the model's parameters, which decide the head if the facts name neither a head nor a task.
        None means all pretrained parts.

    Raises:
      UserError: transformers has no class for models of this task or encoder.
    """
    if facts.get("head"):  # saved by an import or by a pretraining objective
        known = dict(facts["head"])
        return HeadClass(**known | {"labels": tuple(known.get("labels", ()))})
    family = family_of((facts.get("model") or {}).get("encoder", BERT))
    task = facts.get("task")
    if facts.get("tasks"):  # a class has one head (``loading.one_task``)
        return HeadClass(f"{family.name}Model")
    if not task:
        return HeadClass(_pretraining_class(family, family.pretrained if parts is None else parts))
    is_own = catalogue.is_own(task["name"])  # its file may be gone; transformers has no class for its head
    exported_as = None if is_own else catalogue.find("tasks", task["name"], having="Task").Task.exported_as
    ending, problem_type = exported_as or ("Model", None)
    reads_left = ending == family.causal and config_of(facts["model"]).causal
    if not _fits(family, ending, reads_left):
        ending, problem_type = "Model", None  # the encoder alone
    named = ending in _LABELLED and problem_type != "regression"
    has_rate = family.classifier_dropout and "classifier" in family.classes[ending]
    dropout = task.get("dropout_rate") if has_rate else None
    labels = tuple(map(str, facts.get("labels") or ())) if named else ()
    return HeadClass(family.class_name(ending), labels, problem_type, dropout)


def has_class(config: ModelConfig, ending: str) -> bool:
    """Return whether the family of the encoder of ``config`` has a class with this end of its name."""
    return config.encoder not in families() or _fits(family_of(config.encoder), ending, config.causal)


def _fits(family: Family, ending: str, causal: bool) -> bool:
    """Return whether a family has a class with this end of its name, and the class reads as the model does."""
    return ending in family.classes and (causal or ending != family.causal)


def of_config(family: Family, theirs: Mapping[str, Any], tensors: Mapping[str, Any], where: str) -> HeadClass:
    """Return the head that ``config.json`` describes or, if it names no class, the head that the tensors belong to.

    Args:
      theirs: the content of ``config.json``.
      tensors: the tensors of the file under their current names.
      where: the folder's name for error messages.

    Raises:
      UserError: the class is of another family, or the labels do not fit the classifier.
    """
    named = theirs.get("architectures") or []
    if not isinstance(named, list) or not all(isinstance(name, str) for name in named):
        raise UserError(f"{where}/config.json has architectures {named!r}; a list of class names is needed")
    foreign = [name for name in named if not name.startswith(family.name)]
    if foreign:
        raise UserError(f"{where} is {foreign[0]}; readable: {', '.join(family.architectures)}")
    architecture = next((name for name in named if name in family.architectures), None)
    architecture = architecture or family.class_name(_of_tensors(family, tensors, where))
    ending = family.ending_of(architecture)
    weights = ("classifier.weight", "classifier.out_proj.weight", "logits_proj.weight")
    weight = next((tensors[name] for name in weights if name in tensors), None)
    labels = _labels(theirs, weight, ending, where)
    problem_type = theirs.get("problem_type") if ending == "ForSequenceClassification" else None
    if problem_type is None and ending == "ForSequenceClassification":
        problem_type = "single_label_classification" if len(labels) > 1 else "regression"
    if problem_type not in (None, *get_args(ProblemType)):
        raise UserError(f"{where}/config.json has problem_type {problem_type!r}, which transformers does not know")
    is_number = problem_type == "regression" and len(labels) == 1
    dropout = theirs.get(family.classifier_dropout)
    if dropout is not None and not (isinstance(dropout, int | float) and 0 <= dropout < 1):
        raise UserError(
            f"{where}/config.json has {family.classifier_dropout} {dropout!r}; a number from 0 to below 1 is allowed"
        )
    return HeadClass(architecture, () if is_number else labels, problem_type, dropout)


def _of_tensors(family: Family, tensors: Collection[str], where: str) -> str:
    """Return the end of the class to which the tensors of a published file without a class name belong."""
    parts = {entry.part for entry in family.entries(1) if entry.theirs in tensors}
    if "qa_outputs" in parts:
        return "ForQuestionAnswering"
    if any(name.startswith("classifier.") for name in tensors):
        endings = [ending for ending in _LABELLED if ending in family.classes]
        if len(endings) < len(_LABELLED):
            return endings[0] if endings else "Model"
        known = {family.class_name(ending): family.classes[ending] for ending in endings}
        fits = [{one.theirs for one in family.entries(1, name) if one.part in own} for name, own in known.items()]
        if fits[0] == fits[1]:
            raise UserError(
                f"{where}/config.json names no class, and the tensors are those of {' and '.join(known)}; add "
                f'"architectures": ["{family.name}{_LABELLED[0]}"], or the other'
            )
        inside = "classifier.out_proj.weight" in tensors
        return "ForSequenceClassification" if inside or "pooler" in parts else "ForTokenClassification"
    if "mlm_head" in parts:
        return family.ending_of(_pretraining_class(family, parts))
    return "ForNextSentencePrediction" if "nsp_head" in parts else "Model"


def _labels(theirs: Mapping[str, Any], weight: Any, ending: str, where: str) -> tuple[str, ...]:
    """Return the labels in the order of their ids. If the config names none, return ``LABEL_0``, ``LABEL_1``, ..."""
    if ending not in _LABELLED:
        return ()
    by_number = theirs.get("id2label") or {}
    if not by_number and isinstance(theirs.get("label2id"), Mapping):
        by_number = {number: name for name, number in theirs["label2id"].items()}
    try:
        labels = {int(number): str(name) for number, name in by_number.items()}
    except (AttributeError, TypeError, ValueError):
        raise UserError(f"{where}/config.json: id2label does not map numbers to names; mend it") from None
    count = len(weight) if weight is not None else len(labels) or int(theirs.get("num_labels") or 2)
    labels = labels or {i: f"LABEL_{i}" for i in range(count)}
    if sorted(labels) != list(range(count)):
        raise UserError(
            f"{where} does not fit together: the classifier has {count} outputs, config.json names {len(labels)} labels"
            f" ({', '.join(f'{i} {name}' for i, name in sorted(labels.items())[:5])}); copy the whole folder again"
        )
    if len(set(labels.values())) < count:
        raise UserError(f"{where}/config.json gives two labels the same name; give each its own name in id2label")
    return tuple(labels[i] for i in range(count))


def config_fields(head: HeadClass) -> dict[str, Any]:
    """Return the fields of ``config.json`` that describe a head."""
    fields: dict[str, Any] = {"architectures": [head.architecture]}
    if head.ending in _LABELLED:
        labels = head.labels or tuple(f"LABEL_{i}" for i in range(head.num_outputs))
        fields["id2label"] = {str(i): name for i, name in enumerate(labels)}
        fields["label2id"] = {name: i for i, name in enumerate(labels)}
    if head.problem_type:
        fields["problem_type"] = head.problem_type
    if head.classifier_dropout is not None:
        fields[head.family.classifier_dropout] = head.classifier_dropout
    return fields
