"""Runs ``python -m bert_jax <subcommand>`` and ``bert-jax <subcommand>``."""

import os
import signal
import sys


def main() -> int:
    """Run the subcommand of the command line and return its exit code."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # during the imports there is nothing to save
        signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # closed by the shell, as by 2>&-; no other file may take its number
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115
    from bert_jax.training.malloc import use_huge_pages
    from bert_jax.training.platforms import choose_cpu

    choose_cpu()
    use_huge_pages()
    from bert_jax.cli.main import run

    return run()


if __name__ == "__main__":
    sys.exit(main())
