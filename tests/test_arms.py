"Every arm and every strategy of the comparison, from the command line's function to its scores, small: it ends, counts its rollouts, and goes on."
import json, sys
from pathlib import Path
import polars as pl
import pytest, torch
sys.path.insert(0, str(Path(__file__).parent))
from harness_s.bench.pocket import base_harness, scripted_siblings
from harness_s.config import load_config
from harness_s.core import UserError
from harness_s.evolve.pool import Pool, Sibling
from harness_s.experiment import run
from harness_s.train.arms import ARMS, STRATEGIES
from harness_s.trainrun import check_arm, train_run, use_pool

torch.set_num_threads(1)
SMALL = ['stages=[train,evaluate]', 'train.updates=2', 'train.tasks_per_update=3', 'train.group_size=4', 'route.val_tasks=6', 'route.anchor_every=1', 'evaluate.tasks=6', 'evaluate.rollouts=2',
         'evolve.proposals=[2]', 'evolve.diagnose_tasks=24', 'evolve.val_tasks=6', 'jobs=1']


@pytest.fixture(scope='module')
def pool(tmp_path_factory):
    p, d = Pool(base_harness(), benchmark='pocket'), tmp_path_factory.mktemp('pool')
    for h in list(scripted_siblings().values())[:10]: p.add(h, Sibling(id=h.id, parent=h.parent, intent=h.intent))
    p.freeze(); p.save(d)
    return d


@pytest.fixture(scope='module')
def whole(pool, tmp_path_factory):
    "One run of everything: the summary and the folder."
    out = tmp_path_factory.mktemp('run')/'r'
    run(load_config('demo-quick', [*SMALL, f'pool={pool}', f"train.arms=[{','.join([*ARMS, *STRATEGIES, 'he_only'])}]"]), out, show=False)
    return out


def test_a_run_of_every_arm_and_strategy(whole):
    s = json.loads((whole/'report'/'summary.json').read_text())
    labels = {a: set(x) for a, x in s['arms'].items()}
    want = {**{a: {'h0'} for a in ARMS}, 'top8_adaptive': {'h0', 'rank1'}, 'base': {'h0', 'rank1'}, 'he_only': {'rank1'}, 'meta_harness': {'own'}, 'whale': {'h0', 'own'}, 'harnessforge': {'h0', 'own'}}
    assert labels == want and all(x['n'] == 6 and x['n_rollouts'] == 12 for a in s['arms'].values() for x in a.values())
    for a in [*ARMS, *STRATEGIES, 'he_only', 'base']:
        bill = json.loads((whole/'arms'/f'{a}.json').read_text())
        assert bill['done'] and bill['seconds'] and bill['scores'] and bill['rollouts']['eval'] == 12 * len(want[a])
        if a in ARMS: assert bill['rollouts']['train'] == pl.read_parquet(whole/'train'/a/'metrics.parquet')['rollouts'].sum() >= 24
        if a in STRATEGIES: assert bill['rollouts']['search'] > 0
    trained = {p.parent.parent.parent.name for p in whole.glob('train/*/checkpoints/*/model.safetensors')}
    assert trained == {*ARMS, 'whale', 'harnessforge'}
    assert s['arms']['he_only']['rank1'] == s['arms']['base']['rank1']          # the same policy, pool, router and random numbers


def test_half_of_mixed_external_is_the_stand_in(whole):
    df = pl.read_parquet(whole/'rollouts'/'train-mixed_external-00000-first.parquet')
    n = dict(df.group_by('harness_id').len().iter_rows())
    assert len(df) == 12 and sorted(n.values()) == [6, 6] and base_harness().id in n


@pytest.mark.parametrize('name', ['mixed_external', 'top8_adaptive', 'whale', 'he_only'])
def test_the_train_command_gives_what_the_run_gives(name, whole, pool, tmp_path):
    "One arm in a run of its own: the same weights and scores; started again it does nothing."
    c, said = use_pool(load_config('demo-quick', SMALL), pool), []
    path = train_run(c, name, tmp_path/'a', show=False)
    assert path.is_file()
    a, b = (json.loads((d/'arms'/f'{name}.json').read_text()) for d in (tmp_path/'a', whole))
    own = lambda x: {k: v for k, v in x['rollouts'].items() if k != 'calibrate'}
    assert a['scores'] == b['scores'] and own(a) == own(b) and a['updates'] == b['updates']
    for f in (tmp_path/'a').glob('train/*/checkpoints/*/model.safetensors'): assert f.read_bytes() == (whole/f.relative_to(tmp_path/'a')).read_bytes()
    stamp = {f: f.stat().st_mtime_ns for f in (tmp_path/'a').rglob('*.parquet') if f.parent.name != 'train'}
    train_run(c, name, tmp_path/'a', show=False, tell=said.append)
    assert 'nothing to do' in said[0] and stamp == {f: f.stat().st_mtime_ns for f in stamp}


def test_the_command_line_takes_a_pool(pool, tmp_path, capsys):
    from harness_s.cli import main
    cmd = ['train', 'demo-quick', '--arm', 'he_only', '--out', str(tmp_path/'a'), *(x for s in SMALL for x in ('--set', s))]
    assert main([*cmd, '--pool', str(pool)]) == 0 and capsys.readouterr().out.strip() == str(tmp_path/'a'/'arms'/'he_only.json')
    assert main([*cmd[:5], str(tmp_path/'b'), '--pool', str(tmp_path)]) == 2 and 'no pool.json' in capsys.readouterr().err


def test_what_cannot_work_is_said_before_anything_runs(pool, tmp_path):
    bad = lambda *s: load_config('demo-quick', [*SMALL, f'pool={pool}', *s])
    with pytest.raises(UserError, match='unknown arm'): run(bad('train.arms=[grpo,ppo]'), tmp_path/'a')
    with pytest.raises(UserError, match='cannot load'): run(bad('train.arms=[mixed_external]', 'train.external={kind: python, target: "no_such:thing"}'), tmp_path/'b')
    with pytest.raises(UserError, match='brings no stand-in'): check_arm(bad(), 'mixed_external', type('B', (), {'name': 'mine', 'base_harness': staticmethod(base_harness)}))
    with pytest.raises(UserError, match='siblings'): train_run(load_config('demo-quick', SMALL), 'he_only', tmp_path/'c')
    with pytest.raises(UserError, match='no pool.json'): use_pool(bad(), tmp_path)
    assert not (tmp_path/'a').exists() and not (tmp_path/'b').exists()
