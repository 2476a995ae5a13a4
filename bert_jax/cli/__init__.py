"""The subcommands of ``bert-jax``, here called verbs. Every file except ``main`` and ``flags`` is one verb.

``bert-jax`` without a verb lists the first docstring line of each file. A verb has two functions:

    add_arguments(parser: argparse.ArgumentParser) -> None
    run(arguments: argparse.Namespace) -> None or an exit code (verbs that check something return 1 if they find faults)

``flags.add_config(parser)`` adds ``--config``. ``arguments.config`` is then the loaded, locked ``ConfigDict``, with
every ``--config.key=value`` applied. Bad input raises ``UserError``. Logic belongs in the other packages.
"""
