"""Settings as YAML and as key=value strings: what is read, and what is refused."""

import pytest
import yaml

from varla.runs.settings import dump, load, override


def test_override_reads_values_as_yaml_and_leaves_the_original_alone():
    values = {"train": {"steps": 5}}
    changed = override(
        values, ["train.lr=1e-3", "train.steps=9", "mechanism=linear", "layer.conv=4", "layer.bias=false"]
    )
    assert changed == {
        "train": {"steps": 9, "lr": 1e-3},
        "mechanism": "linear",
        "layer": {"conv": 4, "bias": False},
    }
    assert values == {"train": {"steps": 5}}
    for bad in ("train.lr", "=3"):
        with pytest.raises(ValueError, match="--set takes key=value"):
            override(values, [bad])
    with pytest.raises(ValueError, match="'steps' is a value, not a group"):
        override(values, ["train.steps.x=1"])
    with pytest.raises(ValueError, match=r"--set train.lr=\[: '\[' is not valid YAML"):
        override(values, ["train.lr=["])
    assert override({}, ["x=null", "y=[1e-3, a1e]"]) == {"x": None, "y": [1e-3, "a1e"]}


def test_files_that_are_not_yaml_are_refused(tmp_path):
    bad = tmp_path / "bad.yaml"
    for content in (b"a: [1", b"\xff\xfe\x00", b"- 1\n- 2\n"):
        bad.write_bytes(content)
        with pytest.raises(ValueError, match=r"bad\.yaml"):
            load(bad)
    bad.write_text("")
    assert load(bad) == {}
    assert list(yaml.safe_load(dump({"b": 1, "a": {"c": [1]}}))) == ["b", "a"]
