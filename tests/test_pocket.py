"The pocket world: its verifier cannot be fooled, its shipped policy answers as recorded, and each harness component reaches the policy."
import json, os, random, subprocess, sys
import pytest
from harness_s.bench import pocket as P, pocket_world as W
from harness_s.bench.base import play
from harness_s.core import ToolCall
from harness_s.pocket_policy import ASSET, check_asset, make_tokenizer, make_traces, teacher, vocabulary
from harness_s.rollout import jobs_for, make_job, run_jobs

bench = P.benchmark()


def test_blind_agents_fail():
    "Calls that never look at the world must not pass: done at once, answering none, writing every row."
    for t in bench.tasks('train'):
        value = t.instruction.split()[t.instruction.split().index('to') + 1] if ' to ' in t.instruction else 'hold'
        every = [ToolCall(name=t.payload['verb'], args=dict(id=r[0], value=value)) for r in t.payload['rows']] * 2
        assert play(bench, t, [P.as_call('done')]).outcome == 'fail'
        if t.family.startswith('write') and len(t.payload['rows']) > 1: assert play(bench, t, [P.as_call(f"login {t.payload['app']}"), *every, P.as_call('done')]).outcome == 'fail'
        if P.asked(t.instruction) and 'none' not in t.instruction: assert play(bench, t, [P.as_call('answer none')]).outcome == 'fail'


def test_nothing_of_the_gold_is_in_the_task_text():
    for t in bench.tasks('test'):
        g = bench.gold(t)['goal']
        words = set(t.instruction.split())
        assert not words & {g.target, g.answer} - {'none', ''}
        assert 'needs' not in t.payload and 'goal' not in t.payload
        env = bench.env(t); env.reset(t); v = env.verify()
        assert not any({g.target, g.answer} - {'', 'none'} & set(c.detail.split()) for c in v.checks)
        env.close()


@pytest.mark.parametrize('seed', range(3))
def test_fuzzed_agents_never_break_the_world(seed):
    rng, words = random.Random(seed), vocabulary() + ["'; drop table items; --", '', '\x00', 'é' * 50]
    for t in bench.tasks('train')[:60]:
        env = bench.env(t); env.reset(t)
        for _ in range(30):
            spec = rng.choice(W.TOOLS)
            o = env.call(ToolCall(name=rng.choice([spec.name, rng.choice(words)]), args={p: rng.choice(words) for p in spec.parameters}))
            assert isinstance(o.text, str)
        assert env.verify().outcome in ('pass', 'fail')
        env.close()


def test_world_is_the_same_in_another_draw():
    a, b = P.Pocket(seed=3, train=20, val=5, test=5), P.Pocket(seed=3, train=20, val=5, test=5)
    assert [t for s in a.sizes for t in a.tasks(s)] == [t for s in b.sizes for t in b.tasks(s)]
    assert not {t.content_hash for t in a.tasks('train')} & {t.content_hash for s in bench.sizes for t in bench.tasks(s)}


@pytest.mark.parametrize('component', ['prompt_rules', 'skills', 'context', 'memory', 'hooks', 'tool_view'])
def test_each_component_reaches_the_policy(component):
    "Some mechanism of the component brings its phrase into what the policy sees, and never under H0."
    said = lambda xs, phrase: any(f' {phrase} ' in f" {' '.join(tok.convert_ids_to_tokens(r.ids))} " for x in xs for r in x.rows)
    tok, agent = make_tokenizer(), teacher(0, set())
    for m in [m for m in bench.catalogue() if m.component == component][::3]:
        phrase = next(p for p in P.PHRASES if p in json.dumps(m.edit))
        need = m.causes[0].removeprefix('missed_')
        tasks = [t for t in bench.tasks('train') if need in bench.needs(t)][:12]
        run = lambda h: run_jobs(agent, bench, jobs_for(tasks, h, 1, 'c'))
        assert said(run(P.apply(bench.base_harness(), m.edit)), phrase), m.id
        assert not said(run(bench.base_harness()), phrase)


def test_diagnosis_names_the_missing_habit():
    "A teacher that has every habit but one is diagnosed with that one; settling for half a match shows as `both` whatever led to it."
    seen, parts = set(), {}
    for t in bench.tasks('train'):
        for h in bench.needs(t): parts.setdefault(frozenset(bench.needs(t)) - {h}, []).append((t, h))
    for habits, pairs in parts.items():
        for (t, h), x in zip(pairs, run_jobs(teacher(0, set(habits)), bench, [make_job(t, bench.base_harness(), i, 'd') for i, (t, _) in enumerate(pairs)])):
            if x.reward == 0:
                d = P.diagnose(t, x)
                assert d and d['cause'] in (f'missed_{h}', 'missed_both' if 'both' in habits else ''), (t.instruction, h, d, [m['content'] for m in x.messages[2:]])
                seen.add((h, d['cause'] == f'missed_{h}'))
    assert {h for h, exact in seen if exact} == set(P.HABITS)


def test_behaviours_name_the_habits_shown():
    for t in bench.tasks('val')[:60]:
        x = run_jobs(teacher(0, set(bench.needs(t))), bench, jobs_for([t], bench.base_harness(), 1, 'b'))[0]
        assert set(bench.needs(t)) <= set(P.behaviours(t, x)) | {'both', 'latest'}, (t.instruction, bench.needs(t), P.behaviours(t, x))


def test_traces_hold_no_unknown_word_and_no_split_task():
    tok, traces = make_tokenizer(), make_traces(200, seed=5)
    assert len(traces) >= 190 and all(len(i) == len(m) and any(m) for i, m in traces)
    assert not any(tok.unk_token_id in ids for ids, _ in traces)


def test_shipped_policy_answers_as_recorded():
    "The weights in the package give the recorded greedy calls, and Avg under H0 within the recorded tolerance."
    got = check_asset()
    record = json.loads((ASSET / 'record.json').read_text())
    assert got['greedy'] == record['greedy'] and got['fingerprint'] == record['fingerprint']
    assert abs(got['avg_h0'] - record['avg_h0']) <= record['tolerance']
    assert sum(f.stat().st_size for f in ASSET.iterdir()) < 2_000_000


def test_recorded_difficulty_is_within_the_bounds():
    from harness_s.pocket_difficulty import WANTED
    d = json.loads((ASSET / 'difficulty.json').read_text())
    assert all(f(d) for _, f in WANTED.values()) and set(d['met'].values()) == {True}


def test_tasks_and_harnesses_do_not_depend_on_the_process():
    "Another hash seed gives the same tasks, pool and random harnesses: nothing iterates over a set of strings."
    code = ("import random\nfrom harness_s.bench import pocket as P\nfrom harness_s.core import content_hash\nfrom harness_s.pocket_policy import random_harness\n"
            "b, rng = P.benchmark(), random.Random(1)\nts = [t for s in b.sizes for t in b.tasks(s)]\n"
            "print(content_hash([[t.id, t.content_hash, t.family, b.gold(t)['oracle']] for t in ts] + [h.id for h in P.scripted_siblings().values()]"
            " + [m.id for m in b.catalogue()] + [random_harness(rng, b.needs(t)).id for t in ts]))")
    said = {subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, check=True, env={**os.environ, 'PYTHONHASHSEED': s}).stdout for s in '12'}
    assert len(said) == 1
