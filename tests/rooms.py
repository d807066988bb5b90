"A small scripted world for the tests of evolution and routing: rooms that need some of four acts."
from harness_s.bench.base import Mechanism
from harness_s.core import Check, Observation, Task, ToolCall, ToolSpec, Verdict
from harness_s.harness import Harness

HABITS = ('look', 'unlock', 'check', 'wipe')
TOOLS = [ToolSpec(name=h, reads=h in ('look', 'check')) for h in HABITS] + [ToolSpec(name='put', writes=True), ToolSpec(name='done', finishes=True)]


class Room:
    "A task needs some of four acts before `put`; which ones is the gold."
    fast, max_steps = True, 8
    def __init__(self, needs): self.needs, self.did, self.done = needs, [], False
    def reset(self, task): return 'a room'
    def tools(self): return TOOLS
    def call(self, c):
        self.did.append(c.name); self.done = c.name == 'done'
        return Observation(text='ok')
    def verify(self): return Verdict.of(*(Check(name=n, passed=n in self.did) for n in (*self.needs, 'put')))
    def close(self): pass


class Rooms:
    name, dialect, toolspecs = 'rooms', 'words', TOOLS
    def tasks(self, split): return [Task(id=f'{split}{i:03}', split=split, instruction=f'room {split} {i} ' + ' '.join(self.needs(i))) for i in range({'train': 60, 'val': 30, 'test': 20}[split])]
    def needs(self, i): return [h for k, h in enumerate(HABITS) if (i * 7 + k * 3) % 5 == 0 or i % 4 == k]
    def env(self, task): return Room(self.needs(int(task.instruction.split()[2])))
    def base_harness(self): return Harness()
    def oracle(self, task): return [ToolCall(name=n) for n in (*self.needs(int(task.instruction.split()[2])), 'put', 'done')]
    def features(self, task): return task.instruction.split()[3:]
    def diagnose(self, task, t):
        bad = next((c.name for c in t.verdict.checks if not c.passed), None)
        return (f'no_{bad}', 0, t.turns[0].completion) if bad in HABITS else None
    def catalogue(self):
        rule = lambda h, slot: {'prompt_rules': {f'{h}_{slot}': dict(slot=slot, text=f'please {h} first')}}
        hook = lambda h: {'hooks': {h: dict(event='task_start', message=f'please {h} first')}}
        return [m for h in HABITS for m in (
            *(Mechanism(id=f'{h}-{s}', causes=(f'no_{h}',), component='prompt_rules', edit=rule(h, s), intent=f'{h} by {s}') for s in ('role', 'task_guidance')),
            Mechanism(id=f'{h}-hook', causes=(f'no_{h}',), component='hooks', edit=hook(h), intent=f'{h} by a hook'))]


def obey(messages, task):
    "Does what it is asked in the first message, some of the time, then puts and is done."
    text = ' '.join(m['content'] for m in messages[:2])
    todo = [h for h in HABITS if f'please {h}' in text and (len(task.id) + ord(h[0]) + int(task.id[-3:])) % 5] + ['put', 'done']
    n = sum(m['role'] == 'assistant' for m in messages)
    return todo[n] if n < len(todo) else 'done'


CONFIG = dict(evolve=dict(proposals=[3, 3], diagnose_tasks=16, local_tasks=10, local_controls=4), seed=3)
