"""Added tokens beside transformers, which saves such a model. We fine-tune and export it, and transformers reads it."""

import json
import random

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs the parity environment: make test-parity")
transformers = pytest.importorskip("transformers", reason="needs the parity environment: make test-parity")

from tokenizers import AddedToken

from bert_jax.cli.main import run
from bert_jax.interchange.tokenizer_files import write_tokenizer
from bert_jax.text.learn_byte_bpe import learn_byte_bpe
from bert_jax.text.learn_sentencepiece import learn_sentencepiece
from bert_jax.text.tokenizer import load, sentencepiece, wordpiece
from tests.models.helpers import tiny
from tests.runs.test_added_tokens import relation
from tests.tasks import toy_tasks

pytestmark = pytest.mark.parity
SPECIAL, PLAIN = ("<e1>", "</e1>"), ("<e2>", "</e2>")
TEXTS = ["the <e1>film</e1> by <e2> Anna </e2>", "<e1> x", "a<e2>b </e1>", "[e3] in [e3]town", "The film was seen", ""]


def made(kind):
    texts = [" ".join(toy_tasks.FILLERS + toy_tasks.PEOPLE + toy_tasks.GOOD)] * 20
    if kind == "wordpiece":
        return wordpiece(toy_tasks.make_tokenizer().vocab)
    if kind == "byte_bpe":
        return learn_byte_bpe(texts, 320)
    return sentencepiece(learn_sentencepiece(texts, 60, kind, num_threads=1))


@pytest.fixture(params=["wordpiece", "unigram", "bpe", "byte_bpe"])
def theirs(request, tmp_path):
    """Return a tokenizer of transformers, made from ours, to which special and plain tokens are added."""
    (tmp_path / "plain").mkdir()
    ours = made(request.param)
    write_tokenizer(tmp_path / "plain", tiny(vocab_size=ours.size), ours)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "plain")
    tokenizer.add_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIAL], special_tokens=True)
    tokenizer.add_tokens([*PLAIN, AddedToken("[e3]", lstrip=True, single_word=True)])
    return tokenizer


def assert_same(ours, theirs, texts=TEXTS):
    assert len(theirs) == ours.size
    for text in texts:
        assert theirs(text)["input_ids"] == list(ours.encode(text).input_ids), text
        assert theirs(text, add_special_tokens=False)["input_ids"] == ours.encode_batch([text])[0].tolist(), text


def test_tokens_of_every_kind_are_honoured_in_and_out(theirs, tmp_path):
    theirs.save_pretrained(tmp_path / "theirs")
    ours = load(tmp_path / "theirs")
    assert_same(ours, theirs)
    (tmp_path / "ours").mkdir()
    write_tokenizer(tmp_path / "ours", tiny(vocab_size=ours.size), ours)
    assert_same(ours, transformers.AutoTokenizer.from_pretrained(tmp_path / "ours"))
    assert load(tmp_path / "ours").sha256 == ours.sha256


def test_relations_from_transformers_and_back(theirs, tmp_path):
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=len(theirs), hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
        max_position_embeddings=64, type_vocab_size=2,
    )  # fmt: skip
    transformers.BertForMaskedLM(config).save_pretrained(tmp_path / "start")
    theirs.save_pretrained(tmp_path / "start")
    toy_tasks.write_toy(tmp_path, "classification")
    for split, count in (("train", 128), ("dev", 32)):
        rng = random.Random(split)
        toy_tasks.write_examples(tmp_path / f"{split}.jsonl", [{"id": str(i), **relation(rng)} for i in range(count)])
    assert toy_tasks.finetune(tmp_path, f"--init={tmp_path / 'start'}", "--epochs=2") == 0
    assert run(["export", f"--workdir={tmp_path / 'run'}", f"--output={tmp_path / 'out'}"]) == 0
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    model = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "out").eval()
    texts = [json.loads(line)["text"] for line in (tmp_path / "dev.jsonl").read_text().splitlines()][:8]
    assert_same(load(tmp_path / "run"), tokenizer, texts)
    assert run(["predict", f"--workdir={tmp_path / 'run'}", f"--output={tmp_path / 'p.jsonl'}", *texts]) == 0
    records = [json.loads(line) for line in (tmp_path / "p.jsonl").read_text().splitlines()]
    with torch.no_grad():
        for text, record in zip(texts, records, strict=True):
            logits = model(**tokenizer(text, return_tensors="pt")).logits[0]
            probabilities = dict(zip(model.config.id2label.values(), torch.softmax(logits, -1).tolist(), strict=True))
            found = record["probabilities"]
            np.testing.assert_allclose([found[name] for name in probabilities], [*probabilities.values()], atol=1e-5)
