"""Values of the flags of the verbs that read runs and files, and mutations of the files that they are given."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.trust import formats, fuzzing
from tests.trust.fuzzing import Command, Inputs

TEXTS = [str(value) for value in fuzzing.VALUES] + [
    *("0x10", "1_000", "٣", "1e3", "9" * 400, "[" * 3000, "{[]:1}", "last,last", "mean,foo", "128,", ","),
    *("=", "a=", "=1", "-", "--", "@", "%s", "\n"),
]
FILES = {
    "examples.jsonl": '{"text": "a great film", "label": "pos"}\n{"text": "dull", "label": "neg"}\n',
    "texts.txt": "the cat sees the river.\na dog\n" * 4,
    "squad.json": formats.SQUAD,
    "documents.jsonl": '{"_id": "1", "title": "t", "text": "the cat"}\n{"_id": "2", "title": "", "text": "a dog"}\n',
    "queries.jsonl": '{"_id": "a", "text": "cat"}\n',
    "relevances.tsv": "query-id\tcorpus-id\tscore\na\t1\t1\n",
}
Arguments = Callable[[Inputs, Path], list[str]]


@dataclasses.dataclass(frozen=True)
class Verb:
    """A command that works: its arguments, the flags that may get another value, and the files that it reads."""

    arguments: Arguments
    flags: Sequence[str]
    files: Sequence[str] = ()
    finds: bool = False


def of_run(verb: str, *more: str) -> Arguments:
    """Return the arguments of a verb for the pretrained run; ``{}`` is the case's folder in ``more``."""
    return lambda inputs, folder: [verb, f"--workdir={inputs.run}", *(text.replace("{}", str(folder)) for text in more)]


def of_tuned(verb: str) -> Arguments:
    """Return the arguments of a verb that reads examples with the fine-tuned run."""
    return lambda inputs, folder: [
        *(
            verb,
            f"--workdir={inputs.tuned}",
            f"--input={folder / 'examples.jsonl'}",
            f"--output={folder / 'deep' / 'out'}",
        )
    ]


def of_config(verb: str) -> Arguments:
    """Return the arguments of ``vocab`` or ``corpus``."""
    return lambda inputs, folder: formats.reading("a.txt", verb, inputs, folder, folder / "deep" / "out").argv


TUNED = {
    "predict": Verb(of_tuned("predict"), ("workdir", "input", "step", "format", "option"), ["examples.jsonl"]),
    "evaluate": Verb(of_tuned("evaluate"), ("workdir", "input", "step", "format", "option"), ["examples.jsonl"]),
}
ENCODERS = {
    "features": Verb(
        of_run("features", "--input={}/texts.txt", "--output={}/deep/out.parquet"),
        (
            *("workdir", "input", "step", "max_length", "batch_size", "format", "column", "pair_column", "id_column"),
            *("options", "layers", "dtype", "bad_examples", "init"),
        ),
        ["texts.txt"],
    ),
    "retrieve": Verb(
        of_run(
            "retrieve",
            "--corpus={}/documents.jsonl",
            "--queries={}/queries.jsonl",
            "--qrels={}/relevances.tsv",
            "--baseline=none",
            "--output={}/deep/out",
        ),
        ("workdir", "corpus", "queries", "qrels", "top", "max_length", "batch_size", "step", "pooling", "baseline"),
        ["documents.jsonl", "queries.jsonl", "relevances.tsv"],
    ),
    "retrieve --squad": Verb(
        of_run("retrieve", "--squad={}/squad.json", "--baseline=none", "--output={}/deep/out"),
        ("squad", "top"),
        ["squad.json"],
    ),
    "fill-mask": Verb(of_run("fill-mask", "the [MASK] sees"), ("workdir", "step")),
}
READERS = {
    "inspect": Verb(
        lambda inputs, _: ["inspect", f"--corpus={inputs.run / 'corpus'}", f"--vocab={inputs.run / 'vocab.txt'}"],
        ("corpus", "vocab", "max_length"),
        finds=True,
    ),
    "tokenize": Verb(
        lambda inputs, _: ["tokenize", f"--vocab={inputs.run / 'vocab.txt'}", "the cat", "a dog"],
        ("vocab", "max_length"),
    ),
    "export": Verb(of_run("export", "--output={}/deep/out"), ("workdir", "step", "as", "pooling")),
    "import": Verb(
        lambda inputs, folder: [
            *("import", f"--input={inputs.run / 'hugging_face'}", f"--workdir={folder / 'deep' / 'out'}"),
        ],
        ("input", "lowercase"),
    ),
    "status": Verb(of_run("status"), ("workdir",)),
    "report": Verb(of_run("report"), ("workdir",)),
    "checkpoint ls": Verb(of_run("checkpoint", "ls"), ("workdir", "step")),
    "checkpoint verify": Verb(of_run("checkpoint", "verify"), ("workdir", "step"), finds=True),
    "vocab": Verb(of_config("vocab"), ("config",)),
    "corpus": Verb(of_config("corpus"), ("config", "verify")),
}
ALL = TUNED | ENCODERS | READERS


def one_of(verbs: Sequence[str]) -> Callable[[Inputs, random.Random, Path], Command]:
    """Return the case of a random one of ``verbs``."""
    return lambda inputs, rng, folder: command(rng.choice(verbs), inputs, rng, folder)


def command(name: str, inputs: Inputs, rng: random.Random, folder: Path) -> Command:
    """Return the verb ``name`` of ``ALL`` with one file that it reads mutated, or with an odd value of one flag."""
    verb, argv = ALL[name], unchanged(name, inputs, folder).argv
    if verb.files and rng.random() < 0.6:
        path = folder / rng.choice(verb.files)
        path.write_bytes(formats.mutated(path.read_bytes(), rng))
        return Command(argv, f"{name} with {path.name}", verb.finds)
    flag, value = rng.choice(verb.flags), rng.choice(TEXTS)
    argv = [*(text for text in argv if not text.startswith(f"--{flag}=")), f"--{flag}={value}"]
    return Command(argv, f"{name} --{flag}={value[:40]!r}", verb.finds)


def unchanged(name: str, inputs: Inputs, folder: Path) -> Command:
    """Return the verb ``name`` as it works, with its files in ``folder``."""
    for file, content in FILES.items():
        (folder / file).write_text(content)
    return Command(ALL[name].arguments(inputs, folder), name, ALL[name].finds)
