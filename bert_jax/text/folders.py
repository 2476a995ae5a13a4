"""Reads a tokenizer's file together with the files beside it, which have an order of authority.

A ``tokenizer.json`` says more than the files of ``text.settings``, and these say more than a bare file: ``vocab.txt``,
a ``.model`` of sentencepiece, or ``vocab.json`` with ``merges.txt``. Files that contradict each other are refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from etils import epath

from bert_jax.errors import UserError
from bert_jax.records import SPECIAL_TOKENS
from bert_jax.storage import reading
from bert_jax.text import roles, tokenizer_json
from bert_jax.text.case import Case
from bert_jax.text.json_engine import JsonEngine
from bert_jax.text.sentencepiece_engine import Engine, SentencePieceEngine
from bert_jax.text.settings import ROLES, Settings, beside, read_json
from bert_jax.text.vocab_txt import check_vocab, lines_of, vocab_difference

BARE, SHIFTED = "vocab.txt", "sentencepiece.bpe.model"
_SAID = ("do_lower_case", "strip_accents")  # the names in tokenizer_config.json of what a ``Case`` holds


def of_folder(source: epath.Path, given: Case, rows: int | None) -> Engine:
    """Return the engine of ``source``, the first of its folder's files; see ``tokenizer.load`` for the arguments.

    A ``tokenizer.json`` for a model without token types gives both texts of a pair the same type. If the bare file
    beside it gives the same ids in all other respects, the engine of the bare file is returned.

    Raises:
      UserError: for the reasons of ``of_file``, or a ``vocab.txt`` beside a ``tokenizer.json`` has other pieces.
    """
    engine = of_file(source, given, rows)
    bare, model = source.parent / BARE, source.parent / SentencePieceEngine.file_name
    if source.name != tokenizer_json.FILE_NAME or not isinstance(engine, JsonEngine):
        return engine
    if bare.exists() and (found := _difference(bare, engine.content, rows)):
        raise UserError(f"{bare} {found}: one of them was cut short or changed; copy the whole folder again")
    other: Engine | None = None
    if model.exists():
        other = SentencePieceEngine(reading.read_bytes(model), None, str(model))
    elif bare.exists() and not engine.has_bert_rules and (by_bert := engine.by_bert()):
        other = JsonEngine(by_bert)
    return other if other and tokenizer_json.same(other.as_json.content, engine.content) else engine


def of_file(source: epath.Path, given: Case, rows: int | None) -> Engine:
    """Return the engine of a file, by the rules that the files beside it state; for arguments see ``tokenizer.load``.

    Raises ``UserError`` if one of the files cannot be read or obeyed, or contradicts another.
    """
    settings, whole = beside(source), source.parent / tokenizer_json.FILE_NAME
    if source.name == BARE and whole.exists() and _difference(source, read_json(whole), rows) is None:
        source = whole
    if source.suffix == ".json" or source.name == tokenizer_json.MERGES:
        engine = JsonEngine(tokenizer_json.read(source, settings), str(source))
        _check_switches(engine, settings)
        return engine
    given = Case(*(own if said is None else said for said, own in zip(map(settings.switch, _SAID), given, strict=True)))
    if source.suffix == ".model":
        return _of_model(source, settings, given)
    settings.check_class("txt")
    pieces = lines_of(reading.utf8_text(source, str(source), "vocabulary"), rows)
    special = dict(zip(ROLES, SPECIAL_TOKENS, strict=True)) | settings.roles
    added = {token["content"] for token in settings.tokens if "id" in token}
    check_vocab(pieces, str(source), [token for token in special.values() if token not in added])
    ideographs = settings.switch("tokenize_chinese_chars") is not False
    content = tokenizer_json.of_bert(pieces, given.lowercase is not False, given.strip_accents, ideographs, settings)
    return JsonEngine(content, str(source))


def check_layout(source: epath.Path, pieces: Sequence[str], role_ids: Mapping[str, int]) -> None:
    """Raise ``UserError`` if the files of a model's tokenizer put no special tokens around a text, and it has them."""
    whole = source.name == tokenizer_json.FILE_NAME
    bare = roles.is_bare(read_json(source)) if whole else source.name == tokenizer_json.MERGES
    if not bare or not beside(source).leaves_texts_bare or "cls" not in role_ids:
        return
    cls, sep = ([pieces[i], i] for i in (role_ids["cls"], role_ids["sep"]))
    processor = json.dumps({"type": "BertProcessing", "sep": sep, "cls": cls}, ensure_ascii=False)
    advice = f'give the file "post_processor": {processor}' if whole else "name the tokenizer_class RobertaTokenizer"
    raise UserError(
        f"{source} puts no special tokens around a text, but a model reads {cls[0]} and {sep[0]} there; if this model "
        f"was trained with them, {advice}"
    )


def _of_model(source: epath.Path, settings: Settings, given: Case) -> Engine:
    settings.check_class("model")
    if source.name == SHIFTED:
        raise UserError(
            f"{source} has other ids than its model: fairseq shifts them; give the tokenizer.json that transformers "
            "saves, or call the file spiece.model to take its own ids for a new model"
        )
    lowercase, strip_accents = (None, None) if settings.has_albert_rules else given
    engine = SentencePieceEngine(reading.read_bytes(source), lowercase, str(source), strip_accents)
    named = {*SPECIAL_TOKENS, *engine.roles.values()}
    added = [token for token in settings.added(engine.vocab) if token["content"] not in named]
    if settings.has_albert_rules or added or settings.roles.items() - engine.roles.items():
        return engine.by_rules(settings, bool(given.lowercase) if settings.is_xlnet else given.lowercase is not False)
    if settings.switch("keep_accents") is not None:
        _check_switches(engine.as_json, settings)
    return engine


def _check_switches(engine: JsonEngine, settings: Settings) -> None:
    """Raise ``UserError`` if the files beside a tokenizer's file state other rules than the tokenizer's file.

    ``do_lower_case`` may state the rule of the BERT step alone, if another step converts text to lower case: an export
    of sentence-transformers adds such a step for its option ``do_lower_case``.
    """
    steps = roles.flat_steps(engine.content.get("normalizer"), "normalizers")
    cases = [step["lowercase"] for step in steps if step["type"] == "BertNormalizer" and len(steps) > 1]
    split = roles.flat_steps(engine.content.get("pre_tokenizer"), "pretokenizers")
    schemes = [step.get("prepend_scheme", "always") for step in split if step["type"] == "Metaspace"]
    space = {"add_prefix_space": schemes[-1] != "never"} if schemes and settings.has_albert_rules else {}
    for name, value in (engine.switches | space).items():
        said = settings.switch(name)
        if said not in (None, value) and not (name == "do_lower_case" and said in cases):
            raise UserError(
                f"{settings.where} says {name} {json.dumps(not value)}, but the tokenizer's file does as if it were "
                f"{json.dumps(value)}; correct the one that is wrong (tokenizer_config.json may leave {name} out)"
            )


def _difference(bare: epath.Path, content: tokenizer_json.Content, rows: int | None) -> str | None:
    """Return how the ``vocab.txt`` at ``bare`` differs from the content of the ``tokenizer.json`` beside it."""
    model = content.get("model")
    vocab = model.get("vocab") if isinstance(model, dict) else None
    if not isinstance(vocab, dict) or not all(isinstance(i, int) for i in vocab.values()):
        return "lies beside a tokenizer.json that is no WordPiece"
    lines = lines_of(reading.read_bytes(bare).decode("utf-8-sig", "replace"), rows)
    entries = [entry for entry in content.get("added_tokens") or () if isinstance(entry, dict)]
    added = {entry.get("content"): entry.get("id") for entry in entries}
    return vocab_difference(lines, vocab, added)
