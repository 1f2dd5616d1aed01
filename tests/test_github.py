"""What GitHub reads: workflows with pinned actions and no more rights than they need, and the forms for issues."""

import os
import re
import subprocess
from pathlib import Path

import pytest
import yaml

import varla

ROOT = Path(__file__).parent.parent
GITHUB = ROOT / ".github"
WORKFLOWS = {path.stem: yaml.safe_load(path.read_text()) for path in sorted(GITHUB.glob("workflows/*.yml"))}
URL = "https://github.com/varla-attention/varla"


def triggers(workflow):
    """What starts a workflow. YAML reads the key `on` as True."""
    return workflow[True]


def steps(workflow):
    return [step for job in workflow["jobs"].values() for step in job.get("steps", ())]


def scripts(workflow):
    return "\n".join(step["run"] for step in steps(workflow) if "run" in step)


def rights(workflow):
    """All rights that any job has, as (job, what, how much)."""
    for name, job in workflow["jobs"].items():
        yield from ((name, *each) for each in job.get("permissions", workflow["permissions"]).items())


def test_the_workflows_are_these():
    assert set(WORKFLOWS) == {"docs", "release", "test"}


@pytest.mark.parametrize("name", WORKFLOWS)
def test_actions_are_pinned_to_a_major_version(name):
    actions = [step["uses"] for step in steps(WORKFLOWS[name]) if "uses" in step]
    assert actions
    assert [each for each in actions if not re.fullmatch(r"[\w-]+/[\w-]+@(release/)?v\d+", each)] == []


@pytest.mark.parametrize("name", WORKFLOWS)
def test_jobs_may_read_and_only_publishing_has_an_identity(name):
    granted = set(rights(WORKFLOWS[name]))
    assert {each for each in granted if each[1:] != ("contents", "read")} == (
        {("publish", "id-token", "write")} if name == "release" else set()
    )
    assert "secrets" not in (GITHUB / "workflows" / f"{name}.yml").read_text()
    assert "pull_request_target" not in triggers(WORKFLOWS[name])
    checkouts = [step for step in steps(WORKFLOWS[name]) if step.get("uses", "").startswith("actions/checkout@")]
    assert all(step["with"]["persist-credentials"] is False for step in checkouts)


@pytest.mark.parametrize("name", WORKFLOWS)
def test_scripts_take_nothing_from_outside_but_by_variables_of_the_shell(name):
    """An expression in a script is pasted into it before a shell reads it: a name of a branch could be a command."""
    assert "${{" not in scripts(WORKFLOWS[name])


def test_what_ci_runs_is_what_a_person_runs():
    assert scripts(WORKFLOWS["test"]) == "make test"
    assert WORKFLOWS["test"]["jobs"]["test"]["strategy"]["matrix"]["python"] == ["3.11", "3.12"]
    assert scripts(WORKFLOWS["docs"]) == "make docs"
    assert "workflow_call" in triggers(WORKFLOWS["test"])


def test_a_tag_is_tested_and_built_before_it_is_published():
    release = WORKFLOWS["release"]
    assert triggers(release) == {"push": {"tags": ["v*"]}}
    assert release["permissions"] == {}
    publish = release["jobs"]["publish"]
    assert set(publish["needs"]) == {"test", "build"} == set(release["jobs"]) - {"publish"}
    assert release["jobs"]["test"]["uses"] == "./.github/workflows/test.yml"
    assert publish["environment"]["name"] == "pypi"
    assert publish["steps"][-1]["uses"].startswith("pypa/gh-action-pypi-publish@")
    assert "twine check --strict" in scripts(release)


@pytest.mark.parametrize(
    ("tag", "accepted"),
    [
        (f"v{varla.__version__}", True),
        ("v9.9.9", False),
        (f"v{varla.__version__}.dev0", False),
        (varla.__version__[:-1], False),
        ("v*", False),
        ("v", False),
    ],
)
def test_a_tag_that_is_not_the_version_is_refused(tag, accepted, tmp_path):
    """The script of the workflow, run here."""
    (script,) = [step["run"] for step in steps(WORKFLOWS["release"]) if "tag" in step.get("name", "")]
    (tmp_path / "dist").mkdir()
    for name in (f"varla-{varla.__version__}.tar.gz", f"varla-{varla.__version__}-py3-none-any.whl"):
        (tmp_path / "dist" / name).touch()
    environment = {**os.environ, "GITHUB_REF_NAME": tag}
    command = ["bash", "-e", "-c", script]
    result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert (result.returncode == 0) == accepted
    assert accepted or f"::error::the tag is {tag}, but what was built is" in result.stdout


@pytest.mark.parametrize("name", ["bug_report", "feature_request"])
def test_issue_forms_ask_questions(name):
    form = yaml.safe_load((GITHUB / "ISSUE_TEMPLATE" / f"{name}.yml").read_text())
    assert {"name", "description", "body"} <= set(form)
    identifiers = [field["id"] for field in form["body"]]
    assert len(set(identifiers)) == len(identifiers) >= 3
    assert all(field["type"] == "textarea" and field["attributes"]["label"] for field in form["body"])
    assert any(field.get("validations", {}).get("required") for field in form["body"])


def test_a_bug_report_has_the_output_of_the_doctor():
    form = yaml.safe_load((GITHUB / "ISSUE_TEMPLATE" / "bug_report.yml").read_text())
    (field,) = [each for each in form["body"] if "varla doctor" in each["attributes"]["label"]]
    assert field["validations"]["required"]


def test_vulnerabilities_are_reported_in_private():
    config = yaml.safe_load((GITHUB / "ISSUE_TEMPLATE" / "config.yml").read_text())
    assert config["blank_issues_enabled"] is False
    (link,) = config["contact_links"]
    assert link["url"] == f"{URL}/security/advisories/new"
    security = (ROOT / "SECURITY.md").read_text()
    assert f"]({link['url']})" in security
    assert not re.search(r"\S+@\S+\.\w+", security), "nobody's address"
