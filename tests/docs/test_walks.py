"""The commands of the pages that a new user types first run as they stand, cut short, on a toy text.

Left out, as marked: what reads data that is not here, or a machine that is not here.
"""

import csv
import gzip
import re
import shutil

import pytest

from bert_jax.cli import main
from bert_jax.runs import recipes
from tests import toy
from tests.docs import pages

pytestmark = [pytest.mark.heavy, pytest.mark.usefixtures("one_device")]
WALKS = ("README.md", "bert_jax/corpora/README.md", "bert_jax/tasks/README.md")
NOT_HERE = re.compile(r"tfds|=GLUE|runs/(books|nli|names)|--input=GLUE")
TINY = ("hidden_size=32", "num_layers=1", "num_heads=2", "mlp_dim=64", "max_length=128", "dtype=float32")


def short(words):
    """Return the flags that make a run last seconds."""
    if words[0] not in ("pretrain", "finetune", "vocab", "corpus"):
        return []
    [recipe] = [word.removeprefix("--config=") for word in words if word.startswith("--config=")]
    config = recipes.load(recipe)
    changes = {"vocab.size": 300, "vocab.min_frequency": 1}
    if "task" in config:
        changes = {"train.num_epochs": 1.0, "train.batch_size": 8, "train.max_length": 32}
    for phase in config.get("phases", {}):
        values = {"num_steps": 8, "batch_size": 8, "max_length": 32}
        changes |= {f"phases.{phase}.{key}": value for key, value in values.items()}
    if "phases" in config:
        changes |= {"training.eval_every_steps": 8, "training.eval_rows": 16, "loader.num_workers": 0}
        changes |= {"corpus.options.document_boundary": "blank_line", "corpus.heldout_fraction": 0.2}
        if config.schedule.get("warmup_fraction") is None:
            changes["schedule.warmup_steps"] = 2
    model = [] if any(word.startswith("--init") for word in words) else [f"--config.model.{value}" for value in TINY]
    return [*(f"--config.{key}={value}" for key, value in changes.items()), *(model if "phases" in config else [])]


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with the files that the pages speak of."""
    monkeypatch.chdir(tmp_path)
    for folder in ("text", "legal"):
        (tmp_path / folder).mkdir()
        text = toy.write_text(tmp_path / folder / "one.txt")
        (tmp_path / folder / "two.txt.gz").write_bytes(gzip.compress(text.read_bytes()))
    sentences = (tmp_path / "text" / "one.txt").read_text().replace("\n\n", "\n").splitlines()
    labelled = [(text, "house" in text) for text in dict.fromkeys(sentences)]
    for name, columns in (("reviews", ("review", "stars")), ("train", ("text", "label")), ("dev", ("text", "label"))):
        rows = labelled[40:60] if name == "dev" else labelled[:40]
        with (tmp_path / f"{name}.csv").open("w", newline="") as file:
            csv.writer(file).writerows([columns, *rows])
    program = re.search(r"```python\n(def get_config.*?)```", (pages.ROOT / WALKS[2]).read_text(), re.DOTALL)
    (tmp_path / "reviews.py").write_text(program[1])
    return tmp_path


@pytest.mark.parametrize("page", WALKS)
def test_the_commands_of_a_page_run(page, place):
    ran = 0
    if page == WALKS[2]:  # which goes on from the quickstart
        pretrain = ["pretrain", "--config=quickstart", "--workdir=runs/quickstart"]
        text = ["--config.corpus.source=text_files", "--config.corpus.options.paths=text/one.txt"]
        assert main.run([*pretrain, *text, *short(pretrain)]) == 0
    for words in pages.commands((pages.ROOT / page).read_text(encoding="utf-8")):
        if NOT_HERE.search(" ".join(words)):
            continue
        words = [word.replace("path/to/bert-base-uncased", "runs/mine/hugging_face") for word in words]
        workdir = next(
            (place / word.removeprefix("--workdir=") for word in words if word.startswith("--workdir=")), None
        )
        if words[0] in ("pretrain", "finetune") and workdir and workdir.exists():
            shutil.rmtree(workdir)  # a page that trains anew under the same name
        code = main.run([*words, *short(words)])
        assert code == 0 or words[0] == "inspect", f"bert-jax {' '.join(words)}: {code}"  # a toy corpus is judged bad
        ran += 1
    assert ran >= 4
