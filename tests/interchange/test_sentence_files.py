"""Folders of sentence-transformers: the vectors of texts are theirs, or what cannot be computed is refused by name."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bert_jax
from bert_jax.cli.main import run
from bert_jax.errors import UserError
from bert_jax.features.extract import Extractor
from bert_jax.interchange.loading import load
from bert_jax.interchange.trained_model import TrainedModel
from tests.features.reading import read_features
from tests.interchange.sentence_folders import FORMS, TEXTS, put, write, write_encoder

# The number of values, and the first and last of each vector of TEXTS, by sentence-transformers 6.2 on these folders.
THEIRS: dict[str, tuple[int, list[list[float]]]] = {
    "LaBSE": (8, [[0.2527, 0.4422], [0.0064, 0.5185], [0.2971, 0.4745], [0.231, 0.4941]]),
    "all-MiniLM-L6-v2": (32, [[-0.1778, -0.072], [-0.1687, -0.0352], [-0.1832, -0.0588], [-0.2692, 0.0117]]),
    "bge": (32, [[-0.1962, -0.0249], [-0.215, 0.0293], [-0.228, -0.047], [-0.1972, 0.0358]]),
    "e5": (32, [[-0.2346, -0.0797], [-0.1687, -0.0352], [-0.2024, -0.0533], [-0.2692, 0.0117]]),
    "gte": (32, [[-1.1619, -0.1473], [-1.2895, 0.1755], [-1.3517, -0.2787], [-1.1639, 0.211]]),
    "instructor": (64, [[-1.013, -0.4798], [-0.8721, -0.0692], [-1.1766, -0.379], [-1.2807, -0.1758]]),
    "joined": (96, [[-1.1619, -1.1814], [-1.2895, -0.3463], [-1.3517, -1.1159], [-1.1639, 0.1575]]),
    "last": (32, [[-1.5584, -0.6233], [-1.2336, -0.1136], [-1.114, -0.0652], [-1.9519, 0.0799]]),
    "lower": (32, [[-0.9968, -0.0532], [-0.3489, 0.1755], [-0.9541, 0.1213], [-1.1639, 0.4108]]),
    "msmarco-distilbert": (32, [[-1.3152, -0.4465], [-0.9573, -0.1999], [-1.1322, -0.2982], [-1.4776, 0.0643]]),
    "newer": (5, [[-0.1071, -0.0001], [-0.0446, -0.0244], [-0.1338, -0.0009], [-0.1558, -0.022]]),
}
E5_QUERIES = [[-0.2137, -0.0311], [-0.1946, -0.035], [-0.2192, -0.0446], [-0.266, -0.0702]]
Folder = Callable[[str], Path]
pytestmark = pytest.mark.usefixtures("one_device")


def ends(vectors: np.ndarray) -> np.ndarray:
    return vectors[:, [0, -1]]


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_encoder(tmp_path_factory.mktemp("encoder") / "model")


@pytest.fixture
def folder(encoder: Path, tmp_path: Path) -> Folder:
    """Writes the folder of a form."""
    return lambda name: write(tmp_path / name, FORMS[name], encoder)


@pytest.mark.parametrize("name", FORMS)
def test_vectors_are_those_of_sentence_transformers(name: str, folder: Folder) -> None:
    vectors = bert_jax.load(folder(name)).encode(TEXTS)
    size, wanted = THEIRS[name]
    assert vectors.shape == (len(TEXTS), size)
    np.testing.assert_allclose(ends(vectors), wanted, atol=2e-4)


@pytest.mark.parametrize("name", ["LaBSE", "newer", "instructor"])
def test_they_go_out_as_they_came(name: str, folder: Folder, capsys: pytest.CaptureFixture[str]) -> None:
    given = folder(name)
    vectors = bert_jax.load(given).encode(TEXTS)
    workdir, output = given.parent / "run", given.parent / "out"
    assert run(["import", f"--input={given}", f"--workdir={workdir}"]) == 0
    assert f"vectors: {load(str(given)).said_vectors}" in capsys.readouterr().out
    assert run(["export", f"--workdir={workdir}", f"--output={output}"]) == 0
    imported, exported = bert_jax.load(workdir), bert_jax.load(output)
    assert imported.said_vectors == exported.said_vectors is not None
    for model in (imported, exported):
        np.testing.assert_array_equal(model.encode(TEXTS), vectors)


def test_another_pooling_wins_and_is_said(folder: Folder, capsys: pytest.CaptureFixture[str]) -> None:
    bge, joined = bert_jax.load(folder("bge")), bert_jax.load(folder("joined"))
    mean = bge.encode(TEXTS, pooling="mean")
    assert f"mean pooling is taken, as you say; {bge.source} says cls" in capsys.readouterr().err
    np.testing.assert_allclose(ends(mean)[1], THEIRS["e5"][1][1], atol=2e-4)  # both get length 1
    np.testing.assert_array_equal(bge.encode(TEXTS, pooling="cls"), bge.encode(TEXTS))
    assert not capsys.readouterr().err
    assert joined.encode(TEXTS, pooling="max").shape == (4, 32)
    with pytest.raises(UserError, match="2_Dense reads vectors of 64 values, and max pooling of 32 gives 32"):
        bert_jax.load(folder("newer")).encode(TEXTS, pooling="max")


def test_the_length_and_the_prompt_can_be_chosen(folder: Folder) -> None:
    e5, short = bert_jax.load(folder("e5")), bert_jax.load(folder("all-MiniLM-L6-v2"))
    np.testing.assert_allclose(ends(e5.encode(TEXTS, prompt_name="query")), E5_QUERIES, atol=2e-4)
    np.testing.assert_allclose(ends(short.encode(TEXTS, max_length=32)), THEIRS["e5"][1], atol=2e-4)
    with pytest.raises(UserError, match="prompt_name is 'querry'; did you mean 'query'"):
        e5.encode(TEXTS, prompt_name="querry")
    with pytest.raises(UserError, match="prompt_name is 'query'; the model has none"):
        short.encode(TEXTS, prompt_name="query")


def test_the_command_features(folder: Folder, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS) + "\n")

    def features(name: str, layers: str) -> list[Any]:
        output = tmp_path / f"{name} {layers}.parquet"
        flags = [f"--workdir={tmp_path / name}", f"--input={tmp_path / 'texts.txt'}", f"--output={output}"]
        assert run(["features", *flags, f"--layers={layers}"]) == 0
        return list(read_features(output))

    folder("bge")
    found = features("bge", "sentence,cls")
    np.testing.assert_allclose(ends(np.stack([one.vectors["sentence"] for one in found])), THEIRS["bge"][1], atol=2e-4)
    np.testing.assert_allclose(ends(np.stack([one.vectors["cls"] for one in found])), THEIRS["gte"][1], atol=2e-4)
    said = capsys.readouterr().err
    assert "says cls pooling, then length 1, at most 32 tokens; --layers=sentence gives such vectors" in said
    folder("instructor")
    found = features("instructor", "sentence")
    vectors = np.stack([one.vectors["sentence"] for one in found])
    np.testing.assert_allclose(ends(vectors), THEIRS["instructor"][1], atol=2e-4)
    assert "each text is read with the model's prompt 'a bc ' before it" in capsys.readouterr().err
    assert found[1].item.text == "a bc f", "offsets are those of what was read"


def test_a_search_obeys_them(folder: Folder, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "corpus.txt").write_text("\n".join(TEXTS) + "\n")

    def search(name: str, *more: str) -> tuple[dict[str, float], str]:
        flags = [f"--workdir={tmp_path / name}", f"--corpus={tmp_path / 'corpus.txt'}", "--query=a b", "--json"]
        assert run(["retrieve", *flags, *more]) == 0
        printed = capsys.readouterr()
        [record] = [json.loads(line) for line in printed.out.splitlines()]
        return {one["id"]: one["score"] for one in record["documents"]}, printed.err

    model = bert_jax.load(folder("e5"))
    scores = model.encode(TEXTS, prompt_name="passage") @ model.encode(["a b"], prompt_name="query")[0]
    found, said = search("e5")
    assert found == pytest.approx({str(i + 1): score for i, score in enumerate(scores.tolist())}, abs=2e-5)
    assert "each query is read with the model's prompt 'a b ' before it" in said
    assert "each document is read with the model's prompt 'c ' before it" in said
    settings = folder("gte") / "config_sentence_transformers.json"
    model = bert_jax.load(tmp_path / "gte")
    dots, cosines = model.encode(TEXTS) @ model.encode(["a b"])[0], search("gte")[0]
    assert max(cosines.values()) < 1.001 < dots.max()
    put(settings, {"similarity_fn_name": "dot"})
    assert search("gte")[0] == pytest.approx({str(i + 1): dot for i, dot in enumerate(dots.tolist())}, abs=2e-4)
    assert "max pooling is taken, as you say" in search("gte", "--pooling=max")[1]
    put(settings, {"similarity_fn_name": "euclidean"})
    assert run(["retrieve", f"--workdir={tmp_path / 'gte'}", f"--corpus={tmp_path / 'corpus.txt'}", "--query=a"]) == 2
    assert "similarity_fn_name 'euclidean'; a search compares by cosine or dot" in capsys.readouterr().err


def module(kind: str, path: str = "x") -> dict[str, str]:
    return {"type": kind, "path": path}


FIRST, ST = module("sentence_transformers.models.Transformer", ""), "sentence_transformers.models."
POOLING = module(f"{ST}Pooling", "1_Pooling")


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("modules.json", {}, "is no list of modules, each with a type and a path; copy it again"),
        ("modules.json", [], "is no list of modules"),
        ("modules.json", [{"type": "a"}], "is no list of modules"),
        ("modules.json", ["a"], "is no list of modules"),
        ("modules.json", [{**FIRST, "path": 3}], "is no list of modules"),
        ("modules.json", [FIRST, {**POOLING, "path": "../x"}], "the path '../x', outside its folder"),
        ("modules.json", [FIRST, module(f"{ST}CNN")], "has 'sentence_transformers.models.CNN' .path 'x'. second"),
        ("modules.json", [FIRST, POOLING, module(f"{ST}LSTM")], "LSTM' .* after the pooling; readable there: Dense"),
        ("modules.json", [module(f"{ST}StaticEmbedding", "")], "StaticEmbedding' .path ''. first"),
        ("modules.json", [module("custom_st.Transformer", ""), POOLING], "has 'custom_st.Transformer'"),
        ("modules.json", [{**FIRST, "kwargs": ["task"]}, POOLING], r"kwargs \['task'\], which are not obeyed"),
        ("1_Pooling/config.json", {"pooling_mode": "median"}, 'pooling_mode "median"; readable: mean, cls, max'),
        ("1_Pooling/config.json", {"pooling_mode": []}, r"pooling_mode \[\]; readable"),
        ("1_Pooling/config.json", {"pooling_mode_cls_token": "true"}, 'cls_token "true"; true or false is needed'),
        (
            "1_Pooling/config.json",
            {"pooling_mode_attention": True},
            "pooling_mode_attention true; this key is not known",
        ),
        ("1_Pooling/config.json", {"word_embedding_dimension": 384}, "dimension 384, the encoder 32; copy the whole"),
        (
            "1_Pooling/config.json",
            None,
            "modules.json names 1_Pooling, which has no config.json; copy the whole folder",
        ),
        ("2_Dense/config.json", {"in_features": 64}, "2_Dense has the tensors .*linear.weight': .8, 32.*says .*8, 64"),
        ("2_Dense/config.json", {"activation_function": "torch.nn.modules.activation.Softsign"}, "Softsign'; readable"),
        ("2_Dense/config.json", {"activation_function": "mine.Tanh"}, "activation_function 'mine.Tanh'; readable"),
        ("2_Dense/config.json", {"use_residual": True}, "use_residual true; readable: false or null"),
        ("2_Dense/config.json", {"module_input_name": "token_embeddings"}, 'readable: "sentence_embedding" or null'),
        ("2_Dense/model.safetensors", None, "2_Dense has no model.safetensors; is it a model's folder"),
        ("sentence_bert_config.json", {"max_seq_length": 2}, "max_seq_length 2; at least 4 is needed"),
        ("sentence_bert_config.json", {"max_seq_length": "128"}, 'max_seq_length "128"; a whole number is needed'),
        ("sentence_bert_config.json", {"do_lower_case": 1}, "do_lower_case 1; true or false is needed"),
        ("sentence_bert_config.json", {"query_length": 32}, "query_length 32; readable: null"),
        ("sentence_bert_config.json", {"model_args": {"num_labels": 1}}, "model_args has num_labels 1"),
        ("config_sentence_transformers.json", {"prompts": []}, r"prompts \[\]; an object is needed"),
        ("config_sentence_transformers.json", {"prompts": {"query": 3}}, "the prompt 'query' is 3; a text is needed"),
        (
            "config_sentence_transformers.json",
            {"default_prompt_name": "q"},
            "default_prompt_name 'q', which is none of",
        ),
        ("config_sentence_transformers.json", {"similarity_fn_name": "maxsim"}, "'maxsim'; readable: cosine, dot"),
        ("config_sentence_transformers.json", {"model_type": "SparseEncoder"}, "model_type 'SparseEncoder'; readable"),
        ("config_sentence_transformers.json", {"truncate_dim": 0}, "truncate_dim 0; at least 1 is needed"),
    ],
)
def test_what_is_not_computed_is_refused_by_name(file: str, content: Any, said: str, folder: Folder) -> None:
    path = folder("LaBSE") / file
    if content is None:
        path.unlink()
    else:
        before = json.loads(path.read_text()) if path.exists() else {}
        put(path, {**before, **content} if content and isinstance(before, dict) else content)
    with pytest.raises(UserError, match=said) as raised:
        load(str(path.parents[1] if file[1] == "_" else path.parent))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("text", ["", "[", '{"a"', "null", "[" * 100_000])
def test_a_damaged_list_of_modules_is_one_line(text: str, folder: Folder) -> None:
    given = folder("bge")
    (given / "modules.json").write_text(text)
    with pytest.raises(UserError, match="bge/modules.json is no list of modules"):
        load(str(given))


def test_no_pickle_is_read(folder: Folder) -> None:
    dense = folder("LaBSE") / "2_Dense"
    (dense / "model.safetensors").rename(dense / "pytorch_model.bin")
    with pytest.raises(UserError, match="2_Dense has no model.safetensors; pytorch_model.bin is a pickle"):
        load(str(dense.parent))


def test_the_encoder_alone_is_read_as_the_messages_say(folder: Folder) -> None:
    for name in ("bge", "msmarco-distilbert"):
        given = folder(name)
        listed = json.loads((given / "modules.json").read_text())
        put(given / "modules.json", [listed[0], module(f"{ST}CNN")])
        with pytest.raises(UserError) as raised:
            load(str(given))
        [hint] = re.findall("to read the encoder alone, (.*)$", str(raised.value))
        verb, path = hint.split(" ", 1)
        if verb == "remove":
            Path(path).unlink()
        model = load(str(given) if verb == "remove" else path)
        assert model.said_vectors is None
        assert model.encode(TEXTS).shape == (4, 32)


def test_a_cross_encoder_is_read_as_before(folder: Folder) -> None:
    given = folder("gte")
    put(given / "modules.json", [FIRST])
    put(given / "config_sentence_transformers.json", {"model_type": "CrossEncoder"})
    shutil.rmtree(given / "1_Pooling")
    assert load(str(given)).said_vectors is None


def test_vectors_do_not_depend_on_how_texts_are_batched(folder: Folder) -> None:
    """Padding is never pooled."""
    models: list[TrainedModel] = [bert_jax.load(folder(name)) for name in ("joined", "newer", "last")]
    for model in models:
        alone = np.concatenate([model.encode([text]) for text in TEXTS])
        np.testing.assert_allclose(Extractor(model, ["sentence"], batch_size=8).texts(TEXTS * 3)[:4], alone, atol=2e-5)
