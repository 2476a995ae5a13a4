"""Writes and reads Hugging Face model directories without torch or transformers."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from etils import epath

from bert_jax import catalogue
from bert_jax.errors import RepeatingError, UserError
from bert_jax.features.trained_model import TrainedModel
from bert_jax.interchange.architectures import HeadClass, config_fields, of_config, of_pretraining
from bert_jax.interchange.card import CARD
from bert_jax.interchange.conversion import Report, leaf, read_params, tensors_of, unlike
from bert_jax.interchange.family import family_described, family_of, is_family, is_own
from bert_jax.interchange.json_files import read_json, write_json
from bert_jax.interchange.outputs import other_output
from bert_jax.interchange.tensors import WEIGHTS, current_names, not_finite, read_tensors, write_tensors
from bert_jax.interchange.tokenizer_files import read_tokenizer, write_tokenizer
from bert_jax.models.config import ModelConfig
from bert_jax.models.heads import Pooling
from bert_jax.models.model import encoder_file, fresh_params
from bert_jax.storage import files, reading
from bert_jax.storage.checksums import CHECKSUMS, first_damage, write_checksums
from bert_jax.storage.replacing import Directory
from bert_jax.text.case import NOT_SAID, Case

_MODES = {"mean": "pooling_mode_mean_tokens", "cls": "pooling_mode_cls_token"}


def export_model(
    model: TrainedModel,
    output: str | os.PathLike[str],
    card: str,
    pooling: Pooling | None = None,
    into: Directory = files.whole_directory,
) -> Report:
    """Write a Hugging Face directory and return the report. The directory appears whole or not at all.

    It holds config.json, the tensors, the tokenizer's files, a list of their sha256, and the model card. Before it gets
    its name, the directory is imported: config and head must be those of the model, and every parameter the same bit by
    bit. Exports are float32; a narrower parameter is widened before it is compared.

    Args:
      model: parts that the class of its head does not have are left out; without a head, the class is that of a
        pretrained model with its parts.
      card: the text of the model card.
      pooling: how sentence-transformers is to pool the vectors of an encoder without head ("BertModel"). If None, no
        files for sentence-transformers are written.
      into: how ``output`` is written: as a new folder, or in place of an older one (``replaced_directory``).

    Raises:
      UserError: ``output`` exists already, the disk is full, transformers has no class for the model, a part is
        missing, a parameter is not finite, or what is read back is not the model.
    """
    params, config, tokenizer, head = model.params, model.config, model.tokenizer, exported_head(model)
    if pooling and head.ending != "Model":
        raise UserError(
            f"only an encoder without heads can have pooling files, this is a {head.architecture}; add "
            f"--as={head.family.name}Model"
        )
    config = config.plain()
    tensors, report = tensors_of(params, config, head, tokenizer.pad_id)
    if broken := not_finite(tensors):
        raise RepeatingError(
            f"{broken[0]} of the model holds values that are not finite numbers; nothing was written: train again with "
            "a lower learning rate"
        )
    with into(output) as folder:
        write_tensors(folder, tensors, output)
        write_json(folder / "config.json", fields_of(config, head, tokenizer.pad_id))
        write_tokenizer(folder, config, tokenizer)
        if pooling:
            _write_pooling(folder, config, pooling)
        # Only the files that an import reads get checksums. The files for pooling, which lie in a subfolder, get none,
        # and neither does the card, which people may edit.
        write_checksums(folder, sorted(path.name for path in folder.iterdir() if path.is_file()))
        (folder / CARD).write_text(card, encoding="utf-8")
        note = _check_written(folder, params, config, head)
    count = sum(array.size for array in tensors.values())
    return dataclasses.replace(
        report, title=f"exported to {output}: {head.architecture}, {count:,} parameters", notes=(note,)
    )


def exported_head(model: TrainedModel) -> HeadClass:
    """Return the head of a model; without one, the class is that of a pretrained model with its parts.

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
    """Raise ``UserError`` if an export of a user's own encoder would not compute what the encoder does.

    It is tried on random parameters, with a small vocabulary: so a mistake in its ``Family`` is found before training.
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
    theirs = fields_of(config, head, 0)
    known = family_described(theirs, where).from_config(theirs, where)
    read, *_ = _model_of(theirs, tensors, known, where, 0)
    if output := other_output((kept, config), (read, known)):
        raise UserError(
            f"{where} does not compute what the encoder does: read back, a {head.architecture} of random parameters "
            f"has another {output}"
        )


def fields_of(config: ModelConfig, head: HeadClass, pad_id: int) -> dict[str, Any]:
    """Return the content of the ``config.json`` of a model."""
    return config_fields(head) | family_of(config.encoder).to_config(config, pad_id)


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


def _write_pooling(folder: Path, config: ModelConfig, pooling: Pooling) -> None:
    """Write ``modules.json``, ``1_Pooling/config.json`` and ``sentence_bert_config.json``.

    Args:
      pooling: "mean": the mean of the last layer's vectors over all real tokens; "cls": the last layer's vector of
        ``[CLS]``, without the pooler.
    """
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{module}"}
        for i, (path, module) in enumerate((("", "Transformer"), ("1_Pooling", "Pooling")))
    ]
    write_json(folder / "modules.json", modules)
    (folder / "1_Pooling").mkdir()
    modes = {mode: name == pooling for name, mode in _MODES.items()}
    others = dict.fromkeys(("pooling_mode_max_tokens", "pooling_mode_mean_sqrt_len_tokens"), False)
    write_json(
        folder / "1_Pooling" / "config.json", {"word_embedding_dimension": config.hidden_size, **modes, **others}
    )
    # do_lower_case is False because the tokenizer itself lower-cases if the model needs it.
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": config.max_length, "do_lower_case": False})


def import_model(directory: str | os.PathLike[str], given: Case = NOT_SAID) -> TrainedModel:
    """Return the model in a Hugging Face directory. The model may be of any family and have any head of that family.

    ``given``: the case of its text, if its files do not say it.

    Raises:
      UserError: there is no such model, its weights exist only as a pickle, the tensors do not fit the config, or a
        file is damaged or does not match its sha256 in ``SHA256SUMS``, if there is one.
    """
    with files.download(directory) as folder:
        return _import_local(folder, str(directory), given)


def _import_local(folder: Path, where: str, given: Case = NOT_SAID) -> TrainedModel:
    if (folder / CHECKSUMS).exists() and (damage := export_damage(folder)):
        raise UserError(
            f"{where}: {damage}; copy the whole folder again, or remove {CHECKSUMS} if somebody changed it on purpose"
        )
    theirs = read_json(folder / "config.json")
    config = family_described(theirs, where).from_config(theirs, where)
    tokenizer = read_tokenizer(folder, config, where, given)
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
    if reason := unlike(params, config, head):
        raise UserError(f"{where} cannot be read: {reason}")
    count = sum(array.size for array in jax.tree.leaves(params))
    title = f"read {where}: {head.architecture}, {count:,} parameters"
    notes = (*([f"labels: {', '.join(head.labels)}"] if head.labels else []), *folded)
    return params, head, dataclasses.replace(report, title=title, notes=notes)


def export_damage(folder: Path | epath.Path) -> str | None:
    """Return what is wrong with an exported folder by its list of sha256; None if it is as it was written.

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
        lines = reading.read_bytes(files.as_path(folder) / CARD).decode().splitlines()
    except (OSError, ValueError):
        return None
    if not lines or lines[0].strip() != "---":
        return None
    front = lines[1 : 1 + next((i for i, line in enumerate(lines[1:]) if line.strip() == "---"), 0)]
    for line in front:
        key, _, value = line.partition(":")
        if key.strip() == "license":
            return value.partition(" #")[0].strip().strip("'\"") or None
    return None
