"""One update: checked or not, the weights are the same; numbers that are not finite are reported."""

import pytest
import torch

from varla.training import Diverged
from varla.training.optimizer import adamw, cosine
from varla.training.update import AsyncUpdate, CheckedUpdate


def updated(kind, steps=5, spoil=None):
    """(update, losses) of a small regression; `spoil`: the step whose loss is not finite."""
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 1)
    batches = iter(torch.randn(steps, 8, 3))
    seen = []

    def objective():
        x = next(batches)
        seen.append(x)
        scale = float("nan") if len(seen) == spoil else 1.0
        return scale * (model(x) - x.sum(-1, keepdim=True)).square().mean(), x.max()

    update = kind(objective, model, adamw(model.parameters()), cosine(0.1, steps, warmup=2), clip=0.5)
    made = [update(step, look=False) for step in range(steps)]
    assert [each.others for each in made] == [(x.max(),) for x in seen]
    return update, made


def test_both_kinds_make_the_same_update():
    (checked, first), (unchecked, second) = updated(CheckedUpdate, 40), updated(AsyncUpdate, 40)
    assert [float(each.loss) for each in first] == [float(each.loss) for each in second]
    assert [float(each.norm) for each in first] == [float(each.norm) for each in second]
    for a, b in zip(checked.model.parameters(), unchecked.model.parameters(), strict=True):
        assert torch.equal(a, b)
    assert first[-1].loss < first[0].loss / 2
    checked.check()
    unchecked.check()


def test_a_checked_update_raises_at_once_and_names_the_gradients():
    with pytest.raises(Diverged, match=r"diverged at step 3: the gradient of weight, bias is not finite \(loss nan\)"):
        updated(CheckedUpdate, spoil=3)


def test_an_unchecked_update_remembers_the_first_bad_step():
    update, _ = updated(AsyncUpdate, spoil=3)  # the steps after it are not finite either
    with pytest.raises(Diverged, match="diverged at step 3: the loss or a gradient is not finite"):
        update.check()
