"""``bert-jax trim``: a smaller vocabulary gives the same vectors and logits for the pieces that stay."""

import json
from pathlib import Path

import jax
import numpy as np
import pytest

from bert_jax.cli.main import run
from bert_jax.interchange.architectures import HeadClass
from bert_jax.interchange.hugging_face import export_model
from bert_jax.interchange.loading import load
from bert_jax.interchange.trained_model import TrainedModel
from bert_jax.interchange.workdir import import_into_workdir
from bert_jax.models.encoders import roberta
from bert_jax.models.model import LM_HEAD, POOLER, Model
from bert_jax.records import SPECIAL_TOKENS
from bert_jax.resizing.smaller import trim_vocabulary, write_smaller
from bert_jax.text.tokenizer import wordpiece
from bert_jax.training.mesh import unbox
from tests.models.helpers import random_params, tiny
from tests.tasks import toy_tasks

LETTERS = "abcdef"
TOKENIZER = wordpiece(
    (*SPECIAL_TOKENS, "zyx", *LETTERS, "bad", "cab", "##ed", *(f"##{c}" for c in LETTERS), "be", "dada")
)
CONFIG = tiny(vocab_size=32)
TEXTS = ["a bad cab", "dad fed bee"]


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory) -> str:
    """The embeddings have spare rows, as those of a run on several devices may have."""
    folder = tmp_path_factory.mktemp("pretrained") / "model"
    export_model(TrainedModel("", random_params(CONFIG), CONFIG, TOKENIZER), folder, "the card")
    return str(folder)


@pytest.fixture(scope="module")
def classifier(tmp_path_factory) -> str:
    task = toy_tasks.make_task("classification", {"train": toy_tasks.examples("classification", 8)})
    params = jax.tree.map(np.asarray, unbox(jax.jit(task.init)(jax.random.key(0))).params)
    head = HeadClass("BertForSequenceClassification", task.setting.labels, "single_label_classification")
    folder = tmp_path_factory.mktemp("classifier") / "model"
    export_model(TrainedModel("", params, task.setting.model, task.setting.tokenizer, head), folder, "the card")
    return str(folder)


@pytest.fixture(scope="module")
def dev(tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("dev") / "dev.tsv"
    rows = [f"{one['text']}\t{one['label']}" for one in toy_tasks.examples("classification", 13, seed=1)]
    path.write_text("\n".join(["text\tlabel", *rows]) + "\n")
    return str(path)


def outputs(model: TrainedModel, text: str) -> dict[str, np.ndarray]:
    encoded = model.tokenizer.encode(text)
    batch = {name: np.array([getattr(encoded, name)]) for name in ("input_ids", "token_type_ids", "attention_mask")}
    batch["masked_positions"] = np.array([[1, 2]])
    parts = [part for part in (POOLER, LM_HEAD) if part.name in model.params]
    params = {name: model.params[name] for name in ("encoder", *(part.name for part in parts))}
    return jax.tree.map(np.asarray, jax.jit(Model(model.config, tuple(parts)).apply)({"params": params}, batch))


def test_the_logits_of_kept_pieces_stay(pretrained):
    model = load(pretrained)
    smaller = trim_vocabulary(model, TEXTS)
    kept = [model.tokenizer.vocab.index(piece) for piece in smaller.tokenizer.vocab]
    assert smaller.config.vocab_size == smaller.tokenizer.size == len(kept) < model.tokenizer.size
    assert {*TOKENIZER.vocab} - {*smaller.tokenizer.vocab} == {"zyx", "dada"}
    for text in TEXTS:
        before, after = outputs(model, text), outputs(smaller, text)
        np.testing.assert_array_equal(after["sequence"], before["sequence"])
        np.testing.assert_array_equal(after["pooled"], before["pooled"])
        np.testing.assert_allclose(after["mlm_logits"], before["mlm_logits"][..., kept], rtol=1e-5, atol=1e-6)


def test_positions_of_roberta_follow_the_padding_id(tmp_path):
    """Its position table in a file begins after the id of the padding, which a trim changes."""
    tokenizer = wordpiece(("cat", "zyx", "dada", "a", *SPECIAL_TOKENS))
    config = roberta.Config(tokenizer.size, 16, num_layers=1, num_heads=2, mlp_dim=32, max_length=16)
    export_model(TrainedModel("", random_params(config), config, tokenizer), tmp_path / "model", "the card")
    model = load(str(tmp_path / "model"))
    smaller = trim_vocabulary(model, ["a cat"])
    assert smaller.tokenizer.pad_id == tokenizer.pad_id - 2
    write_smaller({"original": model, "trimmed": smaller}, str(tmp_path / "out"))
    found, wanted = outputs(load(str(tmp_path / "out")), "a cat"), outputs(model, "a cat")
    np.testing.assert_array_equal(found["sequence"], wanted["sequence"])


def figures(line: str) -> list[float]:
    return [float(word.replace(",", "")) for word in line.split()[1:] if word != "-"]


def test_the_command_on_a_pretrained_workdir(pretrained, tmp_path, capsys):
    import_into_workdir(pretrained, str(tmp_path / "work"))
    (tmp_path / "a.txt").write_text(TEXTS[0] + "\n")
    (tmp_path / "b.tsv").write_text(f"text\tother\n{TEXTS[1]}\tzyx\n")
    flags = [f"--workdir={tmp_path / 'work'}", f"--input={tmp_path / 'a.txt'}", f"--input={tmp_path / 'b.tsv'}"]
    output = tmp_path / "smaller"
    assert run(["trim", *flags, f"--output={output}"]) == 0
    *_, before, after = capsys.readouterr().out.splitlines()
    small = load(str(output))
    assert figures(after)[:2] == [
        sum(x.size for x in jax.tree.leaves(small.params)),
        sum(x.nbytes for x in jax.tree.leaves(small.params)) + (output / "tokenizer.json").stat().st_size,
    ]
    assert figures(before)[0] - figures(after)[0] == (load(pretrained).config.vocab_size - small.tokenizer.size) * (
        CONFIG.hidden_size + 1
    )
    assert before.endswith(" -")
    assert small.tokenizer.encode(TEXTS[1]).pieces == TOKENIZER.encode(TEXTS[1]).pieces
    assert run(["fill-mask", f"--workdir={output}", "a [MASK] cab"]) == 0
    assert run(["trim", *flags, f"--output={output}"]) == 2
    assert "exists already" in capsys.readouterr().err


def test_a_classifier_keeps_its_labels_and_its_score(classifier, dev, tmp_path, capsys):
    output = tmp_path / "smaller"
    flags = [f"--workdir={classifier}", f"--input={dev}", f"--dev={dev}", f"--output={output}"]
    assert run(["trim", *flags]) == 0
    said = capsys.readouterr().out
    *_, names, before, after = said.splitlines()
    assert "all 13 texts are cut into the same pieces" in said
    assert names.endswith(" accuracy")
    assert figures(before)[-1] == figures(after)[-1]
    assert figures(before)[0] > figures(after)[0]
    assert run(["evaluate", f"--workdir={output}", f"--input={dev}", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["accuracy"] == pytest.approx(figures(after)[-1], abs=1e-4)
    assert f"{figures(after)[-1]:.4f}" in (output / "README.md").read_text()


@pytest.mark.parametrize(
    ("verb", "said"),
    [
        (["trim", "--workdir=MODEL", "--input=no.txt"], "no.txt"),
        (["trim", "--workdir=MODEL", "--input=empty.txt"], "empty.txt has no text"),
        (["trim", "--workdir=MODEL", "--input=a.txt", "--min_count=0"], "--min_count: found '0'"),
        (["trim", "--workdir=MODEL", "--input=a.txt", "--dev=a.txt"], "holds a pretrained model; fine-tune it first"),
        (["trim", "--workdir=none", "--input=a.txt"], "none is neither a Hugging Face directory"),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_written(verb, said, pretrained, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("a.txt").write_text("a bad cab\n")
    Path("empty.txt").write_text("\n")
    assert run([*(flag.replace("MODEL", pretrained) for flag in verb), "--output=out"]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.txt", "empty.txt"]
