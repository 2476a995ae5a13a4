"""Values of the flags of the verbs that read runs and files, and mutations of the files that they are given."""

from __future__ import annotations

import dataclasses
import json
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
    "facts.tsv": "Paris\tcapital of\tFrance\nLyon\tcity of\tFrance\nRome\tcapital of\tItaly\n",
    "relevances.tsv": "query-id\tcorpus-id\tscore\na\t1\t1\n",
}
Arguments = Callable[[Inputs, Path], list[str]]


@dataclasses.dataclass(frozen=True)
class Verb:
    """A command that works: its arguments, the flags that may get another value, and the files that it reads.

    ``flags`` includes ``paths``, the flags that name a file or a folder.
    """

    arguments: Arguments
    others: str = ""
    paths: str = ""
    files: Sequence[str] = ()
    finds: bool = False

    @property
    def flags(self) -> list[str]:
        return [*self.others.split(), *self.paths.split()]


def of_run(verb: str, *more: str) -> Arguments:
    """Return the arguments of a verb for the pretrained run; ``{}`` is the case's folder in ``more``."""
    return lambda inputs, folder: [verb, f"--workdir={inputs.run}", *(text.replace("{}", str(folder)) for text in more)]


def of_tuned(verb: str, *more: str) -> Arguments:
    """Return the arguments of a verb that reads examples with the fine-tuned run; ``{}`` as in ``of_run``."""
    every = ("--input={}/examples.jsonl", "--output={}/deep/out", *more)
    return lambda inputs, folder: [verb, f"--workdir={inputs.tuned}", *(x.replace("{}", str(folder)) for x in every)]


def of_config(verb: str) -> Arguments:
    """Return the arguments of ``vocab`` or ``corpus``."""
    return lambda inputs, folder: formats.reading("a.txt", verb, inputs, folder, folder / "deep" / "out").argv


def of_recipe(verb: str, *more: str) -> Arguments:
    """Return the arguments of a verb that reads the recipe of the pretrained run; ``{}`` as in ``of_run``."""

    def arguments(inputs: Inputs, folder: Path) -> list[str]:
        recipe = fuzzing.write_json(folder / "recipe.json", inputs.pretrain)
        return [verb, f"--config={recipe}", *(text.replace("{}", str(folder)) for text in more)]

    return arguments


def of_finetuning(verb: str, *more: str) -> Arguments:
    """Return the arguments of a verb that reads the recipe of the fine-tuned run; ``{}`` as in ``of_run``."""

    def arguments(inputs: Inputs, folder: Path) -> list[str]:
        recipe = fuzzing.write_json(folder / "recipe.json", inputs.finetune)
        where = (f"--data={inputs.folder}", "--workdir={}/deep/out".replace("{}", str(folder)))
        return [verb, f"--config={recipe}", *where, *more]

    return arguments


def ablation(inputs: Inputs, folder: Path) -> list[str]:
    """Return the arguments of ``ablate``, whose variants are the sizes of a recipe that is a program."""
    recipe = folder / "recipe.py"
    recipe.write_text(formats.RECIPE.replace("{config}", json.dumps(inputs.pretrain)))
    tuning = fuzzing.write_json(folder / "tuning.json", inputs.finetune)
    flags = (f"--finetune={tuning}", f"--data={inputs.folder}", f"--workdir={folder / 'deep' / 'out'}")
    return ["ablate", f"--config={recipe}", "--variants=32,48", "--seeds=0", *flags]


TUNED = {
    "predict": Verb(of_tuned("predict"), "step format option", "workdir input output", ["examples.jsonl"]),
    "evaluate": Verb(of_tuned("evaluate"), "step format option", "workdir input output", ["examples.jsonl"]),
    "prune": Verb(
        of_tuned("prune", "--mlp=0.5", "--dev={}/examples.jsonl"),
        "step format option mlp layers",
        "workdir input dev output",
        ["examples.jsonl"],
    ),
}
ENCODERS = {
    "features": Verb(
        of_run("features", "--input={}/texts.txt", "--output={}/deep/out.parquet"),
        "step max_length batch_size format column pair_column id_column options layers dtype bad_examples",
        "workdir init input output",
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
        "top max_length batch_size step pooling baseline query",
        "workdir corpus queries qrels output",
        ["documents.jsonl", "queries.jsonl", "relevances.tsv"],
    ),
    "retrieve --squad": Verb(
        of_run("retrieve", "--squad={}/squad.json", "--baseline=none", "--output={}/deep/out"),
        "top",
        "squad",
        ["squad.json"],
    ),
    "fill-mask": Verb(of_run("fill-mask", "the [MASK] sees"), "step", "workdir"),
    "generate": Verb(
        of_run("generate", "--input={}/texts.txt"),
        "step max_new_tokens temperature top_k top_p seed beams length_penalty no_repeat_ngram num_results batch_size",
        "workdir input",
        ["texts.txt"],
    ),
}
READERS = {
    "inspect": Verb(
        lambda inputs, _: ["inspect", f"--corpus={inputs.run / 'corpus'}", f"--vocab={inputs.run / 'vocab.txt'}"],
        "max_length",
        "corpus vocab config init",
        finds=True,
    ),
    "tokenize": Verb(
        lambda inputs, _: ["tokenize", f"--vocab={inputs.run / 'vocab.txt'}", "the cat", "a dog"],
        "max_length",
        "vocab",
    ),
    "export": Verb(of_run("export", "--output={}/deep/out"), "step as pooling", "workdir output"),
    "import": Verb(
        lambda inputs, folder: [
            *("import", f"--input={inputs.run / 'hugging_face'}", f"--workdir={folder / 'deep' / 'out'}"),
        ],
        "lowercase",
        "input workdir",
    ),
    "grow": Verb(
        lambda inputs, folder: [
            "grow",
            f"--init={inputs.narrow}",
            "--size=tiny",
            f"--output={folder / 'deep' / 'out'}",
        ],
        "size",
        "init output",
    ),
    "trim": Verb(
        of_run("trim", "--input={}/texts.txt", "--output={}/deep/out"),
        "step task format column pair_column min_count",
        "workdir input dev output",
        ["texts.txt"],
    ),
    "transe": Verb(
        lambda inputs, folder: [
            "transe",
            f"--input={folder / 'facts.tsv'}",
            f"--output={folder / 'deep' / 'out'}",
            "--size=4",
            "--epochs=2",
        ],
        "size seed",
        "input output",
        ["facts.tsv"],
    ),
    "status": Verb(of_run("status"), paths="workdir"),
    "report": Verb(of_run("report"), paths="workdir"),
    "checkpoint ls": Verb(of_run("checkpoint", "ls"), "step", "workdir"),
    "checkpoint verify": Verb(of_run("checkpoint", "verify"), "step", "workdir", finds=True),
    "vocab": Verb(of_config("vocab"), paths="config init output"),
    "corpus": Verb(of_config("corpus"), paths="config verify output"),
}
RUNS = {
    "pretrain": Verb(
        of_recipe("pretrain", "--workdir={}/deep/out"),
        "init_optimizer extend private profile num_processes process_id coordinator restarts",
        "config workdir init vocab",
    ),
    "finetune": Verb(of_finetuning("finetune"), "profile epochs", "config workdir data init"),
    "preflight": Verb(of_recipe("preflight", "--workdir={}/deep/out"), "process_id", "config workdir init", finds=True),
    "sweep": Verb(
        of_finetuning("sweep", "--vary=learning_rate=1e-3,1e-2", "--seeds=0"),
        "seeds over choose vary epochs",
        "config workdir data init",
    ),
    "ablate": Verb(ablation, "variants seeds over finetune_steps epochs", "config workdir data finetune"),
    "plan": Verb(of_recipe("plan", "--topology=cpu:1"), "topology price_per_chip_hour", "config init", finds=True),
    "doctor": Verb(lambda inputs, folder: ["doctor"], "device_seconds", finds=True),
}
ALL = TUNED | ENCODERS | READERS | RUNS


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
