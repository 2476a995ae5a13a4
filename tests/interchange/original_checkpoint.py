"""A tiny checkpoint as google-research/bert saves one, and how TensorFlow writes it.

``python -m tests.interchange.original_checkpoint`` writes ``tests/interchange/original`` anew. It needs TensorFlow;
reading it, which is what is tested, does not.
"""

from __future__ import annotations

import json
import zlib
from pathlib import Path

import numpy as np

from bert_jax.records import SPECIAL_TOKENS

FOLDER = Path(__file__).with_name("original")
D, F, V, P, LAYERS = 8, 16, 24, 12, 2
CONFIG = {
    "attention_probs_dropout_prob": 0.1,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "hidden_size": D,
    "initializer_range": 0.02,
    "intermediate_size": F,
    "max_position_embeddings": P,
    "num_attention_heads": 2,
    "num_hidden_layers": LAYERS,
    "type_vocab_size": 2,
    "vocab_size": V,
}


def dense(name: str, inputs: int, outputs: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}/kernel": (inputs, outputs), f"{name}/bias": (outputs,)}


def norm(name: str) -> dict[str, tuple[int, ...]]:
    return {f"{name}/LayerNorm/gamma": (D,), f"{name}/LayerNorm/beta": (D,)}


def encoder() -> dict[str, tuple[int, ...]]:
    """Names and shapes as modeling.py makes them."""
    shapes: dict[str, tuple[int, ...]] = {
        "bert/embeddings/word_embeddings": (V, D),
        "bert/embeddings/token_type_embeddings": (2, D),
        "bert/embeddings/position_embeddings": (P, D),
        **norm("bert/embeddings"),
        **dense("bert/pooler/dense", D, D),
    }
    for i in range(LAYERS):
        layer = f"bert/encoder/layer_{i}"
        for kind in ("query", "key", "value"):
            shapes |= dense(f"{layer}/attention/self/{kind}", D, D)
        shapes |= dense(f"{layer}/attention/output/dense", D, D) | norm(f"{layer}/attention/output")
        shapes |= dense(f"{layer}/intermediate/dense", D, F) | dense(f"{layer}/output/dense", F, D)
        shapes |= norm(f"{layer}/output")
    return shapes


HEADS: dict[str, dict[str, tuple[int, ...]]] = {
    "pretraining": {  # run_pretraining.py
        **dense("cls/predictions/transform/dense", D, D),
        **norm("cls/predictions/transform"),
        "cls/predictions/output_bias": (V,),
        "cls/seq_relationship/output_weights": (2, D),
        "cls/seq_relationship/output_bias": (2,),
    },
    "classification": {"output_weights": (3, D), "output_bias": (3,)},  # run_classifier.py
    "span_qa": {"cls/squad/output_weights": (2, D), "cls/squad/output_bias": (2,)},  # run_squad.py
}


def value(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """N(0, 0.2), and 1 more for a gain, from the name alone."""
    drawn = np.random.default_rng(zlib.crc32(name.encode())).normal(0.0, 0.2, shape)
    return (drawn + name.endswith("gamma")).astype(np.float32)


def values(head: str) -> dict[str, np.ndarray]:
    """What the model has: the optimizer's variables are not among it."""
    return {name: value(name, shape) for name, shape in (encoder() | HEADS[head]).items()}


def write(folder: Path, head: str = "pretraining", name: str = "bert_model.ckpt") -> None:
    """The checkpoint with Adam's moments, its config and vocabulary. Needs TensorFlow."""
    import tensorflow as tf

    folder.mkdir(parents=True, exist_ok=True)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        for variable, array in values(head).items():
            tf.compat.v1.get_variable(variable, initializer=array)
        for moment in ("adam_m", "adam_v"):
            shape = (D,)
            tf.compat.v1.get_variable(f"bert/pooler/dense/bias/{moment}", initializer=value(moment, shape))
        tf.compat.v1.get_variable("global_step", initializer=np.int64(7))
        session.run(tf.compat.v1.global_variables_initializer())
        tf.compat.v1.train.Saver().save(session, str(folder / name), write_meta_graph=False)
    (folder / "checkpoint").unlink()
    (folder / "bert_config.json").write_text(json.dumps(CONFIG, indent=2) + "\n")
    pieces = (*SPECIAL_TOKENS, *(chr(97 + i) for i in range(V - len(SPECIAL_TOKENS))))
    (folder / "vocab.txt").write_text("\n".join(pieces) + "\n")


if __name__ == "__main__":
    write(FOLDER)
