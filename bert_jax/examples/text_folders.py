"""The reader ``text_folders``: reads a folder, or a zip file, that has a subfolder of text files for each class."""

from __future__ import annotations

import dataclasses
import fnmatch
import io
import os
import stat
import zipfile
import zlib
from collections.abc import Iterator
from typing import Literal

from bert_jax.errors import UserError
from bert_jax.examples.reading import BadRecord, DataRecord, whole_text
from bert_jax.storage import files, globs, reading

# A zip that would unpack to more bytes than both is refused; text becomes ten times smaller or so.
_SMALL_BYTES, _MOST_TIMES = 1 << 26, 200


@dataclasses.dataclass(frozen=True)
class Reader:
    """Reads files as records ``{"text", "label", "id"}``, in the order of their paths.

    The label is the name of the file's folder; the id is its path below the folder that all files share. With
    ``first_line``, the first line of a file, such as a title, is a column of this name, and "text" is what follows.
    """

    named_splits = False

    pattern: str = "*.txt"  # glob for the names of files; outside a zip also for compressed files ("*.txt.gz")
    first_line: str = ""  # the column of a file's first line, such as "target"; "": the line is part of the text
    bad_text: Literal["error", "decode"] = "error"  # "decode": read as Windows-1252, or if that fails as Latin-1

    def read(self, path: str) -> Iterator[DataRecord | BadRecord]:
        """Yield the files in ``path``. Raises ``UserError`` if there is none, or if a zip is damaged."""
        texts = self._texts_of_zip(path) if path.lower().endswith(".zip") else self._texts_of_folder(path)
        for name, text in texts:
            label = os.path.basename(os.path.dirname(name))
            where = os.path.join(path, name)
            if not label:
                yield BadRecord(where, "is not in a folder of a class")
            elif text is None:
                yield BadRecord(where, "is not UTF-8; convert it or set config.data.options.bad_text='decode'")
            else:
                first, _, rest = text.partition("\n") if self.first_line else ("", "", text)
                line = {self.first_line: first.strip()} if self.first_line else {}
                yield DataRecord({"text": rest.strip() if line else text, **line, "label": label, "id": name}, where)

    def _texts_of_zip(self, path: str) -> Iterator[tuple[str, str | None]]:
        """Yield (short name, text or None) for each file of a zip, as ``_short_names`` and ``_decode`` return them."""
        try:
            packed = reading.read_bytes(files.as_path(path))
            with zipfile.ZipFile(io.BytesIO(packed)) as archive:
                entries = [entry for entry in archive.infolist() if not entry.is_dir()]
                size = sum(entry.file_size for entry in entries)
                if size > max(_SMALL_BYTES, _MOST_TIMES * len(packed)):
                    raise UserError(
                        f"{path} would unpack to {size:,} bytes, {size // len(packed):,} times its own size (at most"
                        f" {_MOST_TIMES} times is read); if it is sound, unpack it and name the folder"
                    )
                if links := [e.filename for e in entries if stat.S_ISLNK(e.external_attr >> 16)]:
                    raise UserError(
                        f"{path} holds links, such as {links[0]}; pack the files themselves, as zip -r does"
                    )
                names = [entry.filename for entry in entries if "__MACOSX/" not in entry.filename]
                for name, short in self._short_names(path, names):
                    with archive.open(name) as file:
                        yield short, self._decode(file.read(archive.getinfo(name).file_size))
        except (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, ValueError) as error:
            raise UserError(f"{path} is not a whole zip without a password ({error}); replace the file") from error

    def _texts_of_folder(self, path: str) -> Iterator[tuple[str, str | None]]:
        """Yield (short name, text or None) for each file of a folder, as ``_texts_of_zip``."""
        root = os.fspath(files.as_path(path))
        names = [os.path.relpath(os.fspath(file), root) for file in globs.matches(f"{root}/**/*")]
        for name, short in self._short_names(path, names):
            yield short, self._decode(whole_text(f"{root}/{name}").encode("utf-8", "surrogateescape"))

    def _short_names(self, path: str, names: list[str]) -> list[tuple[str, str]]:
        """Return sorted pairs (file name, path below the folder that has the class folders) for the matching files."""
        names = sorted(name for name in names if fnmatch.fnmatchcase(os.path.basename(name), self.pattern))
        if not names:
            raise UserError(f"no file in {path} is named like {self.pattern!r}; set config.data.options.pattern")
        folders = [name.split("/")[:-1] for name in names]
        shared = os.path.commonprefix(folders)
        if all(len(folder) == len(shared) for folder in folders):
            shared = shared[:-1]  # there is only one class
        return [(name, "/".join(name.split("/")[len(shared) :])) for name in names]

    def _decode(self, raw: bytes) -> str | None:
        """Return ``raw`` as text, or None if it is not UTF-8 and the option ``bad_text`` is "error"."""
        try:
            return raw.decode("utf-8-sig")
        except UnicodeDecodeError:
            if self.bad_text == "error":
                return None
        try:
            return raw.decode("cp1252")
        except UnicodeDecodeError:
            return raw.decode("latin-1")
