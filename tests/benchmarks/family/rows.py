"""The systems of the family as data: name -> the changes of one recipe, so that size, text and tokens are equal."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from typing import Any

from bert_jax.configuration import complete

STEPS, BATCH, LENGTH = 1_200, 32, 64  # 2.46 M positions
THIRD = STEPS // 3
SHAPE = {
    "hidden_size": 128,
    "num_layers": 2,
    "num_heads": 2,
    "mlp_dim": 512,
    "max_length": 128,
    "dropout_rate": 0.0,
    "attention_dropout_rate": 0.0,
    "initializer_range": 0.08,
}
PHASE = {"batch_size": BATCH, "max_length": LENGTH}
COMMON: dict[str, Any] = {
    "vocab": {"path": "", "size": 2_048, "lowercase": False},
    "corpus": {"path": "", "source": "text_files", "options": {"paths": ()}, "heldout_fraction": 0.12},
    "objective": {"packing": "packed"},
    "phases": {"pretraining": {"num_steps": STEPS, **PHASE}},
    "optimizer": {"name": "muon"},
    "schedule": {"name": "linear", "peak_learning_rate": 6e-3, "warmup_fraction": 0.1},
    "selection": {"metric": ""},
    "training": {"log_every_steps": 100, "eval_every_steps": 1_000_000, "eval_rows": 512, "loggers": ()},
    "checkpoints": {"every_steps": 400, "keep": 1},
    "loader": {"num_workers": 0},
    "export": False,
    "examples": (),
}
PHRASES = {"phrases": {"annotator": "lexicon", "path": "phrases.txt"}}
ENTITIES = {"entities": {"annotator": "lexicon", "path": "entities.txt"}}


@dataclasses.dataclass(frozen=True)
class Row:
    """A system of the table.

    Attributes:
      changes: entries of the recipe that differ from ``COMMON`` and, of the model, from ``SHAPE``; None: the
        encoder has no such key.
      reads: what a token is predicted from; "": as the objective's ``reads`` says.
      sequential: whether the states of a text are computed one after another, not all at once.
      used: how the published system is used: "fine-tuned" or "features".
    """

    title: str
    changes: Mapping[str, Any]
    reads: str = ""
    sequential: bool = False
    used: str = "fine-tuned"

    @property
    def config(self) -> dict[str, Any]:
        common = {**copy.deepcopy(COMMON), "model": {"encoder": "bert", **SHAPE}}
        if "phases" in self.changes:
            del common["phases"]
        found = complete(self.changes, common)
        return {**found, "model": {key: value for key, value in found["model"].items() if value is not None}}


PHRASE_UNITS = {"strategy": "bernoulli", "unit": "phrases"}
LTR = {"name": "ltr", "arrangement": "sentences"}
MEMORY = {"memory_length": LENGTH}
DIRECTIONS = {"both sides": 2, "sequence to sequence": 2, "left to right": 1, "right to left": 1}
MEMBERS = {
    direction.replace(" ", "_"): {
        "name": "unilm",
        "direction": direction,
        "share": share,
        **({} if direction == "both sides" else {"arrangement_options": {"random_share": 0.0}}),
    }
    for direction, share in DIRECTIONS.items()
}
NGRAMS = {"strategy": "ngrams_in_context", "options": {"longest": 5, "context": 6}, "rate": 1 / 6, "unit": "word"}
CONTROL = "none"  # the row that is fine-tuned from random parameters
NO_ATTENTION = dict.fromkeys(("num_heads", "mlp_dim", "attention_dropout_rate"))
ENTITY_SIZE = 32  # width of the vectors of entities
# ERNIE 2.0: steps of each task in each stage, in the published proportions. Capitals need a vocabulary without case.
STAGES = {
    "masking": ({"name": "mlm", "arrangement": "sentences", "masking": PHRASE_UNITS}, (20, 10, 10, 10)),
    "token_document": ({"name": "token_document"}, (0, 30, 10, 10)),
    "distance": ({"name": "sentence_distance"}, (0, 0, 40, 10)),
    "reordering": ({"name": "sentence_reordering"}, (0, 0, 0, 50)),
}


def stages() -> dict[str, Any]:
    """Return the phases of ERNIE 2.0: each batch of a stage is of one task, in proportion to the tasks' steps."""
    found = {}
    for number, column in enumerate(zip(*(steps for _, steps in STAGES.values()), strict=True), start=1):
        shares = {name: share for name, share in zip(STAGES, column, strict=True) if share}
        members = {name: {**STAGES[name][0], "share": share} for name, share in shares.items()}
        objective = {"members": members} if len(members) > 1 else STAGES["masking"][0]
        steps = STEPS * sum(column) // sum(map(sum, (steps for _, steps in STAGES.values())))
        found[f"stage{number}"] = {"num_steps": steps, **PHASE, "objective": objective}
    return found


ROWS = {
    CONTROL: Row("BERT, not pretrained", {"objective": {"name": "mlm_nsp"}}),
    "bert": Row("BERT", {"objective": {"name": "mlm_nsp"}}),
    "ltr": Row("left to right", {"objective": LTR}),
    "gpt": Row("GPT", {"objective": LTR, "model": {"encoder": "gpt", "activation": "gelu_tanh"}}),
    "elmo": Row(
        "ELMo",
        {
            "objective": {"name": "bilm", "arrangement": "streams", "packing": "none"},
            "model": {"encoder": "bilm", "cell_size": 168, "memory_length": 1, **NO_ATTENTION},
        },
        sequential=True,
        used="features",
    ),
    "unilm": Row(
        "UniLM",
        {
            "objective": {
                "masking": {"strategy": "ngrams", "options": {"longest": 3, "shares": (0.8, 0.1, 0.1)}},
                "members": MEMBERS,
            },
            "model": {"type_vocab_size": 6},
        },
        "both sides; left; right; a source and left",
    ),
    "mass": Row(
        "MASS",
        {
            "objective": {
                "name": "mass",
                "arrangement": "sentences",
                "packing": "none",
                "masking": {"strategy": "fragment", "rate": 0.5},
            },
            "model": {"encoder": "seq2seq", "num_decoder_layers": 2},
        },
        "a text with a gap, and left in the gap",
    ),
    "xlnet": Row(
        "XLNet",
        {
            "vocab": {"cls_last": True},
            "objective": {
                "name": "permuted",
                "packing": "none",
                "perm_size": LENGTH // 2,
                "arrangement": "stream_pairs",
                "arrangement_options": {"reuse_length": LENGTH // 2},
                "masking": NGRAMS,
            },
            "model": {"encoder": "xlnet", "memory_length": 3 * LENGTH // 4, "reuse_length": LENGTH // 2},
        },
        "both sides, in a random order, and a memory",
    ),
    "transformer_xl": Row(
        "Transformer-XL",
        {
            "objective": {"name": "ltr", "arrangement": "streams", "packing": "none"},
            "model": {"encoder": "transformer_xl", "memory_length": LENGTH, "activation": "relu"},
        },
        "what came before, and a memory",
    ),
    "ernie1": Row(
        "ERNIE 1.0",
        {
            "corpus": {"columns": {**PHRASES, **ENTITIES}},
            "objective": {"name": "mlm_nsp", "masking": {"strategy": "bernoulli"}},
            "model": {"encoder": "ernie", "activation": "relu"},
            "phases": {
                "pieces": {"num_steps": THIRD, **PHASE},
                "phrases": {"num_steps": THIRD, **PHASE, "masking": {"unit": "phrases"}},
                "entities": {"num_steps": THIRD, **PHASE, "masking": {"unit": "entities"}},
            },
            "training": {"eval_phase": "pieces"},
        },
    ),
    "ernie2": Row(
        "ERNIE 2.0",
        {
            "corpus": {"columns": PHRASES},
            "objective": {"name": "mlm"},
            "model": {"encoder": "ernie", "type_vocab_size": 4, "task_type_vocab_size": 16},
            "phases": stages(),
        },
    ),
    "ernie_thu": Row(
        "ERNIE (THU)",
        {
            "corpus": {"columns": {"entity_ids": {"annotator": "entities", "path": "entities.tsv"}}},
            "objective": {"name": "entity_alignment", "entities": "vectors.npy"},
            "model": {"encoder": "ernie_thu", "num_token_layers": 1, "entity_size": ENTITY_SIZE},
        },
        "both sides, and vectors of entities",
    ),
    "electra": Row(
        "ELECTRA",
        {
            "objective": {"name": "replaced_tokens", "masking": {"mask_share": 0.85, "random_share": 0.0}},
            "model": {"encoder": "electra", "embedding_size": 128},
        },
        "both sides, the token itself too",
    ),
    "modernbert": Row(
        "ModernBERT",
        {
            "objective": {"name": "mlm", "arrangement": "sentences", "masking": {"rate": 0.3}},
            "model": {
                "encoder": "modernbert",
                "mlp_dim": 344,
                "global_theta": 10_000.0,
                "attention_output_dropout_rate": 0.0,
            },
            "training": {"eval_masking": {"rate": 0.15}},
        },
    ),
}
