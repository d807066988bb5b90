"""Three things that must not drift: clean notebooks, the exported library, the README. Run alone: `python tests/sync.py [--write-readme]`."""
import filecmp, json, re, shutil, subprocess, sys, tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def tool(name):
    "A console script of this interpreter's environment, whether or not the environment is activated."
    return str(Path(sys.executable).parent/name)


def notebooks(root=ROOT):
    "Every notebook that nbdev sees: names or folders that start with _ or . are not."
    return sorted(p for p in (root/'nbs').rglob('*.ipynb') if not any(s.startswith(('_', '.')) for s in p.relative_to(root).parts))


def make_readme(index=ROOT/'nbs'/'index.ipynb'):
    "README text from index.ipynb: markdown cells and shown code, without hidden cells and directives."
    out = []
    for c in json.loads(index.read_text())['cells']:
        src = ''.join(c['source'])
        if src.lstrip().startswith('#| hide'): continue
        if c['cell_type'] == 'markdown': out.append(src.strip())
        else:
            code = '\n'.join(l for l in src.splitlines() if not l.startswith('#|')).strip()
            if code: out.append(f'```python\n{code}\n```')
    return '\n\n'.join(out) + '\n'


def _copy(dst):
    "What an export needs, and nothing of the exported library."
    shutil.copytree(ROOT/'nbs', dst/'nbs', ignore=shutil.ignore_patterns('.ipynb_checkpoints', '_*'))
    shutil.copy(ROOT/'settings.ini', dst)
    (dst/'harness_s').mkdir()
    shutil.copy(ROOT/'harness_s'/'__init__.py', dst/'harness_s')
    return dst


def stale_export():
    "Module files that differ between a fresh export and the library, or exist on one side only."
    with tempfile.TemporaryDirectory() as d:
        new = _copy(Path(d))
        subprocess.run([tool('nbdev_export')], cwd=new, check=True, capture_output=True)
        files = lambda r: {p.relative_to(r) for p in (r/'harness_s').rglob('*.py')}
        a, b = files(new), files(ROOT)
        return sorted(str(p) for p in a | b if p not in a or p not in b or not filecmp.cmp(new/p, ROOT/p, shallow=False))


def unclean():
    "Notebooks that nbdev_clean would change."
    with tempfile.TemporaryDirectory() as d:
        new = _copy(Path(d))
        subprocess.run([tool('nbdev_clean')], cwd=new, check=True, capture_output=True)
        return [str(p.relative_to(ROOT)) for p in notebooks() if (new/p.relative_to(ROOT)).read_text() != p.read_text()]


def exports(nb):
    "The module a notebook exports to, or None."
    for c in json.loads(nb.read_text())['cells']:
        m = re.match(r'#\| default_exp (\S+)', ''.join(c['source']))
        if m: return m[1]


if __name__ == '__main__':
    if '--write-readme' in sys.argv: (ROOT/'README.md').write_text(make_readme())
    bad = {'library out of step (nbdev_export)': stale_export(), 'not clean (nbdev_clean)': unclean(),
           'out of step with nbs/index.ipynb (python tests/sync.py --write-readme)': [] if (ROOT/'README.md').read_text() == make_readme() else ['README.md']}
    for why, what in bad.items():
        if what: print(f"{', '.join(what)}: {why}")
    sys.exit(any(bad.values()))
