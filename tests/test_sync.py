"The notebooks are the source: clean, exported, and each module with one notebook."
from collections import Counter
import sync


def test_library_is_in_step_with_notebooks(): assert sync.stale_export() == []
def test_notebooks_are_clean(): assert sync.unclean() == []
def test_readme_is_in_step_with_index(): assert (sync.ROOT/'README.md').read_text() == sync.make_readme()


def test_one_notebook_per_module():
    "R21: two notebooks with one default_exp lose the first one's symbols."
    seen = Counter(filter(None, map(sync.exports, sync.notebooks())))
    assert seen and [m for m, n in seen.items() if n > 1] == []


def test_library_imports_neither_nbdev_nor_fastcore():
    bad = [p for p in (sync.ROOT/'harness_s').rglob('*.py') if p.name != '_modidx.py'
           and any(l.strip().startswith(('import nbdev', 'from nbdev', 'import fastcore', 'from fastcore')) for l in p.read_text().splitlines())]
    assert bad == []


def test_house_size():
    "Notebooks stay readable: at most 70 cells and 300 exported lines."
    import json
    big = []
    for p in sync.notebooks():
        cells = [(c['cell_type'], ''.join(c['source'])) for c in json.loads(p.read_text())['cells']]
        lines = sum(len(s.splitlines()) for kind, s in cells if kind == 'code' and any(l.startswith('#| export') for l in s.splitlines()[:3]))
        if len(cells) > 70 or lines > 300: big.append((p.name, len(cells), lines))
    assert big == []
