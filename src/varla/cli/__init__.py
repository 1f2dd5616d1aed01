"""The command `varla`. One module a command; `varla.cli.main` lists them."""


def app() -> None:
    """Run the command line with the process's arguments."""
    from varla.cli.streams import prepare

    prepare()
    try:
        from varla.cli.main import app as commands
    except ModuleNotFoundError as error:
        if error.name not in ("typer", "rich"):
            raise
        raise SystemExit(
            f"error: the command line needs {error.name}: pip install 'varla[lab]', or '.[lab]' in a clone"
        ) from None
    commands(prog_name="varla")
