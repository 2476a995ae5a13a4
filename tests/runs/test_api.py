"""``import bert_jax``: the names and arguments that stay, and the pages whose examples run as they stand."""

from __future__ import annotations

import contextlib
import inspect
import io
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from ml_collections import ConfigDict

import bert_jax
from bert_jax.errors import Interrupted, UserError
from bert_jax.interchange.trained_model import TrainedModel
from bert_jax.runs import recipes
from bert_jax.training import loop
from tests import toy

README = Path(bert_jax.__file__).parent / "README.md"
SIGNATURES = {
    "load": "(source: 'AnyPath', *, trust_code: 'bool' = False) -> 'TrainedModel'",
    "batches": "(config: 'Recipe', workdir: 'AnyPath', *, overrides: 'Mapping[str, Any] | None' = None, "
    "init: 'AnyPath | None' = None, vocab: 'AnyPath | None' = None, first_step: 'int' = 0, "
    "trust_code: 'bool' = False) -> 'TrainingBatches'",
    "pretrain": "(config: 'Recipe', workdir: 'AnyPath', *, overrides: 'Mapping[str, Any] | None' = None, "
    "init: 'AnyPath | None' = None, init_optimizer: \"Literal['fresh', 'kept']\" = 'fresh', "
    "vocab: 'AnyPath | None' = None, extend: 'bool' = False, private: 'bool' = False, "
    "trust_code: 'bool' = False) -> 'dict[str, float]'",
    "finetune": "(config: 'Recipe', workdir: 'AnyPath', *, overrides: 'Mapping[str, Any] | None' = None, "
    "data: 'AnyPath' = '.', init: 'AnyPath | None' = None, trust_code: 'bool' = False) -> 'dict[str, float]'",
    "predict": "(workdir: 'AnyPath', texts: 'Iterable[str | Sequence[str]] | None' = None, *, "
    "input: 'AnyPath | None' = None, "
    "format: 'str | None' = None, options: 'Mapping[str, Any] | None' = None, task: 'str | None' = None, "
    "step: 'int | None' = None, trust_code: 'bool' = False) -> 'list[dict[str, Any]]'",
    "curves": "(workdir: 'AnyPath') -> 'Curves'",
}
METHODS = {
    "encode": "(self, texts: 'Iterable[str]', *, pooling: 'Pooling | None' = None, prompt_name: 'str | None' = None, "
    "max_length: 'int | None' = None, batch_size: 'int' = 32) -> 'np.ndarray'",
    "hidden_states": "(self, texts: 'Iterable[str]', *, max_length: 'int | None' = None, batch_size: 'int' = 32) "
    "-> 'list[np.ndarray]'",
    "fill_mask": "(self, text: 'str', *, best: 'int' = 5) -> 'Filled'",
}


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimpleNamespace]:
    """The examples of README.md, run in their order in an empty folder: their names, prints and folder."""
    folder = tmp_path_factory.mktemp("page")
    blocks = re.findall(r"^```python\n(.*?)^```", README.read_text(), re.MULTILINE | re.DOTALL)
    read: list[dict[str, np.ndarray]] = []  # what the loop of the pretraining read

    class Recorded(loop.Loader):
        def __iter__(self) -> Iterator[Any]:
            for step, batch in super().__iter__():
                if "masked_positions" in batch:
                    read.append(batch)
                yield step, batch

    names: dict[str, Any] = {}
    printed = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, toy.one_device(), contextlib.redirect_stdout(printed):
        patch.chdir(folder)
        patch.setattr(loop, "Loader", Recorded)
        for number, block in enumerate(blocks):
            exec(compile(block, f"{README.name}, example {number + 1}", "exec"), names)
        yield SimpleNamespace(names=names, printed=printed.getvalue(), folder=folder, read=read)


def test_names_and_arguments_stay() -> None:
    assert set(bert_jax.__all__) == {*SIGNATURES, "UserError"} <= set(dir(bert_jax))
    assert {name: str(inspect.signature(getattr(bert_jax, name))) for name in SIGNATURES} == SIGNATURES
    assert {name: str(inspect.signature(getattr(TrainedModel, name))) for name in METHODS} == METHODS
    assert {"params", "config", "tokenizer"} <= set(TrainedModel.__dataclass_fields__)
    for name in bert_jax.__all__:
        assert f"| `bert_jax.{name}" in README.read_text()
    with pytest.raises(AttributeError, match="no attribute 'lode'; it has UserError, batches, "):
        bert_jax.lode  # noqa: B018


def test_functions_are_found_without_jax() -> None:
    """Training chooses which freed memory to keep before jax is loaded."""
    script = "import bert_jax, sys; bert_jax.pretrain; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], cwd=README.parents[1]).returncode == 0


def test_the_examples_print_what_they_promise(page: SimpleNamespace) -> None:
    assert page.names["vectors"].shape == (2, 128)
    assert page.names["states"].shape == (2, 8, 128)
    assert page.names["scores"]["accuracy"] > 0.9
    assert page.printed.splitlines()[-1].startswith("unknown key config.model.sise; did you mean 'size'?")
    assert "\nwater\nland\n" in page.printed
    run = json.loads((page.folder / "runs/first/run.json").read_text())
    assert run["command"].startswith("bert_jax.pretrain('quickstart', 'runs/first', overrides={'corpus.source': 'text_")


def test_batches_are_those_of_the_run(page: SimpleNamespace) -> None:
    tiny, workdir = page.names["tiny"], page.folder / "runs/first"
    after = list(bert_jax.batches("quickstart", workdir, overrides=tiny))
    before = bert_jax.batches("quickstart", page.folder / "new", overrides=tiny, first_step=50)
    assert len(after) == len(page.read) == 60
    assert len(before) == 10
    for found, wanted in [*zip(after, page.read, strict=True), *zip(before, page.read[50:], strict=True)]:
        assert found.keys() == wanted.keys()
        for name, array in wanted.items():
            np.testing.assert_array_equal(found[name], array, err_msg=name)
    odd = {"phases": {"phase1": {"num_steps": 6, "batch_size": 15, "max_length": 32}}, "selection.metric": "mlm_loss"}
    assert len(bert_jax.batches("quickstart", page.folder / "odd", overrides=tiny | odd)) == 6, "rows need no mesh"
    with pytest.raises(UserError, match="first_step is 'two'; the run has the steps 0 to 59"):
        bert_jax.batches("quickstart", workdir, overrides=tiny, first_step="two")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="overrides has the key 5; write a key of the recipe"):
        bert_jax.pretrain("quickstart", workdir, overrides={5: 1})  # type: ignore[dict-item]
    with pytest.raises(UserError, match="first_step is 60; the run has the steps 0 to 59"):
        bert_jax.batches("quickstart", workdir, overrides=tiny, first_step=60)
    with pytest.raises(UserError, match="holds another run: config.model.hidden_size: "):
        bert_jax.batches("quickstart", workdir, overrides=tiny | {"model.hidden_size": 64})


def test_a_model_is_the_same_from_its_run_and_its_export(page: SimpleNamespace) -> None:
    model, texts = page.names["model"], ["The dog sees the boat.", "The king"]
    exported = bert_jax.load(page.folder / "runs/first/hugging_face")
    np.testing.assert_allclose(exported.encode(texts), model.encode(texts), atol=1e-5)
    means = [states[-1].mean(axis=0) for states in model.hidden_states(texts)]
    np.testing.assert_allclose(model.encode(texts), means, atol=1e-5)
    first = [states[-1, 0] for states in model.hidden_states(texts)]
    np.testing.assert_allclose(model.encode(texts, pooling="cls"), first, atol=1e-5)
    assert model.encode([]).shape == (0, 128)
    filled = model.fill_mask("the [MASK] sees the [MASK].", best=3)
    assert [len(candidates) for candidates in filled.predictions] == [3, 3]
    assert str(filled).count("\n") == 2
    assert bert_jax.load(f"{page.folder}/runs/first@60").params.keys() == model.params.keys()


def test_curves_are_a_picture(page: SimpleNamespace) -> None:
    picture = page.names["curves"]._repr_svg_()
    titles = [e.text for e in ElementTree.fromstring(picture).iter() if e.get("class") == "title"]
    assert titles[:2] == ["Masked-LM loss, nats", "Masked-LM accuracy"]
    assert len(titles) == 4
    assert len(picture) < 50_000, "a notebook keeps it"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: bert_jax.load("nowhere"), "^nowhere is neither a Hugging Face directory"),
        (lambda: bert_jax.load(""), "source is ''; give a path"),
        (lambda: bert_jax.load(None), "source is None; give a path"),
        (lambda: bert_jax.pretrain("quickstrt", "run"), "unknown recipe 'quickstrt'; did you mean 'quickstart'"),
        (lambda: bert_jax.pretrain("glue", "run"), "this recipe is one for fine-tuning"),
        (lambda: bert_jax.batches("glue", "run"), "this recipe is one for fine-tuning"),
        (lambda: bert_jax.finetune("quickstart", "run"), "this recipe is one for pretraining"),
        (lambda: bert_jax.pretrain("quickstart", "run", overrides={"seed": "x"}), "config.seed is 'x'; expected int"),
        (lambda: bert_jax.pretrain("quickstart", "run", init_optimizer="old"), "init_optimizer is 'old'; allowed: "),
        (
            lambda: bert_jax.pretrain("quickstart", "run", overrides=["seed"]),
            r"overrides is \['seed'\]; a dict is needed",
        ),
        (lambda: bert_jax.predict("run"), "give either texts or input, a file"),
        (lambda: bert_jax.predict("run", "a text"), r"texts is one string; a list of strings is needed: \['a text'\]"),
    ],
)
def test_bad_arguments_are_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Any, message: str) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir()), "before anything is written"


def test_bad_texts_are_one_line(page: SimpleNamespace) -> None:
    model = page.names["model"]
    for call, message in [
        (lambda: model.encode("a text"), r"texts is one string; a list of strings is needed: \['a text'\]"),
        (lambda: model.encode(["a", None]), "texts has None of type NoneType; a list of strings is needed"),
        (lambda: model.encode(["a"], pooling="sum"), "pooling is 'sum'; allowed: 'mean', 'cls', 'max'"),
        (lambda: model.fill_mask(["a [MASK]"]), r"text is a list; one string with a \[MASK\] is needed"),
        (lambda: model.fill_mask("a"), r"no \[MASK\] in 'a'"),
        (lambda: bert_jax.load(page.folder / "runs/water").fill_mask("[MASK]"), "this model has no masked-LM head"),
        (lambda: bert_jax.predict(page.folder / "runs/first", ["a"]), "holds a pretrained model; fine-tune it first"),
        (
            lambda: bert_jax.predict(page.folder / "runs/water", ["a", ("b", "c")]),
            r"^texts\[1\] is \('b', 'c'\); a text is needed for each example of this model$",
        ),
        (lambda: bert_jax.predict(page.folder / "runs/water", [1]), r"^texts\[0\] is 1; a text is needed for each"),
        (lambda: model.encode(None), "^texts is None; a list of strings is needed"),
    ]:
        with pytest.raises(UserError, match=message):
            call()


def test_a_notebook_shows_an_error_as_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """IPython calls the method by its name."""
    assert UserError("x is 1; 2 is needed")._render_traceback_() == ["error: x is 1; 2 is needed"]
    assert Interrupted("step 5 is saved")._render_traceback_() == ["step 5 is saved"]
    monkeypatch.setenv("BERT_JAX_TRACEBACK", "1")
    assert UserError("x")._render_traceback_()[-1] == "bert_jax.errors.UserError: x\n"


def test_a_component_of_ones_own_is_named_by_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text("from bert_jax.objectives.mlm import Config, Objective\n")
    for tree, changes in ({"objective": {"name": "./mine.py"}}, {}), ("quickstart", {"objective.name": "./mine.py"}):
        assert re.fullmatch(r"mine\.py@[0-9a-f]{16}", recipes.with_values(tree, changes).objective.name)
    (tmp_path / "another.py").write_text("Config = Objective = int\n")
    recipe = toy.write_recipe(tmp_path / "recipe.json", {"objective": {"name": "./another.py"}})
    with pytest.raises(UserError, match="code of a user's own, ./another.py, which a .json recipe only names"):
        recipes.with_values(recipe, {})
    assert recipes.with_values(recipe, {}, trust_code=True).objective.name.startswith("another.py@")


def test_overrides_of_a_recipe() -> None:
    tree = ConfigDict({"seed": 1, "model": {"size": "tiny", "max_length": 8}, "phases": {"a": {"num_steps": 1}}})
    changes = {"model.size": "mini", "phases": {"b": {"num_steps": 2}}, "corpus.options.paths": (Path("x.txt"),)}
    changed = recipes.with_values(tree, changes)
    assert changed.to_dict() == {
        "seed": 1,
        "model": {"size": "mini", "max_length": 8},
        "phases": {"b": {"num_steps": 2}},
        "corpus": {"options": {"paths": ("x.txt",)}},
    }
    assert tree.model.size == "tiny", "the caller's tree stays as it is"
    assert recipes.with_values({"model": {"size": "tiny"}}, {}).is_locked
    paths = recipes.with_values({"corpus": {"options": {"paths": ()}}}, {"corpus.options.paths": "a,b.txt"})
    assert paths.corpus.options.paths == ("a,b.txt",), "as one path on the command line"
    for change, message in [
        ({"modle.size": "x"}, "unknown key config.modle; did you mean 'model'"),
        ({"model": "mini"}, r"config.model is a group; set one of its keys \(max_length, size\) or give it whole"),
        ({"seed.x": 1}, r"config.seed is a value \(1\), it has no key 'x'"),
        ({"": 1}, "overrides has the key ''; write a key of the recipe"),
    ]:
        with pytest.raises(UserError, match=message):
            recipes.with_values(tree, change)
