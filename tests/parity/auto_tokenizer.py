"""Reads a folder with transformers: version 5 in this process, version 4 in a process of ``.venv-parity4``."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROLES = ("pad", "unk", "cls", "sep", "mask")
_PYTHON4 = Path(__file__).parents[2] / ".venv-parity4" / "bin" / "python"


def read(folder: Path | str, calls: list[list[Any]], major: int = 5) -> dict[str, Any]:
    """Return the reading of a folder by ``AutoTokenizer`` and, if there is one, by ``AutoConfig``.

    Args:
      calls: the arguments of each call of the tokenizer: a text, the text beside it or None, and keywords.
      major: the version of transformers, 4 or 5.
    """
    if major == 4:
        command = [str(_PYTHON4), __file__, str(folder)]
        done = subprocess.run(command, input=json.dumps(calls), capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)  # type: ignore[no-any-return]
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    found = {
        "version": transformers.__version__,
        "size": len(tokenizer),
        "special_ids": [getattr(tokenizer, f"{role}_token_id") for role in ROLES],
        "max_length": tokenizer.model_max_length,
        "encoded": [dict(tokenizer(text, pair, **keywords)) for text, pair, keywords in calls],
    }
    if (Path(folder) / "config.json").exists():
        found["config"] = transformers.AutoConfig.from_pretrained(folder).to_dict()
    return found


if __name__ == "__main__":
    print(json.dumps(read(sys.argv[1], json.load(sys.stdin))))
