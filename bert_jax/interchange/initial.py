"""Starts a run from another model (``--init``): takes its parameters, and makes rows for new pieces."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeAlias

import jax
import numpy as np

from bert_jax.checkpoints.restoring import FROZEN, read_params
from bert_jax.checkpoints.saving import save_params
from bert_jax.cluster import distributed
from bert_jax.interchange.architectures import HeadClass
from bert_jax.interchange.loading import load
from bert_jax.interchange.trained_model import RunKey, TrainedModel
from bert_jax.models.config import ModelConfig, TransformerConfig
from bert_jax.models.model import config_of, encoder_file
from bert_jax.models.transformer import scanned_from, stack_layers
from bert_jax.storage import files, hub
from bert_jax.text import tokenizer as tokenizers
from bert_jax.text.case import Case
from bert_jax.text.learn import IDEOGRAPH
from bert_jax.text.tokenizer import Tokenizer
from bert_jax.training.state import TrainState, overlay
from bert_jax.workdir.run_record import Purpose, purpose_of, read_run

_Surface: TypeAlias = tuple[str, bool | None]  # see Tokenizer.surfaces
# Parameters with one row per piece of the vocabulary.
VOCABULARY_LEAVES = ("word_embeddings", "output_bias")
# The row of a model with two token types as which each of UniLM's six begins (microsoft/unilm, unilm-v1).
_OF_TWO = (0, 1, 0, 0, 0, 1)


def find_initial(source: str | None, workdir: str, resumes: bool, given: Case) -> TrainedModel | None:
    """Return the model from which a run starts; None if it starts from random weights.

    Args:
      source: the value of --init.
      resumes: whether the run resumes from one of its checkpoints. If so, return the model that the run began from.
      given: the case of the model's text, if its files do not say it.

    Raises:
      UserError: for the reasons of ``load``, or the processes of the job found different models.
    """
    initial = None
    if resumes:
        initial = _begun_from(workdir)
    elif source:
        initial = load(_at_recorded_commit(source, workdir), flag="--init=", given=given)
    commit = initial.source if initial and hub.is_model(initial.source) else ""
    distributed.agree("the model of --init", f"{initial.config} {initial.run} {commit}" if initial else "")
    return initial


def _at_recorded_commit(source: str, workdir: str) -> str:
    """Return ``source``; if the run in ``workdir`` was begun from it, a model of the Hub, return it with its commit.

    So a run that was killed before its first save begins again from the same files, even if a branch has moved.
    """
    run = read_run(workdir) if hub.is_model(source) else {}
    begun = run.get("identity", {}).get("init") == source
    return str((run.get("parent") or {}).get("source", source)) if begun else source


def _begun_from(workdir: str) -> TrainedModel | None:
    """Return the model that the run in ``workdir`` began from; None if it began from random weights.

    The result has no parameters: a resumed run does not need them, and the model itself may have been deleted.
    """
    run = read_run(workdir)
    identity, facts = run.get("identity", {}), run.get("facts", {})
    if not identity.get("init") or "model" not in facts:
        return None
    trained_by = RunKey(purpose_of(identity), facts["parent_key"]) if "parent_key" in facts else None
    model = config_of(facts["model"])
    tokenizer = tokenizers.load(tokenizers.find(workdir), facts["lowercase"], facts.get("strip_accents"))
    head = HeadClass(classifier_dropout=(facts.get("task") or {}).get("dropout_rate"))
    kept = {name: facts[name] for name in ("task", "tasks", "max_length") if name in facts}  # how it pools
    return TrainedModel(str(identity["init"]), {}, model, tokenizer, head, kept, run=trained_by)


def continued_seed(seed: int, initial: TrainedModel | None, purpose: Purpose) -> tuple[int, dict[str, str]]:
    """Return the seed of a run's rows, masks and dropout, and the entries to save with the run's facts.

    If a run starts from another run of the same purpose, the new seed depends on the identity and the step of this
    parent: with the same seed, a run on the same text would repeat the rows, masks and dropout of its parent. All other
    runs keep their seed.
    """
    if initial is None or initial.run is None or initial.run.purpose != purpose:
        return seed, {}
    digest = hashlib.sha256(f"{seed} {initial.run.key}".encode()).digest()
    return int.from_bytes(digest[:4], "little") >> 1, {"parent_key": initial.run.key}


def start_from(
    initial: TrainedModel,
    model: ModelConfig,
    tokenizer: Tokenizer,
    note: Callable[[str], None],
    head: HeadClass | None = None,
    others: Collection[str] = (),
) -> Callable[[TrainState], TrainState]:
    """Return a function that takes a fresh train state and returns one with the parameters of ``initial``.

    If the vocabulary differs, see ``with_vocabulary_rows``. If the encoder differs, ``begun`` of the new encoder's file
    gives its parameters. Heads that the fresh state lacks or has in another shape are left out. A note lists the parts
    that are left out and the parts that stay fresh.

    Args:
      note: called with each line for the user.
      head: the head of the model to train. A classifier of another task or with other labels is left out, even if its
        shapes fit.
      others: parts that are left out as well.
    """
    params, says = dict(initial.params), ""
    if may_grow_types(initial.config.type_vocab_size, model.type_vocab_size):
        params |= {"encoder": with_token_types(params["encoder"])}
        note(f"token types: {len(_OF_TWO)}, each with the vector of one of the two of {initial.source}")
    if model.encoder != initial.config.encoder and hasattr(file := encoder_file(model.encoder), "begun"):
        params["encoder"], says = file.begun(params["encoder"], model)
    if tokenizer.vocab != initial.tokenizer.vocab or model.vocab_size != initial.config.vocab_size:
        params, added = with_vocabulary_rows(params, initial.tokenizer, tokenizer)
        note(f"vocabulary: {added:,} new pieces, each at the mean of its old sub-pieces")
    if isinstance(model, TransformerConfig) and model.layers == "scanned":
        params = stack_layers(params, scanned_from(model.blocks))

    except_for = (*others, *(() if head is None or head == initial.head else head.task_parts))

    def start(state: TrainState) -> TrainState:
        fitting = _parts_that_fit(params, state.params, except_for)
        begun = _begun(params, {n: tree for n, tree in state.params.items() if n not in fitting}, model)
        fitting |= begun
        fresh = [part for part in state.params if part not in fitting]
        left_out = [part for part in params if part not in fitting]
        lists = {"begun as its head of pretraining": begun, "fresh": fresh, "left out": left_out}
        changes = "".join(f"; {what}: {', '.join(names)}" for what, names in lists.items() if names)
        note(f"starting from {initial.source}{changes}{says and f'; {says}'}")
        return dataclasses.replace(state, params=overlay(fitting, state.params), step=jax.numpy.zeros_like(state.step))

    return start


def frozen_parts(
    names: tuple[str, ...], initial: TrainedModel | None, workdir: str, facts: Mapping[str, Any], resumes: bool
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
        save_params(folder, {name: frozen[name] for name in names}, facts)
        return frozen

    return place


def _parts_that_fit(params: Mapping[str, Any], fresh: Mapping[str, Any], except_for: Collection[str]) -> dict[str, Any]:
    """Return the encoder of ``params`` and, ``except_for`` some, the parts whose shapes are the same in ``fresh``."""

    def shapes(tree: Any) -> Any:
        return jax.tree.map(lambda x: tuple(x.shape), tree)

    return {
        part: tree
        for part, tree in params.items()
        if part == "encoder" or (part in fresh and part not in except_for and shapes(tree) == shapes(fresh[part]))
    }


def _begun(params: Mapping[str, Any], fresh: Mapping[str, Any], model: ModelConfig) -> dict[str, Any]:
    """Return the ``fresh`` parts that begin with the parameters of another part of ``params`` (``Head.begins_as``).

    If there are several tasks, the name of a part begins with the name of its task.
    """
    file, found = encoder_file(model.encoder), {}
    for name, head in (("pooler", "Pooler"), ("token_head", "TokenHead")):
        source = params.get(getattr(getattr(file, head, None), "begins_as", ""), {})
        for part, tree in fresh.items():
            if (part == name or part.endswith(f"_{name}")) and tree.keys() <= source.keys():
                found[part] = {leaf: source[leaf] for leaf in tree}
    return found


def may_grow_types(old: int, new: int) -> bool:
    """Return whether a model of ``new`` token types may begin as a model of ``old`` token types."""
    return (old, new) == (len(set(_OF_TWO)), len(_OF_TWO))


def with_token_types(encoder: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of an ``encoder`` with two token types, with a row for each of six."""
    table, embeddings = "token_type_embeddings", encoder["embeddings"]
    return {**encoder, "embeddings": {**embeddings, table: np.asarray(embeddings[table])[np.array(_OF_TWO)]}}


def with_vocabulary_rows(params: Any, old: Tokenizer, new: Tokenizer) -> tuple[Any, int]:
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
    index = {(text, None): i for (text, goes_on), i in index.items() if goes_on is False} | index  # kept whole now
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


def _sub_pieces(added: Sequence[_Surface], old: Tokenizer, index: Mapping[_Surface, int]) -> dict[_Surface, list[int]]:
    """Return a dict: each of ``added`` -> the ids of the pieces (at least one) into which ``old`` cuts its text.

    A piece that begins a word is cut with the space before it that running text has, unless it begins an ideograph.
    """
    begins = [continues is False and not IDEOGRAPH.match(text) for text, continues in added]
    texts = [old.joiner + text if begin else text for (text, _), begin in zip(added, begins, strict=True)]
    cut = {}
    for surface, ids in zip(added, old.encode_batch(texts), strict=True):
        first, *others = ids.tolist() or [max(old.unk_id, 0)]
        if surface[1]:
            first = index.get((old.surfaces[first][0], True), first)
        cut[surface] = [first, *others]
    return cut
