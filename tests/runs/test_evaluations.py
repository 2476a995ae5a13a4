"""Evaluations during training: what is refused, and when; signals, frozen variables and several processes."""

import re
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bert_jax.cli.main import run
from bert_jax.cluster.exit_codes import DONE, PREEMPTED
from bert_jax.errors import UserError
from bert_jax.interchange.hugging_face import export_model
from bert_jax.interchange.trained_model import TrainedModel
from bert_jax.metric_names import lower_is_better
from bert_jax.parts import catalogue
from bert_jax.parts.catalogue import OwnCode
from bert_jax.runs.evaluations.base import WHERE, Evaluations, read
from bert_jax.workdir import run_record
from tests import toy
from tests.interchange.small_model import CONFIG, PARAMS, TOKENIZER
from tests.runs.test_probe import EXPERIMENT
from tests.tasks import toy_tasks
from tests.training import gang

OWN = """
    import os
    import signal

    import numpy as np
    from bert_jax.rows.example_rows import EncodedRows
    from bert_jax.runs.evaluations import base
    from bert_jax.runs.evaluations.base import Config

    class Evaluator(base.TrainingEvaluator):
        def score(self, model, params, tokenizer):
            ids = [tokenizer.encode(text).input_ids for text in ("the cat sees.", "a dog", "my aunt likes")]
            rows = EncodedRows.of({"input_ids": ids, "token_type_ids": [[0] * len(one) for one in ids]}, {})
            if os.path.exists("told"):
                os.remove("told")
                signal.raise_signal(signal.SIGTERM)
            found = [outputs["sequence"][:, 0] for _, outputs in model.outputs(params, rows, (), 1)]
            return {"norm": np.float32(np.linalg.norm(np.concatenate(found)))}
"""


def own(text: str = OWN, **changes: str) -> str:
    for old, new in changes.items():
        text = text.replace(old, new)
    return textwrap.dedent(text)


def recipe(folder: Path, evaluations: dict[str, Any], **changes: Any) -> list[str]:
    config = toy.recipe(
        toy.write_text(folder / "text.txt"),
        phases={"phase1": {"num_steps": 4, "batch_size": 8, "max_length": 32}},
        schedule={"warmup_steps": 1},
        training={"log_every_steps": 2, "eval_every_steps": 2, "loggers": (), "evaluations": evaluations},
        export=False,
        examples=(),
        **changes,
    )
    return ["pretrain", f"--config={toy.write_recipe(folder / 'recipe.json', config)}", f"--workdir={folder / 'run'}"]


NAME = f"--{WHERE}.own.name=own.py"
EARLY: dict[str, tuple[list[str], str, str]] = {  # -> flags, code of own.py, what is said
    "unknown name": ([f"--{WHERE}.a.name=prob"], OWN, "there is no evaluator 'prob' in bert_jax.runs.evaluations; did"),
    "no name": ([f"--{WHERE}.a.every=2"], OWN, f"missing key {WHERE}.a.name; valid: probe, or the path of a file"),
    "no group": ([f"--{WHERE}.a=probe"], OWN, f"missing key {WHERE}.a.name"),
    "unknown key": ([NAME, f"--{WHERE}.own.evry=2"], OWN, f"unknown key {WHERE}.own.evry; did you mean 'every'"),
    "a name with a slash": ([f"--{WHERE}.a/b.name=own.py"], OWN, "has the name 'a/b'; it begins the names of metrics"),
    "every with selection": (
        [NAME, f"--{WHERE}.own.every=2", "--config.selection.metric=own/norm"],
        OWN,
        f"{WHERE}.own.every is 2, and config.selection.metric is 'own/norm'; only 1 is allowed",
    ),
    "no base class": ([NAME], own(OWN, **{"(base.TrainingEvaluator)": ""}), "own.py: Evaluator does not derive from"),
    "no score": ([NAME], own(OWN, **{"def score": "def scores"}), "own.py: Evaluator has no method score(self, model,"),
    "signature": (
        [NAME],
        own(OWN, **{"params, tokenizer": "params"}),
        "own.py: score is called as score(self, model, params, tokenizer); it says: too many positional arguments",
    ),
}


@pytest.mark.parametrize("name", EARLY)
def test_bad_input_is_one_line_before_anything_is_made(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    flags, code, said = EARLY[name]
    monkeypatch.chdir(tmp_path)
    Path("own.py").write_text(own(code))
    assert run([*recipe(tmp_path, {}), *flags]) == 2
    assert said in capsys.readouterr().err
    assert not Path("run").exists()


@pytest.mark.parametrize(
    ("returned", "name", "metric", "said"),
    [
        ("None", "own", "", f"own.py: score of {WHERE}.own returned None; a dict with a number for each name"),
        ("1 / 0", "own", "", "own.py:12, in a file of your own: ZeroDivisionError"),
        ("{'a': 1}", "own", "own/b", "config.selection.metric is 'own/b'; the metrics are mlm_accuracy"),
        ("{'a': 1}", "mlm_loss", "", f"{WHERE}.mlm_loss has the name of a metric of the held-out rows"),
        ("{'a': 1}", "own", "b/a", "config.selection.metric is 'b/a'; valid: mlm_accuracy"),
    ],
)
def test_what_is_no_number_is_known_at_the_first_evaluation(
    returned: str,
    name: str,
    metric: str,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    head, _, _ = OWN.partition("            ids =")
    Path("own.py").write_text(own(f"{head}            return {returned}\n"))
    flags = [f"--{WHERE}.{name}.name=own.py", f"--config.selection.metric={metric}"]
    with toy.one_device():
        assert run([*recipe(tmp_path, {}), *flags]) in (1, 2)
    assert said in capsys.readouterr().err
    assert not any(record["step"] for record in gang.records(tmp_path / "run")), "no step is trained"


def test_what_is_no_number_for_each_name_is_refused(tmp_path: Path) -> None:
    head, _, _ = OWN.partition("            ids =")
    for returned in ("None", "{}", "{'a': 'b'}", "{'a': True}", "{'': 1}", "{1: 1}"):
        code = OwnCode(str(tmp_path / "own.py"), own(f"{head}            return {returned}\n").encode())
        catalogue.trust(code)
        evaluations = Evaluations(read({"own": {"name": code.name}}, print), TOKENIZER, CONFIG, EXPERIMENT)
        with pytest.raises(UserError, match=f"score of {WHERE}.own returned {re.escape(returned)}; a dict with a num"):
            evaluations(0, {}, {}, lambda: None)


def test_a_signal_ends_an_evaluation_and_the_resumed_run_makes_it_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("own.py").write_text(own())
    command = [*recipe(tmp_path, {}), NAME]
    Path("told").touch()
    with toy.one_device():
        assert run(command) == PREEMPTED
        assert not Path("told").exists()
        assert gang.records(tmp_path / "run") == []
        assert run(command) == DONE
    assert [record["step"] for record in gang.records(tmp_path / "run") if "own/norm" in record] == [0, 2, 4]


def test_fine_tuning_with_a_frozen_encoder_gives_an_evaluation_all_parameters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("own.py").write_text(own())
    export_model(TrainedModel("", PARAMS, CONFIG, TOKENIZER), tmp_path / "first", "a card")
    with toy.one_device():
        rows = [f"{'good' if i % 2 else 'bad'}\tthe {'cat' if i % 2 else 'dog'} sees {i}" for i in range(24)]
        for name in ("train", "dev"):
            Path(f"{name}.tsv").write_text("\n".join(["label\ttext", *rows]) + "\n")
        command = ["finetune", "--config=classification", "--init=first", "--config.frozen=encoder", NAME]
        command += [f"--config.data.splits.{name}={name}.tsv" for name in ("train", "dev")]
        command += ["--config.phases.train.num_epochs=2", "--config.export=False", "--batch_size=8", "--max_length=32"]
        assert run([*command, "--workdir=bad", "--config.selection.metric=own/norm"]) == 2
        assert "fine-tuning selects by a metric of the dev rows" in capsys.readouterr().err
        assert run([*command, "--workdir=run"]) == DONE
    norms = [record["own/norm"] for record in gang.records(tmp_path / "run") if record["split"] == "eval"]
    assert len(norms) == 3
    assert len(set(norms)) == 1, "the encoder is frozen"


@pytest.mark.heavy
def test_two_processes_score_as_one(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(own())
    data = {"format": "delimited", "splits": {"train": "x.tsv", "dev": "x.tsv"}}
    rows = [f"{i % 2}\tthe {'cat' if i % 2 else 'dog'} sees {i}" for i in range(24)]
    (tmp_path / "x.tsv").write_text("\n".join(["label\ttext", *rows]) + "\n")
    probe = {"name": "probe", "task": "classification", "folder": str(tmp_path), "data": data, "num_steps": 5}
    training = {"log_every_steps": 2, "eval_every_steps": 2, "eval_rows": 20, "evaluations": {"probe": probe}}
    inputs, flag = gang.make_inputs(tmp_path, 4, training=training), f"--{WHERE}.own.name={tmp_path / 'own.py'}"
    one, two = (gang.finish(inputs, tmp_path / f"run{count}", count, flag) for count in (1, 2))
    names = [name for name in one[0] if "/" in name]
    assert {name.partition("/")[0] for name in names} == {"probe", "own"}
    for first, second in zip(one, two, strict=True):
        if first["split"] == "eval":
            np.testing.assert_allclose([second[n] for n in names], [first[n] for n in names], rtol=1e-4, atol=1e-5)


def test_a_loss_of_an_evaluation_is_better_if_it_is_lower() -> None:
    assert lower_is_better("probe/loss")
    assert lower_is_better("probe/loss/dev_b")
    assert not lower_is_better("probe/accuracy/loss")
    assert not lower_is_better("mlm_accuracy/error")
    assert lower_is_better("mlm_loss/legal")


def test_one_that_does_not_fit_a_fine_tuning_is_refused_before_the_run_is_recorded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    refuses = """
            def begin(self, model, tokenizer, note):
                from bert_jax.errors import UserError
                raise UserError(f"{tokenizer.size} pieces do not fit")

            def score("""
    (tmp_path / "own.py").write_text(own(**{"        def score(": refuses.replace("\n    ", "\n").lstrip("\n")}))
    toy_tasks.write_toy(tmp_path, "classification", train=16, dev=8)
    monkeypatch.setattr(run_record, "write_run", lambda *_: pytest.fail("the run is recorded"))
    assert toy_tasks.finetune(tmp_path, f"--{WHERE}.own.name={tmp_path / 'own.py'}") == 2
    assert "pieces do not fit" in capsys.readouterr().err
