"""The commands. Every file here but ``main`` is one verb; its first docstring line is what ``bert-jax`` lists.

A verb has two functions:

    add_arguments(parser: argparse.ArgumentParser) -> None
    run(arguments: argparse.Namespace) -> None, or the exit code of a verb that judges: 1 if something is bad

``main.add_config(parser)`` adds ``--config``; ``arguments.config`` is then the loaded, locked ``ConfigDict`` with every
``--config.key=value`` applied. Bad input is a ``UserError``. Logic belongs into the other packages.
"""
