"""Each damage damages, one file alone, and the same one for the same seed."""

import os
import random
from pathlib import Path

import pytest

from tests.trust.damage import DAMAGES, PAGE, damage, damage_one, generator, scaled

CONTENT = b"\1\2\3\4" * PAGE


@pytest.mark.parametrize("kind", DAMAGES)
def test_a_damage(kind: str, tmp_path: Path) -> None:
    path, link = tmp_path / "file", tmp_path / "link"
    path.write_bytes(CONTENT)
    os.link(path, link)
    assert damage(path, kind, random.Random(0))
    assert link.read_bytes() == CONTENT
    if kind == "remove":
        assert not path.exists()
        return
    found = path.read_bytes()
    differing = [place for place, pair in enumerate(zip(found, CONTENT, strict=False)) if pair[0] != pair[1]]
    sizes = {"flip_bit": (1, 0), "swap_bytes": (2, 0), "zero_page": (PAGE, 0)}
    if kind in sizes:
        assert (len(differing), len(found) - len(CONTENT)) == sizes[kind]
    else:
        assert not differing
        assert (len(found) > len(CONTENT)) == (kind == "append")


def test_what_changes_nothing_is_reported(tmp_path: Path) -> None:
    (tmp_path / "zeros").write_bytes(bytes(10))
    (tmp_path / "empty").touch()
    assert not damage(tmp_path / "zeros", "zero_page", random.Random(0))
    assert not any(damage(tmp_path / "empty", kind, random.Random(0)) for kind in DAMAGES)


def test_the_seed_repeats_and_the_count_scales(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    done = []
    for seed in ("1", "1", "2"):
        monkeypatch.setenv("BERT_JAX_TRUST_SEED", seed)
        rng = generator("files")
        for name in "abc":
            (tmp_path / name).write_bytes(CONTENT)
        done.append([damage_one(tmp_path, rng, among=lambda path: path.name != "a") for _ in range(2)])
        assert (tmp_path / "a").read_bytes() == CONTENT
    assert done[0] == done[1] != done[2]
    assert "files: BERT_JAX_TRUST_SEED=2" in capsys.readouterr().out
    assert scaled(300) == 300
    monkeypatch.setenv("BERT_JAX_TRUST_COUNT", "0.1")
    assert (scaled(300), scaled(3)) == (30, 1)
