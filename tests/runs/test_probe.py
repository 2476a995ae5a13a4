"""A probe during pretraining: it says what the encoder is worth, and leaves the run as it is."""

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from bert_jax.checkpoints.saving import CheckpointConfig
from bert_jax.errors import UserError
from bert_jax.models.config import ModelConfig
from bert_jax.models.encoders import bert
from bert_jax.models.model import fresh_params
from bert_jax.models.transformer import stack_layers
from bert_jax.records import SPECIAL_TOKENS
from bert_jax.reporting.observer import Observer
from bert_jax.rows.loader import LoaderConfig
from bert_jax.rows.phases import Phase, Phases
from bert_jax.runs.evaluations.base import Evaluations, read
from bert_jax.runs.evaluations.probe import PENALTY, Evaluator, _learn_head
from bert_jax.text.tokenizer import Tokenizer, wordpiece
from bert_jax.training.experiment import Experiment, TrainingConfig
from bert_jax.training.mesh import MeshConfig
from bert_jax.training.optimizers import adamw
from bert_jax.training.schedules import linear
from tests import toy
from tests.runs.commands import pretrain
from tests.training import gang

LETTERS = "abcdefgh"
EXPERIMENT = Experiment(
    0,
    Phases((Phase(24, 8, 32, "phase1"),)),
    adamw.Optimizer(),
    linear.Schedule(1e-3, 0),
    MeshConfig(),
    TrainingConfig(eval_every_steps=8),
    CheckpointConfig(),
    LoaderConfig(),
)

pytestmark = pytest.mark.usefixtures("one_device")


def write(folder: Path, name: str, count: int, seed: int) -> None:
    """Labelled texts: "left" where there is an a, "right" where there is a b; the rest is noise."""
    rng = np.random.default_rng(seed)
    rows = []
    for _ in range(count):
        side = int(rng.integers(2))
        words = [*rng.choice(list("cdefgh"), size=4), "ab"[side]]
        rows.append(f"{' '.join(rng.permutation(words))}\t{('left', 'right')[side]}\t{side}")
    (folder / name).write_text("\n".join(["text\tlabel\tnumber", *rows]) + "\n")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write(folder, "train.tsv", 120, 0)
    write(folder, "dev.tsv", 60, 1)
    return folder


def settings(folder: Path, **changes: Any) -> dict[str, Any]:
    return {
        "name": "probe",
        "task": "classification",
        "folder": str(folder),
        "batch_size": 64,
        "data": {"format": "delimited", "splits": {"train": "train.tsv", "dev": "dev.tsv"}},
        **changes,
    }


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return wordpiece([*SPECIAL_TOKENS, *LETTERS])


@pytest.fixture(scope="module")
def model(tokenizer: Tokenizer) -> tuple[ModelConfig, Any]:
    config = bert.Config(tokenizer.size, 16, 1, 2, 32, max_length=32, dropout_rate=0.0, attention_dropout_rate=0.0)
    return config, jax.device_get(fresh_params(config))


def begun(folder: Path, **changes: Any) -> dict[str, Evaluator]:
    return read({"probe": settings(folder, **changes)}, lambda line: None)  # type: ignore[return-value]


def score(folder: Path, tokenizer: Tokenizer, model: ModelConfig, params: Any, **changes: Any) -> dict[str, float]:
    probe = Evaluations(begun(folder, **changes), tokenizer, model, EXPERIMENT)
    return probe(0, params, {}, lambda: None)


@pytest.mark.parametrize("changes", [{}, {"layers": "scanned"}], ids=["unrolled", "scanned"])
def test_a_frozen_probe_tells_a_sound_encoder_from_a_broken_one(
    changes: dict[str, Any], data: Path, tokenizer: Tokenizer, model: tuple[ModelConfig, Any]
) -> None:
    config = bert.Config(tokenizer.size, 16, 1, 2, 32, max_length=32, **changes)
    params = stack_layers(model[1]) if changes else model[1]
    sound = score(data, tokenizer, config, params)
    broken = score(data, tokenizer, config, jax.tree.map(np.zeros_like, params))
    assert sound.keys() == broken.keys() == {"probe/loss", "probe/accuracy"}
    assert sound["probe/accuracy"] > 0.95
    assert broken["probe/accuracy"] < 0.7
    assert broken["probe/loss"] == pytest.approx(np.log(2), abs=0.05)
    assert score(data, tokenizer, config, params) == sound, "the same again"


def test_features(data: Path, tokenizer: Tokenizer, model: tuple[ModelConfig, Any]) -> None:
    config, params = model
    found = [score(data, tokenizer, config, params, features=name)["probe/loss"] for name in ("mean", "cls", "pooled")]
    assert len(set(found)) == 3
    without = {name: tree for name, tree in params.items() if name != "pooler"}
    assert score(data, tokenizer, config, without)["probe/loss"] == pytest.approx(found[0], abs=1e-6)
    with pytest.raises(UserError, match="the model has no pooler; 'mean' and 'cls' go"):
        score(data, tokenizer, config, without, features="pooled")


def test_a_number_is_probed_too(data: Path, tokenizer: Tokenizer, model: tuple[ModelConfig, Any]) -> None:
    columns = {
        "format": "delimited",
        "splits": {"train": "train.tsv", "dev": "dev.tsv"},
        "columns": {"label": "number"},
    }
    found = score(data, tokenizer, *model, task="regression", data=columns)
    assert found["probe/pearson"] > 0.9


def test_the_head_is_where_its_loss_is_least(data: Path, tokenizer: Tokenizer, model: tuple[ModelConfig, Any]) -> None:
    """More steps give no other score than a solver that knows nothing of Adam: Newton's method in numpy."""
    probes = begun(data, num_steps=3000)
    Evaluations(probes, tokenizer, model[0], EXPERIMENT)
    task, config = probes["probe"].task, probes["probe"].config
    rng = np.random.default_rng(0)
    x, labels = rng.normal(size=(120, 3)), task.rows["train"].arrays["labels"]
    empty = {"kernel": np.zeros((3, 2), np.float32), "bias": np.zeros(2, np.float32)}
    head = _learn_head(task, empty, jax.numpy.asarray(x, np.float32), task.rows["train"].arrays, config)
    # Two classes: by symmetry the kernel is (-w/2, w/2), with a quarter of the penalty of w.
    w, ones = np.zeros(4), np.concatenate([x, np.ones((120, 1))], axis=1)
    penalty = PENALTY / 2 * np.diag([1, 1, 1, 0])
    for _ in range(20):
        p = 1 / (1 + np.exp(-ones @ w))
        hessian = (ones * (p * (1 - p))[:, None]).T @ ones / 120 + penalty
        w -= np.linalg.solve(hessian, ones.T @ (p - labels) / 120 + penalty @ w)
    np.testing.assert_allclose(head["kernel"][:, 1] - head["kernel"][:, 0], w[:3], atol=2e-3)


def recipe(text: Path, probe: dict[str, Any]) -> dict[str, Any]:
    return toy.recipe(text, export=False, examples=(), training={"evaluations": {"probe": probe} if probe else {}})


def test_a_run_is_the_same_with_a_probe_and_without(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where it is cut off between two of its evaluations and goes on."""
    text = toy.write_text(tmp_path / "text.txt")
    for name in ("plain", "probed"):
        (tmp_path / name).mkdir()
    assert pretrain(tmp_path / "plain", recipe(text, {})) == 0
    begun, during, train = list[str](), Observer.during, Observer.train

    def interrupted(self: Observer, step: int, phase: str, metrics: Any) -> None:
        train(self, step, phase, metrics)
        if step == 18:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Observer, "during", lambda self, state: (begun.append(state), during(self, state))[1])
        with monkeypatch.context() as inner:
            inner.setattr(Observer, "train", interrupted)
            assert pretrain(tmp_path / "probed", recipe(text, settings(data, every=2))) == 130
        assert begun.count("scoring") == 2, "one that is not due takes no time, from which to judge the next"
        assert pretrain(tmp_path / "probed", recipe(text, settings(data, every=2))) == 0
    assert begun.count("scoring") == 4, "the run goes on from step 15, and scores at 16 and 24"
    plain, probed = (gang.records(tmp_path / name / "run") for name in ("plain", "probed"))
    scores = {r["step"]: r["probe/accuracy"] for r in probed if "probe/accuracy" in r}
    assert list(scores) == [0, 16, 24], "every second evaluation, and the end"
    assert [{k: v for k, v in r.items() if not k.startswith("probe/")} for r in probed] == plain
    gang.assert_same_model(tmp_path / "probed" / "run", tmp_path / "plain" / "run")
    goodput = json.loads((tmp_path / "probed/run/status.json").read_text())["goodput"]
    assert goodput["scores"] > 0
    assert "<h3>probe: Accuracy</h3>" in (tmp_path / "probed/run/report.html").read_text()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"task": "clasification"}, "did you mean 'classification'"),
        ({"task": "span_qa"}, "a probe takes tasks that read one vector of a text, such as classification"),
        ({"every": 0}, "config.training.evaluations.probe.every is 0; at least 1 is needed"),
        ({"every_steps": 8}, "unknown key config.training.evaluations.probe.every_steps; did you mean 'every'"),
        ({"num_steps": 0}, "config.training.evaluations.probe.num_steps"),
        ({"learning_rate": 0.0}, "config.training.evaluations.probe.learning_rate is 0.0"),
        ({"options": {"metric": ()}}, "unknown key config.training.evaluations.probe.options.metric"),
        ({"data": {}}, "missing key config.training.evaluations.probe.data.format"),
        ({"data": {"format": "delimited", "splits": {"train": "train.tsv"}}}, "has the splits train; needed are"),
        ({"data": {"format": "delimited", "splits": {"train": "x.tsv", "dev": "dev.tsv"}}}, "no file for train"),
    ],
)
def test_bad_input_is_an_error_before_anything_is_made(
    changes: dict[str, Any], said: str, tmp_path: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UserError, match=said):
        begun(data, **changes)
    if "every" in changes:  # the command as a whole
        assert pretrain(tmp_path, recipe(toy.write_text(tmp_path / "text.txt"), settings(data, **changes))) == 2
        assert "config.training.evaluations.probe.every" in capsys.readouterr().err
        assert not (tmp_path / "run").exists()


def test_examples_are_limited_by_label(data: Path) -> None:
    probe = begun(data, max_examples=20)["probe"]
    assert {name: len(part) for name, part in probe.splits.items()} == {"train": 20, "dev": 20}
    assert {e["label"] for e in probe.splits["train"]} == {"left", "right"}
