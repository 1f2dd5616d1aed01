"""The recall benchmark: how many runs at a time, and that what it trains can be made."""

import pytest

from benchmarks import recall
from varla.training import build_model, from_dict


@pytest.mark.parametrize(("gpu", "jobs"), [(True, len(recall.RUNS)), (False, 2)])
def test_all_runs_share_a_gpu_and_two_a_cpu(monkeypatch, gpu, jobs):
    used = []

    class Stopped(Exception):
        pass

    class Context:
        def Pool(self, jobs):
            used.append(jobs)
            raise Stopped

    monkeypatch.setattr("torch.cuda.is_available", lambda: gpu)
    monkeypatch.setattr(recall.multiprocessing, "get_context", lambda _: Context())
    for arguments, wanted in (([], jobs), (["--jobs", "5"], 5)):
        monkeypatch.setattr("sys.argv", ["recall", *arguments])
        with pytest.raises(Stopped):
            recall.main()
        assert used.pop() == wanted


@pytest.mark.parametrize("name", recall.RUNS)
def test_every_run_can_be_made(name):
    settings, low, high = recall.RUNS[name]
    assert 0 <= low < high <= 1
    assert build_model(from_dict(settings)).config.mechanism == settings["mechanism"]
