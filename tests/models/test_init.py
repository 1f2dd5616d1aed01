"""Importing the family: which transformers, what is registered, and what is said where there is none."""

import os
import subprocess
import sys

import pytest
import transformers
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoModelForSequenceClassification

from tests.models.cases import config
from varla.models import VarlaConfig, VarlaForCausalLM, VarlaForSequenceClassification, VarlaModel


@pytest.mark.skipif("VARLA_TRANSFORMERS" not in os.environ, reason="no version of transformers is asked for")
def test_this_is_the_transformers_that_was_asked_for():
    assert transformers.__version__.startswith(os.environ["VARLA_TRANSFORMERS"] + ".")


def test_the_auto_classes_know_the_family():
    assert type(AutoConfig.for_model("varla")) is VarlaConfig
    assert type(AutoModel.from_config(config())) is VarlaModel
    assert type(AutoModelForCausalLM.from_config(config())) is VarlaForCausalLM
    assert type(AutoModelForSequenceClassification.from_config(config())) is VarlaForSequenceClassification


SCRIPT = """
import sys, varla, varla.layers, varla.training, varla.backbone
print("transformers" in sys.modules)
sys.modules["transformers"] = None
import varla.models
"""


@pytest.fixture(scope="module")
def without():
    """A process that imports the lab, and then the family where there is no transformers."""
    return subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False)


def test_without_transformers_the_import_says_what_to_install(without):
    assert without.returncode == 1
    assert "ImportError: varla.models needs Hugging Face transformers: pip install" in without.stderr
    assert "in a clone" in without.stderr, "varla is not on a package index"


def test_the_lab_needs_no_transformers(without):
    assert without.stdout.strip() == "False"
