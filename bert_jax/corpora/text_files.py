"""The source ``text_files``: plain text, also compressed with gzip or xz, local or on an object store."""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import lzma
import os
import zlib
from collections.abc import Iterator
from typing import IO, Any, Literal, cast

from etils import epath

from bert_jax import files
from bert_jax.errors import UserError
from bert_jax.records import Document
from bert_jax.text.sentences import split_sentences

BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclasses.dataclass(frozen=True)
class Source:
    """UTF-8 text files. A line may end in LF or CRLF; a byte order mark is skipped.

    ``free`` text is split into sentences, a blank line always ending one; ``sentences`` has one sentence a line.
    A document is a file, or with the boundary ``blank_line`` a run of lines without a blank one. It is named by its
    file's path below the folder that all files share, and its number in the file.
    """

    paths: tuple[str, ...]  # globs; ** goes into folders
    format: Literal["free", "sentences"] = "free"
    document_boundary: Literal["file", "blank_line"] = "file"
    language: str = "en"  # of the rules that split free text

    def documents(self) -> Iterator[Document]:
        """All documents, files in the order of their names. Bad files raise ``UserError`` when they are reached."""
        for name, path in self.files().items():
            sentences: list[str] = []
            number = 0
            for paragraph in self._paragraphs(path):
                sentences += paragraph
                if self.document_boundary == "blank_line":
                    yield Document(f"{name}#{number}", tuple(sentences))
                    sentences, number = [], number + 1
            if sentences:
                yield Document(f"{name}#{number}", tuple(sentences))

    def files(self) -> dict[str, epath.Path]:
        """Name -> path of every file, sorted by name; each file once, however many globs match it.

        Raises:
          UserError: a glob matches no file.
        """
        found: dict[str, epath.Path] = {}
        for pattern in self.paths:
            matches = files.glob(pattern)
            if not matches:
                raise UserError(f"no file matches {pattern!r}; check corpus.paths (globs of .txt, .gz or .xz files)")
            found.update({os.fspath(match): match for match in matches})
        if not found:
            raise UserError("corpus.paths is empty; name at least one glob of .txt, .gz or .xz files")
        shared = os.path.commonprefix([path.split("/")[:-1] for path in found])
        return {"/".join(path.split("/")[len(shared) :]): found[path] for path in sorted(found)}

    def fingerprint(self) -> str:
        """Hash of the settings and of every file's name and bytes."""
        digest = hashlib.sha256(f"{self.format} {self.document_boundary} {self.language}".encode())
        for name, path in self.files().items():
            digest.update(f"\n{files.sha256(path)}  {name}".encode())
        return digest.hexdigest()

    def describe(self) -> dict[str, Any]:
        """What the manifest says of the source."""
        return {"source": "text_files", **dataclasses.asdict(self), "files": len(self.files())}

    def _paragraphs(self, path: epath.Path) -> Iterator[list[str]]:
        """Sentences of each run of lines without a blank one."""
        lines: list[str] = []
        for line in _lines(path):
            if line and not line.isspace():
                lines.append(line)
            elif lines:
                yield self._sentences(lines)
                lines = []
        if lines:
            yield self._sentences(lines)

    def _sentences(self, lines: list[str]) -> list[str]:
        if self.format == "sentences":
            return [" ".join(line.split()) for line in lines]
        return split_sentences("\n".join(lines), self.language)


def _lines(path: epath.Path) -> Iterator[str]:
    """Decoded lines; what is not text is an error with the file's name and the offset in the (unpacked) bytes."""
    offset = 0
    with path.open("rb") as packed:
        try:
            for raw in _unpacked(packed, path.suffix):
                yield _decoded(raw, path, offset)
                offset += len(raw)
        except (EOFError, lzma.LZMAError, gzip.BadGzipFile, zlib.error) as error:
            raise UserError(f"{path} is damaged after {offset} unpacked bytes ({error}); replace the file") from error


def _decoded(raw: bytes, path: epath.Path, offset: int) -> str:
    nul = raw.find(b"\0")
    if nul >= 0:
        raise UserError(
            f"{path} has a NUL byte at byte offset {offset + nul}: it is binary or UTF-16, not UTF-8 text; convert it"
            " or leave it out of corpus.paths"
        )
    mark = len(BYTE_ORDER_MARK) if offset == 0 and raw.startswith(BYTE_ORDER_MARK) else 0
    try:
        return raw[mark:].decode("utf-8")
    except UnicodeDecodeError as error:
        at = mark + error.start
        raise UserError(
            f"{path} is not UTF-8 at byte offset {offset + at} (byte 0x{raw[at]:02x}); convert it to UTF-8 or leave it"
            " out of corpus.paths"
        ) from error


def _unpacked(file: IO[bytes], suffix: str) -> IO[bytes]:
    if suffix == ".gz":
        return cast(IO[bytes], gzip.open(file, "rb"))
    if suffix == ".xz":
        return cast(IO[bytes], lzma.open(file, "rb"))
    return file
