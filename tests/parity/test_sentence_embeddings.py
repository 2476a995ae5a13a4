"""The contrastive loss against the loss of sentence-transformers, from the same weights: value and every gradient."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs the parity environment: make test-parity")
transformers = pytest.importorskip("transformers", reason="needs the parity environment: make test-parity")
sentence_transformers = pytest.importorskip("sentence_transformers", reason="needs sentence-transformers")

from sentence_transformers.base.modules.transformer import Transformer
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from sentence_transformers.sentence_transformer.modules.pooling import Pooling

from bert_jax.interchange.hugging_face import import_model
from bert_jax.interchange.loading import load
from bert_jax.interchange.workdir import export_trained, import_into_workdir
from bert_jax.records import SPECIAL_TOKENS
from bert_jax.task import Variables
from bert_jax.tasks.base import KIND, Setting
from bert_jax.tasks.sentence_embeddings import Config, Task
from bert_jax.text.tokenizer import wordpiece
from tests.interchange import sentence_folders

pytestmark = pytest.mark.parity
LETTERS = "abcdefghijklmnopqrstuvwxyz"


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a tiny random BertModel of transformers, saved with its tokenizer."""
    folder = tmp_path_factory.mktemp("theirs")
    torch.manual_seed(0)
    vocab = [*SPECIAL_TOKENS, *LETTERS, *(f"##{letter}" for letter in LETTERS)]
    config = transformers.BertConfig(
        vocab_size=len(vocab),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=32,
        attention_probs_dropout_prob=0.0,
        hidden_dropout_prob=0.0,
    )
    model = transformers.BertModel(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(1.0 if "LayerNorm.weight" in name else 0.0, 0.2)
    model.save_pretrained(folder)
    wordpiece(vocab).save(folder / "vocab.txt")
    transformers.BertTokenizer(str(folder / "vocab.txt")).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("name", sentence_folders.FORMS)
def test_vectors_of_folders(name: str, tmp_path: Path) -> None:
    """Read, imported or exported, a folder gives the vectors of sentence-transformers, which reads our export too."""
    encoder = sentence_folders.write_encoder(tmp_path / "encoder")
    folder = sentence_folders.write(tmp_path / "theirs", sentence_folders.FORMS[name], encoder)
    theirs = sentence_transformers.SentenceTransformer(str(folder), device="cpu")
    ours = load(str(folder))
    import_into_workdir(str(folder), str(tmp_path / "run"))
    export_trained(load(str(tmp_path / "run")), tmp_path / "out")
    again = sentence_transformers.SentenceTransformer(str(tmp_path / "out"), device="cpu")
    for prompt in [None, *dict(ours.vectors.prompts)]:
        wanted = theirs.encode(sentence_folders.TEXTS, prompt_name=prompt)
        np.testing.assert_allclose(ours.encode(sentence_folders.TEXTS, prompt_name=prompt), wanted, atol=2e-5)
        np.testing.assert_allclose(again.encode(sentence_folders.TEXTS, prompt_name=prompt), wanted, atol=2e-5)
    assert (again.max_seq_length, again.similarity_fn_name) == (ours.vectors.max_length, ours.vectors.similarity)
    theirs.save(str(tmp_path / "saved"))
    np.testing.assert_array_equal(
        load(str(tmp_path / "saved")).encode(sentence_folders.TEXTS), ours.encode(sentence_folders.TEXTS)
    )


@pytest.mark.parametrize("pooling", ["mean", "cls", "max", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"])
@pytest.mark.parametrize("negatives", [0, 2])
def test_loss_and_gradients(pooling: str, negatives: int, directory: Path) -> None:
    rng = np.random.default_rng(0)
    columns = [
        [" ".join(rng.choice(list(LETTERS), size=rng.integers(2, 9))) for _ in range(6)] for _ in range(2 + negatives)
    ]
    word = Transformer(str(directory), max_seq_length=32)
    pool = Pooling(32, pooling_mode=pooling)
    theirs = sentence_transformers.SentenceTransformer(modules=[word, pool], device="cpu")
    loss = MultipleNegativesRankingLoss(theirs, scale=20.0)([theirs.preprocess(texts) for texts in columns], None)
    loss.backward()

    imported = import_model(directory)
    examples = tuple(
        {"id": str(i), "text": text, "positive": positive, "negatives": list(others)}
        for i, (text, positive, *others) in enumerate(zip(*columns, strict=True))
    )
    splits = {"train": examples, "dev": examples}
    task = Task(
        Config(pooling=pooling), Setting(splits, imported.tokenizer, imported.config, (), 32, 6, packing="none")
    )
    batch = {k: jnp.asarray(v) for k, v in task.rows["train"].take(np.arange(6), task.lengths[KIND]).items()}

    def ours(params):
        [(value, count)] = task.loss(Variables(params, {}), batch, None).terms.values()
        return value / count

    value, gradients = jax.jit(jax.value_and_grad(ours))({"encoder": imported.params["encoder"]})
    assert float(value) == pytest.approx(loss.item(), rel=2e-5)
    embeddings = {name: p.grad.numpy() for name, p in theirs.named_parameters() if p.grad is not None}
    layer = gradients["encoder"]["layer_1"]["mlp"]["input"]["kernel"]
    wanted = next(g for name, g in embeddings.items() if name.endswith("layer.1.intermediate.dense.weight")).T
    np.testing.assert_allclose(layer, wanted, atol=1e-5 * np.abs(wanted).max())
    words = next(g for name, g in embeddings.items() if name.endswith("word_embeddings.weight"))
    found = np.asarray(gradients["encoder"]["embeddings"]["word_embeddings"])[: len(words)]
    np.testing.assert_allclose(found, words, atol=1e-5 * np.abs(words).max())
