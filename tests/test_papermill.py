"Experiment notebooks: the tagged cell is there, every parameter takes effect, a mistyped one is refused, and one runs whole."
import ast
import nbformat, pytest
from papermill.iorw import load_notebook_node
from papermill.parameterize import parameterize_notebook
from harness_s.cli import main
from harness_s.core import UserError
from harness_s.papermill_run import check_parameters, experiments, parameters_of, run_experiment

EXPERIMENTS = {n: p for n, p in experiments().items() if n != 'study'}                  # the study's page reads results, no runs


@pytest.fixture(scope='module')
def made_up(tmp_path_factory):
    from fakerun import make_run
    return make_run(tmp_path_factory.mktemp('runs')/'given', updates=4, external=True).path


@pytest.mark.parametrize('name', EXPERIMENTS)
def test_tagged_cell_and_parameters(name):
    "R22: without the tag, or with a default set again below the injected cell, a given value would be lost in silence."
    path = EXPERIMENTS[name]; known = parameters_of(path)
    assert {'runs', 'out', 'k', 'seed'} <= set(known) and all(help for _, help in known.values())
    given = check_parameters(path, dict(runs='a,b', k='5', seed='7'))
    nb = parameterize_notebook(load_notebook_node(str(path)), given)
    code = [c for c in nb.cells if c.cell_type == 'code']; injected = next(i for i, c in enumerate(code) if 'injected-parameters' in c.metadata.get('tags', []))
    scope = {}
    for c in code[:injected + 1]: exec(c.source, scope)                                   # only the parameter cells stand up to here
    assert {n: scope[n] for n in given} == dict(runs='a,b', k=5, seed=7)
    later = [ast.parse(c.source) for c in code[injected + 1:]]
    stored = {n.id for t in later for n in ast.walk(t) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    assert not stored & set(known), 'a parameter is set again below the tagged cell'
    assert 'runs' in {n.id for t in later for n in ast.walk(t) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    with pytest.raises(UserError, match='no parameter'): check_parameters(path, dict(rusn='a'))


def test_house_size_of_experiments(): assert {n: c for n, p in EXPERIMENTS.items() if (c := len(nbformat.read(p, 4).cells)) >= 15} == {}


def executed(name, out, **parameters):
    "What an experiment printed and showed, as text; its figures' data by name."
    import polars as pl
    nb = nbformat.read(run_experiment(name, out, show=False, **parameters), 4)
    shown = [o for c in nb.cells if c.cell_type == 'code' for o in c.outputs]
    assert not any(o.output_type == 'error' for o in shown)
    return ' '.join(o.text if o.output_type == 'stream' else o.get('data', {}).get('text/plain', '') for o in shown), {p.stem: pl.read_csv(p, infer_schema_length=None) for p in (out/'figures').glob('*.csv')}


def test_one_runs_whole(made_up, tmp_path):
    text, data = executed('router', tmp_path/'new'/'folder', runs=str(made_up), seed=3)
    assert 'given' in text and 'MADE-UP' not in text                                      # the run that was named, not one that was made up
    assert 'router_ranks' in data


def test_the_study_page_reads_its_folder(tmp_path):
    import polars as pl
    folder = experiments()['study'].parents[2]/'figures'/'pocket-study'
    text, _ = executed('study', tmp_path, folder=str(folder))
    claims = pl.read_csv(folder/'claims.csv')
    assert all(c in text for c in claims['expected'].head(3)) and 'claims.csv' in text


def test_cross_harness_finds_the_harness_from_elsewhere(made_up, tmp_path):
    import polars as pl
    text, data = executed('cross_harness', tmp_path, runs=str(made_up))
    d = data['cross_harness']; out = d.filter(pl.col('harness') == 'elsewhere')
    assert sorted(out['arm']) == ['base', 'grpo', 'top8_adaptive'] and not out['used'].any() and set(out['n']) == {24}
    assert out.filter(pl.col('arm') == 'top8_adaptive')['gain'].is_not_null().all() and d.filter((pl.col('harness') == 'H0') & (pl.col('arm') == 'grpo'))['used'].all()
    assert 'No test evaluation' not in text


def test_cross_harness_says_that_there_is_none(tmp_path):
    from fakerun import make_run
    text, data = executed('cross_harness', tmp_path/'o', runs=str(make_run(tmp_path/'plain', updates=2).path))
    assert 'No test evaluation under a named harness in: plain.' in text and 'cross_harness' not in data


def test_harness_scaling_over_two_pools(made_up, tmp_path):
    from fakerun import make_run
    text, data = executed('harness_scaling', tmp_path/'o', runs=f'{made_up},{make_run(tmp_path/"small", updates=2, siblings=3).path}', draws=40)
    sizes = {r: g['size'].to_list() for (r,), g in data['harness_scaling'].group_by('run')}
    assert sizes == {'given': [1, 2, 4, 8], 'small': [1, 2, 3]} and '2 pool size(s)' in text
    for (r,), g in data['harness_scaling'].group_by('run'):
        assert g['union'].is_sorted() and g['rescue_union'].is_sorted() and g['calibration'].to_list() == [3 * 24 * (n + 1) for n in g['size']]       # three anchors of 24 tasks
    assert sorted(data['harness_scaling_gain']['size'].unique()) == [3, 8]


def test_transfer_cases_counts(made_up, tmp_path):
    import polars as pl
    text, data = executed('transfer_cases', tmp_path, runs=str(made_up))
    d = data['came_home'].filter(pl.col('tasks') == 'only siblings')
    assert d.filter(pl.col('arm') == 'base')['avg'][0] == 0 < d.filter(pl.col('arm') == 'top8_adaptive')['avg'][0] and d['n'].n_unique() == 1
    assert 'No case' in text                                                              # a made-up run's tasks are in no benchmark, so no habit can be read from them


def test_command_line_refuses(tmp_path, capsys):
    for args, word in ((['router', '-p', 'rusn=x'], "did you mean 'runs'"), (['no_such', '-p', 'k=3'], 'use one of'), (['router', '-p', 'k'], 'key=value'), (['router', '-p', 'out=x'], '--out'), (['router', '-p', 'k=many'], 'int')):
        assert main(['experiment', *args, '--out', str(tmp_path/'o')]) == 2 and word in capsys.readouterr().err
    assert not (tmp_path/'o').exists()


def test_a_failing_cell_is_one_sentence(tmp_path):
    with pytest.raises(UserError, match=r'04_router.ipynb, cell \d+: UserError: .*see '): run_experiment('router', tmp_path, show=False, runs=str(tmp_path/'none'))
