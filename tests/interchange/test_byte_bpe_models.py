"""Models with a byte-level vocabulary: out to a Hugging Face directory and back, and on to another vocabulary."""

import json
from pathlib import Path

import jax
import numpy as np
import pytest
import tokenizers

from bert_jax.errors import UserError
from bert_jax.features.fill_mask import encode_masked, fill_mask
from bert_jax.interchange.hugging_face import export_model, import_model
from bert_jax.interchange.initial import with_vocabulary_rows
from bert_jax.interchange.trained_model import TrainedModel
from bert_jax.records import SPECIAL_TOKENS
from bert_jax.text.learn_byte_bpe import learn_byte_bpe
from bert_jax.text.tokenizer import of_json, wordpiece
from tests.models.helpers import random_params, tiny
from tests.text.byte_level_files import roberta

TOKENIZER = of_json(roberta())
CONFIG = tiny(vocab_size=TOKENIZER.size)
PARAMS = random_params(CONFIG)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("export") / "model"
    export_model(TrainedModel("", PARAMS, CONFIG, TOKENIZER), folder, "the card")
    return folder


def test_what_goes_out_comes_back(exported: Path) -> None:
    imported = import_model(exported)
    jax.tree.map(np.testing.assert_array_equal, imported.params, PARAMS)
    assert imported.tokenizer.sha256 == TOKENIZER.sha256
    settings = json.loads((exported / "tokenizer_config.json").read_text())
    assert (settings["mask_token"], settings["cls_token"], settings["do_lower_case"]) == ("<mask>", "<s>", False)
    theirs = tokenizers.Tokenizer.from_file(str(exported / "tokenizer.json"))
    assert tuple(theirs.encode("the <mask>", "cat").ids) == TOKENIZER.encode("the [MASK]", "cat", None, True).input_ids


def test_a_published_folder_of_two_files_is_read(exported: Path, tmp_path: Path) -> None:
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_bytes((exported / name).read_bytes())
    model = roberta()["model"]
    (tmp_path / "vocab.json").write_text(json.dumps(model["vocab"]))
    (tmp_path / "merges.txt").write_text("\n".join(["#version: 0.2", *model["merges"]]), encoding="utf-8")
    assert import_model(tmp_path).tokenizer.sha256 == TOKENIZER.sha256


def test_a_model_whose_files_put_no_tokens_around_a_text_is_refused(exported: Path, tmp_path: Path) -> None:
    """Transformers gives the bare text for a tokenizer.json without a template, and for the class of GPT-2."""
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_bytes((exported / name).read_bytes())
    config = {"tokenizer_class": "PreTrainedTokenizerFast"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    content = roberta() | {"post_processor": {"type": "ByteLevel", "trim_offsets": True}}
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(UserError, match="no special tokens around a text, but a model reads <s> and </s>") as error:
        import_model(tmp_path)
    advised = json.loads(str(error.value).partition('"post_processor": ')[2])
    (tmp_path / "tokenizer.json").write_text(json.dumps(content | {"post_processor": advised}))
    assert import_model(tmp_path).tokenizer.special_ids == TOKENIZER.special_ids
    (tmp_path / "tokenizer.json").unlink()
    (tmp_path / "vocab.json").write_text(json.dumps(roberta()["model"]["vocab"]))
    (tmp_path / "merges.txt").write_text("\n".join(["#version: 0.2", *roberta()["model"]["merges"]]), encoding="utf-8")
    for name in ("GPT2TokenizerFast", "RobertaTokenizer"):
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": name}))
        if name == "RobertaTokenizer":
            assert import_model(tmp_path).tokenizer.sha256 == TOKENIZER.sha256
        else:
            with pytest.raises(UserError, match="name the tokenizer_class RobertaTokenizer"):
                import_model(tmp_path)


def test_a_mask_has_either_name() -> None:
    filled = fill_mask(TrainedModel("", PARAMS, CONFIG, TOKENIZER), ["the <mask> cat", "the [MASK] cat"])
    assert filled[0].predictions == filled[1].predictions
    assert len(filled[0].predictions) == 1
    words = {word.removeprefix("##") for word, _ in filled[0].predictions[0]}
    assert words <= {text or "Ġ" for text, continues in TOKENIZER.surfaces if continues is not None}
    other = wordpiece((*SPECIAL_TOKENS, "the", "mask"))
    with pytest.raises(UserError, match=r"no \[MASK\] in 'the <mask>'; write"):
        encode_masked(["the <mask>"], other, 8)


def test_rows_follow_their_pieces_to_another_vocabulary() -> None:
    new = learn_byte_bpe(["the cat's Hello world"] * 5, 290)
    params, added = with_vocabulary_rows(PARAMS, TOKENIZER, new)
    old_rows, rows = (np.asarray(p["encoder"]["embeddings"]["word_embeddings"]) for p in (PARAMS, params))
    assert 0 < added < 20
    for piece in ("<mask>", "</s>", "Ġthe", "a", "Ã"):
        np.testing.assert_array_equal(rows[new.vocab.index(piece)], old_rows[TOKENIZER.vocab.index(piece)])


def test_a_new_piece_that_begins_a_word_starts_from_pieces_after_a_space() -> None:
    """Pieces of WordPiece say whether they begin a word, the old tokenizer's by the space that they hold."""
    new = wordpiece((*SPECIAL_TOKENS, "thecat", "world", "##world", "中"))
    params, _ = with_vocabulary_rows(PARAMS, TOKENIZER, new)
    old_rows, rows = (np.asarray(p["encoder"]["embeddings"]["word_embeddings"]) for p in (PARAMS, params))
    parts = {
        "thecat": ["Ġthe", "cat"],
        "world": ["Ġwor", "ld"],
        "##world": ["w", "or", "ld"],
        "中": ["ä", "¸", "Ń"],  # no space comes before it in running text
    }
    for piece, names in parts.items():
        mean = old_rows[[TOKENIZER.vocab.index(name) for name in names]].mean(axis=0)
        np.testing.assert_allclose(rows[new.vocab.index(piece)], mean, rtol=1e-6, atol=1e-7)
