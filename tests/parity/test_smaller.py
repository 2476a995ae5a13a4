"""Trimmed and pruned models in transformers: pieces and logits of the larger model, and predictions like ours."""

import jax
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs the parity environment: make test-parity")
transformers = pytest.importorskip("transformers", reason="needs the parity environment: make test-parity")

from bert_jax.cli.main import run
from bert_jax.interchange.hugging_face import export_model
from bert_jax.interchange.trained_model import TrainedModel
from bert_jax.runs.prediction import load_tuned, make_task, predict_split
from bert_jax.text.learn_byte_bpe import learn_byte_bpe
from bert_jax.text.learn_sentencepiece import learn_sentencepiece
from bert_jax.text.tokenizer import sentencepiece as of_sentencepiece
from bert_jax.text.tokenizer import wordpiece
from tests.models.helpers import random_params, tiny
from tests.runs.test_pruning import EXAMPLES, dev, folder  # noqa: F401
from tests.tasks import toy_tasks

pytestmark = pytest.mark.parity
TEXTS = ["the film was great", "many people seen by a small town today"]
LEARNED_FROM = [" ".join(toy_tasks.FILLERS + toy_tasks.PEOPLE + toy_tasks.GOOD)] * 20


@pytest.mark.parametrize("kind", ["wordpiece", "unigram", "byte_bpe"])
def test_a_trimmed_model_there(kind, tmp_path):
    tokenizer = {
        "wordpiece": lambda: wordpiece(toy_tasks.make_tokenizer().vocab),
        "unigram": lambda: of_sentencepiece(learn_sentencepiece(LEARNED_FROM, 80, num_threads=1)),
        "byte_bpe": lambda: learn_byte_bpe(LEARNED_FROM, 320),
    }[kind]()
    config = tiny(vocab_size=tokenizer.size)
    large, small = tmp_path / "large", tmp_path / "small"
    export_model(TrainedModel("", random_params(config), config, tokenizer), large, "the card")
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS))
    assert run(["trim", f"--workdir={large}", f"--input={tmp_path / 'texts.txt'}", f"--output={small}"]) == 0
    outputs = []
    for place in (large, small):
        theirs = transformers.AutoTokenizer.from_pretrained(place)
        model = transformers.AutoModelForPreTraining.from_pretrained(place).eval()
        encoded = [theirs(text, return_tensors="pt") for text in TEXTS]
        pieces = [theirs.convert_ids_to_tokens(one.input_ids[0].tolist()) for one in encoded]
        with torch.no_grad():
            logits = [model(**one).prediction_logits[0].numpy() for one in encoded]
        outputs.append((pieces, logits, theirs.convert_ids_to_tokens(range(len(theirs)))))
    (pieces, logits, vocab), (same, trimmed, kept) = outputs
    assert same == pieces
    assert len(kept) < len(vocab)
    columns = [vocab.index(piece) for piece in kept]
    for before, after in zip(logits, trimmed, strict=True):
        np.testing.assert_allclose(after, before[:, columns], rtol=1e-5, atol=1e-5)


def test_a_pruned_model_there(folder, dev, tmp_path):  # noqa: F811
    small = tmp_path / "small"
    flags = [f"--workdir={folder}", f"--input={dev}", "--mlp=0.25", "--layers=2", f"--output={small}"]
    assert run(["prune", *flags]) == 0
    model = load_tuned(str(small))
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(small).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(small)
    with torch.no_grad():
        found = [theirs(**tokenizer(one["text"], return_tensors="pt")).logits[0] for one in EXAMPLES]
    probabilities = torch.softmax(torch.stack(found), dim=-1).numpy()
    ours = predict_split(model, make_task(model, EXAMPLES, "dev"), "dev").records
    assert [theirs.config.id2label[i] for i in probabilities.argmax(axis=1)] == [one["prediction"] for one in ours]
    assert len(jax.tree.leaves(model.params["encoder"])) == 5 + 2 * 16
