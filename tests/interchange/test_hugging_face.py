"""Exports as Hugging Face directories, without transformers: what goes out comes back, whole or not at all."""

import dataclasses
import errno
import json
import re
import resource
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import tokenizers
import yaml
from safetensors.numpy import load_file

from bert_jax.checkpoints.restoring import saved_steps
from bert_jax.errors import UserError
from bert_jax.interchange import tensors
from bert_jax.interchange import workdir as workdirs
from bert_jax.interchange.architectures import HeadClass
from bert_jax.interchange.card import model_card
from bert_jax.interchange.hugging_face import export_model, import_model
from bert_jax.interchange.tensors import WEIGHTS
from bert_jax.interchange.trained_model import TrainedModel
from bert_jax.interchange.workdir import import_into_workdir
from bert_jax.models.encoders import bert
from bert_jax.models.model import config_facts
from bert_jax.storage import files
from bert_jax.storage.checksums import CHECKSUMS
from bert_jax.text.tokenizer import Tokenizer, of_json, wordpiece
from tests.interchange.small_model import CONFIG, PARAMS, TOKENIZER, assert_same
from tests.text.byte_level_files import roberta


def test_what_goes_out_comes_back(exported: Path) -> None:
    imported = import_model(exported)
    assert_same(imported.params, PARAMS)
    assert imported.config == CONFIG
    assert (imported.report.missing, imported.tokenizer.lowercase) == ((), False)
    assert imported.tokenizer.sha256 == TOKENIZER.sha256


def test_the_sha256_of_the_weights_stands_beside_them(exported: Path) -> None:
    digest = files.sha256(exported / WEIGHTS)
    assert f"{digest}  {WEIGHTS}\n" in (exported / CHECKSUMS).read_text()
    assert (exported / "README.md").read_text() == "the card"


@pytest.mark.parametrize("name", [WEIGHTS, "config.json", "vocab.txt", "tokenizer_config.json"])
def test_a_changed_file_is_refused_where_the_list_is_there(exported: Path, tmp_path: Path, name: str) -> None:
    folder = Path(shutil.copytree(exported, tmp_path / "model"))
    data = bytearray((folder / name).read_bytes())
    data[len(data) // 2] ^= 1
    (folder / name).write_bytes(data)
    with pytest.raises(UserError, match=f"model: {name} is damaged: its sha256 differs from SHA256SUMS; copy the"):
        import_model(folder)
    (folder / name).unlink()
    with pytest.raises(UserError, match=f"'{name}', which SHA256SUMS lists, is missing"):
        import_model(folder)


@pytest.mark.parametrize("lines", [0, 1])
def test_a_list_without_the_weights_is_refused(exported: Path, tmp_path: Path, lines: int) -> None:
    folder = Path(shutil.copytree(exported, tmp_path / "model"))
    listed = [line for line in (folder / CHECKSUMS).read_text().splitlines() if "config.json" in line]
    (folder / CHECKSUMS).write_text("".join(f"{line}\n" for line in listed[: lines * 9]))
    with pytest.raises(UserError, match="SHA256SUMS does not list (config.json|model.safetensors); copy the whole"):
        import_model(folder)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_weights_that_are_not_finite_are_not_written(tmp_path: Path, value: float) -> None:
    params = jax.tree.map(np.copy, PARAMS)
    params["mlm_head"]["output_bias"][7] = value
    with pytest.raises(UserError, match=r"^cls.predictions.bias of the model holds values that are not .* nothing was"):
        export_model(TrainedModel("", params, CONFIG, TOKENIZER), tmp_path / "out", "card")
    assert list(tmp_path.iterdir()) == []


def test_an_import_is_there_whole_or_not_at_all(
    exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(folder: str, run: Any) -> None:
        assert saved_steps(folder) == [0]
        assert not workdir.exists()
        raise KeyboardInterrupt

    workdir = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(workdirs, "write_run", interrupted)
        with pytest.raises(KeyboardInterrupt):
            import_into_workdir(str(exported), str(workdir))
    assert list(tmp_path.iterdir()) == []
    import_into_workdir(str(exported), str(workdir))
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    assert {path.name for path in workdir.iterdir()} >= {"run.json", "vocab.txt", "checkpoints"}
    with pytest.raises(UserError, match="is not empty; give a new --workdir"):
        import_into_workdir(str(exported), str(workdir))


@pytest.mark.usefixtures("small_files")
def test_an_import_that_cannot_be_written(exported: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot write .*/run .*too large.*; raise the limit on the size of a file"):
        import_into_workdir(str(exported), str(tmp_path / "run"))
    assert list(tmp_path.iterdir()) == []


def test_the_files_of_a_directory(exported: Path) -> None:
    names = {file.name for file in exported.iterdir()}
    assert names == {
        "config.json", "model.safetensors", "vocab.txt", "tokenizer.json", "tokenizer_config.json",
        "special_tokens_map.json", "README.md", "SHA256SUMS",
    }  # fmt: skip
    assert len({file.stat().st_mode for file in exported.iterdir()}) == 1  # whoever may read one may read all
    config = json.loads((exported / "config.json").read_text())
    assert config["architectures"] == ["BertForPreTraining"]
    assert config["hidden_act"] == "gelu_new"
    assert config["pad_token_id"] == TOKENIZER.pad_id
    tensors = load_file(exported / WEIGHTS)
    query = PARAMS["encoder"]["layer_1"]["attention"]["query"]["kernel"]  # [D, H, head_dim]
    assert np.array_equal(tensors["bert.encoder.layer.1.attention.self.query.weight"], query.reshape(32, 32).T)
    assert {t.dtype for t in tensors.values()} == {np.dtype(np.float32)}


@pytest.mark.parametrize(("before", "after"), [(0.5, np.nextafter(np.float32(0.5), np.float32(1))), (0.0, -0.0)])
def test_an_export_with_another_bit_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: float, after: float
) -> None:
    write = tensors.save_file

    def flipped(arrays: dict[str, np.ndarray], path: Path, metadata: dict[str, str]) -> None:
        bias = arrays["cls.predictions.bias"].copy()
        bias[7] = after
        write(arrays | {"cls.predictions.bias": bias}, path, metadata)

    monkeypatch.setattr(tensors, "save_file", flipped)
    params = jax.tree.map(np.copy, PARAMS)
    params["mlm_head"]["output_bias"][7] = before
    with pytest.raises(UserError, match=r"differs from the trained one \(mlm_head/output_bias\); nothing was written"):
        export_model(TrainedModel("", params, CONFIG, TOKENIZER), tmp_path / "out", "card")
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def small_files() -> Iterator[None]:
    """No file may grow beyond 4 kB: a single array is larger."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4_000, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.usefixtures("small_files")
def test_a_write_that_fails_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot write .*/out: .*too large.*; raise the limit on the size"):
        export_model(TrainedModel("", PARAMS, CONFIG, TOKENIZER), tmp_path / "out", "card")
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_fills_up_in_the_operating_system_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(arrays: Any, path: Path, metadata: Any) -> None:
        path.write_bytes(b"the first half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tensors, "save_file", fail)
    with pytest.raises(UserError, match="No space left on device; free some space"):
        export_model(TrainedModel("", PARAMS, CONFIG, TOKENIZER), tmp_path / "out", "card")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("lowercase", [True, False])
def test_the_tokenizer_file_gives_our_ids(tmp_path: Path, lowercase: bool) -> None:
    ours = wordpiece(TOKENIZER.vocab, lowercase)
    export_model(TrainedModel("", PARAMS, CONFIG, ours), tmp_path / "out", "card")
    theirs = tokenizers.Tokenizer.from_file(str(tmp_path / "out" / "tokenizer.json"))
    for text in ("abc de", "Ab c\u00e9 42", "", "a [MASK] b", "un\u4e2dde?"):
        assert tuple(theirs.encode(text).ids) == ours.encode(text, special_tokens_in_text=True).input_ids
    pair = theirs.encode("abc", "de f")
    expected = ours.encode("abc", "de f")
    assert (tuple(pair.ids), tuple(pair.type_ids)) == (expected.input_ids, expected.token_type_ids)
    settings = json.loads((tmp_path / "out" / "tokenizer_config.json").read_text())
    assert (settings["do_lower_case"], settings["model_max_length"]) == (lowercase, CONFIG.max_length)
    assert import_model(tmp_path / "out").tokenizer.lowercase is lowercase


def test_a_place_that_is_taken_is_refused(exported: Path) -> None:
    before = (exported / "README.md").read_text()
    with pytest.raises(UserError, match="exists already"):
        export_model(TrainedModel("", PARAMS, CONFIG, TOKENIZER), exported, "another card")
    assert (exported / "README.md").read_text() == before


def trained(facts: Mapping[str, Any], step: int = 7, head: HeadClass | None = None) -> TrainedModel:
    """A model of which a card needs no more than this."""
    return TrainedModel("", {}, bert.Config(64), TOKENIZER, head, facts=facts, step=step)


def test_the_card_is_markdown_with_front_matter() -> None:
    facts = {
        "model": config_facts(bert.Config(64)),
        "lowercase": True,
        "corpus_fingerprint": "c0ffee",
        "vocabulary_sha256": "beef",
        "run": {"name": "trial", "run_id": "r1", "versions": {"jax": "0.10.2"}, "git_commit": "abc"},
    }
    card = model_card(trained(facts, 1000), {"mlm_loss": 2.5, "nsp_accuracy": 0.75})
    _, front, body = card.split("---\n", 2)
    assert yaml.safe_load(front) == {
        "library_name": "transformers",
        "pipeline_tag": "fill-mask",
        "license": "unknown",
        "tags": ["bert", "jax", "bert_jax"],
        "mask_token": "[MASK]",
        "bert_jax_run": "r1",
        "model-index": [
            {
                "name": "trial",
                "results": [
                    {
                        "task": {"type": "fill-mask"},
                        "dataset": {"type": "text", "name": "held-out rows of the run"},
                        "metrics": [
                            {"type": "loss", "name": "mlm loss", "value": 2.5},
                            {"type": "accuracy", "name": "nsp accuracy", "value": 0.75},
                        ],
                    }
                ],
            }
        ],
    }
    for text in (
        "# trial",
        "uncased",
        "c0ffee",
        "beef",
        "step: 1000",
        "jax 0.10.2",
        "| mlm loss | 2.5000 |",
        '"vocab_size": 64',
    ):
        assert text in body
    assert "No evaluation is recorded" in model_card(trained(facts), {})
    own = {"path": "/home/me/text", "options": {"paths": ["/home/me/a.txt"], "language": "zh"}}
    _, front, body = model_card(trained(facts | {"run": {"config": {"corpus": own}}}), {}).split("---\n", 2)
    assert yaml.safe_load(front)["language"] == "zh"
    parts = {name: {"options": {"language": code}} for name, code in (("a", "de"), ("b", "zh"), ("c", "de"))}
    parts["only_evaluated"] = {"options": {"language": "fr"}, "weight": 0}
    mixed = model_card(trained(facts | {"run": {"config": {"corpus": {"parts": parts, "options": {}}}}}), {})
    assert yaml.safe_load(mixed.split("---\n", 2)[1])["language"] == ["de", "zh"]
    assert '"a.txt"' in body
    assert "/home" not in body


BYTE_BPE = of_json(roberta())


@pytest.mark.parametrize(
    ("architecture", "tokenizer", "mask"),
    [
        ("BertForMaskedLM", TOKENIZER, "[MASK]"),
        ("RobertaForMaskedLM", BYTE_BPE, "<mask>"),
        ("ElectraForPreTraining", BYTE_BPE, None),  # a discriminator
        ("XLNetLMHeadModel", TOKENIZER, None),  # no class of the pipeline
        ("BertForSequenceClassification", BYTE_BPE, None),
    ],
)
def test_a_card_names_the_mask_of_the_tokenizer(architecture: str, tokenizer: Tokenizer, mask: str | None) -> None:
    model = dataclasses.replace(
        trained({"model": {}, "lowercase": True}, head=HeadClass(architecture)), tokenizer=tokenizer
    )
    card = model_card(model, {})
    front = yaml.safe_load(card.split("---\n")[1])
    assert (front.get("mask_token"), front.get("pipeline_tag") == "fill-mask") == (mask, mask is not None)
    assert (f"`{mask}` stands for a token to fill in" in card) == (mask is not None)


@pytest.mark.parametrize(("step", "longest"), [(1, "128"), (10, "128"), (11, "8,192"), (30, "8,192")])
def test_a_card_says_how_long_the_rows_of_training_were(step: int, longest: str) -> None:
    lengths = {"short": 128, "long": 8192, "short_again": 256}
    phases = {name: {"num_steps": 10, "batch_size": 8, "max_length": length} for name, length in lengths.items()}
    card = model_card(trained({"model": {}, "lowercase": True, "run": {"phases": phases}}, step), {})
    assert f"no more than 512 tokens at a time (the rows of its training had at most {longest})." in card
    assert "at a time.\n" in model_card(trained({"model": {}, "lowercase": True}), {})


def test_a_card_says_how_a_pair_is_cut() -> None:
    """40 + 40 pieces and three special tokens in 64 positions: BertTokenizerFast of transformers 4.57 keeps 30 + 31."""
    encoded = TOKENIZER.encode("a" * 40, "b" * 40, max_length=64)
    assert (encoded.input_ids.index(TOKENIZER.sep_id) - 1, 64 - 3 - 31) == (31, 30)
    assert "or of the second if both\nare equally long" in model_card(
        trained({"model": {}, "lowercase": True}, head=HeadClass("BertForSequenceClassification", labels=("a", "b"))),
        {},
    )
    assert "A pair of texts" not in model_card(trained({"model": {}, "lowercase": True}), {})


def test_a_model_card_tells_of_what_is_to_beat() -> None:
    facts = {"lowercase": True, "model": {}}
    baselines = {"unigram_cross_entropy": 6.25, "nsp_majority_rate": 0.5, "trigram_cloze_cross_entropy": None}
    card = model_card(trained(facts), {"mlm_loss": 2.5, "perplexity": 12.0}, baselines)
    assert "| mlm loss | 2.5000 | unigram 6.2500 |" in card
    assert "| perplexity | 12.0000 |  |" in card
    head = yaml.safe_load(card.split("---")[1])
    assert head["license"] == "unknown"  # a value that the hub knows


def test_what_a_user_named_brings_no_html_into_the_card() -> None:
    tag = "<script>`<i>&"
    parts = {tag: {"source": tag}}
    run = {"name": tag, "run_id": tag, "config": {"corpus": {"parts": parts}}}
    facts = {"model": {}, "lowercase": True, "run": run, "task": {"name": tag}}
    head = HeadClass("BertForSequenceClassification", labels=(tag, "b"))
    card = model_card(trained(facts, head=head), {f"loss/{tag}": 1.0}, parent={"source": tag})
    outside = re.sub(r"```json.*?```|`[^`\n]*`", "", card, flags=re.DOTALL)
    assert "# &lt;script&gt;&#96;&lt;i&gt;&amp;\n" in card
    assert not re.findall(r"<|&(?!lt;|gt;|amp;|#96;)", outside)
