"Experiment notebooks: the tagged cell is there, every parameter takes effect, a mistyped one is refused, and one runs whole."
import ast
import nbformat, pytest
from papermill.iorw import load_notebook_node
from papermill.parameterize import parameterize_notebook
from harness_s.cli import main
from harness_s.core import UserError
from harness_s.papermill_run import check_parameters, experiments, parameters_of, run_experiment

EXPERIMENTS = experiments()


@pytest.fixture(scope='module')
def made_up(tmp_path_factory):
    from fakerun import make_run
    return make_run(tmp_path_factory.mktemp('runs')/'given', updates=4).path


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


def test_one_runs_whole(made_up, tmp_path):
    target = run_experiment('router', tmp_path/'new'/'folder', show=False, runs=str(made_up), seed=3)
    nb = nbformat.read(target, 4)
    assert not any(o.output_type == 'error' for c in nb.cells if c.cell_type == 'code' for o in c.outputs)
    text = str(nb)
    assert 'given' in text and 'MADE-UP' not in text                                      # the run that was named, not one that was made up
    assert (tmp_path/'new'/'folder'/'figures'/'router_ranks.csv').is_file()


def test_command_line_refuses(tmp_path, capsys):
    for args, word in ((['router', '-p', 'rusn=x'], "did you mean 'runs'"), (['no_such', '-p', 'k=3'], 'use one of'), (['router', '-p', 'k'], 'key=value'), (['router', '-p', 'out=x'], '--out'), (['router', '-p', 'k=many'], 'int')):
        assert main(['experiment', *args, '--out', str(tmp_path/'o')]) == 2 and word in capsys.readouterr().err
    assert not (tmp_path/'o').exists()


def test_a_failing_cell_is_one_sentence(tmp_path):
    with pytest.raises(UserError, match=r'04_router.ipynb, cell \d+: UserError: .*see '): run_experiment('router', tmp_path, show=False, runs=str(tmp_path/'none'))
