"""README for package indexes: a page there has no files beside it, so links to the repository's files get its address.

Everything else about the package is in pyproject.toml.
"""

import re
from pathlib import Path

from setuptools import setup

FILES = "https://github.com/varla-attention/varla/blob/main/"
PICTURES = "https://raw.githubusercontent.com/varla-attention/varla/main/"


def absolute(readme: str) -> str:
    """The text with absolute links, for Markdown and HTML. Addresses and anchors stay as they are."""
    relative = r"(?!\w+:|#)"
    readme = re.sub(rf"(!\[[^\]]*\]\(){relative}", rf"\1{PICTURES}", readme)
    readme = re.sub(rf'((?:src|srcset)="){relative}', rf"\1{PICTURES}", readme)
    return re.sub(rf"((?<!!)\[[^\]]*\]\(){relative}", rf"\1{FILES}", readme)


setup(
    long_description=absolute(Path(__file__).with_name("README.md").read_text(encoding="utf-8")),
    long_description_content_type="text/markdown",
)
