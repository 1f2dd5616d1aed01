"""The command `varla`. One module a command; `varla.cli.main` lists them."""

# The modules of each extra: where one of them is missing, the error names the extra.
EXTRAS = {
    "lab": ("accelerate", "altair", "jinja2", "rich", "tensorboard", "typer", "vl_convert", "yaml"),
    "hf": ("transformers",),
    "lm": ("datasets",),
    "eval": ("lm_eval",),
}


def remedy(module: str | None) -> str:
    """How to install a module that is missing; nothing if no extra has it."""
    top = (module or "").partition(".")[0]
    found = [extra for extra, modules in EXTRAS.items() if top in modules]
    return f': pip install "varla[{found[0]}]", or ".[{found[0]}]" in a clone' if found else ""


def app() -> None:
    """Run the command line with the process's arguments."""
    from varla.cli.streams import prepare

    prepare()
    try:
        from varla.cli.main import app as commands
    except ModuleNotFoundError as error:
        if not remedy(error.name):
            raise
        raise SystemExit(f"error: the command line needs {error.name}{remedy(error.name)}") from None
    commands(prog_name="varla")
