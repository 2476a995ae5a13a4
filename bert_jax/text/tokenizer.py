"""``Tokenizer``, the class of every kind of tokenizer, and functions that find, read and make tokenizers.

There are two engines: ``sentencepiece`` for its own models, and ``tokenizers`` for everything else. A folder (a
workdir, a Hugging Face directory) has its tokenizer in one file: ``tokenizer.json`` (WordPiece, byte-level BPE or
Unigram), ``vocab.txt`` (WordPiece with BERT's rules) or ``spiece.model`` (sentencepiece, unigram or BPE). If a folder
has several of these files, the first in this order is used. Published ``vocab.json`` and ``merges.txt`` are read too; a
folder keeps them as ``tokenizer.json``.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence

import numpy as np

from bert_jax.errors import UserError
from bert_jax.records import MASK, UNK
from bert_jax.storage import files
from bert_jax.text import accents, folders, tokenizer_json, trimming
from bert_jax.text.case import Case
from bert_jax.text.encoded import Cut, Encoded, kept_lengths
from bert_jax.text.json_engine import JsonEngine
from bert_jax.text.marks import Bytes, Prefix, Suffix, is_white, printable
from bert_jax.text.roles import CLS_TYPE, with_cls_last
from bert_jax.text.sentencepiece_engine import Engine, SentencePieceEngine
from bert_jax.text.settings import BERT_NAMES, END, Token
from bert_jax.text.surrogates import well_formed
from bert_jax.text.vocab_txt import check_vocab

FILE_NAMES = (tokenizer_json.FILE_NAME, folders.BARE, SentencePieceEngine.file_name)
_FILE_OF_KIND = {"wordpiece": "vocab.txt", "byte_bpe": tokenizer_json.FILE_NAME}  # all others: sentencepiece's


class Tokenizer:
    """Turns text into ids and back. Threads may share a tokenizer. It is pickled as what its file holds."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.vocab = engine.vocab  # [V] pieces by id
        self.lowercase = engine.lowercase  # whether text is converted to lower case
        self.role_ids = ids = engine.role_ids  # role, of ``settings.ROLES`` or END -> id; a GPT lacks roles
        self.special_ids = engine.special_ids
        # A GPT pads with its end token. Padding is known by the mask, and not by its id.
        self.pad_id = next((ids[role] for role in ("pad", END, "unk") if role in ids), 0)
        self.unk_id = ids.get("unk", -1)  # -1: any text has pieces, as in GPT-2
        self.pair_separators, self._pair_type, self.cls_last = engine.layout
        self.between = (ids["sep"],) * self.pair_separators if "sep" in ids else ()  # the texts of a pair
        # Put before a word, and before a sentence that follows another: " " if that changes its piece, else "".
        self.joiner = engine.joiner

    def __reduce__(self) -> tuple[type[Tokenizer], tuple[Engine]]:
        return Tokenizer, (self._engine,)

    @property
    def cls_id(self) -> int:
        """Return the id of [CLS]. Raises ``UserError`` if the tokenizer has none."""
        return self.need("cls", "this")

    @property
    def sep_id(self) -> int:
        """Return the id of [SEP]. Raises ``UserError`` if the tokenizer has none."""
        return self.need("sep", "this")

    @property
    def mask_id(self) -> int:
        """Return the id of [MASK]. Raises ``UserError`` if the tokenizer has none."""
        return self.need("mask", "this")

    @property
    def around(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the ids before and after a text: [CLS] and [SEP]; in a GPT, its end token after it, or nothing."""
        ids = self.role_ids
        if "cls" not in ids:
            return (), (ids[END],) if END in ids else ()
        return ((), (ids["sep"], ids["cls"])) if self.cls_last else ((ids["cls"],), (ids["sep"],))

    def need(self, role: str, why: str, advice: str = "take another vocabulary or model") -> int:
        """Return the id of the token with ``role``. Raise ``UserError`` if there is none; ``why`` says who needs it."""
        if role not in self.role_ids:
            has = ", ".join(self.vocab[i] for i in self.special_ids) or "none"
            raise UserError(
                f"{why} needs the token {BERT_NAMES[role]}, which the tokenizer lacks (its special tokens: {has}); "
                f"{advice}"
            )
        return self.role_ids[role]

    @property
    def size(self) -> int:
        """Return V, the number of pieces."""
        return len(self.vocab)

    @property
    def file_name(self) -> str:
        """Return the name of the tokenizer's file in a folder."""
        return self._engine.file_name

    @functools.cached_property
    def sha256(self) -> str:
        """Return the identity of the tokenizer: the hash of everything that its ids depend on."""
        return self._engine.sha256

    @property
    def is_wordpiece(self) -> bool:
        """Return whether a prefix, such as ``##``, marks the pieces that continue a word."""
        return isinstance(self._engine.marks, Prefix)

    def readable(self, token: int) -> str:
        """Return a piece as a person reads it: in byte-level BPE with its text in place of the letters of its bytes."""
        if not isinstance(self._engine.marks, Bytes) or self._roles[token] in ("special", "unknown", "added"):
            return self.vocab[token]
        text, continues = self.surfaces[token]
        return printable(text) if continues else self._engine.marks.space + printable(text)

    @functools.cached_property
    def strip_accents(self) -> bool | None:
        """Return whether accents are stripped; None if that goes with lower case, as in BERT."""
        strips = self._takes[0]
        return None if strips == self.lowercase else strips

    @property
    def case(self) -> Case:
        """Return the case that a record has to state, so that ``load`` gives the same tokenizer of a ``vocab.txt``."""
        return Case(self.lowercase, self.strip_accents)

    @functools.cached_property
    def _takes(self) -> tuple[bool, bool]:
        """Return whether accents are stripped, and whether Korean syllables are cut."""
        normalize = self._engine.normalized
        return accents.strips_accents(normalize), accents.cuts_syllables(normalize)

    def losses(self, found: accents.Losses) -> str:
        """Return a line that says what the tokenizer takes from the letters of a text; "" if it takes little."""
        return accents.line(found, *self._takes)

    def spoils(self, text: str) -> bool:
        """Return whether the tokenizer takes a part of a letter of ``text``."""
        strips, cuts = self._takes
        found = accents.losses(text if strips or cuts else "")
        return bool((found.accents + found.signs) * strips + found.syllables * cuts)

    @functools.cached_property
    def is_continuation(self) -> np.ndarray:
        """Return whether each piece continues a word, bool [V].

        All other pieces start a word, and so does any piece after one of ``ends_word``. In byte-level BPE that puts no
        space before a text, the first piece of a text counts as a continuation.
        """
        whole = {*self.special_ids, *self._engine.added_ids}
        return np.array([i not in whole and self._engine.marks.continues(p) for i, p in enumerate(self.vocab)])

    @functools.cached_property
    def ends_word(self) -> np.ndarray:
        """Return after which pieces any piece starts a word, bool [V]: special and added tokens, tabs and line breaks.

        A single space belongs to the word that it stands before.
        """
        ends = [is_white(text[-1:]) for text, _ in self.surfaces]
        if isinstance(marks := self._engine.marks, Suffix):
            ends = [marks.ends(piece) for piece in self.vocab]
        return np.array([role in ("special", "added") or end for role, end in zip(self._roles, ends, strict=True)])

    @functools.cached_property
    def surfaces(self) -> tuple[tuple[str, bool | None], ...]:
        """Return, for each piece, its text and whether it continues a word, [V].

        The entry of a special token is (BERT's name for it, None). The entry of an added token is (the token, None).
        No two pieces of a tokenizer have the same entry. Pieces with the same meaning have the same entry in every kind
        of tokenizer.
        """
        names = {i: self.vocab[i] for i in self.special_ids}
        names |= {self.role_ids[role]: name for role, name in BERT_NAMES.items() if role in self.role_ids}
        names |= {i: self.vocab[i] for i in self._engine.added_ids}
        surface = self._engine.marks.surface
        return tuple((names[i], None) if i in names else surface(piece) for i, piece in enumerate(self.vocab))

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Return the ids of each text, int32 (read-only), without special tokens around it.

        Special tokens in a text are read as plain text.
        """
        try:
            return self._engine.ids(texts)
        except TypeError:  # a lone surrogate; checking every text first would slow down all texts for the few
            clean = [well_formed(text) for text in texts]
            if clean == list(texts):
                raise
            return self._engine.ids(clean)

    def encode(
        self, text: str, pair: str | None = None, max_length: int | None = None, special_tokens_in_text: bool = False
    ) -> Encoded:
        """Return ``[CLS] text [SEP]`` or ``[CLS] text [SEP] pair [SEP]``, cut and padded to ``max_length`` if given.

        In a GPT it is the text and the end token; a pair needs [SEP]. An input that is too long is cut as
        ``kept_lengths`` says. If ``special_tokens_in_text``, special tokens in the texts are recognised, both by BERT's
        names (``[MASK]``) and by the tokenizer's own names (``<mask>``).
        """
        if pair is not None:
            self.need("sep", "a pair of texts")
        before, after = self.around
        texts = [well_formed(t) for t in ([text] if pair is None else [text, pair])]
        cuts = [self._engine.cut(t, special_tokens_in_text) for t in texts]
        kept = [len(cut.ids) for cut in cuts]
        if max_length is not None:
            special = len(before + after) + (0 if pair is None else len(self.between))
            if max_length <= special:
                raise UserError(f"max_length is {max_length}; at least {special + 1} positions are needed")
            kept = [*kept_lengths(kept[0], sum(kept[1:]), max_length - special)][: len(kept)]
        n = len(before)
        ids, types, offsets, starts = [*before], [0] * n, [(0, 0)] * n, [False] * n
        for segment, (own, cut, n) in enumerate(zip(texts, cuts, kept, strict=True)):
            closing = self.between if segment < len(texts) - 1 else after
            spans, begins = self._words(own, cut)
            ids += [*cut.ids[:n], *closing]
            types += [segment * self._pair_type] * (n + len(closing))
            offsets += [*spans[:n], *[(0, 0)] * len(closing)]
            starts += [*begins[:n], *[False] * len(closing)]
        types[-1:] = [CLS_TYPE] if self.cls_last else types[-1:]
        padding = max(0, (max_length or 0) - len(ids))
        mask = [1] * len(ids) + [0] * padding
        ids += [self.pad_id] * padding
        return Encoded(
            pieces=tuple(self.vocab[i] for i in ids),
            input_ids=tuple(ids),
            token_type_ids=tuple(types + [0] * padding),
            attention_mask=tuple(mask),
            offsets=tuple(offsets + [(0, 0)] * padding),
            word_starts=tuple(starts + [False] * padding),
        )

    def _words(self, text: str, cut: Cut) -> tuple[list[tuple[int, int]], list[bool]]:
        """Return the span of each piece in ``text``, without white space, and whether the piece begins a word."""
        roles, before, end = self._roles, "special", 0
        offsets, starts = list[tuple[int, int]](), list[bool]()
        for token, piece, (start, stop) in zip(*cut, strict=True):
            role = roles[token]
            while start < stop and is_white(text[start]):
                start += 1
            while start < stop and is_white(text[stop - 1]):
                stop -= 1
            if role == "unknown":  # the library gives an unknown piece as its text
                role = "continues" if self._engine.marks.continues(piece) else "begins"
            after_white = before != "space" and max(end, 1) <= start < stop and is_white(text[start - 1])
            begins = role not in ("continues", "ends") or before in ("special", "added", "ends") or after_white
            starts.append(begins and role != "special")
            offsets.append((start, start if role == "space" else stop))  # a text may lack the space before a word
            before, end = role, stop
        return offsets, starts

    @functools.cached_property
    def _roles(self) -> tuple[str, ...]:
        """Return what each piece is, [V]: "special", "unknown", "added", "space", "begins", "ends", "continues"."""
        known = dict.fromkeys(self._engine.added_ids, "added") | dict.fromkeys(self.special_ids, "special")
        known |= {i: "space" for i, (text, _) in enumerate(self.surfaces) if not text} | {self.unk_id: "unknown"}
        marked = self.is_continuation.tolist()
        if isinstance(marks := self._engine.marks, Suffix):
            known = {i: "ends" for i, piece in enumerate(self.vocab) if marks.ends(piece)} | known
        return tuple(known.get(i, "continues" if marked[i] else "begins") for i in range(self.size))

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """Return the readable text of ``ids``: pieces joined to words, without padding and tokens around texts.

        Masks and unknown pieces are written as ``[MASK]`` and ``[UNK]``, bytes that are not UTF-8 as U+FFFD.
        """
        roles, marks = self.role_ids, self._engine.marks
        silent = {roles[role] for role in ("pad", "cls", "sep", END) if role in roles}
        end = marks.suffix if isinstance(marks, Suffix) else ""
        names = {"unk": marks.space + UNK + end, "mask": marks.space + MASK + end}
        shown = {roles[role]: name for role, name in names.items() if role in roles}
        pieces = [shown.get(i, self.vocab[i]) for i in map(int, ids) if i not in silent]
        text = self._engine.text(pieces)
        first = not self.joiner or pieces[:1] == [names["mask"]]
        return text.removeprefix(" ") if first else text

    def with_added(self, tokens: Sequence[Token], cls_last: bool = False) -> Tokenizer:
        """Return the tokenizer with more added tokens, which stay whole in every text. New tokens get the next ids.

        ``cls_last``: put [CLS] after a text. A model of sentencepiece becomes a ``tokenizer.json``, by ``_convert``.
        """
        own = {BERT_NAMES.get(role, self.vocab[i]) for role, i in self.role_ids.items()}
        own |= {self.vocab[i] for i in self.special_ids} | {self.vocab[i] for i in self._engine.added_ids}
        new = [token for token in tokens if token["content"] not in own]
        if not new and (self.cls_last or not cls_last):
            return self
        content = tokenizer_json.with_added(self._engine.as_json.content, new)
        content = with_cls_last(content) if cls_last else content
        return Tokenizer(JsonEngine(content)) if "cls" in self.role_ids else of_json(content)  # [MASK] is a role then

    def trimmed(self, texts: Sequence[str], min_count: int = 1) -> tuple[Tokenizer, np.ndarray]:
        """Return the tokenizer of the pieces that texts use ``min_count`` times or more, and their [V] old ids.

        Pieces that ``text.trimming`` needs stay too. Raises ``UserError`` if the texts use no piece so often, or if
        ``text.trimming`` cannot trim such a tokenizer.
        """
        before = self.encode_batch(texts)
        used = np.bincount(np.concatenate(before or [np.zeros(0, int)]), minlength=self.size) >= min_count
        if not used.any():
            raise UserError(f"no piece occurs {min_count} times in the texts; give more text or a lower --min_count")
        unknown = (text for text, ids in zip(texts, before, strict=True) if self.unk_id in ids)
        engine, old = trimming.trimmed(self._engine, np.flatnonzero(used).tolist(), unknown)
        smaller, kept = Tokenizer(engine), np.array(old)
        for text, ids, new in zip(texts, before, smaller.encode_batch(texts), strict=True):
            if min_count == 1 and not np.array_equal(ids, kept[new]):
                raise UserError(f"this tokenizer cannot be trimmed: {text[:60]!r} would be cut into other pieces")
        return smaller, kept

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the tokenizer's file, whole or not at all."""
        files.write_bytes(path, self._engine.file(os.fspath(path)))

    def tokenizer_json(self) -> str:
        """Return a Hugging Face ``tokenizer.json`` that gives the same ids."""
        return self._engine.as_json.json()

    @property
    def has_bert_rules(self) -> bool:
        """Return whether a ``vocab.txt`` and the ``switches`` say everything that the ids depend on."""
        return self._engine.as_json.has_bert_rules

    @property
    def switches(self) -> dict[str, bool]:
        """Return name -> whether the rule is on, for the rules that have names in ``tokenizer_config.json``."""
        return self._engine.as_json.switches


def wordpiece(vocab: Sequence[str], lowercase: bool = True, strip_accents: bool | None = None) -> Tokenizer:
    """Return BERT's WordPiece tokenizer with these pieces, one for each id."""
    check_vocab(vocab, "the vocabulary")
    return Tokenizer(JsonEngine(tokenizer_json.of_bert(vocab, lowercase, strip_accents)))


def sentencepiece(model: bytes, lowercase: bool | None = None, strip_accents: bool | None = None) -> Tokenizer:
    """Return the tokenizer of the bytes of a ``.model`` file; see ``sentencepiece_model.prepare``."""
    return Tokenizer(SentencePieceEngine(model, lowercase, strip_accents=strip_accents))


def of_json(content: tokenizer_json.Content) -> Tokenizer:
    """Return the tokenizer of the content of a ``tokenizer.json``."""
    return Tokenizer(JsonEngine(tokenizer_json.normal(content, "the tokenizer"), "the tokenizer"))


def load(
    path: str | os.PathLike[str],
    lowercase: bool | None = None,
    strip_accents: bool | None = None,
    rows: int | None = None,
) -> Tokenizer:
    """Return the tokenizer of a file, or of the first file of ``FILE_NAMES`` in a folder.

    The files of transformers beside it are obeyed, or refused: see ``text.folders``.

    Args:
      lowercase: whether to convert text to lower case, if no file states the case. If None, a model of sentencepiece
        keeps its own rule, and a ``vocab.txt`` is taken as lower-case.
      strip_accents: whether to strip accents, if no file says it. If None, they are stripped with lower case.
      rows: the number of embeddings of a model, if there is a model; blank lines beyond this number do not count.

    Raises:
      UserError: there is no such file, it is not a tokenizer, or the files contradict each other.
    """
    source, given = files.as_path(path), Case(lowercase, strip_accents)
    if source.is_dir():
        return Tokenizer(folders.of_folder(files.as_path(find(source)), given, rows))
    if not source.exists():
        named = "a published vocab.txt, .model or tokenizer.json"
        raise UserError(f"no vocabulary file {source}; learn one with `bert-jax vocab` or name {named}")
    return Tokenizer(folders.of_file(source, given, rows))


def find(folder: str | os.PathLike[str]) -> os.PathLike[str]:
    """Return the tokenizer's file in ``folder``. Raises ``UserError`` if there is none."""
    file = existing(folder)
    if file is None:
        raise UserError(f"{folder} has neither {' nor '.join(FILE_NAMES)}; put the tokenizer's file there")
    return file


def existing(folder: str | os.PathLike[str]) -> os.PathLike[str] | None:
    """Return the tokenizer's file in ``folder``; None if there is none."""
    candidates = [files.as_path(folder) / name for name in (*FILE_NAMES, tokenizer_json.MERGES, folders.SHIFTED)]
    return next((path for path in candidates if path.exists()), None)


def file_name(kind: str, changed: bool = False, plain: bool = True) -> str:
    """Return the file name for a learned tokenizer of ``kind``. ``changed``: whether ``with_added`` has added tokens.

    ``plain``: whether it strips accents in lower case, and only then; a ``vocab.txt`` cannot say another rule.
    """
    name = _FILE_OF_KIND.get(kind, SentencePieceEngine.file_name)
    return tokenizer_json.FILE_NAME if changed or (kind == "wordpiece" and not plain) else name


def check_name(output: str | os.PathLike[str], wanted: str, vocabulary: str) -> None:
    """Raise ``UserError`` if a file named ``output`` would be read as another kind of vocabulary than ``wanted``."""
    own = (".json", ".model")  # all other endings: a vocab.txt
    if len({ending if ending in own else "" for _, ending in map(os.path.splitext, (output, wanted))}) > 1:
        raise UserError(f"{output} would be read as a vocabulary of another kind than {vocabulary}; call it {wanted}")
