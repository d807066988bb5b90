"Each of a harness's six components changes what the policy sees, or may do, in a real rollout of the pocket world."
import pytest
from harness_s.bench.base import get_benchmark
from harness_s.core import Limits
from harness_s.harness import ContextRule, Harness, Hook, MemoryRule, PromptRule, Skill, ToolView
from harness_s.policy.base import TextPolicy
from harness_s.rollout import jobs_for, run_jobs


@pytest.fixture(scope='module')
def world():
    bench = get_benchmark('pocket')
    task = next(t for t in bench.tasks('train') if t.payload['max_steps'] >= 4 and t.instruction.split()[-2] == 'to')
    return bench, task


def play(world, script, **components):
    "One rollout of a scripted policy under a harness with these components; what it read, and the trajectory."
    bench, task = world
    lines = script.format(app=task.payload['app'], colour=task.payload['rows'][0][1], id=task.payload['rows'][0][0]).split('\n')
    policy = TextPolicy(lambda messages, task, said=iter([]): next(calls), 'script')
    calls = iter(lines + ['done'] * 9)
    t = run_jobs(policy, bench, jobs_for([task], Harness(**components), 1, 0, 'components'), Limits(model_calls=6), show=False)[0]
    assert t.verdict.outcome in ('pass', 'fail'), t.verdict.reason
    return [m['content'] for m in t.messages if m['role'] != 'assistant'], t


LIST = 'list {app} {colour}'


def test_prompt_rule_stands_in_its_slot(world):
    read, _ = play(world, LIST, prompt_rules=dict(b=PromptRule(slot='completion_guidance', text='then stop'), a=PromptRule(slot='role', text='you run apps')))
    lines = read[0].split('\n')
    assert lines[0] == 'you run apps' and lines[-1] == 'then stop'
    assert 'then stop' not in play(world, LIST)[0][0]


def test_skill_is_offered_when_its_condition_holds(world):
    word = world[1].instruction.split()[-1]
    here, elsewhere = (dict(s=Skill(name='s', when=(w,), body='look twice')) for w in (word, 'nowhere'))
    assert 'look twice' in play(world, LIST, skills=here)[0][0] and 'look twice' not in play(world, LIST, skills=elsewhere)[0][0]


def test_compaction_drops_old_turns_and_starts_a_new_row(world):
    script = '\n'.join([LIST] * 3)
    whole, compact = (play(world, script, **c)[1] for c in ({}, dict(context=ContextRule(compact_after=2, keep_last=1, header='cut'))))
    assert len(whole.rows) == 1 and whole.splits == 0
    assert compact.splits >= 1 and len(compact.rows) == compact.splits + 1
    short = [r for r in compact.rows[1:]]
    assert all(len(r.ids) < len(whole.rows[0].ids) for r in short)


def test_observation_is_truncated(world):
    read = lambda **c: play(world, LIST, **c)[0][2]
    assert len(read()) > 12 and read(context=ContextRule(observation_chars=8)).endswith('...') and len(read(context=ContextRule(observation_chars=8))) <= 12


def test_memory_note_is_carried(world):
    note = MemoryRule(enabled=True, write_when='always', recall_every=1, notes=('be exact',))
    read, _ = play(world, LIST, memory=note)
    assert 'be exact' in read[0] and 'list ' in read[2].split('be exact')[1]
    assert 'be exact' not in ' '.join(play(world, LIST)[0])


def test_hook_fires_at_its_event_under_its_condition_with_its_action(world):
    hook = lambda **k: dict(h=Hook(message='wait', **k))
    read, t = play(world, LIST, hooks=hook(event='before_finish', action='block'))
    assert t.turns[1].blocked == [0] and t.turns[1].hooks == ['h'] and t.stop == 'finished' and len(t.turns) == 3      # refused once, then let go
    read, t = play(world, LIST, hooks=hook(event='after_tool', condition='remaining_steps_lte', parameters=dict(threshold=99)))
    assert read[2].endswith('wait')
    read, t = play(world, LIST, hooks=hook(event='after_tool', condition='remaining_steps_lte', parameters=dict(threshold=0)))
    assert not any('wait' in x for x in read) and not any(x.hooks for x in t.turns)


def test_tool_view_hides_orders_and_describes(world):
    read, t = play(world, LIST, tool_view=ToolView(hide=('list',), order=('done',), describe=dict(get='see one')))
    tools = read[0].split('\n')[0].split()
    assert tools[0] == 'done' and 'list' not in tools and 'get id see one' in read[0]
    assert t.turns[0].parse_error == 'bad call' and t.turns[0].calls == []
