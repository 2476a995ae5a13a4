"""The data card says what the manifest and the inspection say, and in private mode no more than that."""

from pathlib import Path

import pytest

from bert_jax.cli import main
from bert_jax.corpora.card import write_card
from bert_jax.corpora.hits import text_hits
from bert_jax.corpora.privacy import PREFIX, private_config, private_manifest, redact
from bert_jax.corpora.store import Corpus
from tests.inspection.corpora import WORDS, build, texts, write_vocab

MANIFEST = {
    "license": "CC BY-SA 4.0",
    "notes": "Minutes of the | society <b>.",
    "source": {
        "source": "hugging_face_dataset",
        "name": "acme/news",
        "revision": "abc123",
        "license": "odc-by",
        "paths": ["/home/jane/secret/*.txt", "b"],
        "files": 12,
    },
    "source_fingerprint": "f" * 64,
    "dropped": {"empty_documents": 3, "exact_duplicates": 1200},
    "skipped": {"not UTF-8": {"count": 4100, "examples": ["a.txt@17", "b.txt@3"]}},
    "splits": {
        "train": {"num_documents": 1000, "num_sentences": 20000, "num_tokens": 300000},
        "heldout": {"num_documents": 10, "num_sentences": 200, "num_tokens": 3000},
    },
    "heldout_documents": ["jane/1.txt", "jane/2|3.txt"],
    "text_bytes": 1234567,
    "text_hits": text_hits(b"a@b.org (555) 123-4567"),
    "tokenizer_sha256": "a" * 64,
    "vocab_size": 30522,
    "columns": {},
    "fingerprint": "b" * 64,
    "versions": {"python": "3.11.7", "numpy": "2.0"},
}


@pytest.mark.parametrize(
    "fact",
    [
        "1,010 documents, 303,000 tokens, 1,234,567 bytes",
        "| licence | CC BY-SA 4.0; license: odc-by |",
        "| dates | revision: abc123 |",
        "| paths | /home/jane/secret/*.txt, b |",
        "| documents kept | 1,010 |",
        "| dropped: exact duplicates | 1,200 |",
        "| skipped: not UTF-8 | 4,100, such as a.txt@17 |",
        "| heldout | 10 | 200 | 3,000 |",
        "The first 2 of 10, in the order of the text:\n\n- jane/1.txt\n- jane/2\\|3.txt\n",
        "| e-mail | 1 |",
        "| phone | 1 |",
        "| vocabulary | 30,522 pieces |",
        "python 3.11.7, numpy 2.0",
        "Not inspected",
    ],
)
def test_every_fact_is_there(fact: str) -> None:
    assert fact in write_card(MANIFEST)


def test_what_is_not_known_is_said_so() -> None:
    card = write_card({**MANIFEST, "license": "", "source": {"source": "text_files"}})
    assert "| licence | not stated |" in card


def test_text_cannot_break_the_tables() -> None:
    source = {"source": "x", "name": "a | b\n| <script> \\"}
    lines = write_card({**MANIFEST, "source": source}).splitlines()
    assert "| name | a \\| b \\| &lt;script&gt; \\\\ |" in lines


def test_notes_bring_no_html() -> None:
    assert "Minutes of the | society &lt;b&gt;." in write_card(MANIFEST).splitlines()


def test_a_private_card_names_no_place() -> None:
    card = write_card(private_manifest(MANIFEST))
    for secret in ("jane", "secret", "acme", "society", "abc123", "a.txt@17"):
        assert secret in write_card(MANIFEST)
        assert secret not in card
    assert "kept out of this card" in card
    assert "| files | 12 |" in card
    assert "CC BY-SA 4.0" in card
    assert "| skipped: not UTF-8 | 4,100, such as sha256:" in card


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
    flags = [f"--vocab={vocab}", "--max_length=64", f"--eval={tmp_path}/topsecret/open/text/00000.txt"]
    report = [f"--output={tmp_path / 'report'}", "--card"]
    main.run(["inspect", f"--corpus={opened}", *flags, *report])
    assert "zzyzx" in capsys.readouterr().out  # the test can fail
    assert "zzyzx" in (tmp_path / "report" / "report.html").read_text()
    assert "topsecret" in (opened / "card.md").read_text()
    held = Corpus(opened).manifest["heldout_documents"]
    assert len(held) == Corpus(opened).split("heldout").num_documents
    assert f"- {held[0]}\n" in (opened / "card.md").read_text()
    main.run(["inspect", f"--corpus={opened}", *flags, *report, "--private"])
    assert held[0] not in (opened / "card.md").read_text()
    assert "zzyzx" not in capsys.readouterr().out
    assert "topsecret" not in (opened / "card.md").read_text()
    for more in (report, ["--json"]):  # a private corpus needs no flag
        main.run(["inspect", f"--corpus={corpus}", *flags, *more])
        said = capsys.readouterr().out.replace(str(corpus / "card.md"), "")  # the user's own path
        assert "topsecret" not in said
        assert "zzyzx" not in said
    written = [path for path in (*corpus.rglob("*"), *(tmp_path / "report").rglob("*")) if path.is_file()]
    assert {"card.md", "manifest.json", "report.html"} <= {path.name for path in written}
    for path in written:
        assert held[0].encode() not in path.read_bytes(), path.name
        assert b"topsecret" not in path.read_bytes(), path.name
        assert b"zzyzx" not in path.read_bytes(), path.name
    assert "Overlap with evaluation sets: evaluation set" in (corpus / "card.md").read_text()
    assert Corpus(corpus).manifest["source"]["files"] == 60
