"""Compiled programs are kept between runs: a restart on an accelerator does not compile for minutes again."""

from __future__ import annotations

import jax

from bert_jax.storage import files


def keep_compiled() -> None:
    """Keep them in the user's cache folder, which no one else may write: what lies there is run.

    A folder that the user has set (``JAX_COMPILATION_CACHE_DIR``, which may be ``gs://``) is left as it is. Programs
    for a CPU are compiled in seconds, and fit no other machine that shares the folder: they are not kept unless it is
    set.
    """
    if jax.config.values["jax_compilation_cache_dir"] or jax.default_backend() == "cpu":
        return
    folder = files.cache_directory() / "compiled"
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
