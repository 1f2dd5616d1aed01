"""Run as `python -m reproduction`."""

try:
    from reproduction.cli import app
except ModuleNotFoundError as error:
    if (error.name or "").startswith(("reproduction", "varla.")):
        raise
    raise SystemExit(f"error: the reproduction needs {error.name}: pip install -e '.[lab]' in this folder") from None

app(prog_name="python -m reproduction")
