"""The names of metrics: one for each evaluation, and the old name of an accuracy."""

import pytest

from varla.runs.metrics import current, eval_metric, eval_name, is_eval, newest, with_current_names


@pytest.mark.parametrize(("name", "metric"), [("eval", "eval"), ("ood", "eval/ood")])
def test_an_evaluation_and_its_metric_name_each_other(name, metric):
    assert eval_metric(name) == metric
    assert eval_name(metric) == name
    assert is_eval(metric)


@pytest.mark.parametrize("metric", ["loss", "accuracy", "evaluation", "step"])
def test_other_metrics_are_not_evaluations(metric):
    assert not is_eval(metric)
    assert current(metric) == metric


def test_an_old_name_becomes_the_new_one():
    found = with_current_names({"step": 3, "eval/eval": 0.5, "eval/ood": 0.1})
    assert found == {"step": 3, "eval": 0.5, "eval/ood": 0.1}


def test_the_newest_value_of_each_metric_is_found():
    entries = [{"step": 1, "loss": 3.0}, {"step": 2, "eval": 0.5}, {"step": 3, "loss": 2.0}]
    assert newest(entries) == {"step": 3, "loss": 2.0, "eval": 0.5}
