"""The commands of all pages run as they stand, cut short, on a toy text and a toy model.

Commands that need a cloud, a pod, libtpu or data that a test does not have are left out (``NOT_HERE``).
"""

import csv
import gzip
import json
import re
import shutil

import pytest

from bert_jax.cli import main
from bert_jax.recipes import recipes
from tests import toy
from tests.docs import pages

pytestmark = [pytest.mark.heavy, pytest.mark.usefixtures("one_device")]
# Page -> the least number of its commands that run here.
WALKS = {
    "README.md": 9,
    "bert_jax/cli/README.md": 4,
    "bert_jax/corpora/README.md": 4,
    "bert_jax/objectives/README.md": 8,
    "bert_jax/planning/README.md": 3,
    "bert_jax/tasks/README.md": 11,
    "configs/language.md": 9,
    "configs/which.md": 12,
    "launch/README.md": 7,
}
# Pages whose commands another test runs.
ELSEWHERE = {
    "bert_jax/generation/README.md": "tests/generation/test_generate.py",
    "bert_jax/rows/README.md": "tests/runs/test_decay_branches.py",
    "tests/benchmarks/paper.md": "tests/benchmarks/test_paper.py",
}
NOT_HERE = re.compile(
    r"gs://|/shared/|/data/|topology=(v5e|h100)|max_length=8192|path/to/gpt2|tfds|GLUE|=DIR|dev-v1.1|-reviews$|runs/(sentences|nli|names|zh)"
)
MODEL = re.compile(r"path/to/bert-base-(multilingual-)?(un)?cased|\bMODEL\b")
TINY = [
    f"--config.model.{value}"
    for value in ("hidden_size=32", "num_layers=1", "num_heads=2", "mlp_dim=64", "max_length=128", "dtype=float32")
]
TRAINS = ("pretrain", "finetune", "ablate", "sweep")


def short(words):
    """Return the flags that make a command last seconds."""
    if words[0] not in (*TRAINS, "vocab", "corpus"):
        return []
    [recipe] = [word.removeprefix("--config=") for word in words if word.startswith("--config=")]
    config = recipes.load(recipe)
    pretrains = "objective" in config
    changes = {"vocab.size": 300, "vocab.min_frequency": 1} if pretrains else {}
    for phase in config.phases:
        values = {"batch_size": 8, "max_length": 32, **({"num_steps": 8} if pretrains else {"num_epochs": 1.0})}
        changes |= {f"phases.{phase}.{key}": value for key, value in values.items()}
    if pretrains:
        changes |= {"training.log_every_steps": 2, "training.eval_every_steps": 8, "training.eval_rows": 16}
        changes["loader.num_workers"] = 0
        changes |= _short_corpus(config.corpus, words)
        if config.schedule.get("warmup_fraction") is None:
            changes["schedule.warmup_steps"] = 2
    elif config.get("task", {}).get("max_target_length"):
        changes["task.max_target_length"] = 12  # the rows above have room for it
    tiny = pretrains and not any(word.startswith("--init") for word in words)
    typed = {word.partition("=")[0] for word in words}
    changes = {f"--config.{key}": value for key, value in changes.items()}
    return [
        *(f"{key}={value}" for key, value in changes.items() if key not in typed),
        *(flag for flag in TINY if tiny and flag.partition("=")[0] not in typed),
    ]


def _short_corpus(corpus, words):
    if any(word.startswith("--config.corpus.path") for word in words):
        return {}
    if corpus.get("parts"):
        options = {f"corpus.parts.{name}.options.document_boundary": "blank_line" for name in corpus.parts}
    elif corpus.source == "docstrings" and not any(word.startswith("--config.corpus.source") for word in words):
        options = {"corpus.options.packages": "('jax',)"}
    else:
        options = {"corpus.options.document_boundary": "blank_line"}
    return {"corpus.heldout_fraction": 0.2, **options}


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with the files that the pages speak of, and a trained model under the names that they give it."""
    monkeypatch.chdir(tmp_path)
    for seed, folder in enumerate(("text", "legal", "general")):
        (tmp_path / folder).mkdir()
        text = toy.write_text(tmp_path / folder / "one.txt", seed=seed)
        (tmp_path / folder / "two.txt.gz").write_bytes(gzip.compress(text.read_bytes()))
    sentences = (tmp_path / "text" / "one.txt").read_text().replace("\n\n", "\n").splitlines()
    for name in ("texts.txt", "sentences.txt", "english.txt"):
        (tmp_path / name).write_text("\n".join([*sentences[:20], "He sat on the bank."]) + "\n")
    labelled = [(text, "house" in text) for text in dict.fromkeys(sentences)]
    for name, columns in (("reviews", ("review", "stars")), ("train", ("text", "label")), ("dev", ("text", "label"))):
        rows = labelled[40:60] if name == "dev" else labelled[:40]
        with (tmp_path / f"{name}.csv").open("w", newline="") as file:
            csv.writer(file).writerows([columns, *rows])
    marked = [{"text": f"<e1>{text[:4]}</e1>{text[4:]}", "label": str(label)} for text, label in labelled]
    (tmp_path / "relations.jsonl").write_text("".join(json.dumps(line) + "\n" for line in marked))
    asked = [{"question": text, "answer": text[::-1]} for text in sentences[:40]]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(line) + "\n" for line in asked))
    (tmp_path / "answers.txt").write_text("\n".join(sentences[:10]) + "\n")
    with (tmp_path / "articles.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("article", "summary"), *((text, text[:12]) for text in sentences[:40])])
    (tmp_path / "pairs.tsv").write_text("".join(f"{text}\t{text[::-1]}\n" for text in sentences[:4]))
    asked = [{"id": str(i), "question": "Who?", "answers": [_answer(text)]} for i, text in enumerate(sentences[:40])]
    paragraphs = [{"context": text, "qas": [qa]} for text, qa in zip(sentences, asked, strict=False)]
    (tmp_path / "questions.json").write_text(json.dumps({"data": [{"title": "toy", "paragraphs": paragraphs}]}))
    for page, names in (
        ("tasks", ["reviews.py", "stars_and_names.py"]),
        (
            "objectives",
            [
                "words.py",
                "rare.py",
                "letters.py",
                "places.py",
                "teacher.py",
                "blocks.py",
                "near.py",
                "last_units.py",
                "rare_pieces.py",
                "two_rules.py",
                "root.py",
                "pairs.py",
                "words_recipe.py",
            ],
        ),
    ):
        text = (pages.ROOT / f"bert_jax/{page}/README.md").read_text()
        for name, program in zip(names, re.findall(r"```python\n(.*?)```", text, re.DOTALL), strict=True):
            (tmp_path / name).write_text(program)
    pretrain = ["pretrain", "--config=quickstart", "--workdir=runs/quickstart"]
    pretrain += ["--config.corpus.source=text_files", "--config.corpus.options.paths=text/one.txt"]
    pretrain += ["--config.model.num_layers=4"]  # bert-jax features reads the last four
    assert main.run([*pretrain, *short(pretrain)]) == 0
    shutil.copytree("runs/quickstart", "runs/books")
    return tmp_path


def _answer(text):
    return {"text": " ".join(text.split()[:2]), "answer_start": 0}


def test_every_page_with_commands_is_walked():
    having = {page for page in pages.markdown() if any(pages.commands(page.read_text(encoding="utf-8")))}
    assert {str(page.relative_to(pages.ROOT)) for page in having} == {*WALKS, *ELSEWHERE}
    assert all((pages.ROOT / file).exists() for file in ELSEWHERE.values())


@pytest.mark.parametrize("page", WALKS)
def test_the_commands_of_a_page_run(page, place):
    ran = 0
    for words in pages.commands((pages.ROOT / page).read_text(encoding="utf-8")):
        if NOT_HERE.search(" ".join(words)):
            continue
        words = [MODEL.sub("runs/books/hugging_face", word) for word in words]
        written = "--workdir=" if words[0] in TRAINS else "--output="
        for old in [place / word.removeprefix(written) for word in words if word.startswith(written)]:
            shutil.rmtree(old) if old.is_dir() else old.unlink(missing_ok=True)  # a page may take a name twice
        code = main.run([*words, *short(words)])
        assert code == 0 or words[0] == "inspect", f"bert-jax {' '.join(words)}: {code}"  # a toy corpus is judged bad
        ran += 1
    assert ran >= WALKS[page]
