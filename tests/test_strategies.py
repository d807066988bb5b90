"The comparison strategies on the pocket world, small: they end with a harness, train what they should, and go on after a break."
import pytest, torch
from harness_s.bench.base import get_benchmark
from harness_s.config import RunConfig
from harness_s.core import Limits
from harness_s.policy.torch import load_policy
from harness_s.store import RunStore
from harness_s.train.harnessforge import harnessforge
from harness_s.train.search import meta_harness
from harness_s.train.whale import whale
from tiny import flat

torch.set_num_threads(1)
CFG = RunConfig(limits=Limits(model_calls=16, env_steps=16, completion_tokens=16, total_tokens=512), width=256,
                evolve=dict(val_tasks=16, diagnose_tasks=24), train=dict(updates=2, lr=1e-3))


@pytest.fixture(scope='module')
def bench(): return get_benchmark('pocket')


def go(strategy, bench, folder, lora=None, **kw):
    policy = load_policy('pocket')
    cfg = CFG.model_copy(update={'train': CFG.train.model_copy(update={'lora_rank': lora})})
    before = policy.fingerprint
    out = strategy(policy, bench, cfg, RunStore.create(folder, {}), **kw)
    return out, policy, before


def test_meta_harness_leaves_the_policy_alone(bench, tmp_path):
    out, policy, before = go(meta_harness, bench, tmp_path/'r', steps=4)
    scores = [h['score'] for h in out.history if h['score'] is not None]
    assert policy.fingerprint == before and not out.trained and len(out.history) == 5
    assert max(scores) == next(h['score'] for h in out.history if h['harness_id'] == out.harness.id)


@pytest.mark.parametrize('strategy,kw,lora', [(whale, dict(rounds=2, steps=2), None), (harnessforge, dict(branches=2, rounds=1, steps=2), None), (whale, dict(rounds=1, steps=1), 4)])
def test_coevolution_trains_and_goes_on(strategy, kw, lora, bench, tmp_path):
    out, policy, before = go(strategy, bench, tmp_path/'r', lora, **kw)
    assert out.trained and policy.fingerprint != before and out.harness.id in {h['harness_id'] for h in out.history}
    files = sorted((tmp_path/'r').rglob('*.safetensors'))
    stamps = {f: f.stat().st_mtime_ns for f in files}
    again, same, _ = go(strategy, bench, tmp_path/'r', lora, **kw)                    # as after a kill at the end: nothing is tuned twice
    assert again.history == out.history and again.harness == out.harness and torch.equal(flat(policy.model), flat(same.model))
    assert {f: f.stat().st_mtime_ns for f in sorted((tmp_path/'r').rglob('*.safetensors')) if f.name[:7] != 'round-0'} == {f: t for f, t in stamps.items() if f.name[:7] != 'round-0'}
    last = max((f for f in files if f.stem not in ('base', 'round-0')), key=lambda f: stamps[f]); last.unlink()      # a kill before it was written
    redo, back, _ = go(strategy, bench, tmp_path/'r', lora, **kw)
    assert torch.equal(flat(policy.model), flat(back.model)) and redo.history[-1]['score'] == out.history[-1]['score']


def test_harnessforge_asks_for_no_training_rollouts(bench, tmp_path):
    out, _, _ = go(harnessforge, bench, tmp_path/'r', branches=1, rounds=1, steps=1)
    units = {p.stem for p in (tmp_path/'r'/'rollouts').glob('*.parquet')}
    assert units == {'harnessforge-branch0-r0-s000', 'harnessforge-branch0-r0-s001', 'harnessforge-branch0-val'}
