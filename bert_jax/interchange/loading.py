"""Loads a trained model from a run, a Hugging Face directory or repository, or an original TensorFlow checkpoint."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any

from bert_jax import configuration
from bert_jax.checkpoints.restoring import BEST, FROZEN, read_params, saved_steps, steps_folder
from bert_jax.errors import UserError, few
from bert_jax.interchange.architectures import of_facts
from bert_jax.interchange.family import families
from bert_jax.interchange.hugging_face import import_model, licence_of
from bert_jax.interchange.original import import_original, is_original
from bert_jax.interchange.sentence_files import MODULES
from bert_jax.interchange.trained_model import RunKey, TrainedModel
from bert_jax.models.config import ModelConfig, TransformerConfig
from bert_jax.models.model import config_facts, config_of
from bert_jax.models.transformer import scanned_from, unstack_layers
from bert_jax.reporting.status import first_save
from bert_jax.storage import files, hub
from bert_jax.tasks.several import outside
from bert_jax.text import tokenizer as tokenizers
from bert_jax.text.case import KEYS, NOT_SAID, Case
from bert_jax.workdir.run_record import purpose_of, read_run
from bert_jax.workdir.steps import unmarked_steps

# Entry of a step's facts from which a model is built -> its class: the entries of every model, and of some models.
_NEEDED: Mapping[str, type] = {"model": dict, "model.encoder": str, "lowercase": bool, "vocabulary_sha256": str}
_OPTIONAL: Mapping[str, type] = {
    **dict.fromkeys(("head", "task", "tasks", "data", "run", "run.config", "run.identity", "run.versions"), dict),
    **{"labels": list, "max_length": int, "bilstm_layers": int},
}
_NAMED = {"head": "architecture", "task": "name"}  # object of the facts, if there -> an entry that it must have


def load(source: str, step: int | None = None, flag: str = "", given: Case | None = None) -> TrainedModel:
    """Return the model at ``source``.

    Args:
      source: the workdir of a run, optionally with ``@step``; a Hugging Face directory; ``hf://USER/NAME[@REVISION]``,
        a model of the Hugging Face Hub; or a directory with a TensorFlow checkpoint of google-research/bert.
      step: a saved step of a workdir. If None, the step of the best evaluation if the run chose one, else the newest.
      flag: stands before ``source`` in messages.
      given: the case of the model's text, if its files do not say it; None where no flag can say it.

    Raises:
      UserError: ``source`` is none of these, there is no such step, the model was trained with another vocabulary, or
        the model cannot be read.
    """
    _check_no_pickle(source, flag)
    source = hub.pinned(source)
    place = files.as_path(source)
    if any((place / name).exists() for name in ("config.json", MODULES)) or is_original(source):
        if step is not None:
            raise UserError(f"{flag}{source} has one model, and no step {step}; leave --step out")
        return read_model(source, given or NOT_SAID, None if given is None else KEYS)
    workdir = source
    if step is None and "@" in source and not _is_workdir(source):
        workdir, _, number = source.rpartition("@")
        if not re.fullmatch("[0-9]{1,18}", number):
            raise UserError(f"{flag}{source}: after @ comes a step number, in the digits 0 to 9")
        step = int(number)
    if not _is_workdir(workdir):
        if advice := first_save(workdir):
            raise UserError(f"{flag}{source} has no finished checkpoint; {advice}")
        gone = "" if place.exists() else f"; there is no such folder{_on_the_hub(source)}"
        raise UserError(
            f"{flag}{source} is neither a Hugging Face directory (config.json) nor a workdir (checkpoints/) nor an "
            f"original checkpoint (bert_config.json){gone}"
        )
    return _of_workdir(source, workdir, step)


def _check_no_pickle(source: str, flag: str) -> None:
    """Raise ``UserError`` for a file of PyTorch, which no verb reads."""
    if source.endswith((".pt", ".pth", ".bin")) and files.as_path(source).is_file():
        raise UserError(
            f"{flag}{source} is a file of PyTorch, a pickle, which is not read here; launch/flexbert.py of the source "
            "tree makes a Hugging Face directory of ModernBERT's and Ettin's checkpoints (configs/coming_from.md)"
        )


def _on_the_hub(source: str) -> str:
    """Return a hint if ``source`` has the form of a name on the Hugging Face Hub, else ""."""
    return f" (on the Hugging Face Hub: hf://{source})" if re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", source) else ""


def _is_workdir(path: str) -> bool:
    """Return whether a run has begun in ``path``, or a model was imported there."""
    return any((files.as_path(path) / name).exists() for name in ("checkpoints", "run.json"))


def _of_workdir(source: str, workdir: str, step: int | None) -> TrainedModel:
    params, facts, step = read_chosen(workdir, step)
    _check_facts(facts, workdir, step)
    params = {name: tree for name, tree in params.items() if name in ("encoder", *facts.get("parts", params))}
    file = tokenizers.find(workdir)
    tokenizer = tokenizers.load(file, facts["lowercase"], facts.get("strip_accents"))
    if tokenizer.sha256 != facts["vocabulary_sha256"]:
        raise UserError(f"{file} is not the vocabulary that step {step} was trained with; put the old one back")
    config = _at_step(config_of(facts["model"]), facts, step)
    if isinstance(config, TransformerConfig) and config.layers == "scanned":
        params = unstack_layers(params, scanned_from(config.blocks))
        config = dataclasses.replace(config, layers="unrolled")
    has_class = config.encoder in families() and not facts.get("differs")
    head = of_facts(facts, params) if has_class else None
    return TrainedModel(source, params, config, tokenizer, head, facts, workdir, step, _run_of(facts, step))


def _check_facts(facts: Mapping[str, Any], workdir: str, step: int) -> None:
    """Raise ``UserError`` if an entry of a step's facts from which a model is built is missing or of another class."""

    def at(path: str) -> Any:
        group, _, key = path.rpartition(".")
        held = facts.get(group) if group else facts
        return held.get(key) if isinstance(held, Mapping) else None

    wrong = [path for path, kind in _NEEDED.items() if not isinstance(at(path), kind)]
    wrong += [path for path, kind in _OPTIONAL.items() if not isinstance(at(path), kind | None)]
    wrong += [f"{name}.{key}" for name, key in _NAMED.items() if at(name) and not isinstance(at(f"{name}.{key}"), str)]
    if wrong:
        raise UserError(
            f"{workdir}: the metadata of step {step} lacks {few(wrong)}, or has something else there; it is not as it "
            "was saved: copy the run again"
        )


def _at_step(config: ModelConfig, facts: Mapping[str, Any], step: int) -> ModelConfig:
    """Return the architecture of a run at ``step``: phases may replace keys of the model (``Phase.model``)."""
    done = 0
    for phase, values in facts.get("model_of_phases", {}).items():
        done += facts["run"]["phases"][phase]["num_steps"]
        if step <= done:
            return dataclasses.replace(config, **values)
    return config


def one_task(model: TrainedModel, name: str, key: str = "task") -> TrainedModel:
    """Return a model of several tasks as a model of its task ``name`` alone, with the task's parts, facts and head.

    ``key``: the word for the name in messages.

    Raises ``UserError`` if the model was not trained on several tasks, or ``name`` is none of them.
    """
    tasks = model.facts.get("tasks")
    if not tasks:
        raise UserError(f"{model.source} was not trained on several tasks; leave the {key} {name!r} out")
    own = configuration.choose(key, name, tasks)
    parts = {outside(name, part): part for part in own["parts"]}
    params = {parts[whole]: tree for whole, tree in model.params.items() if whole in parts}
    facts = {key: value for key, value in {**model.facts, **own}.items() if key not in ("tasks", "parts")}
    head = of_facts(facts, params) if model.config.encoder in families() else None
    return dataclasses.replace(model, params=params, facts=facts, head=head)


def _run_of(facts: Mapping[str, Any], step: int) -> RunKey | None:
    identity = (facts.get("run") or {}).get("identity")
    if not identity:  # an imported model
        return None
    key = hashlib.sha256(json.dumps([identity, step], sort_keys=True).encode()).hexdigest()
    return RunKey(purpose_of(identity), key)


def read_chosen(workdir: str, step: int | None) -> tuple[Any, dict[str, Any], int]:
    """Return (parameters, facts, step) of a checkpoint. The parameters include the parts that were not trained.

    Args:
      step: if None, the step of the best evaluation if the run chose one, else the newest step.
    """
    read_run(workdir)  # raises, if another version wrote it
    best, frozen = (str(files.as_path(workdir) / name) for name in (BEST, FROZEN))
    params, facts, step = read_params(best if step is None and _holds_steps(best) else workdir, step)
    if _holds_steps(frozen):
        params = {**read_params(frozen)[0], **params}
    return params, facts, step


def _holds_steps(workdir: str) -> bool:
    """Return whether steps were saved into ``workdir``, even if they have lost the marks of complete steps."""
    return bool(saved_steps(workdir) or unmarked_steps(steps_folder(workdir)))


def read_model(directory: str, given: Case = NOT_SAID, keys: str | None = None) -> TrainedModel:
    """Return the model in a Hugging Face directory, or in a directory with an original TensorFlow checkpoint.

    Its facts are the facts that a workdir would record after an import.

    Args:
      given, keys: see ``import_original``.

    Raises:
      UserError: for the reasons of ``import_model`` and ``import_original``.
    """
    _check_no_pickle(directory, "")
    original = is_original(directory)
    model = import_original(directory, given, keys) if original else import_model(directory, given)
    head = model.head
    assert head is not None
    facts = {
        "model": config_facts(model.config),
        **model.tokenizer.case._asdict(),
        "vocabulary_sha256": model.tokenizer.sha256,
        "corpus_fingerprint": None,
        "head": dataclasses.asdict(head),
        "task": {"name": head.task} if head.task else None,
        "labels": list(head.labels),
        "parent": {"source": model.source, "licence": licence_of(directory)},
        **model.facts,
    }
    return dataclasses.replace(model, facts=facts)
