"""Starts a run from another model (``--init``), with the same or another vocabulary."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import jax
import numpy as np

from bert_jax.checkpoints.leaves import named_leaves, none_fresh
from bert_jax.checkpoints.restoring import FROZEN, read_params, read_step
from bert_jax.checkpoints.saving import save_params
from bert_jax.cluster import distributed
from bert_jax.errors import PassingError, UserError, first_line
from bert_jax.interchange.architectures import Head
from bert_jax.interchange.family import families
from bert_jax.interchange.original import is_original
from bert_jax.interchange.workdir import load_trained, read_model
from bert_jax.models.config import ModelConfig
from bert_jax.models.layers import stack_layers
from bert_jax.models.model import config_of
from bert_jax.reporting.run_record import Kind, kind_of, read_run
from bert_jax.storage import files
from bert_jax.text import added_tokens
from bert_jax.text import tokenizer as tokenizers
from bert_jax.text.learn import IDEOGRAPH
from bert_jax.text.tokenizer import Tokenizer
from bert_jax.training.state import TrainState, abstract, overlay

Surface: TypeAlias = tuple[str, bool | None]  # see Tokenizer.surfaces
# Parameters with one row per piece of the vocabulary.
VOCABULARY_LEAVES = ("word_embeddings", "output_bias")
# Heads whose outputs stand for the labels of a task.
TASK_HEADS = ("classifier", "qa_outputs")


@dataclasses.dataclass(frozen=True)
class ParentRun:
    """The run from which another run starts."""

    kind: Kind
    key: str  # the sha256 of the run's identity and the step


@dataclasses.dataclass(frozen=True)
class Initial:
    """The model from which a run starts."""

    source: str
    params: dict[str, Any]  # numpy tree, layers unrolled; parts may be missing
    model: ModelConfig
    tokenizer: Tokenizer
    missing: tuple[str, ...] = ()  # names of tensors that the model's class needs but the file lacks
    checkpoints: tuple[str, int] | None = None  # (workdir, step) if the model comes from a run of ours
    head: Head = Head()
    parent: ParentRun | None = None
    facts: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # those of a checkpoint of ours

    def check_moments(self, parts: Collection[str] | None = None) -> None:
        """Raise ``UserError`` if the model has no optimizer moments, or those of other heads than ``parts``."""
        if self.checkpoints is None:
            raise UserError(
                f"--init_optimizer=kept needs --init=WORKDIR, a run of bert-jax; {self.source} has no optimizer "
                "moments: leave --init_optimizer out"
            )
        if parts is not None and set(self.params) != {"encoder", *parts}:
            raise UserError(
                f"--init_optimizer=kept needs a run of the same objective: {self.source} has moments for "
                f"{', '.join(self.params)}, this run trains encoder, {', '.join(parts)}; leave --init_optimizer out"
            )


def find_initial(source: str | None, workdir: str, resumes: bool) -> Initial | None:
    """Return the model from which a run starts; None if it starts from random weights.

    Args:
      source: the value of --init.
      resumes: whether the run resumes from a checkpoint of its own. If so, return the model that the run began from.

    Raises:
      UserError: for the reasons of ``load_initial``, or the processes of the job found different models.
    """
    initial = load_initial(source) if source and not resumes else begun_from(workdir) if resumes else None
    distributed.wait("the model of --init", "" if initial is None else f"{initial.model} {initial.parent}")
    return initial


def begun_from(workdir: str) -> Initial | None:
    """Return the model that the run in ``workdir`` began from; None if it began from random weights.

    The result has no parameters: a resumed run does not need them, and the model itself may have been deleted.
    """
    run = read_run(workdir)
    identity, facts = run.get("identity", {}), run.get("facts", {})
    if not identity.get("init") or "model" not in facts:
        return None
    parent = ParentRun(kind_of(identity), facts["parent_key"]) if "parent_key" in facts else None
    model = config_of(facts["model"])
    tokenizer = tokenizers.load(tokenizers.find(workdir), facts["lowercase"])
    head = Head(classifier_dropout=(facts.get("task") or {}).get("dropout_rate"))
    return Initial(str(identity["init"]), {}, model, tokenizer, head=head, parent=parent)


def continued_seed(seed: int, initial: Initial | None, kind: Kind) -> tuple[int, dict[str, str]]:
    """Return the seed of a run's rows, masks and dropout, and the entries to save with the run's facts.

    If a run starts from another run of the same kind, the new seed depends on that parent's identity and step.
    Otherwise, a run on the same text with the same seed would repeat the rows, masks and dropout of its parent. All
    other runs keep their seed.
    """
    if initial is None or initial.parent is None or initial.parent.kind != kind:
        return seed, {}
    digest = hashlib.sha256(f"{seed} {initial.parent.key}".encode()).digest()
    return int.from_bytes(digest[:4], "little") >> 1, {"parent_key": initial.parent.key}


def load_initial(source: str, flag: str = "--init=") -> Initial:
    """Return the model at ``source``.

    Args:
      source: a Hugging Face directory, a directory with a TensorFlow checkpoint of google-research/bert, or a workdir
        of a run, optionally with ``@step``.
      flag: stands before ``source`` in messages.

    Raises:
      UserError: ``source`` is none of these, or the model cannot be read.
    """
    if (files.as_path(source) / "config.json").exists() or is_original(source):
        imported = read_model(source)
        return Initial(
            source, imported.params, imported.config, imported.tokenizer, imported.missing, head=imported.head
        )
    workdir, step = source, ""
    if "@" in source and not _is_workdir(source):
        workdir, _, step = source.rpartition("@")
        if not step.isdecimal():
            raise UserError(f"{flag}{source}: after @ comes a step number")
    if not _is_workdir(workdir):
        raise UserError(
            f"{flag}{source} is neither a Hugging Face directory (config.json) nor a workdir (checkpoints/) nor an "
            "original checkpoint (bert_config.json)"
        )
    trained = load_trained(workdir, int(step) if step else None)
    added_tokens.check(trained.tokenizer, added_tokens.kept(workdir, trained.tokenizer), f"{flag}{workdir}")
    at, parent = (workdir, trained.step), None
    if identity := (trained.facts.get("run") or {}).get("identity"):  # an imported model has no identity
        key = hashlib.sha256(json.dumps([identity, trained.step], sort_keys=True).encode()).hexdigest()
        parent = ParentRun(kind_of(identity), key)
    head = trained.head if trained.config.encoder in families() else Head()  # unused where transformers has no class
    own = (trained.params, trained.config, trained.tokenizer)
    return Initial(source, *own, (), at, head, parent, trained.facts)


def _is_workdir(path: str) -> bool:
    return (files.as_path(path) / "checkpoints").exists()


def start_from(
    initial: Initial,
    model: ModelConfig,
    tokenizer: Tokenizer,
    optimizer: Literal["fresh", "kept"],
    note: Callable[[str], None],
    head: Head | None = None,
) -> Callable[[TrainState], TrainState]:
    """Return a function that takes a fresh train state and returns one with the parameters of ``initial``.

    If the vocabulary differs, see ``with_vocabulary``. Heads that the fresh state lacks or has in another shape are
    left out. A note lists the parts that are left out and the parts that stay fresh.

    Args:
      optimizer: "kept" also takes over the optimizer's moments. The schedule begins anew in any case.
      note: called with each line for the user.
      head: the head of the model to train. A classifier of another task or with other labels is left out, even if its
        shapes fit.

    Raises:
      UserError: the moments are to be kept, but there are none, or the vocabulary is a different one.
    """
    params = initial.params
    same_rows = tokenizer.vocab == initial.tokenizer.vocab and model.vocab_size == initial.model.vocab_size
    if not same_rows:
        params, added = with_vocabulary(params, initial.tokenizer, tokenizer)
        note(f"vocabulary: {added:,} new pieces, each at the mean of its old sub-pieces")
    if optimizer == "kept":
        initial.check_moments()
    if optimizer == "kept" and not same_rows:
        raise UserError(
            f"--init_optimizer=kept needs the model's own vocabulary, in its order: {initial.source} has "
            f"{initial.model.vocab_size:,} rows for {initial.tokenizer.size:,} pieces, this run "
            f"{model.vocab_size:,} for {tokenizer.size:,}. Leave out --init_optimizer, or --vocab"
        )
    if model.layers == "scanned":
        params = stack_layers(params)

    def start(state: TrainState) -> TrainState:
        fitting = heads_that_fit(params, state.params, head in (None, initial.head))
        fresh = [part for part in state.params if part not in fitting]
        left_out = [part for part in params if part not in fitting]
        changes = "".join(f"; {what}: {', '.join(p)}" for what, p in (("fresh", fresh), ("left out", left_out)) if p)
        note(f"starting from {initial.source}{changes}; optimizer {optimizer}")
        if optimizer == "kept":
            state = _kept_state(initial, state)
        return dataclasses.replace(state, params=overlay(fitting, state.params), step=jax.numpy.zeros_like(state.step))

    return start


def frozen_parts(
    names: tuple[str, ...], initial: Initial | None, workdir: str, facts: Mapping[str, Any], resumes: bool
) -> Callable[[Any], Any] | None:
    """Return a function that fills in the parameters of the frozen parts; None if no part is frozen.

    In a new run, the function takes the parameters from ``initial`` and saves them once, in ``workdir/frozen``. In a
    resumed run, it reads them there.

    Args:
      names: the names of the frozen parts.
      facts: the facts to save with the parameters.
    """
    if not names:
        return None
    folder = str(files.as_path(workdir) / FROZEN)

    def place(frozen: Any) -> Any:
        if resumes:  # not from --init, which may have changed since
            return overlay(read_params(folder)[0], frozen)
        if initial is not None:
            frozen = overlay({name: initial.params[name] for name in names if name in initial.params}, frozen)
        if distributed.is_first() and files.as_path(folder).exists():  # left by a failed start
            files.as_path(folder).rmtree()
        distributed.wait("no frozen parts are there")
        save_params(folder, frozen, facts)
        return frozen

    return place


def heads_that_fit(params: Mapping[str, Any], fresh: Mapping[str, Any], same_task: bool) -> dict[str, Any]:
    """Return the parts of ``params`` to take over: the encoder, and the heads whose shapes are the same in ``fresh``.

    Args:
      same_task: if False, leave out heads whose outputs stand for the labels of a task.
    """

    def shapes(tree: Any) -> Any:
        return jax.tree.map(lambda x: tuple(x.shape), tree)

    return {
        part: tree
        for part, tree in params.items()
        if part == "encoder"
        or (part in fresh and (same_task or part not in TASK_HEADS) and shapes(tree) == shapes(fresh[part]))
    }


def with_vocabulary(params: Any, old: Tokenizer, new: Tokenizer) -> tuple[Any, int]:
    """Return ``params`` with the rows of the vocabulary reordered and extended to fit another tokenizer.

    A piece that ``old`` lacks gets the mean of the rows of its sub-pieces: the pieces into which ``old`` cuts the text
    of the piece. If the new piece continues a word, its first sub-piece is taken in the form that continues a word
    (such as ``##ing``) if ``old`` has this form.

    Args:
      old: the tokenizer that ``params`` was trained with.
      new: the tokenizer of the new model; it may be of another kind.

    Returns:
      (params, number of pieces that ``old`` lacks).
    """
    index = {surface: i for i, surface in enumerate(old.surfaces)}
    added = [surface for surface in new.surfaces if surface not in index]
    cut = _sub_pieces(added, old, index)
    rows = [np.asarray([index[surface]] if surface in index else cut[surface]) for surface in new.surfaces]

    def convert(tree: Any) -> Any:
        if not isinstance(tree, dict):
            return tree
        return {
            name: np.stack([leaf[ids].mean(axis=0) for ids in rows]) if name in VOCABULARY_LEAVES else convert(leaf)
            for name, leaf in tree.items()
        }

    return convert(params), len(added)


def _sub_pieces(added: Sequence[Surface], old: Tokenizer, index: Mapping[Surface, int]) -> dict[Surface, list[int]]:
    """Return a dict: each of ``added`` -> the ids of the pieces (at least one) into which ``old`` cuts its text.

    A piece that begins a word is cut with the space before it that running text has, unless it begins an ideograph.
    """
    begins = [continues is False and not IDEOGRAPH.match(text) for text, continues in added]
    texts = [old.joiner + text if begin else text for (text, _), begin in zip(added, begins, strict=True)]
    cut = {}
    for surface, ids in zip(added, old.encode_batch(texts), strict=True):
        first, *others = ids.tolist() or [old.unk_id]
        if surface[1]:
            first = index.get((old.surfaces[first][0], True), first)
        cut[surface] = [first, *others]
    return cut


def _kept_state(initial: Initial, state: TrainState) -> TrainState:
    """Return ``state`` with the parameters, moments and carry of ``initial``. Everything else stays fresh."""
    assert initial.checkpoints is not None
    workdir, step = initial.checkpoints

    def fresh(names: list[str]) -> dict[str, Any]:  # values for what an earlier version did not save
        if lost := [name for name in names if name.startswith(("params/", "opt_state/"))]:
            none_fresh(lost)
        return {name: leaf for name, leaf in named_leaves(state).items() if name in names}

    try:
        restored = read_step(workdir, step, abstract(state), fresh)
    except PassingError:
        raise
    except Exception as error:  # Orbax raises various errors for another optimizer, other shapes or a damaged file
        raise UserError(
            f"the moments of {workdir}, step {step}, do not fit this recipe's optimizer or cannot be read "
            f"({first_line(error)}); "
            "leave out --init_optimizer=kept to start the optimizer fresh"
        ) from error
    return dataclasses.replace(state, params=restored.params, opt_state=restored.opt_state, carry=restored.carry)
