"""Fine-tuning beside PyTorch: same weights, same batches, dropout off. Needs torch and transformers."""

from pathlib import Path

import jax
import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from bert_jax.interchange.hugging_face import import_model
from bert_jax.rows.phases import Phase, Phases
from bert_jax.tasks.base import KIND, Setting
from bert_jax.tasks.classification import Config, Task
from bert_jax.training import mesh as meshes
from bert_jax.training.evaluation import Evaluation
from bert_jax.training.mesh import MeshConfig
from bert_jax.training.optimizers import adamw
from bert_jax.training.schedules import linear_from_zero
from bert_jax.training.state import make_state, step_metrics
from bert_jax.training.step import make_train_step

pytestmark = pytest.mark.parity
STEPS, BATCH, LENGTH, PEAK, WARMUP = 50, 16, 24, 2e-3, 5
WORDS = [f"w{i}" for i in range(59)]
VOCAB = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
LABELS = ("few", "many", "some")


def examples(count: int, seed: int):
    """Yield texts whose label says how many of the first twenty words stand in them: something to learn."""
    rng = np.random.default_rng(seed)
    for number in range(count):
        words = rng.integers(0, len(WORDS), rng.integers(4, 20))
        share = (words < 20).mean()
        label = "many" if share > 0.45 else "some" if share > 0.25 else "few"
        yield {"id": str(number), "text": " ".join(WORDS[i] for i in words), "label": label}


@pytest.fixture
def model(tmp_path: Path):
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=len(VOCAB), hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
        max_position_embeddings=LENGTH, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        num_labels=len(LABELS), initializer_range=0.1,
    )  # fmt: skip
    made = transformers.BertForSequenceClassification(config).eval()
    made.save_pretrained(tmp_path)
    (tmp_path / "vocab.txt").write_text("\n".join(VOCAB) + "\n")
    return made


def test_fifty_steps_and_the_predictions_after_them(model, tmp_path: Path) -> None:
    imported = import_model(tmp_path)
    splits = {"train": tuple(examples(400, 1)), "dev": tuple(examples(500, 2))}
    setting = Setting(splits, imported.tokenizer, imported.config, LABELS, LENGTH, BATCH, packing="none")
    task = Task(Config(dropout_rate=0.0), setting)
    source, phases = task.source("train", KIND, 0), Phases((Phase(STEPS, BATCH, LENGTH, KIND),))
    batches = []
    for step in range(STEPS):
        dealt = phases.rows_of(step, [source.rows_per_epoch])
        batches.append(source.rows(dealt.epochs, dealt.rows))

    expected = [theirs(model, batch, step) for step, batch in enumerate(batches)]
    mesh, tx = meshes.make_mesh(MeshConfig(), jax.devices()[:1]), adamw.Optimizer().make()
    schedule = linear_from_zero.Schedule(PEAK, WARMUP).make(STEPS)
    state = make_state(jax.tree.map(jax.numpy.asarray, imported.params), tx, step_metrics(task))
    train_step = jax.jit(make_train_step(task, tx, schedule, seed=0))
    found, before = [], 0.0
    for batch in batches:
        state = train_step(state, {}, batch)
        total = float(state.metrics["loss"].value)
        found.append(total - before)
        before = total
    assert np.mean(expected[-5:]) < 0.8 * expected[0]
    np.testing.assert_allclose(found, expected, atol=1e-3, rtol=0)

    outputs = Evaluation(task, mesh, phases.phases[0], 10**6).read("dev", state.params, {})[1]
    dev = task.source("eval", KIND, 0, "dev")
    rows = np.arange(dev.rows_per_epoch)
    with torch.no_grad():
        logits = model(**tensors(dev.rows(np.zeros_like(rows), rows))).logits.numpy()
    same = (outputs["logits"].argmax(-1) == logits.argmax(-1)).mean()
    print(f"\nloss within {np.abs(np.subtract(found, expected)).max():.1e}, same predictions {same:.1%}")
    assert same >= 0.99


def tensors(batch):
    return {name: torch.tensor(batch[name]).long() for name in ("input_ids", "token_type_ids", "attention_mask")}


MOMENTS: dict = {}


def theirs(model, batch, step: int) -> float:
    """Return the loss before one step of AdamW as in google-research/bert, optimization.py."""
    if step == 0:
        MOMENTS.clear()
    model.zero_grad()
    loss = model(**tensors(batch), labels=torch.tensor(batch["labels"]).long()).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    rate = PEAK * step / WARMUP if step < WARMUP else PEAK * (1 - step / STEPS)
    with torch.no_grad():
        for name, p in model.named_parameters():
            m, v = MOMENTS.setdefault(name, (torch.zeros_like(p), torch.zeros_like(p)))
            m.mul_(0.9).add_(p.grad, alpha=0.1)
            v.mul_(0.999).add_(p.grad**2, alpha=0.001)
            decay = 0.0 if name.endswith("bias") or "LayerNorm" in name else 0.01
            p.sub_(rate * (m / (v.sqrt() + 1e-6) + decay * p))
    return loss.item()
