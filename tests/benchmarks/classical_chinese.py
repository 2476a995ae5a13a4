"""Writes pairs of sentences, classical and modern Chinese, for the recipe ``translation``.

    git clone https://github.com/NiuTrans/Classical-Modern
    python tests/benchmarks/classical_chinese.py Classical-Modern pairs

Each folder of 双语数据 has ``source.txt`` and ``target.txt``, whose lines belong together. A fortieth of the folders is
held out. Sentences of up to 20 characters whose translation has up to 30 remain: 125,954 pairs to train on in
``train.jsonl``, and 500 held out in ``dev.jsonl`` (commit 4e746ea9).
"""

import json
import random
import sys
from pathlib import Path

MOST = 200_000  # pairs that are drawn before the shorter pairs are taken
HELD_OUT = 40  # of so many folders, one is held out


def main(corpus: Path, output: Path) -> None:
    folders = sorted(path.parent for path in (corpus / "双语数据").rglob("target.txt"))
    pairs = {folder: found for folder in folders if (found := _pairs(folder)) is not None}
    rng, order = random.Random(0), list(pairs)
    rng.shuffle(order)
    held_out = set(order[: len(order) // HELD_OUT])
    train, dev = [], []
    for folder, found in pairs.items():
        (dev if folder in held_out else train).extend(pair for pair in found if _fits(*pair))
    known = {text for pair in dev for text in pair}
    train = [pair for pair in train if not known & {*pair}]
    for name, chosen, most, last in (("train", train, MOST, None), ("dev", dev, 1000, 500)):
        rng.shuffle(chosen)
        short = [pair for pair in chosen[:most] if len(pair[0]) <= 20 and len(pair[1]) <= 30]
        output.mkdir(exist_ok=True)
        with (output / f"{name}.jsonl").open("w", encoding="utf-8") as file:
            for text, target in short[:last]:
                file.write(json.dumps({"text": text, "target": target}, ensure_ascii=False) + "\n")


def _pairs(folder: Path) -> list[tuple[str, str]] | None:
    """Return the pairs of a folder; None if its files have unlike numbers of lines."""
    if not (folder / "source.txt").exists():
        return None
    sources, targets = (
        [line.strip() for line in (folder / name).read_text("utf-8", "replace").strip().split("\n")]
        for name in ("source.txt", "target.txt")
    )
    return list(zip(sources, targets, strict=True)) if len(sources) == len(targets) else None


def _fits(source: str, target: str) -> bool:
    return 6 <= len(source) <= 30 and 6 <= len(target) <= min(48, 3 * len(source))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
