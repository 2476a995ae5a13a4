"""The progress line on a terminal, off one, and where neither works."""

import io
import os
import pty
import time

import pytest

from bert_jax.program import duration
from bert_jax.reporting import progress as progress_file
from bert_jax.reporting.formats import count, figure
from bert_jax.reporting.progress import ProgressLine

METRICS = {"mlm_loss": 4.1, "mlm_accuracy": 0.3, "nsp_loss": 0.5, "nsp_accuracy": 0.7, "tokens_per_second": 41234.0}


class Clock:
    """A clock whose time a test sets."""

    now = 0.0

    def __call__(self):
        return self.now


class Terminal(io.StringIO):
    """A terminal of many columns; ``screen`` returns the lines that stay on it."""

    encoding = "utf-8"

    def isatty(self):
        return True

    def screen(self):
        lines = self.getvalue().split("\n")
        return [line.rpartition("\r\x1b[K")[2] for line in lines]


@pytest.fixture(autouse=True)
def _terminal_type(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")


def begun(total, stream=None):
    """Return a progress line of ``total`` steps, its stream and its clock."""
    stream, clock = stream or io.StringIO(), Clock()
    return ProgressLine(total, stream, clock=clock), stream, clock


def run(progress, clock, steps, seconds=1.0):
    for step in steps:
        clock.now += seconds
        progress.update(step, METRICS, phase="128")


def test_a_notebook_draws_one_line_anew_on_standard_output(monkeypatch):
    class OutStream(io.StringIO):  # of Jupyter, Colab and VS Code
        __module__ = "ipykernel.iostream"

    stream, clock = OutStream(), Clock()
    monkeypatch.setattr("sys.stdout", stream)
    monkeypatch.setattr("sys.stderr", OutStream())  # a notebook gives it the look of a failure
    progress = ProgressLine(4, clock=clock)
    run(progress, clock, range(1, 3))
    progress.note("step 2 held-out: mlm 4.2")
    run(progress, clock, range(3, 5))
    progress.finish()
    lines = stream.getvalue().split("\n")
    assert [line.rpartition("\r")[2][:26] for line in lines] == [
        "step 2 held-out: mlm 4.2",
        "step  4/4  100%  phase 128",
        "",
    ]
    assert "\x1b" not in stream.getvalue()


def test_off_a_terminal_lines_come_at_most_every_ten_seconds_and_the_first_and_last_always():
    progress, stream, clock = begun(100)
    run(progress, clock, range(1, 34))
    progress.note("step 33 held-out: mlm 4.2")
    progress.finish()
    lines = stream.getvalue().splitlines()
    assert "\x1b" not in stream.getvalue()
    assert "\r" not in stream.getvalue()
    steps = [line.split()[1] for line in lines if "held-out" not in line]
    assert steps == ["1/100", "11/100", "21/100", "31/100", "33/100"]
    assert "mlm 4.100 acc 0.300" in lines[-1]
    assert "41.2k tok/s" in lines[-1]
    assert "ETA 1m07s" in lines[-1]


def test_the_last_line_is_not_said_twice():
    progress, stream, clock = begun(1)
    run(progress, clock, [1])
    progress.finish()
    assert len(stream.getvalue().splitlines()) == 1


def test_the_last_line_comes_before_what_is_said_after_it():
    progress, stream, clock = begun(3)
    run(progress, clock, [1, 2, 3])
    progress.note("done")
    progress.finish()
    assert [line.split()[:2] for line in stream.getvalue().splitlines()] == [["step", "1/3"], ["step", "3/3"], ["done"]]


def test_on_a_terminal_one_line_is_rewritten_and_notes_stand_above_it():
    progress, stream, clock = begun(100, Terminal())
    run(progress, clock, range(1, 4))
    progress.note("held-out: mlm 4.2")
    run(progress, clock, [4])
    progress.finish()
    first, second, rest = stream.screen()
    assert first == "held-out: mlm 4.2"
    assert "4/100" in second
    assert "3/100" not in second
    assert rest == ""


def test_on_a_terminal_drawing_is_throttled():
    progress, stream, clock = begun(10_000, Terminal())
    run(progress, clock, range(1, 1001), seconds=0.001)
    assert stream.getvalue().count("\r") <= 11


@pytest.mark.parametrize("width", [20, 40, 60, 79, 100, 120, 200])
def test_the_line_fits_and_tells_more_where_there_is_room(width):
    progress, _, clock = begun(10_000, Terminal())
    run(progress, clock, range(1, 6))
    line = progress.line(width)
    assert len(line) <= width
    assert "5/10,000" in line
    assert ("tok/s" in line) == (width >= 79)
    assert ("phase 128" in line) == (width >= 100)


def test_the_eta_leaves_compiling_and_evaluating_out():
    progress, stream, clock = begun(100)
    assert progress.eta_seconds is None
    with progress.outside("compiling"):
        clock.now += 500.0
    run(progress, clock, [1, 2])
    with progress.outside("evaluating"):
        clock.now += 50.0
    run(progress, clock, [3])
    assert progress.eta_seconds == pytest.approx(97.0)
    clock.now += 30.0  # untold: a hiccup in one interval of many
    run(progress, clock, range(4, 11))
    assert progress.eta_seconds == pytest.approx(90.0)


def test_the_rate_starts_anew_in_another_phase():
    progress, _, clock = begun(100)
    run(progress, clock, range(1, 11))
    for step in (11, 12, 13):
        clock.now += 4.0
        progress.update(step, METRICS, phase="512")
    assert progress.eta_seconds == pytest.approx(87 * 4.0)


def test_the_eta_counts_the_work_of_the_phases_to_come():
    progress, _, clock = begun(100)
    progress.start(0, work=lambda step: min(step, 60) + 4.0 * max(step - 60, 0))  # steps of the second phase cost 4
    run(progress, clock, range(1, 51), seconds=0.5)
    assert progress.eta_seconds == pytest.approx(10 * 0.5 + 40 * 2.0)
    run(progress, clock, range(51, 61), seconds=0.5)
    for step in (61, 62, 63):
        clock.now += 2.0
        progress.update(step, METRICS, phase="512")
    assert progress.eta_seconds == pytest.approx(37 * 2.0)


def test_a_phase_is_not_called_so_twice():
    progress, *_ = begun(100)
    progress.update(5, METRICS, phase="phase1")
    assert "  phase1  " in progress.line()
    assert "phase phase" not in progress.line()


def test_metrics_that_are_not_known_are_not_shown():
    progress, *_ = begun(100)
    progress.update(1, {"mlm_loss": None, "nsp_loss": float("nan"), "mlm_accuracy": 0.5})
    assert "acc 0.500" in progress.line()
    assert "nan" not in progress.line()
    assert "nsp" not in progress.line()


def test_a_closed_pipe_does_not_raise():
    reading, writing = os.pipe()
    stream = os.fdopen(writing, "w")
    os.close(reading)
    progress = ProgressLine(10, stream)
    for step in range(1, 11):
        progress.update(step, METRICS)
        progress.note("still here")
    progress.finish()
    with pytest.raises(BrokenPipeError):
        stream.close()


def test_a_stream_of_another_encoding_gets_what_it_can_show():
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    stream.isatty = lambda: True
    progress = ProgressLine(10, stream, clock=Clock())
    progress.update(5, METRICS)
    progress.note("Gruß – 你好")
    progress.finish()
    assert b"Gru? ? ??" in raw.getvalue()


def test_on_a_real_pseudo_terminal_the_line_fits_its_columns():
    import fcntl
    import struct
    import termios

    parent, child = pty.openpty()
    fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 50, 0, 0))
    with os.fdopen(child, "w") as stream:
        progress = ProgressLine(10_000, stream)
        progress.update(1234, METRICS)
        progress.finish()
        shown = os.read(parent, 4096).decode()
    os.close(parent)
    line = shown.replace("\r\n", "").rpartition("\r\x1b[K")[2]
    assert "1,234/10,000" in line
    assert len(line) < 50


def test_numbers_read_well():
    assert [duration(s) for s in (0, 8.4, 59.6, 200, 18420, 183600, None)] == [
        "0 s", "8 s", "1 m 00 s", "3 m 20 s", "5 h 07 m", "2 d 03 h", "–",
    ]  # fmt: skip
    assert [count(n) for n in (0, 950, 999.7, 12345, 999_960, 4_560_000, None)] == [
        "0", "950", "1.00k", "12.3k", "1.00M", "4.56M", "–",
    ]  # fmt: skip
    assert [figure(x) for x in (4.13, 0.00001, 0.0, None, float("nan"))] == ["4.130", "1.00e-05", "0.000", "–", "–"]


def test_an_evaluation_shows_how_far_it_is_now_and_then():
    progress, stream, clock = begun(100)
    with progress.outside("evaluating"):
        for done in range(0, 30):
            clock.now += 1.0
            progress.doing(f"evaluating {done} of 29 rows")
    assert stream.getvalue().splitlines() == [
        "evaluating 9 of 29 rows",
        "evaluating 19 of 29 rows",
        "evaluating 29 of 29 rows",
    ]
    with progress.outside("evaluating"):
        clock.now += 9.0  # short ones say nothing
        progress.doing("evaluating 1 of 2 rows")
    assert stream.getvalue().count("\n") == 3
    screen = Terminal()
    live = ProgressLine(100, screen, clock=clock)
    with live.outside("evaluating"):
        clock.now += 1.0
        live.doing("evaluating 5 of 9 rows")
        assert screen.screen()[-1] == "evaluating 5 of 9 rows"
    assert screen.screen()[-1] == ""


def test_what_takes_long_says_so(monkeypatch):
    monkeypatch.setattr(progress_file, "LINE_SECONDS", 0.01)
    monkeypatch.setattr(progress_file, "COUNT_SECONDS", 0.01)
    stream, screen = io.StringIO(), Terminal()
    with ProgressLine(0, stream).outside("compiling"):
        while not stream.getvalue():
            time.sleep(0.01)
    assert stream.getvalue().startswith("still compiling: 0 s so far\n")
    with ProgressLine(0, screen).outside(f"compiling {'the step' * 20}"):
        while "still" not in screen.getvalue():
            time.sleep(0.01)
    shown, still, *_ = screen.getvalue().split("\r\x1b[K")[1:]
    assert shown.startswith("compiling the step")
    assert still.startswith("still compiling the step")
    assert len(still) == 79  # no wider than the terminal
    assert screen.screen() == [""]
    silent = io.StringIO()
    with ProgressLine(0, silent).outside("evaluating", counted=False):
        time.sleep(0.03)
    assert silent.getvalue() == ""
