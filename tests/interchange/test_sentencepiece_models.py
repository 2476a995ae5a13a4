"""Models with a sentencepiece vocabulary: out to a Hugging Face directory, back, and on to other vocabularies."""

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import tokenizers

from bert_jax.errors import UserError
from bert_jax.features.fill_mask import fill_mask
from bert_jax.interchange.hugging_face import export_model, import_model
from bert_jax.interchange.initial import with_vocabulary_rows
from bert_jax.interchange.loading import load
from bert_jax.interchange.trained_model import TrainedModel
from bert_jax.interchange.workdir import import_into_workdir
from bert_jax.records import SPECIAL_TOKENS
from bert_jax.text import tokenizer as of_text
from bert_jax.text.learn_sentencepiece import learn_sentencepiece
from bert_jax.text.tokenizer import sentencepiece, wordpiece
from tests.models.helpers import random_params, tiny

TEXTS = ["the cats run to the river", "The dog runs, and the cat sees it."] * 20
TOKENIZER = sentencepiece(learn_sentencepiece(TEXTS, 40, "bpe", num_threads=1))
CONFIG = tiny(vocab_size=TOKENIZER.size)
PARAMS = random_params(CONFIG)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("export") / "model"
    export_model(TrainedModel("", PARAMS, CONFIG, TOKENIZER), folder, "the card")
    return folder


def rows(params: Any) -> np.ndarray:
    return np.asarray(params["encoder"]["embeddings"]["word_embeddings"])


def test_what_goes_out_comes_back(exported: Path) -> None:
    imported = import_model(exported)
    jax.tree.map(np.testing.assert_array_equal, imported.params, PARAMS)
    assert (imported.tokenizer.sha256, imported.tokenizer.lowercase) == (TOKENIZER.sha256, True)


def test_the_files_of_a_directory(exported: Path) -> None:
    names = {file.name for file in exported.iterdir()}
    assert {"spiece.model", "tokenizer.json", "tokenizer_config.json"} <= names
    assert "vocab.txt" not in names
    assert of_text.load(exported / "spiece.model").sha256 == TOKENIZER.sha256
    settings = json.loads((exported / "tokenizer_config.json").read_text())
    assert settings["tokenizer_class"] == "PreTrainedTokenizerFast"
    assert "token_type_ids" in settings["model_input_names"]
    assert (settings["mask_token"], settings["model_max_length"]) == ("[MASK]", CONFIG.max_length)
    theirs = tokenizers.Tokenizer.from_file(str(exported / "tokenizer.json"))
    for text in (*TEXTS[:2], "", "the [MASK] runs", "Été!"):
        assert tuple(theirs.encode(text).ids) == TOKENIZER.encode(text, special_tokens_in_text=True).input_ids


def test_into_a_workdir_and_fill_mask(exported: Path, tmp_path: Path) -> None:
    workdir = str(tmp_path / "run")
    import_into_workdir(str(exported), workdir)
    trained = load(workdir)
    assert trained.tokenizer.sha256 == TOKENIZER.sha256
    [filled] = fill_mask(trained, ["the [MASK] runs"])
    words = {word.removeprefix("##") for word, _ in filled.predictions[0]}
    assert words <= {piece.removeprefix("▁") or "▁" for piece in TOKENIZER.vocab} - set(SPECIAL_TOKENS)
    assert load(workdir).tokenizer.sha256 == TOKENIZER.sha256
    (tmp_path / "run" / "spiece.model").write_bytes(learn_sentencepiece(TEXTS, 30, num_threads=1))
    with pytest.raises(UserError, match="spiece.model is not the vocabulary that step 0 was trained with"):
        load(workdir)


def test_a_tokenizer_that_is_not_there_or_too_large(exported: Path, tmp_path: Path) -> None:
    for file in exported.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "SHA256SUMS").unlink()
    (tmp_path / "spiece.model").unlink()
    alone = import_model(tmp_path).tokenizer
    texts = [*TEXTS[:2], "Été!"]
    for ours, theirs in zip(alone.encode_batch(texts), TOKENIZER.encode_batch(texts), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(UserError, match="has no tokenizer.json or vocab.txt or spiece.model; save"):
        import_model(tmp_path)
    (tmp_path / "spiece.model").write_bytes(learn_sentencepiece(TEXTS, 45, "bpe", num_threads=1))
    with pytest.raises(UserError, match=r"spiece.model has 45 pieces, the model 40 embeddings"):
        import_model(tmp_path)


def test_rows_follow_their_pieces_to_another_sentencepiece_model() -> None:
    new = sentencepiece(learn_sentencepiece(TEXTS[::-1] + ["the boat"], 36, num_threads=1))
    params, added = with_vocabulary_rows(PARAMS, TOKENIZER, new)
    kept = [piece for piece in new.vocab if piece in TOKENIZER.vocab]
    assert added == new.size - len(kept) > 0
    assert len(kept) > 10
    for piece in kept:
        np.testing.assert_array_equal(rows(params)[new.vocab.index(piece)], rows(PARAMS)[TOKENIZER.vocab.index(piece)])


def test_rows_follow_from_wordpiece_by_what_pieces_stand_for() -> None:
    """``the`` starts a word in WordPiece and is ``▁the`` here; ``##s`` goes on with one and is ``s``."""
    old = wordpiece((*SPECIAL_TOKENS, "the", "##s", "s", "r", "##u", "##n", "to"))
    params = random_params(tiny(vocab_size=old.size))
    new, added = with_vocabulary_rows(params, old, TOKENIZER)
    before, after = rows(params), rows(new)

    def row(piece: str) -> np.ndarray:
        return after[TOKENIZER.vocab.index(piece)]

    assert added < TOKENIZER.size
    np.testing.assert_array_equal(after[:5], before[:5])
    for ours, theirs in {"▁the": "the", "s": "##s", "▁to": "to"}.items():
        if ours in TOKENIZER.vocab:
            np.testing.assert_array_equal(row(ours), before[old.vocab.index(theirs)])
    assert {"▁the", "s"} <= set(TOKENIZER.vocab)
    back, _ = with_vocabulary_rows(new, TOKENIZER, old)
    np.testing.assert_array_equal(rows(back)[old.vocab.index("the")], before[old.vocab.index("the")])
