"""The model card that goes with an export."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def model_card(facts: Mapping[str, Any], metrics: Mapping[str, Any], step: int) -> str:
    """Markdown with YAML front matter.

    Args:
      facts: what a checkpoint keeps: ``model``, ``lowercase``, ``corpus_fingerprint``, ``vocabulary_sha256``, ``run``.
      metrics: the newest evaluation; may be empty.
    """
    run = facts.get("run", {})
    figures = "\n".join(f"| {name.replace('_', ' ')} | {value:.4f} |" for name, value in metrics.items())
    evaluation = f"| held-out figure | value |\n|---|---|\n{figures}\n" if figures else "No evaluation is recorded.\n"
    versions = ", ".join(f"{name} {version}" for name, version in run.get("versions", {}).items())
    lineage = {
        "run": run.get("run_id"),
        "step": step,
        "corpus fingerprint": facts.get("corpus_fingerprint"),
        "vocabulary sha256": facts.get("vocabulary_sha256"),
        "git commit": run.get("git_commit"),
        "started from": (run.get("identity") or {}).get("init"),
        "versions": versions,
    }
    rows = "\n".join(f"- {name}: {value}" for name, value in lineage.items() if value)
    return f"""---
library_name: transformers
pipeline_tag: fill-mask
tags: [bert, jax, bert_jax]
---

# {run.get("name", "BERT")}

A BERT encoder ({"uncased" if facts["lowercase"] else "cased"}) with its masked-LM and next-sentence heads, pretrained
with bert_jax. It loads as `BertForPreTraining`, `BertForMaskedLM` or `BertModel`.

Intended use: fine-tuning, feature extraction and study. It has the biases and the gaps of the text it was trained on,
and gives no facts.

## Evaluation

{evaluation}
## Lineage

{rows}

## Configuration

```json
{json.dumps(run.get("config", facts["model"]), indent=1)}
```
"""
