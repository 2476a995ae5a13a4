"""Writes and reads Hugging Face model directories without torch or transformers."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from etils import epath

from bert_jax.errors import RepeatingError, UserError
from bert_jax.features.sentence_vectors import SentenceVectors
from bert_jax.interchange.architectures import HeadClass, config_fields, of_config, of_pretraining
from bert_jax.interchange.card import CARD, CURVES, said
from bert_jax.interchange.conversion import Report, leaf, read_params, tensors_of, unlike
from bert_jax.interchange.family import family_described, family_of, is_family, is_own
from bert_jax.interchange.json_files import read_json, write_json
from bert_jax.interchange.outputs import other_output
from bert_jax.interchange.sentence_files import read_modules, with_sentence_files, write_sentence_files
from bert_jax.interchange.tensors import WEIGHTS, current_names, not_finite, read_tensors, write_tensors
from bert_jax.interchange.tokenizer_files import read_tokenizer, write_tokenizer
from bert_jax.interchange.trained_model import TrainedModel
from bert_jax.models.config import ModelConfig
from bert_jax.models.heads import Pooling
from bert_jax.models.model import LM_HEAD, encoder_file, fresh_params
from bert_jax.parts import catalogue
from bert_jax.storage import files, reading
from bert_jax.storage.checksums import CHECKSUMS, first_damage, write_checksums
from bert_jax.storage.replacing import Directory
from bert_jax.text.case import NOT_SAID, Case
from bert_jax.text.settings import END
from bert_jax.text.tokenizer import Tokenizer


def export_model(
    model: TrainedModel,
    output: str | os.PathLike[str],
    card: str,
    pooling: Pooling | None = None,
    into: Directory = files.whole_directory,
    curves: str = "",
) -> Report:
    """Write a Hugging Face directory and return the report. The directory appears whole or not at all.

    It holds config.json, the tensors, the tokenizer's files, a list of their sha256, and the model card. Before the
    directory gets its name, it is imported: config, head and every bit of the parameters must equal the model's.
    Exports are float32; a narrower parameter is widened before the comparison.

    Args:
      model: parts that the class of its head does not have are left out. Without a head, the class is the class of a
        pretrained model with its parts.
      card: the text of the model card.
      pooling: how sentence-transformers is to pool the vectors of an encoder without head ("BertModel"). If None, the
        model's files or its training decide (``exported_vectors``); if they do not, there are no files for pooling.
      into: how ``output`` is written: as a new folder, or in place of an older one (``replaced_directory``).
      curves: the SVG of a picture to which the card refers; "" if there is none.

    Raises:
      UserError: ``output`` exists already, the disk is full, transformers has no class for the model, a part is
        missing, a parameter is not finite, or what is read back is not the model.
    """
    params, config, tokenizer, head = model.params, model.config, model.tokenizer, exported_head(model)
    vectors = exported_vectors(model, pooling)
    config = config.plain()
    tensors, report = tensors_of(params, config, head, tokenizer.pad_id)
    unused = tuple(part for part in report.unused if not vectors or part not in vectors.dense_parts())
    if broken := not_finite(tensors):
        raise RepeatingError(
            f"{broken[0]} of the model holds values that are not finite numbers; nothing was written: train again with "
            "a lower learning rate"
        )
    with into(output) as folder:
        write_tensors(folder, tensors, output)
        write_json(folder / "config.json", _fields_of(config, head, tokenizer.pad_id) | _special_ids(tokenizer))
        write_tokenizer(folder, config, tokenizer, head.ending == head.family.causal)
        if vectors:
            write_sentence_files(folder, vectors, model, output)
        # The files of the folder itself get checksums. The files for pooling, which lie in subfolders, get none, and
        # neither do the card, which people may edit, and its picture.
        write_checksums(folder, sorted(path.name for path in folder.iterdir() if path.is_file()))
        (folder / CARD).write_text(card, encoding="utf-8")
        if curves:
            (folder / CURVES).write_text(curves, encoding="utf-8")
        note = _check_written(folder, params, config, head)
    count = sum(array.size for array in tensors.values())
    return dataclasses.replace(
        report,
        title=f"exported to {output}: {head.architecture}, {count:,} parameters",
        notes=(*([f"vectors: {vectors}"] if vectors else []), note),
        unused=unused,
    )


def exported_vectors(model: TrainedModel, pooling: Pooling | None = None) -> SentenceVectors | None:
    """Return how an export of ``model`` says that vectors of texts are made; None if it says nothing of them.

    ``pooling`` takes the place of the pooling that the model's files or its training name. An encoder under the head of
    another task was not trained for such vectors, so its export says nothing of them.

    Raises ``UserError`` if ``pooling`` is given for a model with heads, or gives vectors of another size than the layer
    after it reads.
    """
    head = exported_head(model)
    if pooling and head.ending != "Model":
        raise UserError(
            f"only an encoder without heads can have pooling files, this is a {head.architecture}; add "
            f"--as={head.family.name}Model"
        )
    said = model.pooled_by(pooling).said_vectors
    return said if head.ending == "Model" or "sentence_vectors" in model.facts else None


def exported_head(model: TrainedModel) -> HeadClass:
    """Return the head of a model. Without a head, the class is the class of a pretrained model with its parts.

    Raises:
      UserError: transformers has no class that computes what the model does.
    """
    head, family = model.head or HeadClass(of_pretraining(model.config, model.params)), family_of(model.config.encoder)
    if head.architecture not in family.architectures:
        raise UserError(
            f"{head.architecture} is no class of the {family.title} family: {', '.join(family.architectures)}"
        )
    if reason := unlike(model.params, model.config, head):
        raise UserError(f"the model of {model.workdir or model.source} cannot be exported: {reason}")
    return head


def check_family(config: ModelConfig) -> None:
    """Raise ``UserError`` if an export of a user's own encoder would not compute the outputs of the encoder.

    The export is tried with random parameters and a small vocabulary, to find a mistake in ``Family`` before training.
    """
    file, where = encoder_file(config.encoder), f"the Family of {catalogue.display_name(config.encoder)}"
    if not hasattr(file, "Family") or not is_own(config.encoder):
        return
    if not is_family(file.Family):
        raise UserError(f"{where} does not derive from one of bert_jax.interchange.families, such as bert.Family")
    if lacking := [name for name in ("Pooler", "LmHead") if not hasattr(file, name)]:
        raise UserError(f"{where} needs {' and '.join(lacking)} in that file: import those of bert_jax.models.heads")
    config = dataclasses.replace(config.plain(), vocab_size=min(config.vocab_size, 64), dtype="float32")
    head = HeadClass(of_pretraining(config, ()))
    params = jax.tree.map(np.asarray, fresh_params(config))
    kept = {name: tree for name, tree in params.items() if name in head.parts}
    tensors, report = tensors_of(params, config, head)
    if report.missing:
        raise UserError(f"{where} makes no {', '.join(report.missing)}, which a {head.architecture} has")
    theirs = _fields_of(config, head, 0)
    known = family_described(theirs, where).from_config(theirs, where)
    read, *_ = _model_of(theirs, tensors, known, where, 0)
    if output := other_output((kept, config), (read, known)):
        raise UserError(
            f"{where} does not compute what the encoder does: read back, a {head.architecture} of random parameters "
            f"has another {output}"
        )


def _fields_of(config: ModelConfig, head: HeadClass, pad_id: int) -> dict[str, Any]:
    """Return the content of the ``config.json`` of a model."""
    return config_fields(head) | family_of(config.encoder).to_config(config, pad_id)


def _special_ids(tokenizer: Tokenizer) -> dict[str, int | None]:
    """Return the ids of special tokens for ``config.json``. Without them, transformers takes the published models' ids.

    A text begins with [CLS] and ends with [SEP], which are also ``bos`` and ``eos``, the words of generation. In a GPT
    both are the end token, or none.
    """
    roles = tokenizer.role_ids
    named = {"pad": "pad", "bos": "cls", "cls": "cls", "eos": "sep", "sep": "sep"}
    if "cls" not in roles:
        named = dict.fromkeys(("bos", "eos"), END)
    ids = {"pad": tokenizer.pad_id} | {name: roles[role] for name, role in named.items() if role in roles}
    return {f"{name}_token_id": ids.get(name) for name in ("pad", *named)}


def _check_written(folder: Path, params: Any, config: ModelConfig, head: HeadClass) -> str:
    advice = "nothing was written"
    written = _import_local(folder, str(folder))
    kept = {name: tree for name, tree in params.items() if name in head.parts}
    config = dataclasses.replace(config, dtype="float32")
    if is_own(config.encoder):
        if written.head != head:
            raise UserError(f"the exported model has another head or other labels than the trained one; {advice}")
        if output := other_output((kept, config), (written.params, written.config)):
            raise UserError(f"the exported model has another {output} than the trained one; {advice}")
        return f"checked: read back as {written.config.encoder}, it has the same outputs"
    if (jax.tree.structure(written.params), written.head, written.config) != (jax.tree.structure(kept), head, config):
        raise UserError(f"the exported model has other parts, labels or sizes than the trained one; {advice}")
    for path, found in jax.tree_util.tree_leaves_with_path(written.params):
        name = "/".join(str(key.key) for key in path)
        mine = np.ascontiguousarray(leaf(kept, name), np.float32)
        if not np.array_equal(mine.view(np.uint32), found.view(np.uint32)):
            raise UserError(f"the exported model differs from the trained one ({name}); {advice}")
    return "checked: read back, every parameter has the same bits"


def import_model(directory: str | os.PathLike[str], given: Case = NOT_SAID) -> TrainedModel:
    """Return the model in a Hugging Face directory. The model may be of any family and have any head of that family.

    If the directory has files of sentence-transformers, the model may lie in a subfolder that they name, and its facts
    say how vectors of texts are made. ``given``: the case of the model's text, if the files do not say it.

    Raises:
      UserError: there is no such model, its weights exist only as a pickle, the tensors do not fit the config, or a
        file is damaged or does not match its sha256 in ``SHA256SUMS``, if that exists; or the files of
        sentence-transformers ask for something that is not computed here.
    """
    where = os.fspath(directory)
    with contextlib.ExitStack() as opened:

        @functools.cache
        def folder_of(path: str) -> Path:
            return opened.enter_context(files.download(f"{where.rstrip('/')}/{path}" if path else where))

        modules = read_modules(folder_of(""), where)
        inner = modules[0].path if modules else ""
        model = _import_local(folder_of(inner), f"{where}/{inner}" if inner else where, given)
        return with_sentence_files(model, modules, folder_of, where) if modules else model


def _import_local(folder: Path, where: str, given: Case = NOT_SAID) -> TrainedModel:
    if (folder / CHECKSUMS).exists() and (damage := export_damage(folder)):
        raise UserError(
            f"{where}: {damage}; copy the whole folder again, or remove {CHECKSUMS} if somebody changed it on purpose"
        )
    theirs = read_json(folder / "config.json")
    config = family_described(theirs, where).from_config(theirs, where)
    tokenizer = read_tokenizer(folder, config, where, given)
    said = theirs.get("pad_token_id", (family := family_of(config.encoder)).padding)
    if family.padding is not None and said != tokenizer.pad_id:
        raise UserError(
            f"{where}: config.json has pad_token_id {said}, the tokenizer {tokenizer.pad_id}; positions of a "
            f"{family.title} count from after that id: give both the id with which the model was trained"
        )
    params, head, report = _model_of(theirs, read_tensors(folder, where), config, where, tokenizer.pad_id)
    if spare := config.vocab_size - tokenizer.size:
        note = f"{spare:,} of the {config.vocab_size:,} embeddings have no piece: spare rows, or a vocabulary cut short"
        report = dataclasses.replace(report, notes=(*report.notes, note))
    return TrainedModel(where, params, config, tokenizer, head, report=report)


def _model_of(
    theirs: Mapping[str, Any], stored: Mapping[str, np.ndarray], config: ModelConfig, where: str, pad_id: int
) -> tuple[dict[str, Any], HeadClass, Report]:
    """Return the parameters and the head of a model whose file has the tensors ``stored``, and the report."""
    family = family_described(theirs, where)
    tensors, folded = family.fold(current_names(family, stored, where), theirs, where)
    head = of_config(family, theirs, tensors, where)
    params, report = read_params(tensors, config, head, where, pad_id)
    is_tied = theirs.get("tie_word_embeddings", True) or f"{family.decoder}.weight" in tensors
    if LM_HEAD.name in params and not is_tied:
        raise UserError(
            f"{where}/config.json says tie_word_embeddings false, but there is no {family.decoder}.weight; set it to "
            "true if the decoder is the word embeddings, else copy the whole folder again"
        )
    if reason := unlike(params, config, head):
        raise UserError(f"{where} cannot be read: {reason}")
    count = sum(array.size for array in jax.tree.leaves(params))
    title = f"read {where}: {head.architecture}, {count:,} parameters"
    notes = (*([f"labels: {', '.join(head.labels)}"] if head.labels else []), *folded)
    return params, head, dataclasses.replace(report, title=title, notes=notes)


def export_damage(folder: Path | epath.Path) -> str | None:
    """Return the damage of an exported folder by its list of sha256; None if the folder is as it was written.

    A list that does not name the config and the weights counts as damaged.
    """
    try:
        weights = [path.name for path in folder.iterdir() if path.name.endswith(".safetensors")]
        return first_damage(folder, wanted=["config.json", *(weights or [WEIGHTS])])
    except FileNotFoundError:
        return f"{CHECKSUMS} is missing" if folder.exists() else "it is missing"
    except NotADirectoryError:
        return "it is not a folder"


def licence_of(folder: str | os.PathLike[str]) -> str | None:
    """Return the licence in the front matter of a folder's model card; None if there is none."""
    try:
        return said(reading.read_bytes(files.as_path(folder) / CARD).decode(), "license")
    except (OSError, ValueError):
        return None
