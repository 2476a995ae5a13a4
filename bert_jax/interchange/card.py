"""The model card that goes with an export."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from bert_jax.training.formats import is_number
from bert_jax.training.report import BASELINES


def model_card(
    facts: Mapping[str, Any],
    metrics: Mapping[str, Any],
    step: int,
    baselines: Mapping[str, Any] | None = None,
    splits: Mapping[str, Any] | None = None,
) -> str:
    """Markdown with YAML front matter.

    Args:
      facts: what a checkpoint keeps: ``model``, ``lowercase``, ``corpus_fingerprint``, ``vocabulary_sha256``, ``run``.
      metrics: the newest evaluation; may be empty.
      baselines: what models without learning reach on the same rows, as in ``baselines.json``.
      splits: ``num_documents`` and ``num_tokens`` of the corpus's ``train`` and ``heldout``, as in its manifest.
    """
    run = facts.get("run", {})
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
license: unknown  # that of the weights: yours to say, with the licences of the training text in view
# language: en  (not recorded: give the ISO 639-1 code of the training text's language)
tags: [bert, jax, bert_jax]
---

# {run.get("name", "BERT")}

A BERT encoder ({"uncased" if facts["lowercase"] else "cased"}) with its masked-LM and next-sentence heads, pretrained
with bert_jax. It loads as `BertForPreTraining`, `BertForMaskedLM` or `BertModel`.

Intended use: fine-tuning, feature extraction and study. It has the biases and the gaps of the text it was trained on,
and gives no facts.

## Training text

{_text(run, splits or {})}

## Evaluation

{_evaluation(metrics, baselines or {})}
## Lineage

{rows}

## Configuration

```json
{json.dumps(run.get("config", facts["model"]), indent=1)}
```
"""


def _text(run: Mapping[str, Any], splits: Mapping[str, Any]) -> str:
    source = ((run.get("config") or {}).get("corpus") or {}).get("source")
    named = f"Source: `{source}`. " if source else ""
    try:
        train, heldout = splits["train"], splits["heldout"]
        share = heldout["num_tokens"] / (train["num_tokens"] + heldout["num_tokens"])
        return (
            f"{named}{train['num_documents']:,} documents, {train['num_tokens']:,} tokens to train on; "
            f"{heldout['num_documents']:,} documents, {heldout['num_tokens']:,} tokens ({share:.1%}) were held out."
        )
    except (KeyError, TypeError, ValueError, ZeroDivisionError):  # not there any more, or of another kind
        return f"{named}How much of it there was is not recorded here."


def _evaluation(metrics: Mapping[str, Any], baselines: Mapping[str, Any]) -> str:
    if not metrics:
        return "No evaluation is recorded.\n"
    rows = []
    for measure, value in metrics.items():
        known = ((name, baselines.get(key)) for key, name in BASELINES.get(measure, ()))
        to_beat = ", ".join(f"{name} {line:.4f}" for name, line in known if is_number(line))
        rows.append(f"| {measure.replace('_', ' ')} | {value:.4f} | {to_beat} |")
    figures = "\n".join(rows)
    return f"| held-out figure | value | to beat, without learning |\n|---|---|---|\n{figures}\n"
