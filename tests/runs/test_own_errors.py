"""An error in a user's own file is one line that names the file, before anything slow where that is possible."""

from pathlib import Path

import numpy as np
import pytest

from bert_jax.cli.main import run
from bert_jax.parts import catalogue
from bert_jax.rows.masking import MaskingConfig
from tests.parts.test_own_code import write_folder
from tests.parts.texts import BLOCKS, LAST_UNITS, OTHER

pytestmark = pytest.mark.usefixtures("fresh")
STRATEGY = """
import dataclasses
from bert_jax.rows.interfaces import Selected

@dataclasses.dataclass(frozen=True)
class Config:
    pass

def select(candidates, starts, counts, keys, options):
    return Selected({})
"""
OBJECTIVE = """
from flax import linen as nn
from bert_jax.models.heads import Head
from bert_jax.models.model import LM_HEAD, Part
from bert_jax.models.primitives import with_axes
from bert_jax.objectives.base import MLM, Config, PretrainingObjective, Term, prediction

class Square(Head):
    @nn.compact
    def __call__(self, outputs, batch, rng):
        size, zeros = self.config.hidden_size, nn.initializers.zeros
        return {{"x_logits": outputs["sequence"] @ self.param("x", with_axes(zeros, "embed", {axis}), (size, size))}}

class Objective(PretrainingObjective):
    arrangement, parts, derived = "sentences", (LM_HEAD, Part.of("square", Square)), ({derived})

    def terms(self, config):
        return {{"mlm": MLM, "x": {term}("{logits}", "{labels}", "masked_weights")}}

    def inputs(self, batch):
        return {{**batch, "y_labels": batch["masked_labels"]}}
"""
RULE = """
import dataclasses, jax, optax
import jax.numpy as jnp
from bert_jax.training.optimizers import base
@dataclasses.dataclass(frozen=True)
class Optimizer(base.Rule):
    def make(self):
        {}
"""
SCHEDULE = """
import dataclasses
import jax.numpy as jnp
from bert_jax.training.schedules import base
@dataclasses.dataclass(frozen=True)
class Schedule(base.Warmup):
    def after_warmup(self, step, num_train_steps):
"""
MASKS, WORDS = "objective.masking.strategy", "objective.name"


FUNCTION = """
def mine(outputs, batch):
    {line}
"""


def objective(
    axis: str = "None",
    derived: str = "'y_labels',",
    logits: str = "mlm_logits",
    labels: str = "masked_labels",
    term: str = "prediction",
) -> str:
    return OBJECTIVE.format(axis=axis, derived=derived, logits=logits, labels=labels, term=term)


def with_loss(line: str) -> str:
    """Return an objective whose term "x" has a function of one line as its loss."""
    own = objective().replace('prediction("mlm_logits", "masked_labels", "masked_weights")', "Term(mine)")
    return own.replace("\nclass Square", f"{FUNCTION.format(line=line)}\n\nclass Square", 1) + (
        "\nimport jax.numpy as jnp\nfrom bert_jax.records import Sum\n"
    )


EARLY = {
    "signature": (
        MASKS,
        STRATEGY.format("candidates").replace("keys, options", "keys"),
        "error: {file}: select is called as select(candidates, starts, counts, keys, options); it says: select()",
    ),
    "signature with tokens": (
        MASKS,
        STRATEGY.format("candidates").replace("keys, options", "keys, tokens"),
        "error: {file}: select is called as select(candidates, starts, counts, keys, options, tokens); it says: ",
    ),
    "tokens that are written to": (
        MASKS,
        STRATEGY.format("tokens.ids.fill(0)").replace("keys, options", "keys, options, tokens"),
        "error: {file}:10, in a file of your own: ValueError: assignment destination is read-only",
    ),
    "inside": (MASKS, STRATEGY.format("1 / 0"), "error: {file}:10, in a file of your own: ZeroDivisionError"),
    "too many": (
        MASKS,
        STRATEGY.format("candidates"),
        "error: {file}: select returned 126 positions of a row, and counts allows 16",
    ),
    "nothing": (
        MASKS,
        STRATEGY.format("candidates & False"),
        "error: {file}: select selects no position in 32 rows; counts says how many are wanted in each",
    ),
    "other draws": (
        MASKS,
        "import numpy as np\n"
        + STRATEGY.format("candidates & (np.arange(128) == np.random.default_rng().integers(1, 60))"),
        "error: {file}: select selects other positions when it is called again; draw with keys alone",
    ),
    "feature that is not named": (
        WORDS,
        objective(derived=""),
        "error: {file}: inputs adds y_labels, and derived does not name it; name it there",
    ),
    "special tokens": (
        MASKS,
        STRATEGY.format("~candidates"),
        "error: {file}: select returned a special token or padding",
    ),
    "no Selected": (
        MASKS,
        STRATEGY.replace("Selected({})", "candidates"),
        "error: {file}: select returned no Selected",
    ),
    "logits": (
        WORDS,
        objective(logits="y_logits"),
        "error: {file}:18: the term 'x' reads 'y_logits', which no head returns and no batch has; did you mean ",
    ),
    "term of names": (
        WORDS,
        objective(term="Term"),
        "error: the loss of the term 'x' of {file} is 'mlm_logits'; a function",
    ),
    "outputs that no head gives": (
        WORDS,
        with_loss('return Sum(jnp.sum(outputs["y_logits"]), jnp.sum(batch["masked_weights"]))'),
        "error: {file}:9: the term 'x' reads 'y_logits', which no head returns and no batch has; did you mean ",
    ),
    "features that no rows have": (
        WORDS,
        with_loss('return Sum(jnp.sum(outputs["x_logits"]), jnp.sum(batch["tone_weights"]))'),
        "error: {file}:9: the term 'x' reads 'tone_weights', which no head returns and no batch has; did you mean ",
    ),
    "count of outputs": (
        WORDS,
        with_loss('return Sum(jnp.sum(outputs["x_logits"]), jnp.sum(outputs["x_logits"] > 0.0).astype(jnp.float32))'),
        "error: {file}:22: the count of the loss term 'x' depends on what the model computes, and has to follow from ",
    ),
    "mean": (
        WORDS,
        with_loss('return Sum(jnp.mean(outputs["x_logits"]), jnp.sum(batch["masked_weights"]))'),
        "error: {file}:22: the term 'x' is no sum over rows (tried on random ones): return the sum",
    ),
    "no Sum": (
        WORDS,
        with_loss('return jnp.mean(outputs["x_logits"])'),
        "error: {file}:22: the term 'x' returns no Sum of two scalars",
    ),
    "error in a loss": (
        WORDS,
        with_loss('return Sum(jnp.sum(outputs["x_logits"] / 0), jnp.sum(1 / 0))'),
        "error: {file}:9, in a file of your own: ZeroDivisionError",
    ),
    "baseline of a function": (
        WORDS,
        with_loss('return Sum(jnp.sum(outputs["x_logits"]), jnp.sum(batch["masked_weights"]))').replace(
            "Term(mine)", "Term(mine, baseline='majority')"
        ),
        "error: the baseline of the term 'x' of {file} is 'majority', which counts the labels of a CrossEntropy",
    ),
    "derived": (
        WORDS,
        objective(derived="'x_labels', 'y_labels'", labels="x_labels"),
        "error: {file}: derived names x_labels, and inputs does not add it; inputs returns y_labels beside",
    ),
    "shapes": (
        WORDS,
        objective(logits="x_logits", labels="row_weights"),
        "error: {file}:18: the term 'x' cannot be computed: ",
    ),
    "head without a call": (
        WORDS,
        objective(logits="x_logits").replace("def __call__", "def __cal__"),
        "error: the head Square has no method __call__",
    ),
    "axes": (
        WORDS,
        objective(axis="'embed'"),
        "error: {file}:12, in a file of your own: ValueError: two axes of a parameter have the name 'embed'",
    ),
    **{
        name: (WORDS, text, "error: {file} does not keep the contract of an objective (")
        for name, text in {
            "no base class": "from bert_jax.objectives.base import Config\n\nclass Objective:\n    pass\n",
            "list of terms": objective()
            .replace('return {"mlm": MLM, "x": prediction', "return [MLM, prediction")
            .replace('"masked_weights")}', '"masked_weights")]'),
            "terms without config": objective().replace("terms(self, config)", "terms(self)"),
            "parts that are a number": objective().replace('(LM_HEAD, Part.of("square", Square))', "5"),
            "inputs of nothing": objective().replace("return {**batch", "{**batch"),
        }.items()
    },
    "no terms": (
        WORDS,
        objective().replace('return {"mlm"', 'return {} or {} and {"mlm"'),
        "error: {file}: terms returns no term",
    ),
    "source without methods": (
        "corpus.source",
        "import dataclasses\n\n@dataclasses.dataclass(frozen=True)\nclass Source:\n    paths: tuple[str, ...] = ()\n"
        "    document_boundary: str = ''\n    format: str = ''\n",
        "error: {file}: its Source has no method pieces, read, fingerprint, describe; a source has ",
    ),
    "source": (
        "corpus.source",
        "class Source:\n    def __init__(self, paths=()):\n        pass\n",
        "error: {file}: Source is no dataclass; write @dataclasses.dataclass(frozen=True) above it",
    ),
    **{
        f"optimizer {name}": ("optimizer.name", RULE.format(body), f"error: {error}")
        for name, body, error in (
            ("of no transformation", "return 1", "{file}: make returns int; an optax.GradientTransformation is needed"),
            (
                "with a state of text",
                "return optax.GradientTransformation(lambda p: 'x', lambda g, s, p: (g, s))",
                "{file}: the transformation cannot be used on the parameters, or its state is not of arrays alone (",
            ),
            (
                "whose state grows",
                "return optax.GradientTransformation(lambda p: jnp.ones(2), lambda g, s, p: (g, jnp.ones(3)))",
                "{file}: an update changes shape or dtype of the state (: float32[2] -> float32[3]), which",
            ),
            (
                "of other steps",
                "return optax.stateless(lambda g, p: jax.tree.map(jnp.sum, g))",
                "{file}: an update changes shape or dtype of the parameters (['",
            ),
            ("that fails", "return optax.scale(1 / 0)", "{file}:8, in a file of your own: ZeroDivisionError: "),
        )
    },
    "optimizer that needs whole matrices": (
        "optimizer.name",
        RULE.format("return optax.identity()\n\n    whole_matrices = True"),
        "error: config.optimizer.name is {file}, which needs whole matrices, and with config.mesh.weight_update "
        "'sharded' each of 8 devices has a part; give --config.mesh.weight_update=replicated",
    ),
    "optimizer without make": (
        "optimizer.name",
        RULE.replace("make", "made").format("pass"),
        "error: {file}: Optimizer is to be a bert_jax.training.optimizers.base.Rule with make of its own",
    ),
    "optimizer without a base": (
        "optimizer.name",
        RULE.replace("(base.Rule)", "").format("pass"),
        "error: {file}: Optimizer is to be a bert_jax.training.optimizers.base.Rule with make of its own",
    ),
    "optimizer of another name": (
        "optimizer.name",
        RULE.replace("class Optimizer", "class Rule").format("pass"),
        "error: {file} does not define Optimizer; a file for bert_jax.training.optimizers has Optimizer at its top",
    ),
    "unknown key of an optimizer": (
        "optimizer.b3=0.5",
        "",
        "error: unknown key config.optimizer.b3; did you mean 'b2'? valid: b1, b2, bias_correction, clip_norm, eps, ",
    ),
    "schedule of two rates": (
        "schedule.name",
        SCHEDULE + "        return step + jnp.zeros(2)\n",
        "error: config.schedule.name: the rate of a step is an array [2], not one number",
    ),
    "schedule that is no number": (
        "schedule.name",
        SCHEDULE + "        return jnp.log(2.0 - step)\n",
        "error: config.schedule.name: the rate of step 3 is nan",
    ),
    "schedule that does not fall": (
        "schedule.name",
        SCHEDULE.replace("after_warmup", "after") + "        return step\n",
        "error: {file}: Schedule is to be a bert_jax.training.schedules.base.Warmup with after_warmup of its own",
    ),
}


ENCODERS = {
    "Family": (
        BLOCKS.replace("+ spread", "- spread"),
        "error: the Family of {file} does not compute what the encoder does: read back, a BertForMaskedLM of random "
        "parameters has another",
    ),
    "Family without a base": (
        BLOCKS.replace("Family(family.Family)", "Family"),
        "error: the Family of {file} does not derive from one of bert_jax.interchange.families",
    ),
    "imported Config": (
        OTHER.replace(
            "class Config(bert.Config):\n    pass",
            "class X: pass\nfrom bert_jax.models.encoders.bert import Config",
        ),
        "error: {file} imports its Config, which is that of the encoder 'bert': derive",
    ),
}
EARLY |= {name: ("model.encoder", text, error) for name, (text, error) in ENCODERS.items()}


def command(folder: Path) -> list[str]:
    """Return the command of a tiny masked-LM run."""
    recipe = write_folder(folder / "one") / "own.py"
    recipe.write_text(recipe.read_text().replace("'./words.py'", "'mlm'").replace(", 'words_weight': 0.3", ""))
    return ["pretrain", f"--config={recipe}", f"--workdir={folder / 'run'}"]


@pytest.mark.parametrize("case", EARLY)
def test_what_breaks_a_contract_is_said_before_text_is_read(
    case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    key, text, error = EARLY[case]
    file = tmp_path / "mine.py"
    file.write_text(text)
    flag = f"--config.{key}" if "=" in key else f"--config.{key}={file}"
    exported = ["--config.export=True"] * (key == "model.encoder")  # only an export reads the Family
    assert run([*command(tmp_path), flag, *exported]) in (1, 2)
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(error.format(file=file))
    assert not (tmp_path / "run" / "vocab.txt").exists()


def test_a_place_that_repeats_in_an_arrangement(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "twice.py"
    file.write_text("""
import numpy as np
from bert_jax.rows.arrangements import sentences

class Arrangement(sentences.Arrangement):
    def plan(self, split, key, max_length, limits):
        for block in super().plan(split, key, max_length, limits):
            yield np.repeat(block, 2)
""")
    assert run([*command(tmp_path), f"--config.objective.arrangement={file}"]) == 2
    error = f"error: arrangement {file}: plan yields a sequence with a_start 0 after one with 0; every random draw is"
    assert error in capsys.readouterr().err.splitlines()[-1]


def test_a_label_below_zero(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``str.find`` gives such a label; PyTorch has -100 for what does not count."""
    file = tmp_path / "below.py"
    file.write_text(objective(labels="y_labels").replace('batch["masked_labels"]}', 'batch["masked_labels"] * 0 - 1}'))
    assert run([*command(tmp_path), f"--config.objective.name={file}"]) == 2
    error = f"error: {file}: y_labels of the term 'x' has the label -1; labels are 0 or more, and what does not count"
    assert capsys.readouterr().err.splitlines()[-1].startswith(error)


def test_the_strategy_of_the_page(tmp_path: Path) -> None:
    code = catalogue.OwnCode(str(tmp_path / "last_units.py"), LAST_UNITS.encode())
    catalogue.trust(code)
    select, options = MaskingConfig(strategy=code.name, unit="word", fates="span", options={"most": 4}).selection
    candidates, starts = np.ones((1, 8), bool), np.array([[1, 0, 1, 0, 0, 1, 0, 1]], bool)
    chosen, first = select(candidates, starts, np.array([5]), np.zeros(1, np.uint64), options)
    assert np.flatnonzero(chosen).tolist() == [5, 6, 7]
    assert first is not None
    assert first[0, 5:].tolist() == [5, 5, 7]


def test_the_line_and_with_the_variable_the_traceback(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write_folder(tmp_path / "one") / "words.py"
    signature = "    def terms(self, config):\n"
    before, after = file.read_text().split(signature)
    file.write_text(f"{before}{signature}        1 / 0\n{after}")
    line = before.count("\n") + 2
    command = ["pretrain", f"--config={file.parent / 'own.py'}", f"--workdir={tmp_path / 'run'}"]
    assert run(command) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"error: {file}:{line}, in a file of your own: ZeroDivisionError: ")
    assert said.count("\n") == 1
    monkeypatch.setenv("BERT_JAX_TRACEBACK", "1")
    assert run(command) == 1
    assert "Traceback" in capsys.readouterr().err
