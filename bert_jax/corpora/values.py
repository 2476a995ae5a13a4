"""Makes a document from the text of a record (JSON, parquet, TFDS, datasets)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeAlias

from bert_jax.configuration import nearest
from bert_jax.corpora.bad_text import BadText, BadTextError
from bert_jax.corpora.source import Skipped
from bert_jax.errors import UserError
from bert_jax.records import Document
from bert_jax.text.sentences import one_space, split_sentences, windows

# The option ``line_breaks``. "end_sentences": a line break ends a sentence. "are_spaces", for hard-wrapped text: a line
# break is a space, and a blank line ends a sentence.
LineBreaks: TypeAlias = Literal["end_sentences", "are_spaces"]
_TEXT = (str, bytes)


class RecordSource:
    """The base class of sources of records. A subclass has these three fields among its options."""

    line_breaks: LineBreaks
    language: str
    bad_text: BadText

    def document(self, name: str, text: Callable[[], Any], where: str) -> Document | Skipped:
        """Return the document ``name`` with the text that ``text`` returns; if it cannot be read, see ``bad_text``."""
        try:
            return as_document(name, text(), where, self.line_breaks, self.language)
        except BadTextError as error:
            return error.skip_or_raise(self.bad_text, name)

    def cell(self, name: str, column: str, value: Any, field: str, where: str) -> Document | Skipped:
        """Return the document ``name`` with the text of ``field``, which is in the ``value`` of ``column``."""
        option = "config.corpus.options.text_column"
        return self.document(name, lambda: pick({column: value}, field, where, option), where)


def column_of(field: str, columns: Sequence[str], where: str) -> str:
    """Return which of ``columns`` has ``field``. Raises ``UserError``, which lists the columns, if none has."""
    for column in (field, field.partition(".")[0]):
        if column in columns:
            return column
    raise UserError(
        f"{where} has no column {field!r}; set config.corpus.options.text_column; {nearest(field, columns)}"
    )


def pick(record: Any, field: str, where: str, option: str) -> Any:
    """Return ``record[field]``; a dot selects a field of a nested record. If a record on the way is None, return None.

    Args:
      where: file and record, for errors.
      option: the config key that sets ``field``, for errors.

    Raises:
      BadTextError: there is no such field; the message lists the fields found.
    """
    if isinstance(record, Mapping) and field in record:
        return record[field]
    value: Any = record
    for key in field.split("."):
        if value is None:
            return None
        if not isinstance(value, Mapping) or key not in value:
            names = [str(k) for k in value] if isinstance(value, Mapping) else []
            found = nearest(key, names).replace("valid:", "found:") if names else "nothing in it is named"
            raise BadTextError(where, "no such field", f"{where} has no field {field!r}; {found}; set {option}")
        value = value[key]
    return value


def as_document(name: str, value: Any, where: str, line_breaks: LineBreaks, language: str) -> Document | Skipped:
    """Return a document named ``name`` with the text ``value``, or a ``Skipped`` if there is no text.

    Args:
      value: running text (a string or bytes), or a list of sentences.
      where: file and record, for errors.

    Raises:
      BadTextError: the value is not text, or not Unicode.
    """
    sentences = _sentences(value, where, line_breaks, language)
    return Document(name, sentences) if sentences else Skipped(name, "no text")


def runs(text: str) -> Iterator[str]:
    """Yield the paragraphs of ``text``: runs of lines that are not blank."""
    lines: list[str] = []
    for line in [*text.split("\n"), ""]:
        if line and not line.isspace():
            lines.append(line)
        elif lines:
            yield "\n".join(lines)
            lines = []


def _sentences(value: Any, where: str, line_breaks: LineBreaks, language: str) -> tuple[str, ...]:
    if value is None:
        return ()
    if isinstance(value, (*_TEXT, Mapping)) or not hasattr(value, "__iter__"):
        return tuple(_running_text(as_text(value, where), line_breaks, language))
    texts = (window for item in value if item is not None for window in windows(as_text(item, where)))
    return tuple(filter(None, map(one_space, texts)))


def _running_text(text: str, line_breaks: LineBreaks, language: str) -> Iterator[str]:
    for run in text.split("\n") if line_breaks == "end_sentences" else runs(text):
        yield from split_sentences(run, language)


def as_text(value: Any, where: str) -> str:
    """Return ``value``, a string or bytes, as text. Raises ``BadTextError`` if it is neither, or not Unicode."""
    if not isinstance(value, _TEXT):
        found = f"{type(value).__name__} where text is needed, {str(value)[:40]!r}"
        raise BadTextError(where, "not text", f"{where} has {found}; name a field with a string or a list of strings")
    try:
        if isinstance(value, bytes):
            return value.decode("utf-8")
        if not value.isascii():
            value.encode("utf-8")  # raises for half a surrogate pair, which JSON can hold
    except UnicodeError as error:
        at = error.start if isinstance(error, UnicodeDecodeError | UnicodeEncodeError) else 0
        unit = "byte" if isinstance(value, bytes) else "character"
        raise BadTextError(
            where, "not UTF-8", f"{where} has text that is not Unicode, at {unit} {at} of the text; mend it"
        ) from None
    return value
