"""Models of the Hub are read wherever a Hugging Face directory is: from the cache, at one commit, without pickles."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from bert_jax.cli.main import run
from bert_jax.errors import PassingError, UserError
from bert_jax.interchange.hugging_face import licence_of
from bert_jax.interchange.initial import find_initial
from bert_jax.interchange.loading import load
from bert_jax.interchange.tokenizer_files import tokenizer_of
from bert_jax.storage import files
from bert_jax.text.case import NOT_SAID
from bert_jax.workdir.run_record import write_run
from tests import hub_server, toy
from tests.hub_server import Hub
from tests.interchange.small_model import PARAMS, TOKENIZER, assert_same
from tests.interchange.test_push import write_run_folder

NOT_READ = {"pytorch_model.bin": b"a pickle", "modeling.py": b"code", "onnx/model.safetensors": b"another format"}


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exported: Path) -> Iterator[Hub]:
    with hub_server.serve() as served:
        hub_server.use(served, tmp_path / "cache", monkeypatch)
        below = {path.name: path.read_bytes() for path in exported.iterdir()}
        served.add("them/small", below | NOT_READ | {"README.md": b"---\nlicense: mit\n---\n"})
        yield served


def fetched(hub: Hub) -> set[str]:
    return {request.rpartition("/")[2] for request in hub.requests if request.startswith("GET /them/small/resolve/")}


def test_a_model_is_read_at_its_commit(hub: Hub, exported: Path) -> None:
    commit = hub.repositories["them/small"].branches["main"]
    model = load("hf://them/small")
    assert_same(model.params, PARAMS)
    assert model.source == f"hf://them/small@{commit}"
    assert model.facts["parent"] == {"source": model.source, "licence": "mit"}
    assert fetched(hub) == {path.name for path in exported.iterdir()}
    asked = len(hub.requests)
    assert tokenizer_of(f"hf://them/small@{commit}").vocab == TOKENIZER.vocab
    assert tokenizer_of(f"hf://them/small@{commit}/vocab.txt").vocab == TOKENIZER.vocab
    assert licence_of(f"hf://them/small@{commit}") == "mit"
    assert len(hub.requests) == asked, "a commit that is in the cache needs no network"


def test_without_a_network(hub: Hub, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    from huggingface_hub import constants

    load("hf://them/small@main")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert_same(load("hf://them/small@main").params, PARAMS)
    for name in ("hf://them/other", "hf://them/small@v2", f"hf://them/small@{'0' * 40}"):
        with pytest.raises(UserError, match=f"{name}.* is not in the cache, and HF_HUB_OFFLINE is set"):
            load(name)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("hf://them/none", "there is no hf://them/none, or it is private and you may not read it; check the name"),
        ("hf://them/closed", "there is no hf://them/closed, or it is private"),
        ("hf://them/gated", "hf://them/gated@.* is gated: ask for access on its page, then log in"),
        ("hf://them/small@v2", "hf://them/small@v2: the model has no such branch, tag or commit"),
        ("hf://small", "'hf://small' is not hf://USER/NAME or hf://USER/NAME@REVISION"),
        ("hf://them/pickled", "has no model.safetensors; pytorch_model.bin is a pickle, which can run code"),
        ("them/small", r"there is no such folder \(on the Hugging Face Hub: hf://them/small\)"),
    ],
)
def test_what_cannot_be_read_is_one_line(
    hub: Hub, exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, message: str
) -> None:
    hub_server.use(hub, tmp_path / "cache", monkeypatch, token=None)
    hub.add("them/closed", exported, private=True)
    hub.add("them/gated", exported, gated=True)
    others = ("config.json", "vocab.txt", "tokenizer.json")
    hub.add("them/pickled", {name: (exported / name).read_bytes() for name in others} | {"pytorch_model.bin": b""})
    with pytest.raises(UserError, match=message) as raised:
        load(name)
    assert "\n" not in str(raised.value)


def test_a_download_that_breaks_goes_on(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    hub.cut_after = 600  # of each answer; config.json is shorter
    with pytest.raises(PassingError, match="hf://them/small@.*: the connection to the Hub broke .* to go on"):
        load("hf://them/small")
    with monkeypatch.context() as patch:
        patch.setattr(constants, "HF_HUB_OFFLINE", True)
        with pytest.raises(UserError, match="is not in the cache"):  # not whole
            load("hf://them/small")
    hub.cut_after, hub.requests = None, []
    assert_same(load("hf://them/small").params, PARAMS)
    assert "model.safetensors" in fetched(hub)
    assert "config.json" not in fetched(hub), "what is whole is not downloaded again"


def test_an_unknown_answer_is_no_crash(hub: Hub) -> None:
    hub.refuse = {("GET", "/api/"): 418}
    with pytest.raises(UserError, match="hf://them/small: the Hub refuses"):
        load("hf://them/small")
    hub.refuse = {("GET", "/api/"): 500}
    with pytest.raises(PassingError, match="the Hub does not answer"):
        load("hf://them/small")


def test_a_run_begins_again_from_the_commit_that_it_recorded(hub: Hub, exported: Path, tmp_path: Path) -> None:
    first = load("hf://them/small@main").facts["parent"]
    hub.add("them/small", {"config.json": b"{}"})
    write_run(str(tmp_path / "run"), {"identity": {"init": "hf://them/small@main"}, "run_id": "a", "parent": first})
    again = find_initial("hf://them/small@main", str(tmp_path / "run"), False, NOT_SAID)
    assert again is not None
    assert again.source == first["source"]
    with pytest.raises(UserError, match=r"config\.json"):
        find_initial("hf://them/small", str(tmp_path / "run"), False, NOT_SAID)  # typed in another way: the branch


def test_the_cache_is_not_written_to(hub: Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for write in (files.check_new, files.check_writable, lambda path: files.write_bytes(path, b"")):
        with pytest.raises(UserError, match="hf://them/small can be read, but not written; give a folder"):
            write("hf://them/small")
    recipe = toy.write_recipe(tmp_path / "recipe.json", toy.recipe(toy.write_text(tmp_path / "text.txt")))
    assert run(["pretrain", f"--config={recipe}", "--workdir=hf://them/small"]) == 2
    assert "hf://them/small can be read, but not written" in capsys.readouterr().err
    assert not hub.requests


# ---- Whole commands, in processes that are killed -------------------------------------------------------------------


def command(hub: Hub, cache: Path, *arguments: str) -> subprocess.Popen[str]:
    environment = toy.environment() | hub_server.environment(hub, cache)
    words = [sys.executable, "-m", "bert_jax", *arguments]
    return subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


@pytest.mark.heavy
@pytest.mark.parametrize("moment", ["during", "after"])
def test_a_push_that_is_killed_goes_on(hub: Hub, tmp_path: Path, moment: str) -> None:
    """SIGKILL while the large file is being uploaded, and after it, when the commit is about to be made."""
    workdir = write_run_folder(tmp_path / "run")
    flags = ["export", f"--workdir={workdir}", "--push=me/legal", "--revision=step-0", f"--output={tmp_path / 'out'}"]
    asked, go_on = threading.Event(), threading.Event()

    def stop(path: str) -> None:
        asked.set()
        go_on.wait(60)

    if moment == "during":
        hub.during = stop
    else:
        hub.before = stop
    first = command(hub, tmp_path / "cache", *flags)
    assert asked.wait(120)
    first.send_signal(signal.SIGKILL)
    first.communicate()
    go_on.set()
    hub.during = hub.before = lambda path: None
    repository = hub.repositories["me/legal"]
    assert repository.on("step-0").keys() == {".gitattributes"}
    assert not (tmp_path / "out").exists()
    hub.requests = []
    second = command(hub, tmp_path / "cache", *flags)
    said = second.communicate()[0]
    assert second.returncode == 0, said
    assert "pushed to hf://me/legal@step-0: " in said
    written = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    assert {name: data for name, data in repository.on("step-0").items() if name != ".gitattributes"} == written
    if moment == "after":
        assert not [one for one in hub.requests if one.startswith("PUT")], "what is there is not uploaded again"


@pytest.mark.heavy
def test_a_run_keeps_its_commit(hub: Hub, exported: Path, tmp_path: Path) -> None:
    """Killed before its first save, and resumed after it, while the branch moves and then without a network."""
    commit = hub.repositories["them/small"].branches["main"]
    changes = {
        "model": {},
        "vocab": {},
        "examples": (),
        "phases": {"phase1": {"num_steps": 40, "batch_size": 8, "max_length": 16}},
    }
    config = toy.recipe(toy.write_text(tmp_path / "text.txt"), **changes, checkpoints={"every_steps": 10})
    recipe = toy.write_recipe(tmp_path / "recipe.json", config)
    flags = ["pretrain", f"--config={recipe}", "--init=hf://them/small@main", f"--workdir={tmp_path / 'run'}"]
    for line in ("starting from hf://", "step 32 held-out"):  # before the first save, and after it
        process = command(hub, tmp_path / "cache", *flags)
        assert process.stdout is not None
        heard = []
        for text in process.stdout:
            heard.append(text)
            if text.startswith(line):
                process.send_signal(signal.SIGKILL)
                break
        process.communicate()
        assert any(text.startswith(line) for text in heard), "".join(heard)
        assert f"starting from hf://them/small@{commit}" in "".join(heard)
        record = json.loads((tmp_path / "run" / "run.json").read_text())
        assert record["identity"]["init"] == "hf://them/small@main"
        assert record["parent"] == {"source": f"hf://them/small@{commit}", "licence": "mit"}
        hub.add("them/small", {"config.json": b"{}", "README.md": b""})
    hub.requests, hub.refuse = [], {("GET", "."): 503}
    process = command(hub, tmp_path / "cache", *flags)
    said = process.communicate()[0]
    assert process.returncode == 0, said
    assert "resumed at step" in said
    assert not hub.requests
    card = (tmp_path / "run" / "hugging_face" / "README.md").read_text()
    assert f"started from: hf://them/small@{commit} (licence: mit)" in card
    assert os.path.exists(tmp_path / "run" / "report.html")
