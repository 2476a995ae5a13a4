"""An export with a sentencepiece vocabulary, as ``transformers`` loads it: ids, types, masks and what a mask is filled
with."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs the parity environment: make test-parity")
transformers = pytest.importorskip("transformers", reason="needs the parity environment: make test-parity")

from bert_jax.features.fill_mask import fill_mask
from bert_jax.interchange.hugging_face import export_model
from bert_jax.interchange.tokenizer_files import write_tokenizer
from bert_jax.interchange.trained_model import TrainedModel
from bert_jax.text.learn_sentencepiece import learn_sentencepiece
from bert_jax.text.sentencepiece_model import parse
from bert_jax.text.tokenizer import load, sentencepiece
from tests.models.helpers import random_params, tiny

pytestmark = pytest.mark.parity
TEXTS = ["The cats run to the river.", "A dog, it runs!", "Été, naïve ﬁne", "今天很好", "  two   spaces ", ""]


@pytest.fixture(scope="module", params=["unigram", "bpe", "bytes", "cased"])
def exported(request, tmp_path_factory):
    options = {"bpe": {"kind": "bpe"}, "bytes": {"byte_fallback": True}, "cased": {"lowercase": False}}
    tokenizer = sentencepiece(learn_sentencepiece(TEXTS * 20, 330, num_threads=1, **options.get(request.param, {})))
    config = tiny(vocab_size=tokenizer.size)
    params = random_params(config)
    folder = tmp_path_factory.mktemp("export") / "model"
    export_model(TrainedModel("", params, config, tokenizer), folder, "card")
    return tokenizer, config, params, folder


def test_auto_tokenizer_gives_our_ids(exported):
    ours, config, _, folder = exported
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    assert (len(theirs), theirs.mask_token_id, theirs.pad_token_id) == (ours.size, ours.mask_id, ours.pad_id)
    assert theirs.model_max_length == config.max_length
    for text in [*TEXTS, "the [MASK] runs", "[MASK]s, [MASK]"]:
        assert tuple(theirs(text)["input_ids"]) == ours.encode(text, special_tokens_in_text=True).input_ids, text
    pair = theirs("The cats", "run to it.", padding="max_length", max_length=30)
    mine = ours.encode("The cats", "run to it.", max_length=30)
    for name in ("input_ids", "token_type_ids", "attention_mask"):
        assert tuple(pair[name]) == getattr(mine, name), name


def test_a_mask_is_filled_alike(exported):
    ours, config, params, folder = exported
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.BertForPreTraining.from_pretrained(folder).eval()
    text = "the [MASK] runs to it."
    [filled] = fill_mask(TrainedModel("", params, config, ours), [text])
    encoded = theirs(text, return_tensors="pt")
    with torch.no_grad():
        logits = model(**encoded).prediction_logits[0]
    position = encoded["input_ids"][0].tolist().index(ours.mask_id)
    probabilities = torch.softmax(logits[position], -1).numpy()
    probabilities[list(ours.special_ids)] = 0
    best = np.argsort(-probabilities)[: len(filled.predictions[0])]
    np.testing.assert_allclose([p for _, p in filled.predictions[0]], probabilities[best], rtol=1e-4)
    pieces = theirs.convert_ids_to_tokens(best.tolist())
    assert [text.removeprefix("##") for text, _ in filled.predictions[0]] == [p.removeprefix("▁") or p for p in pieces]


@pytest.mark.parametrize("options", [{}, {"do_lower_case": False}, {"keep_accents": True}])
def test_we_read_what_an_albert_tokenizer_saves_and_write_what_gives_its_ids(tmp_path, options):
    model = parse(learn_sentencepiece(TEXTS * 20, 330, num_threads=1, lowercase=False), "the model")
    theirs = transformers.AlbertTokenizer(
        vocab=[(piece.piece, piece.score) for piece in model.pieces],
        pad_token="[PAD]",
        unk_token="[UNK]",
        _spm_precompiled_charsmap=model.normalizer_spec.precompiled_charsmap,
        **options,
    )
    theirs.save_pretrained(tmp_path / "theirs")
    assert not (tmp_path / "theirs" / "spiece.model").exists()
    ours = load(tmp_path / "theirs")
    (tmp_path / "ours").mkdir()
    write_tokenizer(tmp_path / "ours", tiny(vocab_size=ours.size), ours)
    again = transformers.AutoTokenizer.from_pretrained(tmp_path / "ours")
    for text in [*TEXTS, "the [MASK] runs", "``It'' 'runs'''", "½\u3000Å 각", "\U0001f44d\U0001f3fd"]:
        ids = theirs(text)["input_ids"]
        assert tuple(ids) == ours.encode(text, special_tokens_in_text=True).input_ids, text
        assert ids == again(text)["input_ids"], text
