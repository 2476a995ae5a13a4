"""The peers' sides of a figure, on PyTorch: the fastest that we can write, and transformers as its users run it."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable
from typing import Any

from tests.benchmarks.suite.figures import STRONG, VOCABULARY, Figure


def prepare(figure: Figure, who: str, dtype: str) -> tuple[Callable[[int], float], dict[str, Any]]:
    """Return (a function: number of steps -> seconds, facts about this side). CUDA is used where it is there."""
    import torch

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    if device.type == "cpu":
        torch.set_num_threads(len(os.sched_getaffinity(0)))
    else:
        torch.set_float32_matmul_precision("high")
    if figure.model == "modernbert":
        model, batch = _modernbert(figure, who)
    else:
        model, batch = (_strong if who == STRONG else _hugging_face)(figure)
    model = model.to(device).train()
    batch = {name: value.to(device) for name, value in batch.items()}
    if who == STRONG and device.type == "cuda":
        # one layer of our BERT is compiled, and used for all
        for part in model.layers if figure.model == "bert" else [model]:
            part.compile()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01, fused=who == STRONG)
    lower = torch.autocast(device.type, torch.bfloat16) if dtype == "bfloat16" else contextlib.nullcontext()

    def run(steps: int) -> float:
        start = time.perf_counter()
        for _ in range(steps):
            optimizer.zero_grad(set_to_none=True)
            with lower:
                loss = model(**batch)
                loss = loss if torch.is_tensor(loss) else loss.loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        if device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - start

    kind = torch.cuda.get_device_name() if device.type == "cuda" else "cpu"
    versions = [f"torch {torch.__version__}"]
    if (transformers := sys.modules.get("transformers")) is not None:
        versions.append(f"transformers {transformers.__version__}")
    return run, {"device": f"{device.type}: {kind}", "version": ", ".join(versions)}


def _hugging_face(figure: Figure) -> tuple[Any, dict[str, Any]]:
    """Return a model of transformers and a batch: labels at all positions, as its data collator gives them."""
    import torch
    import transformers

    config = transformers.BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=figure.hidden,
        num_hidden_layers=figure.layers,
        num_attention_heads=figure.heads,
        intermediate_size=4 * figure.hidden,
        num_labels=2,
    )
    ids = torch.randint(1000, VOCABULARY, (figure.rows, figure.length))
    batch = {"input_ids": ids, "token_type_ids": torch.zeros_like(ids), "attention_mask": torch.ones_like(ids)}
    classes = torch.arange(figure.rows) % 2
    if figure.task == "fine-tuning":
        return transformers.BertForSequenceClassification(config), {**batch, "labels": classes}
    labels = torch.full_like(ids, -100)
    places = torch.linspace(1, figure.length - 2, figure.masked).long()
    labels[:, places] = ids[:, places]
    return transformers.BertForPreTraining(config), {**batch, "labels": labels, "next_sentence_label": classes}


def _modernbert(figure: Figure, who: str) -> tuple[Any, dict[str, Any]]:
    """Return transformers' ModernBERT and a batch. The strong one's vocabulary sees predicted positions alone."""
    import torch
    import transformers

    config = transformers.ModernBertConfig(
        vocab_size=VOCABULARY,
        hidden_size=figure.hidden,
        num_hidden_layers=figure.layers,
        num_attention_heads=figure.heads,
        intermediate_size=figure.mlp_dim,
        pad_token_id=0,
        sparse_prediction=who == STRONG,
        attn_implementation="sdpa",
    )
    ids = torch.randint(1000, VOCABULARY, (figure.rows, figure.length))
    labels = torch.full_like(ids, -100)
    places = torch.linspace(1, figure.length - 2, figure.masked).long()
    labels[:, places] = ids[:, places]
    return transformers.ModernBertForMaskedLM(config), {"input_ids": ids, "labels": labels}


def _strong(figure: Figure) -> tuple[Any, dict[str, Any]]:
    """Return a BERT of our own and its batch.

    Queries, keys and values are one product, attention is PyTorch's fused one, and only predicted positions reach the
    vocabulary. Rows of one sequence need no mask; packed ones get a boolean mask in blocks.
    """
    import torch
    from torch import nn
    from torch.nn import functional

    hidden, heads, dropout = figure.hidden, figure.heads, 0.1

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv, self.out = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
            self.up, self.down = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)
            self.norm, self.last_norm = (nn.LayerNorm(hidden, eps=1e-12) for _ in range(2))
            self.drop = nn.Dropout(dropout)

        def forward(self, x: Any, mask: Any) -> Any:
            rows, length, _ = x.shape
            q, k, v = self.qkv(x).view(rows, length, 3, heads, hidden // heads).permute(2, 0, 3, 1, 4)
            mixed = functional.scaled_dot_product_attention(q, k, v, mask, dropout_p=dropout)
            x = self.norm(x + self.drop(self.out(mixed.transpose(1, 2).reshape(rows, length, hidden))))
            return self.last_norm(x + self.drop(self.down(functional.gelu(self.up(x)))))

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.types = nn.Embedding(VOCABULARY, hidden), nn.Embedding(2, hidden)
            self.places = nn.Embedding(max(figure.length, 512), hidden)
            self.norm, self.drop = nn.LayerNorm(hidden, eps=1e-12), nn.Dropout(dropout)
            self.layers = nn.ModuleList(Layer() for _ in range(figure.layers))
            self.pool, self.classes = nn.Linear(hidden, hidden), nn.Linear(hidden, 2)
            if figure.task == "pretraining":
                self.transform, self.head_norm = nn.Linear(hidden, hidden), nn.LayerNorm(hidden, eps=1e-12)
                self.bias = nn.Parameter(torch.zeros(VOCABULARY))

        def forward(self, ids: Any, types: Any, places: Any, mask: Any, starts: Any, classes: Any, **heads: Any) -> Any:
            x = self.drop(self.norm(self.words(ids) + self.types(types) + self.places(places)))
            for layer in self.layers:
                x = layer(x, mask if figure.sequences > 1 else None)
            pooled = torch.tanh(self.pool(x[:, starts]))
            if figure.task == "fine-tuning":
                pooled = self.drop(pooled)
            loss = functional.cross_entropy(self.classes(pooled).float().flatten(0, 1), classes.flatten())
            if figure.task == "fine-tuning":
                return loss
            gathered = self.head_norm(functional.gelu(self.transform(torch.take_along_dim(x, heads["predicted"], 1))))
            logits = functional.linear(gathered, self.words.weight, self.bias)
            return loss + functional.cross_entropy(logits.float().flatten(0, 1), heads["labels"].flatten())

    starts = torch.arange(figure.sequences) * (figure.length // figure.sequences)
    everywhere = torch.arange(figure.length)
    sequence = torch.searchsorted(starts, everywhere, right=True) - 1
    ids = torch.randint(1000, VOCABULARY, (figure.rows, figure.length))
    batch = {
        "ids": ids,
        "types": torch.zeros_like(ids),
        "places": everywhere - starts[sequence],
        "mask": sequence[:, None] == sequence[None, :],
        "starts": starts,
        "classes": torch.randint(0, 2, (figure.rows, figure.sequences)),
    }
    if figure.task == "pretraining":
        places = torch.linspace(1, figure.length - 2, figure.masked).long()
        batch["predicted"] = places.repeat(figure.rows, 1)[:, :, None]
        batch["labels"] = torch.randint(1000, VOCABULARY, (figure.rows, figure.masked))
    return Model(), batch


def matmul_rate(dtype: str) -> float:
    """Return the FLOP/s of a large matrix product: the best of five."""
    import torch

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    size = 1024 if device.type == "cpu" else 8192
    x = torch.randn(size, size, device=device, dtype=getattr(torch, dtype))
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    times = []
    for _ in range(6):
        start = time.perf_counter()
        x @ x
        wait()
        times.append(time.perf_counter() - start)
    return 2 * size**3 / min(times[1:])
