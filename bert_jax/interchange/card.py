"""Writes the model card of an exported model."""

from __future__ import annotations

import hashlib
import html
import json
import re
from collections.abc import Mapping
from typing import Any

from bert_jax.interchange.architectures import HeadClass
from bert_jax.interchange.published import published, published_command, without_secrets
from bert_jax.interchange.trained_model import TrainedModel
from bert_jax.models.model import LM_HEAD
from bert_jax.reporting.formats import in_words, is_number
from bert_jax.reporting.measures import known_baselines, with_shares
from bert_jax.storage import hub
from bert_jax.text.case import Case

_FILLS_MASKS = "fill-mask"
# End of a class name in transformers -> (its pipeline, a sentence on its models).
_CLASSES = {
    "Model": ("feature-extraction", "Gives vectors of texts and of their tokens."),
    "ForPreTraining": (_FILLS_MASKS, "The heads of its pretraining stand on it."),
    "ForMaskedLM": (_FILLS_MASKS, "A masked-LM head stands on it."),
    **dict.fromkeys(("LMHeadModel", "ForCausalLM"), ("text-generation", "Says which token comes next.")),
    "ForNextSentencePrediction": ("", "Tells whether one text follows another."),
    "ForSequenceClassification": ("text-classification", "Gives a text, or a pair of texts, {outputs}."),
    "ForTokenClassification": (
        "token-classification",
        "Gives every token {outputs}; the first piece of a word counts.",
    ),
    "ForQuestionAnswering": ("question-answering", "Finds the answer to a question in a passage."),
    "ForMultipleChoice": ("", "Scores the choices that may follow a text."),
}
OTHER = ("", "A head of its own stands on it.")  # for a class that only a user's family has
CARD, CURVES = "README.md", "curves.svg"
RUN = "bert_jax_run"  # entry of the front matter: the id of the run, by which a push knows the exports of the run
_PAIRED = ("ForSequenceClassification", "ForMultipleChoice")
_CUT = (
    "\nA pair of texts that is too long loses one token at a time from the end of the longer text, or of the second if "
    "both\nare equally long, as in google-research/bert. Fast tokenizers of transformers may keep one more of the "
    "second and\none fewer of the first."
)
_PICTURE = f"\n![The curves of the training: loss and held-out figures by step]({CURVES})\n"
_HEADLESS = "fine-tuning, feature extraction and study"
_TRAINED = "texts of the kind it was trained and evaluated on, after a look at its errors on yours"


def model_card(
    model: TrainedModel,
    metrics: Mapping[str, Any],
    baselines: Mapping[str, Any] | None = None,
    has_vectors: bool = False,
    parent: Mapping[str, Any] | None = None,
    has_curves: bool = False,
) -> str:
    """Return the model card as Markdown with YAML front matter.

    Secrets in the record of the run, and folders of this machine, are left out (``published``).

    Args:
      model: the card names its step, its head (of a model without a head, the head of a pretrained BERT) and its facts
        ``model``, ``lowercase``, ``corpus_fingerprint``, ``vocabulary_sha256``, ``run`` and ``task``.
      metrics: the figures of the newest evaluation; may be empty.
      baselines: the content of ``baselines.json``, for the same held-out rows.
      has_vectors: whether the export has files for sentence-transformers.
      parent: ``source`` and ``licence`` (None if its card names no licence) of the model from which this model was
        imported or started; None if there is no such model.
      has_curves: whether a picture of the run's curves, ``CURVES``, lies beside the card.
    """
    head, facts, run, parent = model.head or HeadClass(), model.facts, model.facts.get("run") or {}, parent or {}
    results = _model_index(head, metrics, run)
    front = "\n".join([_front(head, has_vectors, parent, run), f"{RUN}: {_yaml(run_key(facts))}", *results])
    if mask := model.tokenizer.vocab[model.tokenizer.mask_id] if _pipeline(head) == _FILLS_MASKS else "":
        front += f"\nmask_token: {json.dumps(mask, ensure_ascii=False)}"
    return without_secrets(f"""---
{front}
---

# {_plain(run.get("name", "BERT"))}

An encoder of the {head.family.title} family ({_case(facts)}), written by bert_jax as
`{head.architecture}`.
{_purpose(head)}{mask and f" {_code(mask)} stands for a token to fill in."}{_CUT if head.ending in _PAIRED else ""}

Intended use: {_TRAINED if head.task_parts else _HEADLESS}. It has the biases and the gaps of the text it was
trained on, gives no facts, and reads no more than {model.config.max_length:,} tokens at a time{_trained(model)}.

## Text and vocabulary

- text: {_text(run)}
- vocabulary: {_vocabulary(model)}

## Evaluation

{_evaluation(metrics, baselines or {})}{_PICTURE if has_curves else ""}
## Lineage

{_lineage(facts, run, model.step, parent)}

## Configuration

{_command(run.get("command") or "")}```json
{json.dumps(published(run.get("config", facts["model"])), indent=1)}
```
""")


def run_key(facts: Mapping[str, Any]) -> str:
    """Return the id of the run that trained a model; for a model of no run, such as an import, a digest."""
    if known := (facts.get("run") or {}).get("run_id"):
        return str(known)
    return hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()[:12]


def said(card: str, key: str) -> str | None:
    """Return an entry of the front matter of a model card that is one word; None if there is none."""
    lines = card.splitlines()
    if not lines or lines[0].strip() != "---":
        return None
    front = lines[1 : 1 + next((i for i, line in enumerate(lines[1:]) if line.strip() == "---"), 0)]
    for line in front:
        name, _, value = line.partition(":")
        if name.strip() == key:
            return value.partition(" #")[0].strip().strip("'\"") or None
    return None


def _case(facts: Mapping[str, Any]) -> Case:
    return Case(facts["lowercase"], facts.get("strip_accents"))


def _trained(model: TrainedModel) -> str:
    """Return the longest rows up to the model's step, as the end of a sentence; "" if no record names them."""
    lengths, done = [], 0
    for phase in ((model.facts.get("run") or {}).get("phases") or {}).values():
        if done < max(model.step, 1):
            lengths.append(phase["max_length"])
        done += phase["num_steps"]
    return f" (the rows of its training had at most {max(lengths):,})" if lengths else ""


def _pipeline(head: HeadClass) -> str:
    """Return the pipeline of transformers for a head; "" if there is none, as for the discriminator of an ELECTRA.

    The pipeline that fills masks has no class of an XLNet.
    """
    pipeline = _CLASSES.get(head.ending, OTHER)[0]
    fills = LM_HEAD.name in head.parts and head.ending not in head.family.endings
    return "" if pipeline == _FILLS_MASKS and not fills else pipeline


def _plain(text: Any) -> str:
    """Return a user's text as Markdown in which no part of it is HTML or opens code."""
    return html.escape(str(text), quote=False).replace("`", "&#96;")


def _code(text: Any) -> str:
    """Return a user's text as code in Markdown, where HTML is no HTML."""
    return "`" + str(text).replace("`", "'") + "`"


def _front(head: HeadClass, has_vectors: bool, parent: Mapping[str, Any], run: Mapping[str, Any]) -> str:
    licence, languages, source = parent.get("licence"), _languages(run), str(parent.get("source"))
    comment = "of the weights: choose it with the licences of the training text in view"
    if licence:
        comment = "of the model that this one was made from: check that it is right for this one too"
    lines = [f"library_name: {'sentence-transformers' if has_vectors else 'transformers'}"]
    if pipeline := "sentence-similarity" if has_vectors else _pipeline(head):
        lines.append(f"pipeline_tag: {pipeline}")
    return "\n".join(
        [
            *lines,
            f"license: {licence or 'unknown'}  # {comment}",
            f"language: {languages[0] if len(languages) == 1 else '[' + ', '.join(languages) + ']'}"
            if languages
            else "# language: en  (not recorded: give the ISO 639-1 code of the training text's language)",
            f"tags: [{head.family.model_type}, jax, bert_jax{', sentence-transformers' if has_vectors else ''}]",
            *([f"base_model: {hub.parsed(source).id}"] if hub.is_model(source) else []),
        ]
    )


def _model_index(head: HeadClass, metrics: Mapping[str, Any], run: Mapping[str, Any]) -> list[str]:
    """Return the held-out figures as lines of the entry "model-index", which the Hub shows beside the card."""
    known = {measure: value for measure, value in metrics.items() if is_number(value)}
    if not known:
        return []
    config = run.get("config") or {}
    data = config.get("corpus") or config.get("data") or {}
    options, kind = data.get("options") or {}, data.get("source") or data.get("format") or "text"
    dataset = str(options.get("name") or kind) if kind == "hugging_face_dataset" else str(kind)
    lines = [
        "model-index:",
        f"- name: {_yaml(run.get('name', 'BERT'))}",
        "  results:",
        f"  - task: {{type: {_pipeline(head) or 'other'}}}",
        f"    dataset: {{type: {_yaml(published(dataset))}, name: held-out rows of the run}}",
        "    metrics:",
    ]
    for measure, value in known.items():
        kind = next((name for name in ("accuracy", "loss", "perplexity", "f1") if name in measure), in_words(measure))
        lines.append(f"    - {{type: {_yaml(kind)}, name: {_yaml(in_words(measure))}, value: {float(value)!r}}}")
    return lines


def _yaml(text: Any) -> str:
    """Return a text as a quoted scalar of YAML, in which no part of it is HTML or opens code."""
    return re.sub("[<>&`]", lambda found: f"\\u{ord(found[0]):04x}", json.dumps(str(text), ensure_ascii=False))


def _text(run: Mapping[str, Any]) -> str:
    """Return what the model was trained on, as far as the record of its run says it: how much, and from where."""
    config, about = run.get("config") or {}, run.get("about") or {}
    sizes = [f"{about[name]:,} {name}" for name in ("documents", "tokens", "examples") if is_number(about.get(name))]
    data = config.get("corpus") or config.get("data") or {}
    if config.get("private"):
        sources = ["not said, because the run was private"]
    else:
        parts = {name: part for name, part in (data.get("parts") or {"": data}).items() if part}
        sources = [f"{name and f'{name}: '}{_source(part)}" for name, part in parts.items()]
    return _plain("; ".join(filter(None, [", ".join(sizes), *sources]))) or "not recorded"


def _source(data: Mapping[str, Any]) -> str:
    """Return the kind of a source of text or of examples, with its name on the Hub, its files and its language."""
    options, shown = data.get("options") or {}, []
    files = options.get("paths") or (data.get("splits") or {}).get("train") or data.get("path") or ()
    names: dict[str, Any] = {"": [options.get(key) for key in ("name", "config_name", "split", "revision")]}
    names |= {"files ": [files] if isinstance(files, str) else files, "language ": [options.get("language")]}
    for word, values in names.items():
        said = [str(published(value)) for value in values if value]
        shown += [word + ", ".join(said[:5]) + (f" and {len(said) - 5} more" if len(said) > 5 else "")] if said else []
    kind = str(data.get("source") or data.get("format") or "text")
    return f"{kind} ({'; '.join(shown)})" if shown else kind


def _vocabulary(model: TrainedModel) -> str:
    kind = json.loads(model.tokenizer.tokenizer_json())["model"]["type"]
    return f"{model.tokenizer.size:,} pieces, {kind}, {_case(model.facts)}"


def _languages(run: Mapping[str, Any]) -> list[str]:
    """Return the ISO 639-1 codes that the recipe names for the text of training, each once; [] if it names no code."""
    corpus = (run.get("config") or {}).get("corpus") or {}
    trained = [part for part in (corpus.get("parts") or {}).values() if part.get("weight") != 0]
    named = [(one.get("options") or {}).get("language") for one in (corpus, *trained)]
    return list(dict.fromkeys(code for code in named if isinstance(code, str) and code.isalpha()))


def _command(command: str) -> str:
    """Return the command of a run as a block of Markdown; "" if none is recorded, as of a private run."""
    return f"```\n{published_command(command).replace('```', '***')}\n```\n\n" if command else ""


def _purpose(head: HeadClass) -> str:
    labels = ", ".join(map(_code, head.labels[:50]))
    more = f" and {len(head.labels) - 50} more" if len(head.labels) > 50 else ""
    one = "labels, any number of them," if head.problem_type == "multi_label_classification" else "one label"
    outputs = f"{one} of {len(head.labels)}: {labels}{more}" if labels else "a number"
    return _CLASSES.get(head.ending, OTHER)[1].format(outputs=outputs)


def _lineage(facts: Mapping[str, Any], run: Mapping[str, Any], step: int, parent: Mapping[str, Any]) -> str:
    source = published(parent.get("source"))
    lineage = {
        "run": run.get("run_id"),
        "step": step,
        "task": (facts.get("task") or {}).get("name"),
        "corpus fingerprint": facts.get("corpus_fingerprint"),
        "vocabulary sha256": facts.get("vocabulary_sha256"),
        "git commit": run.get("git_commit"),
        "started from": source and f"{source} (licence: {parent.get('licence') or 'not recorded there'})",
        "versions": ", ".join(f"{name} {version}" for name, version in run.get("versions", {}).items()),
    }
    return "\n".join(f"- {name}: {_plain(value)}" for name, value in lineage.items() if value)


def _evaluation(metrics: Mapping[str, Any], baselines: Mapping[str, Any]) -> str:
    if not metrics:
        return "No evaluation is recorded.\n"
    rows, baselines = [], with_shares(baselines, metrics)
    for measure, value in metrics.items():
        to_beat = ", ".join(f"{name} {line:.4f}" for name, line in known_baselines(measure, baselines))
        rows.append(f"| {_plain(in_words(measure))} | {value:.4f} | {to_beat} |")
    figures = "\n".join(rows)
    return f"| held-out figure | value | to beat, without learning |\n|---|---|---|\n{figures}\n"
