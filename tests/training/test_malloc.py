"""Which freed memory a process keeps."""

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from bert_jax.training import malloc as program
from bert_jax.training.malloc import HUGE_PAGES

PROGRAM = """
import ctypes, importlib.util
importlib.util.find_spec = lambda name: None  # as where no accelerator is
from bert_jax.training import malloc

def resident():
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * 4096

libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
malloc.keep_freed_memory()
{call}
size, before = 200 << 20, resident()
block, above = libc.malloc(size), libc.malloc(1 << 16)
ctypes.memset(block, 1, size)
libc.free(block)
print((resident() - before) >> 20)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc is Linux's")
@pytest.mark.parametrize(("call", "kept"), [("", True), ("malloc.keep_small_blocks()", False)])
def test_large_blocks_are_given_back_on_request(call: str, kept: bool) -> None:
    made = subprocess.run([sys.executable, "-c", PROGRAM.replace("{call}", call)], capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    assert (int(made.stdout) > 150) == kept


@pytest.mark.parametrize(
    ("before", "after"),
    [(None, HUGE_PAGES), ("a=1", f"a=1:{HUGE_PAGES}"), ("glibc.malloc.hugetlb=0", "glibc.malloc.hugetlb=0")],
)
def test_the_program_starts_again_with_huge_pages_once(
    before: str | None, after: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[list[str]] = []
    monkeypatch.setattr(program.sys, "platform", "linux")
    monkeypatch.setattr(program.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(program.os, "execv", lambda _, arguments: started.append(arguments))
    monkeypatch.setattr(program.sys, "orig_argv", ["python3", "-m", "bert_jax", "plan"])
    monkeypatch.setattr(program.sys, "gettrace", lambda: None)
    monkeypatch.setitem(sys.modules, "__main__", SimpleNamespace(__file__=__file__))
    monkeypatch.setenv("GLIBC_TUNABLES", before) if before else monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    for _ in range(2):
        program.use_huge_pages()
    assert program.os.environ["GLIBC_TUNABLES"] == after
    assert started == ([] if before == after else [[sys.executable, "-m", "bert_jax", "plan"]])


def test_a_program_that_came_by_stdin_does_not_start_again() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "GLIBC_TUNABLES"}
    source = "from bert_jax.training.malloc import use_huge_pages; use_huge_pages(); print('went on')"
    done = subprocess.run([sys.executable, "-"], input=source, env=environment, capture_output=True, text=True)
    assert done.stdout == "went on\n", done.stderr
