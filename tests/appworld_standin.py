"""Stand-in for AppWorld's environment server, for tests: the same command line, routes, replies and faults, over a world of one note app.

It is not AppWorld and holds nothing of it. What is kept alike, since the adapter depends on it: `serve environment --port N --root R`; one world
a process; /initialize empties the experiment's outputs; any fault is a bare 500 whose reason stands in the log; a failed requirement is a 500 unless
suppress_errors; /close fails after /load_state; states are saved under experiments/outputs/EXPERIMENT/tasks/TASK/checkpoints/STATE. The agent's code runs in this process, unguarded."""
import contextlib, io, json, os, shutil, sys, traceback
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

ROUTES = {('GET', '/'), ('GET', '/api_docs'), ('GET', '/tasks/{task_id}')} | {('POST', '/' + n) for n in
          ('initialize', 'execute', 'evaluate', 'task_completed', 'save_state', 'load_state', 'close', 'close_all', 'save_logs')}
DOCS = {'supervisor': {'complete_task': {'description': 'End the task.', 'parameters': [{'name': 'answer'}]}, 'show_account_passwords': {'description': 'Passwords.', 'parameters': []}},
        'simple_note': {'create_note': {'description': 'Make a note.', 'parameters': [{'name': 'title'}]}, 'show_notes': {'description': 'A page of notes.', 'parameters': [{'name': 'page_index'}]}}}


class Apis:
    "apis.APP.API(...): every app is this object."
    def __init__(self, state): self.state = state
    def __getattr__(self, app):
        if app not in DOCS: raise AttributeError(f'no app {app}')
        return self
    def create_note(self, title): self.state['notes'].append(title); return {'message': 'Note created.'}
    def show_notes(self, page_index=0): return self.state['notes'][2 * page_index:2 * page_index + 2]
    def show_account_passwords(self): return [{'account_name': 'simple_note', 'password': 'pw'}]
    def complete_task(self, answer=None): self.state.update(status='success', answer=answer); return {'message': 'Marked the active task complete.'}


class World:
    def __init__(self, root, task_id, experiment_name='default', load_ground_truth=True, **options):
        self.root, self.task_id, self.folder = root, task_id, os.path.join(root, 'data/tasks', task_id)
        if not os.path.exists(self.folder): raise Exception(f"The task directory ({self.folder}) doesn't exist.")
        with open(os.path.join(self.folder, 'specs.json')) as f: self.specs = json.load(f)
        if load_ground_truth and not os.path.exists(os.path.join(self.folder, 'ground_truth')): raise Exception(f"The ground_truth directory ({self.folder}/ground_truth) doesn't exist.")
        self.gold = load_ground_truth
        self.out = os.path.join(root, 'experiments/outputs', experiment_name)
        shutil.rmtree(self.out, ignore_errors=True); os.makedirs(os.path.join(self.out, 'tasks', task_id, 'checkpoints'))
        self.load({'notes': list(self.specs.get('notes', [])), 'status': None, 'answer': None})

    def load(self, state): self.state, self.names = state, {'apis': Apis(state), 'requester': None}
    def checkpoint(self, state_id): return os.path.join(self.out, 'tasks', self.task_id, 'checkpoints', state_id)

    def execute(self, code):
        out = io.StringIO()
        try:
            with contextlib.redirect_stdout(out): exec(compile(code, '<python-input>', 'exec'), self.names)
        except Exception: return 'Execution failed. Traceback:\n' + traceback.format_exc(limit=1)
        return out.getvalue() or 'Execution successful.'

    def save_state(self, state_id):
        os.makedirs(self.checkpoint(state_id), exist_ok=True)
        with open(os.path.join(self.checkpoint(state_id), 'state.jsonl'), 'w') as f: json.dump(self.state, f)
        return state_id

    def load_state(self, state_id):
        with open(os.path.join(self.checkpoint(state_id), 'state.jsonl')) as f: self.load(json.load(f))
        self.loaded = True

    def evaluate(self, suppress_errors=False):
        if not self.gold: raise Exception(f"This task ID {self.task_id} doesn't have a ground truth, so it can't be evaluated.")
        with open(os.path.join(self.folder, 'ground_truth/answer.json')) as f: gold = json.load(f)
        tests = [('assert answers match.', self.state['answer'] == gold['answer'], gold['answer']), ('assert the notes are as wanted.', self.state['notes'] == gold['notes'], gold['notes'])]
        if not suppress_errors and not all(ok for _, ok, _ in tests): raise AssertionError(f'expected {gold}')
        item = lambda name, want, ok: dict(requirement=name, label='no_op_fail', **({} if ok else {'trace': f'wanted {want!r}'}))
        return dict(success=all(ok for _, ok, _ in tests), difficulty=1, num_tests=len(tests), passes=[item(n, w, True) for n, ok, w in tests if ok], failures=[item(n, w, False) for n, ok, w in tests if not ok])


class Handler(BaseHTTPRequestHandler):
    root, world = '.', None
    def log_message(self, *a): pass
    def reply(self, status, body, kind='application/json'):
        data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
        self.send_response(status); self.send_header('Content-Type', kind); self.send_header('Content-Length', str(len(data))); self.end_headers(); self.wfile.write(data)

    def handle_safely(self, answer):
        try: self.reply(200, answer())
        except Exception: traceback.print_exc(); sys.stderr.flush(); self.reply(500, 'Internal Server Error', 'text/plain')

    def do_GET(self):
        if self.path == '/': return self.reply(200, {'message': 'Welcome to AppWorld Server! (a stand-in for tests)'})
        if self.path == '/api_docs': return self.reply(200, DOCS)
        if self.path.startswith('/tasks/'): return self.handle_safely(lambda: {'output': describe(World(self.root, self.path[7:], 'show', False))})
        self.reply(404, {'detail': 'Not Found'})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers['Content-Length'])))
        if ('POST', self.path) not in ROUTES: return self.reply(404, {'detail': 'Not Found'})
        self.handle_safely(lambda: {'output': self.act(self.path[1:], **body)})

    def act(self, name, task_id, **body):
        if name == 'initialize':
            Handler.world = World(self.root, task_id, **body)
            return describe(Handler.world)
        w = Handler.world
        if w is None or w.task_id != task_id: raise ValueError('AppWorld has not been initialized.')
        if name == 'task_completed': return w.state['status'] is not None
        if name == 'close' and getattr(w, 'loaded', False): raise AttributeError("'_freeze_time' object has no attribute 'fake_names'")
        if name in ('close', 'close_all', 'save_logs'): return None
        return getattr(w, name)(**body)


def describe(w): return dict(task_id=w.task_id, instruction=w.specs['instruction'], supervisor=w.specs['supervisor'], datetime=w.specs['datetime'])


if __name__ == '__main__':
    assert sys.argv[1:3] == ['serve', 'environment'], sys.argv
    args = dict(zip(sys.argv[3:-1:2], sys.argv[4::2]))
    Handler.root = args['--root']
    if not os.path.exists(os.path.join(Handler.root, 'data')): raise Exception("Did not find any ./data in the AppWorld's root directory")
    ThreadingHTTPServer(('127.0.0.1', int(args['--port'])), Handler).serve_forever()
