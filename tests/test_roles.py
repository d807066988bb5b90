"The language-model path over real HTTP: good replies, bad replies, kills, and two thousand fuzzed ones."
import json, os, random, signal, subprocess, sys, threading, time, urllib.request
from pathlib import Path

os.environ['LITELLM_LOCAL_MODEL_COST_MAP'] = 'True'
import pytest
from pydantic import ValidationError
from harness_s.config import RoleConfig, parse_config
from harness_s.core import UserError
from harness_s.evolve.diagnose import Direction
from harness_s.evolve.edit import Ask, Proposal, apply_edits, static_faults
from harness_s.evolve.llm import LLMEditor
from harness_s.evolve.pool import Pool
from harness_s.policy.base import TextPolicy
from harness_s.roles import BadReply, RoleClient, RoleStop, read_object
from harness_s.store import RunStore
from endpoint import FAULTS, HARMLESS, Endpoint, spoil
from rooms import CONFIG, Rooms, TOOLS, obey


TRANSIENT = ('http_429', 'http_500', 'hang', 'not_json')


def config(base, timeout_s=20, **roles):
    model = dict(model='openai/test', api_base=base, timeout_s=timeout_s, retries=2, backoff_s=.01)
    return parse_config({**CONFIG, 'roles': dict(diagnoser=model, editor=model, profiler=model, voters=[model, model], max_failures=30, **roles)})


def once(folder, base, slow=0.0, route=True, **roles):
    "Evolution, calibration and routing with every role played over HTTP."
    from harness_s.evolve.evolve import evolve
    from harness_s.route.select import Router, calibrate, make_voters
    def fn(messages, task):
        time.sleep(slow)
        return obey(messages, task)
    cfg, policy, bench = config(base, **roles), TextPolicy(fn, 'obey'), Rooms()
    store = RunStore.create(folder, {k: v for k, v in cfg.model_dump(mode='json').items() if k != 'roles'})
    pool = evolve(policy, bench, cfg, store, show=False)
    if not route: return pool, store, None
    evidence = calibrate(policy, pool, bench, cfg, store, show=False)
    router = Router(pool, bench, evidence, make_voters(cfg, store), seed=1)
    return pool, store, router


def records(store): return [store.read_json(f'roles/{p.name}') for p in sorted((store.path / 'roles').glob('[0-9]*.json'))]


def test_all_roles_over_http(tmp_path):
    with Endpoint(lambda n: HARMLESS[n % 2] if n % 3 == 0 else None) as e:
        pool, store, router = once(tmp_path / 'r', e.base)
        tasks = Rooms().tasks('test')[:4]
        ranked = router.rankings(tasks, True)
        assert len(pool) >= 4 and not any(r['stage'] == 'proposal' and 'Error' not in r['reason'] and 'static' not in r['reason'] and 'BadReply' in r['reason'] for r in pool.rejected)
        assert {c for r in list(pool.records.values())[1:] for c in r.causes} <= {'no_look', 'no_unlock', 'no_check', 'no_wipe'}
        assert any(p.prefer for p in router.evidence.profiles.values())
        assert all(len(r) == len(pool) for r in ranked) and all(b['status'] == 'valid' for b in router.ballot_rows(tasks))
        got = records(store)
        assert {r['role'] for r in got} == {'diagnoser', 'editor', 'profiler', 'voter'} and len(got) == len(e.log)
        assert all(m['body']['temperature'] == .6 for m in e.log)
        s = RoleClient(store).spent()
        assert s['prompt'] == 100 * len(got) and s['cached'] == 40 * len(got) and s['completion'] == 20 * len(got)
        orders = {json.dumps(m['body']['messages'][1]['content'].split('Candidates:')[1].split('\n')) for m in e.log if 'choose which' in m['body']['messages'][0]['content']}
        assert len(orders) == 8                                       # shuffled for each call
        n = len(e.log)
        once(tmp_path / 'r', e.base)[2].rankings(tasks, True)
        assert len(e.log) == n                                        # a second start pays nothing


def test_every_bad_reply_is_logged_and_inert(tmp_path):
    rng = random.Random(0)
    script = [rng.choice([f for f in FAULTS if f != 'hang']) if rng.random() < .5 else None for _ in range(2000)]
    script[5] = 'hang'
    with Endpoint(lambda n: script[n], hang_s=60) as e: pool, store, _ = once(tmp_path / 'r', e.base, timeout_s=4, route=False)
    got, sent = records(store), {}
    bodies = [json.dumps(m['body']['messages']) for m in e.log]
    assert len(got) == len(e.log)
    for r, m in zip(got, e.log):
        if m['fault'] in TRANSIENT: assert r['status'] == 'transient', (m['fault'], r)
        elif m['fault'] is None: assert r['status'] == 'ok', r
        elif m['fault'] == 'duplicate_entry' and r['role'] == 'editor': pass      # readable, and refused where it is applied
        else: assert r['status'] in ('bad', 'refused') and r['error'], (m['fault'], r)
    assert pool.frozen and all(h.id in pool.records for h in pool)
    good = {json.dumps(read_object(r['text'])['edits'], sort_keys=True) for r in got if r['role'] == 'editor' and r['status'] == 'ok' and 'edits' in read_object(r['text'])}
    for r in list(pool.records.values())[1:]:
        assert json.dumps([dict(e) for e in r.edits], sort_keys=True) in good     # nothing in the pool but what was said validly
    assert len({m['fault'] for m in e.log}) >= 8


@pytest.mark.parametrize('fault', FAULTS)
def test_each_fault_alone_gives_no_candidate(tmp_path, fault):
    with Endpoint(lambda n: fault, hang_s=60) as e:
        cfg = RoleConfig(model='openai/test', api_base=e.base, timeout_s=.5 if fault == 'hang' else 20, retries=1, backoff_s=.01)
        ed, d = LLMEditor(RoleClient(RunStore(tmp_path)), cfg), Direction(causes=('no_look', 'no_check'), tasks={'no_look': ('a', 'b'), 'no_check': ('c', 'd')})
        bench = Rooms()
        with pytest.raises((BadReply, UserError)): apply_edits(bench.base_harness(), ed.propose(Ask(bench.base_harness(), d)), d)
        r = records(RunStore(tmp_path))
        assert len(r) == len(e.log) == (2 if fault in TRANSIENT else 1)


def test_only_bad_replies_end_in_an_error(tmp_path):
    "R9: every reply is useless; the run ends, within its budget, in an error that says so."
    for k, (fault, want) in enumerate({'refusal': 'none of', 'http_500': 'none of'}.items()):
        with Endpoint(lambda n: fault) as e, pytest.raises((UserError, BadReply), match=want): once(tmp_path / str(k), e.base, route=False)
        assert 0 < len(e.log) <= 31
    model = dict(model='openai/test', timeout_s=20, retries=0)
    with Endpoint(lambda n: 'truncated') as e, pytest.raises(UserError, match='in a row'):
        from harness_s.evolve.evolve import evolve
        cfg = parse_config({**CONFIG, 'evolve': {**CONFIG['evolve'], 'max_failures': 4}, 'roles': dict(editor={**model, 'api_base': e.base})})
        evolve(TextPolicy(obey, 'obey'), Rooms(), cfg, RunStore.create(tmp_path / 'x', {}), show=False)
    assert len(e.log) == 4


def test_wrong_key_or_name_stops_at_once(tmp_path, monkeypatch):
    monkeypatch.delenv('NO_SUCH_KEY', raising=False)
    c = RoleClient(RunStore(tmp_path))
    with pytest.raises(RoleStop, match='NO_SUCH_KEY is not set'): c.ask('editor', RoleConfig(model='openai/test', api_key_env='NO_SUCH_KEY'), [dict(role='user', content='x')], Proposal)


def test_budget_ends_the_evolution_with_what_it_has(tmp_path):
    with Endpoint() as e: pool, store, _ = once(tmp_path / 'r', e.base, route=False, max_calls=6)
    assert len(e.log) == 6 and pool.frozen and 'max_calls' in pool.meta['stopped'] and 1 < len(pool) <= 4


def plain(role, messages):
    "The same call without litellm, whose import would take longer than the rest of a killed run."
    body = json.dumps(dict(model=role.model, messages=messages, temperature=role.temperature)).encode()
    with urllib.request.urlopen(urllib.request.Request(role.api_base + '/chat/completions', body), timeout=role.timeout_s) as r: d = json.load(r)
    return dict(text=d['choices'][0]['message']['content'], finish='stop', prompt=100, cached=40, completion=20, money=0)


def paid(log): return sorted(json.dumps(m['body']['messages']) for m in log if m['fault'] is None)


def test_kill_pays_nothing_twice(tmp_path):
    "Killed with SIGKILL at random moments: the same pool, and no request was answered twice but those in flight at a kill."
    with Endpoint() as e:
        pool, _, _ = once(tmp_path / 'whole', e.base, route=False)
        whole = paid(e.log)
    with Endpoint() as e:
        rng, kills = random.Random(5), 0
        for _ in range(8):
            p = subprocess.run([sys.executable, __file__, str(tmp_path / 'r'), e.base, str(rng.uniform(.1, .4) * (1 + kills / 3))], stderr=subprocess.PIPE)
            if p.returncode == 0: break
            assert p.returncode == -signal.SIGKILL, p.stderr.decode()[-2000:]
            kills += 1
        again, _, _ = once(tmp_path / 'r', e.base, route=False)
        assert again.hash == pool.hash and again.records == pool.records and again.rejected == pool.rejected
        broken = paid(e.log)
    assert kills and set(broken) == set(whole) and len(broken) - len(whole) <= kills


def test_any_model_as_executor(tmp_path):
    "A litellm model runs tasks: 429 and 500 are tried again, a server that stays down is missing, each token counts once, a resumed evaluation pays nothing."
    from harness_s.cache import spent
    from harness_s.commands import metered
    from harness_s.evaluate import evaluate
    from harness_s.policy.api import ApiPolicy
    bench, store = Rooms(), RunStore.create(tmp_path, {})
    h = bench.base_harness().child(prompt_rules={k: dict(slot='role', text=f'please {k} first') for k in ('look', 'unlock', 'check', 'wipe')})
    tasks = bench.tasks('test')[:6]
    with Endpoint(lambda n: {3: 'http_429', 5: 'http_500'}.get(n)) as e:
        cfg = RoleConfig(model='openai/test', api_base=e.base, timeout_s=20, retries=2, backoff_s=.01)
        run = lambda: evaluate(p, bench, tasks, h, 1, store=store, arm='ref', run=metered(store, p))
        p = ApiPolicy(cfg); frame = run()
        assert frame['outcome'].to_list() == ['pass'] * 6
        cost, good = spent(store, 'eval-ref-'), sum(m['fault'] is None for m in e.log)
        assert (cost['prompt'], cost['cached'], cost['completion'], cost['rollouts']) == (50 * good, 30 * good, 2 * good, 6) and good == 36
        p = ApiPolicy(cfg); run()
        assert len(e.log) == 38 and spent(store, 'eval-ref-') == cost
    with Endpoint(lambda n: 'http_500') as e:
        p = ApiPolicy(cfg.model_copy(update=dict(api_base=e.base, retries=0)))
        assert set(evaluate(p, bench, tasks, h, 1, arm='down')['outcome']) == {'missing'}


def test_commands_without_training(tmp_path, capsys):
    "`evolve`, `route` and `evaluate` with models in every role and as the executor, through the command line."
    import yaml
    from harness_s.cli import main
    with Endpoint() as e:
        model = dict(model='openai/test', api_base=e.base, timeout_s=20, backoff_s=.01)
        cfg = dict(bench=dict(name='rooms:Rooms'), stages=['evolve'], policy=dict(api=model), roles=dict(diagnoser=model, editor=model, profiler=model, voters=[model]),
                   evolve=dict(proposals=[2], diagnose_tasks=10, local_tasks=6, local_controls=2, val_tasks=6, cover_tasks=0), route=dict(val_tasks=6), evaluate=dict(rollouts=2), width=8)
        (tmp_path / 'c.yaml').write_text(yaml.safe_dump(cfg))
        out = str(tmp_path / 'run')
        assert main(['evolve', str(tmp_path / 'c.yaml'), '--out', out]) == 0
        pool = Pool.load(tmp_path / 'run/pool')
        assert pool.frozen and len(pool) == 3
        capsys.readouterr()
        assert main(['route', out, '--task', 'test003', '--json']) == 0
        found = json.loads(capsys.readouterr().out)
        assert [r['rank'] for r in found['ranking']] == [1, 2, 3] and found['ballots'][0]['voter'] == 'openai/test#0' and found['similar']
        assert main(['route', out, '--text', 'room 9 9 look']) == 0 and 'ballots:' in capsys.readouterr().out
        n = len(e.log)
        ask = ['evaluate', out, '--policy', 'openai/other', '--api-base', e.base, '--harness', 'rank1', '--tasks', '3']
        assert main(ask) == 0
        got = json.loads(capsys.readouterr().out.strip().splitlines()[-1])
        assert got['n'] == 3 and got['n_missing'] == 0 and got['pass2'] is not None
        used = [m for m in e.log[n:] if m['body']['model'] == 'other']
        assert got['cost']['prompt'] == 50 * len(used) and got['cost']['cached'] == 30 * len(used)
        assert main(ask) == 0 and len([m for m in e.log[n:] if m['body']['model'] == 'other']) == len(used)
        assert main(['route', out, '--task', 'nope']) == 2 and "no task 'nope'" in capsys.readouterr().err
        assert main(['evaluate', out, '--policy', 'gpt']) == 2


# ---- fuzz: whatever comes back, no crash, and no candidate from an invalid reply

GOOD = dict(edits=[dict(op='add', component='prompt_rules', key='look', value=dict(slot='role', text='please look first')),
                   dict(op='add', component='hooks', key='check', value=dict(event='before_finish', action='block', message='check first', parameters={'times': 1})),
                   dict(op='change', component='memory', key='enabled', value=True)], intent='look and check', brief='a rule and a hook')


def _broken_value(rng, good):
    "A valid JSON text that breaks the schema, the component's own rules, or the protocol."
    g = json.loads(json.dumps(good)); e = rng.choice(g['edits'])
    kind = rng.randrange(10)
    if kind == 0: e['component'] = rng.choice(['weights', 'Hooks', '', 'prompt', 'skills '])
    elif kind == 1: e['op'] = rng.choice(['delete', 'ADD', '', 'replace'])
    elif kind == 2: e['extra'] = rng.choice([1, 'x', None])
    elif kind == 3: g['edits'] = rng.choice([[], None, 'x', {}, [[]], [1], g['edits'] * 4])
    elif kind == 4: g['intent'] = rng.choice(['', None, 5, 'two\nlines', 'x' * 999])
    elif kind == 5: g['edits'][0]['value'] = rng.choice([None, 'text', 3, [], {}, dict(slot='nowhere', text='x'), dict(slot='role', text=''), dict(slot='role', text='x', code='1')])
    elif kind == 6: g['edits'][1]['value'] = rng.choice([dict(event='sometime', message='m'), dict(event='after_tool', action='block', message='m'), dict(event='after_tool', condition='tool_is', message='m'),
                                                        dict(event='before_finish', action='block', message='m', parameters={'times': 99}), dict(event='after_tool', condition='tool_is', message='m', parameters={'tool': 'rm'})])
    elif kind == 7: g['edits'].append(rng.choice([dict(op='add', component='tool_view', key='hide', value=['done']), dict(op='remove', component='skills', key='none'), dict(op='change', component='context', key='keep_last', value=-1),
                                                  dict(op='change', component='context', key='size', value=1), dict(op='add', component='tool_view', key='hide', value=['__import__'])]))
    elif kind == 8: del g[rng.choice(['edits', 'intent'])]
    else: g = rng.choice([[g], dict(answer=g), dict(tool='edit', arguments=g), 7, 'edits', None])
    return json.dumps(g)


def fuzzed(rng):
    "(reply, whether it must be refused)"
    text = json.dumps(GOOD, indent=rng.choice([None, 1]))
    kind = rng.randrange(5)
    if kind == 0: return rng.choice(['', '```json\n', 'Sure: ', '```\n']) + text[:rng.randrange(len(text))], True                                  # cut off
    if kind == 1: return spoil(rng.choice([f for f in FAULTS if not f.startswith('http') and f not in ('hang', 'not_json', 'no_choices', 'length')]), GOOD), True
    if kind == 2: return rng.choice(['{}', '```json\n{}\n```', 'My edit: {} That is all.']).replace('{}', _broken_value(rng, GOOD)), True
    if kind == 3: return ''.join(chr(rng.choice([rng.randrange(32, 127), rng.randrange(0x80, 0x2000), 10, 123, 125, 34])) for _ in range(rng.randrange(300))), True     # noise
    chars = list(text)
    for _ in range(rng.randrange(1, 6)):                                                                                                            # a few characters changed
        i = rng.randrange(len(chars))
        chars[i:i + rng.randrange(3)] = rng.choice(['', '"', '{', '}', ',', '\\', '\x00', 'é', '0', chr(rng.randrange(32, 127))])
    return ''.join(chars), False


def test_two_thousand_fuzzed_replies(tmp_path):
    rng, bench = random.Random(1), Rooms()
    h0, specs, seen = bench.base_harness(), {s.name: s for s in TOOLS}, dict(refused=0, candidates=0)
    direction, cfg = Direction(causes=('no_look',), tasks={'no_look': ('a', 'b')}), RoleConfig(model='openai/fuzz')
    now = {}
    client = RoleClient(RunStore(tmp_path), parse_config({'roles': {'max_failures': 10**6}}).roles, complete=lambda c, m: dict(text=now['text'], finish='stop', prompt=1, cached=0, completion=1, money=0))
    client.store.write_json = lambda name, obj: None                     # the log is tested above; here it would be 4,000 files
    for i in range(2000):
        now['text'], must_fail = fuzzed(rng)
        try:
            p = LLMEditor(client, cfg).propose(Ask(h0, direction, name=str(i)))
            child = apply_edits(h0, p, direction)
            bad = static_faults(child, h0, p, specs)
        except (BadReply, UserError): bad = ['refused']
        seen['refused' if bad else 'candidates'] += 1
        if not bad:
            assert not must_fail, now['text']
            assert Proposal.model_validate(json.loads(now['text'][now['text'].index('{'):now['text'].rindex('}') + 1])) == p and type(child).model_validate(child.model_dump()) == child
    assert seen['refused'] >= 1600 and seen['candidates'] >= 10, seen


if __name__ == '__main__':
    import harness_s.evolve.evolve, harness_s.roles, polars
    harness_s.roles.complete = plain
    threading.Timer(float(sys.argv[3]), lambda: os.kill(os.getpid(), signal.SIGKILL)).start()
    once(sys.argv[1], sys.argv[2], slow=.0003, route=False)
    os._exit(0)
