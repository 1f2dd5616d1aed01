"""Language models of every mechanism, trained alike and scored at several context lengths (docs/language.md)."""
