"""An error in a user's own file while it runs is one line that names the file and the line."""

from pathlib import Path

import pytest

from bert_jax.cli.main import run
from tests.runs.test_own_code import write_folder


def test_the_line_and_with_the_variable_the_traceback(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write_folder(tmp_path / "one") / "words.py"
    signature = "    def terms(self, config):\n"
    before, after = file.read_text().split(signature)
    file.write_text(f"{before}{signature}        1 / 0\n{after}")
    line = before.count("\n") + 2
    command = ["pretrain", f"--config={file.parent / 'own.py'}", f"--workdir={tmp_path / 'run'}"]
    assert run(command) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"error: {file}:{line}, in a file of your own: ZeroDivisionError: ")
    assert said.count("\n") == 1
    monkeypatch.setenv("BERT_JAX_TRACEBACK", "1")
    assert run(command) == 1
    assert "Traceback" in capsys.readouterr().err
