"""The release: the wheel holds the package and nothing else, and works without the repository, extra by extra."""

import csv
import re
import zipfile
from email import message_from_string
from importlib.metadata import packages_distributions

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import varla
from tests.installing import ROOT, Installation, build, copy, tracked, unpack
from varla.cli import EXTRAS

INFORMATION = f"varla-{varla.__version__}.dist-info"
TINY = "task.n=2 model.d_model=16 model.n_heads=2 model.n_layers=1 model.ffn=16 train.steps=2 train.batch_size=4"
MODEL = """
import torch
from transformers import ByT5Tokenizer
from varla.models import VarlaConfig, VarlaForCausalLM

torch.manual_seed(0)
sizes = dict(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24)
VarlaForCausalLM(VarlaConfig(vocab_size=259, mechanisms=["vla", "softmax"], **sizes)).save_pretrained("model")
ByT5Tokenizer(extra_ids=0).save_pretrained("model")
"""
HOSTS = ("github.com", "blob/main"), ("raw.githubusercontent.com", "main")
BARE = """
import torch, varla
print(varla.__file__)
q, k, v, u = torch.randn(4, 1, 70, 2, 8, requires_grad=True)
varla.vla(q, k, v, u).sum().backward()
import varla.layers, varla.session
try:
    import varla.models
except ImportError as error:
    print(error)
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The source distribution of a copy of the tracked files, and its wheel."""
    folder = tmp_path_factory.mktemp("release")
    source = copy(folder / "copy")
    return build("sdist", source, folder / "dist"), build("wheel", source, folder / "dist")


@pytest.fixture(scope="module")
def installed(built, tmp_path_factory):
    return Installation(built[1], tmp_path_factory.mktemp("installed"))


@pytest.fixture(scope="module")
def metadata(built):
    return message_from_string(contents(built[1])[f"{INFORMATION}/METADATA"].decode())


def contents(wheel):
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def test_the_wheel_holds_the_package_as_it_is_tracked_and_nothing_else(built, record_property):
    found = contents(built[1])
    assert built[1].name == f"varla-{varla.__version__}-py3-none-any.whl"
    package = {name.removeprefix("src/"): (ROOT / name).read_bytes() for name in tracked() if name.startswith("src/")}
    assert {name for name in found if not name.startswith(INFORMATION)} == set(package)
    assert [name for name in package if found[name] != package[name]] == []
    assert {"varla/py.typed", "varla/__main__.py"} <= set(package)
    about = {name.removeprefix(f"{INFORMATION}/") for name in found if name.startswith(INFORMATION)}
    assert about == {"METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE", "top_level.txt"}
    assert found[f"{INFORMATION}/licenses/LICENSE"] == (ROOT / "LICENSE").read_bytes()
    assert {row[0] for row in csv.reader(found[f"{INFORMATION}/RECORD"].decode().splitlines())} == set(found)
    size = built[1].stat().st_size
    record_property("wheel bytes", size)
    box = sum(len(data) for name, data in found.items() if name.startswith("varla/box/"))
    assert size - box < 1_000_000, "something large came in"


def test_the_source_distribution_gives_the_same_wheel(built, tmp_path):
    sdist, wheel = built
    source = unpack(sdist, tmp_path)
    assert source.name == f"varla-{varla.__version__}"
    beside = {path.name for path in source.iterdir()}
    described = {"CHANGELOG.md", "CITATION.cff", "LICENSE", "MANIFEST.in", "README.md", "pyproject.toml", "setup.py"}
    assert beside == described | {"PKG-INFO", "setup.cfg", "src"}
    assert contents(build("wheel", source, tmp_path / "dist")) == contents(wheel)


def test_the_metadata_says_what_a_person_needs_to_know(metadata):
    assert (metadata["Name"], metadata["Version"]) == ("varla", varla.__version__)
    assert metadata["Requires-Python"] == "<3.14,>=3.11"
    assert (metadata["License-Expression"], metadata["Author"]) == ("MIT", "varla contributors")
    labels = [each.split(", ")[0] for each in metadata.get_all("Project-URL")]
    assert labels == ["Homepage", "Documentation", "Repository", "Changelog", "Issues"]
    python = [
        each for each in metadata.get_all("Classifier") if each.startswith("Programming Language :: Python :: 3.")
    ]
    assert [each.rpartition(".")[2] for each in python] == ["11", "12", "13"]
    assert metadata["Description-Content-Type"] == "text/markdown"


def test_the_description_is_the_readme_with_links_that_work_elsewhere(metadata):
    text, readme = metadata.get_payload(), (ROOT / "README.md").read_text()
    files, pictures = (f"https://{host}/varla-attention/varla/{where}/" for host, where in HOSTS)
    assert text.replace(files, "").replace(pictures, "").strip() == readme.strip()
    links = re.findall(r'(!?)\[[^\]]*\]\(([^)]*)\)|(src|srcset)="([^"]*)"', text)
    targets = [(bool(mark or name), target or source) for mark, target, name, source in links]
    assert all(target.startswith("https://") for _, target in targets)
    own = {target: picture for picture, target in targets if target.startswith((files, pictures))}
    assert len(own) > 15
    for target, picture in own.items():
        assert target.startswith(pictures if picture else files)
        assert (ROOT / target.removeprefix(pictures if picture else files)).is_file()


def test_the_requirements_are_three_and_the_rest_are_extras(metadata):
    needed = [Requirement(line) for line in metadata.get_all("Requires-Dist")]
    assert {each.name for each in needed if not each.marker} == {"torch", "numpy", "safetensors"}
    assert {"lab", "hf", "lm", "eval", "all", "test"} <= set(metadata.get_all("Provides-Extra"))


def test_without_extras_the_operators_work_and_the_rest_says_what_to_install(installed):
    result = installed.python("-c", BARE, extras="")
    assert (result.returncode, result.stderr) == (0, "")
    file, models = result.stdout.splitlines()
    assert file == str(installed.packages / "varla" / "__init__.py")
    assert models.startswith('varla.models needs Hugging Face transformers: pip install "varla[hf]"')


@pytest.mark.parametrize("arguments", [[], ["--version"], ["train"]], ids=" ".join)
def test_without_the_lab_the_command_says_what_to_install(installed, arguments):
    for result in (installed.varla(*arguments, extras=""), installed.python("-m", "varla", *arguments, extras="")):
        assert (result.returncode, result.stdout) == (1, "")
        assert (
            result.stderr == 'error: the command line needs typer: pip install "varla[lab]", or ".[lab]" in a clone\n'
        )


def test_the_example_needs_no_extra(installed):
    result = installed.python(ROOT / "examples" / "memory.py", extras="")
    assert (result.returncode, result.stderr) == (0, "")
    assert "VLA, raw gain = RLS" in result.stdout


def test_with_the_lab_the_command_trains(installed):
    for command in (installed.varla, lambda *rest, **options: installed.python("-m", "varla", *rest, **options)):
        assert command("--version", extras="lab").stdout == f"{varla.__version__}\n"
    assert "gated-vla" in installed.varla("mechanisms", extras="lab").stdout
    settings = [part for each in TINY.split() for part in ("--set", each)]
    trained = installed.varla("train", *settings, "--out", "run", "--device", "cpu", extras="lab")
    assert trained.returncode == 0, trained.stderr
    assert (installed.folder / "run" / "record.json").exists()
    assert f'"varla": "{varla.__version__}"' in (installed.folder / "run" / "record.json").read_text()


def test_models_need_their_extra_and_the_command_generates_from_them(installed):
    made = installed.python("-c", MODEL, extras="hf")
    assert made.returncode == 0, made.stderr
    options = ["--prompt", "Once", "--tokens", "5", "--device", "cpu"]
    generated = installed.varla("generate", "model", *options, extras="hf,lab")
    assert (generated.returncode, generated.stderr) == (0, "")
    assert generated.stdout


def test_the_model_in_the_box_comes_along(installed):
    options = ["--prompt", "The people", "--tokens", "20", "--device", "cpu"]
    generated = installed.varla("generate", "tiny", *options, extras="hf,lab")
    assert (generated.returncode, generated.stderr) == (0, "")
    assert generated.stdout
    where = installed.python("-c", "from varla.box import model_folder; print(model_folder('tiny'))", extras="")
    assert where.stdout == f"{installed.packages / 'varla' / 'box' / 'tiny'}\n"


@pytest.mark.parametrize(
    ("command", "extras", "needed"),
    [("train", "hf", "lab"), ("generate . --prompt x", "lab", "hf")],
)
def test_a_command_that_needs_another_extra_names_it(installed, command, extras, needed):
    refused = installed.varla(*command.split(), extras=extras)
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert f'pip install "varla[{needed}]"' in refused.stderr


def test_the_modules_that_errors_know_are_those_of_the_extras(metadata):
    distributions = packages_distributions()
    for extra, modules in EXTRAS.items():
        needed = [Requirement(line) for line in metadata.get_all("Requires-Dist") if f'extra == "{extra}"' in line]
        known = {canonicalize_name(name) for module in modules for name in distributions[module]}
        assert known == {each.name for each in needed} - {"varla"}


def test_the_newest_section_of_the_changelog_is_this_version():
    assert re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)[0] == varla.__version__


def test_the_citation_is_of_this_version_and_names_the_paper():
    """The keys that the Citation File Format 1.2.0 requires, and of the others only those it knows."""
    found = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert {"cff-version", "message", "title", "authors"} <= set(found)
    known = {"type", "version", "license", "repository-code", "keywords", "references", "date-released", "doi", "url"}
    assert set(found) <= {"cff-version", "message", "title", "authors"} | known
    assert (found["cff-version"], found["type"], found["license"]) == ("1.2.0", "software", "MIT")
    assert found["version"] == varla.__version__
    assert found["authors"] == [{"name": "varla contributors"}]
    (paper,) = found["references"]
    assert {"type", "title", "authors"} <= set(paper)
    assert paper["type"] in {"article", "conference-paper", "generic", "report", "unpublished"}
    assert f"[*{paper['title']}*]({paper['url']})" in (ROOT / "README.md").read_text()
    assert all({"family-names", "given-names"} <= set(each) for each in paper["authors"])
