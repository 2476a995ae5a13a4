"""A run is finished when its last step, its export and its report are; whatever is cut is done by the next start."""

import dataclasses
import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bert_jax import configuration
from bert_jax.cli.main import run
from bert_jax.corpora.mixture import Mixture
from bert_jax.interchange.hugging_face import export_model
from bert_jax.interchange.trained_model import TrainedModel
from bert_jax.interchange.workdir import import_into_workdir
from bert_jax.models.encoders import albert
from bert_jax.recipes.pretraining_settings import PretrainingSettings
from bert_jax.reporting import status
from bert_jax.reporting.observer import Observer
from bert_jax.runs import finishing
from bert_jax.runs.pretraining_end import finish
from tests import toy
from tests.features.test_features import CONFIG, PARAMS, TOKENIZER

SETTINGS = configuration.build(PretrainingSettings, toy.recipe(Path("none"), examples=()), "config")
HEAD = {"architecture": "BertForPreTraining"}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workdir with a checkpoint and an evaluation."""
    folder = tmp_path_factory.mktemp("trained")
    export_model(TrainedModel("", PARAMS, CONFIG, TOKENIZER), folder / "model", "a card")
    import_into_workdir(str(folder / "model"), str(folder / "run"))
    observer = observe(folder / "run")
    with observer.to_the_end():
        observer.begin(0, resumed=False, work=float)
        observer.evaluation(0, {"mlm_loss": 2.0})
    return folder / "run"


@pytest.fixture
def workdir(trained: Path, tmp_path: Path) -> Path:
    """A workdir with an export of another step than its last."""
    workdir = Path(shutil.copytree(trained, tmp_path / "run"))
    (workdir / "hugging_face").mkdir()
    (workdir / "hugging_face" / "config.json").write_text("old")
    (workdir / "exported.json").write_text('{"step": -1}')
    return workdir


def observe(workdir: Path) -> Observer:
    return Observer(str(workdir), {"run_id": "r", "name": "n", "config": {}}, 1, ())


def finish_run(workdir: Path) -> None:
    observer = observe(workdir)
    with observer.to_the_end():
        finish(SETTINGS, CONFIG, {"head": HEAD}, Mixture({}, {}), observer)


def check_finished(workdir: Path) -> None:
    written = json.loads((workdir / "status.json").read_text())
    assert written["state"] == "finished"
    assert {"export", "report"} <= written["goodput"].keys()
    assert '<span class="badge good">finished</span>' in (workdir / "report.html").read_text()
    assert {path.name for path in workdir.glob("hugging_face*")} == {"hugging_face"}
    assert (workdir / "hugging_face" / "model.safetensors").exists()
    assert json.loads((workdir / "exported.json").read_text()) == {"step": 0}


def test_the_status_says_what_is_under_way(workdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    observer, seen = observe(workdir), []

    def watched(call: Callable[..., Any]) -> Callable[..., Any]:
        def calls(*arguments: Any, **keywords: Any) -> Any:
            seen.append((call.__name__, observer.status.content()["state"]))
            return call(*arguments, **keywords)

        return calls

    for name in ("export_trained", "write_report"):
        monkeypatch.setattr(finishing, name, watched(getattr(finishing, name)))
    with observer.to_the_end():
        finish(SETTINGS, CONFIG, {"head": HEAD}, Mixture({}, {}), observer)
    assert seen == [("export_trained", "exporting"), ("write_report", "reporting")]
    check_finished(workdir)


CUTS = ("hugging_face.replaced", "hugging_face", "exported.json", "report.html")


@pytest.mark.parametrize("name", CUTS)
def test_cut_anywhere_it_is_not_finished_and_the_next_start_finishes(
    workdir: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    replace = os.replace

    def interrupted(source: Any, target: Any) -> None:
        if Path(target).name == name and not str(source).endswith(".replaced"):
            raise KeyboardInterrupt
        replace(source, target)

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", interrupted)
        with pytest.raises(KeyboardInterrupt):
            finish_run(workdir)
    assert status.read(workdir)["state"] == "interrupted"
    exported = {path.name for path in (workdir / "hugging_face").iterdir()}
    assert exported == {"config.json"} if name.startswith("hugging_face") else "model.safetensors" in exported
    finish_run(workdir)
    check_finished(workdir)


def test_a_damaged_export_is_written_anew(workdir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    finish_run(workdir)
    model = workdir / "hugging_face"
    whole = (model / "model.safetensors").read_bytes()
    flipped = bytes([*whole[:-5], whole[-5] ^ 1, *whole[-4:]])

    def damage(name: str, content: bytes | None) -> None:
        (model / name).unlink() if content is None else (model / name).write_bytes(content)

    capsys.readouterr()
    for name, content, message in (
        ("model.safetensors", flipped, "model.safetensors is damaged"),
        ("model.safetensors", None, "'model.safetensors', which SHA256SUMS lists, is missing"),
        ("SHA256SUMS", b"", "SHA256SUMS does not list config.json"),
        ("SHA256SUMS", None, "SHA256SUMS is missing"),
    ):
        damage(name, content)
        finish_run(workdir)
        assert message in capsys.readouterr().err
        assert (model / "model.safetensors").read_bytes() == whole
        check_finished(workdir)
    (workdir / "exported.json").write_bytes(b'{"step": \xb2}')
    finish_run(workdir)
    check_finished(workdir)
    capsys.readouterr()
    finish_run(workdir)
    assert "exported to" not in capsys.readouterr().err


def test_a_model_that_is_not_exported_is_said_to_be(workdir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert finishing.without_class(CONFIG, HEAD, str(workdir)) == ""
    assert finishing.without_class(dataclasses.replace(CONFIG, attention="causal"), HEAD, str(workdir)) == ""
    albert_config = albert.Config(9, 32, 2, 4, 64, max_length=32, attention="causal")
    assert "ALBERT family that reads from left to right" in finishing.without_class(albert_config, HEAD, str(workdir))
    observer = observe(workdir)
    with observer.to_the_end():
        finish(SETTINGS, CONFIG, {"head": None}, Mixture({}, {}), observer)
    said = capsys.readouterr().err
    [advice] = re.findall(r"not exported: transformers has no class for these heads; \S+ (export .*) writes", said)
    output = workdir / "encoder"
    assert run(advice.replace("=MODEL", f"={output}").split()) == 0
    assert json.loads((output / "config.json").read_text())["architectures"] == ["BertModel"]


def test_the_verdict_is_on_the_step_that_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "baselines.json").write_text(json.dumps({"majority_rate": 0.5}))
    observer = observe(tmp_path)
    with observer.to_the_end():
        observer.begin(0, resumed=False, work=float)
        for step, accuracy in enumerate((0.25, 0.75, 0.625)):
            observer.evaluation(step, {"accuracy": accuracy})
        finishing.report_at_the_end(observer, "more", 1)
    assert "held-out accuracy 0.750 (0.250 at step 0): 0.250 better than majority rate 0.500" in capsys.readouterr().err
