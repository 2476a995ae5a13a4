"""Reads models of the Hugging Face Hub. ``hf://USER/NAME[@REVISION]`` is a folder in the cache of ``huggingface_hub``.

Only files that are read here are downloaded: JSON, vocabularies, safetensors and the model card, but no pickle and no
code. A commit is downloaded once; after that no network is needed for it.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bert_jax.errors import PassingError, UserError, first_line

SCHEME = "hf://"
_OF_OTHER_KINDS = tuple(f"{SCHEME}{kind}/" for kind in ("datasets", "spaces", "kernels", "buckets"))
_READ = ("*.json", "*.safetensors", "*.txt", "*.model", "README.md", "SHA256SUMS")
_NOT_READ = ("onnx/*", "openvino/*", "*checkpoint-*/*")  # other formats of the same model, and older steps of it
LOG_IN = "log in with `hf auth login`, or set HF_TOKEN"


def is_model(path: str | os.PathLike[str]) -> bool:
    """Return whether ``path`` names a model of the Hub. Datasets and buckets of the Hub are read by fsspec instead."""
    name = os.fspath(path)
    return isinstance(name, str) and name.startswith(SCHEME) and not name.startswith(_OF_OTHER_KINDS)


def parsed(name: str) -> Any:
    """Return the ``huggingface_hub.HfUri`` of a model. Raises ``UserError`` if ``name`` has another form."""
    from huggingface_hub import parse_hf_uri

    try:
        return parse_hf_uri(name)
    except ValueError as error:
        raise UserError(f"{name!r} is not {SCHEME}USER/NAME or {SCHEME}USER/NAME@REVISION: {_why(error)}") from error


def pinned(source: str) -> str:
    """Return a model of the Hub with the commit that its revision stands for; return any other ``source`` unchanged.

    If the Hub does not answer, the commit is the commit that was last downloaded.

    Raises:
      UserError: there is no such model or revision, it may not be read, or it is not in the cache and the Hub does not
        answer.
    """
    if not is_model(source):
        return source
    from huggingface_hub import HfApi

    uri = parsed(source)
    with explained(source):
        commit = HfApi().resolve_revision(uri.id, revision=uri.revision)
    return f"{SCHEME}{uri.id}@{commit.resolved}" + (uri.path_in_repo and f"/{uri.path_in_repo}")


def local(name: str) -> Path:
    """Return the local copy of a model of the Hub, or of a path in it. The model is downloaded unless it is cached.

    Raises ``UserError`` for the reasons of ``pinned``.
    """
    return _local(pinned(name))


@functools.cache
def _local(name: str) -> Path:
    from huggingface_hub import snapshot_download

    uri = parsed(name)
    with explained(name):
        folder = snapshot_download(
            uri.id, revision=uri.revision, allow_patterns=list(_READ), ignore_patterns=list(_NOT_READ)
        )
    return Path(folder, uri.path_in_repo)


def file_names(name: str) -> list[str]:
    """Return the names of all files of a model of the Hub that was read already, also of files that are not read."""
    from huggingface_hub import errors, get_cached_repo_tree

    uri = parsed(pinned(name))
    try:
        return [file.path for file in get_cached_repo_tree(uri.id, revision=uri.revision)]
    except errors.CachedRepoTreeNotFoundError:  # a snapshot of an older version of huggingface_hub
        return []


@contextlib.contextmanager
def explained(name: str) -> Iterator[None]:
    """Context manager: an error of ``huggingface_hub`` in the block becomes a ``UserError`` about ``name``.

    Trouble that may pass, such as a broken connection, becomes a ``PassingError``. Only a terminal gets progress bars.
    """
    from huggingface_hub import errors, utils

    utils.logging.disable_propagation()  # else each of its warnings is printed twice
    hides = not sys.stderr.isatty() and not utils.are_progress_bars_disabled()
    if hides:
        utils.disable_progress_bars()
    try:
        yield
    except errors.GatedRepoError as error:
        raise UserError(f"{name} is gated: ask for access on its page, then {LOG_IN}") from error
    except errors.RepositoryNotFoundError as error:
        raise UserError(
            f"there is no {name}, or it is private and you may not read it; check the name, or {LOG_IN}"
        ) from error
    except errors.RevisionNotFoundError as error:
        raise UserError(f"{name}: the model has no such branch, tag or commit; check what stands after @") from error
    except (errors.RevisionResolutionError, errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled) as error:
        raise _not_there(name, error) from error
    except errors.FileMetadataError as error:
        raise UserError(f"{name}: no Hub has answered ({_why(error)}); check HF_ENDPOINT and the proxy") from error
    except errors.HTTPError as error:
        raise _of_network(name, error) from error
    except RuntimeError as error:  # an upload has it around the error of the network
        if not isinstance(error.__cause__, errors.HTTPError):
            raise
        raise _of_network(name, error.__cause__) from error
    finally:
        if hides:
            utils.enable_progress_bars()


def _not_there(name: str, error: Exception) -> UserError:
    """Return the error for a model that is not in the cache, or not whole, while the Hub is not asked or is silent."""
    from huggingface_hub import constants

    if constants.is_offline_mode():
        return UserError(f"{name} is not in the cache, and HF_HUB_OFFLINE is set; unset it once, with a network")
    cause = error.__cause__ or error
    return PassingError(
        f"{name} is not in the cache, and the Hub does not answer ({_why(cause)}); run the same command again with a "
        "network"
    )


def _of_network(name: str, error: Exception) -> Exception:
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status == 401:
        return UserError(f"{name}: the Hub refuses your token; {LOG_IN}, with a token that is valid")
    if status == 403:
        return UserError(f"{name}: the Hub says that your token may not do this; take a token with more rights")
    if status == 412:
        return PassingError(f"{name} has changed during the push; run the same command again")
    if status is not None and 400 <= status < 500 and status not in (408, 429):
        return UserError(f"{name}: the Hub refuses ({_why(error)})")
    return PassingError(f"{name}: the connection to the Hub broke ({_why(error)}); run the same command again to go on")


def _why(error: BaseException) -> str:
    """Return the first line of an error, without a full stop at its end."""
    return first_line(error).rstrip(".")
