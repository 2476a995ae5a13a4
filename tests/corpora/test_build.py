"""The build goes on where it was cut, and who makes a store leaves no trace in it."""

import dataclasses
import json
import multiprocessing
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bert_jax.corpora.build import BuildConfig, build
from bert_jax.corpora.shard_job import tokenize
from bert_jax.corpora.source import Piece, Skipped, shards_of
from bert_jax.errors import UserError
from bert_jax.records import SPECIAL_TOKENS, Document
from bert_jax.storage import files
from bert_jax.text.tokenizer import of_json, wordpiece
from tests.text import byte_level_files

TOKENIZER = wordpiece((*SPECIAL_TOKENS, *"abcdefghij"))
ONE = BuildConfig(0.3, 16, 100, num_workers=1)


@dataclasses.dataclass(frozen=True)
class Letters:
    """Twelve pieces of five documents. ``notes``: a folder in which every reading of a piece leaves a line."""

    notes: str
    bad: int = -1  # the piece that cannot be read
    stop: int = -1  # the piece at which the user gives up

    def pieces(self) -> list[Piece]:
        return [Piece("letters", n, n + 1, 50) for n in range(12)]

    def read(self, piece: Piece) -> Iterator[Document | Skipped]:
        with open(Path(self.notes) / f"{piece.start:02d}", "a") as file:
            file.write("read\n")
        for n in range(5):
            yield Document(f"{piece.start}-{n}", ("a b c", "abcdefghij"[n] * 3 + " d", f"{'j ' * piece.start}e"))
            yield Skipped(f"{piece.start}-{n}", "of no use")
        if piece.start == self.stop:
            raise KeyboardInterrupt
        if piece.start == self.bad:
            raise UserError(f"piece {piece.start} is bad at byte 7")

    def fingerprint(self) -> str:
        return "letters"

    def describe(self) -> dict[str, Any]:
        return {"source": "letters"}


@pytest.fixture
def notes(tmp_path):
    folder = tmp_path / "notes"
    folder.mkdir()
    return folder


def bytes_of(folder: Path) -> dict[str, str]:
    return {path.name: files.sha256(path) for path in folder.iterdir()}


def readings(notes: Path) -> list[int]:
    return [len((notes / f"{n:02d}").read_text().split()) if (notes / f"{n:02d}").exists() else 0 for n in range(12)]


def test_pieces_are_grouped_in_order_by_size():
    pieces = [Piece(str(n), num_bytes=size) for n, size in enumerate([10, 80, 20, 200, 5, 5, 90])]
    runs = [[piece.name for piece in shard.pieces] for shard in shards_of(pieces, 100)]
    assert runs == [["0", "1"], ["2"], ["3"], ["4", "5", "6"]]
    assert [shard.name for shard in shards_of(pieces, 100)] == ["00000", "00001", "00002", "00003"]
    assert shards_of([], 100) == []


def test_a_large_corpus_has_larger_shards():
    def sizes(total: int, piece: int) -> list[int]:
        return [
            sum(p.num_bytes for p in shard.pieces)
            for shard in shards_of([Piece(str(n), num_bytes=piece) for n in range(total // piece)])
        ]

    assert len(sizes(76 << 20, 1 << 20)) == 10
    assert len(sizes(16 << 30, 16 << 20)) == 256
    assert len(sizes(16 << 40, 256 << 20)) == 16 << 10


def test_a_cut_build_goes_on_without_reading_again_what_it_had(tmp_path, notes):
    build(Letters(str(notes)), TOKENIZER, tmp_path / "whole", ONE)
    for path in notes.iterdir():
        path.unlink()
    with pytest.raises(KeyboardInterrupt):
        build(Letters(str(notes), stop=7), TOKENIZER, tmp_path / "cut", ONE)
    assert not (tmp_path / "cut").exists()
    build(Letters(str(notes)), TOKENIZER, tmp_path / "cut", ONE)
    assert readings(notes) == [1, 1, 1, 1, 1, 1, 2, 2, 1, 1, 1, 1]  # pieces 6 and 7 are one shard
    assert bytes_of(tmp_path / "cut") == bytes_of(tmp_path / "whole")
    assert {path.name for path in tmp_path.iterdir()} == {"whole", "cut", "notes"}


def test_a_build_cut_while_it_removes_its_parts_goes_on(tmp_path, notes, monkeypatch):
    build(Letters(str(notes)), TOKENIZER, tmp_path / "whole", ONE)
    rmtree = shutil.rmtree

    def cut(path: Any, *args: Any, **kwargs: Any) -> None:
        if Path(path).name != "parts":
            return rmtree(path, *args, **kwargs)
        sorted(Path(path).glob("*.npy"))[0].unlink()
        raise KeyboardInterrupt

    monkeypatch.setattr(shutil, "rmtree", cut)
    with pytest.raises(KeyboardInterrupt):
        build(Letters(str(notes)), TOKENIZER, tmp_path / "cut", ONE)
    monkeypatch.setattr(shutil, "rmtree", rmtree)
    build(Letters(str(notes)), TOKENIZER, tmp_path / "cut", ONE)
    assert bytes_of(tmp_path / "cut") == bytes_of(tmp_path / "whole")


def test_shards_of_another_build_are_not_used(tmp_path, notes):
    with pytest.raises(KeyboardInterrupt):
        build(Letters(str(notes), stop=7), TOKENIZER, tmp_path / "cut", ONE)
    other = dataclasses.replace(ONE, heldout_fraction=0.5)
    manifest = build(Letters(str(notes)), TOKENIZER, tmp_path / "cut", other)
    assert readings(notes)[0] == 2
    build(Letters(str(notes)), TOKENIZER, tmp_path / "whole", other)
    assert bytes_of(tmp_path / "cut") == bytes_of(tmp_path / "whole")
    assert manifest["heldout_fraction"] == 0.5


BEAM = ("--runner=apache_beam.runners.portability.fn_api_runner.FnApiRunner",)


def test_shards_that_another_version_recorded_are_one_line(tmp_path, notes):
    with pytest.raises(KeyboardInterrupt):
        build(Letters(str(notes), stop=7), TOKENIZER, tmp_path / "cut", ONE)
    record = tmp_path / "cut.partial" / "parts" / "00001.tokens.json"
    record.write_text(
        json.dumps({key: value for key, value in json.loads(record.read_text()).items() if key != "losses"})
    )
    with pytest.raises(UserError, match="cut.partial was begun by another version .* give the same command again"):
        build(Letters(str(notes)), TOKENIZER, tmp_path / "cut", ONE)
    build(Letters(str(notes)), TOKENIZER, tmp_path / "cut", ONE)
    assert readings(notes)[0] == 2


@pytest.mark.parametrize("made_by", [{"num_workers": 2}, {"beam_options": BEAM}], ids=["processes", "beam"])
def test_workers_make_the_same_bytes(tmp_path, notes, made_by):
    """``test_killed_build`` does so with four."""
    build(Letters(str(notes)), TOKENIZER, tmp_path / "one", ONE)
    build(Letters(str(notes)), TOKENIZER, tmp_path / "many", dataclasses.replace(ONE, **made_by))
    assert readings(notes) == [2] * 12
    assert bytes_of(tmp_path / "many") == bytes_of(tmp_path / "one")


@pytest.mark.parametrize("workers", [1, 2])
def test_a_bad_piece_is_one_error_and_leaves_nothing(tmp_path, notes, workers, capfd):
    config = dataclasses.replace(ONE, num_workers=workers)
    with pytest.raises(UserError, match="^piece 4 is bad at byte 7$"):
        build(Letters(str(notes), bad=4), TOKENIZER, tmp_path / "out", config)
    assert {path.name for path in tmp_path.iterdir()} == {"notes"}
    assert capfd.readouterr() == ("", "")


def test_what_was_skipped_is_counted_with_its_reason(tmp_path, notes):
    manifest = build(Letters(str(notes)), TOKENIZER, tmp_path / "out", ONE)
    assert manifest["skipped"] == {"of no use": {"count": 60, "examples": ["0-0", "0-1", "0-2"]}}
    assert manifest["documents"] == 60


@dataclasses.dataclass(frozen=True)
class Deadly(Letters):
    """A source whose fourth piece kills the process that reads it, as a lack of memory does."""

    def read(self, piece: Piece) -> Iterator[Document | Skipped]:
        if piece.start == 3 and multiprocessing_worker():
            os.kill(os.getpid(), signal.SIGKILL)
        yield from super().read(piece)


def multiprocessing_worker() -> bool:
    return multiprocessing.parent_process() is not None


@pytest.mark.parametrize(
    "interrupts", [signal.SIG_IGN, pytest.param(signal.default_int_handler, marks=pytest.mark.heavy)]
)
def test_a_worker_that_is_killed_ends_the_build_in_one_line(tmp_path, notes, capfd, interrupts):
    """Also in the background of a shell script, where interrupts are ignored."""
    before = signal.signal(signal.SIGINT, interrupts)
    try:
        with pytest.raises(UserError, match="a worker process of the build was killed, perhaps for a lack of memory"):
            build(Deadly(str(notes)), TOKENIZER, tmp_path / "out", dataclasses.replace(ONE, num_workers=2))
        assert signal.getsignal(signal.SIGINT) is interrupts
    finally:
        signal.signal(signal.SIGINT, before)
    assert capfd.readouterr().err == ""
    build(Deadly(str(notes)), TOKENIZER, tmp_path / "out", ONE)
    build(Letters(str(notes)), TOKENIZER, tmp_path / "whole", ONE)
    assert bytes_of(tmp_path / "out") == bytes_of(tmp_path / "whole")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--nonsense=3",), "beam_options has --nonsense=3, which no Beam runner here knows"),
        (("--runner=FooRunner",), "the Beam runner of config.corpus.beam_options failed: .*FooRunner"),
        (("--streaming=maybe",), "config.corpus.beam_options: argument --streaming"),
    ],
)
def test_beam_options_that_make_no_sense_are_one_line(tmp_path, notes, options, message):
    with pytest.raises(UserError, match=message) as error:
        build(Letters(str(notes)), TOKENIZER, tmp_path / "out", dataclasses.replace(ONE, beam_options=options))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("tokenizer", "said"),
    [(lambda: of_json(byte_level_files.roberta()), "the cat in the world中 in"), (lambda: TOKENIZER, None)],
    ids=["byte_bpe", "wordpiece"],
)
def test_sentences_are_encoded_as_in_running_text(tokenizer: Any, said: str | None) -> None:
    """A byte-level piece depends on the space before it, which a sentence that follows another has."""
    made, sentences = tokenizer(), ("the cat", "in the world", "中 in")
    (found,) = tokenize([Document("a", sentences)], made)
    alone = np.concatenate(made.encode_batch(sentences))
    assert found.lengths.sum() == len(found.tokens)
    assert made.decode(found.tokens) == (said or made.decode(alone))
    assert (found.tokens.tolist() == alone.tolist()) == (said is None)
