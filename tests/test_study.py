"A study of toy size, for real: registered first, killed in the middle, gone on with, and its claims read from the runs."
import os, signal, subprocess, sys, time
from pathlib import Path
import polars as pl
import pytest
from harness_s.core import UserError
from harness_s.store import RunStore, read_json
from harness_s.study.claims import claims_table, write_results
from harness_s.study.plan import Claim, Cross, Reuse, Scaling, StudyPlan, register
from harness_s.study.progress import progress_table, write_progress
from harness_s.study.run import parts_of, run_study, runs_of
from harness_s.study.why import chance_rows, chance_table, context_table, needs_scores, needs_table, trigger_table

SMALL = ('train.updates=2', 'train.tasks_per_update=2', 'train.group_size=4', 'evolve.proposals=[2]', 'evolve.diagnose_tasks=20', 'evolve.cover_tasks=10', 'route.val_tasks=10',
         'bench.options.train=24', 'bench.options.val=12', 'bench.options.test=12', 'evaluate.rollouts=1')
PLAN = StudyPlan(name='toy', about='a test', base='demo-quick', settings=SMALL, seeds=2, task_seed=900, arms=('grpo', 'top8_adaptive'), scaling=Scaling(sizes=(1,), seeds=1), reuse=Reuse(base='grpo', arms=('grpo',), seeds=1), cross=Cross(arms=('base', 'grpo'), harnesses=1),
                 claims=(Claim(id='a', text='above', measure='score', args=('top8_adaptive/h0', 'grpo/h0')), Claim(id='d', text='covers', measure='coverage'), Claim(id='h', text='habits', measure='habits', args=('grpo', 'base'))))
CHILD = 'import sys; from test_study import PLAN; from harness_s.study.run import run_study; run_study(PLAN, sys.argv[1], jobs=2, show=False, facts=lambda *_: {})'


@pytest.fixture(scope='module')
def killed(tmp_path_factory):
    "A study that was killed with -9 once something of it stood."
    out = tmp_path_factory.mktemp('study')/'toy'
    p = subprocess.Popen([sys.executable, '-c', CHILD, str(out)], cwd=Path(__file__).parent, start_new_session=True, env={**os.environ, 'OMP_NUM_THREADS': '1'})
    end = time.monotonic() + 240
    while not list((out/'runs').glob('*/arms/*.json')) and time.monotonic() < end and p.poll() is None: time.sleep(.2)
    os.kill(p.pid, signal.SIGKILL); p.wait()
    assert list((out/'runs').glob('*/arms/*.json')) and not all(read_json(f).get('status') == 'done' for f in (out/'runs').glob('*/run.json'))
    time.sleep(1)                                             # the parts notice within a fifth of a second that their parent is gone
    return out


def test_registered_before_anything_ran(killed):
    page = killed/'preregistration.md'
    assert PLAN.hash in page.read_text() and page.stat().st_mtime <= min(f.stat().st_mtime for f in (killed/'runs').glob('*/pool/pool.json'))
    with pytest.raises(UserError, match='does not change'): register(PLAN.model_copy(update=dict(settings=(*SMALL, 'train.lr=0.1'))), killed)


def test_says_what_has_been_run(killed, tmp_path):
    "Between two sittings: what stands in the store, and nothing that does not."
    before = {f: f.stat().st_mtime_ns for f in killed.rglob('*') if f.is_file()}
    t = write_progress(PLAN, killed, tmp_path)
    assert {f: f.stat().st_mtime_ns for f in killed.rglob('*') if f.is_file()} == before and (tmp_path/'progress.csv').is_file() and (tmp_path/'preregistration.md').is_file()
    assert set(t['part']) == {p.name for p in parts_of(PLAN, killed)} and t.filter(part='cross/seed-1-cross')['state'].to_list() == ['not begun'] and 'begun' in t.filter(pl.col('part').str.starts_with('runs/'))['state'].to_list()
    for r in t.filter(stage='train').iter_rows(named=True):
        f = killed/r['part']/'train'/r['arm']/'metrics.parquet'
        assert r['planned'] == 2 and r['updates'] == (pl.read_parquet(f).height if f.is_file() else None)
    with pytest.raises(UserError, match='holds no study'): write_progress(PLAN, tmp_path/'none', tmp_path)


def test_goes_on_and_ends_with_claims(killed, tmp_path):
    kept = {f: f.stat().st_mtime_ns for f in (killed/'runs').glob('*/arms/*.json')}
    run_study(PLAN, killed, jobs=2, show=False, tell=lambda s: None)
    assert {f: f.stat().st_mtime_ns for f in kept} == kept                                # what was done is not done again
    assert [p.name for p in parts_of(PLAN, killed)] == ['runs/seed-0', 'runs/seed-1', 'scaling/seed-0-01', 'reuse/seed-0', 'cross/seed-0-cross', 'cross/seed-1-cross'] and all((killed/p.name/'run.json').is_file() for p in parts_of(PLAN, killed))
    end = progress_table(PLAN, killed)
    assert set(end['state']) == {'done'} and end.filter(part='runs/seed-0', arm='grpo', stage='train').select('updates', 'rollouts').row(0) == (2, 16) and end.filter(part='runs/seed-0', arm='grpo', stage='eval')['rollouts'].item() == 12
    said = []; run_study(PLAN, killed, jobs=2, show=False, tell=said.append); assert not said
    table = write_results(PLAN, killed, tmp_path/'figures', notebooks=False)
    assert table['claim'].to_list() == ['a', 'd', 'h'] and table['seeds'].to_list() == [2, 2, 2] and set(table['n_missing']) == {0} and table.filter(table['claim'] == 'a')['n'].item() == 24
    assert (tmp_path/'figures'/'claims.csv').read_text().startswith('claim,expected,difference,ci_low,ci_high') and (tmp_path/'figures'/'preregistration.md').is_file()
    reuse, arms = (pl.read_csv(tmp_path/'figures'/f'{f}.csv') for f in ('reuse', 'arms_by_run'))
    assert (tmp_path/'figures'/'reuse.png').is_file() and reuse.item(0, 'n') == 12 and reuse.item(0, 'difference') == pytest.approx(reuse.item(0, 'avg') - reuse.item(0, 'start_avg'))
    start, grpo = (arms.filter(run=r, arm=a, label='h0')['avg_k'].item() for r, a in (('reuse/seed-0', 'base'), ('runs/seed-0', 'grpo')))
    assert start == pytest.approx(grpo) == pytest.approx(reuse.item(0, 'start_avg'), abs=1e-4)                    # the reuse run starts from the policy that the main run's GRPO ended with
    with pytest.raises(UserError, match='no measure'): claims_table(PLAN.model_copy(update=dict(claims=(Claim(id='x', text='', measure='nosuch'),))), [RunStore.open(p) for p in runs_of(killed)])


def test_why_a_claim_failed(killed, tmp_path):
    "The control runs beside the main ones, and the tables of the controlled experiments hold together."
    run_study(PLAN, killed, jobs=2, show=False, tell=lambda s: None, why=True)
    stores, control = [RunStore.open(p) for p in runs_of(killed)], [RunStore.open(p) for p in runs_of(killed, 'control')]
    assert [s.path.name for s in control] == ['seed-0', 'seed-1'] and control[0].read_json('pool/pool.json')['hash'] == stores[0].read_json('pool/pool.json')['hash']
    t = trigger_table([*stores, *control])
    assert set(t['arm']) == {'grpo', 'top8_adaptive', 'adaptive_in_h0'} and t['n'].to_list() == [8, 8, 8] and t['seeds'].to_list() == [2, 2, 2]
    assert t.filter(pl.col('arm') == 'grpo')['n_rescued'].item() == 0 and t['all_fail'].max() <= 1
    first = lambda s, a: pl.read_parquet(s.path/'train'/a/'metrics.parquet')['reward_first'][0]
    assert first(stores[0], 'top8_adaptive') == first(control[0], 'adaptive_in_h0')                 # the same weights, tasks and random numbers
    n = needs_table(stores, 1)
    assert n.filter(pl.col('needs') == 'all')['n'].item() == n.filter(pl.col('needs') != 'all')['n'].sum() == 20
    s = needs_scores(stores)
    assert set(s['arm']) == {'base', 'grpo', 'top8_adaptive'} and s['n'].to_list() == [24] * 3
    c = context_table(killed, (('adaptive_in_h0', 'top8_adaptive'),))
    assert c['n'].item() == 24 and c['seeds'].item() == 2
    rows = [r for p in runs_of(killed) for r in chance_rows(p, 2, tasks=8, k=2)]
    assert rows and all(max(r['rule'], r['fixed'], r['adaptive'], r['random']) <= r['any'] for r in rows)
    assert chance_table(rows)['choice'].to_list() == ['random', 'rule', 'fixed', 'adaptive', 'any'] and set(chance_table(rows)['n_missing']) == {0}
    with pytest.raises(UserError, match='no checkpoint of update 1'): chance_rows(runs_of(killed)[0], 1)
