"""``bert-jax features``: what its flags say reaches the file; mistakes are one line; memory stays where it is."""

import subprocess
import sys
from pathlib import Path

import pytest

from bert_jax.cli.main import run
from bert_jax.interchange.hugging_face import export_model
from bert_jax.interchange.trained_model import TrainedModel
from bert_jax.interchange.workdir import import_into_workdir
from tests.features.reading import read_features
from tests.features.test_features import CONFIG, PARAMS, TOKENIZER

# Peak memory, in kB, of extracting a file, without pages of files, which the system drops where it needs memory; the
# interpreter alone takes about a fifth of a GB.
PEAK = """
import sys, threading, time
from pathlib import Path
from bert_jax.cli.main import run
peak = 0
def watch():
    global peak
    while True:
        peak = max(peak, int(Path("/proc/self/status").read_text().partition("RssAnon:")[2].split()[0]))
        time.sleep(0.005)
threading.Thread(target=watch, daemon=True).start()
assert run(sys.argv[1:]) == 0
print(peak)
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("model") / "hugging_face"
    export_model(TrainedModel("", PARAMS, CONFIG, TOKENIZER), folder, "a card")
    return str(folder)


def test_a_workdir_and_a_table(tmp_path: Path, model: str, capsys: pytest.CaptureFixture[str]):
    import_into_workdir(model, str(tmp_path / "work"))
    (tmp_path / "x.tsv").write_text("k1\ta b\tbank\nk2\th g f e d c b a\triver\n")
    flags = ["--column=1", "--pair_column=2", "--id_column=0", '--options={"header": false}', "--max_length=9"]
    flags += ["--layers=sum_last_four,cls", "--dtype=float16", "--batch_size=2"]
    output = tmp_path / "x.parquet"
    line = ["features", f"--workdir={tmp_path / 'work'}", f"--input={tmp_path / 'x.tsv'}", f"--output={output}", *flags]
    assert run(line) == 0
    stderr = capsys.readouterr().err
    assert "2 texts, 15 tokens" in stderr
    assert "1 texts cut at 9 tokens, 3 left out" in stderr
    found = list(read_features(output))
    assert [(one.item.id, one.item.text, one.item.pair) for one in found] == [
        ("k1", "a b", "bank"),
        ("k2", "h g f e d c b a", "river"),
    ]
    assert [one.vectors["sum_last_four"].shape for one in found] == [(6, 24), (9, 24)]
    assert run(line) == 2
    assert "exists already" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--layers=lst"], "unknown layer 'lst'; did you mean 'last'"),
        (["--options=header"], "is no JSON object"),
        (["--options=[1]"], "is no JSON object"),
        (["--step=3"], "has one model, and no step 3"),
    ],
)
def test_mistakes_are_errors(
    tmp_path: Path, model: str, flags: list[str], message: str, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "x.txt").write_text("a\n")
    output = tmp_path / "out.parquet"
    line = ["features", f"--init={model}", f"--input={tmp_path / 'x.txt'}", f"--output={output}", *flags]
    assert run(line) == 2
    assert message in capsys.readouterr().err
    assert not output.exists()


@pytest.mark.heavy
def test_memory_does_not_grow_with_the_input(tmp_path: Path, model: str):
    """Twenty times the texts write 20 times 20 MB, and take less than 150 MB more."""
    peaks = []
    for times in (1, 20):
        text, target = tmp_path / f"{times}.txt", tmp_path / f"{times}.parquet"
        text.write_text("a b c d e f g h a b c d e f\n" * (2000 * times))
        line = ["features", f"--init={model}", f"--input={text}", f"--output={target}", "--layers=all"]
        done = subprocess.run([sys.executable, "-c", PEAK, *line], capture_output=True, text=True, check=True)
        peaks.append(int(done.stdout))
    print(f"\n{peaks[0]:,} and {peaks[1]:,} kB")
    assert peaks[1] - peaks[0] < 150_000, peaks
