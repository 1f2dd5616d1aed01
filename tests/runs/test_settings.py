"""Settings as YAML and as key=value strings: what is read, and what is refused."""

import time

import pytest
import yaml

from varla.runs.safe_yaml import parse
from varla.runs.settings import dump, load, override, read
from varla.training import RunConfig

# Nine aliases of nine aliases ...: 430 bytes that expand to 9 ** 9 values.
BOMB = "\n".join(
    f"{name}: &{name} [{', '.join([f'*{before}' if before else 'x'] * 9)}]"
    for before, name in zip(["", *"abcdefgh"], "abcdefghi", strict=True)
)
MERGES = "\n".join(
    f"{name}: &{name} {{k{name}: 1, <<: [{', '.join([f'*{before}'] * 9)}]}}" if before else f"{name}: &{name} {{k: 1}}"
    for before, name in zip(["", *"abcdefgh"], "abcdefghi", strict=True)
)


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
    with pytest.raises(ValueError, match=r"--set train.lr=\[: the value is not valid YAML"):
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


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (BOMB, "more than 100,000 values"),
        (MERGES, "more than 100,000 values"),
        ('a: "\\ud800"', "surrogates not allowed"),
        ("a: " + "[" * 5000 + "]" * 5000, "more than 32 deep"),
        ("a: " + "{b: " * 5000, "more than 32 deep"),
        ("\n".join(" " * i + "a:" for i in range(500)), "more than 32 deep"),
        ("a: &a [[[[[[[[[[1]]]]]]]]]]\nb: &b [[[[[[[[[[*a]]]]]]]]]]\nc: [[[[[[[[[[[*b]]]]]]]]]]]", "more than 32 deep"),
        ("a: &a [*a]", "contains itself"),
        ("a: 1\nb: 2\na: 3", "key 'a' is given twice (line 3)"),
        ("a: " + "x" * (1 << 20), "more than 1,048,576 characters"),
        ("a: !!bool maybe", "a tag does not fit its value"),
        ("a: !!timestamp soon", "a tag does not fit its value"),
        ("a: !!int many", "invalid literal"),
        ("a: " + "9" * 5000, "limit"),
        ("a: 2026-13-01", "month must be in 1..12"),
        ("a: !!python/object/apply:os.system [true]", "could not determine a constructor"),
        ("[1]: 2\n{a: b}: 3", "unhashable key"),
        ("a: \x00", "special characters are not allowed"),
    ],
    ids=lambda text: text[:20],
)
def test_hostile_yaml_is_refused_at_once(tmp_path, text, words):
    file = tmp_path / "bad.yaml"
    file.write_text(text)
    started = time.monotonic()
    with pytest.raises(ValueError, match=r"bad\.yaml is not valid YAML") as caught:
        load(file)
    assert words in str(caught.value)
    with pytest.raises(ValueError, match="--set x=") as caught:
        override({}, [f"x={text}"])
    assert words in str(caught.value)
    assert len(str(caught.value)) < 1000
    assert time.monotonic() - started < 15


def test_plain_anchors_and_merges_are_read():
    assert parse("base: &base {a: 1, b: 2}\nc: {<<: *base, b: 3}\nd: [*base, *base]") == {
        "base": {"a": 1, "b": 2},
        "c": {"a": 1, "b": 3},
        "d": [{"a": 1, "b": 2}] * 2,
    }


def test_a_device_that_never_ends_is_not_read_to_its_end():
    with pytest.raises(ValueError, match="/dev/zero is not valid YAML"):
        load("/dev/zero")


def test_an_empty_group_has_its_defaults(tmp_path):
    (tmp_path / "a.yaml").write_text("\ufefftrain:\nmodel:\nlayer:\n", encoding="utf-8")
    assert read(RunConfig, load(tmp_path / "a.yaml")) == RunConfig()
    assert override(load(tmp_path / "a.yaml"), ["train.lr=1.0"])["train"] == {"lr": 1.0}
