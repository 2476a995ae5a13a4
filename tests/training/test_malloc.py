"""Which freed memory a process keeps."""

import subprocess
import sys

import pytest

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
