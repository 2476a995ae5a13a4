"""What no refactoring may move: rows, parameter trees, losses, token ids and exported tensors.

``make floor`` writes ``tests/fixtures/floor.json`` anew: only where a change is meant to move them.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bert_jax.interchange.trained_model import TrainedModel

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import numpy as np
from safetensors.numpy import load_file

from bert_jax import configuration
from bert_jax.cli.main import run
from bert_jax.interchange.hugging_face import export_model
from bert_jax.recipes.pretraining_settings import PretrainingSettings
from bert_jax.runs.prepared import Request
from bert_jax.runs.pretraining import Pretraining
from bert_jax.text import tokenizer as tokenizers
from bert_jax.text.learn_byte_bpe import learn_byte_bpe
from bert_jax.text.learn_sentencepiece import learn_sentencepiece
from bert_jax.text.tokenizer import wordpiece
from tests import toy
from tests.interchange import test_families as exported
from tests.tasks import questions, toy_tasks
from tests.text import byte_level_files
from tests.text.test_unigram_json import ALBERT
from tests.toy import learn_wordpiece
from tests.training import gang

FILE = Path(__file__).parent / "fixtures" / "floor.json"
OBJECTIVES = ("mlm_nsp", "mlm", "ltr")
PACKINGS = ("none", "packed", "bucketed")
CURVES = (("mlm_nsp", "packed"), ("mlm", "bucketed"), ("ltr", "none"))
STEPS, ROWS = 20, 64
SPLITS = ("train", "eval")
_WORD = {"unit": "word"}
# Rows of one setting each, beside every objective and packing above: the objective, and what else differs.
VARIANTS: dict[str, dict[str, Any]] = {
    "mlm_sop packed": {"objective": {"name": "mlm_sop", "packing": "packed"}},
    "span_boundary packed": {"objective": {"name": "span_boundary", "packing": "packed"}},
    "full_sentences packed": {"objective": {"name": "mlm", "arrangement": "sentences", "packing": "packed"}},
    **{
        f"mlm {name}": {"objective": {"name": "mlm", "masking": masking}}
        for name, masking in {
            "stochastic": {"count": "stochastic", "random_pieces": "not_special"},
            "copies": {"copies": 1, "random_pieces": "unigram", "max_predictions": 4},
            "rates": {"rate": 0.4, "mask_share": 1.0, "random_share": 0.0},
            "whole_unit": {"strategy": "whole_unit", **_WORD},
            "ngrams": {"strategy": "ngrams", **_WORD},
            "bernoulli": {"strategy": "bernoulli", **_WORD},
            "spans": {"strategy": "spans", "fates": "span", **_WORD},
            "column": {"strategy": "whole_unit", "unit": "phrase"},
        }.items()
    },
    "mixture": {"objective": {"name": "mlm_nsp"}, "mixed": True},
    "byte_bpe": {"objective": {"name": "mlm"}, "vocab": {"kind": "byte_bpe", "size": 400}},
    "bpe": {"objective": {"name": "mlm_nsp"}, "vocab": {"kind": "bpe"}},
}


def recipe(text: Path, objective: str, packing: str, length: int) -> dict[str, Any]:
    return toy.recipe(
        text,
        objective={"name": objective, "packing": packing, "short_row_probability": 0.2},
        model={"max_length": length, **toy.MODELS.get(objective, {})},
        phases={"phase1": {"num_steps": STEPS, "batch_size": 8, "max_length": length}},
        training={"log_every_steps": 1, "eval_every_steps": 10, "micro_batches": 2, "loggers": ()},
        export=False,
        examples=(),
    )


def arrays(values: Mapping[str, np.ndarray]) -> str:
    """Return the sha256 of names, types, shapes and values, by name."""
    digest = hashlib.sha256()
    for name, value in sorted(values.items()):
        digest.update(f"{name} {value.dtype} {value.shape}".encode() + np.ascontiguousarray(value).tobytes())
    return digest.hexdigest()


def rows_of(task: Any, split: str, kind: str = "phase1") -> str:
    """Return the sha256 of names, types, shapes and values of rows of two epochs, of every bucket."""
    digest, source = hashlib.sha256(), task.source(split, kind, 0)
    begin = 0
    for count in [bucket.rows_per_epoch for bucket in source.buckets] or [source.rows_per_epoch]:
        indices = begin + np.arange(ROWS) % count
        for name, values in sorted(source.rows(np.arange(ROWS) // (ROWS // 2), indices).items()):
            digest.update(f"{name} {values.dtype} {values.shape}".encode() + np.ascontiguousarray(values).tobytes())
        begin += count
    return digest.hexdigest()


def tree(task: Any) -> str:
    """Return the sha256 of paths and shapes of the parameters."""
    params = jax.eval_shape(task.init, jax.random.key(0)).params
    leaves = [f"{jax.tree_util.keystr(path)} {leaf.shape}" for path, leaf in jax.tree.leaves_with_path(params)]
    return hashlib.sha256("\n".join(leaves).encode()).hexdigest()


def made(folder: Path, config: dict[str, Any]) -> Any:
    """Return the objective of a recipe, with its corpus built in ``folder``."""
    settings = configuration.build(PretrainingSettings, config, "config")
    recipe = Pretraining(settings, request=Request(str(folder)))
    return recipe.with_text(*recipe.inputs.open(lambda line: None))[0]


def rows_and_trees(folder: Path) -> dict[str, str]:
    """Return the sha256 of the rows of each objective and packing, and of paths and shapes of each parameter tree."""
    text, found = toy.write_text(folder / "text.txt", documents=120), {}
    for objective in OBJECTIVES:
        for packing in PACKINGS:
            task = made(folder, recipe(text, objective, packing, 64))
            for split in SPLITS:
                found[f"rows {objective} {packing} {split}"] = rows_of(task, split)
        found[f"tree {objective}"] = tree(task)
    return found


def curve(folder: Path, objective: str, packing: str) -> list[float]:
    """Return the losses of every step and every evaluation of a run."""
    folder = folder / objective
    folder.mkdir()
    path = toy.write_recipe(folder / "recipe.json", recipe(toy.write_text(folder / "text.txt"), objective, packing, 32))
    assert run(["pretrain", f"--config={path}", f"--workdir={folder / 'run'}"]) == 0
    lines = [
        sorted((name, value) for name, value in record.items() if "loss" in name)
        for record in gang.records(folder / "run")
    ]
    return [value for line in lines for _, value in line]


def pretraining_rows(folder: Path, name: str) -> dict[str, str]:
    """Return the sha256 of the rows and of the parameter tree of one of ``VARIANTS``.

    Variants of one vocabulary and one corpus find them in ``folder`` if another variant has made them.
    """
    changes = dict(VARIANTS[name])
    folder = folder / ("mixed" if changes.get("mixed") else changes.get("vocab", {}).get("kind", "plain"))
    folder.mkdir(exist_ok=True)
    text, phrases = toy.write_text(folder / "text.txt", documents=120), folder / "phrases.txt"
    phrases.write_text("a red house\nthe long road\nold king\n")
    config = recipe(text, "mlm", "none", 64) | {"vocab": {"size": 120, "min_frequency": 1, **changes.get("vocab", {})}}
    config["objective"] = changes["objective"]
    config["corpus"]["columns"] = {"phrase": {"annotator": "lexicon", "path": str(phrases)}}
    if changes.get("mixed"):
        other = toy.write_text(folder / "other.txt", documents=60, seed=1)
        one, two = ({**config["corpus"]["options"], "paths": (str(path),)} for path in (text, other))
        source = {"source": "text_files"}
        parts = {"one": {**source, "options": one, "weight": 0.7}, "two": {**source, "options": two, "weight": 0.3}}
        config["corpus"] = {"heldout_fraction": 0.2, "parts": parts}
    task = made(folder, config)
    return {f"rows {name} {split}": rows_of(task, split) for split in SPLITS} | {f"tree {name}": tree(task)}


def downstream(name: str) -> Any:
    """Return a fine-tuning task on toy examples."""
    if name == "span_qa":
        place = "ann was here. bob met cy there, and dora left with ed before flo came. "
        asked = [questions.question(place * 3, who) for who in ("bob", "ed", None, "flo came")]
        return questions.make_task({"train": asked, "dev": asked}, max_length=72, doc_stride=24, version_2=True)
    if name == "sentence_embeddings":
        examples = [
            {"id": e["id"], "text": e["text"], "positive": e["pair"], "negatives": [e["text"][:9]][: i % 2]}
            for i, e in enumerate(toy_tasks.examples("regression", 40))
        ]
        return toy_tasks.make_task(name, {"train": examples, "dev": examples})
    toy_name, frozen = ("tagging", ("encoder",)) if name == "feature_tagging" else (name, ())
    splits = {split: toy_tasks.examples(toy_name, 40, seed) for split, seed in (("train", 1), ("dev", 2))}
    config = {"layers": "last"} if frozen else {}
    return toy_tasks.make_task(name, splits, frozen=frozen, config=config)


TASKS = (*toy_tasks.MAKERS, "feature_tagging", "span_qa", "sentence_embeddings")


def task_rows() -> dict[str, str]:
    """Return the sha256 of the rows and of the parameter tree of each fine-tuning task."""
    hashes = {}
    for name in TASKS:
        task = downstream(name)
        for split in SPLITS:
            hashes[f"rows {name} {split}"] = rows_of(task, split, "train")
        hashes[f"tree {name}"] = tree(task)
    return hashes


def strings(count: int = 5_000) -> Iterator[str]:
    """Yield texts of words, and of characters that tokenizers treat differently."""
    rng = random.Random(0)
    characters = "aAbzZéÉñüßçøŁσΣςЖжябאבעربไทย中国人民龍ひらカタ각한" + "e\u0301 \u00a0\u3000\u200d\t\n" + "0123½²Ⅷ"
    characters += ".,;:!?'\"`-–—…()[]<>{}#@&%$€©™/\\|_~^*+=" + "\U0001f600\U0001f44d\U0001f3fd\ufe0f\ufffd"
    words = " ".join(" ".join(group) for group in (toy_tasks.FILLERS, toy_tasks.GOOD, toy_tasks.PEOPLE)).split()
    words += ["The", "Hello", "world", "can't", "I'm", "state-of-the-art", "naïve", "Zürich", "[MASK]", "</s>", "x1y2"]
    for number in range(count):
        texts = [rng.choice(words) for _ in range(rng.randint(0, 8))]
        if number % 2:
            texts.insert(rng.randint(0, len(texts)), "".join(rng.choices(characters, k=rng.randint(1, 20))))
        yield rng.choice((" ", " ", "  ", "")).join(texts)


def tokenizers_of(folder: Path) -> dict[str, tokenizers.Tokenizer]:
    """Return a tokenizer of each kind, from each form of file that can be read."""
    texts = [*strings(400), *toy.write_text(folder / "text.txt").read_text().splitlines()]
    made: dict[str, tokenizers.Tokenizer] = {
        f"wordpiece {case}": wordpiece(
            learn_wordpiece(texts, 600, case == "uncased", min_frequency=1), case == "uncased"
        )
        for case in ("cased", "uncased")
    }
    made["byte_bpe learned"] = learn_byte_bpe(texts, 500)
    (folder / "bpe.model").write_bytes(learn_sentencepiece(texts, 400, "bpe"))
    made["bpe learned"] = tokenizers.load(folder / "bpe.model")
    files = {"byte_bpe roberta": byte_level_files.roberta(), "byte_bpe modern": byte_level_files.modern_bert()}
    for name, content in {**files, "unigram json": ALBERT}.items():
        path = folder / f"{name.replace(' ', '_')}.json"
        path.write_text(json.dumps(content))
        made[name] = tokenizers.load(path)
    path = folder / "wordpiece.json"
    path.write_text(made["wordpiece uncased"].tokenizer_json())
    return {**made, "wordpiece json": tokenizers.load(path)}


def token_ids(folder: Path) -> dict[str, str]:
    """Return the sha256 of the ids that each tokenizer gives ``strings``."""
    hashes, texts = {}, list(strings())
    for name, tokenizer in tokenizers_of(folder).items():
        ids = [np.asarray(row, np.int64) for row in tokenizer.encode_batch(texts)]
        lengths = np.array([len(row) for row in ids])
        hashes[f"ids {name}"] = hashlib.sha256(lengths.tobytes() + np.concatenate(ids).tobytes()).hexdigest()
    return hashes


def exports(folder: Path) -> dict[str, str]:
    """Return the sha256 of the tensors of a model of each exported class of each family.

    ``tests/interchange/test_families.py`` compares them.
    """
    hashes = {}
    for encoder, ending in exported.CLASSES:
        config, head = exported.config_of(encoder), exported.head_of(encoder, ending)
        output = folder / f"{encoder}{ending}"
        export_model(
            TrainedModel("", exported.params_of(config, head), config, exported.TOKENIZER, head), output, "card"
        )
        hashes[f"export {encoder} {ending}"] = arrays(load_file(output / "model.safetensors"))
    return hashes


def finetuning_curve(folder: Path) -> list[float]:
    """Return the losses and scores of the evaluations of a fine-tuning."""
    toy_tasks.write_toy(folder, "classification")
    assert toy_tasks.finetune(folder) == 0
    names = ("loss", "accuracy")
    return [value for e in toy_tasks.evaluations(folder) for key, value in sorted(e.items()) if key.endswith(names)]


def found(folder: Path) -> dict[str, Any]:
    curves = {f"curve {objective} {packing}": curve(folder, objective, packing) for objective, packing in CURVES}
    hashes = rows_and_trees(folder) | curves | {"curve finetune": finetuning_curve(new(folder / "finetune"))}
    for name in VARIANTS:
        hashes |= pretraining_rows(folder, name)
    return hashes | task_rows() | token_ids(new(folder / "tokens")) | exports(new(folder / "exports"))


def new(folder: Path) -> Path:
    """Return ``folder``, made."""
    folder.mkdir()
    return folder


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary, toy.one_device():
        FILE.write_text(json.dumps(found(Path(temporary)), indent=1) + "\n")
