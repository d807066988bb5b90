"""An OpenAI-compatible chat endpoint on 127.0.0.1 for tests: it plays diagnoser, editor, profiler, voter and labeller, and sends
what models really send. `faults` maps the number of a request (from 0) to the name of a fault; `log` keeps every request."""
import json, re, threading, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

FAULTS = ('truncated', 'open_fence', 'unknown_component', 'duplicate_key', 'duplicate_entry', 'empty', 'null', 'refusal', 'tool_call', 'two_objects',
          'wrong_types', 'nan', 'length', 'http_429', 'http_500', 'hang', 'not_json', 'no_choices')
HARMLESS = ('prose', 'fenced')


def diagnose(text):
    cases = re.findall(r'Case (\d+)\n(.*?)(?=\n\nCase \d+\n|\Z)', text, flags=re.S)
    one = lambda n, body: dict(case=int(n), tag='no_' + re.search(r'Failed checks: (\w+)', body).group(1), turn=0, quote=re.search(r'agent: (.*)', body).group(1))
    return dict(causes=[one(n, body) for n, body in cases])


def edit(text):
    "A rule or a hook for each cause; which one depends on the candidate."
    if 'The host measured it' in text: return dict(keep=True)
    n, causes = len(re.findall(r'^- ', text.split('Other candidates:')[-1], flags=re.M)), re.findall(r'no_(\w+) \(', text)
    rule = lambda h: dict(op='add', component='prompt_rules', key=f'{h}_{n}', value=dict(slot='action_guidance', text=f'please {h} first' + ' ok' * n))
    hook = lambda h: dict(op='add', component='hooks', key=f'{h}_{n}', value=dict(event='task_start', message=f'please {h} first'))
    return dict(edits=[(rule, hook)[(i + n) % 2](h) for i, h in enumerate(causes)], intent='do ' + ' and '.join(causes), brief=f'candidate {n}')


def profile(text):
    kinds = re.findall(r'Case (\d+) \((\w+)\)\nH0:\nTask: (.*)', text)
    line = lambda n, task: dict(when=' '.join(task.split()[3:]) or 'any', behavior='does what it is asked first', cases=[int(n)])
    return dict(prefer=[line(n, t) for n, k, t in kinds if k == 'repaired'], avoid=[line(n, t) for n, k, t in kinds if k == 'regressed'])


def vote(text):
    rate = {n: int(r) for n, r in re.findall(r'^(H0|S\d+):.*?solves (\d+)%', text, flags=re.M)}
    return dict(ranking=sorted(rate, key=lambda n: -rate[n])[:4], reason='by success')


def label(text):
    "A careful reader: a habit shows where its sign stands in the trajectory."
    habits, _, seen = text.partition('Trajectory:')
    names = dict(re.findall(r'^(\d+)\. ([^:]+):', habits, flags=re.M))
    first = re.search(r'agent: (.*)', seen)
    shown = {'schema lookup before first use': bool(first) and 'LIMIT 3' in first[1], 'answer after a result': 'commit_answer' in seen and 'changed' not in seen}
    return dict(labels=[dict(habit=int(n), applies=True, shown=shown.get(name, False)) for n, name in names.items()])


def act(text):
    "The executor: does what the system prompt asks, then puts and is done."
    head, said = text.split('\x00')
    todo = [*dict.fromkeys(re.findall(r'please (\w+) first', head)), 'put', 'done']
    return todo[min(int(said), len(todo) - 1)]


ROLES = {'find out why an agent failed': diagnose, 'improve the harness': edit, 'compare a sibling': profile, 'choose which harness': vote, 'label what an agent did': label}


def spoil(fault, good):
    "The content of a reply with this fault."
    text = json.dumps(good)
    first = next(iter(good))
    return {'truncated': text[:int(len(text) * .7)], 'open_fence': 'Here it is:\n```json\n' + text + '\nand now I will', 'empty': '  ', 'null': None, 'two_objects': f'{text}\n{text}',
            'unknown_component': text.replace('"prompt_rules"', '"weights"').replace('"hooks"', '"weights"') if 'edits' in good else json.dumps({'component': 'weights'}),
            'duplicate_key': text[:-1] + f', "{first}": ' + json.dumps(good[first]) + '}', 'refusal': "I'm sorry, but I can't help with that.",
            'duplicate_entry': json.dumps({k: v + v if isinstance(v, list) else v for k, v in good.items()}), 'length': text,
            'tool_call': '<tool_call>{"name": "submit", "arguments": ' + text + '}</tool_call>', 'wrong_types': json.dumps({k: 7 for k in good}), 'nan': text[:-1] + ', "score": NaN}',
            'prose': f'Let me think about this.\n\n{text}\n\nI hope that this helps.', 'fenced': f'```json\n{text}\n```'}.get(fault, text)


class Endpoint:
    "`with Endpoint() as e:` serves at `e.base`."
    def __init__(self, faults=None, hang_s=3.0):
        self.faults, self.hang_s, self.log, self.lock = faults or (lambda n: None), hang_s, [], threading.Lock()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *args): pass

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers['Content-Length'])))
                with outer.lock:
                    n = len(outer.log); fault = outer.faults(n)
                    outer.log.append(dict(n=n, fault=fault, body=body))
                if fault == 'hang': time.sleep(outer.hang_s)
                code = {'http_429': 429, 'http_500': 500}.get(fault, 200)
                try: self.reply(code, outer.answer(body, fault) if code == 200 else {'error': {'message': 'too busy', 'type': 'server', 'code': code}})
                except BrokenPipeError: return      # the client gave up on us, as it should

            def reply(self, code, obj):
                raw = obj.encode() if isinstance(obj, str) else json.dumps(obj).encode()
                self.send_response(code); self.send_header('Content-Type', 'application/json'); self.send_header('Content-Length', str(len(raw))); self.end_headers()
                self.wfile.write(raw)

        self.server = ThreadingHTTPServer(('127.0.0.1', 0), Handler)
        self.server.daemon_threads = True
        self.base = f'http://127.0.0.1:{self.server.server_port}/v1'

    def answer(self, body, fault):
        if fault == 'not_json': return '<html>gateway</html>'
        system, rest = body['messages'][0]['content'], '\n'.join(m['content'] for m in body['messages'][1:])
        role = next((fn for words, fn in ROLES.items() if words in system), None)
        if role is None: return self.executor(body, fault)
        good = role(rest)
        choice = dict(index=0, finish_reason='length' if fault == 'length' else 'stop', message=dict(role='assistant', content=spoil(fault, good)))
        return dict(id='x', object='chat.completion', created=0, model=body['model'], choices=[] if fault == 'no_choices' else [choice],
                    usage=dict(prompt_tokens=100, completion_tokens=20, total_tokens=120, prompt_tokens_details=dict(cached_tokens=40)))

    def executor(self, body, fault):
        head, said = '\n'.join(m['content'] for m in body['messages'][:2]), sum(m['role'] == 'assistant' for m in body['messages'])
        choice = dict(index=0, finish_reason='stop', message=dict(role='assistant', content=act(f'{head}\x00{said}')))
        return dict(id='x', object='chat.completion', created=0, model=body['model'], choices=[choice],
                    usage=dict(prompt_tokens=50, completion_tokens=2, total_tokens=52, prompt_tokens_details=dict(cached_tokens=30)))

    def __enter__(self):
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *exc): self.server.shutdown(); self.server.server_close()
