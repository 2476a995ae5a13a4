"""Keeps compiled programs between runs, so that a restart on an accelerator does not compile for minutes again.

A kept program has the compiler's choice of algorithms, which decides the bits on a GPU. jax runs a kept program
only for the same computation, card, driver and versions: the name of its file is a hash of these facts.
"""

from __future__ import annotations

import jax

from bert_jax.storage import files

FOLDER = "compiled"  # in the user's cache folder


def keep_compiled() -> None:
    """Keep compiled programs in the user's cache folder. Nobody else may write there, because its files are executed.

    A folder that the user has set (``JAX_COMPILATION_CACHE_DIR``, which may be ``gs://``) is used as it is. Otherwise
    programs for a CPU are not kept: they compile in seconds, and do not fit other machines that share the folder.
    """
    if jax.config.values["jax_compilation_cache_dir"] or jax.default_backend() == "cpu":
        return
    folder = files.cache_directory() / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
