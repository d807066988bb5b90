"Killed at any moment and started again, a run goes on and ends with the same numbers."
import json, os, random, signal, subprocess, sys, time
import polars as pl
import pytest

TINY = ['evolve.proposals=[2,2]', 'evolve.diagnose_tasks=24', 'evolve.local_tasks=8', 'evolve.local_controls=2', 'evolve.val_tasks=10', 'evolve.cover_tasks=4',
        'route.val_tasks=8', 'route.anchor_every=2', 'train.updates=4', 'train.checkpoint_every=2', 'train.arms=[grpo_h0_rescue,top8_adaptive]', 'evaluate.tasks=8']


def start(out, jobs):
    argv = [sys.executable, '-m', 'harness_s.cli', 'demo', '--config', 'demo-quick', '--out', str(out), '--set', f'jobs={jobs}']
    return subprocess.Popen(argv + [a for s in TINY for a in ('--set', s)], start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def finish(out, jobs):
    p = start(out, jobs)
    text = p.communicate(timeout=600)[0]
    assert p.returncode == 0, text


def timeless(x):
    "A summary without what time and memory may change."
    if isinstance(x, dict): return {k: timeless(v) for k, v in x.items() if k not in ('wall_s', 'peak_rss_mb', 'seconds', 'rollout_s', 'seconds_by_stage')}
    return [timeless(v) for v in x] if isinstance(x, list) else x


def facts(out):
    "Everything that must be equal: summary, pool, ballots, metrics (times aside), weights."
    metrics = {p.parent.name: pl.read_parquet(p).select(pl.exclude('^seconds_.*$')).to_dicts() for p in sorted(out.glob('train/*/metrics.parquet'))}
    weights = {str(p.relative_to(out)): p.read_bytes() for p in out.glob('train/*/checkpoints/*/model.safetensors')}
    ballots = [pl.read_parquet(sorted(out.glob(f'{table}/*.parquet'))).to_dicts() for table in ('ballots', 'rescue_ballots')]
    return dict(summary=timeless(json.loads((out/'report'/'summary.json').read_text())), pool=json.loads((out/'pool'/'pool.json').read_text()), ballots=ballots,
                metrics=metrics, weights=weights)


def differences(a, b, path=''):
    if isinstance(a, dict) and isinstance(b, dict): return [d for k in {**a, **b} for d in differences(a.get(k), b.get(k), f'{path}.{k}')]
    return [] if a == b or (a != a and b != b) else [(path, a if not isinstance(a, bytes) else len(a), b if not isinstance(b, bytes) else len(b))]


@pytest.fixture(scope='module')
def unbroken(tmp_path_factory):
    out, t = tmp_path_factory.mktemp('unbroken')/'run', time.time()
    finish(out, 1)
    return facts(out), time.time() - t


def test_killed_runs_end_with_the_same_numbers(unbroken, tmp_path):
    want, took = unbroken
    rng, out, kills = random.Random(int(os.environ.get('KILL_SEED', 0))), tmp_path/'run', 0
    for i in range(int(os.environ.get('KILLS', 3))):
        p = start(out, 1 + i % 2)
        try: p.wait(timeout=took * rng.uniform(.25, .75))
        except subprocess.TimeoutExpired:
            kills += 1
            if i % 2: p.kill()                                  # the parent alone: its arms must not go on writing
            else: os.killpg(p.pid, signal.SIGKILL)
            p.wait()
            if not i % 2: continue
            time.sleep(1)
    assert kills >= 1
    finish(out, 1)
    assert differences(want, facts(out)) == []


def test_a_finished_run_started_again_does_nothing_new(unbroken, tmp_path):
    "Covered by the same folder: see that no part is written twice."
    out = tmp_path/'run'
    finish(out, 1)
    before = {p: p.stat().st_mtime_ns for p in out.rglob('*.parquet') if 'report' not in p.parts}
    finish(out, 1)
    assert before == {p: p.stat().st_mtime_ns for p in out.rglob('*.parquet') if 'report' not in p.parts}
