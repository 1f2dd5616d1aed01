"""Language models of every mechanism, trained the same way and scored at several context lengths (docs/language.md)."""
