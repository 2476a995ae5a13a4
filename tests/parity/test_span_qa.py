"""Span question answering against ``transformers``' BertForQuestionAnswering: logits, loss and gradients.

Rows are padded, and padded positions take part in both softmaxes, there and here.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs the parity environment: make test-parity")
transformers = pytest.importorskip("transformers", reason="needs the parity environment: make test-parity")

from bert_jax.interchange import names
from bert_jax.interchange.family import family_of
from bert_jax.interchange.names import Entry
from bert_jax.task import Variables
from bert_jax.tasks.base import KIND, Setting
from bert_jax.tasks.span_qa import Task
from bert_jax.training.mesh import unbox
from tests.tasks.questions import make_task, question

pytestmark = pytest.mark.parity
CONTEXT = "ann sat. bob ran to the old house. cy came late, and dora left."
HEAD = (Entry("qa_outputs/dense/kernel", "qa_outputs.weight", 1), Entry("qa_outputs/dense/bias", "qa_outputs.bias"))


def theirs(task: Task, dtype):
    """Return a random model with the shape of the task."""
    torch.manual_seed(0)
    model = task.setting.model
    config = transformers.BertConfig(
        vocab_size=model.vocab_size,
        hidden_size=model.hidden_size,
        num_hidden_layers=model.num_layers,
        num_attention_heads=model.num_heads,
        intermediate_size=model.mlp_dim,
        max_position_embeddings=model.max_length,
        attn_implementation="eager",
    )
    found = transformers.BertForQuestionAnswering(config).eval()
    with torch.no_grad():
        for name, parameter in found.named_parameters():  # gains about 1, or deep gradients drown in rounding
            parameter.normal_(1.0 if "LayerNorm.weight" in name else 0.0, 0.2)
    # Padding is in the softmax, so its word vector has a gradient, here as in google-research/bert; torch hides it.
    found.bert.embeddings.word_embeddings.padding_idx = None
    return found.to(dtype)


def leaf(tree, entry: Entry):
    for part in entry.ours.split("/"):
        tree = tree[part]
    return tree


def pairs(task: Task) -> list[Entry]:
    encoder = [e for e in family_of("bert").entries(task.setting.model.num_layers) if e.ours.startswith("encoder/")]
    return [*encoder, *HEAD]


def ours(task: Task, model, dtype: str):
    """Return the weights of transformers as our tree."""
    tensors = dict(model.named_parameters())
    tree: dict = {}
    shapes = unbox(jax.eval_shape(task.init, jax.random.key(0))).params
    for entry in pairs(task):
        *folders, name = entry.ours.split("/")
        node = tree
        for folder in folders:
            node = node.setdefault(folder, {})
        array = names.to_ours(tensors[entry.theirs].detach().numpy(), entry, leaf(shapes, entry).shape)
        node[name] = jnp.asarray(array, dtype)
    assert jax.tree.structure(tree) == jax.tree.structure(shapes)
    return tree


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_logits_loss_and_gradients_on_padded_windows(dtype: str) -> None:
    examples = [question(CONTEXT, "bob"), question("ann sat.", "ann", id="short"), question(CONTEXT, "dora left")]
    toy = make_task({"dev": examples}, max_length=40, max_query_length=8, doc_stride=8)
    model = dataclasses.replace(
        toy.setting.model, hidden_size=32, num_layers=3, num_heads=4, mlp_dim=64, max_length=40, dtype=dtype
    )
    setting: Setting = dataclasses.replace(toy.setting, model=model)
    task = Task(toy.config, setting)
    batch = task.rows["dev"].take(np.arange(len(task.rows["dev"])), task.lengths[KIND])
    assert (batch["attention_mask"] == 0).any()
    assert (batch["start_positions"] == 0).any()
    assert (batch["start_positions"] > 0).any()

    their_model = theirs(task, getattr(torch, dtype))
    tensors = {name: torch.tensor(value).long() for name, value in batch.items() if value.dtype == np.int32}
    inputs = ("input_ids", "token_type_ids", "attention_mask", "start_positions", "end_positions")
    out = their_model(**{name: tensors[name] for name in inputs})
    out.loss.backward()

    tolerance, gradient_tolerance = (2e-5, 1e-5) if dtype == "float32" else (1e-10, 1e-10)
    with jax.enable_x64(dtype == "float64"):
        params = ours(task, their_model, dtype)

        def loss_of(params):
            outputs = task.outputs(Variables(params, {}), batch)
            loss = task.score(outputs, {k: jnp.asarray(v) for k, v in batch.items()})["loss"]
            return loss.value / loss.count, outputs

        (loss, outputs), gradients = jax.value_and_grad(loss_of, has_aux=True)(params)
    for name in ("start_logits", "end_logits"):
        np.testing.assert_allclose(outputs[name], getattr(out, name).detach().numpy(), atol=tolerance, rtol=0)
    assert abs(float(loss) - out.loss.item()) <= tolerance
    parameters = dict(their_model.named_parameters())
    for entry in pairs(task):
        wanted = parameters[entry.theirs].grad.numpy()
        # What adds the same to all scores of a softmax has a gradient of 0 but for rounding.
        same = entry.ours.endswith(("key/bias", "layer_2/mlp_layer_norm/bias", "qa_outputs/dense/bias"))
        largest = 1.0 if same else np.abs(wanted).max()
        error = np.abs(names.to_theirs(np.asarray(leaf(gradients, entry)), entry) - wanted).max()
        assert error <= gradient_tolerance * max(largest, 1e-30), (entry.ours, error, largest)
