"""A tiny BERT of transformers whose parameters are large enough to show mistakes."""

from __future__ import annotations

from typing import Any

import torch
import transformers

V, P = 64, 32  # pieces and positions


def made(kind: type[transformers.BertPreTrainedModel], dtype: torch.dtype = torch.float32, **config: Any) -> Any:
    """Return a model of class ``kind``, its parameters drawn from N(0, 0.2).

    Gains of layer norms are about 1, or deep gradients drown in rounding.
    """
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 64}
    told = {"max_position_embeddings": P, "attn_implementation": "eager", **sizes, **config}
    model = kind(transformers.BertConfig(vocab_size=V, **told)).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(1.0 if "LayerNorm.weight" in name else 0.0, 0.2)
    return model.to(dtype)
