"SWE: attempts to get out of the sandbox, to read or bend the gold, and what the builder must refuse."
import json, os, shlex, shutil, socket, stat, subprocess, sys, tarfile, time
from pathlib import Path
import pytest
from harness_s.core import Limits, ToolCall, UserError
from harness_s.bench import sandbox
from harness_s.bench.base import check, get_benchmark
from harness_s.bench.sandbox import BoxLimits, run_boxed
from harness_s.bench.swe import load_instances
from harness_s.bench.swe_run import Instance, copy_env, grade

needs_box = pytest.mark.skipif(not shutil.which('bwrap'), reason='bubblewrap is not installed (apt-get install -y bubblewrap)')
needs_git = pytest.mark.skipif(not shutil.which('git'), reason='git is not installed')
MARK = 'gold-marker-51c7'                # stands in the gold patch and nowhere else
FILES = {'shop.py': 'def total(xs):\n    s = 0\n    for x in xs: s += x\n    return s\n', 'README.md': 'A shop.\n',
         'tests/test_shop.py': 'from shop import total\n\ndef test_sum():\n    assert total([1, 2]) == 3\n\ndef test_none():\n    assert total([]) == 0\n'}
BUG = '--- a/shop.py\n+++ b/shop.py\n@@ -1,4 +1,4 @@\n def total(xs):\n     s = 0\n-    for x in xs: s += x\n+    for x in xs: s -= x\n     return s\n'
GOLD = f'--- a/shop.py\n+++ b/shop.py\n@@ -1,4 +1,5 @@\n+# {MARK}\n def total(xs):\n     s = 0\n-    for x in xs: s -= x\n+    for x in xs: s += x\n     return s\n'


def row(**kw):
    return dict(instance_id='shop-1', repo='shop', problem_statement='total([1, 2]) gives -3 instead of 3.', patch=GOLD, base_patch=BUG, source='sources/shop-1.tar.gz',
                FAIL_TO_PASS=['tests/test_shop.py::test_sum'], PASS_TO_PASS=['tests/test_shop.py::test_none'], hidden={'tests/test_shop.py': ['test_sum']}, test_seconds=120, split='test') | kw


@pytest.fixture(scope='module')
def store(tmp_path_factory):
    "A data folder with one instance whose gold carries MARK, made without network."
    d = tmp_path_factory.mktemp('swe')
    (d/'sources').mkdir()
    for p, t in FILES.items(): (d/'shop-1'/p).parent.mkdir(parents=True, exist_ok=True); (d/'shop-1'/p).write_text(t)
    with tarfile.open(d/'sources/shop-1.tar.gz', 'w:gz') as tar: tar.add(d/'shop-1', 'shop-1')
    shutil.rmtree(d/'shop-1')
    copy_env(d/'env')
    (d/'instances.jsonl').write_text(json.dumps(row()) + '\n')
    return d


class Agent:
    "Hands for one environment."
    def __init__(self, bench):
        self.env = bench.env(bench.tasks('test')[0]); self.env.reset(None)
    def __call__(self, name, **args): return self.env.call(ToolCall(name=name, args=args))
    def sh(self, command): return self('shell', command=command)
    def py(self, code): return self('shell', command=f'python - <<"EOF_PY"\n{code}\nEOF_PY')
    def fix(self): assert not self('edit', path='shop.py', old='s -= x', new='s += x').error


@pytest.fixture
def agent(store):
    a = Agent(get_benchmark('swe', data=str(store)))
    yield a
    a.env.close()


def alive(uid):
    "Processes of one sandbox user that still live (as root each sandbox has a user number of its own)."
    def owner(p):
        try: return os.stat(f'/proc/{p}').st_uid
        except OSError: return None
    return [p for p in filter(str.isdigit, os.listdir('/proc')) if uid is not None and owner(p) == uid]


# ---------------------------------------------------------------- getting out

@needs_box
def test_no_network(agent):
    with socket.socket() as server:
        server.bind(('127.0.0.1', 0)); server.listen()
        got = agent.py(f'''
import socket
try: socket.create_connection(("127.0.0.1", {server.getsockname()[1]}), timeout=2); print("CONNECTED")
except OSError as e: print("no way", e)
print(sorted(n for _, n in socket.if_nameindex()), open("/proc/net/route").read().count("\\n"))''').text
    assert 'CONNECTED' not in got and 'no way' in got and "['lo'] 1" in got       # one interface, and only the head of the routing table


@needs_box
def test_the_gold_is_not_to_be_read(agent, store):
    tries = [f'cat {shlex.quote(str(store))}/instances.jsonl', f'ls {Path.home()} {Path.cwd()} /home /srv /var 2>&1', f'grep -rl {MARK} /repo /env /tmp /etc {Path.home()} /home /srv /opt /var /run /dev/shm 2>/dev/null',
             'cat /proc/*/environ /proc/*/cmdline 2>/dev/null | tr "\\0" "\\n" | grep -i gold', 'find / -xdev -name "*.jsonl" -o -xdev -name "shop-1*" 2>/dev/null',
             f'ls -la /proc/1/root/ /proc/1/cwd/ 2>&1; cat /proc/1/root{store}/instances.jsonl', 'git log --all -p; git stash list; git fsck --lost-found 2>&1; git reflog --all']
    for cmd in tries:
        text = agent.sh(cmd.replace(MARK, MARK[:4] + '[-]' + MARK[5:])).text
        assert MARK not in text and 's += x' not in text and 'PASS_TO_PASS' not in text, cmd
    task = get_benchmark('swe', data=str(store)).tasks('test')[0]
    assert MARK not in task.model_dump_json()


@needs_box
def test_links_lead_nowhere(agent, store):
    agent.sh(f'ln -s {store}/instances.jsonl gold; ln -s / up; ln -s /etc/passwd pw')
    for path in ('gold', 'up/etc', 'pw', '../../etc/passwd', '/etc/passwd', f'{store}/instances.jsonl'):
        got = agent('view', path=path, lines='')
        assert got.error and MARK not in got.text and 'root:' not in got.text, path
    agent.fix()
    assert agent.env.verify().outcome == 'pass'          # links in the tree neither help nor hurt


@needs_box
def test_nothing_outside_is_written(agent, store, tmp_path):
    victim = tmp_path/'victim'; victim.write_text('whole')
    os.chmod(victim, 0o666); os.chmod(tmp_path, 0o777)
    got = agent.sh(f'for f in /etc/x /usr/x /usr/bin/x /env/pytest/x /env/pytest/__init__.py /x {victim} {store}/x; do echo hacked > $f && echo WROTE $f; done 2>/dev/null; true')
    assert 'WROTE' not in got.text and victim.read_text() == 'whole' and not (store/'x').exists() and 'hacked' not in (store/'env/pytest/__init__.py').read_text()
    agent.sh('echo kept > /tmp/note')
    assert 'kept' not in agent.sh('cat /tmp/note').text     # /tmp lives for one command


@needs_box
def test_fork_bomb(store):
    a = Agent(get_benchmark('swe', data=str(store), limits=BoxLimits(wall_s=4, processes=32)))
    try:
        start = time.monotonic()
        got = a.py('import os\nwhile True:\n    try: os.fork()\n    except OSError: pass')
        took = time.monotonic() - start
        assert got.error and 'limit' in got.text and took < 15
        most = a.py('import subprocess\nn = 0\nps = []\ntry:\n    for _ in range(200): ps.append(subprocess.Popen(["sleep", "3"])); n += 1\nexcept OSError: pass\nprint("started", n)')
        assert 'started' not in most.text or int(most.text.split()[1]) < 40
        assert alive(a.env.work.box.uid) == []
        assert a.sh('echo alive').text == 'alive'
    finally: a.env.close()


@needs_box
def test_nothing_is_left_running(agent):
    agent.sh('nohup setsid sleep 300 >/dev/null 2>&1 & disown; echo off')
    assert alive(agent.env.work.box.uid) == []


@needs_box
def test_memory():
    lim = BoxLimits(memory_mb=128, wall_s=90)
    one = run_boxed([sandbox.PYTHON, '-c', 'b = bytearray(300 << 20)'], limits=lim)
    assert not one.ok and 'MemoryError' in one.text
    many = run_boxed([sandbox.PYTHON, '-c', 'import os, time\nfor _ in range(6): os.fork() or (bytearray(b"x") * (70 << 20), time.sleep(80), os._exit(0))\ntime.sleep(80)'], limits=lim)
    assert many.killed == 'memory'


@needs_box
def test_disk(store):
    a = Agent(get_benchmark('swe', data=str(store), limits=BoxLimits(disk_mb=40, file_mb=8, wall_s=20)))
    try:
        assert 'size limit' in a.sh('head -c 20000000 /dev/zero > big').text
        got = a.sh('for i in $(seq 1000); do head -c 7000000 /dev/zero > f$i; done')
        assert got.error and 'disk' in got.text
        assert a.sh('for i in $(seq 60); do head -c 7000000 /dev/zero > /tmp/f$i || break; done; du -sm /tmp | cut -f1').text.splitlines()[-1].split()[-1] != '420'
    finally: a.env.close()


@needs_box
def test_ctypes(agent, tmp_path):
    got = agent.py(f'''
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
call = lambda name, *a: print(name, getattr(libc, name)(*a))
os.makedirs("m", exist_ok=True)
call("setuid", 0); call("setgid", 0); call("setresuid", 0, 0, 0)
call("mount", b"none", b"m", b"tmpfs", 0, None)
call("umount2", b"/proc", 2); call("chroot", b"m"); call("sethostname", b"x", 1); call("ptrace", 16, 1, 0, 0); call("kill", 1, 9)
call("mknod", b"m/d", 0o60666, 0x700)
print("fd", libc.open(b"{tmp_path}", 0), libc.open(b"/proc/1/mem", 2), libc.open(b"/proc/sys/kernel/hostname", 1), libc.open(b"/dev/sda", 0))
print("uid", os.getuid())''').text
    results = [l.split() for l in got.splitlines() if l.split()[0] not in ('fd', 'uid')]
    assert len(results) == 10 and all(r[1] == '-1' for r in results if r[0] != 'kill'), got
    assert 'fd -1 -1 -1 -1' in got and 'uid 0' not in got
    assert agent.sh('echo alive').text == 'alive'


@needs_box
def test_endless_output(agent):
    start = time.monotonic()
    got = agent.sh('yes "all work and no play"')
    assert got.error and 'output' in got.text and len(got.text) < 9000 and time.monotonic() - start < 15
    got = agent.sh(r'head -c 3000 /dev/urandom; printf "\xff\xfe\x00end"')
    assert got.text.endswith('end') and not got.error


@needs_box
@needs_git
def test_history_is_stripped(agent):
    assert agent.sh('git log --all --oneline | wc -l; git rev-list --all --objects | wc -l').text.splitlines()[0].strip() == '1'
    assert 's += x' not in agent.sh('git log --all -p').text and 'test_sum' not in agent.sh('git log --all -p').text


@needs_box
def test_time(store):
    a = Agent(get_benchmark('swe', data=str(store), limits=BoxLimits(wall_s=1)))
    try:
        got = a.sh('trap "" TERM INT; exec 1>&- 2>&-; sleep 60')
        assert got.error and 'time' in got.text
    finally: a.env.close()


# ---------------------------------------------------------------- bending the grade

@needs_box
def test_null_and_oracle(store):
    got = get_benchmark('swe', data=str(store)).check()
    assert {'n', 'gold_rate', 'null_rate', 'disjoint', 'excluded', 'seconds'} <= got.keys()
    assert got['n'] == dict(train=0, val=0, test=1) and got['gold_rate'] == 100 and got['null_rate'] == 0 and got['disjoint'] and got['failed'] == {}


@needs_box
def test_edited_tests_are_not_graded(agent):
    agent.sh('for f in tests/*.py; do echo "def test_sum(): assert True" > $f; echo "def test_none(): assert True" >> $f; done')
    agent.sh('echo "import pytest\n@pytest.hookimpl(tryfirst=True)\ndef pytest_runtest_call(item): return True" > conftest.py; cp conftest.py tests/; printf "[pytest]\naddopts = --co\n" > pytest.ini; cp pytest.ini tox.ini')
    agent.sh('echo "raise SystemExit(0)" > sitecustomize.py; echo "print(1)" > pytest.py; mkdir _pytest; echo > _pytest/__init__.py; echo "import os" > x.pth')
    v = agent.env.verify()
    assert v.outcome == 'fail' and not next(c for c in v.checks if c.name == 'FAIL_TO_PASS').passed
    agent.fix()
    assert agent.env.verify().outcome == 'pass'          # and they do not spoil an honest repair


@needs_box
@pytest.mark.parametrize('code', [
    'import _pytest.runner as r; r.CallInfo.excinfo = property(lambda s: None, lambda s, v: None)',
    'import _pytest.reports as r; f = r.TestReport.from_item_and_call\nr.TestReport.from_item_and_call = classmethod(lambda c, i, k: (lambda x: (setattr(x, "outcome", "passed"), x)[1])(f(i, k)))',
    'import builtins, os; os._exit(0)',
    'import glob\nfor f in glob.glob("/repo/tests/*.py") + glob.glob("/mine/*.py"):\n    try: open(f, "w").write("def test_sum(): pass\\ndef test_none(): pass\\n")\n    except OSError: pass',
    'def total(:\n'])
def test_code_that_bends_the_run_fails(agent, code):
    old = agent.sh('cat shop.py').text
    agent.sh('rm shop.py'); agent('edit', path='shop.py', old='', new=code + '\n' + old + '\n')
    v = agent.env.verify()
    assert v.outcome == 'fail' and v.reason


@needs_box
def test_uncollected_is_failed(store):
    i = load_instances(store/'instances.jsonl')[0]
    ghost = i.model_copy(update={'FAIL_TO_PASS': ('tests/test_shop.py::test_sum', 'tests/test_shop.py::test_ghost')})
    v = grade(ghost, str(store/i.source), store/'env', patch=i.patch)
    assert v.outcome == 'fail' and 'test_ghost (not collected)' in v.reason
    nothing = i.model_copy(update={'FAIL_TO_PASS': (), 'PASS_TO_PASS': ()})
    assert grade(nothing, str(store/i.source), store/'env', patch=i.patch).outcome == 'fail'


@needs_box
def test_test_patch_comes_from_outside(store):
    patch = '--- /dev/null\n+++ b/tests/test_more.py\n@@ -0,0 +1,4 @@\n+from shop import total\n+\n+def test_three():\n+    assert total([1, 1, 1]) == 3\n'
    i = load_instances(store/'instances.jsonl')[0].model_copy(update={'test_patch': patch, 'FAIL_TO_PASS': ('tests/test_more.py::test_three',)})
    assert grade(i, str(store/i.source), store/'env', patch=i.patch).outcome == 'pass'
    assert grade(i, str(store/i.source), store/'env').outcome == 'fail'


@needs_box
def test_a_hostile_tree_is_graded(agent, tmp_path):
    marker = tmp_path/'ran'
    agent.fix()
    agent.sh('mkfifo pipe; ln -s . loop; ln -s /dev/zero z; mkdir locked && touch locked/f && chmod 000 locked; printf x > $(printf "caf\\xe9\\n.txt"); mkdir -p README.d; rm README.md; mkdir README.md; touch README.md/x; chmod 200 shop.py')
    agent.sh(f'git config core.fsmonitor "touch {marker}"; git config core.hooksPath .; printf "#!/bin/sh\ntouch {marker}\n" > post-index-change; chmod +x post-index-change')
    start = time.monotonic()
    assert agent.env.verify().outcome == 'pass' and time.monotonic() - start < 100
    assert not marker.exists()
    home = agent.env.work.box.home
    agent.env.close()
    assert not home.exists()


# ---------------------------------------------------------------- as the engine uses it

@needs_box
def test_rollouts_through_the_engine(store):
    from harness_s.policy.base import TextPolicy
    from harness_s.rollout import jobs_for, run_jobs
    bench = get_benchmark('swe', data=str(store))
    say = lambda name, **a: f'<tool_call>{json.dumps({"name": name, "arguments": a})}</tool_call>'
    script = [say('shell', command='python -c "from shop import total; assert total([1, 2]) == 3"'), say('edit', path='shop.py', old='s -= x', new='s += x'),
              say('shell', command='python -c "from shop import total; assert total([1, 2]) == 3"'), say('shell', command='git diff'), say('submit')]
    policy = TextPolicy(lambda messages, task: script[sum(m['role'] == 'assistant' for m in messages)])
    ts = run_jobs(policy, bench, jobs_for(bench.tasks('test'), bench.base_harness(), 2, 0, 'test'), Limits(wall_s=240))
    assert [t.verdict.outcome for t in ts] == ['pass', 'pass'] and ts[0].stop == 'finished'
    assert bench.behaviours(bench.tasks('test')[0], ts[0]) == ['agent-written assertion checks', 'fail-edit-retest of the same target', 'diff inspection after the last edit']


@needs_box
def test_agent_faults_are_observations(agent):
    for name, args in (('fly', {}), ('shell', {}), ('shell', {'command': 3}), ('view', {'path': 'nope', 'lines': ''}), ('view', {'path': 'shop.py', 'lines': 'a-b'}), ('edit', {'path': 'shop.py', 'old': 'zzz', 'new': ''}),
                       ('edit', {'path': 'shop.py', 'old': 's', 'new': ''}), ('edit', {'path': '../x', 'old': '', 'new': 'x'}), ('shell', {'command': 'nosuchcommand'}), ('shell', {'command': 'a\0b'})):
        got = agent(name, **args)
        assert got.error and got.text, (name, args)
    assert not agent('submit').error and agent.sh('echo').error


def test_without_bwrap(store, monkeypatch):
    bench = get_benchmark('swe', data=str(store))
    monkeypatch.setenv('PATH', '/nowhere'); sandbox.probe.cache_clear()
    env = bench.env(bench.tasks('test')[0])
    with pytest.raises(UserError, match='apt-get install -y bubblewrap'): env.reset(None)
    sandbox.probe.cache_clear()


def test_bad_data(tmp_path, store):
    for text, words in (('{"a": 1}\n', "field 'instance_id'"), ('[1]\n', 'expected an object'), ('nonsense\n', 'not JSON lines'), (json.dumps(row(FAIL_TO_PASS='x')) + '\n', 'field FAIL_TO_PASS'), (json.dumps(row(split='dev')) + '\n', 'dev')):
        (tmp_path/'i.jsonl').write_text(text)
        with pytest.raises(UserError, match=words): get_benchmark('swe', data=str(tmp_path/'i.jsonl'))
    (tmp_path/'i.parquet').write_bytes(b'PAR0')
    with pytest.raises(UserError, match='not a Parquet file'): get_benchmark('swe', data=str(tmp_path/'i.parquet'))
    (tmp_path/'i.jsonl').write_text(''.join(json.dumps(r) + '\n' for r in (row(), row(instance_id='shop-2'), row(instance_id='shop-3', problem_statement='other', FAIL_TO_PASS=[]))))
    bench = get_benchmark('swe', data=str(tmp_path/'i.jsonl'))
    assert set(bench.excluded) == {'shop-2', 'shop-3'} and 'same task as shop-1' in bench.excluded['shop-2'] and 'FAIL_TO_PASS is empty' in bench.excluded['shop-3']
    with pytest.raises(UserError, match='there is no pytest'): bench.env(bench.tasks('test')[0])


# ---------------------------------------------------------------- containers, with a stand-in for the engine

STAND_IN = '''#!{python}
"Stand-in for docker in tests: a container is a folder; exec runs bash there. No isolation: it runs only what the test says."
import os, shutil, subprocess, sys
home, args = {home!r}, sys.argv[1:]
with open(os.path.join(home, "log"), "a") as f: f.write(" ".join(args) + "\\n")
if args[0] == "run":
    name = args[args.index("--name") + 1]
    shutil.copytree(os.path.join(home, "image"), os.path.join(home, name)); print(name)
elif args[0] == "exec":
    box = os.path.join(home, args[2])
    if not os.path.isdir(box): sys.exit("no such container")
    text = args[-1].replace("/testbed", box).replace("/tmp/hs", box + ".hs")
    sys.exit(subprocess.run(["bash", "-c", text], stdin=sys.stdin).returncode)
elif args[0] == "rm": shutil.rmtree(os.path.join(home, args[2]), ignore_errors=True)
'''


@needs_git
def test_container_with_stand_in_engine(tmp_path, monkeypatch):
    image = tmp_path/'image'
    for p, t in FILES.items(): (image/p).parent.mkdir(parents=True, exist_ok=True); (image/p).write_text(t.replace('s += x', 's -= x').replace('def test_sum():\n    assert total([1, 2]) == 3\n\n', ''))
    git = ['git', '-c', 'user.name=a', '-c', 'user.email=a@b', '-C', str(image)]
    for c in (['init', '-q'], ['add', '-A'], ['commit', '-qm', 'base']): subprocess.run(git + c, check=True)
    base = subprocess.run(git + ['rev-parse', 'HEAD'], capture_output=True, text=True).stdout.strip()
    (image/'shop.py').write_text('# the fix is here\n'); subprocess.run(git + ['commit', '-qam', 'fix'], check=True)
    (tmp_path/'bin').mkdir()
    fake = tmp_path/'bin'/'podman'; fake.write_text(STAND_IN.format(python=sys.executable, home=str(tmp_path))); fake.chmod(0o755)
    monkeypatch.setenv('PATH', f"{tmp_path/'bin'}:{os.path.dirname(sys.executable)}:{os.environ['PATH']}")
    test_patch = '--- a/tests/test_shop.py\n+++ b/tests/test_shop.py\n@@ -1,4 +1,7 @@\n from shop import total\n \n+def test_sum():\n+    assert total([1, 2]) == 3\n+\n def test_none():\n     assert total([]) == 0\n'
    r = row(base_commit=base, test_patch=test_patch, patch=GOLD, split='test')
    for k in ('source', 'base_patch', 'hidden'): r.pop(k)
    (tmp_path/'i.jsonl').write_text(json.dumps(r) + '\n')
    bench = get_benchmark('swe', data=str(tmp_path/'i.jsonl'), engine='podman')
    a = Agent(bench)
    assert 'the fix' not in a.sh('git log --all -p').text and a.sh('git log --all --oneline | wc -l').text.strip() == '1'
    a.env.close()
    got = check(bench)
    assert got['gold_rate'] == 100 and got['null_rate'] == 0, got
    log = (tmp_path/'log').read_text()
    assert '--network none' in log and '--cap-drop ALL' in log and 'sweb.eval.x86_64.shop-1' in log
    assert not [p for p in tmp_path.iterdir() if p.name.startswith('harness-s-') and not p.name.endswith('.hs')]


# ---------------------------------------------------------------- the builder

@pytest.mark.slow
@needs_box
@needs_git
def test_build_from_the_index(tmp_path):
    "Real packages: a few instances of the smallest two; the gold restores all, the null agent gets nothing. Needs the package index."
    from harness_s.bench.swe_build import PACKAGES, build
    try: table = build(tmp_path, tuple(p for p in PACKAGES if p.name in ('parse', 'cachetools')), n=6, workers=2)
    except UserError as e:
        if 'check the network' in str(e): pytest.skip(str(e))
        raise
    got = get_benchmark('swe', data=str(tmp_path)).check()
    assert table['n'] == 6 and got['gold_rate'] == 100 and got['null_rate'] == 0 and got['disjoint']
    for i in load_instances(tmp_path/'instances.jsonl'):
        path = i.patch.splitlines()[0][6:]
        assert i.FAIL_TO_PASS and i.PASS_TO_PASS and path not in i.problem_statement and 'line ' not in i.problem_statement


@pytest.fixture
def quick_build(monkeypatch):
    "The builder with the test runs left out: they are tested elsewhere, here it is about what is kept."
    from harness_s.bench import swe_build as b
    def attempt(p, archive, env, base, texts, path, m):
        if m.start % 3 == 0: return m.operator, 'silent', None
        return m.operator, 'kept', Instance(instance_id=f'{p.name}-{m.start}-{m.new.hex()}', repo=p.name, problem_statement=f'{p.name} {m.start} {m.new}', patch='x', FAIL_TO_PASS=('t',), split=p.split, source=f'sources/{archive.name}')
    monkeypatch.setattr(b, 'attempt', attempt)
    monkeypatch.setattr(b, 'baseline', lambda archive, env: b.Baseline(ids=('t',), seconds=1.0))
    monkeypatch.setattr(b, 'probe', lambda: '')
    return b


@needs_git
def test_stopped_build_goes_on(tmp_path, quick_build, monkeypatch):
    "A package that is done is not made again, and the result is the same as of an unbroken build, with any number of workers."
    b = quick_build
    for name in ('one', 'two'):
        q = tmp_path/f'{name}-1'; q.mkdir()
        (q/f'{name}.py').write_text('def f(x, y=0):\n    if x > 3 and x < 9: return x + 1\n    return max(x, y) - min(x, 2)\n')
        with tarfile.open(tmp_path/f'{name}-1.tar.gz', 'w:gz') as t: t.add(q, f'{name}-1')
    pk = tuple(b.Package(name=n, version='1', split=s, archive=str(tmp_path/f'{n}-1.tar.gz')) for n, s in (('one', 'train'), ('two', 'test')))
    whole = b.build(tmp_path/'whole', pk, n=8, workers=3, env=tmp_path)
    real = b.build_package
    monkeypatch.setattr(b, 'build_package', lambda p, *a: 1 / 0 if p.name == 'two' else real(p, *a))
    with pytest.raises(ZeroDivisionError): b.build(tmp_path/'parts', pk, n=8, workers=1, env=tmp_path)
    assert not (tmp_path/'parts/instances.jsonl').exists()
    monkeypatch.setattr(b, 'build_package', lambda p, *a: 1 / 0 if p.name == 'one' else real(p, *a))
    b.build(tmp_path/'parts', pk, n=8, workers=1, env=tmp_path)
    assert (tmp_path/'parts/instances.jsonl').read_text() == (tmp_path/'whole/instances.jsonl').read_text() and whole['n'] == 8
    bench = get_benchmark('swe', data=str(tmp_path/'whole'), env=str(tmp_path))
    assert len(bench.tasks('train')) == 4 and len(bench.tasks('test')) == 4 and bench.tasks('val') == []


@needs_git
def test_a_package_that_cannot_serve_is_named(tmp_path, quick_build, monkeypatch):
    b = quick_build
    def unstable(archive, env): raise UserError('test ids of x change between runs')
    monkeypatch.setattr(b, 'baseline', unstable)
    (tmp_path/'x-1').mkdir()
    with tarfile.open(tmp_path/'x-1.tar.gz', 'w:gz') as t: t.add(tmp_path/'x-1', 'x-1')
    table = b.build(tmp_path/'out', (b.Package(name='x', version='1', split='train', archive=str(tmp_path/'x-1.tar.gz')),), n=2, env=tmp_path)
    assert table['n'] == 0 and 'change between runs' in table['packages'][0]['excluded']
