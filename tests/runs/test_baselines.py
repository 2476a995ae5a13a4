"""What a start says of its baselines: labels of which nearly all are the same, and much text that is [UNK]."""

import json
from pathlib import Path

import pytest

from bert_jax import configuration
from bert_jax.corpora.build import BuildConfig, build
from bert_jax.corpora.store import Corpus
from bert_jax.corpora.text_files import Source
from bert_jax.objectives import ltr, mlm
from bert_jax.recipes.pretraining_settings import PretrainingSettings
from bert_jax.rows.phases import Phase
from bert_jax.runs.baselines import _describe_imbalance, _in_a_line, write_baselines
from bert_jax.text.tokenizer import wordpiece
from tests import toy
from tests.objectives.texts import objective
from tests.toy import learn_wordpiece


def test_unbalanced_labels_come_with_what_mends_them() -> None:
    rate = 0.8
    line = _describe_imbalance(Phase(1, 1, 64, "one"), "nsp_majority_rate", rate, "bert-jax inspect --corpus=c")
    assert "NSP accuracy begins at 0.80" in line
    assert "--config.phases.one.max_length=128, or masked LM alone" in line
    assert line.endswith(
        "--config.objective.name=mlm --config.objective.arrangement=sentences (bert-jax inspect --corpus=c says more)"
    )
    other = _describe_imbalance(Phase(1, 1, 64, "one"), "letter_majority_rate", rate, "")
    assert other.endswith(f"so LETTER accuracy begins at {rate:.2f} there and teaches little")


def test_the_line_of_baselines_has_each_name_once() -> None:
    figures = {"nsp_rate": 0.5, "unigram/both": 6.0, "nsp_rate/both": 0.5, "unigram/left": 6.1, "cloze": 4.0}
    figures |= {"cloze/own": 3.0, "cloze/general": 5.0, "trigram/left": 5.5}
    assert _in_a_line(figures) == (
        "nsp rate 0.500, unigram (both 6.000, left 6.100), cloze 4.000 (own 3.000, general 5.000), trigram left 5.500"
    )


@pytest.mark.parametrize("name", ["mlm", "ltr"])
@pytest.mark.parametrize("lacking", ["", "v"])
def test_text_that_the_vocabulary_cannot_spell_is_said_at_every_start(tmp_path: Path, lacking: str, name: str) -> None:
    text = toy.write_text(tmp_path / "text.txt")
    lines = text.read_text().split("\n")
    pieces = learn_wordpiece(lines, 300, min_frequency=1)
    tokenizer = wordpiece([piece for piece in pieces if not lacking or lacking not in piece])
    source = Source(paths=(str(text),), format="sentences", document_boundary="blank_line")
    build(source, tokenizer, tmp_path / "store", BuildConfig(0.2))
    corpus = Corpus(tmp_path / "store")
    task = objective({"mlm": mlm, "ltr": ltr}[name], (corpus, tokenizer))
    settings = configuration.build(PretrainingSettings, toy.recipe(text, training={"eval_rows": 1000}), "config")
    said: list[list[str]] = [[], []]
    for notes in said:  # a new run, and one that is resumed
        write_baselines(task, settings.experiment, str(tmp_path), corpus.fingerprint, "corpus", notes.append)
    assert said[0] == said[1]
    unknown = [line for line in said[0] if "[UNK]" in line]
    heldout = corpus.split("heldout")
    [edge] = heldout.sentence_offsets[-1:]
    tokens = heldout.read(edge[None] * 0, edge[None])
    share = (tokens == tokenizer.unk_id).mean()
    assert json.loads((tmp_path / "baselines.json").read_text())["unknown_share"] == pytest.approx(share, abs=0.02)
    assert bool(unknown) == bool(lacking) == (share > 0.02)
    if lacking:
        assert (
            "of the held-out text is [UNK], which the vocabulary cannot spell: baselines and losses count" in unknown[0]
        )
        assert "bert-jax vocab" in unknown[0]
        assert "bert-jax inspect --corpus=corpus" in unknown[0]
