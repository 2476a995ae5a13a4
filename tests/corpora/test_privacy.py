"""Private mode: no text of the corpus, and no path of it, is in a file or on the terminal."""

from pathlib import Path

import pytest

from bert_jax.cli import main
from bert_jax.corpora.privacy import PREFIX, private_config, redact
from bert_jax.corpora.store import Corpus
from tests.inspection.corpora import WORDS, build, texts, write_vocab


def test_redacted_keeps_structure_and_is_stable() -> None:
    options = {"paths": ("/a/b", "/a/c"), "format": "free", "files": 3, "weights": {"/x/y.txt": 0.5, "english": 1.0}}
    hidden = redact(options)
    assert hidden["format"] == "free"
    assert hidden["files"] == 3
    assert len(set(hidden["paths"])) == 2
    assert all(text.startswith(PREFIX) for text in hidden["paths"])
    assert set(hidden["weights"].values()) == {0.5, 1.0}
    assert "/x/y.txt" not in hidden["weights"]
    assert redact(hidden) == hidden  # what is hidden stays the same at a restart
    assert redact({**options, "paths": ("/a/b", "/a/d")}) != hidden
    config = {
        "seed": 0,
        "corpus": {"path": "", "options": options},
        "vocab": {"path": "/v"},
        "examples": ("A [MASK].",),
    }
    assert private_config(config)["examples"] == ("A [MASK].",)
    assert private_config(config)["corpus"]["options"] == hidden
    assert private_config(config)["corpus"]["path"] == ""


def test_a_private_corpus_and_its_inspection(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = f"zzyzx {' '.join(WORDS[::20])} ."
    documents = [[*lines, line] for lines in texts(60)]
    vocab = write_vocab(tmp_path / "vocab.txt", [*WORDS, "zzyzx"])
    opened = build(tmp_path / "topsecret" / "open", documents, vocab)
    corpus = build(tmp_path / "topsecret" / "closed", documents, vocab, "--private")
    capsys.readouterr()
    flags = [f"--vocab={vocab}", "--max_length=64"]
    main.run(["inspect", f"--corpus={opened}", *flags])
    assert "zzyzx" in capsys.readouterr().out  # the test can fail
    main.run(["inspect", f"--corpus={opened}", *flags, "--private"])
    assert "zzyzx" not in capsys.readouterr().out
    for more in ([], ["--json"]):  # a private corpus needs no flag
        main.run(["inspect", f"--corpus={corpus}", *flags, *more])
        said = capsys.readouterr().out
        assert "topsecret" not in said
        assert "zzyzx" not in said
    for path in (path for path in corpus.rglob("*") if path.is_file()):
        assert b"topsecret" not in path.read_bytes(), path.name
        assert b"zzyzx" not in path.read_bytes(), path.name
    assert Corpus(corpus).manifest["source"]["files"] == 60
