"""An export is pushed to the Hub, whole or not at all, and its card says how the model was made, but no secret."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import ModelCard

from bert_jax.checkpoints.saving import save_params
from bert_jax.cli.main import run
from bert_jax.models.model import config_facts
from bert_jax.workdir.run_record import write_run
from tests import hub_server
from tests.hub_server import Hub
from tests.interchange.heads import CONFIG, HEADS, TOKENIZER, params_of

# huggingface_hub uploads files as "data", which httpx2 calls deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")
SECRET, IN_ENVIRONMENT = "hf_" + "q" * 34, "correct-horse-battery"
RECORD: dict[str, Any] = {
    "run_id": "abc123abc123",
    "name": "legal",
    "identity": {"objective": {"name": "mlm_nsp"}},
    "command": "bert-jax pretrain --config=/home/somebody/secret\\ plans/recipe.json --workdir=/home/somebody/legal "
    f"--config.training.api_key=opensesame --config.corpus.options.paths=/data/private/legal/*.txt {SECRET}",
    "git_commit": "f" * 40,
    "about": {"documents": 3000, "tokens": 2_054_226},
    "config": {
        "corpus": {
            "source": "text_files",
            "options": {"paths": ["/data/private/legal/*.txt"], "language": "en", "url": "https://me:pw@host/text"},
        },
        "training": {"api_key": "opensesame", "note": f"see {IN_ENVIRONMENT}"},
        "private": False,
    },
}


def write_run_folder(folder: Path, seed: int = 0, **record: Any) -> Path:
    """A finished pretraining as far as an export reads it, with figures of its training."""
    made = {**RECORD, **record}
    facts = {"model": config_facts(CONFIG), "lowercase": True, "vocabulary_sha256": TOKENIZER.sha256, "run": made}
    save_params(str(folder), params_of(HEADS["pretraining"], CONFIG, seed), facts)
    TOKENIZER.save(folder / "vocab.txt")
    write_run(str(folder), made)
    figures = {"mlm_loss": 4.234, "mlm_accuracy": 0.317}
    records = [{"step": step, "split": split, "time": 1.0, **figures} for step in (0, 1) for split in ("train", "eval")]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(one) + "\n" for one in records))
    return folder


@pytest.fixture(scope="module")
def workdir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run_folder(tmp_path_factory.mktemp("runs") / "legal")


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with hub_server.serve() as served:
        hub_server.use(served, tmp_path / "cache", monkeypatch)
        yield served


def pushed(workdir: Path, *flags: str, name: str = "me/legal") -> int:
    return run(["export", f"--workdir={workdir}", f"--push={name}", *flags])


def test_each_revision_of_a_run_is_a_branch(hub: Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_run_folder(tmp_path / "run", revisions={"step0": 0, "step1": 1})
    assert pushed(folder, "--revisions") == 0
    shown = capsys.readouterr()
    assert "not saved: step1" in shown.err
    assert f"commit {hub.repositories['me/legal'].branches['step0']}" in shown.out
    assert pushed(folder, "--revisions") == 0
    assert "held all of it already" in capsys.readouterr().out
    for flag, problem in (
        (f"--output={tmp_path / 'new'}", "--output"),
        ("--step=0", "--step"),
        ("--revision=a", "--revi"),
    ):
        assert pushed(folder, "--revisions", flag) == 2
        assert f"leave {problem}" in capsys.readouterr().err


def test_a_push_is_one_commit_that_is_read_again(
    hub: Hub, workdir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert pushed(workdir, "--private", f"--output={tmp_path / 'out'}") == 0
    out = capsys.readouterr().out
    assert "checked: read back, every parameter has the same bits" in out
    repository = hub.repositories["me/legal"]
    assert repository.private
    assert len(repository.commits) == 2, "the one of the Hub, and one"
    written = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    assert {name: data for name, data in repository.on().items() if name != ".gitattributes"} == written
    assert {"curves.svg", "README.md", "SHA256SUMS", "config.json", "model.safetensors", "vocab.txt"} <= written.keys()
    assert f"pushed to hf://me/legal: {len(written)} files, commit {repository.branches['main']}" in out
    assert run(["fill-mask", "--workdir=hf://me/legal", "[MASK]"]) == 0
    capsys.readouterr()
    assert pushed(workdir) == 0
    assert "held all of it already" in capsys.readouterr().out
    assert len(repository.commits) == 2


def test_a_branch_and_a_file_that_is_there_no_more(hub: Hub, workdir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert pushed(workdir, "--as=BertModel", "--pooling=mean") == 0
    assert pushed(workdir, "--revision=step-1") == 0
    repository = hub.repositories["me/legal"]
    assert "modules.json" in repository.on()
    assert "modules.json" not in repository.on("step-1")
    assert "--init=hf://me/legal@step-1" in capsys.readouterr().out


def test_the_card(workdir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", SECRET)
    monkeypatch.setenv("MY_API_KEY", IN_ENVIRONMENT)
    assert run(["export", f"--workdir={workdir}", f"--output={tmp_path / 'out'}"]) == 0
    text = "".join(path.read_text(errors="replace") for path in (tmp_path / "out").iterdir())
    for secret in (SECRET, IN_ENVIRONMENT, "opensesame", "me:pw", "/home", "somebody", "/data", str(workdir.parent)):
        assert secret not in text
    card = ModelCard.load(tmp_path / "out" / "README.md")
    assert "- text: 3,000 documents, 2,054,226 tokens; text_files (files *.txt; language en)" in card.text
    assert f"- vocabulary: {TOKENIZER.size} pieces, WordPiece, uncased" in card.text
    assert "bert-jax pretrain --config=recipe.json --workdir=legal '--config.training.api_key=***'" in card.text
    assert "- git commit: ffff" in card.text
    assert "](curves.svg)" in card.text
    results = card.data.eval_results
    assert results is not None
    found = {one.metric_name: (one.metric_type, one.metric_value) for one in results}
    assert found == {"mlm loss": ("loss", 4.234), "mlm accuracy": ("accuracy", 0.317)}
    assert {(one.task_type, one.dataset_type) for one in results} == {("fill-mask", "text_files")}
    assert card.data.to_dict()["bert_jax_run"] == RECORD["run_id"]


@pytest.mark.parametrize(
    ("token", "message"),
    [
        (None, "--push=me/legal needs a token with the right to write; log in with `hf auth login`, or set HF_TOKEN"),
        (hub_server.STRANGER, "the Hub refuses your token"),
        (hub_server.READER, "your token may only read"),
    ],
)
def test_a_token_that_may_not_push(
    hub: Hub,
    workdir: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    token: str | None,
    message: str,
) -> None:
    hub_server.use(hub, tmp_path / "cache", monkeypatch, token)
    assert pushed(workdir) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1
    assert not hub.repositories


def test_without_a_hub(
    hub: Hub, workdir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    assert pushed(workdir) == 1
    assert "hf://me/legal: the connection to the Hub broke" in capsys.readouterr().err
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert pushed(workdir) == 2
    assert "--push=me/legal needs a network, and HF_HUB_OFFLINE is set; unset it" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--push=legal"], "--push=legal is not USER/NAME"),
        (["--push=me/le gal"], "is not hf://USER/NAME"),
        (["--push=them/legal"], "your token may not do this"),
        ([], "give --output=DIR, a new folder, or --push=USER/NAME"),
        (["--output=out", "--revision=a"], "--revision needs --push=USER/NAME"),
    ],
)
def test_names_and_flags_that_cannot_be(
    hub: Hub, workdir: Path, capsys: pytest.CaptureFixture[str], flags: list[str], message: str
) -> None:
    assert run(["export", f"--workdir={workdir}", *flags]) == 2
    assert message in capsys.readouterr().err
    assert not hub.repositories


def test_files_of_others_stay_as_they_are(
    hub: Hub, workdir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hub.add("me/legal", {"config.json": b"{}", "README.md": b"---\nlicense: mit\n---\n"})
    for flags in ([], ["--revision=new"]):
        assert pushed(workdir, *flags) == 2
        said = capsys.readouterr().err
        assert "has files that are not of this run: README.md, config.json; give another name" in said
    assert hub.repositories["me/legal"].branches.keys() == {"main"}
    hub.add("me/empty", {".gitattributes": b""})
    assert pushed(workdir, name="me/empty") == 0, "nothing is overwritten"
    other = write_run_folder(tmp_path / "other", 1, run_id="another")
    assert pushed(other, name="me/empty") == 2
    later = write_run_folder(tmp_path / "later", 1)
    assert pushed(later, name="me/empty") == 0, "the same run"
    assert pushed(later, "--private", name="me/empty") == 2
    assert "hf://me/empty is public already; leave --private out" in capsys.readouterr().err


def test_who_may_see_it_is_asked(hub: Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    private = write_run_folder(tmp_path / "private", config={**RECORD["config"], "private": True}, command="")
    assert pushed(private) == 2
    assert "the run was private; add --private, or --public if everybody may see it" in capsys.readouterr().err
    hub.add("them/open", {"config.json": b"{}"})
    hub.add("them/gated", {"config.json": b"{}"}, gated=True)
    hub.add("them/closed", {"config.json": b"{}"}, private=True)
    for name, exit_code in (("open", 0), ("gated", 2), ("closed", 2)):
        parent = {"source": f"hf://them/{name}@{'a' * 40}", "licence": "mit"}
        folder = write_run_folder(tmp_path / name, parent=parent)
        assert pushed(folder, name=f"me/{name}") == exit_code
        assert ("which is private or gated; add --private" in capsys.readouterr().err) == (exit_code == 2)
        assert pushed(folder, "--private", name=f"me/p-{name}") == 0
        assert hub.repositories[f"me/p-{name}"].private
    card = hub.repositories["me/open"].on()["README.md"].decode()
    assert "\nlicense: mit  #" in card
    assert "\nbase_model: them/open\n" in card


def test_a_connection_that_breaks_leaves_nothing_half(
    hub: Hub, workdir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hub.cut_after = 1000
    assert pushed(workdir, f"--output={tmp_path / 'out'}") == 1
    said = capsys.readouterr().err
    assert "hf://me/legal: the connection to the Hub broke" in said
    assert said.rstrip().endswith("run the same command again to go on")
    repository = hub.repositories["me/legal"]
    assert repository.on().keys() == {".gitattributes"}
    assert not (tmp_path / "out").exists()
    hub.cut_after, hub.refuse = None, {("POST", "/commit/"): 500}
    assert pushed(workdir) == 1
    assert len(hub.uploads) == 1
    assert repository.on().keys() == {".gitattributes"}
    hub.refuse, hub.requests = {}, []
    assert pushed(workdir, f"--output={tmp_path / 'out'}") == 0
    assert not [one for one in hub.requests if one.startswith("PUT")], "what is there is not uploaded again"
    assert repository.on().keys() > {"model.safetensors"}
    assert (tmp_path / "out" / "config.json").exists()


def test_an_export_that_is_not_right_is_not_pushed(
    hub: Hub, workdir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from bert_jax.errors import UserError
    from bert_jax.interchange import hugging_face

    def fails(*arguments: Any) -> str:
        raise UserError("the exported model differs from the trained one")

    monkeypatch.setattr(hugging_face, "_check_written", fails)
    assert pushed(workdir) == 2
    assert not hub.repositories
    assert not any(one.startswith("PUT") for one in hub.requests)


def test_an_import_is_pushed_twice(hub: Hub, exports: Path, tmp_path: Path) -> None:
    """It has no run, by whose id its files would be known."""
    shutil.copytree(exports / "masked_lm", tmp_path / "model")
    assert run(["import", f"--input={tmp_path / 'model'}", f"--workdir={tmp_path / 'run'}"]) == 0
    assert [pushed(tmp_path / "run"), pushed(tmp_path / "run")] == [0, 0]
    assert str(tmp_path) not in hub.repositories["me/legal"].on()["README.md"].decode()
