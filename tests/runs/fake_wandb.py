"""A module in place of wandb's: it keeps what it is given, and needs no network, no account and no installation."""

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType


class Run:
    """One call of `init`, and what was logged to it."""

    def __init__(self, module, given):
        self.module, self.given = module, given
        self.logged, self.summary, self.exit_code = [], {}, None

    def log(self, entry, step=None):
        self.logged.append((step, entry))

    def finish(self, exit_code=None):
        self.exit_code = exit_code
        self.module.run = None

    def _label(self, **_):
        """The Trainer's."""


class Config(dict):
    def update(self, values, allow_val_change=False):
        super().update(values)


def install(monkeypatch, refuse=None):
    """Put it into sys.modules; returns the list of its runs. `refuse` is the message of an error that `init` raises."""
    module, runs = ModuleType("wandb"), []
    module.__spec__ = ModuleSpec("wandb", None)
    module.run, module.config = None, Config()

    def init(**given):
        if refuse is not None:
            raise RuntimeError(refuse)
        module.run = Run(module, given)
        runs.append(module.run)
        return module.run

    module.init = init
    module.log = lambda entry: module.run.log(entry)
    module.finish = lambda: module.run.finish()
    names = ("wandb", "wandb.sdk", "wandb.sdk.lib", "wandb.sdk.lib.config_util")
    parts = (module, *(ModuleType(name) for name in names[1:]))
    parts[-1].ConfigError = type("ConfigError", (Exception,), {})
    for name, part in zip(names, parts, strict=True):
        monkeypatch.setitem(sys.modules, name, part)
    monkeypatch.delenv("WANDB_PROJECT", raising=False)
    return runs


def remove(monkeypatch):
    """As if it were not installed."""
    monkeypatch.setitem(sys.modules, "wandb", None)
