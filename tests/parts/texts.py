"""The texts of short parts: the examples of bert_jax/objectives/README.md, and a file of every kind."""

from __future__ import annotations

import re
from pathlib import Path

import bert_jax

PAGE = (Path(bert_jax.__file__).parent / "objectives" / "README.md").read_text(encoding="utf-8")
CODES = re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


def lines_of(code: str) -> int:
    """Return the number of lines of ``code`` that are not empty."""
    return sum(bool(line.strip()) for line in code.splitlines())


def of_page(pattern: str, most_lines: int) -> str:
    """Return the program of the page that stands below ``pattern``; it has at most ``most_lines`` lines."""
    [code] = re.findall(rf"{pattern}[^`]*\n```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    assert lines_of(code) <= most_lines
    return str(code)


WORDS = CODES[0]  # the first objective
[WORDS_RECIPE] = [code for code in CODES if "def get_config" in code]
[TEACHER] = [code for code in CODES if "a teacher says" in code.partition("\n")[0]]
[PAIRS] = [code for code in CODES if "class Evaluator" in code]
RARE_PIECES, LAST_UNITS = of_page("`rare_pieces.py`[^`]*`token`", 25), of_page("`last_units.py`", 25)
RULES = {"optimizers": of_page("`two_rules.py`", 25), "schedules": of_page("`root.py`", 25)}
NEAR, BLOCKS = of_page("`near.py`", 40), of_page("`blocks.py`", 40)
assert max(map(lines_of, (TEACHER, PAIRS))) <= 40
assert lines_of(WORDS) <= 30
# AdamW as it is put together from optax, to be compared with the package's AdamW.
ADAM = """
import dataclasses
import optax
from bert_jax.training.optimizers import base

@dataclasses.dataclass(frozen=True)
class Optimizer(base.Rule):
    def make(self):
        decay = optax.add_decayed_weights(0.01, mask=base.decay_mask)
        return optax.chain(optax.clip_by_global_norm(1.0), optax.scale_by_adam(eps=1e-6), decay)
"""
AHEAD = '''
"""Left to right, and each position says the token after the next one too."""

import jax.numpy as jnp

from bert_jax.models.heads import LmHead
from bert_jax.models.model import LM_HEAD, Part
from bert_jax.objectives import base, ltr
from bert_jax.objectives.base import Config  # no keys of its own


class AheadHead(LmHead):
    logits: str = "ahead_logits"


class Objective(ltr.Objective):
    parts = (LM_HEAD, Part.of("ahead_head", AheadHead))
    derived = (*ltr.Objective.derived, "ahead_labels", "ahead_weights")

    def terms(self, config):
        return {**super().terms(config), "ahead": base.prediction("ahead_logits", "ahead_labels", "ahead_weights")}

    def inputs(self, batch):
        batch = super().inputs(batch)
        labels, weights = (
            jnp.pad(batch[f"next_token_{name}"][:, 1:], ((0, 0), (0, 1))) for name in ("labels", "weights")
        )
        return {**batch, "ahead_labels": labels, "ahead_weights": weights * batch["next_token_weights"]}
'''
# Another class of transformers, with names of its own for the same tensors.
OTHER = """
import dataclasses

from bert_jax.interchange.families import bert as families_bert
from bert_jax.models.encoders import bert
from bert_jax.models.encoders.bert import SIZES, LmHead, Pooler


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(bert.Config):
    pass


class Encoder(bert.Encoder):
    pass


class Family(families_bert.Family):
    name, title, model_type, prefix = "Own", "own", "own", "own."
"""
# File of the package -> its text. The encoder, the optimizer and the schedule are those of the page.
PARTS = {
    "models/encoders/blocks.py": BLOCKS,
    "models/kernels/masked.py": '''
        """Attention without dropout from a mask, on any device."""
        import jax

        WORTHWHILE = None

        def obstacle(case):
            return "has no dropout" if case.rate else None

        def attend(factors, ids, dropout_keys, case):
            print("masked:", case.platform, case.length)
            seen = (ids[0][:, :, None] == ids[1][:, None]) & (ids[1][:, None] > 0)
            return jax.nn.dot_product_attention(*factors, mask=seen[:, None])
    ''',
    "training/optimizers/two_rules.py": RULES["optimizers"],
    "training/schedules/root.py": RULES["schedules"],
    "rows/strategies/every_other.py": '''
        """Every second candidate, as long as there are some to take."""
        import dataclasses
        import numpy as np
        from bert_jax.rows.interfaces import Selected

        @dataclasses.dataclass(frozen=True)
        class Config:
            first: int = 0

        def select(candidates, starts, counts, keys, options):
            place = np.cumsum(candidates, axis=1) - 1
            chosen = candidates & (place % 2 == options.first)
            return Selected(chosen & (np.cumsum(chosen, axis=1) <= counts[:, None]))
    ''',
    "rows/arrangements/single_sentences.py": '''
        """One sentence a sequence: [CLS] sentence [SEP]."""
        import dataclasses
        import numpy as np
        from bert_jax.rows.arrangements import sentences

        @dataclasses.dataclass(frozen=True)
        class Arrangement(sentences.Arrangement):
            def plan(self, split, key, max_length, limits):
                offsets = np.asarray(split.sentence_offsets)
                records = np.zeros(len(offsets) - 1, self.record)
                records["a_start"], records["sentence"] = offsets[:-1], np.arange(len(records))
                records["length"] = np.minimum(np.diff(offsets), max_length - self.special_tokens)
                yield records
    ''',
    "objectives/mlm_length.py": '''
        """Masked language modelling, and whether a sequence fills more than half of its row."""
        import jax.numpy as jnp
        from bert_jax.models.heads import Classifier
        from bert_jax.models.model import LM_HEAD, POOLER, Part
        from bert_jax.objectives import base

        Config = base.Config

        class Objective(base.PretrainingObjective):
            parts = (POOLER, LM_HEAD, Part.of("length_head", Classifier, num_outputs=2, logits="length_logits"))
            arrangement = "sentences"
            titles = {"length_accuracy": "Long or short"}
            derived = ("cls_positions", "length_labels", "length_weights")

            def terms(self, config):
                length = base.prediction("length_logits", "length_labels", "length_weights", 0.5, baseline="none")
                return {"mlm": base.MLM, "length": length}

            def inputs(self, batch):
                mask, weights = batch["attention_mask"], batch["row_weights"][:, None]
                labels = (jnp.mean(mask, axis=1, keepdims=True) > 0.5).astype(jnp.int32)
                places = jnp.zeros_like(labels)
                return {**batch, "cls_positions": places, "length_labels": labels, "length_weights": weights}
    ''',
    "models/encoders/bag.py": '''
        """Each token beside the mean of its row: an encoder without attention."""
        import dataclasses
        import jax.numpy as jnp
        from flax import linen as nn
        from bert_jax.models.config import ModelConfig
        from bert_jax.models.encoding import Encoding
        from bert_jax.models.heads import LmHead, Pooler
        from bert_jax.models.primitives import Dense, LayerNorm, normal, with_axes

        SIZES = {}

        @dataclasses.dataclass(frozen=True)
        class Config(ModelConfig):
            """No fields of its own."""

        class Encoder(nn.Module):
            config: Config
            reads = frozenset()

            @nn.compact
            def __call__(self, batch, rng=None, hidden_states="last"):
                c, mask = self.config, batch["attention_mask"][..., None]
                shape = (c.vocab_size, c.hidden_size)
                table = self.param("word_embeddings", with_axes(normal(c), "vocab", "embed"), shape, c.param_dtype)
                x = jnp.take(table, batch["input_ids"], axis=0)
                mean = jnp.sum(x * mask, axis=1, keepdims=True) / jnp.sum(mask, axis=1, keepdims=True)
                x = Dense(c, (("embed", c.hidden_size),), ((None, c.hidden_size),), name="mix")(x + mean)
                x = LayerNorm(c, name="layer_norm")(x)
                return Encoding(x, table, x[None] if hidden_states == "all" else None)
    ''',
    "corpora/stories.py": '''
        """A file of text, a sentence a line and a document a paragraph."""
        import dataclasses
        import hashlib
        from pathlib import Path
        from bert_jax.corpora.source import Piece
        from bert_jax.records import Document

        @dataclasses.dataclass(frozen=True)
        class Source:
            path: str

            def pieces(self):
                return [Piece(self.path)]

            def read(self, piece):
                for number, text in enumerate(Path(piece.name).read_text().split("\\n\\n")):
                    yield Document(f"story {number}", tuple(text.split("\\n")))

            def fingerprint(self):
                return hashlib.sha256(Path(self.path).read_bytes()).hexdigest()

            def describe(self):
                return {"kind": "stories"}
    ''',
    "corpora/annotators/thes.py": '''
        """Marks each "the" with the word after it as a unit."""
        import dataclasses
        import re
        from bert_jax.corpora.columns import unit_values

        @dataclasses.dataclass(frozen=True)
        class Annotator:
            dtype = "uint8"

            def identity(self):
                return {"version": 1}

            def annotate(self, sentences, spans):
                found = ([m.span() for m in re.finditer(r"the \\w+", text)] for text in sentences)
                return [unit_values(units, places) for units, places in zip(found, spans, strict=True)]
    ''',
    "examples/arrows.py": '''
        """Lines such as ``the cat sees -> 1``."""
        import dataclasses
        from pathlib import Path
        from bert_jax.examples.reading import DataRecord

        @dataclasses.dataclass(frozen=True)
        class Reader:
            named_splits = False

            def read(self, path):
                for number, line in enumerate(Path(path).read_text().splitlines()):
                    text, label = line.split(" -> ")
                    yield DataRecord({"text": text, "label": label}, f"{path}:{number + 1}")
    ''',
    "tasks/sure.py": '''
        """Classification that also says how sure it is."""
        import dataclasses
        import numpy as np
        from scipy import special
        from bert_jax.tasks import classification
        from bert_jax.tasks.classification import Config
        from bert_jax.tasks.findings import Judge

        Config = dataclasses.make_dataclass("Config", [], bases=(Config,), frozen=True)

        class Task(classification.Task):
            titles = {"sureness": "How sure it is, %"}
            judge = Judge("riddles", lambda record: (1.0, 0.0), lambda example, record: {"asked": example["text"]})

            def finish(self, part, outputs):
                sure = special.softmax(outputs["logits"], axis=-1).max(axis=-1).mean()
                return super().finish(part, outputs) | {"sureness": 100 * float(sure)}

            def predictions(self, split, outputs):
                return [record | {"asked": "yes"} for record in super().predictions(split, outputs)]
    ''',
    "runs/evaluations/spread.py": '''
        """The largest parameter."""
        import jax
        from bert_jax.runs.evaluations import base

        Config = base.Config

        class Evaluator(base.TrainingEvaluator):
            titles = {"largest": "Largest parameter"}

            def score(self, model, params, tokenizer):
                return {"largest": max(float(abs(leaf).max()) for leaf in jax.tree.leaves(params))}
    ''',
    "reporting/loggers/lines.py": '''
        """A line of text for each record."""
        from pathlib import Path

        class Logger:
            def start(self, run):
                self.path = Path(run.workdir) / "lines.txt"

            def log(self, step, split, time, metrics):
                with self.path.open("a") as file:
                    file.write(f"{step} {split} {sorted(metrics)}\\n")

            def cut_back(self, records):
                pass

            def close(self):
                pass
    ''',
}
