"""Whole files of every input format, and the commands that read them after a mutation."""

from __future__ import annotations

import bz2
import dataclasses
import gzip
import io
import json
import lzma
import random
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet

from tests.trust import damage, fuzzing
from tests.trust.fuzzing import Command, Inputs

RECIPE = """from ml_collections import ConfigDict
import json

def get_config(size: str = "32"):
    config = ConfigDict(json.loads(r'''{config}'''))
    config.model.hidden_size = int(size)
    return config
"""
TEXTS = [f"The cat sees {n} rivers. A dog likes bread." for n in range(24)]
JSONL = "".join(json.dumps({"text": text}) + "\n" for text in TEXTS).encode()
PAGE = (
    "<page><title>Cat {n}</title><ns>0</ns><id>{n}</id><revision><id>2</id><text>'''Cats''' see [[river|{n} rivers]]."
    " They sleep.\n</text></revision></page>\n"
)
WIKI = (
    '<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.11/" version="0.11" xml:lang="en">\n'
    + "".join(PAGE.replace("{n}", str(n)) for n in range(1, 25))
    + "</mediawiki>\n"
).encode()
LEXICON = "the cat\t5\nred house\t3\n北京\t9\n".encode() * 3
QUESTION = {"id": "1", "question": "who?", "answers": [{"text": "cat", "answer_start": 4}], "is_impossible": False}
SQUAD = json.dumps({"data": [{"title": "t", "paragraphs": [{"context": "the cat sees the river", "qas": [QUESTION]}]}]})
DREAM = [[["A: 1", "B: 2"], [{"question": "q", "choice": ["x", "y", "z"], "answer": "y"}], "7"]] * 3
SPANS = {"text": "在北京的人", "label": {"place": {"北京": [[1, 2]]}}}
CONLL = "-DOCSTART- -X- O\n\nthe DT O\ncat NN I-PER\n\nriver NN B-LOC\nhere RB O\n\n" * 3
TABLE = "text\tlabel\n" + "".join(f"the cat {n} sees\t{n % 2}\n" for n in range(12))
PAIRS = "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n" + "".join(
    f"{n % 2}\t{n}\t{n + 50}\tthe cat {n}\ta dog {n}\n" for n in range(12)
)
MRPC = {
    "columns": {"text": "#1 String", "pair": "#2 String", "label": "Quality", "id": ("#1 ID", "#2 ID")},
    "dev_ids": "train.ids",
    "splits": {"train": "train"},
}
DIALOGUES = {"options": {"field": "1"}, "columns": {"context": "0", "choices": "choice", "label": "answer"}}
ENDINGS = {
    "options": {"num_lines": 6},
    "columns": {"context": "0", "label": "1", "choices": ("2", "3", "4", "5")},
    "strip_prefix": {"context": ".*?: "},
}


@dataclasses.dataclass(frozen=True)
class Sample:
    """Labelled examples of a task in a format. ``files``: end of the name -> content, for each split.

    The path of a split is that of its first file, or with a ``*`` where ``data`` names several files.
    """

    form: str
    task: str
    files: Mapping[str, bytes]
    data: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def write(self, folder: Path, change: Callable[[bytes], bytes]) -> dict[str, str]:
        """Write the files, each after ``change``; return the paths of the splits below ``folder``."""
        for split in ("train", "dev"):
            for end, raw in self.files.items():
                (folder / f"{split}{end}").write_bytes(change(raw))
        end = ".*" if "files" in self.data.get("options", {}) else next(iter(self.files))
        return {split: f"{split}{end}" for split in ("train", "dev")}


def lines(*records: Any, times: int = 4) -> dict[str, bytes]:
    """Return the one file of JSON Lines that has the records ``times`` over."""
    return {"": "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records).encode() * times}


def archive() -> bytes:
    """Return a zip of texts in a folder for each class."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as file:
        for n in range(8):
            file.writestr(zipfile.ZipInfo(f"all/{('neg', 'pos')[n % 2]}/{n}.txt"), f"a film {n}")  # of no time
    return packed.getvalue()


def parquet() -> bytes:
    packed = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table({"text": TEXTS}), packed)
    return packed.getvalue()


SETTINGS = {"span_qa": {"max_query_length": 8, "doc_stride": 8}}  # task -> what its short rows need
SAMPLES = (
    Sample("delimited", "classification", {"": TABLE.encode()}),
    Sample("delimited", "classification", {".gz": gzip.compress(TABLE.encode(), mtime=0)}),
    Sample(
        "jsonl", "classification", lines({"text": "a great film", "label": "pos"}, {"text": "dull", "label": "neg"})
    ),
    Sample("jsonl", "regression", lines({"text": "a", "label": 0.5}, {"text": "b c", "label": 1})),
    Sample("jsonl", "multiple_choice", lines({"context": "a", "choices": ["b", "c"], "label": 1})),
    Sample("jsonl", "sentence_embeddings", lines({"text": "a b", "positive": "c"}, {"text": "d", "positive": "e f"})),
    Sample("jsonl", "tagging", lines({"words": ["the", "cat"], "tags": ["O", "B-X"]})),
    Sample("jsonl", "span_qa", lines(QUESTION | {"context": "the cat sees the river"}, times=1)),
    Sample("conll", "tagging", {"": CONLL.encode()}),
    Sample("squad_json", "span_qa", {"": SQUAD.encode()}),
    Sample("jsonl", "multiple_choice", {"": json.dumps(DREAM).encode()}, DIALOGUES),
    Sample("line_columns", "multiple_choice", {"": b"Sport: He runs\n1\na\nb\nc\nd\n" * 3}, ENDINGS),
    Sample("character_spans", "tagging", lines(SPANS, times=6)),
    Sample(
        "line_columns",
        "tagging",
        {".words": b"the cat\na dog runs\n" * 4, ".tags": b"O B-X\nO O B-Y\n" * 4},
        {"options": {"files": ("words", "tags")}},
    ),
    Sample(
        "line_columns",
        "span_qa",
        {".context": b"the cat sees the river\n" * 4, ".question": b"who ?\n" * 4, ".span": b"1 1\n" * 4},
        {"options": {"files": ("context", "question", "span")}, "columns": {"answers": "span"}},
    ),
    Sample("delimited", "classification", {"": PAIRS.encode(), ".ids": b"0\t50\n1\t51\n"}, MRPC),
    Sample("text_folders", "classification", {".zip": archive()}),
)


def sources(inputs: Inputs) -> dict[str, tuple[str, bytes]]:
    """Return name of a file -> the source that reads it, and its content: raw text in all forms."""
    raw = (inputs.folder / "text.txt").read_bytes()
    return {
        "a.txt": ("text_files", raw),
        "a.txt.gz": ("text_files", gzip.compress(raw, mtime=0)),
        "a.txt.xz": ("text_files", lzma.compress(raw)),
        "a.txt.bz2": ("text_files", bz2.compress(raw)),
        "a.txt.zst": ("text_files", pyarrow.compress(raw, "zstd", asbytes=True)),
        "a.jsonl": ("jsonl", JSONL),
        "a.jsonl.gz": ("jsonl", gzip.compress(JSONL, mtime=0)),
        "a.parquet": ("parquet", parquet()),
        "a.xml": ("mediawiki", WIKI),
        "a.xml.bz2": ("mediawiki", bz2.compress(WIKI)),
    }


def mutated(raw: bytes, rng: random.Random) -> bytes:
    """Return ``raw`` with places cut or spoilt, or with a single bit flipped, which checks of length do not see."""
    return damage.flip_bit(raw, rng) if rng.random() < 0.3 else fuzzing.mutated_bytes(raw, rng)


def vocabulary(inputs: Inputs, rng: random.Random, folder: Path) -> Command:
    """A vocabulary of any kind, and ``tokenize`` or a run that reads it."""
    name = rng.choice(sorted(inputs.vocabularies))
    return splitting(
        name, rng.choice(["tokenize", "tokenize", "pretrain"]), inputs, folder, lambda raw: mutated(raw, rng)
    )


def splitting(name: str, verb: str, inputs: Inputs, folder: Path, change: Callable[[bytes], bytes]) -> Command:
    """Return the ``verb`` that reads the vocabulary ``name`` after ``change``."""
    path = folder / name
    path.write_bytes(change(inputs.vocabularies[name]))
    if verb == "tokenize":
        return Command([verb, f"--vocab={path}", "the cat sees", "a dog"], name)
    config = inputs.pretrain | {"vocab": {"path": str(path)}, "corpus": inputs.corpus}
    recipe = fuzzing.write_json(folder / "recipe.json", config)
    return Command([verb, f"--config={recipe}", f"--workdir={folder / 'new'}"], f"a run with {name}")


def examples(inputs: Inputs, rng: random.Random, folder: Path) -> Command:
    sample = rng.choice(SAMPLES)
    skips = {"bad_examples": "skip"} if rng.random() < 0.3 else {}
    return tuning(sample, inputs, folder, lambda raw: mutated(raw, rng) if rng.random() < 0.6 else raw, skips)


def tuning(
    sample: Sample, inputs: Inputs, folder: Path, change: Callable[[bytes], bytes], more: Mapping[str, Any]
) -> Command:
    """Return the ``finetune`` that reads ``sample`` after ``change``; ``more``: further keys of config.data."""
    splits = sample.write(folder, change)
    data = {"format": sample.form, "splits": splits, "overlap": "warn", **sample.data, **more}
    task = {"name": sample.task, **SETTINGS.get(sample.task, {})}
    recipe = fuzzing.write_json(folder / "recipe.json", inputs.finetune | {"task": task, "data": data})
    argv = ["finetune", f"--config={recipe}", f"--data={folder}", f"--workdir={folder / 'new'}"]
    return Command(argv, f"{sample.form} for {sample.task}")


def text(inputs: Inputs, rng: random.Random, folder: Path) -> Command:
    """Raw text in some form, and a command that learns or builds from it."""
    name = rng.choice(sorted(sources(inputs)))
    options = {"bad_text": "skip"} if rng.random() < 0.3 else {}
    verb, place = rng.choice(["vocab", "corpus", "pretrain"]), rng.choice(["new", "deep/new"])
    return reading(name, verb, inputs, folder, folder / place, lambda raw: mutated(raw, rng), options)


def reading(
    name: str,
    verb: str,
    inputs: Inputs,
    folder: Path,
    output: Path,
    change: Callable[[bytes], bytes] = bytes,
    options: Mapping[str, Any] | None = None,
) -> Command:
    """Return the ``verb`` that reads the source ``name`` after ``change``; ``options``: further ones of its source."""
    source, raw = sources(inputs)[name]
    (folder / name).write_bytes(change(raw))
    paths = {"paths": [str(folder / name)]} | ({"document_boundary": "blank_line"} if source == "text_files" else {})
    corpus = inputs.corpus | {"source": source, "options": {**paths, **(options or {})}, "num_workers": 1}
    vocab = {"size": 80, "min_frequency": 1} if verb == "vocab" else inputs.pretrain["vocab"]
    recipe = fuzzing.write_json(folder / "recipe.json", inputs.pretrain | {"vocab": vocab, "corpus": corpus})
    flag = "workdir" if verb == "pretrain" else "output"
    return Command([verb, f"--config={recipe}", f"--{flag}={output}"], f"{verb} of {name}")


def lexicon(inputs: Inputs, rng: random.Random, folder: Path) -> Command:
    """A lexicon that a column of a corpus is made with."""
    return building_with(mutated(LEXICON, rng), inputs, folder)


def building_with(phrases: bytes, inputs: Inputs, folder: Path) -> Command:
    """Return the ``corpus`` with a column made with the lexicon ``phrases``."""
    path = folder / "lexicon.txt"
    path.write_bytes(phrases)
    column = {"names": {"annotator": "lexicon", "path": str(path)}}
    corpus = inputs.corpus | {"columns": column, "num_workers": 1}
    recipe = fuzzing.write_json(folder / "recipe.json", inputs.pretrain | {"corpus": corpus})
    return Command(["corpus", f"--config={recipe}", f"--output={folder / 'new'}"], "lexicon")
