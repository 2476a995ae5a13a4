"""Folders of tokenizer files from other programs: read and written again, they give the ids of ``AutoTokenizer``."""

import json
import random
from pathlib import Path
from typing import Any

import pytest

transformers = pytest.importorskip("transformers", reason="needs the parity environment: make test-parity")

from bert_jax.interchange.tokenizer_files import write_tokenizer
from bert_jax.text.learn_sentencepiece import learn_sentencepiece
from bert_jax.text.sentencepiece_model import parse
from bert_jax.text.tokenizer import load
from tests.models.helpers import tiny

pytestmark = pytest.mark.parity
TEXTS = [
    "Über 東京都 läuft",
    "Der Hund, café 12.",
    "the <e1>cat</e1> sat",
    "THE cats on a mat",
    "``It'' é 各 ﬁne  x",
    "",
]
WORDS = (
    *("the", "cat", "##s", "sat", "on", "a", "mat", "der", "hund", "Der", "Hund", "über", "läuft", "uber", "lauft"),
    *("café", "cafe", "12", ",", ".", "東", "京", "都", "東京", "##京都", "<", ">", "e1", "/"),
)
NAMES = {"pad": "<pad>", "unk": "<unk>", "cls": "<s>", "sep": "</s>", "mask": "<mask>"}
USUAL = {role: f"[{role.upper()}]" for role in NAMES}


def vocabulary(rng: random.Random, special: dict[str, str]) -> list[str]:
    """Return lines as in published files: with white space at their ends, blank lines, repeated lines."""
    lines = [*special.values(), *WORDS]
    lines += rng.choices(["", "the", "cat", "\u2028", "##s", "12"], k=rng.randint(0, 6))
    rng.shuffle(lines)
    return [line + rng.choice(["", "", " ", "\t", "\u3000", "\r"]) for line in lines]


def write(folder: Path, files: dict[str, Any]) -> None:
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "bert"}')
    for name, content in files.items():
        (folder / name).write_bytes((content if isinstance(content, str) else json.dumps(content)).encode())


def assert_same(folder: Path, tmp_path: Path, types: int = 2) -> None:
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    ours = load(folder)
    out = tmp_path / "out"
    out.mkdir()
    (out / "config.json").write_text('{"model_type": "bert"}')
    write_tokenizer(out, tiny(vocab_size=ours.size, type_vocab_size=types), ours)
    again = transformers.AutoTokenizer.from_pretrained(out)
    for text in [*TEXTS, f"the {ours.vocab[ours.mask_id]} sat"]:
        ids = theirs(text)["input_ids"]
        assert list(ours.encode(text, special_tokens_in_text=True).input_ids) == ids, text
        assert again(text)["input_ids"] == ids, text
    assert load(out).encode(TEXTS[0]) == ours.encode(TEXTS[0])


@pytest.mark.parametrize("seed", range(40))
def test_vocab_txt_and_what_lies_beside_it(tmp_path, seed):
    rng = random.Random(seed)
    special = rng.choice([USUAL, USUAL, NAMES])
    lines = vocabulary(rng, special)
    flags = {name: rng.choice([True, False]) for name in ("do_lower_case", "strip_accents", "tokenize_chinese_chars")}
    config: dict[str, Any] = {name: on for name, on in flags.items() if rng.random() < 0.6}
    config["tokenizer_class"] = rng.choice(["BertTokenizer", "BertTokenizerFast", "DistilBertTokenizer"])
    files: dict[str, Any] = {"vocab.txt": "\n".join(lines) + "\n" * rng.randint(0, 1)}
    names = {f"{role}_token": token for role, token in special.items() if special is NAMES or rng.random() < 0.3}
    if rng.random() < 0.5:
        config |= names
    else:
        files["special_tokens_map.json"] = names
    if len({line.strip() for line in lines}) == len(lines):  # else transformers gives added tokens the ids of pieces
        files["added_tokens.json"] = {"<e1>": len(lines), "</e1>": len(lines) + 1}
    files["tokenizer_config.json"] = config
    write(tmp_path / "theirs", files)
    assert_same(tmp_path / "theirs", tmp_path)


@pytest.mark.parametrize("flags", [{}, {"do_lower_case": False}, {"keep_accents": True}, {"add_prefix_space": False}])
def test_the_model_of_albert_and_what_lies_beside_it(tmp_path, flags):
    data = learn_sentencepiece([*TEXTS, "the cats run", 'He said "no"'] * 20, 90, num_threads=1, lowercase=False)
    model = parse(data, "the model")
    theirs = transformers.AlbertTokenizer(
        vocab=[(piece.piece, piece.score) for piece in model.pieces],
        pad_token="[PAD]",
        unk_token="[UNK]",
        _spm_precompiled_charsmap=model.normalizer_spec.precompiled_charsmap,
        **flags,
    )
    (tmp_path / "spiece.model").write_bytes(data)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "AlbertTokenizer", **flags}))
    ours = load(tmp_path)
    for text in [*TEXTS, "the [MASK] sat"]:
        assert list(ours.encode(text, special_tokens_in_text=True).input_ids) == theirs(text)["input_ids"], text
