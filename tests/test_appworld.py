"AppWorld over HTTP: against a stand-in server (tests/appworld_standin.py, named so), and in a slow test against the real package up to its refusal without data."
import json, os, shutil, subprocess, sys, threading, time, venv
from pathlib import Path
import pytest
from harness_s.core import Limits, ToolCall, UserError
from harness_s.bench.appworld_pool import VERSION, Server, ServerFault
from harness_s.bench.base import get_benchmark
from harness_s.policy.base import TextPolicy
from harness_s.rollout import jobs_for, run_jobs

STAND_IN = Path(__file__).with_name('appworld_standin.py')
HAVE_BOX = shutil.which('bwrap') is not None
needs_box = pytest.mark.skipif(not HAVE_BOX, reason='bubblewrap is not installed (apt-get install -y bubblewrap)')
ROUTES_USED = {('GET', '/'), ('GET', '/api_docs'), *(('POST', f'/{n}') for n in ('initialize', 'execute', 'task_completed', 'save_state', 'load_state', 'evaluate', 'close'))}
SECRET = 'secret-answer-9a1'


def make_data(root, n=2):
    "Made-up tasks in AppWorld's layout: train with solutions, test without."
    for name, letter in dict(train='a', dev='b', test_normal='c').items():
        ids = [f'{letter}{i}_{k}' for i in range(n) for k in (1, 2, 3)]
        (root/'data/datasets').mkdir(parents=True, exist_ok=True); (root/f'data/datasets/{name}.txt').write_text('\n'.join(ids) + '\n')
        for i in ids:
            t = root/'data/tasks'/i; (t/'ground_truth').mkdir(parents=True)
            (t/'specs.json').write_text(json.dumps(dict(instruction=f'Add the note {i} and tell how many notes there are.', datetime='2023-05-18T12:00:00', db_version='0.1.0', notes=['x', 'y', 'z'],
                                                       supervisor=dict(first_name='Ada', last_name='Lovelace', email='ada@example.com', phone_number='123'))))
            (t/'ground_truth/answer.json').write_text(json.dumps(dict(answer='4', notes=['x', 'y', 'z', i], secret=SECRET)))
            if name != 'test_normal': (t/'ground_truth/compiled_solution.py').write_text(f'def solution(apis, requester):\n    apis.simple_note.create_note(title="{i}")\n    apis.supervisor.complete_task(answer="4")\n')
    (root/'data/api_docs').mkdir(); (root/'data/version.txt').write_text('0.1.0')
    return root


def command_of(folder, source=None):
    folder.mkdir(exist_ok=True)
    cmd = folder/'appworld'
    cmd.write_text(f'#!{sys.executable}\n' + (source or STAND_IN.read_text())); cmd.chmod(0o755)
    return cmd


@pytest.fixture(scope='module')
def data(tmp_path_factory): return make_data(tmp_path_factory.mktemp('aw'))
@pytest.fixture(scope='module')
def command(tmp_path_factory): return command_of(tmp_path_factory.mktemp('bin')/'bin')


@pytest.fixture
def bench(data, command):
    b = get_benchmark('appworld', root=str(data), command=str(command), sandbox=HAVE_BOX, servers=2, start_s=120)
    yield b
    b.close()


def say(name, **a): return f'<tool_call>{json.dumps({"name": name, "arguments": a})}</tool_call>'
def script(*lines): return TextPolicy(lambda messages, task: lines[sum(m['role'] == 'assistant' for m in messages)].replace('TASK', task.id))
GOOD = (say('api_docs', app='simple_note', api='create_note'), say('execute', code="apis.simple_note.create_note(title='TASK')\ni, n = 0, 0\nwhile True:\n    page = apis.simple_note.show_notes(page_index=i)\n    if not page: break\n    n += len(page); i += 1\nprint(n)"), say('complete', answer='4'))


class Agent:
    def __init__(self, bench, split='test'):
        self.task = bench.tasks(split)[0]; self.env = bench.env(self.task); self.opening = self.env.reset(self.task)
    def __call__(self, name, **args): return self.env.call(ToolCall(name=name, args=args))
    def run(self, code): return self('execute', code=code)


def test_an_episode(bench):
    a = Agent(bench)
    assert 'Ada Lovelace' in a.opening and 'ada@example.com' in a.opening and '2023-05-18' in a.opening
    assert a('api_docs', app='', api='').text == 'Apps: supervisor, simple_note' and a('api_docs', app='nope', api='').error
    assert a.run('print(1 + 1)').text.strip() == '2' and a.run('x = 5').empty and a.run('1 / 0').error and not a.env.done
    assert a.run(f"apis.simple_note.create_note(title='{a.task.id}')").wrote
    assert a('complete', answer='4').text == 'the task is complete' and a.env.done and a.run('print(1)').error
    v = a.env.verify()
    assert v.outcome == 'pass' and [c.name for c in v.checks] == ['assert answers match.', 'assert the notes are as wanted.', 'success']
    a.env.close(); a.env.close()


def test_completing_in_code_ends_the_task(bench):
    a = Agent(bench)
    assert not a.run('print("complete_task")').text.startswith('Execution failed') and not a.env.done
    a.run('apis.supervisor.complete_task(answer="5")')
    v = a.env.verify()
    assert a.env.done and v.outcome == 'fail' and "'4'" not in v.model_dump_json() and SECRET not in v.model_dump_json()
    a.env.close()


def test_check(bench):
    got = bench.check(limit=2)
    assert {'n', 'gold_rate', 'null_rate', 'disjoint', 'excluded', 'seconds'} <= got.keys()
    assert got['n'] == dict(train=6, val=6, test=6) and got['gold_rate'] == 100 and got['null_rate'] == 0 and got['disjoint'] and got['no_solution'] == 2 and got['failed'] == {}
    assert bench.servers.started <= 2 and bench.judges.started == 1      # eight and more worlds, few servers


def test_check_can_fail(bench, data):
    path = data/'data/tasks'/'a0_1'/'ground_truth/answer.json'; whole = path.read_text()
    try:
        path.write_text(json.dumps(dict(answer=None, notes=['x', 'y', 'z'])))
        got = bench.check(limit={'train': 1, 'val': 0, 'test': 0})
    finally: path.write_text(whole)
    assert got['null_rate'] == 100 and got['gold_rate'] == 0 and got['failed']['a0_1'].startswith('oracle')


def test_families_lie_in_one_split(bench):
    where = {}
    for s in ('train', 'val', 'test'):
        for t in bench.tasks(s): where.setdefault(t.family, set()).add(s)
    assert len(where) == 6 and all(len(s) == 1 for s in where.values())


def test_rollouts_in_parallel_and_a_crash_of_one(bench):
    "Four rollouts over two servers; the code of one ends its server: that one is missing, the others pass."
    bad = (say('execute', code='import os; os._exit(3)'),)
    policy = TextPolicy(lambda m, t: (bad if t.id == 'c0_2' else GOOD)[sum(x['role'] == 'assistant' for x in m)].replace('TASK', t.id))
    ts = run_jobs(policy, bench, jobs_for(bench.tasks('test')[:4], bench.base_harness(), 1, 0, 'x'), Limits(wall_s=240), workers=3)
    assert [t.verdict.outcome for t in ts] == ['pass', 'missing', 'pass', 'pass'], [t.verdict.reason for t in ts]
    assert 'no answer from the AppWorld server' in ts[1].verdict.reason
    assert bench.behaviours(bench.tasks('test')[0], ts[0]) == ['schema lookup before first API use', 'several API calls in one execute block', 'explicit pagination loop', 'read-back after the last write']


def test_an_idle_server_that_died_is_replaced(bench):
    a = Agent(bench); first = a.env.world.server; a.env.close()
    assert bench.servers.idle == [first]
    b = Agent(bench); assert b.env.world.server is first; b.env.close()
    first.proc.kill(); first.proc.wait()
    c = Agent(bench)
    assert c.env.world.server is not first and not first.home.exists() and c.run('print(3)').text.strip() == '3'
    c.env.close()


def test_a_hanging_server_is_a_fault(data, command):
    b = get_benchmark('appworld', root=str(data), command=str(command), sandbox=HAVE_BOX, servers=1, timeout=2, start_s=120)
    try:
        a = Agent(b)
        with pytest.raises(ServerFault, match='/execute: no answer'): a.run('import time; time.sleep(60)')
        a.env.close()
        assert not b.servers.live                         # the hung server is gone, with its process
        c = Agent(b); assert c.run('print(1)').text.strip() == '1'; c.env.close()
    finally: b.close()


def test_faults_name_their_reason(bench, data):
    a = Agent(bench)
    with pytest.raises(ServerFault, match="/initialize: the AppWorld server answered 500: Exception: The task directory .*doesn't exist"): a.env.world.call('/initialize') if setattr(a.env.world, 'task_id', 'zz_9') is None else None
    a.env.close()
    (data/'data/tasks/a1_3/specs.json').rename(data/'data/tasks/a1_3/kept')
    try:
        with pytest.raises(UserError, match='specs.json cannot be read'): bench.tasks('train')
    finally: (data/'data/tasks/a1_3/kept').rename(data/'data/tasks/a1_3/specs.json')


@pytest.mark.parametrize('source, words', [('import sys\nprint("Exception: cannot start"); sys.exit(4)\n', 'ended with code 4: .*cannot start'), ('import time\ntime.sleep(60)\n', 'did not answer within')])
def test_a_server_that_does_not_start(tmp_path, data, source, words):
    start = time.monotonic()
    with pytest.raises(ServerFault, match=words): Server(command_of(tmp_path/'bin', source), data, sandbox=HAVE_BOX, start_s=2)
    assert time.monotonic() - start < 20


@needs_box
def test_the_agents_code_sees_no_gold(bench, data):
    "The code of an agent has the server's process to itself: neither the ground truth, nor other tasks, nor the host, nor the network can be reached."
    a = Agent(bench)
    got = a.run(f'''
import os, socket
def attempt(f):
    try: return repr(f())[:200]
    except Exception as e: return type(e).__name__
print("tasks", os.listdir("/aw/data/tasks"), sorted(os.listdir("/aw/data")))
print("own", os.listdir("/aw/data/tasks/{a.task.id}"))
print(attempt(lambda: open("/aw/data/tasks/{a.task.id}/ground_truth/answer.json").read()))
print(attempt(lambda: open({str(data/'data/tasks'/a.task.id/'ground_truth/answer.json')!r}).read()))
print(attempt(lambda: open("/aw/data/tasks/{a.task.id}/specs.json", "w")), attempt(lambda: os.listdir({str(Path.cwd())!r})), attempt(lambda: os.listdir("/home")))
print(attempt(lambda: socket.create_connection(("127.0.0.1", 22), timeout=1)), [n for _, n in socket.if_nameindex()])
found = [os.path.join(d, f) for top in ("/aw", "/door", "/tmp", "/dev/shm") for d, _, fs in os.walk(top) for f in fs if f != "s"]
print("found", [f for f in found if os.path.isfile(f) and {SECRET[:6]!r} + {SECRET[6:]!r} in open(f, errors="ignore").read()])''').text
    assert f"tasks ['{a.task.id}'] ['api_docs', 'tasks', 'version.txt']" in got and "own ['specs.json']" in got and SECRET not in got, got
    assert got.count('FileNotFoundError') >= 3 and 'found []' in got and "['lo']" in got
    a.env.close()


@needs_box
def test_forged_grading_does_not_help(bench):
    "Code that rewrites the evaluation in its own server changes nothing: another process grades."
    a = Agent(bench)
    a.run('import __main__ as m\nm.World.evaluate = lambda self, **k: dict(success=True, num_tests=1, passes=[dict(requirement="x")], failures=[])')
    a('complete', answer='')
    assert a.env.verify().outcome == 'fail'
    a.env.close()


def test_nothing_is_left(data, command):
    b = get_benchmark('appworld', root=str(data), command=str(command), sandbox=HAVE_BOX, servers=1, start_s=120)
    a = Agent(b); a.env.verify(); servers = list(b.servers.live | b.judges.live); a.env.close(); b.close()
    assert len(servers) == 2 and all(s.proc.poll() is not None and not s.home.exists() for s in servers)
    assert (data/'data/tasks'/a.task.id/'ground_truth/answer.json').exists()


def test_servers_without_a_sandbox(data, command):
    b = get_benchmark('appworld', root=str(data), command=str(command), sandbox=False, servers=1, start_s=120)
    try:
        a = Agent(b); a.run(f"apis.simple_note.create_note(title='{a.task.id}')"); a('complete', answer='4')
        assert a.env.verify().outcome == 'pass' and a.run('x').error
        a.env.close()
    finally: b.close()


def test_agent_faults_are_observations(bench):
    a = Agent(bench)
    for name, args in (('fly', {}), ('execute', {}), ('execute', {'code': 3}), ('api_docs', {'app': 'x'}), ('api_docs', {'app': 3, 'api': None}), ('complete', {})):
        got = a(name, **args)
        assert got.error and got.text, (name, args)
    a.env.close()


def test_bad_options(data, command):
    for options, words in ((dict(split='x'), 'use official or paper'), (dict(servers=0), 'give 1 or more'), (dict(colour=1), 'colour'), (dict(root='/nowhere'), 'appworld download data'), (dict(command='/nowhere'), 'no appworld command at /nowhere')):
        with pytest.raises(UserError, match=words): get_benchmark('appworld', **(dict(root=str(data), command=str(command)) | options))


def test_the_stand_in_has_the_routes_we_use():
    sys.path.insert(0, str(STAND_IN.parent))
    import appworld_standin
    assert ROUTES_USED <= appworld_standin.ROUTES


# ---------------------------------------------------------------- the real package

@pytest.fixture(scope='module')
def real_command(tmp_path_factory):
    "The real appworld in an environment of its own (HARNESS_S_APPWORLD names one that exists already)."
    given = os.environ.get('HARNESS_S_APPWORLD')
    if given: return Path(given)
    home = tmp_path_factory.mktemp('appworld-venv')
    venv.create(home, with_pip=True)
    ran = subprocess.run([home/'bin/pip', 'install', '-q', '--disable-pip-version-check', f'appworld=={VERSION}'], capture_output=True, text=True)
    if ran.returncode: pytest.skip(f'appworld=={VERSION} cannot be installed here: {(ran.stderr.strip().splitlines() or [""])[-1][:200]}')
    subprocess.run([home/'bin/appworld', 'install'], capture_output=True, check=True, env=dict(os.environ, APPWORLD_CACHE=str(home/'cache')))
    return home/'bin/appworld'


@pytest.mark.slow
def test_the_real_server_up_to_its_refusal(real_command, tmp_path):
    "Without data: our sentence, the command's own refusal, and a server that stands and refuses a task that is not there."
    with pytest.raises(UserError, match='no task data in .*appworld download data'): get_benchmark('appworld', root=str(tmp_path), command=str(real_command))
    bare = subprocess.run([real_command, 'serve', 'environment', '--root', tmp_path, '--no-show-usage'], capture_output=True, text=True, env=dict(os.environ, APPWORLD_ROOT=str(tmp_path)))
    assert bare.returncode and 'Did not find any ./data' in ' '.join((bare.stdout + bare.stderr).split())
    for d in ('data/tasks', 'data/datasets', 'data/api_docs'): (tmp_path/d).mkdir(parents=True)
    (tmp_path/'data/tasks/fac_1').mkdir(); (tmp_path/'data/tasks/fac_1/specs.json').write_text('{}')
    s = Server(real_command, tmp_path, sandbox=HAVE_BOX, start_s=180)
    try:
        assert s.healthy()
        routes = {(m.upper(), p) for p, ms in s.get('/openapi.json')['paths'].items() for m in ms}
        assert ROUTES_USED <= routes
        with pytest.raises(ServerFault, match="/initialize: the AppWorld server answered 500: .*task directory .*doesn't exist"): s.call('/initialize', task_id='82e2fac_1', experiment_name='x')
        assert s.healthy()
    finally: s.stop()
    assert s.proc.poll() is not None and not s.home.exists()


@pytest.mark.slow
@needs_box
def test_the_real_server_to_the_end(real_command, tmp_path):
    "The real package over a tiny data folder of our own: solution passes, null agent fails, the gold is out of the agent's reach, and code cannot read it."
    root, python = tmp_path/'root', real_command.parent/'python'
    made = subprocess.run([python, Path(__file__).with_name('appworld_mini.py'), root, 'fac_1', 'fac_2'], capture_output=True, text=True, env=dict(os.environ, APPWORLD_CACHE=str(tmp_path/'cache')))
    assert made.returncode == 0, made.stderr[-2000:]
    b = get_benchmark('appworld', root=str(root), command=str(real_command), servers=1)
    try:
        got = b.check()
        assert got['n'] == dict(train=2, val=0, test=0) and got['gold_rate'] == 100 and got['null_rate'] == 0 and got['failed'] == {}
        a = Agent(b, 'train')
        assert 'simple_note' in a('api_docs', app='', api='').text and 'title' in a('api_docs', app='simple_note', api='create_note').text
        assert a.run('print(apis.supervisor.show_account_passwords())').text.startswith('[{') and a.run('print(apis.simple_note.nothing())').error
        a.run("t = apis.simple_note.login(username='ada@example.com', password='password')['access_token']\napis.simple_note.create_note(access_token=t, title='fac_1', content='')")
        assert (a.env.world.server.home/'root/data/tasks/fac_1/specs.json').exists() and not (a.env.world.server.home/'root/data/tasks/fac_1/ground_truth').exists()
        a('complete', answer=4)
        v = a.env.verify()
        assert v.outcome == 'pass' and {c.name for c in v.checks} >= {'assert answers match.', 'assert the note was made.'}
        a.env.close()
    finally: b.close()
